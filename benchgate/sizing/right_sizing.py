"""Table of candidates: accuracy against cost, and the cheapest one that its verdict lets pass.

It decides nothing; each candidate's own verdict is only repeated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date

from benchgate.errors import UsageError
from benchgate.model.deployment import Arm
from benchgate.model.run import MAX_PROMOTION_AGE_S, too_old_because
from benchgate.sizing.candidates import (
    CandidateRow,
    StoredRun,
    answered_tasks,
    baseline_difference,
    baseline_row,
    candidate_row,
    comparability_notes,
    incomparable_because,
    ineligible_because,
    list_runs,
    price_list_difference,
)
from benchgate.sizing.frontier import CheapestOption, ContestedCheapest, cheapest_option, frontier_positions, saving
from benchgate.sizing.operating_point import cost_name
from benchgate.stats.meta import EstimateWithLimits
from benchgate.suite.schema import Suite
from benchgate.units import show_usd

_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, eq=False)
class CandidateTable:
    """Table of candidates: the baseline first, then the candidates, cheapest first.

    `cost` is the metric of `usd`, `tasks` those of the accuracy. `saving` is the share of the baseline's cost that the
    cheapest passing candidate saves, or why it is unknown. It is None if none is named, and then `why_none` says why.
    `notes` are sentences without a period.
    """

    suite: str
    cost: str
    tasks: tuple[str, ...]
    rows: tuple[CandidateRow, ...]
    cheapest: CheapestOption | None
    saving: EstimateWithLimits | str | None
    why_none: str | None
    notes: tuple[str, ...]

    @property
    def some_apart(self) -> bool:
        """Return True if a candidate is not comparable with the others."""
        return any(row.apart is not None for row in self.rows)


def compare_candidates(
    stored: Sequence[StoredRun], *, in_use: bool = False, as_of: date | None = None
) -> CandidateTable:
    """Compare the candidates of at least one run, newest first. Raises UsageError if they are not comparable.

    `as_of` is the day for waivers; None if none counts.
    """
    newest = stored[0]
    for one in stored[1:]:
        if (why := incomparable_because(one.run, newest.run)) is not None:
            raise UsageError(
                f"runs {one.run.id} and {newest.run.id} cannot stand in one table: {why}; measure both candidates by"
                " the same suite"
            )
    asked = {task: n for one in stored for arm in Arm for task, n in answered_tasks(one.rows, arm).items()}
    bases = {one.run.id: baseline_row(one, asked, in_use=in_use) for one in stored}
    fit = [one for one in stored if ineligible_because(one.run, one.verdict) is None]
    first = next((one for one in fit if isinstance(bases[one.run.id].usd, EstimateWithLimits)), fit[0] if fit else None)
    found = {
        one.run.id: candidate_row(one, name, bases[one.run.id], asked, in_use=in_use, as_of=as_of)
        for one, name in _named(stored)
    }
    apart = _apart(fit, first, bases, in_use=in_use)
    # Candidates with a cost must share a price list with the first of them.
    priced = [one for one in fit if apart[one.run.id] is None and isinstance(found[one.run.id].usd, EstimateWithLimits)]
    apart |= {one.run.id: price_list_difference(one, priced[0]) for one in priced[1:]}
    alike = [one for one in fit if apart[one.run.id] is None]
    candidates = [replace(row, apart=apart.get(at)) for at, row in found.items()]
    rows = candidates if first is None else [bases[first.run.id], *candidates]
    standing = frontier_positions([row.option for row in rows])
    best = _cheapest(candidates, alike, bases)
    share = next((row.share for row in candidates if isinstance(best, CheapestOption) and row.name == best.name), None)
    return CandidateTable(
        suite=newest.run.suite_name,
        cost=cost_name(Suite.from_stored(newest.run.suite), in_use=in_use),
        tasks=tuple(asked),
        rows=tuple(sorted((replace(row, stand=standing[row.name]) for row in rows), key=_order)),
        cheapest=best if isinstance(best, CheapestOption) else None,
        saving=saving(share) if isinstance(share, EstimateWithLimits) else share,
        why_none=best if isinstance(best, str) else None,
        notes=(
            *comparability_notes(stored, alike, in_use=in_use),
            *_age_notes([row for row in candidates if row.passes], as_of),
        ),
    )


def _apart(
    fit: Sequence[StoredRun], first: StoredRun | None, bases: Mapping[str, CandidateRow], *, in_use: bool
) -> dict[str, str | None]:
    """Return why each run is not comparable with the first, whose baseline is in the table; None if it is."""
    if first is None:
        return {}
    here = bases[first.run.id].quality
    return {
        one.run.id: None
        if one is first
        else baseline_difference(one, first, (bases[one.run.id].quality, here), in_use=in_use)
        for one in fit
    }


def _named(stored: Sequence[StoredRun]) -> list[tuple[StoredRun, str]]:
    """Name each run's candidate, with the run if two have the same name."""
    often = Counter(one.called(Arm.CANDIDATE) for one in stored)
    called = [(one, one.called(Arm.CANDIDATE)) for one in stored]
    return [(one, f"{name} ({one.short})" if often[name] > 1 else name) for one, name in called]


