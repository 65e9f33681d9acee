"""What checks of evals, recorded prompts and fixed texts can show, and those of which nothing can be foretold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchgate.plan.assumed import ALIKE_IN_CLUSTERS, FLIPS, JUDGE_DIFFERS, shadow_differs
from benchgate.plan.evals import PlannedTask
from benchgate.plan.foregone import foregone
from benchgate.plan.judged import JudgedCheck, Known
from benchgate.plan.power_row import CheckPower, bare_row
from benchgate.plan.schedule import Plan
from benchgate.stats.clusters import FEWEST_CLUSTERS
from benchgate.stats.distributions import norm_cdf, norm_ppf
from benchgate.stats.item_power import chance_of_excess_pass, chance_of_pass, excess_sd, independent_items
from benchgate.stats.power import detectable_difference, items_needed, values_needed
from benchgate.stats.share_power import zero_misses_needed
from benchgate.suite.schema import Suite
from benchgate.units import show_percent

_NOT_FORETOLD = {
    "score": "how far the scores of two answers lie apart is not known",
    "capacity": "a search goes where its answers lead",
    "knee": "where a curve bends is not known",
    "cold_start": "how much the starts differ is not known",
}
_TWO_MODELS = "how far two models lie apart at a position is not known"
_MOST_DIFFER = 0.999
_WIDER = "ask more items, or accept a wider margin"


@dataclass(frozen=True, slots=True)
class _Items:
    """The items of the tasks that a check judges together. `worth`: as how many independent ones of one task.

    `fewest_clusters` is of the task with the fewest; None where no items are of one cluster.
    """

    counts: tuple[int, ...]
    worth: int
    fewest_clusters: int | None

    @property
    def n(self) -> int:
        """All of them."""
        return sum(self.counts)


def item_power(one: JudgedCheck, suite: Suite, plan: Plan, known: Known) -> CheckPower:
    """One check that is not of the load."""
    row, metric = bare_row(one, suite), one.check.metric
    if metric in ("accuracy", "flips"):
        items = _items(suite, one.tasks, plan.tasks)
        if items is None:
            return replace(row, note="not foretold: data of its tasks was not read")
        return _of_items(row, one, items, suite.gate.alpha, known)
    if metric in ("shadow_excess", "shadow_validity", "judge_loss"):
        return _of_prompts(row, one, suite, plan, known)
    if metric in ("kld", "same_top1", "perplexity"):
        return _of_texts(row, one, plan, suite.gate.alpha)
    return replace(row, note=f"not foretold: {_NOT_FORETOLD.get(metric, 'nothing is known of it before')}")


def _of_items(row: CheckPower, one: JudgedCheck, items: _Items, alpha: float, known: Known) -> CheckPower:
    """Right or wrong, item by item."""
    row, margin = replace(row, n_unit="items", has=items.n), one.check.margin
    if items.fewest_clusters is not None and items.fewest_clusters < FEWEST_CLUSTERS:
        why = f"its items come in {items.fewest_clusters} clusters, too few to know how much clusters differ"
        return _never(row, why, f"use items of at least {FEWEST_CLUSTERS} clusters")
    if items.fewest_clusters is not None:
        worth = f"its clusters are worth {items.worth:,} independent items"
        row = replace(row, note=f"{worth}, were their items {ALIKE_IN_CLUSTERS:g} alike")
    if margin is None:
        return _floor(row, one.check.slo_value or 0.0, alpha)
    share = _differing(known, "task", one.tasks)
    row = _resting_on(row, share, FLIPS, known)
    if one.check.metric == "flips":
        return _excess(row, margin, items.worth, alpha)
    why_not = foregone(items.counts, margin, alpha)
    row = _paired(row, margin, items.worth, alpha)
    return row if why_not is None else _never(row, why_not, _WIDER)


def _of_prompts(row: CheckPower, one: JudgedCheck, suite: Suite, plan: Plan, known: Known) -> CheckPower:
    """Recorded prompts: how often answers differ, are valid, or are found worse."""
    check, alpha, n = one.check, suite.gate.alpha, len(plan.shadow)
    row = replace(row, n_unit="prompts", has=n)
    if suite.shadow is None or n == 0:
        return replace(row, note="not foretold: there are no prompts")
    if check.margin is None:
        return _floor(row, check.slo_value or 0.0, alpha)
    if check.metric != "shadow_excess":
        row = _resting_on(row, None, FLIPS if check.metric == "shadow_validity" else JUDGE_DIFFERS, known)
        why_not = foregone([n], check.margin, alpha)
        row = _paired(row, check.margin, n, alpha)
        return row if why_not is None else _never(row, why_not.replace("items", "prompts", 1), "send more prompts")
    row = _resting_on(row, _differing(known, "shadow", ()), shadow_differs(suite.shadow), known)
    twice = sum(not prompt.once for prompt in plan.shadow)
    return _excess(row, check.margin, n, alpha) if twice == n else _excess_sampled(row, check.margin, n, twice, alpha)


def _of_texts(row: CheckPower, one: JudgedCheck, plan: Plan, alpha: float) -> CheckPower:
    """Fixed texts, whose positions go together within a piece."""
    row = replace(row, n_unit="positions", has=sum(piece.positions for piece in plan.pieces))
    if 0 < len(plan.pieces) < FEWEST_CLUSTERS:
        why = f"the positions lie in {len(plan.pieces)} pieces of text, and it takes {FEWEST_CLUSTERS}"
        return _never(row, f"{why} to know their spread", "give more texts, or a smaller `divergence.window`")
    if one.check.metric == "same_top1" and row.has:
        return _floor(row, one.check.slo_value or 0.0, alpha)
    return replace(row, note=f"not foretold: {_TWO_MODELS}")


def _paired(row: CheckPower, margin: float, n: int, alpha: float) -> CheckPower:
    """Items paired with themselves, of which the row's share differs between equals."""
    differ = min(row.spread or 0.0, _MOST_DIFFER)
    return replace(
        row,
        measure="difference",
        needs=items_needed(max(differ, margin), margin, alpha=alpha),
        sees_80=detectable_difference(n, differ, alpha=alpha, power=0.8),
        sees_95=detectable_difference(n, differ, alpha=alpha, power=0.95),
        passes=chance_of_pass(n, differ, margin, alpha),
    )


