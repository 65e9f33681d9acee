"""What stands across the charts of the load: stages of one kind by what they offer, any others by their names."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchgate.report.drawing import multiplied, named, short_name
from benchgate.report.stage_rows import StageRow

IN_FLIGHT = "requests in flight"
_ROOM = 1.15  # of the first and of the last level
_MOST_TICKS = 6


@dataclass(frozen=True, slots=True)
class Across:
    """The stages of one chart: the number that each offers, or where there is none a name for each."""

    title: str
    at: Mapping[str, float]
    names: Mapping[str, str]

    @property
    def stages(self) -> tuple[str, ...]:
        """All of them, in the order of the sweep."""
        return tuple(self.at or self.names)

    def encoding(self) -> dict[str, object]:
        """The field `x` of the plot."""
        if not self.at:
            return named(list(self.names.values()))
        levels = sorted(self.at.values())
        return multiplied(self.title, levels[0] / _ROOM, levels[-1] * _ROOM, _readable(levels))

    def place(self, stage: str) -> float | str:
        """Where a stage stands."""
        return self.at[stage] if self.at else self.names[stage]


def axes(rows: Sequence[StageRow]) -> tuple[Across, ...]:
    """One for the closed loops and one for the rates, where there are two or more, each another; one for what is left.

    The one with most stages comes first.
    """
    found = [one for closed in (True, False) if (one := _numbered(rows, closed_loop=closed)) is not None]
    placed = {stage for one in found for stage in one.at}
    left = dict.fromkeys(row.stage for row in rows if row.stage not in placed)
    if left:
        found.append(Across("stage", {}, dict(_named(left))))
    return tuple(sorted(found, key=lambda one: -len(one.stages)))


def _numbered(rows: Sequence[StageRow], *, closed_loop: bool) -> Across | None:
    """The stages of one kind by what they offer; None where they are no sweep."""
    at = {row.stage: row.offered for row in rows if row.closed_loop is closed_loop and row.offered is not None}
    if len(at) < 2 or len(set(at.values())) < len(at):
        return None
    return Across(IN_FLIGHT if closed_loop else "requests offered per second", at, {})


def _named(stages: Mapping[str, None]) -> Iterator[tuple[str, str]]:
    """Each stage with a short name that no other has."""
    taken: set[str] = set()
    for number, stage in enumerate(stages, 1):
        name = short_name(stage)
        if name in taken:
            name = f"{name[:-4]}… {number}"
        taken.add(name)
        yield stage, name


def _readable(levels: Sequence[float]) -> list[float]:
    """Some of the levels, the first and the last among them."""
    step = math.ceil((len(levels) - 1) / _MOST_TICKS) or 1
    return [*levels[:-1:step], levels[-1]]
