"""By which of its levels a run sizes a fleet, and why not by the others.

What a replica carries is a rate of arrivals, and those of an open loop are one: they come whatever became of the
requests before them. In a closed loop nobody asks who still waits, so a queue is never longer than its callers, and
what comes through is no rate that a server withstands. So an open level stands before a closed one. And what held once
is not counted on where the same requests at a lower rate are shown not to hold: one of the two was chance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from benchgate.gate.best_row import BestRow, best_of, known, lightest
from benchgate.model.deployment import Arm
from benchgate.units import show_number


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A level that the fleet is not sized by."""

    stage: str
    why: str


@dataclass(frozen=True, slots=True)
class Choice:
    """The level that the fleet is sized by. `asked_for`: by its name, and not because it is the best.

    `missed_at` is the next level of the same requests beyond it of which anything is known, where that is shown to miss
    its SLO: what a replica carries lies between the two. None where nothing shows that it carries no more. Beyond an
    open loop only open ones count: a closed loop says nothing of rates.
    """

    row: BestRow
    left_out: tuple[LeftOut, ...] = ()
    asked_for: bool = False
    missed_at: str | None = None


def choose(levels: Mapping[str, BestRow | str], arm: Arm, stage: str | None = None) -> Choice | str:
    """Of the levels of `levels_of`, the named one, else the best that is shown to hold; else why there is none."""
    all_known = known(levels)
    found = _best(all_known, arm) if stage is None else _named(levels, stage)
    if isinstance(found, str):
        return found
    left_out = [LeftOut(name, _why(level, found, all_known)) for name, level in levels.items() if name != found.stage]
    return Choice(found, tuple(left_out), stage is not None, _missed_at(all_known, found))


def _missed_at(levels: Sequence[BestRow], chosen: BestRow) -> str | None:
    beyond = [
        row
        for row in levels
        if (row.holds or row.misses) and (row.is_open or not chosen.is_open) and chosen.has_less_load_than(row)
    ]
    nearest = lightest(beyond)
    return nearest.stage if nearest is not None and nearest.misses else None


def _belied_by(row: BestRow, levels: Sequence[BestRow]) -> BestRow | None:
    """A level of the same requests, open as it is or closed, that has less load and is shown to miss its SLO."""
    lighter = (other for other in levels if other.misses and other.is_open == row.is_open)
    return next((other for other in lighter if other.has_less_load_than(row)), None)


def _belied(lighter: BestRow) -> str:
    return f"holds, but {lighter.stage}, the same requests with less load, is shown to miss its SLO: one was chance"


def _best(levels: Sequence[BestRow], arm: Arm) -> BestRow | str:
    sound = [row for row in levels if not (row.holds and _belied_by(row, levels))]
    opened = [row for row in sound if row.is_open and row.holds]
    return best_of(opened or sound, arm)


def _named(levels: Mapping[str, BestRow | str], stage: str) -> BestRow | str:
    row = levels.get(stage)
    if row is None:
        near = get_close_matches(stage, levels, n=1)
        hint = f"; did you mean {near[0]}?" if near else "."
        return f"--stage is {stage!r}, which its suite does not have{hint} It has {', '.join(levels)}"
    if isinstance(row, str):
        return f"nothing is sized by stage {stage}: {row}"
    if not row.holds:
        return (
            f"nothing is sized by stage {stage}, which is not shown to hold its SLO ({row.held_by}): what comes through"
            " beyond the SLO is no capacity; measure more requests of it, or name another stage"
        )
    if (lighter := _belied_by(row, known(levels))) is not None:
        return f"nothing is sized by stage {stage}: it {_belied(lighter)}; measure both again"
    return row


def _why(level: BestRow | str, chosen: BestRow, levels: Sequence[BestRow]) -> str:
    if isinstance(level, str):
        return level
    if not level.holds:
        less = ", though it has less load than this one" if level.has_less_load_than(chosen) else ""
        return f"not shown to hold its SLO ({level.held_by}){less}"
    if (lighter := _belied_by(level, levels)) is not None:
        return _belied(lighter)
    carried = f"holds, at {show_number(level.tokens_per_s)} output tokens/s"
    if chosen.is_open and not level.is_open:
        return f"{carried}, but is a closed loop, whose rate is no rate of arrivals"
    if level.kind != chosen.kind:
        otherwise = "asked otherwise (workload, way of arrival, actions or SLO)"
        return f"{carried}, {otherwise}; is that your demand, name it by --stage"
    return carried
