"""Which stored runs count for nothing beyond their verdict, and what a guard's objection takes away."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchgate.gate.guards.base import SPEED, TOKENS
from benchgate.model.run import MEASURED_BY, Run, RunStatus
from benchgate.sizing.candidates import OF_LOAD, OF_QUALITY, guard_objection, ineligible_because
from tests.fakes import evidence as fake

RUN = fake.run()


def verdict(outcome: str = "PASS", *guards: dict[str, Any]) -> dict[str, Any]:
    return {"outcome": outcome, "guards": list(guards)}


@pytest.mark.parametrize("outcome", ["PASS", "WARN", "BLOCK", "INCONCLUSIVE"])
def test_a_whole_run_counts_whatever_its_verdict_says_of_the_candidate(outcome: str) -> None:
    assert ineligible_because(RUN, verdict(outcome)) is None


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (replace(RUN, status=RunStatus.RUNNING), "is still running"),
        (replace(RUN, status=RunStatus.PARTIAL), "was cut short"),
        (replace(RUN, suite={**RUN.suite, "calibration": True}), "is a calibration"),
        (replace(RUN, environment={MEASURED_BY: "vegeta"}), "only the numbers of a file of vegeta's"),
    ],
    ids=["running", "cut short", "calibration", "imported"],
)
def test_a_pass_makes_nothing_of_a_run_that_judges_nobody(run: Run, says: str) -> None:
    for one in (verdict("PASS"), None):
        found = ineligible_because(run, one)
        assert found is not None
        assert says in found


def test_a_run_counts_for_nothing_before_its_verdict_and_where_that_is_invalid() -> None:
    assert "has no verdict yet" in str(ineligible_because(RUN, None))
    assert "its evidence is not usable" in str(ineligible_because(RUN, verdict("INVALID")))


def guard(*spoils: str, tripped: bool = True) -> dict[str, Any]:
    return {"tripped": tripped, "spoils": list(spoils), "reason": "late"}


@pytest.mark.parametrize(
    ("spoils", "of_load", "of_quality"),
    [
        ("load", "late", None),
        (SPEED, "late", None),
        (TOKENS, "late", None),
        ("quality", None, "late"),
        ("shadow", None, None),
    ],
)
def test_a_tripped_guard_takes_away_the_numbers_of_its_kind(
    spoils: str, of_load: str | None, of_quality: str | None
) -> None:
    found = verdict("BLOCK", guard("shadow"), guard(spoils))
    assert (guard_objection(found, OF_LOAD), guard_objection(found, OF_QUALITY)) == (of_load, of_quality)
    quiet = verdict("BLOCK", guard(spoils, tripped=False))
    assert (guard_objection(quiet, OF_LOAD), guard_objection(quiet, OF_QUALITY)) == (None, None)


def test_a_guard_that_does_not_say_what_it_spoils_takes_away_everything() -> None:
    untold = verdict("BLOCK", {"tripped": True, "reason": "late"})
    assert guard_objection(untold, OF_LOAD) == guard_objection(untold, OF_QUALITY) == "late"
