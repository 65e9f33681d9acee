"""Evals that were stopped before their last item, because harm was certain: when that is so, and what it may say.

Only harm may come of it. What was asked until then was chosen by what it showed, so no limit of it is a limit of
anything, and nothing that stopped early can pass; what may be looked at after every item is `stats/e_process`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from benchgate.gate.quality_pairs import MORE_TOKENS, Pairs, forgiven_losses, invalid, pair_task
from benchgate.gate.rule import Finding, Problem
from benchgate.gate.specs import CheckSpec, judged_by, specs_over, unit_name
from benchgate.model.deployment import Arm
from benchgate.model.records import EvalItem, FloatArray
from benchgate.model.run import QualityObservation
from benchgate.model.verdict import Outcome
from benchgate.stats.e_process import anytime_p, independent_differences
from benchgate.stats.limits import Limits
from benchgate.stats.recovery import ScorePairs
from benchgate.suite.schema import Suite

Items = Mapping[str, tuple[Sequence[EvalItem], Sequence[EvalItem]]]
"""Observed task → the baseline's and the candidate's items so far, in planned order."""

_HALVINGS = 20
"""Of the line on which the lower limit of harm is looked for: to a millionth."""


def shows_harm(suite: Suite, items: Items) -> str | None:
    """The id of the first required check whose harm is shown beyond its margin by the items so far; None while none is.

    Each check is held to alpha over the number of required checks, so that the verdict's correction for many checks
    cannot take it back.
    """
    paired = {task: _paired(task, *both) for task, both in items.items()}
    sound = {task: one for task, one in paired.items() if one is not None}
    if len(sound) < len(paired):
        return None
    specs = [spec for spec in specs_over(suite, {t: p.continuous for t, p in sound.items()}) if spec.check.required]
    for spec in specs:
        if spec.check.metric not in ("accuracy", "score") or spec.check.margin is None:
            continue
        judged = _judged(spec, suite, sound)
        right_kind = all(one.continuous == (spec.check.metric == "score") for one in judged)
        if judged and right_kind and _p_beyond(judged, spec.check.margin) <= suite.gate.alpha / len(specs):
            return spec.id
    return None


def stopped_finding(finding: Finding, paired: Sequence[Pairs], alpha: float) -> Finding:
    """What a check on evals that were stopped early found: harm beyond its margin, or nothing it could go by."""
    differences = _rounds([one.scores for one in paired])
    finding = replace(finding, method="betting e-process, valid whenever it is stopped")
    if len(differences) == 0 or finding.margin >= 1 or _p_beyond(paired, finding.margin) > alpha:
        one_each = all(one.tasks == 1 for one in paired)
        if one_each and len(differences) and finding.margin < 1 and anytime_p(differences, finding.margin) <= alpha:
            why = " or ".join(dict.fromkeys(one.why_unclear for one in paired if one.why_unclear))
            return replace(finding, problem=invalid(f"the loss is made by answers {why}", MORE_TOKENS))
        names = ", ".join(one.name for one in paired if one.stopped)
        shown = "what was asked until then does not show harm beyond the margin here"
        reason = f"the evals were stopped early ({names}), and {shown}"
        return replace(finding, problem=Problem(Outcome.INCONCLUSIVE, reason, "run without `quality.stop_early`"))
    return replace(
        finding,
        harm=float(np.mean(differences)),
        limits=Limits(_least_harm(differences, finding.margin, alpha), 1.0),
        p_value=_p_beyond(paired, finding.margin),
        notes=(f"stopped early, after {len(differences)} items of each task: harm was certain",),
    )


def _paired(task: str, baseline: Sequence[EvalItem], candidate: Sequence[EvalItem]) -> Pairs | None:
    by_degrees = any(item.correct is None and item.score is not None for item in (*baseline, *candidate))
    harness = {"stopped_early": True, "scale": "continuous" if by_degrees else "binary"}
    both = [
        QualityObservation(task, arm, tuple(items), len(items), None, harness)
        for arm, items in zip(Arm, (baseline, candidate), strict=True)
    ]
    found = pair_task(*both)
    return None if isinstance(found, Problem) else found


def _judged(spec: CheckSpec, suite: Suite, paired: Mapping[str, Pairs]) -> list[Pairs]:
    """The tasks that a check judges. A group of several tasks is left to the end: its items come in no one order."""
    if spec.task is not None and spec.task in paired:
        return [paired[spec.task]]
    by_name: dict[str, list[Pairs]] = {}
    for task, one in paired.items():
        by_name.setdefault(unit_name(suite, task), []).append(one)
    if any(len(parts) > 1 for parts in by_name.values()):
        by_name = {name: parts for name, parts in by_name.items() if len(parts) == 1 and spec.task == name}
    if spec.task is not None and spec.task != "each":
        return by_name.get(spec.task, [])
    names = {name: parts[0].continuous for name, parts in by_name.items()}
    return [by_name[name][0] for name in judged_by(spec.check, suite.gate.checks, names)]


def _p_beyond(paired: Sequence[Pairs], margin: float) -> float:
    """p-value of "harm is within the margin", were every loss forgiven that says nothing about the model.

    1 where there is no such order: a group's items stand task by task, and were not asked so. 1 for a margin beyond 1.
    """
    if not margin < 1 or any(one.tasks > 1 for one in paired):
        return 1.0
    return anytime_p(_rounds([forgiven_losses(one) for one in paired]), margin)


def _rounds(tasks: Sequence[ScorePairs]) -> FloatArray:
    """The differences in order; of several tasks the mean over tasks of the first item of each, of the second, and on.

    Tasks are asked side by side, so a round is known before the next one is asked; it ends where the shortest ends.
    """
    parts = [independent_differences(list(one.baseline), list(one.candidate), one.clusters) for one in tasks]
    rounds = min((len(part) for part in parts), default=0)
    if rounds == 0:
        return np.zeros(0)
    mean: FloatArray = np.mean([part[:rounds] for part in parts], axis=0)
    return mean


def _least_harm(differences: FloatArray, margin: float, alpha: float) -> float:
    """The largest harm that is refuted as the most there is: at least the margin, were nothing forgiven."""
    low, high = margin, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if anytime_p(differences, middle) <= alpha else (low, middle)
    return low
