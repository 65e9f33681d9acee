"""Several candidates of one suite side by side: quality against cost, and the cheapest that its verdict lets through.

It decides nothing: whether a candidate may be promoted is its own verdict's to say, and it is only repeated here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date

from benchgate.errors import UsageError
from benchgate.model.deployment import Arm
from benchgate.model.run import PROMOTED_WITHIN_S, too_old
from benchgate.sizing.candidates import (
    Sized,
    StoredRun,
    incomparable,
    listed,
    other_baseline,
    other_prices,
    sized_baseline,
    sized_candidate,
    tasks_asked,
    told_apart,
    unfit,
)
from benchgate.sizing.frontier import Cheapest, Contested, cheapest, saving, stands
from benchgate.sizing.operating_point import cost_name
from benchgate.stats.meta import Figure
from benchgate.suite.schema import Suite
from benchgate.units import show_usd

_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, eq=False)
class RightSizing:
    """The baseline first, then candidates, cheapest first. `cost` is the metric of `usd`, `tasks` what quality is over.

    `saving` is what the cheapest that passes costs less than the baseline of its own run, as a share of that, or why
    this is not known; None where nothing is named, and then `why_none` says why. `notes` are sentences without ends.
    """

    suite: str
    cost: str
    tasks: tuple[str, ...]
    rows: tuple[Sized, ...]
    cheapest: Cheapest | None
    saving: Figure | str | None
    why_none: str | None
    notes: tuple[str, ...]

    @property
    def some_apart(self) -> bool:
        """Whether a candidate counts by itself and not beside the others."""
        return any(row.apart is not None for row in self.rows)


def right_sizing(stored: Sequence[StoredRun], *, in_use: bool = False, as_of: date | None = None) -> RightSizing:
    """The table of some runs, at least one, the newest first. UsageError where they cannot stand in one.

    `as_of`: the day on which a waiver must hold for what it lets through to pass; None where none is counted.
    """
    newest = stored[0]
    for one in stored[1:]:
        if (why := incomparable(one.run, newest.run)) is not None:
            raise UsageError(
                f"runs {one.run.id} and {newest.run.id} cannot stand in one table: {why}; measure both candidates by"
                " the same suite"
            )
    asked = {task: n for one in stored for arm in Arm for task, n in tasks_asked(one.rows, arm).items()}
    bases = {one.run.id: sized_baseline(one, asked, in_use=in_use) for one in stored}
    fit = [one for one in stored if unfit(one.run, one.verdict) is None]
    first = next((one for one in fit if isinstance(bases[one.run.id].usd, Figure)), fit[0] if fit else None)
    found = {
        one.run.id: sized_candidate(one, name, bases[one.run.id], asked, in_use=in_use, as_of=as_of)
        for one, name in _named(stored)
    }
    apart = _apart(fit, first, bases, in_use=in_use)
    apart |= _of_other_lists([one for one in fit if apart[one.run.id] is None], found)
    alike = [one for one in fit if apart[one.run.id] is None]
    ours = [replace(row, apart=apart.get(at)) for at, row in found.items()]
    rows = ours if first is None else [bases[first.run.id], *ours]
    standing = stands([row.option for row in rows])
    best = _cheapest(ours, alike, bases)
    return RightSizing(
        suite=newest.run.suite_name,
        cost=cost_name(Suite.from_stored(newest.run.suite), in_use=in_use),
        tasks=tuple(asked),
        rows=tuple(sorted((replace(row, stand=standing[row.name]) for row in rows), key=_order)),
        cheapest=best if isinstance(best, Cheapest) else None,
        saving=_saving(next(row for row in ours if row.name == best.name)) if isinstance(best, Cheapest) else None,
        why_none=best if isinstance(best, str) else None,
        notes=(*told_apart(stored, alike, in_use=in_use), *_of_old([row for row in ours if row.passes], as_of)),
    )


def _apart(
    fit: Sequence[StoredRun], first: StoredRun | None, bases: Mapping[str, Sized], *, in_use: bool
) -> dict[str, str | None]:
    """Why a run that counts does not beside the others: by the first of them, whose baseline stands in the table."""
    if first is None:
        return {}
    here = bases[first.run.id].quality
    return {
        one.run.id: None
        if one is first
        else other_baseline(one, first, (bases[one.run.id].quality, here), in_use=in_use)
        for one in fit
    }


def _of_other_lists(alike: Sequence[StoredRun], found: Mapping[str, Sized]) -> dict[str, str | None]:
    """Why a candidate that has a cost does not count beside the first that has one: their prices are of two lists."""
    priced = [one for one in alike if isinstance(found[one.run.id].usd, Figure)]
    return {one.run.id: other_prices(one, priced[0]) for one in priced[1:]}


def _named(stored: Sequence[StoredRun]) -> list[tuple[StoredRun, str]]:
    """Each run with what the suite calls its candidate, and the run where two have one of that name."""
    often = Counter(one.called(Arm.CANDIDATE) for one in stored)
    called = [(one, one.called(Arm.CANDIDATE)) for one in stored]
    return [(one, f"{name} ({one.short})" if often[name] > 1 else name) for one, name in called]


def _order(row: Sized) -> tuple[bool, bool, float, str]:
    usd = row.usd.value if isinstance(row.usd, Figure) else None
    return row.arm is Arm.CANDIDATE, usd is None, usd or 0.0, row.name


def _cheapest(ours: Sequence[Sized], alike: Sequence[StoredRun], bases: Mapping[str, Sized]) -> Cheapest | str:
    """The cheapest that passes; else why none is named."""
    counted = [row for row in ours if row.apart is None]
    best = cheapest([row.option for row in counted])
    if best is None:
        return _why_none(counted, [row.name for row in ours if row.apart is not None and row.passes])
    policies = dict[str, list[StoredRun]]()
    for one in alike:
        policies.setdefault(one.judged_by, []).append(one)
    if len(policies) > 1:
        told = "; ".join(listed(some) for some in policies.values())
        return f"they were judged by {len(policies)} policies ({told}); `--policy SUITE` judges them all by one"
    if isinstance(best, Contested):
        return _contested(best, ours, bases)
    if len(alike) == 1 and len(counted) < len(ours):
        return f"{best.name} passes, and nothing can be compared with it"
    return best


def _contested(between: Contested, ours: Sequence[Sized], bases: Mapping[str, Sized]) -> str:
    named = {row.name: row for row in ours}
    costs = [bases[named[name].run.id].usd for name in (between.by_usd, between.by_share)]
    here, there = (show_usd(one.value) if isinstance(one, Figure) else "nothing known" for one in costs)
    return (
        f"by dollars it is {between.by_usd}, and against the baseline beside each {between.by_share}, for the baseline "
        f"itself costs {here} beside the one and {there} beside the other; measure both again, one after the other"
    )


def _saving(ours: Sized) -> Figure | str:
    return ours.share if isinstance(ours.share, str) else saving(ours.share)


def _why_none(candidates: Sequence[Sized], passing_apart: Sequence[str]) -> str:
    passing = [row for row in candidates if row.passes]
    if passing:
        return f"of what passes nothing has a cost; {passing[0].name}: {passing[0].usd}"
    judged = Counter("without a verdict" if row.outcome is None else row.outcome.value for row in candidates)
    let_through = [row for row in candidates if row.outcome is not None and row.outcome.promotes]
    unfinished = sum(row.fault is not None for row in let_through)
    held = len(let_through) - unfinished
    told = f", {unfinished} of them not fit to be counted" if unfinished else ""
    told += f", {held} of them held back" if held else ""
    told += f"; what passes cannot be compared with them: {', '.join(passing_apart)}" if passing_apart else ""
    none = "no candidate passes by its own verdict" if not passing_apart else "none that can be compared passes"
    return f"{none}: {', '.join(f'{n} {word}' for word, n in judged.items())}{told}"


def _of_old(passing: Sequence[Sized], as_of: date | None) -> Iterator[str]:
    """Which pass by a measurement that no promotion rests on any more, at the end of the day where that is known."""
    longest_s = PROMOTED_WITHIN_S + _DAY_S
    old = [row.name for row in passing if as_of and too_old(row.run.finished_at, f"{as_of}T23:59:59Z", longest_s)]
    if old:
        days = round(PROMOTED_WITHIN_S / _DAY_S)
        yield f"{', '.join(old)} ended more than {days} days ago, and `benchgate promote` takes none that old by itself"
