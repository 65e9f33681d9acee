"""The width of the task language, in one run: tasks of lm-eval's kind by name, groups, examples, prompts, scores.

The baseline is asked twice at once, by real lm-eval processes; the server is scripted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchgate.model.deployment import Arm
from benchgate.model.run import QualityObservation
from benchgate.plan.items import task_to_json
from benchgate.quality.protocol import Job
from benchgate.quality.runner import evaluate
from benchgate.quality.tasks.loading import load_tasks
from benchgate.suite.quality import Quality
from tests.fakes.scripted_server import Received, ScriptedServer, Step, answering
from tests.shells.quality_helpers import items, target

pytest_plugins = ["tests.shells.quality_surroundings"]
pytestmark = pytest.mark.usefixtures("surroundings")

SUMS = """\
task: sums
dataset_path: json
dataset_kwargs: {data_files: {test: sums.jsonl, shots: shots.jsonl}}
test_split: test
fewshot_split: shots
num_fewshot: 1
output_type: generate_until
description: "Add up.\\n"
doc_to_text: "{{a}}+{{b}}"
doc_to_target: sum
generation_kwargs: {temperature: 0, until: [A, B, C, D, "#"]}
filter_list:
  - {name: strict, filter: [{function: regex, regex_pattern: "^(\\\\d+)$"}, {function: take_first}]}
  - {name: loose, filter: [{function: regex, regex_pattern: "(\\\\d+)"}, {function: take_first}]}
