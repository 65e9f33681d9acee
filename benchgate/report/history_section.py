"""What changed since the last promoted run of the same measurement: its numbers and this run's, each beside its own."""

from __future__ import annotations

from dataclasses import dataclass

from benchgate.model.deployment import Arm
from benchgate.model.history import PastCheck, PastRun, past_arm
from benchgate.model.run import Evidence
from benchgate.model.verdict import CheckResult, Verdict
from benchgate.report import show
from benchgate.report.tables import Column, Table

_COLUMNS = (
    Column("check", numeric=False),
    *(Column("baseline then"), Column("candidate then"), Column("difference then")),
    *(Column("baseline now"), Column("candidate now"), Column("difference now")),
)


@dataclass(frozen=True, slots=True)
class HistorySection:
    """`line` says which run it was, and how its candidate stands to this run's baseline."""

    line: str
    table: Table


def history_section(evidence: Evidence, verdict: Verdict) -> HistorySection | None:
    """None where no run of this measurement was promoted before, or none of its checks is of this verdict too."""
    if not evidence.history or len(evidence.run.arms) < len(Arm):
        return None
    last = evidence.history[-1]
    both = [(check, last.checks[check.id]) for check in verdict.checks if check.id in last.checks]
    rows = tuple(_row(check, past) for check, past in both if (check.unit, check.scale) == (past.unit, past.scale))
    if not rows:
        return None
    return HistorySection(_line(last, evidence), Table("Then and now", _COLUMNS, rows))


def _row(check: CheckResult, past: PastCheck) -> tuple[str, ...]:
    return (
        check.title,
        show.value(past.baseline, check.unit),
        show.value(past.candidate, check.unit),
        show.change(check, past.harm),
        show.value(check.baseline, check.unit),
        show.value(check.candidate, check.unit),
        show.NOT_APPLICABLE if check.harm is None else show.change(check, check.harm),
    )


def _line(last: PastRun, evidence: Evidence) -> str:
    baseline = past_arm(evidence.run.arms[Arm.BASELINE], evidence.run.environment)
    since = "its candidate is another release than this run's baseline"
    if last.candidate.release == baseline.release:
        since = "its candidate is this run's baseline"
    elif last.baseline.release == baseline.release:
        since = "it had the same baseline as this run"
    moved = "" if last.baseline.hardware == baseline.hardware else "; it ran on other hardware"
    return f"{last.told}: {last.candidate.name} against {last.baseline.name}; {since}{moved}"
