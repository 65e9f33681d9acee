"""Two stored runs by their numbers alone, as text, markdown and JSON. It decides nothing, and says so first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchgate.escape import markdown_prose, one_line
from benchgate.gate.summary.metric_rows import NumberPair
from benchgate.model.deployment import Arm
from benchgate.model.metric import TREND_UNITS, depends_on_slo
from benchgate.model.run import MetricRow, Run
from benchgate.model.verdict import Outcome, Unit
from benchgate.report.display import MARKS, in_its_unit, with_limits
from benchgate.report.screen import PLAIN, STYLES, Screen, Style, fitting_table
from benchgate.stats.distributions import Limits
from benchgate.units import show_percent, show_points

SCHEMA = "benchgate.stored-numbers/1"
OUTCOME = Outcome.INCONCLUSIVE
"""Outcome of two runs without records: it never lets a candidate be promoted."""

_INDENT = "  "
_HEAD = ("metric", "baseline", "candidate", "change", "change vs. own baselines")
_CHECK_KEYS = ("outcome", "baseline", "candidate", "harm", "lower", "upper", "margin", "n")


@dataclass(frozen=True, slots=True)
class StoredSide:
    """A run with the document of its own verdict, if any.

    `removed_at` and `removed_by` are the time and reason of the removal of its raw records.
    """

    run: Run
    verdict: Mapping[str, Any] | None
    removed_at: str | None
    removed_by: str | None


@dataclass(frozen=True, slots=True)
class StoredNumbers:
    """The candidate of one run beside the candidate of another, by the numbers that were kept of both."""

    reference: StoredSide
    judged: StoredSide
    pairs: tuple[NumberPair, ...]

    @property
    def reason(self) -> str:
        """The reason why nothing is decided."""
        both = (self.reference, self.judged)
        if foreign := [side.run for side in both if side.run.measured_by is not None]:
            files = " and ".join(f"run {run.id} was measured by {run.measured_by}" for run in foreign)
            have = "it has" if len(foreign) == 1 else "they have"
            return f"{files}: {have} no records, so no check can be evaluated and nothing is decided"
        bare = [side for side in both if side.removed_at is not None]
        gone = " and ".join(f"of run {side.run.id} on {str(side.removed_at)[:10]}" for side in bare)
        return f"raw records were removed ({gone}), so no check can be evaluated and nothing is decided"

    @property
    def notes(self) -> Iterator[str]:
        """Reservations about comparing the two runs."""
        reference, judged = self.reference.run, self.judged.run
        if reference.measurement_sha256 != judged.measurement_sha256:
            yield "the two runs did not measure the same workload"
        good_requests = any(depends_on_slo(pair.name) for pair in self.pairs)
        if good_requests and reference.suite.get("slo") != judged.suite.get("slo"):
            yield "the two runs have another `slo`, and with it other good requests"
        for side in (self.reference, self.judged):
            outcome = side.verdict["outcome"] if side.verdict is not None else "never given"
            verdict = "" if side.run.measured_by is not None else f"its own verdict was {outcome}; "
            yield f"run {side.run.id}: {verdict}{side.run.status}, begun {side.run.started_at}"
        if any(_change_of(pair).limits is not None for pair in self.pairs):
            yield "intervals cover the variation inside each run, not from run to run: repeat both to know that"


def numbers_document(numbers: StoredNumbers) -> dict[str, object]:
    """Return plain JSON; `promotes` is always false."""
    return {
        "schema": SCHEMA,
        "outcome": OUTCOME.value,
        "reason": numbers.reason,
        "exit_code": int(OUTCOME.exit_code()),
        "promotes": False,
        "run": _side(numbers.judged),
        "against": _side(numbers.reference),
        "notes": list(numbers.notes),
        "numbers": [_pair(pair) for pair in numbers.pairs],
        "stored_checks": [
            {"id": check, "baseline": _check(then), "candidate": _check(now)} for check, then, now in _checks(numbers)
        ],
    }


def _side(side: StoredSide) -> dict[str, object]:
    run = side.run
    return {
        "id": run.id,
        "label": run.label,
        "suite": run.suite_name,
        "measurement_sha256": run.measurement_sha256,
        "status": run.status.value,
        "started_at": run.started_at,
        "candidate": run.arms[Arm.CANDIDATE].name if Arm.CANDIDATE in run.arms else None,
        "outcome": side.verdict["outcome"] if side.verdict is not None else None,
        "removed_at": side.removed_at,
        "removed_by": side.removed_by,
    }


def _pair(pair: NumberPair) -> dict[str, object]:
    return {
        "name": pair.name,
        "statistic": pair.statistic,
        "stage": pair.stage,
        "task": pair.task,
        "baseline": _number(pair.reference),
        "candidate": _number(pair.judged),
        "baseline_beside": _number(pair.reference_baseline),
        "candidate_beside": _number(pair.judged_baseline),
        "change_ratio": pair.change_ratio,
        "change_lower_ratio": None if pair.change_limits is None else pair.change_limits.lower,
        "change_upper_ratio": None if pair.change_limits is None else pair.change_limits.upper,
        "change_beside_baselines_ratio": pair.change_beside_baselines_ratio,
    }


def _number(row: MetricRow | None) -> dict[str, object] | None:
    return None if row is None else {"value": row.value, "lower": row.lower, "upper": row.upper, "n": row.n}


def _checks(numbers: StoredNumbers) -> list[tuple[str, Mapping[str, Any] | None, Mapping[str, Any] | None]]:
    """Return every check of either run's own verdict by id."""
    then, now = (
        {check["id"]: check for check in (side.verdict or {}).get("checks", ())}
        for side in (numbers.reference, numbers.judged)
    )
    return [(check, then.get(check), now.get(check)) for check in dict.fromkeys([*now, *then])]


