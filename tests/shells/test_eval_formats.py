"""Evals made elsewhere by inspect_ai and NeMo Evaluator: items, repetitions, failures, and files that are refused.

The `.eval` fixture is a log of inspect_ai 0.3.285 itself; the other files have the fields of the tools' own sources.
"""

from __future__ import annotations

import json
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchgate.errors import BenchgateError, SuiteError
from benchgate.gate.evidence.items import is_unclear
from benchgate.importers.inspect_logs import is_log, read_logs
from benchgate.importers.nemo_bundles import is_bundle, read_bundles
from benchgate.model.deployment import Arm
from benchgate.model.run import ImportedEvals
from benchgate.suite.quality import Quality

FIXTURES = Path(__file__).parents[1] / "fixtures/imports/evals"
LOG = FIXTURES / "inspect_ai-0.3.285-zstd.eval"
BUNDLE = "eval-20260225T143012Z-gsm8k.json"


def quality(task: str = "capitals", **more: Any) -> Quality:
    return Quality.model_validate({"tasks": [{"task": task, **more}]})


def sample(name: str, epoch: int = 1, value: object = "C", **more: Any) -> dict[str, Any]:
    """Return a sample as inspect_ai logs it."""
    return {
        "id": name, "epoch": epoch, "input": f"Capital of {name}?", "target": "Paris",
        "messages": [
            {"id": f"random-{name}-{epoch}-1", "content": "Be brief.", "role": "system"},
            {"id": f"random-{name}-{epoch}-2", "content": f"Capital of {name}?", "role": "user"},
            {"id": f"random-{name}-{epoch}-3", "content": "Paris", "role": "assistant"},
        ],
        "output": {
            "model": "f16", "completion": "Paris",
            "choices": [{"message": {"content": "Paris", "role": "assistant"}, "stop_reason": "stop"}],
            "usage": {"input_tokens": 9, "output_tokens": 1, "total_tokens": 10},
        },
        "scores": {"match": {"value": value, "answer": "Paris", "history": []}},
        "metadata": {"continent": "Europe"}, "working_time": 0.25, **more,
    }  # fmt: skip


def log(samples: list[dict[str, Any]], epochs: int = 1, **more: Any) -> dict[str, Any]:
    """Return a log of inspect_ai with these samples, and no reported mean."""
    ids = list(dict.fromkeys(one["id"] for one in samples))
    return {
        "version": 2, "status": "success",
        "eval": {
            "run_id": "run", "eval_id": "eval", "created": "2026-01-02T03:04:05+00:00", "task": "capitals",
            "task_id": "id", "task_version": 0, "model": "vllm/org/f16", "packages": {"inspect_ai": "0.3.285"},
            "dataset": {"samples": len(ids), "sample_ids": ids}, "config": {"epochs": epochs},
        },
        "plan": {"steps": [{"solver": "generate", "params": {}}], "config": {"max_tokens": 20, "timeout": 9}},
        "results": {
            "total_samples": len(samples), "completed_samples": len(samples),
            "scores": [{"name": "match", "scorer": "match", "metrics": {}}],
        },
        "samples": samples, **more,
    }  # fmt: skip


def written(folder: Path, document: dict[str, Any]) -> Path:
    path = folder / "2026-01-02T03-04-05-00-00_capitals_id.json"
    path.write_text(json.dumps(document))
    return path


def zipped(folder: Path, document: dict[str, Any]) -> Path:
    """Write a log as `.eval`, with a header and a file per sample."""
    path = folder / "2026-01-02T03-04-05-00-00_capitals_id.eval"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for one in document["samples"]:
            archive.writestr(f"samples/{one['id']}_epoch_{one['epoch']}.json", json.dumps(one))
        archive.writestr("header.json", json.dumps({key: one for key, one in document.items() if key != "samples"}))
    return path


def read(path: Path, task: str = "capitals", **more: Any) -> ImportedEvals:
    return read_logs(Arm.BASELINE, path, quality(task, **more))


def refusal(path: Path, **more: Any) -> str:
    with pytest.raises(BenchgateError) as refused:
        read(path, **more)
    return str(refused.value)


SECRETS = ("api_key", "apiKey", "access_token", "hf_token", "token", "Authorization", "x-auth", "client_secret")


