"""What changed since the last promoted run of the same measurement: its numbers and this run's, each beside its own."""

from __future__ import annotations

from dataclasses import dataclass

from benchgate.gate.comparison import arms_of
from benchgate.model.deployment import Arm
from benchgate.model.history import PastArm, PastCheck, PastRun, past_arm
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
    """`line`, a sentence without its end, says which run it was, and what this run's baseline was in it.

    `table` is None where there is nothing to set beside this run's numbers.
    """

    line: str
    table: Table | None = None


def history_section(evidence: Evidence, verdict: Verdict) -> HistorySection | None:
    """None of one deployment alone, of which nothing is ever promoted over another."""
    if len(evidence.run.arms) < len(Arm) or len(arms_of(evidence)) < len(Arm):
        return None
    if not evidence.history:
        return HistorySection("No earlier run of this measurement was promoted: there is no last time to compare with")
    last = evidence.history[-1]
    line = f"The last promoted run of the same measurement was {_line(last, evidence)}"
    both = [(check, last.checks[check.id]) for check in verdict.checks if check.id in last.checks]
    rows = tuple(_row(check, past) for check, past in both if (check.unit, check.scale) == (past.unit, past.scale))
    if not rows:
        return HistorySection(f"{line}. None of its numbers is of a check made here")
    return HistorySection(line, Table("Then and now", _COLUMNS, rows))


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
    moved = "" if last.baseline.hardware == baseline.hardware else "; it ran on other hardware"
    return f"{last.told}: {last.candidate.name} against {last.baseline.name}; {_since(last, baseline)}{moved}"


def _since(last: PastRun, baseline: PastArm) -> str:
    """What this run's baseline was last time: whichever of the two it is liker to, for several may be of one release.

    A release is only what was told of a server; three servers of which nothing is told but one model are all of it.
    """
    likeness = _likeness(last.candidate, baseline), _likeness(last.baseline, baseline)
    if max(likeness) == 0:
        return "its candidate is another release than this run's baseline"
    as_candidate = likeness[0] >= likeness[1]
    if max(likeness) == _BY_RELEASE:
        which = f"its {'candidate' if as_candidate else 'baseline'}"
        return f"{which} runs the same model and engine as this run's baseline, as far as is told"
    elsewhere = ", by its name, at another address" if max(likeness) == _BY_NAME else ""
    said = "its candidate is this run's baseline" if as_candidate else "it had the same baseline as this run"
    return f"{said}{elsewhere}"


_BY_RELEASE, _BY_NAME, _THE_SAME = 1, 2, 3


def _likeness(past: PastArm, now: PastArm) -> int:
    """From 0, another release, to a deployment that is the same in all that is known of it, its name too."""
    if past.release != now.release:
        return 0
    same_name = past.name == now.name
    if past.fingerprint == now.fingerprint:
        return _THE_SAME + same_name
    return _BY_NAME if same_name else _BY_RELEASE
