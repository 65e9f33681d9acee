"""The campaign of faults: its table is whole and can be read, and what is not as stated counts as missed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchgate.suite.loader import parse_suite
from benchgate.suite.simulator import FAULTS, SimSettings
from benchmarks.campaign.cases import (
    HARMLESS,
    OUTSIDE,
    SIM,
    Case,
    Expected,
    all_cases,
    expect,
    short_cases,
)
from benchmarks.campaign.running import ENDS, Ended
from benchmarks.campaign.suites import KINDS, LONG, PACE, PHASES, suite_of, write_files


def test_every_fault_of_the_practice_server_is_tried_in_every_phase_and_kind_of_stage() -> None:
    assert {kind.name for kind in FAULTS} <= SIM.keys()
    names = {case.name for case in all_cases()}
    for fault in SIM:
        assert {f"{fault}/load/{kind}" for kind in KINDS} <= names
        assert {f"{fault}/{phase}" for phase in PHASES if phase != "load"} <= names
    assert len(names) == len(all_cases())


def test_short_form_has_cases_of_the_table() -> None:
    found = short_cases()
    assert {case.phase for case in found} == set(PHASES)
    assert {case.fault for case in found} & SIM.keys()
    assert {case.fault for case in found} & OUTSIDE.keys()


@pytest.mark.parametrize("name", SIM)
def test_settings_of_every_fault_are_read(name: str) -> None:
    for phase in PHASES:
        SimSettings.model_validate({**PACE, "says": "100%", **SIM[name].settings(phase)})


@pytest.mark.parametrize(
    ("phase", "kind"), [("startup", None), ("quality", None), ("shadow", None), *(("load", kind) for kind in KINDS)]
)
def test_suite_of_every_phase_and_kind_is_read(phase: str, kind: str | None, tmp_path: Path) -> None:
    deployments = {name: {"sim": {**PACE}} for name in ("before", "after")}
    suite = suite_of(phase, deployments, stage=LONG if kind is None else KINDS[kind])
    write_files(tmp_path, suite)
    assert parse_suite((tmp_path / "suite.yaml").read_text(), "suite.yaml").candidate == "after"


def test_every_end_has_an_exit_code() -> None:
    expected = [case.expected for case in all_cases()]
    assert all(set(one.ends) <= ENDS.keys() and one.ends for one in expected)


def case_of(expected: Expected, *, fails: bool = False) -> Case:
    def run(*_: object) -> Ended:
        raise AssertionError("it is not run")

    return Case("fault", "load", "closed", expected, "key", run, fails)


BLOCKED = Ended(
    "BLOCK", 10, None, ("error_rate@s:slo BLOCK: 40 % breaks the SLO", "after is blocked"), (), (), 9, "", 4.0
)
CUT = Ended(None, 143, "INVALID", ("the run was interrupted",), (), (), 0, "", 4.0)
STATED = expect("BLOCK", by="error_rate")


def test_run_that_ends_as_stated_is_not_missed() -> None:
    assert case_of(STATED, fails=True).problems(BLOCKED) == []
    assert case_of(expect("terminated")).problems(CUT) == []


@pytest.mark.parametrize(
    ("expected", "ended", "problem"),
    [
        (expect("INVALID"), BLOCKED, "ended with BLOCK"),
        (STATED, replace(BLOCKED, code=0), "ended with exit 0"),
        (expect("BLOCK", by="ttft"), BLOCKED, "name none of ttft"),
        (STATED, replace(BLOCKED, code=None), "ended with hang"),
        (STATED, replace(BLOCKED, orphans=("benchgate.sim",)), "left a process"),
        (STATED, replace(BLOCKED, lost=("block 1 is not there",)), "lost: block 1"),
        (STATED, replace(BLOCKED, crash="KeyError: 3"), "traceback: KeyError"),
        (STATED, replace(BLOCKED, is_undisturbed=True), "never came"),
        (STATED, replace(BLOCKED, failed=0), "no failure is on record"),
        (expect("terminated"), replace(CUT, judged="PASS"), "judged again it is PASS"),
    ],
)
def test_everything_that_is_not_as_stated_is_a_problem(expected: Expected, ended: Ended, problem: str) -> None:
    assert any(problem in found for found in case_of(expected, fails=expected is STATED).problems(ended))


def test_promotion_that_is_not_allowed_is_counted_and_never_repeated() -> None:
    passed = replace(BLOCKED, outcome="PASS", code=0)
    assert case_of(STATED).is_wrongly_promoted(passed)
    assert not case_of(STATED).may_repeat(passed)
    assert not case_of(HARMLESS).is_wrongly_promoted(passed)
    assert case_of(HARMLESS).may_repeat(BLOCKED)
    assert not case_of(HARMLESS).may_repeat(replace(BLOCKED, orphans=("benchgate.sim",)))


def test_repeated_run_keeps_what_broke_before() -> None:
    broken = replace(BLOCKED, orphans=("benchgate.sim",), lost=("block 1",))
    again = BLOCKED.repeated(broken)
    assert (again.orphans, again.lost, again.attempts) == (broken.orphans, broken.lost, 2)