def test_credentials_among_the_settings_of_a_log_are_not_kept(tmp_path: Path) -> None:
    document = log([sample("France")])
    document["plan"]["config"] |= {
        "temperature": 0,
        "extra_headers": {"Authorization": "Bearer sk-live-0123456789"},
        "extra_body": {"min_p": 0.1, "keywords": 3, **dict.fromkeys(SECRETS, "sk-live-0123456789")},
        "response_schema": {"properties": {"key": {"type": "string"}}},
    }
    (found,) = read_logs(Arm.BASELINE, written(tmp_path, document), quality()).observations
    assert found.harness["generation"] == {
        "max_tokens": 20, "temperature": 0, "extra_body": {"min_p": 0.1, "keywords": 3},
        "response_schema": {"properties": {"key": {"type": "string"}}},
    }  # fmt: skip


def test_a_log_of_inspect_ai_itself_is_read_with_its_epochs_as_repetitions() -> None:
    assert is_log(LOG)
    found = read(LOG, limit=2)
    [observation] = found.observations
    assert [(item.item_id, item.score) for item in observation.items] == [("c0", 1.0), ("c1", 0.5)]
    assert (observation.items[0].answer, observation.items[0].input_tokens) == ("Paris", 4)
    assert (observation.harness["repeats"], observation.harness["metric"], observation.fault) == (2, "match", None)
    assert (found.model, observation.harness["provider"]) == ("f16", "mockllm")
    assert "has no `limit`, and the file holds 2 items, not all of the task's" in refusal(LOG)


def test_both_containers_of_a_log_hold_the_same_items(tmp_path: Path) -> None:
    document = log([sample("a"), sample("b", value=0.25)])
    one, other = (read(put(tmp_path, document)).observations[0] for put in (written, zipped))
    assert one.items == other.items and one.harness == other.harness
    assert [item.score for item in one.items] == [1.0, 0.25]
    assert one.harness["generation"] == {"max_tokens": 20}  # not the timeout


