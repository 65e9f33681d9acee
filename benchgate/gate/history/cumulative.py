"""Cumulative regression over past promotions, and earlier attempts to promote the same candidate.

Ten losses of 1 % inside a margin of 5 % add up to 10 %. Each promotion's run compared its candidate with its live
baseline, so these comparisons form a chain back from the candidate, and their sum (`stats.meta`) excludes changes
between runs. If no run promoted a release, the chain has a gap, bridged by what two runs measured of both releases as
baselines. The sum never replaces a check: it can warn, or block where the suite requires it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchgate.gate.check_results import Line, check_line
from benchgate.gate.decision import Finding, Problem, decide
from benchgate.gate.derivation import creep_steps
from benchgate.gate.reasons import change_of, show_margin
from benchgate.model.deployment import Arm
from benchgate.model.history import Attempt, PastArm, PastRun, past_arm
from benchgate.model.metric import COST_METRICS, METRICS, names_of
from benchgate.model.run import Evidence
from benchgate.model.verdict import HISTORY, CheckResult, Outcome, Scale, Unit
from benchgate.stats.distributions import Limits
from benchgate.stats.meta import ChainLink, link_across_runs, sum_chain
from benchgate.stats.sequential import holm
from benchgate.suite.schema import Creep, Gate, Suite


@dataclass(frozen=True, slots=True)
class Position:
    """Release in the chain of promotions, and the number of the history's oldest runs that may precede it.

    `by` is when a run measured it in service: later promotions cannot have introduced it. None: any run may have.
    """

    release: str
    until: int
    by: str | None = None


@dataclass(frozen=True, slots=True)
class Promotion:
    """Run that promoted the release, and the release that it replaced (`previous`)."""

    run: PastRun
    previous: Position


@dataclass(frozen=True, slots=True)
class Gap:
    """Release that no run promoted: `before` measured its predecessor as a baseline, `after` the release itself.

    `after` is None if only the judged run did.
    """

    before: PastRun
    after: PastRun | None
    previous: Position


Hop = Promotion | Gap


def chain_start(history: tuple[PastRun, ...], baseline: PastArm, candidate: PastArm) -> Position:
    """Return the start of the chain: the run's baseline."""
    return Position(_names(baseline, candidate)[0], len(history))


def steps_back(history: tuple[PastRun, ...], at: Position) -> tuple[Hop, ...]:
    """Return the steps back from a release, newest first: each run that promoted it.

    If none did, return a gap to each earlier baseline, by the newest run that measured it.
    """
    names = [_names(run.baseline, run.candidate) for run in history]
    before = [i for i in range(at.until - 1, -1, -1) if at.by is None or history[i].promoted_at <= at.by]
    promoted = [i for i in before if names[i][1] == at.release != names[i][0]]
    if promoted:
        return tuple(Promotion(history[i], Position(names[i][0], i, history[i].started_at)) for i in promoted)
    newest = {names[i][0]: i for i in reversed(before) if names[i][0] != at.release}
    ways = sorted(newest.items(), key=lambda one: -one[1])
    found = []
    for release, i in ways:
        after = next((history[k] for k in range(i + 1, len(history)) if names[k][0] == at.release), None)
        found.append(Gap(history[i], after, Position(release, i + 1, history[i].started_at)))
    return tuple(found)


def is_same_pair(one: tuple[PastArm, PastArm], other: tuple[PastArm, PastArm]) -> bool:
    """Return True if two runs compared the same two releases (each: baseline, candidate)."""
    return _names(*one) == _names(*other)


def _names(baseline: PastArm, candidate: PastArm) -> tuple[str, str]:
    """Return keys of the two releases of a run. They include the address only if nothing else differs."""
    if baseline.release != candidate.release:
        return baseline.release, candidate.release
    return baseline.fingerprint, candidate.fingerprint


CUMULATIVE_METRICS = names_of(lambda metric: metric.cumulative)
"""Metrics whose regressions, as log ratios or differences of shares, add up over promotions."""