metric_list: [{metric: exact_match}]
"""
ROWS = [{"id": f"s{n}", "a": n, "b": 1, "sum": str(n + 1), "kind": "odd" if n % 2 else "even"} for n in range(4)]
SHOTS = [{"id": f"x{n}", "a": n, "b": n, "sum": str(2 * n), "kind": "any"} for n in range(10, 13)]

DRAWN = """\
task: drawn
dataset_path: json
dataset_kwargs: {data_files: {test: sums.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "Draw {{a}}"
doc_to_target: sum
repeats: 4
generation_kwargs: {temperature: 0.7, until: []}
metric_list: [{metric: exact_match}]
"""

WORDS = """\
task: words
dataset_path: json
dataset_kwargs: {data_files: {test: words.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "Say {{text}}"
doc_to_target: text
generation_kwargs: {temperature: 0, until: []}
metric_list: [{metric: chrf}]
"""
TEXTS = [{"id": "w0", "text": "the quick brown fox"}, {"id": "w1", "text": "jumps over the dog"}]

LEAF = """\
task: %s
dataset_path: json
dataset_kwargs: {data_files: {validation: pool.jsonl}}
validation_split: validation
unsafe_code: true
output_type: generate_until
process_docs: !function helpers.%s
doc_to_text: "{{word}}?"
doc_to_target: answer
num_fewshot: 0
generation_kwargs: {do_sample: false, temperature: 1, until: []}
metric_list: [{metric: !function helpers.right, aggregation: mean, higher_is_better: true}]
metadata: {version: 2.0}
"""
CODED = """\
task: coded
dataset_path: json
dataset_kwargs: {data_files: {test: words.jsonl}}
test_split: test
output_type: generate_until
process_docs: !function helpers.last
doc_to_text: "Say {{text}}"
doc_to_target: text
metric_list: [{metric: exact_match}]
"""
OWN = """\
task: own
dataset_path: json
dataset_kwargs: {data_files: {test: words.jsonl}}
test_split: test
fewshot_split: test
num_fewshot: 1
output_type: generate_until
doc_to_text: "Say {{text}}"
doc_to_target: text
generation_kwargs: {temperature: 0, until: []}
metric_list: [{metric: exact_match}]
"""
HELPERS = """\
import os


def short(docs):
    return docs.filter(lambda doc: len(doc["word"]) == 3)


def long(docs):
    return docs.filter(lambda doc: len(doc["word"]) > 3)


def last(docs):
    return docs.select([1])


def right(references, predictions):
    return {"found": float(references[0] == predictions[0] and os.environ["HF_ALLOW_CODE_EVAL"] == "1")}
"""
POOL = [{"word": word, "answer": word.upper()} for word in ("one", "two", "three", "four", "six")]


def write_rows(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def written(folder: Path) -> Quality:
    """A suite's quality section and every file that it names."""
    (folder / "sums.yaml").write_text(SUMS)
    (folder / "drawn.yaml").write_text(DRAWN)
    (folder / "words.yaml").write_text(WORDS)
    write_rows(folder / "sums.jsonl", ROWS)
    write_rows(folder / "shots.jsonl", SHOTS)
    write_rows(folder / "words.jsonl", TEXTS)
    (folder / "coded.yaml").write_text(CODED)
    (folder / "own.yaml").write_text(OWN)
    (folder / "helpers.py").write_text(HELPERS)
    mine = folder / "mine"
    mine.mkdir()
    for name in ("short", "long"):
        (mine / f"{name}.yaml").write_text(LEAF % (f"{name}_words", name))
    (mine / "all.yaml").write_text("group: all_words\ntask: [short_words, long_words]\n")
    (mine / "helpers.py").write_text(HELPERS)
    write_rows(mine / "pool.jsonl", POOL)
    return Quality.model_validate(
        {
            "tasks": [
                {"task": "sums.yaml", "few_shot": 2, "filter": "loose", "cluster": "kind", "max_tokens": 9},
                "drawn.yaml",
                "words.yaml",
                {"task": "all_words", "limit": 2, "scale": "binary"},
                "coded.yaml",
                {"task": "own.yaml", "limit": 1},
                "gsm8k",
                {"task": "mmlu_pro", "few_shot": 2},
            ],
            "include": ["mine"],
            "system": "Be brief.",
            "allow_unsafe_code": True,
            "repeat_baseline": True,
            "stop_early": True,  # so all is asked in rounds of two rows of each task
            "concurrency": 2,
        }
    )


def answer(received: Received) -> str:
    """Right, but for a 3+1 that is cut off by the fifth stop text, words in capitals and a dice."""
    asked = received.prompt
    if asked.startswith("Draw"):
        return "1" if received.body is not None and received.body["seed"] % 2 == 0 else "other"
    if asked.startswith("Say"):
        return asked.removeprefix("Say ").replace("fox", "cat")
    if "+" in asked:
        a, b = asked.split("+")
        return "three # 4" + " and so on" * 9 if a == "3" else f"It is {int(a) + int(b)}"
    return asked.rstrip("?").upper()


Seen = Mapping[tuple[str, int], QualityObservation]


class Run:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        quality = written(folder)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HF_HOME", str(folder / "hub"))
            patch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody is there, and nobody is asked
            patch.delenv("HF_DATASETS_CACHE", raising=False)
            self.tasks = {task.name: task for task in load_tasks(folder, quality, fetch=False, allow_code=True)}
        there = [task for task in self.tasks.values() if task.needs is None]
        self.planned = [task.cut(entry.limit if (entry := quality.entry(task.name)) else None) for task in there]
        self.in_flight = self.most_in_flight = 0
        with ScriptedServer(self.counted) as self.baseline:
            targets = {Arm.BASELINE: target(Arm.BASELINE, self.baseline.url)}
            observed = list(evaluate(targets, self.planned, quality, folder / "work"))
        self.seen: Seen = {(o.task, o.repeat): o for o in observed}
        assert len(self.seen) == len(observed)

    def counted(self, received: Received) -> Iterator[Step]:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        yield 0.01
        self.in_flight -= 1
        yield from answering(answer)(received)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(tmp_path_factory.mktemp("language"))


@pytest.mark.slow
def test_a_group_is_its_tasks_each_with_the_groups_name_before_its_own(run: Run) -> None:
    named = ["sums", "drawn", "words", "all_words/short_words", "all_words/long_words", "coded", "own"]
    assert list(run.tasks)[:7] == named
    short = run.tasks["all_words/short_words"]
    assert [row["word"] for row in short.rows] == ["one", "two", "six"]  # as the task's own code picks them
    assert short.leaves == 2
    assert len(set(short.item_ids)) == 3
    assert all(item.startswith("short_words-") for item in short.item_ids)


@pytest.mark.slow
def test_the_baseline_is_asked_every_task_once_more_at_the_same_time(run: Run) -> None:
    assert set(run.seen) == {(task.name, repeat) for task in run.planned for repeat in (0, 1)}
    assert {(o.arm, o.fault) for o in run.seen.values()} == {(Arm.BASELINE, None)}


def test_examples_are_turns_of_the_chat_after_the_system_prompt_and_never_the_question_itself(run: Run) -> None:
    bodies = [received.body or {} for received in run.baseline.requests if "+" in received.prompt]
    for body in bodies:
        messages = body["messages"]
        assert [message["role"] for message in messages] == ["system", "user", "assistant", "user", "assistant", "user"]
        assert messages[0]["content"] == "Be brief.\n\nAdd up.\n"
        assert {messages[1]["content"], messages[3]["content"]} <= {"10+10", "11+11", "12+12"}
        assert body["max_tokens"] == 9
    assert len(bodies) == 8  # four items, twice


def test_both_askings_get_the_same_prompts(run: Run) -> None:
    for task in run.planned:
        hashes = {tuple(item.prompt_hash for item in o.items) for (name, _), o in run.seen.items() if name == task.name}
        assert len(hashes) == 1


def test_an_example_drawn_from_the_judged_rows_is_never_the_row_that_is_asked(run: Run) -> None:
    [item] = run.seen["own", 0].items
    asked = [(r.body or {})["messages"] for r in run.baseline.requests if r.prompt == "Say the quick brown fox"]
    shown = {message["content"] for messages in asked for message in messages[:-1]}
    assert item.item_id == "w0"
    assert {"Say jumps over the dog", "jumps over the dog"} <= shown  # a row that is not asked itself
    assert "the quick brown fox" not in shown


def test_both_askings_together_have_no_more_requests_in_flight_than_the_suite_says(run: Run) -> None:
    assert run.most_in_flight <= 2


def test_the_named_filter_is_judged_and_what_it_reads_is_the_choice(run: Run) -> None:
    observed = items(run.seen["sums", 0])
    assert [(item.score, item.choice) for item in observed.values()] == [
        (1.0, "1"),
        (1.0, "2"),
        (1.0, "3"),
        (0.0, "[invalid]"),
    ]
    assert [item.cluster for item in observed.values()] == ["even", "odd", "even", "odd"]
    assert observed["s0"].input_tokens is not None


def test_stop_texts_beyond_the_four_of_a_chat_endpoint_cut_the_answer_when_it_came(run: Run) -> None:
    sent = next(received.body for received in run.baseline.requests if received.prompt == "3+1")
    assert sent is not None
    assert sent["stop"] == ["A", "B", "C", "D"]
    cut = items(run.seen["sums", 0])["s3"]
    assert (cut.answer, cut.finish_reason) == ("three ", "stop")  # the server wrote on, to the token limit


def test_an_item_asked_several_times_scores_the_mean_and_counts_once(run: Run) -> None:
    observed = run.seen["drawn", 0]
    assert [item.score for item in observed.items] == [0.5, 0.0, 0.0, 0.0]  # two of four seeds answer 1
    assert (observed.expected_n, observed.harness["repeats"], observed.harness["scale"]) == (4, 4, "continuous")
    seeds = [(r.body or {})["seed"] for r in run.baseline.requests if r.prompt == "Draw 0"]
    assert sorted(seeds) == sorted([1234, 1235, 1236, 1237] * 2)


def test_a_score_in_between_is_a_share_of_one(run: Run) -> None:
    first, second = run.seen["words", 0].items
    assert first.score is not None
    assert 0.3 < first.score < 0.99  # a word of four is another
    assert second.score == 1.0


def test_code_that_a_suite_lets_runs_in_the_eval_process_and_has_its_variable_there_alone(run: Run) -> None:
    observed = run.seen["all_words/short_words", 0]
    assert [item.score for item in observed.items] == [1.0, 1.0]
    assert "HF_ALLOW_CODE_EVAL" not in os.environ


def test_a_task_file_with_code_keeps_the_ids_of_its_rows(run: Run) -> None:
    coded = run.tasks["coded"]
    assert (coded.ids, coded.item_ids, coded.rows) == (None, ("w1",), (TEXTS[1],))
    assert [item.score for item in run.seen["coded", 0].items] == [1.0]


def test_looking_at_a_suite_fetches_nothing_and_says_what_a_run_would(run: Run) -> None:
    gsm8k, biology = run.tasks["gsm8k"], run.tasks["mmlu_pro/mmlu_pro_biology"]
    assert len(run.tasks) == 7 + 1 + 14
    assert (gsm8k.needs, gsm8k.rows, gsm8k.filter) == ("openai/gsm8k main", (), "strict-match")
    assert (biology.needs, biology.leaves, biology.filter) == ("TIGER-Lab/MMLU-Pro", 14, "custom-extract")
    assert (gsm8k.config["num_fewshot"], biology.config["num_fewshot"]) == (5, 2)


def test_a_task_that_means_to_be_greedy_is_asked_at_temperature_0(run: Run) -> None:
    sent = next(received.body for received in run.baseline.requests if received.prompt == "one?")
    assert sent is not None
    assert sent["temperature"] == 0.0


def test_how_a_task_is_asked_and_judged_is_told_with_every_observation(run: Run) -> None:
    told = run.seen["sums", 1].harness
    assert {
        "metric": "exact_match",
        "filter": "loose",
        "num_fewshot": 2,
        "fewshot_as_multiturn": True,
    }.items() <= told.items()
    assert told["num_concurrent"] == 2  # at the server, from both askings together
    assert len(str(told["system_sha256"])) == 64
    leaf = run.seen["all_words/long_words", 0].harness
    assert (leaf["leaves"], leaf["task_version"], leaf["metric"]) == (2, 2.0, "right")
    settings = [
        {k: v for k, v in o.harness.items() if k not in ("null_answers", "retries")}
        for o in run.seen.values()
        if o.task == "sums"
    ]
    assert settings[0] == settings[1]


def test_the_plan_of_a_data_set_that_is_not_the_suites_holds_digests_and_no_path(run: Run) -> None:
    spelled = json.dumps(task_to_json(run.tasks["all_words/long_words"]))
    assert "three" not in spelled
    assert "/mine" not in spelled
    assert '"function": "helpers.right"' in spelled


def test_what_a_task_was_planned_with_survives_the_way_to_its_process(run: Run) -> None:
    job = Job.read(next(run.folder.glob("work/*/job.json")), {})
    assert job.tasks[0] == run.tasks["sums"]
    places = [[(task.name, list(rows)) for task, rows in parts] for parts in replace(job, round_rows=3).rounds()]
    assert places[0][:3] == [("sums", [0, 1, 2]), ("drawn", [0, 1, 2]), ("words", [0, 1])]
    assert places[1:] == [[("sums", [3]), ("drawn", [3])]]