@pytest.mark.parametrize(
    ("value", "score"), [("C", 1), ("I", 0), ("P", 0.5), ("N", 0), (True, 1), (0.75, 0.75), ("yes", 1), ("0.5", 0.5)]
)
def test_the_values_of_inspect_ai_are_scores(tmp_path: Path, value: object, score: float) -> None:
    assert read(written(tmp_path, log([sample("a", value=value)]))).observations[0].items[0].score == score


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"error": {"message": "the server hung up", "traceback": ""}, "scores": {}}, "the server hung up"),
        ({"scores": {"match": {"value": float("nan")}}}, "the scorer match gave it no score"),
        ({"scores": None}, "the scorer match gave it no score"),
        ({"invalidation": {"reason": "wrong prompt"}}, "a person marked it invalid: wrong prompt"),
        ({"limit": {"type": "time", "limit": 9.0}}, "its time limit ended it before it was done"),
        ({"limit": {"type": "working", "limit": 9.0}}, "its working limit ended it before it was done"),
    ],
)
def test_a_failed_epoch_fails_its_item_and_no_item_is_dropped(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    samples = [sample("a", 1), {**sample("a", 2), **change}, sample("b", 1), sample("b", 2)]
    [observation] = read(written(tmp_path, log(samples, epochs=2))).observations
    assert [(item.item_id, item.score, item.error) for item in observation.items] == [
        ("a", None, reason),
        ("b", 1, None),
    ]
    assert observation.fault == f"1 of 2 items failed, the first is a: {reason}"


@pytest.mark.parametrize("kind", ["token", "message", "context"])
def test_a_sample_that_a_limit_cut_short_is_unclear_if_it_is_wrong(tmp_path: Path, kind: str) -> None:
    limit = {"type": kind, "limit": 3.0}
    samples = [sample("a", value="I", limit=limit), sample("b", limit=limit), sample("c", value="I")]
    [observation] = read(written(tmp_path, log(samples))).observations
    assert [item.finish_reason for item in observation.items] == ["length", "length", "stop"]
    assert [is_unclear(item) for item in observation.items] == [True, False, False]


@pytest.mark.parametrize(
    ("score", "unclear"),
    [
        ({"value": "I", "answer": " "}, True),
        ({"value": "I"}, True),
        ({"value": "C"}, False),
        ({"value": "I", "answer": "Rome"}, False),
    ],
)
@pytest.mark.parametrize("epochs", [1, 2])
def test_a_wrong_answer_out_of_which_nothing_is_extracted_is_unclear(
    tmp_path: Path, score: dict[str, Any], unclear: bool, epochs: int
) -> None:
    numbers = range(1, epochs + 1)
    samples = [sample(name, epoch) for name in "ab" for epoch in numbers]
    for one in samples[:epochs]:
        one["scores"] = {"match": score}
    [observation] = read(written(tmp_path, log(samples, epochs=epochs))).observations
    assert [is_unclear(item) for item in observation.items] == [unclear, False]
    assert observation.harness.get("unclear_count", 0) == (epochs if unclear and epochs > 1 else 0)


def test_an_answer_is_not_unreadable_if_it_is_empty_or_the_scorer_does_not_extract(tmp_path: Path) -> None:
    wrong: dict[str, Any] = {"value": "I"}
    path = written(tmp_path, log([sample("a", scores={"match": wrong})]))
    assert not is_unclear(read(path).observations[0].items[0])
    wrong["reason"] = "invalid_response_format"
    path = written(tmp_path, log([sample("a", scores={"match": wrong})]))
    assert is_unclear(read(path).observations[0].items[0])
    path = written(tmp_path, log([sample("a", scores={"match": wrong}, output={"completion": " "})]))
    assert not is_unclear(read(path).observations[0].items[0])


def test_limits_of_samples_are_settings_that_both_arms_share(tmp_path: Path) -> None:
    document = log([sample("a")])
    document["eval"]["config"].update(limit=1, message_limit=3, token_limit_type="output")
    harness = read(written(tmp_path, document)).observations[0].harness
    assert (harness["message_limit"], harness["token_limit_type"]) == (3, "output")
    assert "limit" not in harness and "time_limit" not in harness


def test_prompts_are_compared_without_the_random_ids_of_their_messages(tmp_path: Path) -> None:
    document = log([sample("a")])
    one = read(written(tmp_path, document)).observations[0].items[0]
    document["samples"][0]["messages"][1]["id"] = "another"
    assert read(written(tmp_path, document)).observations[0].items[0] == one
    document["samples"][0]["messages"][0]["content"] = "Be long."
    assert read(written(tmp_path, document)).observations[0].items[0].prompt_hash != one.prompt_hash


def test_an_input_of_messages_is_one_document_whatever_their_random_ids(tmp_path: Path) -> None:
    def document_hash(random: str, content: str = "Berlin", function: str = "look_up") -> str:
        call = {"id": f"call-{random}", "function": function, "arguments": {}}
        sent = [
            {"id": f"1-{random}", "role": "user", "content": "Capital?"},
            {"id": f"2-{random}", "role": "assistant", "content": "", "tool_calls": [call]},
            {"id": f"3-{random}", "role": "tool", "content": content, "tool_call_id": f"call-{random}"},
        ]
        return read(written(tmp_path, log([sample("a", input=sent)]))).observations[0].items[0].doc_hash

    assert document_hash("x") == document_hash("y")
    assert len({document_hash("x"), document_hash("x", content="Paris"), document_hash("x", function="guess")}) == 3


@pytest.mark.parametrize("mark", [{"source": "generate"}, {}])
def test_a_dialogue_of_examples_is_part_of_the_prompt_if_answers_are_marked(
    tmp_path: Path, mark: dict[str, str]
) -> None:
    def prompt_hash(example: str = "Rome", answer: str = "Paris") -> str:
        messages = [
            {"role": "user", "content": "Capital of Italy?"},
            {"role": "assistant", "content": example},
            {"role": "user", "content": "Capital of France?", "source": "input"},
            {"role": "assistant", "content": answer, **mark},
        ]
        return read(written(tmp_path, log([sample("a", messages=messages)]))).observations[0].items[0].prompt_hash

    assert prompt_hash(answer="Lyon") == prompt_hash()
    assert (prompt_hash(example="I do not know") != prompt_hash()) == bool(mark)


def settled(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document.update(changes)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (settled(version=3), "$.version: found 3; expected version 2 of inspect_ai's log format"),
        (settled(status="cancelled"), "$.status: found 'cancelled'; expected \"success\""),
        (settled(samples=[]), "it holds no samples"),
        (settled(results=None), "its results have no score"),
        (lambda d: d["samples"].pop(), "sample 'b' has 1 of 2 repetitions"),
        (lambda d: d.update(samples=d["samples"][:2]), "sample 'b' is missing (1 such)"),
        (lambda d: d["samples"].append(sample("a", 2)), "sample 'a', repetition 2 is at samples[1] already"),
        (lambda d: d["samples"].extend([sample("x", 1), sample("x", 2)]), "sample 'x' is not in the header's list"),
        (lambda d: d["samples"][3]["scores"]["match"].update(value="maybe"), "the score of sample 'b', epoch 2"),
        (lambda d: d["samples"][0].pop("target"), "$.samples[0].target: found None; expected a value"),
        (lambda d: d["results"]["scores"][0].update(metrics={"accuracy": {"value": 0.5}}), "its results say 0.500000"),
        (lambda d: d["eval"].update(task="mmlu"), "no samples of the task 'capitals'; there are those of mmlu"),
        (lambda d: d["eval"]["dataset"].update(samples=9), "the file holds 2 items, not all of the task's"),
    ],
)  # fmt: skip
def test_a_damaged_log_is_refused_with_file_and_sample(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], reason: str
) -> None:
    document = log([sample(name, epoch) for name in "ab" for epoch in (1, 2)], epochs=2)
    change(document)
    path = written(tmp_path, document)
    said = refusal(path)
    assert reason in said and str(tmp_path) in said