def _check(check: Mapping[str, Any] | None) -> dict[str, object] | None:
    return None if check is None else {key: check.get(key) for key in _CHECK_KEYS}


def numbers_text(numbers: StoredNumbers, screen: Screen = PLAIN) -> str:
    """Render for a terminal."""
    label = f"{MARKS[OUTCOME]} {OUTCOME}: "
    lines = [*screen.labelled(label, numbers.reason, _INDENT, Style.BOLD, STYLES[OUTCOME])]
    for note in numbers.notes:
        lines += screen.labelled(f"{_INDENT}note: ", note, _INDENT * 2)
    for heading, *rows in _tables(numbers):
        cells = [[one_line(cell, 80) for cell in row] for row in rows]
        lines += ["", *fitting_table(screen, heading, cells, indent=_INDENT)]
    return "".join(f"{line}\n" for line in lines)


def numbers_markdown(numbers: StoredNumbers) -> str:
    """Render for a CI job's summary."""
    lines = [f"**{MARKS[OUTCOME]} {OUTCOME}**: {markdown_prose(numbers.reason)}", ""]
    lines += [f"- {markdown_prose(note)}" for note in numbers.notes]
    for rows in _tables(numbers):
        lines += ["", _markdown_row(rows[0]), "|" + "---|" * len(rows[0]), *map(_markdown_row, rows[1:])]
    return "\n".join(lines) + "\n"


def _tables(numbers: StoredNumbers) -> Iterator[list[tuple[str, ...]]]:
    """Yield the metrics with their changes, and the checks of both runs' verdicts if they have any."""
    width = len(_HEAD) if any(_change_of(pair).beside_baselines is not None for pair in numbers.pairs) else -1
    yield [row[:width] for row in (_HEAD, *map(_cells, numbers.pairs))]
    if checks := _checks(numbers):
        yield [("check", "baseline's run", "candidate's run"), *map(_check_cells, checks)]


@dataclass(frozen=True, slots=True)
class _Change:
    """A change with its format; None where unknown. Shares change by points, all else by per cent of the reference."""

    show: Callable[[float], str]
    value: float | None
    limits: Limits | None
    beside_baselines: float | None


def _change_of(pair: NumberPair) -> _Change:
    if TREND_UNITS.get(pair.name) is not Unit.RATIO:
        percent = partial(show_percent, signed=True)
        return _Change(percent, pair.change_ratio, pair.change_limits, pair.change_beside_baselines_ratio)
    found, points = pair.difference, partial(show_points, signed=True)
    value, limits = (None, None) if found is None else (found.value, found.limits)
    return _Change(points, value, limits, pair.difference_beside_baselines)


def _cells(pair: NumberPair) -> tuple[str, ...]:
    """Return the cells of a metric: the interval of the change, or where it has none those of both values."""
    name = " ".join(part for part in (pair.name, pair.statistic, pair.stage, pair.task) if part is not None)
    found = _change_of(pair)
    show, limits = found.show, found.limits
    change, beside = ("-" if one is None else show(one) for one in (found.value, found.beside_baselines))
    both = (pair.reference, pair.judged)
    if limits is None:
        return name, *map(with_limits, both), change, beside
    ends = (show(end) for end in (limits.lower, limits.upper))
    values = ("-" if row is None else in_its_unit(row.name, row.value) for row in both)
    return name, *values, f"{change} ({' to '.join(ends)})", beside


def _check_cells(row: tuple[str, Mapping[str, Any] | None, Mapping[str, Any] | None]) -> tuple[str, ...]:
    check, *both = row
    return check, *("-" if one is None else str(one["outcome"]) for one in both)


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(markdown_prose(cell) for cell in cells) + " |"
