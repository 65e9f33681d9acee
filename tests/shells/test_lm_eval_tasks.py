"""What is said of tasks that lm-eval must read and that no gate can vouch for, all of it in one reading."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchgate.errors import SuiteError
from benchgate.pipeline.suite_file import read_suite
from benchgate.quality.runner import evaluate
from benchgate.quality.tasks.loading import load_tasks
from benchgate.suite.loader import parse_suite
from benchgate.suite.quality import Quality
from tests.fakes.scripted_server import ScriptedServer, answering
from tests.shells.quality_helpers import only_baseline

pytest_plugins = ["tests.shells.quality_surroundings"]
pytestmark = pytest.mark.usefixtures("surroundings")

SUITE = """\
suite: named
deployments:
  a: {url: "http://one:8000", model: m}
  b: {url: "http://two:8000", model: m}
baseline: a
candidate: b
quality:
  include: [mine]
  tasks:
    - exact_match
    - humaneval
    - {task: mmlu_pro, metric: f1}
    - coded
    - wikitext
    - gsm8k
    - empty_targets
    - {task: foreign_metric, scale: continuous}
    - longbench_2wikimqa
    - reaching
    - ignored_targets
    - harmless
    - renamed
gate: {checks: [{metric: accuracy, margin: 5 points}]}
"""
TASK = """\
task: %s
dataset_path: json
dataset_kwargs: {data_files: {test: rows.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "%s"
"""
METRIC = "metric_list: [{metric: %s, aggregation: mean, higher_is_better: true}]\n"


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Everything wrong with a suite, as a run would say it where the hub cannot be reached."""
    folder = tmp_path_factory.mktemp("named")
    mine = folder / "mine"
    mine.mkdir()
    (mine / "coded.yaml").write_text((TASK % ("coded", "{{answer}}")) + "process_docs: !function other.pick\n")
    (mine / "other.py").write_text("def pick(docs):\n    raise SystemExit('this must not run')\n")
    (mine / "harmless.yaml").write_text(
        "group: harmless\ntask: [{task: gsm8k, process_results: !function other.pick}]\n"
    )
    (mine / "renamed.yaml").write_text("group: renamed\ntask: [{task: gsm8k, metric_list: [{metric: points}]}]\n")
    (mine / "empty.yaml").write_text((TASK % ("empty_targets", "{{answer}}")) + METRIC % "exact_match")
    (mine / "foreign.yaml").write_text((TASK % ("foreign_metric", "{{question}}")) + METRIC % "points")
    (mine / "reaching.yaml").write_text((TASK % ("reaching", "{{question.__class__}}")) + METRIC % "exact_match")
    without = "{metric: exact_match, aggregation: mean, higher_is_better: true, regexes_to_ignore: [uno]}"
    (mine / "ignored.yaml").write_text((TASK % ("ignored_targets", "uno")) + f"metric_list: [{without}]\n")
    (mine / "rows.jsonl").write_text('{"question": "one", "answer": "uno"}\n{"question": "two", "answer": ""}\n')
    (folder / "suite.yaml").write_text(SUITE)
    suite = parse_suite(SUITE, str(folder / "suite.yaml"))
    assert suite.quality is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("HF_HOME", str(folder / "hub"))
        patch.delenv("HF_DATASETS_CACHE", raising=False)
        with pytest.raises(SuiteError) as caught, read_suite(folder / "suite.yaml").located_errors():
            load_tasks(folder, suite.quality)
    return str(caught.value).replace(f"{folder}/", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    "expected",
    [
        "suite.yaml:10:7: quality.tasks[0]: exact_match: lm-eval has no task or group 'exact_match'; ",
        "suite.yaml:11:7: quality.tasks[1]: humaneval: it runs the code that a model writes, on this machine; set "
        "`quality.allow_unsafe_code: true`",
        "suite.yaml:13:7: quality.tasks[3]: coded: it runs code (other.pick, in mine); read that, and set",
        "suite.yaml:14:7: quality.tasks[4]: wikitext: its output_type loglikelihood_rolling has no score of an item",
        "suite.yaml:15:7: quality.tasks[5]: gsm8k: its data (openai/gsm8k main) could not be loaded: ",
        "; unset HF_HUB_OFFLINE to fetch it once; it is kept in hub/datasets",
        "quality.tasks[6]: empty_targets: row 1 has an empty target, for which an empty answer would be right",
        "quality.tasks[7]: foreign_metric: it runs code (the metric 'points', from the hub); read that, and set",
        "quality.tasks[8]: longbench_2wikimqa: benchgate does not know whether score is right or wrong or a score in",
        "quality.tasks[9]: reaching: a template of it cannot be rendered: access to attribute '__class__'",
        "quality.tasks[11]: harmless: it runs code (other.pick, in mine); read that, and set",
        "quality.tasks[12]: renamed: it runs code (the metric 'points', from the hub); read that, and set",
        "quality.tasks[10]: ignored_targets: row 0: nothing is left of the target 'uno' once what the metric ignores",
    ],
)
def test_every_task_that_cannot_be_judged_is_named_at_its_line_with_the_reason(told: str, expected: str) -> None:
    assert expected in told


def test_a_misspelt_task_is_refused_without_lm_eval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To import lm-eval takes half a minute; its files are searched instead."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "greetings.yaml").write_text(TASK % ("greetings", "{{answer}}"))
    text = re.sub(r"tasks:\n(    - .*\n)+", "tasks: [gsm9k, mmlu_pro, greatings]\n", SUITE)
    (tmp_path / "suite.yaml").write_text(text)
    quality = parse_suite(text, str(tmp_path / "suite.yaml")).quality
    assert quality is not None
    monkeypatch.setattr(sys, "executable", "/nowhere/python")  # lm-eval is imported in a process of its own
    with pytest.raises(SuiteError) as caught, read_suite(tmp_path / "suite.yaml").located_errors():
        load_tasks(tmp_path, quality)
    gsm9k, greeting = str(caught.value).replace(f"{tmp_path}/", "").splitlines()
    assert gsm9k.startswith("suite.yaml:9:11: quality.tasks[0]: gsm9k: lm-eval has no task or group 'gsm9k'; did you")
    assert "gsm8k" in gsm9k
    assert "lm-eval has no task or group 'greatings'; did you mean greetings" in greeting


def test_a_group_is_found_wrong_by_the_task_that_is(told: str) -> None:
    assert "quality.tasks[2]: mmlu_pro: mmlu_pro_biology: " in told


SHUFFLING = """\
import random

import numpy as np

def shuffle(docs):
    def row(doc):
        options = list("ABCDEFGH")
        random.shuffle(options)
        return {"question": doc["question"] + " " + "".join(options), "number": int(np.random.randint(10**6))}
    return docs.map(row)
"""
LOAD_WITHOUT_SEED = """
import random, sys
from lm_eval.tasks import TaskManager
random.seed(7)
TaskManager(include_path=sys.argv[1], include_defaults=False).load(["first", "second"])
"""


@pytest.mark.slow
def test_tasks_that_draw_their_rows_draw_the_same_whatever_their_order_and_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "own.py").write_text(SHUFFLING)
    (mine / "rows.jsonl").write_text("".join(f'{{"question": "q{n}", "answer": "a"}}\n' for n in range(3)))
    for name in ("first", "second"):
        task = (TASK % (name, "{{answer}}")).replace("rows.jsonl", str(mine / "rows.jsonl"))
        task = f"{task}process_docs: !function own.shuffle\nfewshot_split: test\nnum_fewshot: 1\n"
        (mine / f"{name}.yaml").write_text(task + METRIC % "exact_match")

    def drawn(cache: str, *names: str) -> dict[str, tuple[dict[str, object], ...]]:
        monkeypatch.setenv("HF_HOME", str(tmp_path / cache))
        quality = Quality.model_validate({"tasks": list(names), "include": ["mine"], "allow_unsafe_code": True})
        return {task.name: task.rows for task in load_tasks(tmp_path, quality, allow_code=True)}

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("HF_DATASETS_CACHE", raising=False)
    expected = drawn("one", "first", "second")
    assert len({row["question"] for row in expected["first"]}) == 3
    assert drawn("one", "second", "first") == expected  # from the cache
    assert drawn("two", "second") == {"second": expected["second"]}
    monkeypatch.setenv("HF_HOME", str(tmp_path / "three"))
    subprocess.run([sys.executable, "-c", LOAD_WITHOUT_SEED, str(mine)], check=True, capture_output=True)
    assert drawn("three", "first", "second") == expected  # not what lm-eval itself left in the cache


POINTS = """\
import datasets
import evaluate


class Points(evaluate.Metric):
    def _info(self):
        text = datasets.Value("string")
        features = datasets.Features({"predictions": text, "references": text})
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=features)

    def _compute(self, predictions, references):
        return {"points": float(predictions == references)}
"""


@pytest.fixture
def hub_metric_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Quality:
    """A task without functions, whose metric is on the hub, where the hub cannot be reached."""
    (tmp_path / "mine").mkdir()
    rows = tmp_path / "mine" / "rows.jsonl"
    rows.write_text('{"question": "one", "answer": "uno"}\n{"question": "two", "answer": "due"}\n')
    task = (TASK % ("by_points", "{{answer}}")).replace("rows.jsonl", str(rows)) + METRIC % "points"
    (tmp_path / "mine" / "by_points.yaml").write_text(task)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    for name in ("HF_DATASETS_CACHE", "HF_EVALUATE_CACHE", "HF_MODULES_CACHE"):
        monkeypatch.delenv(name, raising=False)
    entry = {"task": "by_points", "scale": "binary"}
    return Quality.model_validate({"tasks": [entry], "include": ["mine"], "allow_unsafe_code": True, "concurrency": 2})


@pytest.mark.slow
def test_a_metric_that_was_fetched_from_the_hub_scores_the_answers(tmp_path: Path, hub_metric_task: Quality) -> None:
    cached = tmp_path / "hub" / "modules" / "evaluate_modules" / "metrics" / "evaluate-metric--points" / ("0" * 64)
    cached.mkdir(parents=True)
    (cached / "points.py").write_text(POINTS)
    tasks = load_tasks(tmp_path, hub_metric_task, allow_code=True)
    with ScriptedServer(answering(lambda received: "uno")) as server:
        [observed] = evaluate(only_baseline(server.url), tasks, hub_metric_task, tmp_path / "work")
    assert (observed.fault, [item.score for item in observed.items]) == (None, [1.0, 0.0])


@pytest.mark.slow
def test_a_metric_that_cannot_be_fetched_from_the_hub_is_refused_before_the_run(
    tmp_path: Path, hub_metric_task: Quality
) -> None:
    with pytest.raises(SuiteError, match=r"its scorer, which comes from the hub, could not be loaded: .*'points'"):
        load_tasks(tmp_path, hub_metric_task, allow_code=True)
    [task] = load_tasks(tmp_path, hub_metric_task, allow_code=True, fetch=False)
    assert task.needs == "the scorer of by_points"