def test_a_truncated_log_is_refused(tmp_path: Path) -> None:
    document = log([sample("a")])
    path = written(tmp_path, document)
    path.write_text(path.read_text()[:-20])
    assert is_log(path) and re.search(r"id\.json:1:\d+: .*is the file cut short\?", refusal(path))
    archive = zipped(tmp_path, document)
    archive.write_bytes(archive.read_bytes()[:-20])
    assert "is no whole ZIP archive" in refusal(archive)
    archive.write_bytes(LOG.read_bytes().replace(b"\x28\xb5\x2f\xfd", b"\x28\xb5\x2f\xfe"))  # the mark of Zstandard
    assert "header.json is damaged" in refusal(archive)
    packed = bytearray(LOG.read_bytes())
    for entry in re.finditer(b"PK\x01\x02", bytes(packed)):
        packed[entry.start() + 20 : entry.start() + 24] = b"\xff\xff\xff\x7f"  # the packed size of a member
    archive.write_bytes(packed)
    assert "header.json is damaged (it is cut off)" in refusal(archive)  # without room for 2 GiB


@pytest.mark.parametrize(
    ("suite", "reason"),
    [
        ({"metric": "includes"}, "no score is called 'includes'; there are 'match'"),
        ({"filter": "strict"}, "the file has no filters"),
        ({"few_shot": 5}, "the suite says `few_shot: 5`, and the file does not report it"),
        ({"max_tokens": 99}, "the suite says `max_tokens: 99`, and the file says 20"),
        ({"limit": 1}, "says `limit: 1`, and the file holds 2 items"),
        ({"cluster": "passage"}, "$.samples[0].metadata.passage: found None"),
    ],
)
def test_a_suite_that_a_log_contradicts_is_refused(tmp_path: Path, suite: dict[str, Any], reason: str) -> None:
    assert reason in refusal(written(tmp_path, log([sample("a"), sample("b")])), **suite)


def test_the_token_limit_of_the_suite_holds_for_tasks_without_their_own(tmp_path: Path) -> None:
    def read_with(limit: int, **own: int) -> ImportedEvals:
        tasks = [{"task": "capitals", **own}]
        return read_logs(Arm.BASELINE, path, Quality.model_validate({"tasks": tasks, "max_tokens": limit}))

    path = written(tmp_path, log([sample("a"), sample("b")]))
    assert read_with(20).observations and read_with(99, max_tokens=20).observations
    with pytest.raises(SuiteError, match="the suite says `max_tokens: 99`, and the file says 20"):
        read_with(99)
    silent = log([sample("a"), sample("b")])
    del silent["plan"]["config"]["max_tokens"]
    path = written(tmp_path, silent)
    assert read_with(99).observations  # the file reports no limit


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda log: log["plan"]["steps"][0].update(params={"scale": float("nan")}), r"\$\.plan\.steps\[0\]\.params"),
        (
            lambda log: log["plan"]["config"].update(temperature=float("inf")),
            r"\$\.plan\.config\.temperature: found inf",
        ),
        (
            lambda log: log["samples"][0].update(invalidation="wrong prompt"),
            r"\$\.samples\[0\]\.invalidation: found 'wr",
        ),
    ],
)
def test_a_setting_that_is_no_number_and_a_mark_that_is_no_object_are_refused_at_their_places(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], place: str
) -> None:
    document = log([sample("a")])
    change(document)
    with pytest.raises(BenchgateError, match=place):
        read(written(tmp_path, document))


