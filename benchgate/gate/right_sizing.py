"""Several candidates of one suite side by side: quality against cost, and the cheapest that its verdict lets through.

It decides nothing: whether a candidate may be promoted is its own verdict's to say, and it is only repeated here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from benchgate.cost.frontier import Cheapest, Option, Stand, cheapest, saving, stands
from benchgate.errors import UsageError
from benchgate.gate.alike_runs import StoredRun, incomparable, set_apart
from benchgate.gate.own_quality import Asked, own_accuracy, tasks_asked, tokens_per_correct
from benchgate.gate.priced_level import cost_name
from benchgate.gate.unfit import OF_LOAD, OF_QUALITY, objection, unfit
from benchgate.model.deployment import Arm
from benchgate.model.run import Run
from benchgate.model.verdict import Outcome
from benchgate.stats.recovered import Figure, product
from benchgate.suite.schema import Suite

_MILLIONTH = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Sized:
    """One deployment as one run measured it. Where a number is not known, or does not count, a text says why.

    `outcome` is of the run; None of the baseline, which is judged by none, and of a run without a verdict. `fault`
    says why nothing of it counts. `quality` is a share, `usd` dollars per million tokens at `stage`, `usd_per_correct`
    dollars for the output tokens that the evals took for a right answer, at the price of that stage's output tokens.
    """

    name: str
    run: Run
    short: str
    arm: Arm
    outcome: Outcome | None
    fault: str | None
    stage: str | None
    quality: Figure | str
    usd: Figure | str
    usd_per_correct: Figure | str
    stand: Stand | None = None

    @property
    def passes(self) -> bool:
        """Whether its own verdict lets it be promoted."""
        return self.fault is None and self.outcome is not None and self.outcome.promotes

    @property
    def option(self) -> Option:
        """What of it counts among the others."""
        quality, usd = (one if isinstance(one, Figure) else None for one in (self.quality, self.usd))
        return Option(self.name, quality, usd, self.passes)


@dataclass(frozen=True, slots=True, eq=False)
class RightSizing:
    """The baseline first, then candidates, cheapest first. `cost` is the metric of `usd`, `tasks` what quality is over.

    `saving` is what the cheapest that passes costs less than the baseline of its own run, as a share of that, or why
    this is not known; None where nothing passes, and then `why_none` says why. `notes` are sentences without ends.
    """

    suite: str
    cost: str
    tasks: tuple[str, ...]
    rows: tuple[Sized, ...]
    cheapest: Cheapest | None
    saving: Figure | str | None
    why_none: str | None
    notes: tuple[str, ...]


def right_sizing(stored: Sequence[StoredRun], *, in_use: bool = False) -> RightSizing:
    """The table of some runs, at least one, the newest first. UsageError where they cannot stand in one."""
    newest = stored[0]
    for one in stored[1:]:
        if (why := incomparable(one.run, newest.run)) is not None:
            raise UsageError(
                f"runs {one.run.id} and {newest.run.id} cannot stand in one table: {why}; measure both candidates by"
                " the same suite"
            )
    asked = {task: n for one in stored for arm in Arm for task, n in tasks_asked(one.rows, arm).items()}
    ours = [_sized(one, Arm.CANDIDATE, name, asked, in_use=in_use) for one, name in _named(stored)]
    fit = [one for one in stored if unfit(one.run, one.verdict) is None]
    bases = {
        one.run.id: _sized(one, Arm.BASELINE, f"{one.called(Arm.BASELINE)} (baseline)", asked, in_use=in_use)
        for one in fit
    }
    of_table = [base for base in bases.values() if isinstance(base.usd, Figure)] or list(bases.values())
    standing = stands([row.option for row in (*of_table[:1], *ours)])
    rows = sorted((replace(row, stand=standing[row.name]) for row in (*of_table[:1], *ours)), key=_order)
    best = cheapest([row.option for row in rows if row.arm is Arm.CANDIDATE])
    return RightSizing(
        suite=newest.run.suite_name,
        cost=cost_name(Suite.from_stored(newest.run.suite), in_use=in_use),
        tasks=tuple(asked),
        rows=tuple(rows),
        cheapest=best,
        saving=None if best is None else _saving(next(row for row in ours if row.name == best.name), bases),
        why_none=_why_none(ours) if best is None else None,
        notes=tuple(set_apart(stored, fit, in_use=in_use)),
    )


def _named(stored: Sequence[StoredRun]) -> list[tuple[StoredRun, str]]:
    """Each run with what the suite calls its candidate, and the run where two have one of that name."""
    often = Counter(one.called(Arm.CANDIDATE) for one in stored)
    called = [(one, one.called(Arm.CANDIDATE)) for one in stored]
    return [(one, f"{name} ({one.short})" if often[name] > 1 else name) for one, name in called]


def _order(row: Sized) -> tuple[bool, bool, float, str]:
    usd = row.usd.value if isinstance(row.usd, Figure) else None
    return row.arm is Arm.CANDIDATE, usd is None, usd or 0.0, row.name


def _sized(one: StoredRun, arm: Arm, name: str, asked: Asked, *, in_use: bool) -> Sized:
    """An arm of a run. What a guard objects to is told and does not count; of a run that is unfit, nothing does."""
    outcome = one.outcome if arm is Arm.CANDIDATE else None
    fault = unfit(one.run, one.verdict)
    if fault is not None or one.verdict is None:
        why = f"the run {fault}"
        return Sized(name, one.run, one.short, arm, outcome, why, None, why, why, why)
    suite = Suite.from_stored(one.run.suite)
    doubt = objection(one.verdict, OF_QUALITY)
    quality = doubt or own_accuracy(one.rows, suite, arm, asked)
    level = objection(one.verdict, OF_LOAD) or one.level(arm, in_use=in_use)
    if isinstance(level, str):
        return Sized(name, one.run, one.short, arm, outcome, None, None, quality, level, level)
    correct = doubt or _per_correct(one, suite, arm, asked, level.usd_output)
    return Sized(name, one.run, one.short, arm, outcome, None, level.stage, quality, level.usd, correct)


def _per_correct(one: StoredRun, suite: Suite, arm: Arm, asked: Asked, usd_per_million: Figure) -> Figure | str:
    """Tokens and price are of different requests, so their errors are independent."""
    if isinstance(one.evals, str):
        return one.evals
    tokens = tokens_per_correct(one.evals, suite, arm, asked)
    if isinstance(tokens, str):
        return tokens
    found = product(tokens, usd_per_million)
    return "its tokens cost nothing" if found is None else found.times(_MILLIONTH)


def _saving(ours: Sized, bases: Mapping[str, Sized]) -> Figure | str:
    """Against the baseline that was measured beside it, block by block in the same hour."""
    theirs = bases[ours.run.id].usd
    if isinstance(theirs, str) or isinstance(ours.usd, str):
        return f"the baseline beside it has no cost: {theirs}"
    return saving(ours.usd, theirs) or "the baseline beside it costs nothing"


def _why_none(candidates: Sequence[Sized]) -> str:
    passing = [row for row in candidates if row.passes]
    if passing:
        return f"of what passes nothing has a cost; {passing[0].name}: {passing[0].usd}"
    judged = Counter("without a verdict" if row.outcome is None else row.outcome.value for row in candidates)
    unfinished = sum(row.fault is not None and row.outcome is not None and row.outcome.promotes for row in candidates)
    told = f", {unfinished} of them not fit to be counted" if unfinished else ""
    return f"no candidate passes by its own verdict: {', '.join(f'{n} {word}' for word, n in judged.items())}{told}"
