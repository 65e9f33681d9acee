"""The cases of `cases/`: every verdict is what it was, and together they show whatever benchgate can decide."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from tests.verdicts.cases import FILES, HERE, Case, differences, guard_groups, read_cases, read_yaml, rewritten
from tests.verdicts.evidence import Result, metric_forms, run_case

OUTCOMES = ("PASS", "WARN", "BLOCK", "INCONCLUSIVE", "INVALID")
UNREACHABLE = read_yaml(HERE / "unreachable.yaml")
HOW_TO_UPDATE = "where the decision itself is meant to change: python -m tests.verdicts.update --change"


@functools.cache
def results(path: Path) -> list[tuple[Case, Result]]:
    return [(case, run_case(case.suite, case.recipe, case.suites)) for case in read_cases(path)]


def everything() -> list[tuple[Case, Result]]:
    return [one for path in FILES for one in results(path)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_verdicts_are_what_they_were(path: Path) -> None:
    lines = []
    for case, result in results(path):
        assert case.expected is not None, f"{case.name} has no expected verdict; run python -m tests.verdicts.update"
        lines += [f"{case.name}{line}" for line in differences(case.expected, result.verdict)]
    assert not lines, "\n".join(["", *lines, HOW_TO_UPDATE])


def test_every_metric_has_every_outcome_that_it_can_have_in_every_form() -> None:
    shown = {one for _, result in everything() for one in result.judged}
    wanted = {(m, form, o) for m, forms in metric_forms().items() for form in forms for o in OUTCOMES}
    excused = {
        (metric, form, outcome)
        for metric, form, outcome in wanted
        for entry in UNREACHABLE["outcomes"]
        if outcome in entry["outcomes"]
        if form in entry["forms"]
        if metric in entry.get("metrics", [metric])
    }
    assert shown <= wanted
    assert sorted(wanted - shown - excused) == []
    assert sorted(excused & shown) == []


def test_every_guard_trips_or_warns_where_it_can() -> None:
    states: dict[str, set[str]] = {"tripped": set(), "warned": set(), "passed": set(), "not_applicable": set()}
    for _, result in everything():
        for state, found in result.verdict["guards"].items():
            states[state] |= {one["id"] if state == "tripped" else one for one in found}
    known = {one for ids in guard_groups().values() for one in ids} | set(UNREACHABLE["guards"]["without_a_group"])
    assert set.union(*states.values()) == known
    assert known - states["tripped"] == set(UNREACHABLE["guards"]["never_trip"])
    assert states["warned"] == set(UNREACHABLE["guards"]["warn"])


def test_every_case_has_a_name_of_its_own() -> None:
    names = [case.name for case, _ in everything()]
    assert len(set(names)) == len(names)


def test_a_number_within_a_billionth_is_the_same_and_one_beyond_is_not() -> None:
    assert list(differences({"a": [1.0, "x"]}, {"a": [1.0 + 1e-10, "x"]})) == []
    assert len(list(differences({"a": 1.0, "b": 1}, {"a": 1.0 + 1e-8, "c": 1}))) == 3
    assert len(list(differences({"a": [1]}, {"a": [1, 2]}))) == 1
    assert len(list(differences({"a": float("inf")}, {"a": 1.0}))) == 1


def test_an_update_rewrites_the_verdict_alone() -> None:
    checks = {"a": {"n": 1, "candidate": 2.0, "p_value": 0.5, "p_adjusted": 0.5}}
    verdict: dict[str, Any] = {"outcome": "PASS", "checks": checks, "guards": {"passed": ["g"]}}
    text = "# A comment.\n\none:\n  suite: load\n\n# Of the second.\ntwo:\n  suite: load\n  expected: |\n    old\n"
    new = rewritten(text, {"one": verdict, "two": verdict})
    assert new.count("  expected: |\n    {") == 2
    assert "old" not in new and new.startswith("# A comment.\n\none:\n  suite: load\n  expected: |\n")
    assert rewritten(new, {"one": verdict, "two": verdict}) == new