def test_of_a_folder_each_task_has_one_log(tmp_path: Path) -> None:
    written(tmp_path, log([sample("a")]))
    assert len(read(tmp_path).observations) == 1
    zipped(tmp_path, log([sample("a")]))
    assert "are all of the task 'capitals'; keep the one that counts" in refusal(tmp_path)


# --- NeMo Evaluator ---------------------------------------------------------------------------------------------------


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """Copy the bundle of 3 problems in 2 repeats."""
    return Path(shutil.copytree(FIXTURES / "nemo", tmp_path / "nemo"))


def bundle_items(folder: Path, task: str = "gsm8k", **more: Any) -> ImportedEvals:
    return read_bundles(Arm.BASELINE, folder, quality(task, **more))


def change_line(folder: Path, number: int, **changes: Any) -> None:
    path = folder / "results.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[number] = {**rows[number], **changes}
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def test_a_bundle_holds_its_problems_with_the_mean_of_their_repeats(bundle: Path) -> None:
    assert is_bundle(bundle) and is_bundle(bundle / BUNDLE)
    found = bundle_items(bundle, cluster="category")
    [observation] = found.observations
    assert [(item.item_id, item.score) for item in observation.items] == [("0", 1.0), ("1", 1.0), ("2", 0.5)]
    assert (found.model, observation.items[0].cluster, observation.harness["repeats"]) == ("f16", "arithmetic", 2)


def test_a_request_that_nemo_scored_0_because_it_failed_is_a_failed_item(bundle: Path) -> None:
    failure = {"error": "connection reset", "error_category": "infra_error", "method": "solve_failed"}
    change_line(bundle, 5, reward=0.0, scoring_details=failure)
    [observation] = bundle_items(bundle).observations
    assert (observation.items[2].score, observation.items[2].error) == (None, "connection reset")
    assert observation.fault == "1 of 3 items failed, the first is 2: connection reset"


def configure(folder: Path, **config: Any) -> None:
    document = json.loads((folder / BUNDLE).read_text())
    document["config"] |= config
    (folder / BUNDLE).write_text(json.dumps(document))


SHARD = {"shard": {"idx": 0, "total": 2, "range": [0, 2]}, "shard_range": [0, 2]}


def test_merged_shards_are_the_whole_eval(bundle: Path) -> None:
    configure(bundle, **SHARD, n_shards=2)
    assert len(bundle_items(bundle).observations[0].items) == 3
    configure(bundle, shuffle={"ds_effective_size": 3})
    assert len(bundle_items(bundle).observations[0].items) == 3


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (SHARD, "it is one shard of the eval"),
        ({"shard_range": [0, 3]}, "the file holds 3 items, not all of the task's"),
        ({**SHARD, "n_shards": 1}, "it is merged of 1 of 2 shards"),
        ({**SHARD, "n_shards": 2, "shuffle": {"ds_effective_size": 4}}, "problems are missing among its shards"),
    ],
)
def test_shards_that_are_not_the_whole_eval_are_refused(bundle: Path, config: dict[str, Any], reason: str) -> None:
    configure(bundle, **config)
    with pytest.raises(BenchgateError, match=reason):
        bundle_items(bundle)


def test_merged_shards_without_a_problem_between_them_are_refused(bundle: Path) -> None:
    configure(bundle, **SHARD, n_shards=2)
    for line in (4, 5):
        change_line(bundle, line, problem_idx=3)
    with pytest.raises(BenchgateError, match="problems are missing among its shards"):
        bundle_items(bundle)


