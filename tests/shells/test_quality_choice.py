"""Multiple choice through real lm-eval processes: what becomes of our log-probabilities, and what ends as a fault."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchgate.embedded.server import serve
from benchgate.model.deployment import Arm
from benchgate.plan.items import PlannedTask
from benchgate.quality.runner import evaluate
from benchgate.quality.tasks.loading import load_tasks
from benchgate.suite.deployment import Embedded
from benchgate.suite.quality import Quality
from benchgate.targets.dialect import DIALECTS, Target
from tests.fakes.echoing import Echoing, told
from tests.fakes.scripted_server import Received, ScriptedServer, Step
from tests.shells.quality_helpers import API_KEY, Observed, collect, items

pytest_plugins = ["tests.shells.quality_surroundings"]
pytestmark = pytest.mark.usefixtures("surroundings")

SUITES = Path(__file__).parents[2] / "suites"

CONFIG: dict[str, object] = {
    "test_split": "test",
    "output_type": "multiple_choice",
    "doc_to_text": "{{question}}",
    "doc_to_choice": "options",
    "doc_to_target": "right",
    "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
}


def task(name: str, *rows: dict[str, object]) -> PlannedTask:
    return PlannedTask(name, CONFIG, rows, metric="acc", guesses=(0.5,) * len(rows), output_type="multiple_choice")


def row(name: str, question: str, options: list[str], right: int) -> dict[str, object]:
    return {"id": name, "question": question, "options": options, "right": right}


ANIMALS = task(
    "animals",
    row("cat", "It says miaow:", ["cat", "dog"], 0),
    row("dog", "It barks:", ["cat", "dog"], 1),
    row("cow", "It gives milk:", ["cow", "mouse"], 0),
)
SPOILED = task("spoiled", row("fine", "It says miaow:", ["cat", "dog"], 0), row("bad", "Null:", ["cat", "dog"], 0))
SUMS = 24  # items of the shipped task
VALUES = {" cat": -0.5, " dog": -0.75, " cow": -3.0, " mouse": -1.0}


def without_a_value(document: dict[str, Any]) -> None:
    told(document)["token_logprobs"][-2] = None  # of the option; the last one is what was generated


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Observed:
    """Three tasks on both arms.

    The baseline has a value for every animal, but none for a dog after `Null`, and gives all numbers the same. The
    candidate is the embedded model at two bits.
    """
    quality = Quality.model_validate({"tasks": ["tasks/add_choice.yaml"], "endpoint": "completions", "concurrency": 4})
    [sums] = load_tasks(SUITES, quality)

    def baseline(received: Received) -> Iterator[Step]:
        spoiled = received.prompt == "Null: dog"
        yield from Echoing(VALUES, spoil=without_a_value if spoiled else lambda document: None)(received)

    folder = tmp_path_factory.mktemp("choice")
    with (
        ScriptedServer(baseline) as ours,
        serve(Embedded(weights="q2_k"), name="coarse", cache_dir=folder) as theirs,
    ):
        targets = {
            Arm.BASELINE: Target(Arm.BASELINE, ours.url, "m", DIALECTS["vllm"], API_KEY),
            Arm.CANDIDATE: Target(Arm.CANDIDATE, theirs.url, theirs.model, DIALECTS["llamacpp"]),
        }
        seen = collect(evaluate(targets, [ANIMALS, SPOILED, sums.cut(SUMS)], quality, folder / "work"))
        assert {received.headers.get("authorization") for received in ours.requests} == {f"Bearer {API_KEY}"}
    return seen


def test_the_likeliest_option_is_chosen_and_scored_by_lm_eval(observed: Observed) -> None:
    told = observed[Arm.BASELINE, "animals"]
    assert told.fault is None
    assert [item.score for item in told.items] == [1.0, 0.0, 0.0]
    assert [item.answer for item in told.items] == ["cat", "cat", "mouse"]
    assert [item.choice for item in told.items] == ["cat", "cat", "mouse"]
    assert all(item.latency_ns and len(item.prompt_hash) == 64 for item in told.items)


def test_options_that_all_get_one_value_end_as_a_fault_and_never_as_exact_chance(observed: Observed) -> None:
    fault = observed[Arm.BASELINE, "add_choice"].fault
    assert fault is not None
    assert fault.startswith(f"{SUMS} of {SUMS} items got the same log-probability for all their options")


def test_an_option_without_a_value_fails_its_item_and_the_task(observed: Observed) -> None:
    told = observed[Arm.BASELINE, "spoiled"]
    assert told.fault is not None
    assert told.fault.startswith("1 of 2 items failed, the first with: the log-probability of token 2 (' dog')")
    assert items(told)["fine"].score == 1.0
    assert items(told)["bad"].score is None


def test_the_embedded_model_loses_right_options_at_two_bits(observed: Observed) -> None:
    told = observed[Arm.CANDIDATE, "add_choice"]
    assert told.fault is None
    assert len(told.items) == SUMS
    assert SUMS / 2 < sum(item.score == 1.0 for item in told.items) < SUMS