def _order(row: CandidateRow) -> tuple[bool, bool, float, str]:
    usd = row.usd.value if isinstance(row.usd, EstimateWithLimits) else None
    return row.arm is Arm.CANDIDATE, usd is None, usd or 0.0, row.name


def _cheapest(
    candidates: Sequence[CandidateRow], alike: Sequence[StoredRun], bases: Mapping[str, CandidateRow]
) -> CheapestOption | str:
    """Return the cheapest passing candidate, or why none is named."""
    counted = [row for row in candidates if row.apart is None]
    best = cheapest_option([row.option for row in counted])
    if best is None:
        return _why_none(counted, [row.name for row in candidates if row.apart is not None and row.passes])
    policies = dict[str, list[StoredRun]]()
    for one in alike:
        policies.setdefault(one.judged_by, []).append(one)
    if len(policies) > 1:
        groups = "; ".join(list_runs(some) for some in policies.values())
        return f"they were judged by {len(policies)} policies ({groups}); `--policy SUITE` judges them all by one"
    if isinstance(best, ContestedCheapest):
        return _contested(best, candidates, bases)
    if len(alike) == 1 and len(counted) < len(candidates):
        return f"{best.name} passes, and nothing can be compared with it"
    return best


def _contested(
    between: ContestedCheapest, candidates: Sequence[CandidateRow], bases: Mapping[str, CandidateRow]
) -> str:
    named = {row.name: row for row in candidates}
    costs = [bases[named[name].run.id].usd for name in (between.by_usd, between.by_share)]
    here, there = (show_usd(one.value) if isinstance(one, EstimateWithLimits) else "an unknown amount" for one in costs)
    return (
        f"by dollars it is {between.by_usd}, and against the baseline beside each {between.by_share}, for the baseline "
        f"itself costs {here} beside the one and {there} beside the other; measure both again, one after the other"
    )


def _why_none(candidates: Sequence[CandidateRow], passing_apart: Sequence[str]) -> str:
    passing = [row for row in candidates if row.passes]
    if passing:
        return f"of what passes nothing has a cost; {passing[0].name}: {passing[0].usd}"
    judged = Counter("without a verdict" if row.outcome is None else row.outcome.value for row in candidates)
    let_through = [row for row in candidates if row.outcome is not None and row.outcome.promotes]
    unfinished = sum(row.fault is not None for row in let_through)
    held = len(let_through) - unfinished
    more = f", {unfinished} of them not fit to be counted" if unfinished else ""
    more += f", {held} of them held back" if held else ""
    more += f"; what passes cannot be compared with them: {', '.join(passing_apart)}" if passing_apart else ""
    none = "no candidate passes by its own verdict" if not passing_apart else "none that can be compared passes"
    return f"{none}: {', '.join(f'{n} {word}' for word, n in judged.items())}{more}"


def _age_notes(passing: Sequence[CandidateRow], as_of: date | None) -> Iterator[str]:
    """Yield a note on passing candidates measured too long ago to promote, as of the end of that day."""
    longest_s = MAX_PROMOTION_AGE_S + _DAY_S
    old = [
        row.name for row in passing if as_of and too_old_because(row.run.finished_at, f"{as_of}T23:59:59Z", longest_s)
    ]
    if old:
        days = round(MAX_PROMOTION_AGE_S / _DAY_S)
        yield f"{', '.join(old)} ended more than {days} days ago, and `benchgate promote` takes none that old by itself"