@pytest.mark.parametrize(
    ("details", "reason"),
    [
        ({"judge": {"score": 0, "normalized": 0.0, "parse_error": True}}, "the judge's verdict cannot be read"),
        ({"judge": {"error": "TimeoutError: ", "total": None}}, "the judge failed: TimeoutError: "),
        ({"judge": {"total": None, "scores": {}}}, "it needs a judge, and none scored it"),
        ({"needs_judge": True}, "it needs a judge, and none scored it"),
    ],
)
def test_an_answer_that_no_judge_scored_is_a_failed_item(bundle: Path, details: dict[str, Any], reason: str) -> None:
    change_line(bundle, 5, reward=0.0, scoring_details={"method": "needs_judge", "needs_judge": False, **details})
    item = bundle_items(bundle).observations[0].items[2]
    assert (item.score, item.error) == (None, reason)


@pytest.mark.parametrize("judge", [{"score": 0, "normalized": 0.0}, {"total": 0.0}])
def test_a_judge_may_find_an_answer_wrong(bundle: Path, judge: dict[str, Any]) -> None:
    change_line(bundle, 5, reward=0.0, scoring_details={"needs_judge": True, "judge": judge})
    item = bundle_items(bundle).observations[0].items[2]
    assert (item.score, item.error) == (0.5, None)


@pytest.mark.parametrize("extracted", [None, ""])
def test_a_wrong_answer_of_nemo_without_an_extracted_one_is_unreadable(bundle: Path, extracted: str | None) -> None:
    change_line(bundle, 5, extracted_answer=extracted)
    assert bundle_items(bundle).observations[0].harness["unclear_count"] == 1


def test_prompts_and_finish_reasons_come_from_the_steps_of_a_bundle(bundle: Path) -> None:
    steps = [
        {
            "problem_idx": idx, "repeat": repeat, "prompt": f"What is {idx}?",
            "model": {"finish_reason": "length", "tokens": {"prompt": 5, "completion": 7, "total": 12}},
        }
        for idx in range(3)
        for repeat in range(2)
    ]  # fmt: skip
    path = bundle / "trajectories.jsonl"
    path.write_text("".join(f"{json.dumps(step)}\n" for step in steps))
    [observation] = bundle_items(bundle).observations
    assert len({item.prompt_hash for item in observation.items}) == 3
    assert (observation.items[0].finish_reason, observation.harness["unclear_count"]) == ("length", 2)
    path.write_text(json.dumps(steps[0]))
    with pytest.raises(BenchgateError, match=r"results\.jsonl:2: problem 0, repeat 1 is not in trajectories\.jsonl"):
        bundle_items(bundle)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"reward": None}, "results.jsonl:6: $.reward: found None"),
        ({"reward": "good"}, "results.jsonl:6: $.reward: found 'good'; expected a number as the reward of problem 2"),
        ({"repeat": 0}, "line 6: sample '2', repetition 0 is at line 5 already"),
        ({"problem_idx": 7}, "sample '2' has 1 of 2 repetitions"),
        ({"reward": 1.0}, "is 1.000000, and eval-20260225T143012Z-gsm8k.json says 0.833300"),
    ],
)
def test_a_damaged_line_of_a_bundle_is_refused_at_its_place(
    bundle: Path, change: dict[str, object], reason: str
) -> None:
    change_line(bundle, 5, **change)
    with pytest.raises(BenchgateError, match=re.escape(reason)):
        bundle_items(bundle)


def test_a_bundle_without_its_items_is_refused_with_the_reason(bundle: Path, tmp_path: Path) -> None:
    lines = bundle / "results.jsonl"
    lines.write_text("".join(lines.read_text().splitlines(keepends=True)[:4]))
    with pytest.raises(BenchgateError, match=r"it holds 4, and `n_results` of eval-\S+ is 6"):
        bundle_items(bundle)
    lines.unlink()
    with pytest.raises(
        BenchgateError, match=r"has no results\.jsonl beside it, and a paired comparison needs the score"
    ):
        bundle_items(bundle)
    older = tmp_path / "older"
    older.mkdir()
    (older / "results.yml").write_text("results: {tasks: {gsm8k: {metrics: {}}}}\n")
    (older / "eval_factory_metrics.json").write_text("{}")
    assert is_bundle(older)
    with pytest.raises(BenchgateError, match="holds means over items only, and a paired comparison needs"):
        bundle_items(older)
