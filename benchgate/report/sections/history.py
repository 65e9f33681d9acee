"""The section that compares this run with the last promoted run of the same measurement."""

from __future__ import annotations

from benchgate.gate.comparison import arms_of
from benchgate.model.deployment import Arm
from benchgate.model.history import PastArm, PastCheck, PastRun, past_arm
from benchgate.model.run import Evidence
from benchgate.model.verdict import CheckResult, Verdict
from benchgate.report import display
from benchgate.report.section import Lines, Section, Style, notes, present
from benchgate.report.table import Column, Table, number_columns
from benchgate.suite.schema import Suite

_COLUMNS = (
    Column("check", numeric=False),
    *number_columns("baseline before", "candidate before", "difference before"),
    *number_columns("baseline now", "candidate now", "difference now"),
)
_BY_RELEASE, _BY_NAME, _SAME = 1, 2, 3  # degrees of likeness
_NOTE = (
    "Differences compare a candidate with the baseline of its own run. Values of two runs also differ by their time."
)


def history_section(evidence: Evidence, verdict: Verdict, suite: Suite) -> Section | None:
    """Return the section; None of one deployment alone, which is never promoted over another.

    Numbers of good requests are left out if the promoted run counted them by another `slo` than `suite`.
    """
    if len(evidence.run.arms) < len(Arm) or len(arms_of(evidence)) < len(Arm):
        return None
    if not evidence.history:
        return _section("No earlier run of this measurement was promoted", ())
    last = evidence.history[-1]
    line = f"Last promoted run of the same measurement: {_line(last, evidence)}"
    both = [(check, last.checks[check.id]) for check in verdict.checks if check.id in last.checks]
    alike = [(check, past) for check, past in both if (check.unit, check.scale) == (past.unit, past.scale)]
    slo = suite.to_stored().get("slo")
    rows = tuple(_row(check, past) for check, past in alike if last.counts_as(check.metric, slo))
    if len(rows) < len(alike):
        others = ", ".join(check.title for check, _ in alike if not last.counts_as(check.metric, slo))
        line = f"{line}. It counted good requests by another `slo`, so these are left out: {others}"
    elif not rows:
        line = f"{line}. It has no check in common with this run"
    return _section(line, rows)


def _section(line: str, rows: tuple[tuple[str, ...], ...]) -> Section:
    text = Lines((f"{line}.",), Style.TEXT)
    table = Table("Last promoted run and this run", _COLUMNS, rows) if rows else None
    parts = present(text, table, notes(_NOTE) if rows else None)
    return Section("history", "Change since the last promotion", parts, summary=present(text, table), rank=3)


def _row(check: CheckResult, past: PastCheck) -> tuple[str, ...]:
    return (
        check.title,
        display.value(past.baseline, check.unit),
        display.candidate(check, past.candidate),
        display.change(check, past.harm),
        display.value(check.baseline, check.unit),
        display.candidate(check, check.candidate),
        display.NOT_APPLICABLE if check.harm is None else display.change(check, check.harm),
    )


def _line(last: PastRun, evidence: Evidence) -> str:
    baseline = past_arm(evidence.run.arms[Arm.BASELINE], evidence.run.environment)
    moved = "" if last.baseline.hardware == baseline.hardware else "; it ran on other hardware"
    return f"{last.title}: {last.candidate.name} against {last.baseline.name}; {_since(last, baseline)}{moved}"


def _since(last: PastRun, baseline: PastArm) -> str:
    """Return the arm of the last run that this run's baseline is most like: several may be of one release.

    A release is only what a server reports; servers that report nothing but one model are all of one release.
    """
    likeness = _likeness(last.candidate, baseline), _likeness(last.baseline, baseline)
    if max(likeness) == 0:
        return "its candidate is another release than this run's baseline"
    as_candidate = likeness[0] >= likeness[1]
    if max(likeness) == _BY_RELEASE:
        arm = f"its {'candidate' if as_candidate else 'baseline'}"
        return f"{arm} reports the same model and engine as this run's baseline"
    elsewhere = ", by its name, at another address" if max(likeness) == _BY_NAME else ""
    relation = "its candidate is this run's baseline" if as_candidate else "it had the same baseline as this run"
    return f"{relation}{elsewhere}"


def _likeness(past: PastArm, now: PastArm) -> int:
    """Return a degree from 0 (another release) to 4 (the same deployment under the same name)."""
    if past.release != now.release:
        return 0
    same_name = past.name == now.name
    if past.fingerprint == now.fingerprint:
        return _SAME + same_name
    return _BY_NAME if same_name else _BY_RELEASE
