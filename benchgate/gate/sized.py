"""One deployment as one run measured it, for a table of candidates: how good it is, what it costs, whether it passes.

Where a number is not known, or does not count, a text says why.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date

from benchgate.cost.frontier import Option, Stand
from benchgate.gate.alike_runs import Newer, StoredRun, WaivedCheck
from benchgate.gate.own_quality import Asked, own_accuracy, tokens_per_correct
from benchgate.gate.unfit import OF_LOAD, OF_QUALITY, objection, unfit
from benchgate.model.deployment import Arm
from benchgate.model.run import Run
from benchgate.model.verdict import Outcome
from benchgate.stats.limits import Limits
from benchgate.stats.recovered import Figure, product, ratio
from benchgate.suite.schema import Suite

_MILLIONTH = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Sized:
    """A row of the table.

    `outcome` is of the run; None of the baseline, which is judged by none, and of a run without a verdict. `fault`
    says why nothing of it counts; `apart` why it counts by itself and not beside the others; `held_back` why it does
    not pass although its verdict lets it through. `quality` is a share, `usd` dollars per million tokens at `stage`,
    `share` those over what the baseline beside it costs, `usd_per_correct` dollars for the output tokens that the evals
    took for a right answer, at the price of that stage's output tokens. `judged_by` is the identity of its policy.
    `unchecked` says why its numbers are stored ones that nothing can check.
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
    share: Figure | str = "it was not looked at"
    apart: str | None = None
    held_back: str | None = None
    waived: tuple[WaivedCheck, ...] = ()
    newer: Newer | None = None
    judged_by: str | None = None
    stand: Stand | None = None
    unchecked: str | None = None

    @property
    def passes(self) -> bool:
        """Whether its own verdict lets it be promoted, and nothing has come up since."""
        fit = self.fault is None and self.held_back is None
        return fit and self.outcome is not None and self.outcome.promotes

    @property
    def option(self) -> Option:
        """What of it counts among the others."""
        if self.apart is not None:
            return Option(self.name, None, None, None, passes=False)
        quality, usd, share = (one if isinstance(one, Figure) else None for one in (self.quality, self.usd, self.share))
        return Option(self.name, quality, usd, share, self.passes)


def sized_baseline(one: StoredRun, asked: Asked, *, in_use: bool) -> Sized:
    """That of a run: what its own candidate's cost is a share of."""
    found = _measured(one, Arm.BASELINE, f"{one.called(Arm.BASELINE)} (baseline)", asked, in_use=in_use)
    share = Figure(1.0, Limits(1.0, 1.0)) if isinstance(found.usd, Figure) else found.usd
    return replace(found, share=share, unchecked=one.unchecked)


def sized_candidate(
    one: StoredRun, name: str, baseline: Sized, asked: Asked, *, in_use: bool, as_of: date | None
) -> Sized:
    """That of a run under this name, beside its own baseline. `as_of`: the day for waivers; None where none holds."""
    found = _measured(one, Arm.CANDIDATE, name, asked, in_use=in_use)
    return replace(
        found,
        outcome=one.outcome,
        share=_share(found.usd, baseline.usd),
        held_back=_held_back(one, as_of),
        waived=one.waived,
        newer=one.newer,
        judged_by=one.judged_by,
        unchecked=one.unchecked,
    )


def _measured(one: StoredRun, arm: Arm, name: str, asked: Asked, *, in_use: bool) -> Sized:
    """What a guard objects to is told and does not count; of a run that is unfit, nothing does."""
    fault = unfit(one.run, one.verdict)
    if fault is not None or one.verdict is None:
        why = f"the run {fault}"
        return Sized(name, one.run, one.short, arm, None, why, None, why, why, why)
    suite = Suite.from_stored(one.run.suite)
    doubt = objection(one.verdict, OF_QUALITY)
    quality = doubt or own_accuracy(one.rows, suite, arm, asked)
    level = objection(one.verdict, OF_LOAD) or one.level(arm, in_use=in_use)
    if isinstance(level, str):
        return Sized(name, one.run, one.short, arm, None, None, None, quality, level, level)
    correct = doubt or _per_correct(one, suite, arm, asked, level.usd_output)
    return Sized(name, one.run, one.short, arm, None, None, level.stage, quality, level.usd, correct)


def _per_correct(one: StoredRun, suite: Suite, arm: Arm, asked: Asked, usd_per_million: Figure) -> Figure | str:
    """Tokens and price are of different requests, so their errors are independent.

    Both are by the server's own count: one that counts half of its tokens takes half as many for an answer, and sells
    each for twice as much. Where its count under load does not fit what it sent, a guard has taken the cost away.
    """
    if isinstance(one.evals, str):
        return one.evals
    tokens = tokens_per_correct(one.evals, suite, arm, asked)
    if isinstance(tokens, str):
        return tokens
    found = product(tokens, usd_per_million)
    return "its tokens cost nothing" if found is None else found.times(_MILLIONTH)


def _share(ours: Figure | str, theirs: Figure | str) -> Figure | str:
    """Measured block by block in the same hour, so limits that take the two for independent are not too narrow."""
    if isinstance(ours, str):
        return ours
    if isinstance(theirs, str):
        return f"the baseline beside it has no cost: {theirs}"
    return ratio(ours, theirs) or "the baseline beside it costs nothing"


def _held_back(one: StoredRun, as_of: date | None) -> str | None:
    """What has come up since its verdict let it through."""
    if one.outcome is None or not one.outcome.promotes:
        return None
    if one.withdrawn is not None:
        return f"its promotion was withdrawn ({one.withdrawn})"
    ended = [waived for waived in one.waived if as_of is None or waived.expires < as_of]
    if ended:
        first = min(ended, key=lambda waived: waived.expires)
        why = "waivers are not counted here" if as_of is None else f"its waiver held until {first.expires}"
        return f"its check {first.check} is {first.outcome}: {why}"
    newer = one.newer
    if newer is not None and (newer.outcome is None or not newer.outcome.promotes):
        return f"the same candidate was measured again in {newer.told}"
    return None
