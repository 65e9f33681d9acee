"""Samples that lm-eval wrote elsewhere: options, clusters, ids, and which files of a folder belong to which run."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchgate.errors import SuiteError
from benchgate.gate.evidence.items import is_unclear
from benchgate.model.deployment import Arm
from benchgate.quality.import_results import (
    SampleSelection,
    SelectedItems,
    find_files,
    parse_samples,
    read_arm,
    select_items,
)
from benchgate.suite.quality import Quality

DATE = "2026-01-02T03-04-05.000006"
ONE_OF_NINE = {"original": 9, "effective": 1}


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def line(doc_id: int, doc: dict[str, Any], score: float = 1.0, **more: Any) -> dict[str, Any]:
    """One line as lm-eval 0.4 writes it, of a text that was asked for."""
    prompt, target = f"ask {doc_id}", "yes"
    return {
        "doc_id": doc_id, "doc": doc, "target": target,
        "arguments": {"gen_args_0": {"arg_0": prompt, "arg_1": {"until": []}}},
        "resps": [["Yes!"]], "filtered_resps": ["yes"], "filter": "none", "metrics": ["acc"], "acc": score,
        "doc_hash": sha256(json.dumps(doc, indent=2, ensure_ascii=False)),
        "prompt_hash": sha256(prompt), "target_hash": sha256(target), **more,
    }  # fmt: skip


def options(*logprobs: str) -> dict[str, Any]:
    """What stands in a line of a task of options, whose texts are a, b, c, …"""
    scored = [[value, "False"] for value in logprobs]
    texts = {f"gen_args_{i}": {"arg_0": f"ask {0}", "arg_1": f" {'abcd'[i]}"} for i in range(len(logprobs))}
    return {"arguments": texts, "resps": [[one] for one in scored], "filtered_resps": scored}


def read(*rows: dict[str, Any], **wanted: Any) -> SelectedItems:
    samples, problems = parse_samples("\n".join(map(json.dumps, rows)), "s.jsonl")
    assert problems == []
    found, problems = select_items(samples, SampleSelection("t", **wanted), "s.jsonl")
    assert found is not None, problems
    return found


def test_of_options_the_likeliest_is_the_answer_and_their_number_the_chance() -> None:
    found = read(line(0, {"q": "x"}, **options("-3.5", "-0.25", "-9.0", "-inf")))
    assert (found.items[0].answer, found.items[0].choice, found.chance) == (" b", " b", 0.25)
    greedy: dict[str, Any] = {"metrics": ["exact_match"], "exact_match": 1.0}
    assert read(line(0, {"q": "x"}, **options("-3.5", "-0.25"), **greedy)).chance is None  # it picks no option


def test_an_option_that_is_spelt_like_the_mark_of_an_unread_answer_is_read() -> None:
    sent = {f"gen_args_{i}": {"arg_0": "ask 0", "arg_1": f" {text}"} for i, text in enumerate(("[valid]", "[invalid]"))}
    row = line(0, {"q": "x"}, 0.0, **{**options("-2.0", "-1.0"), "arguments": sent})
    by_name = read(row, config={"target_delimiter": " "}).items[0]
    assert (by_name.choice, is_unclear(by_name)) == (" [invalid]", False)
    sent = {name: {**one, "arg_1": one["arg_1"].strip()} for name, one in sent.items()}
    bare = read({**row, "arguments": sent}, config={"target_delimiter": ""}).items[0]
    assert (bare.answer, is_unclear(bare)) == ("[invalid]", False)


def choices(*texts: str, prompts: tuple[str, ...] = ()) -> dict[str, Any]:
    """The requests of these options."""
    asked = prompts or ("ask 0",) * len(texts)
    return {f"gen_args_{i}": {"arg_0": p, "arg_1": text} for i, (p, text) in enumerate(zip(asked, texts, strict=True))}


@pytest.mark.parametrize(
    ("metric", "chosen"), [("acc", " no"), ("acc_norm", " certainly"), ("acc_bytes", " \u00e4\u00e4\u00e4\u00e4")]
)
def test_the_option_named_is_that_of_the_judged_metric(metric: str, chosen: str) -> None:
    more: dict[str, Any] = {"metrics": ["acc", "acc_norm", "acc_bytes"], "acc_norm": 1.0, "acc_bytes": 1.0}
    more["arguments"] = choices(" no", " certainly", " \u00e4\u00e4\u00e4\u00e4")
    row = line(0, {"q": "x"}, **{**options("-2.0", "-4.0", "-3.5"), **more})
    assert (found := read(row, metric=metric).items[0]).choice == found.answer == chosen


def test_delimiter_before_an_option_is_no_part_of_its_length() -> None:
    sent = ("::::a", "::::bbbb")  # per character sent -0.6 and -0.875; of the options themselves -3 and -1.75
    more: dict[str, Any] = {"arguments": choices(*sent), "metrics": ["acc_norm"], "acc_norm": 1.0}
    row = line(0, {"q": "x"}, **{**options("-3.0", "-7.0"), **more})
    assert read(row).items[0].choice == sent[0]
    assert read(row, config={"target_delimiter": "::::"}).items[0].choice == sent[1]


def test_options_that_stand_in_their_prompts_go_by_number() -> None:
    blanks = choices(" is here.", " is here.", prompts=("ask 0", "ask 1"))
    more: dict[str, Any] = {"arguments": blanks, "metrics": ["acc", "acc_norm"], "acc_norm": 1.0}
    row = line(0, {"q": "x"}, **{**options("-3.0", "-2.0"), **more})
    assert read(row, metric="acc").items[0].choice == "option 1"
    assert read(row, metric="acc_norm").items[0].choice is None  # their lengths are unknown


def test_log_probabilities_of_options_without_their_question_are_no_options() -> None:
    scored = options("-3.5", "-0.25", "-9.0", "-0.125")
    more: dict[str, Any] = {"metrics": ["acc", "acc_mutual_info"], "acc_mutual_info": 1.0}
    found = read(line(0, {"q": "x"}, **scored, **more))
    assert (found.items[0].choice, found.chance) == (" b", 0.5)
    assert read(line(0, {"q": "x"}, **scored, **more), metric="acc_mutual_info").items[0].choice == " a"


def test_the_only_continuation_is_the_answer_and_nothing_was_chosen() -> None:
    """Its log-probability differs between two servers, which is no other answer."""
    row = line(0, {"q": "x"}, **options("-1.5"))
    item = read(row, config={"output_type": "loglikelihood"}).items[0]
    assert (item.answer, item.choice) == (" a", None)


def test_a_text_is_an_answer_and_what_was_read_out_of_it_the_choice() -> None:
    found = read(line(0, {"q": "x"}))
    assert (found.items[0].answer, found.items[0].choice, found.chance) == ("Yes!", "yes", None)


NUMBER = {"function": "regex", "regex_pattern": "([0-9]+)"}
FIRST = {"function": "take_first"}
OWN = {"function": "<class 'utils.OwnFilter'>", "fallback": "None"}


@pytest.mark.parametrize(
    ("steps", "answer", "filtered", "is_read"),
    [
        ([NUMBER, FIRST], "It is 5", "5", True),
        ([NUMBER, FIRST], "none", "[invalid]", False),
        ([{**NUMBER, "fallback": "no"}, FIRST], "no number", "no", False),
        ([NUMBER, {"function": "uppercase"}, FIRST], "none", "[INVALID]", False),
        ([{"function": "regex", "regex_pattern": "(a)?(b)?"}, FIRST], "c", "[invalid]", False),
        ([{"function": "map", "mapping_dict": {"y": "yes"}, "default_value": "no"}, FIRST], "n", "no", False),
        ([{"function": "map", "mapping_dict": {"n": "no"}, "default_value": "no"}, FIRST], "n", "no", True),
        ([FIRST], "[invalid]", "[invalid]", True),
        (None, "[invalid]", "[invalid]", True),  # the answer whole
        ([{"function": "regex", "regex_pattern": "(.*)"}, FIRST], "[invalid]", "[invalid]", True),
        ([OWN, FIRST], "It is 5", "5", True),
        ([OWN, FIRST], "five", "None", False),
        ([OWN, FIRST], "None", "None", True),
        ([NUMBER, {"function": "majority_vote"}, FIRST], "none", "[invalid]", False),
    ],
)
def test_answer_in_which_the_reported_filter_found_nothing_is_unread(
    steps: list[dict[str, Any]] | None, answer: str, filtered: str, is_read: bool
) -> None:
    filters = {} if steps is None else {"filter_list": [{"name": "f", "filter": steps}]}
    config: dict[str, Any] = {"task": "t", **filters}
    row = line(0, {"q": "x"}, 0.0, resps=[[answer]], filtered_resps=[filtered], filter="f")
    [item] = read(row, config=config).items
    assert (item.choice != "[invalid]", item.answer) == (is_read, answer)


def test_without_the_tasks_configuration_the_text_tells_what_is_unread() -> None:
    rows = [line(n, {"q": n}, 0.0, resps=[[text]], filtered_resps=["[invalid]"]) for n, text in enumerate("x[")]
    assert [item.choice for item in read(*rows).items] == ["[invalid]"] * 2


@pytest.mark.parametrize("score", [1.0, 0.25])
def test_unread_answer_that_has_credit_is_refused_in_its_line(score: float) -> None:
    config = {"filter_list": [{"name": "none", "filter": [{**NUMBER, "fallback": "yes"}]}]}
    rows = [
        line(0, {"q": 0}, resps=[["yes 5"]], filtered_resps=["5"]),
        line(1, {"q": 1}, score, filtered_resps=["yes"]),
    ]
    samples, _ = parse_samples("\n".join(map(json.dumps, rows)), "s.jsonl")
    found, [problem] = select_items(samples, SampleSelection("t", config=config), "s.jsonl")
    assert found is None
    assert str(problem).startswith(
        f"s.jsonl:2: the filter 'none' found nothing in the answer, and the item has acc {score:g}; "
    )


FUNCTION = "@utils.per_item\ndef acc(items):\n    def total(one):\n        return one\n\n    return total(items)\n"


@pytest.mark.parametrize(
    ("config", "judged"),
    [
        ({}, "f1"),
        ({"metric_list": [{"metric": "acc"}, {"metric": "f1"}]}, "acc"),  # first in the task, last in the samples
        ({"metric_list": [{"metric": "em"}]}, None),
        ({"metric_list": [{"metric": "em"}], "process_results": "def score(doc, results): …"}, None),
        ({"metric_list": [{"metric": FUNCTION}, {"metric": "f1"}]}, "acc"),
        ({"metric_list": [{"metric": FUNCTION}], "process_results": "def score(doc, results): …"}, "acc"),
        ({"metric_list": [{"metric": FUNCTION.replace("acc", "em")}, {"metric": "f1"}]}, None),
        ({"metric_list": [{"metric": "scores = {1: lambda items: 1}"}, {"metric": "f1"}]}, None),
    ],
)
def test_the_metric_that_comes_first_in_the_task_is_judged_or_none(config: dict[str, Any], judged: str | None) -> None:
    samples, _ = parse_samples(json.dumps(line(0, {"q": 0}, metrics=["f1", "acc"], f1=0.5)), "s.jsonl")
    found, problems = select_items(samples, SampleSelection("t", config=config), "s.jsonl")
    assert (None if found is None else found.metric) == judged
    assert judged is not None or [str(one).endswith("name a `metric` of 'f1', 'acc'") for one in problems] == [True]


def test_only_metric_is_judged_under_the_name_that_it_has_in_the_samples() -> None:
    for function in (FUNCTION.replace("acc", "pass_at_k"), "scores = {1: lambda items: 1}"):
        assert read(line(0, {"q": 0}), config={"metric_list": [{"metric": function}]}).metric == "acc"


def test_mean_of_a_metric_that_is_a_function_must_be_the_reported_one(tmp_path: Path) -> None:
    config = {"metric_list": [{"metric": FUNCTION, "aggregation": "mean"}]}
    told = {"configs": {"t": config}, "results": {"t": {"acc,none": 0.5}}}
    path = beside(written(tmp_path, "t", line(0, {"q": 1})), "t", **told)
    with pytest.raises(SuiteError, match=re.escape("the mean of acc over its items is 1.000000")):
        read_arm(Arm.BASELINE, path, asked())


def test_documents_without_an_id_of_their_own_go_by_their_place_and_hash() -> None:
    same = {"q": "twice"}
    found = read(line(3, same), line(1, same))
    assert [item.item_id for item in found.items] == [f"t-{n}-{found.items[0].doc_hash[:12]}" for n in (1, 3)]


def test_ids_of_their_own_are_kept_where_each_has_another() -> None:
    assert [item.item_id for item in read(line(1, {"id": "b"}), line(0, {"id": "a"})).items] == ["a", "b"]
    assert [item.item_id[:3] for item in read(line(1, {"id": "a"}), line(0, {"id": "a"})).items] == ["t-0", "t-1"]


def test_a_cluster_is_what_the_document_says() -> None:
    found = read(line(0, {"passage": 7}), line(1, {"passage": 8}), cluster="passage")
    assert [item.cluster for item in found.items] == ["7", "8"]


def test_a_cluster_that_a_document_lacks_is_told_at_its_line() -> None:
    samples, _ = parse_samples("\n".join(map(json.dumps, [line(0, {"passage": 7}), line(1, {"q": 1})])), "s.jsonl")
    found, [problem] = select_items(samples, SampleSelection("t", cluster="passage"), "s.jsonl")
    assert found is None and str(problem) == "s.jsonl:2: its document has no 'passage' to cluster by"


def test_a_filter_that_is_not_there_is_told_with_those_that_are() -> None:
    samples, _ = parse_samples(json.dumps(line(0, {"q": 1})), "s.jsonl")
    _, [problem] = select_items(samples, SampleSelection("t", filter="strict-match"), "s.jsonl")
    assert "no filter is called 'strict-match'; there are 'none'" in str(problem)


def written(folder: Path, task: str, *rows: dict[str, Any], date: str = DATE) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"samples_{task}_{date}.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def beside(path: Path, task: str, **more: Any) -> Path:
    """The results that lm-eval wrote with a file of one line; `more` is what they tell beside that."""
    told = {"results": {task: {}}, "n-samples": {task: {"original": 1, "effective": 1}}, "date": 1.5, **more}
    path.with_name(f"results_{DATE}.json").write_text(json.dumps(told))
    return path


def asked(task: str = "t", **more: Any) -> Quality:
    return Quality.model_validate({"tasks": [task], **more})


def test_a_group_is_its_tasks_each_by_itself(tmp_path: Path) -> None:
    inside = {"mmlu": ["mmlu_stem", "mmlu_law"], "mmlu_stem": ["mmlu_physics", "mmlu_biology"]}
    leaves = ("mmlu_physics", "mmlu_biology", "mmlu_law")
    for task in leaves:
        beside(
            written(tmp_path, task, line(0, {"q": task})),
            task,
            results={leaf: {} for leaf in leaves},
            group_subtasks=inside,
        )
    seen = read_arm(Arm.CANDIDATE, tmp_path, asked("mmlu")).observations
    assert [one.task for one in seen] == ["mmlu/mmlu_physics", "mmlu/mmlu_biology", "mmlu/mmlu_law"]
    assert {one.harness["leaves"] for one in seen} == {3}


def test_a_folder_with_the_folder_of_one_model_is_that_models(tmp_path: Path) -> None:
    path = written(tmp_path / "org__model", "gsm8k", line(0, {"q": 1}))
    assert find_files(tmp_path).samples == {"gsm8k": path}


def test_the_task_of_a_file_is_in_its_name_whatever_underscores_it_has(tmp_path: Path) -> None:
    path = written(tmp_path, "mmlu_pro_computer_science", line(0, {"q": 1}))
    assert find_files(path).samples == {"mmlu_pro_computer_science": path}


def test_metric_of_which_less_is_better_is_refused_for_that_and_not_for_its_unread_answers(tmp_path: Path) -> None:
    metrics = [{"metric": "errors", "higher_is_better": False}]
    config = {"filter_list": [{"name": "none", "filter": [NUMBER]}], "metric_list": metrics}
    row = line(0, {"q": 1}, filtered_resps=["[invalid]"], metrics=["errors"], errors=3)
    path = beside(written(tmp_path, "t", row), "t", configs={"t": config}, higher_is_better={"t": {"errors": False}})
    with pytest.raises(SuiteError) as caught:
        read_arm(Arm.BASELINE, path, asked())
    assert ["of errors less is better" in str(problem) for problem in caught.value.problems] == [True]


@pytest.mark.parametrize(
    ("metric", "told", "says"),
    [
        ("word_perplexity", None, "of word_perplexity less is better"),
        ("wer", True, "of wer less is better"),  # lm-eval's default, where a task file states no direction
        ("my_score", False, "less of my_score is better by its results"),
        ("my_score", None, "its results do not report whether more of my_score is better"),
    ],
)
def test_a_metric_that_could_be_read_the_wrong_way_round_is_refused(
    tmp_path: Path, metric: str, told: bool | None, says: str
) -> None:
    row = line(0, {"q": 1}, metrics=[metric], **{metric: 0.5})
    path = beside(written(tmp_path, "t", row), "t", higher_is_better={"t": {metric: told}})
    with pytest.raises(SuiteError, match=re.escape(says)):
        read_arm(Arm.BASELINE, path, asked())


def of_run(settings: dict[str, Any], **config: object) -> dict[str, Any]:
    """Results of a task with these settings of generation, and of a run with this configuration."""
    return {"configs": {"t": {"generation_kwargs": {"until": [], **settings}}}, "config": config}


@pytest.mark.parametrize(
    ("suite", "told", "says"),
    [
        ({}, {}, None),
        ({"limit": 500}, {}, None),  # of one item there are no more
        ({}, {"n-samples": {"t": ONE_OF_NINE}}, "has no `limit`, and its results are of 1 of 9 items"),
        ({"limit": 5}, {"n-samples": {"t": ONE_OF_NINE}}, "says `limit: 5`, and its results are of 1 of 9 items"),
        ({"limit": 1}, {"n-samples": {"t": ONE_OF_NINE}}, None),
        ({"limit": 1}, {"n-samples": {}}, "do not report how many were sent"),
        ({"few_shot": 5}, {"n-shot": {"t": 0}}, "says `few_shot: 5`, and its results say 0"),
        ({"few_shot": 5}, {}, "says `few_shot: 5`, and its results do not report it"),
        ({"few_shot": 5}, {"n-shot": {"t": 5}}, None),
        ({"system": "Be brief."}, {"system_instruction": None}, 'says `system: "Be brief."`, and its results say ""'),
        ({"system": "Be brief."}, {"system_instruction": "Be brief."}, None),
        ({}, {"system_instruction": "Be brief."}, 'has no `system`, and its results say "Be brief."'),
        ({"endpoint": "chat"}, {"config": {"model": "local-completions"}}, 'and its results say "completions"'),
        ({"endpoint": "chat"}, {"config": {"model": "local-chat-completions"}}, None),
        ({"endpoint": "completions"}, {"config": {"model": "hf"}}, "and its results do not report it"),
        ({"fewshot_as_turns": True}, {"fewshot_as_multiturn": False}, "as_turns: true`, and its results say false"),
        (
            {"tasks": [{"task": "t", "max_tokens": 9}]},
            {"configs": {"t": {"generation_kwargs": {"max_gen_toks": 48}}}},
            "says `max_tokens: 9`, and its results say 48",
        ),
        ({"max_tokens": 512}, of_run({}, model_args={"max_gen_toks": 256}), "tokens: 512`, and its results say 256"),
        ({"max_tokens": 512}, of_run({}, model_args="model=m,max_gen_toks=256"), "512`, and its results say 256"),
        ({"max_tokens": 512}, of_run({}, model_args={"max_gen_toks": 512}), None),
        ({"max_tokens": 512}, of_run({"max_gen_toks": 64}, gen_kwargs={"max_gen_toks": 64}), "its results say 64"),
        ({"max_tokens": 512}, of_run({"max_gen_toks": 64}, model_args={"max_gen_toks": 256}), None),  # the task's own
        ({"max_tokens": 512}, of_run({}), None),  # not reported
        ({}, of_run({}, model_args={"max_gen_toks": 512}), None),  # the suite states none
        (
            {"max_tokens": 512, "tasks": [{"task": "t", "max_tokens": 9}]},
            of_run({}, model_args={"max_gen_toks": 512}),
            "says `max_tokens: 9`, and its results say 512",
        ),
    ],
)  # fmt: skip
def test_what_was_asked_otherwise_than_the_suite_says_is_refused(
    tmp_path: Path, suite: dict[str, Any], told: dict[str, Any], says: str | None
) -> None:
    path = beside(written(tmp_path, "t", line(0, {"q": 1})), "t", **told)
    if says is None:
        assert len(read_arm(Arm.BASELINE, path, asked(**suite)).observations) == 1
        return
    with pytest.raises(SuiteError, match=re.escape(says)):
        read_arm(Arm.BASELINE, path, asked(**suite))


def harness(tmp_path: Path, config: dict[str, Any]) -> dict[str, Any]:
    path = beside(written(tmp_path, "t", line(0, {"q": 1})), "t", config=config)
    return dict(read_arm(Arm.BASELINE, path, asked()).observations[0].harness)


def test_the_backend_and_its_settings_are_part_of_how_an_arm_was_asked(tmp_path: Path) -> None:
    one = {"base_url": "http://a", "model": "f16", "num_concurrent": 8, "max_gen_toks": 256}
    plain = harness(tmp_path, {"model": "local-completions", "model_args": one})
    assert (plain["backend"], plain["model_args.max_gen_toks"]) == ("local-completions", "256")
    elsewhere = {**one, "base_url": "http://b", "model": "q8_0", "num_concurrent": 1}
    assert harness(tmp_path, {"model": "local-completions", "model_args": elsewhere}) == plain
    assert harness(tmp_path, {"model": "hf", "model_args": one}) != plain
    assert harness(tmp_path, {"model": "local-completions", "model_args": {**one, "max_gen_toks": 16}}) != plain
    assert harness(tmp_path, {"model": "local-completions", "model_args": {**one, "seed": 99}}) != plain


def test_settings_as_one_text_are_the_same_settings_and_no_secret_is_kept(tmp_path: Path) -> None:
    text = "base_url=http://a,model=f16,max_gen_toks=16,api_key=sk-1,header={'x-auth': 'sk-2', 'y': 'sk-3'}"
    kept = harness(tmp_path, {"model": "local-completions", "model_args": text})
    assert kept["model_args.max_gen_toks"] == "16"
    assert "sk-" not in json.dumps(kept)


def test_a_run_is_known_by_when_it_began_and_not_by_what_was_answered(tmp_path: Path) -> None:
    path = written(tmp_path, "t", line(0, {"q": 1}))
    first = read_arm(Arm.BASELINE, beside(path, "t"), asked()).runs
    assert read_arm(Arm.BASELINE, beside(path, "t", model_name="other"), asked()).runs == first
    assert not read_arm(Arm.BASELINE, beside(path, "t", date=2.5), asked()).runs & first


def test_a_samples_file_without_its_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match=r"there is no results_\*\.json of its date beside it"):
        read_arm(Arm.BASELINE, written(tmp_path, "t", line(0, {"q": 1})), asked())


def test_results_of_another_task_are_not_those_of_the_samples(tmp_path: Path) -> None:
    path = beside(written(tmp_path, "t", line(0, {"q": 1})), "t", results={"else": {}})
    with pytest.raises(SuiteError, match="have nothing of the task 't'"):
        read_arm(Arm.BASELINE, path, asked())


@pytest.mark.parametrize("places", [("a", "b"), ("", "")], ids=["two models", "twice"])
def test_two_runs_in_one_folder_are_not_guessed_between(tmp_path: Path, places: tuple[str, str]) -> None:
    for number, place in enumerate(places):
        written(tmp_path / place, "gsm8k", line(0, {"q": 1}), date=f"2026-01-0{number + 1}T00-00-00.0")
    with pytest.raises(SuiteError, match=r"several runs|of the same task"):
        find_files(tmp_path)