@dataclass(frozen=True, slots=True)
class _Way:
    """Chain of comparisons from the candidate back to an old release, newest first, beginning with the judged run.

    `since[k]` is the run in which the release at the end of k + 2 links was the baseline. `broken` is the reason for a
    chain that ends before the history does.
    """

    links: tuple[ChainLink, ...]
    since: tuple[PastRun, ...]
    broken: str | None = None


def creep_checks(suite: Suite, judged: Evidence, checks: Sequence[CheckResult]) -> tuple[CheckResult, ...]:
    """Return a cumulative check for each required comparison with a known earlier promotion.

    If the suite requires cumulative checks, there is at least one, which reports what is missing. Holm's correction
    covers these checks among themselves.
    """
    creep = suite.gate.creep
    if creep is None:
        return ()
    lines = [
        (check, found)
        for check in checks
        if _adds_up(check) and (found := _found(check, creep, judged, suite.gate.alpha)) is not None
    ]
    if not lines and creep.required:
        lines = [(check, _nothing_to_add(creep)) for check in checks if check.required][:1]
    tested = [(f"creep:{check.id}", found.p_value) for check, found in lines if found.p_value is not None]
    adjusted = iter(holm([p_value for _, p_value in tested]))
    return tuple(
        _result(check, found, next(adjusted) if found.p_value is not None else None, creep.required, suite.gate, tested)
        for check, found in lines
    )


def _nothing_to_add(creep: Creep) -> Finding:
    """Return a required check without input as INCONCLUSIVE instead of omitting it."""
    reason = "no required check of this run compares both arms with numbers that add up over promotions"
    advice = "measure the baseline with the candidate and require a latency, a rate or a share, or leave creep out"
    return Finding(
        unit=Unit.POINTS,
        scale=Scale.DIFFERENCE,
        margin=creep.points,
        method=_METHOD,
        n=0,
        n_unit="promotions",
        problem=Problem(Outcome.INCONCLUSIVE, reason, advice),
    )


def _adds_up(check: CheckResult) -> bool:
    """Return True for a required comparison of both arms that is not INVALID and has finite numbers."""
    if not check.required or check.metric not in CUMULATIVE_METRICS or check.scale is Scale.ABSOLUTE or check.n < 2:
        return False
    numbers = (check.harm, check.lower, check.upper)
    return check.outcome is not Outcome.INVALID and all(one is not None and math.isfinite(one) for one in numbers)


def _found(check: CheckResult, creep: Creep, judged: Evidence, alpha: float) -> Finding | None:
    if len(judged.run.arms) < len(Arm):
        return None
    way = _worst_way(check, judged, creep.releases, alpha)
    counted = way.links[: creep.releases]
    empty = Finding(
        unit=check.unit,
        scale=check.scale,
        margin=_margin(check, creep),
        method=_METHOD,
        n=len(counted),
        n_unit="promotions",
        candidate=check.candidate,
        falls=METRICS[check.metric].higher_is_better,
        quiet=True,
    )
    if not way.since:
        return replace(empty, problem=_nothing_before(way, judged)) if creep.required else None
    total, since = sum_chain(counted, alpha), way.since[len(counted) - 2]
    missing = way.broken if len(counted) < creep.releases else None
    note = f"since {since.baseline.name}, the baseline of run {since.told}"
    return replace(
        empty,
        harm=total.harm,
        limits=total.limits,
        p_value=total.p_harm,
        warning=_best_on_record(way, len(counted), empty, alpha) or (missing if creep.required else None),
        notes=(note, *([missing] if missing is not None else [])),
        steps=creep_steps(counted, way.since, total, alpha),
    )


def _nothing_before(way: _Way, judged: Evidence) -> Problem:
    """Return why there is nothing to add up: WARN for a first run, INCONCLUSIVE for a broken chain.

    A baseline that no run promoted is INCONCLUSIVE too if earlier blocked runs had another baseline.
    """
    if way.broken is not None:
        return Problem(Outcome.INCONCLUSIVE, f"nothing can be added up: {way.broken}", _CALIBRATE)
    baseline, candidate = (past_arm(judged.run.arms[arm], judged.run.environment) for arm in Arm)
    release = _names(baseline, candidate)[0]
    other = [one for one in judged.attempts if _names(one.baseline, one.candidate)[0] != release]
    if other:
        reason = f"no run promoted {baseline.name}; the baseline of run {other[-1].told} was another"
        return Problem(Outcome.INCONCLUSIVE, f"nothing can be added up: {reason}", _CALIBRATE)
    reason = "no earlier promotion of this measurement is in the store, so nothing can be added up yet"
    return Problem(Outcome.WARN, reason, "keep one store for all runs; the next promotion is the first to add")


