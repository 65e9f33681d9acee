"""No damage to the evidence of a run that must not pass makes it promotable.

The claim: take any case of `cases/` whose verdict is BLOCK, INVALID or INCONCLUSIVE, damage its evidence once, and the
verdict is neither PASS nor WARN. A refusal (`BenchgateError`) is as good; any other exception is a defect. The kinds of
damage for which it holds are those of `mutations.py`:

- loss of rows, blocks, stages, arms, tasks, items, prompts, positions, starts, and of columns that every success has;
- values that cannot be (NaN, infinity, negative, absent, huge) or that contradict others;
- another order of whole records, and of one column among the rows of an execution;
- rows, executions, blocks, tasks, items, prompts, positions, windows and starts that are there twice, also in place of
  others;
- one request or one score that is better than it was, and scores that are each of another item: this is held only
  against a regression that was shown (BLOCK), for a run just beyond a limit is honestly within it with one failure
  less, and items may honestly fail in another order.

It cannot hold for a damage that leaves the evidence of a good candidate. Nobody can tell latencies that were all
divided by ten from fast ones, and `test_a_whole_forgery_is_beyond_the_claim` shows that the claim is not empty. Nor can
it for facts whose absence is usual: faults, interruptions, telemetry, optional columns, earlier runs, the parts of a
group of tasks, which the suite does not name, and the requests of a ramp, whose number is not planned and whose
failures count. Those are held by the hash of the stored run
(tests/shells/test_store_never_pass.py).
"""

from __future__ import annotations

import functools
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchgate.errors import BenchgateError
from benchgate.model.deployment import Arm
from benchgate.model.records import ABSENT, RequestColumns
from benchgate.model.run import Evidence
from benchgate.model.verdict import Outcome
from tests.verdicts.cases import FILES, Case, read_cases
from tests.verdicts.evidence import Judged, read_case
from tests.verdicts.mutations import CONTRADICTIONS, DUPLICATES, LOSSES, ORDERS, SINGLE_VALUES, Damage

DAMAGES = (*LOSSES, *CONTRADICTIONS, *ORDERS, *DUPLICATES, *SINGLE_VALUES)
SAMPLE = 2  # cases of each damage in the quick tier
OF_RECIPES = {
    "starts": "starts", "telemetry": "telemetry", "positions": "texts", "divergence": "texts",
    "prompts": "shadow", "shadow": "shadow", "tasks": "evals", "task": "evals", "items": "evals", "item": "evals",
    "scores": "evals", "questions": "evals",
}  # fmt: skip
"""The word of a recipe without which a damage with such a word in its name finds nothing."""


@functools.cache
def refused_cases() -> tuple[Case, ...]:
    """All cases whose verdict does not promote."""
    cases = (case for path in FILES for case in read_cases(path))
    return tuple(case for case in cases if case.expected and not Outcome(case.expected["outcome"]).promotes)


@functools.lru_cache(maxsize=32)
def judged(case_at: int) -> Judged:
    case = refused_cases()[case_at]
    return read_case(case.suite, case.recipe, case.suites)


def draw_for(*words: object) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(" ".join(map(str, words)).encode()))


def promoted(found: Judged, damage: Damage, draw: np.random.Generator) -> Outcome | bool | None:
    """Return the outcome if it promotes, False if not, and None where there is nothing to damage."""
    evidence = damage(found.evidence, draw)
    if evidence is None:
        return None
    try:
        outcome = replace(found, evidence=evidence).verdict().outcome
    except BenchgateError:
        return False
    return outcome if outcome.promotes else False


def has(case: Case, damage: Damage) -> bool:
    """Return False where the recipe shows that there is nothing to damage."""
    words = [word for name, word in OF_RECIPES.items() if name in damage.__name__.split("_")]
    return all(f"'{word}'" in str(case.recipe) for word in words)


def of_the_claim(case: Case, damage: Damage) -> bool:
    return damage not in SINGLE_VALUES or (case.expected is not None and case.expected["outcome"] == "BLOCK")


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_no_damage_makes_a_refused_run_promotable(damage: Damage) -> None:
    """A sample, drawn anew by the name of each damage."""
    cases, done = refused_cases(), 0
    for at in draw_for(damage.__name__).permutation(len(cases)).tolist():
        if not of_the_claim(cases[at], damage) or not has(cases[at], damage):
            continue
        outcome = promoted(judged(at), damage, draw_for(damage.__name__, cases[at].name))
        assert not outcome, f"{cases[at].name}: {damage.__name__} makes it {outcome}"
        done += outcome is False
        if done == SAMPLE:
            break
    assert done, "no case has anything that this damages"


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_damage_makes_any_refused_run_promotable(path: Path) -> None:
    """All cases of a file with all damages."""
    wrong = []
    names = {case.name for case in read_cases(path)}
    for at, case in enumerate(refused_cases()):
        for damage in DAMAGES if case.name in names else ():
            outcome = of_the_claim(case, damage) and promoted(judged(at), damage, draw_for(damage.__name__, case.name))
            wrong += [f"{case.name}: {damage.__name__} makes it {outcome}"] if outcome else []
    assert not wrong, "\n".join(["", *wrong])


def divided(run: Evidence, draw: np.random.Generator) -> Evidence:
    """Every time of the candidate a tenth of what it was, consistently."""

    def change(columns: RequestColumns) -> RequestColumns:
        begun = columns.intended_ns
        rows = np.repeat(np.arange(len(columns)), np.diff(columns.chunk_start))
        moved = {
            name: np.where(values == ABSENT, ABSENT, begun + (values - begun) // 10)
            for name in ("sent_ns", "end_ns", "first_answer_ns")
            for values in [getattr(columns, name)]
        }
        moved["chunk_ns"] = begun[rows] + (columns.chunk_ns - begun[rows]) // 10
        return RequestColumns.from_columns({**columns.to_columns(), **moved})

    def window_s(columns: RequestColumns) -> float:
        return float(max(columns.end_ns.max(), columns.intended_ns.max()) - columns.intended_ns.min()) / 1e9

    load = []
    for one in run.load:
        if one.arm is Arm.CANDIDATE:
            requests = change(one.requests)
            one = replace(one, requests=requests, window_s=window_s(requests))
        load.append(one)
    return replace(run, load=tuple(load))


def test_a_whole_forgery_is_beyond_the_claim() -> None:
    names = [case.name for case in refused_cases()]
    found = judged(names.index("five-latencies-margin-block"))
    assert found.verdict().outcome is Outcome.BLOCK
    assert promoted(found, divided, draw_for("divided")) is Outcome.PASS