def _excess(row: CheckPower, margin: float, n: int, alpha: float) -> CheckPower:
    """Disagreement beyond the baseline's own: nothing is shown of a baseline that differs from itself too often."""
    itself = row.spread or 0.0
    if chance_of_excess_pass(n, 0.0, margin, alpha) == 0:
        why = f"with {n:,} {row.n_unit}, even where no answer differs, as much as the margin cannot be ruled out"
        return _never(replace(row, measure="difference"), why, _WIDER)
    sd, reach = excess_sd(itself), norm_ppf(1 - alpha)
    return replace(
        row,
        measure="difference",
        needs=values_needed(sd, margin, alpha=alpha),
        sees_80=(reach + norm_ppf(0.8)) * sd / math.sqrt(n),
        sees_95=(reach + norm_ppf(0.95)) * sd / math.sqrt(n),
        passes=chance_of_excess_pass(n, min(itself, 0.66), margin, alpha),
    )


def _excess_sampled(row: CheckPower, margin: float, n: int, twice: int, alpha: float) -> CheckPower:
    """The same where the baseline is asked twice on a part of the prompts: two shares, by the normal law."""
    if twice == 0:
        return _never(row, "no prompt is asked of the baseline twice", "raise `shadow.secondary`")
    itself, reach = row.spread or 0.0, norm_ppf(1 - alpha)
    error = math.sqrt(itself * (1 - itself) * (1 / n + 1 / twice))
    return replace(
        row,
        measure="difference",
        sees_80=(reach + norm_ppf(0.8)) * error,
        sees_95=(reach + norm_ppf(0.95)) * error,
        passes=norm_cdf(margin / error - reach) if error > 0 else None,
        note=f"the baseline is asked {twice:,} of the {n:,} prompts twice",
    )


def _floor(row: CheckPower, floor: float, alpha: float) -> CheckPower:
    """A least share of the candidate's own: shown only of so many items that even all of them right would show it."""
    n = row.has or 0
    row = replace(row, measure="share", needs=zero_misses_needed(1 - floor, alpha) if floor < 1 else None)
    lowest = alpha ** (1 / n) if n else 0.0
    if lowest < floor:
        why = f"even where all {n:,} {row.n_unit} are right, the share may be as low as {show_percent(lowest)}"
        needs = "a lower bound" if row.needs is None else f"at least {row.needs:,} {row.n_unit}, or a lower bound"
        return _never(row, why, f"give it {needs}")
    return replace(row, note="how far from its bound the deployment is by itself is not known")


def _items(suite: Suite, names: Sequence[str], tasks: Sequence[PlannedTask]) -> _Items | None:
    """The items of these tasks and groups of tasks; None where there are none, or where their data was not read."""
    counts, clusters, worths = list[int](), list[int](), list[int]()
    for name in names:
        parts = [task for task in tasks if _is_of(suite, task, name)]
        n, groups = sum(len(task.rows) for task in parts), sum(map(_clusters, parts))
        if n == 0 or any(task.needs is not None for task in parts):
            return None
        clustered = any(task.cluster_key is not None for task in parts)
        counts.append(n)
        clusters += [groups] if clustered else []
        worths.append(independent_items(n, groups, ALIKE_IN_CLUSTERS) if clustered else n)
    if not counts:
        return None
    worth = math.floor(len(worths) ** 2 / sum(1 / one for one in worths))
    return _Items(tuple(counts), worth, min(clusters, default=None))


def _is_of(suite: Suite, task: PlannedTask, name: str) -> bool:
    """Whether a planned task is what a check calls so, or is of the group that it calls so."""
    entry = suite.quality.entry(task.name) if suite.quality is not None else None
    return name in (task.name, entry.name if entry is not None else task.name)


def _clusters(task: PlannedTask) -> int:
    """How many clusters its rows come in; a row that names none is one of its own."""
    if task.cluster_key is None:
        return len(task.rows)
    named = [row.get(task.cluster_key) for row in task.rows]
    return len({str(name) for name in named if name is not None}) + sum(name is None for name in named)


def _differing(known: Known, kind: str, names: Sequence[str]) -> float | None:
    """How often the baseline was seen to differ from itself there: over all items of these names; None if never."""
    seen = [
        one
        for one in (known.noise.disagreement if known.noise is not None else ())
        if one.kind == kind and (not names or one.name in names or one.name.split("/")[0] in names)
    ]
    n = sum(one.n for one in seen)
    return sum(one.share * one.n for one in seen) / n if n else None


def _resting_on(row: CheckPower, measured: float | None, assumed: float, known: Known) -> CheckPower:
    share = assumed if measured is None else measured
    source = "assumed" if measured is None else known.noise_source
    return replace(row, spread=share, source=source, measured=measured is not None and known.calibrated)


def _never(row: CheckPower, why: str, remedy: str) -> CheckPower:
    return replace(row, passes=0.0, cannot=why, remedy=remedy)