def _worst_way(check: CheckResult, judged: Evidence, releases: int, alpha: float) -> _Way:
    """Return the chain back from the candidate with the largest cumulative regression.

    If several runs promoted one release, each begins a chain of its own. Requires a check for which `_adds_up` holds.
    """
    known = dict[tuple[Position, int], _Way]()

    def back(position: Position, left: int) -> _Way:
        """Return the worst chain from here by its first `left` links, or by all of them if `left` is 0."""
        if (position, left) not in known:
            ways = [_through(hop, left) for hop in steps_back(judged.history, position)]
            counted = [sum(link.harm for link in (way.links[:left] if left else way.links)) for way in ways]
            best = max(range(len(ways)), key=lambda k: (bool(ways[k].links), counted[k]), default=None)
            known[position, left] = _Way((), ()) if best is None else ways[best]
        return known[position, left]

    def _through(hop: Hop, left: int) -> _Way:
        link = _promoted(check, hop) if isinstance(hop, Promotion) else _across(check, hop, judged, alpha)
        if isinstance(link, str):
            return _Way((), (), link)
        rest = back(hop.previous, max(left - 1, 0))
        run = hop.run if isinstance(hop, Promotion) else hop.before
        return _Way((link, *rest.links), (run, *rest.since), rest.broken)

    baseline, candidate = (past_arm(judged.run.arms[arm], judged.run.environment) for arm in Arm)
    assert check.harm is not None and check.lower is not None and check.upper is not None, "the check adds up"
    own = ChainLink(check.harm, Limits(check.lower, check.upper), check.limits_alpha or alpha, check.n)
    way = back(chain_start(judged.history, baseline, candidate), releases - 1)
    return _Way((own, *way.links), way.since, way.broken)


def _promoted(check: CheckResult, hop: Promotion) -> ChainLink | str:
    past = hop.run.checks.get(check.id)
    if past is None or past.scale is not check.scale or past.n < 2:
        return f"run {hop.run.told} has no {check.id} to add"
    return ChainLink(past.harm, Limits(past.lower, past.upper), past.alpha, past.n)


def _across(check: CheckResult, hop: Gap, judged: Evidence, alpha: float) -> ChainLink | str:
    """Return the link over a gap, from what two runs measured of both releases as baselines, or why there is none."""
    if hop.after is None:
        newer, day, new = past_arm(judged.run.arms[Arm.BASELINE], judged.run.environment), "now", check.baseline
    else:
        past = hop.after.checks.get(check.id)
        newer, day, new = hop.after.baseline, f"in run {hop.after.told}", past.baseline if past is not None else None
    missing = f"no run promoted {newer.name} (the baseline {day}) since run {hop.before.told}"
    old = hop.before.checks.get(check.id)
    if check.metric in COST_METRICS:  # a fallen price would hide a regression
        return missing
    if check.scale is not Scale.LOG_RATIO or old is None or new is None or min(old.baseline, new) <= 0:
        return missing
    ratio = math.log(new / old.baseline) * (-1 if METRICS[check.metric].higher_is_better else 1)
    observed = f"{missing}; between the two runs it {change_of(ratio, check.scale, check.unit)}"
    if newer.hardware != hop.before.baseline.hardware:
        return f"{observed}, on other hardware"
    noise = judged.noise.spread(check.metric, check.statistic, check.stage or "") if judged.noise else None
    if noise is None or noise.n < 2:
        return f"{observed}, and its noise is not known"
    return link_across_runs(ratio, noise.cv_run, noise.n, alpha)


