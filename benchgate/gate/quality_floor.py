"""The baseline asked a second time: is it a floor that flips can be counted over at all?

The excess takes off what the two askings differ in, so a second asking that went wrong hides what it is there to show.
Nobody else looks at it: it spoils `flips` and nothing more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from benchgate import units as shown
from benchgate.gate.comparison import quality_of
from benchgate.gate.quality_answers import is_empty, too_many
from benchgate.gate.quality_pairs import MORE_TOKENS, invalid, unclear
from benchgate.gate.rule import Problem
from benchgate.model.deployment import Arm
from benchgate.model.records import FloatArray
from benchgate.model.run import Evidence
from benchgate.stats.item_harm import answers_harm
from benchgate.stats.multiplicity import holm
from benchgate.stats.recovery import ScorePairs

_SURE = 0.1
"""Of alpha: what is asked here is whether something broke, and noise alone must hardly ever look so."""
_HEALTHY = "measure again with a baseline that is healthy throughout"


def broken_answers(evidence: Evidence, units: Mapping[str, tuple[str, ...]], allowed: float) -> Problem | None:
    """Answers of either asking that are empty, or wrong and cut short or unreadable: more than the `allowed` share."""
    return next(_broken_answers(evidence, units, allowed), None)


def _broken_answers(evidence: Evidence, units: Mapping[str, tuple[str, ...]], allowed: float) -> Iterator[Problem]:
    for name, tasks in units.items():
        for repeat, asking in enumerate(("asked", "asked once more")):
            found = [quality_of(evidence, Arm.BASELINE, task, repeat) for task in tasks]
            items = [item for one in found if one is not None for item in one.items if item.error is None]
            for of, what, remedy in ((is_empty, "empty", _HEALTHY), (unclear, "cut short or unreadable", MORE_TOKENS)):
                odd = sum(map(of, items))
                if too_many(odd, len(items), allowed):
                    share = shown.show_percent(odd / len(items))
                    yield invalid(f"{share} of the baseline's answers to {name}, {asking}, are {what}", remedy)


def unlike_askings(askings: Mapping[str, ScorePairs], alpha: float) -> Problem | None:
    """A task on which the second asking is shown to do better or worse than the first: not the same model twice."""
    p_values = [min(1.0, 2 * min(_p_worse(one), _p_worse(_turned(one)))) for one in askings.values()]
    for (name, one), p_value in zip(askings.items(), holm(p_values), strict=True):
        if p_value <= _SURE * alpha:
            first, again = (shown.show_percent(_mean(scores)) for scores in (one.baseline, one.candidate))
            reason = f"the baseline gets {first} of {name} right, and {again} of the same when asked once more"
            return invalid(f"{reason}: what flips there is no noise", _HEALTHY)
    return None


def _p_worse(one: ScorePairs) -> float:
    return answers_harm([one], 0.05).p_harm


def _turned(one: ScorePairs) -> ScorePairs:
    return ScorePairs(one.candidate, one.baseline, one.clusters)


def _mean(scores: FloatArray) -> float:
    return float(scores.mean())