def _margin(check: CheckResult, creep: Creep) -> float:
    if check.scale is not Scale.LOG_RATIO:
        return creep.points
    return -math.log1p(-creep.margin) if METRICS[check.metric].higher_is_better else math.log1p(creep.margin)


def _best_on_record(way: _Way, counted: int, line: Finding, alpha: float) -> str | None:
    """Describe the release with the largest significant regression, if it is not the one that the check compares.

    The release is selected among all in the chain, so they share alpha.
    """
    among = len(way.since)
    sums = [sum_chain(way.links[: k + 2], alpha / among) for k in range(among)]
    best = max(range(among), key=lambda k: sums[k].harm)
    is_shown = sums[best].p_harm <= alpha / among and sums[best].limits.upper >= line.margin
    if best == counted - 2 or not is_shown:
        return None
    behind, run = change_of(sums[best].harm, line.scale, line.unit, falls=line.falls), way.since[best]
    return f"since the best on record, {run.baseline.name} of run {run.told}, it {behind}"


def _result(
    check: CheckResult,
    found: Finding,
    p_holm: float | None,
    required: bool,
    gate: Gate,
    tested: Sequence[tuple[str, float]],
) -> CheckResult:
    outcome = decide(found, p_holm, gate.alpha, gate.warn_fraction)
    over = f"the last {found.n} promotions" if found.problem is None else "the promotions before"
    line = Line(
        id=f"creep:{check.id}",
        title=f"{check.title} over {over}",
        family=HISTORY,
        metric=check.metric,
        required=required,
        statistic=check.statistic,
        stage=check.stage,
        task=check.task,
    )
    return check_line(
        line,
        found,
        outcome,
        p_holm,
        gate,
        advice=_advice(found, outcome),
        p_values=[p for _, p in tested],
        ids=[name for name, _ in tested],
    )


def _advice(found: Finding, outcome: Outcome) -> str | None:
    if found.problem is not None:
        return found.problem.advice
    if outcome is Outcome.PASS:
        return None
    if outcome is Outcome.INCONCLUSIVE:
        return "more blocks in future runs narrow the confidence interval of the sum"
    margin = show_margin(found.margin, found.scale, found.unit)
    return f"each promotion stayed inside its own margin; --explain lists those that used most of the {margin}"


_METHOD = "sum of every promotion's comparison with its live baseline (MOVER, Satterthwaite)"
_CALIBRATE = "run `benchgate calibrate`, so that a comparison across runs can be judged"


_SHOWN = 5


def attempt_notes(judged: Evidence) -> tuple[str, ...]:
    """Describe earlier runs of this candidate and baseline that were not promoted or have no verdict.

    The notes change no outcome. A candidate that must not pass does so in at least one of n runs with a probability of
    up to n times alpha, so a reader must know about the others.
    """
    if len(judged.run.arms) < len(Arm):
        return ()
    blocked = _of_same_pair(judged, judged.attempts)
    blocked = [one for one in blocked if one.outcome in (Outcome.BLOCK, Outcome.INCONCLUSIVE)]
    unjudged = _of_same_pair(judged, judged.unjudged)
    notes = []
    if blocked:
        listed = _list_attempts([f"{one.outcome} {one.told}" for one in reversed(blocked)])
        notes.append(f"{_many(blocked)} {'was' if len(blocked) == 1 else 'were'} not promoted ({listed})")
    if unjudged:
        listed = _list_attempts([one.told for one in reversed(unjudged)])
        notes.append(f"{_many(unjudged)} had results but no verdict when this one began ({listed})")
    return tuple(notes)


def _of_same_pair(judged: Evidence, attempts: Sequence[Attempt]) -> list[Attempt]:
    arms = judged.run.arms
    baseline, candidate = (past_arm(arms[arm], judged.run.environment) for arm in Arm)
    return [one for one in attempts if is_same_pair((one.baseline, one.candidate), (baseline, candidate))]


def _many(found: Sequence[Attempt]) -> str:
    return f"{len(found)} earlier run{'' if len(found) == 1 else 's'} of this candidate and baseline"


def _list_attempts(names: Sequence[str]) -> str:
    more = [f"and {len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
    return ", ".join([*names[:_SHOWN], *more])
