"""Slow creep: the candidate's total regression since a release some promotions ago.

Ten losses of 1 % inside a margin of 5 % are 10 %. Each promotion's run compared its candidate with a live baseline, so
the regressions of a chain of promotions add up (`stats.meta.sum_chain`), and nothing that changed between runs is in
the sum. These lines never replace a check: they can warn, or block if the suite requires them, and nothing passes by
them.

The chain goes back from release to release: a promoted candidate is the next baseline. If no run promoted a baseline,
the release in service before it is known only from another run that measured it, which leaves a gap in the chain.

Earlier runs of the same two releases without a promotion are listed in the notes: whoever repeats a run until it passes
leaves a trace, and so does whoever ends a run before its verdict.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from benchgate.gate.decision import CannotJudge, Estimate, Rule, decide, inconclusive, log_margin
from benchgate.gate.reasons import Line, change_of, check_line, show_margin, stale_noise
from benchgate.model.deployment import Arm
from benchgate.model.history import PastArm, PastRun, past_arm
from benchgate.model.metric import COST_METRICS, METRICS, names_of
from benchgate.model.run import Evidence
from benchgate.model.verdict import HISTORY, CheckResult, Outcome, Scale, Unit
from benchgate.stats.distributions import Limits
from benchgate.stats.meta import ChainLink, link_across_runs, sum_chain
from benchgate.stats.sequential import holm
from benchgate.suite.schema import Creep, Gate, Suite

_CUMULATIVE_METRICS = names_of(lambda metric: metric.cumulative)
_METHOD = "sum of every promotion's comparison with its live baseline (MOVER, Satterthwaite)"
_CALIBRATE = "run `benchgate calibrate`, so that a comparison across runs can be judged"
_LISTED_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class PastRelease:
    """A release in the chain, and the number of the history's oldest runs that may have come before it.

    `in_service_by` is when a run measured it in service: later promotions are not how it got there. None if the whole
    history is earlier.
    """

    release: str
    older_runs: int
    in_service_by: str | None = None


@dataclass(frozen=True, slots=True)
class Promotion:
    """A run that promoted the release: it was the candidate, and `older` the baseline."""

    run: PastRun
    older: PastRelease


@dataclass(frozen=True, slots=True)
class Gap:
    """A release that no run promoted: `before` measured the `older` one in service, `after` this one as a baseline.

    `after` is None if only the judged run measured it.
    """

    before: PastRun
    after: PastRun | None
    older: PastRelease


StepBack = Promotion | Gap


def judged_baseline(history: tuple[PastRun, ...], baseline: PastArm, candidate: PastArm) -> PastRelease:
    """Return where the chain of a run begins: at its baseline."""
    return PastRelease(_release_names(baseline, candidate)[0], len(history))


def steps_back(history: tuple[PastRun, ...], place: PastRelease) -> tuple[StepBack, ...]:
    """Return every step back from a release, the newest first: the runs that promoted it, whatever their baseline.

    If none did, return a gap to each other release that was a baseline before, by the newest run in which it was.
    """
    names = [_release_names(run.baseline, run.candidate) for run in history]
    latest = place.in_service_by
    before = [i for i in range(place.older_runs - 1, -1, -1) if latest is None or history[i].promoted_at <= latest]
    promoted = [i for i in before if names[i][1] == place.release != names[i][0]]
    if promoted:
        return tuple(Promotion(history[i], PastRelease(names[i][0], i, history[i].started_at)) for i in promoted)
    newest = {names[i][0]: i for i in reversed(before) if names[i][0] != place.release}
    gaps = []
    for release, i in sorted(newest.items(), key=lambda one: -one[1]):
        after = next((history[k] for k in range(i + 1, len(history)) if names[k][0] == place.release), None)
        gaps.append(Gap(history[i], after, PastRelease(release, i + 1, history[i].started_at)))
    return tuple(gaps)


def same_pair(one: tuple[PastArm, PastArm], other: tuple[PastArm, PastArm]) -> bool:
    """Return True if two runs compared the same two releases (each: baseline, candidate)."""
    return _release_names(*one) == _release_names(*other)


def _release_names(baseline: PastArm, candidate: PastArm) -> tuple[str, str]:
    """Return what identifies the two releases of a run: the address only if nothing else differs between them."""
    if baseline.release != candidate.release:
        return baseline.release, candidate.release
    return baseline.fingerprint, candidate.fingerprint


@dataclass(frozen=True, slots=True)
class _Chain:
    """The comparisons from the candidate back to an old release, newest first: the judged run's, then the history's.

    `since[k]` is the run in which the release at the end of k + 2 links was the baseline. `broken` says why the chain
    ends although the history goes on, None if it does not.
    """

    links: tuple[ChainLink, ...]
    since: tuple[PastRun, ...]
    broken: str | None = None


def creep_checks(suite: Suite, judged: Evidence, checks: Sequence[CheckResult]) -> tuple[CheckResult, ...]:
    """Judge the total regression of each required comparison that adds up and has an earlier promotion.

    If the suite requires these lines there is always one, and it says what is missing. Their p-values go through Holm
    among themselves.
    """
    creep = suite.gate.creep
    if creep is None:
        return ()
    found = []
    for check in checks:
        numbers = (check.harm, check.lower, check.upper)
        comparative = check.metric in _CUMULATIVE_METRICS and check.scale is not Scale.ABSOLUTE and check.n >= 2
        usable = check.outcome is not Outcome.INVALID and all(x is not None and math.isfinite(x) for x in numbers)
        if not (check.required and comparative and usable):
            continue
        estimate = _accumulate(check, creep, judged, suite)
        if estimate is not None:
            found.append((check, estimate))
    if not found and creep.required:
        nothing = Estimate(Rule(Unit.POINTS, Scale.DIFFERENCE), creep.points, method=_METHOD, n_unit="promotions")
        nothing.problem = inconclusive(
            "no required check of this run compares both arms with numbers that add up over promotions",
            "measure the baseline beside the candidate and require a latency, a rate or a share, or leave creep out",
        )
        found = [(check, nothing) for check in checks if check.required][:1]
    tested = [(f"creep:{check.id}", estimate.p_value) for check, estimate in found if estimate.p_value is not None]
    adjusted = iter(holm([p_value for _, p_value in tested]))
    return tuple(
        _line(check, estimate, next(adjusted) if estimate.p_value is not None else None, suite.gate, tested)
        for check, estimate in found
    )


def _accumulate(check: CheckResult, creep: Creep, judged: Evidence, suite: Suite) -> Estimate | None:
    if len(judged.run.arms) < len(Arm):
        return None
    alpha = suite.gate.alpha
    chain, falls = _worst_chain(check, judged, creep.releases, suite), METRICS[check.metric].higher_is_better
    counted = chain.links[: creep.releases]
    margin = creep.points if check.scale is not Scale.LOG_RATIO else log_margin(creep.margin, falling=falls)
    rule = Rule(check.unit, check.scale, falls=falls, quiet=True)
    estimate = Estimate(rule, margin, method=_METHOD, n=len(counted), n_unit="promotions", candidate=check.candidate)
    if not chain.since:
        estimate.problem = _nothing_before(chain, judged)
        return estimate if creep.required else None
    # Every run reads the same texts: what is chance in them is the same each time.
    shared = METRICS[check.metric].family == "divergence"
    total = sum_chain(counted, alpha, shared=shared, trace=estimate.trace)
    since = chain.since[len(counted) - 2]
    estimate.value, estimate.limits, estimate.p_value = total.regression, total.limits, total.p_value
    estimate.notes.append(f"since {since.baseline.name}, the baseline of run {since.title}")
    estimate.warn(_best_on_record(chain, estimate, alpha, shared=shared))
    if chain.broken is not None and len(counted) < creep.releases:
        estimate.notes.append(chain.broken)
        if creep.required:
            estimate.warn(chain.broken)
    return estimate


def _nothing_before(chain: _Chain, judged: Evidence) -> CannotJudge:
    """Return WARN for a first run, which cannot have crept, and INCONCLUSIVE for a broken chain.

    A baseline that no run promoted breaks the chain if earlier runs that were blocked had another one.
    """
    if chain.broken is not None:
        return inconclusive(f"nothing can be added up: {chain.broken}", _CALIBRATE)
    baseline, candidate = _past_arms(judged)
    release = judged_baseline((), baseline, candidate)
    other = [one for one in judged.attempts if judged_baseline((), one.baseline, one.candidate) != release]
    if other:
        reason = f"no run promoted {baseline.name}; the baseline of run {other[-1].title} was another"
        return inconclusive(f"nothing can be added up: {reason}", _CALIBRATE)
    reason = "no earlier promotion of this measurement is in the store, so nothing can be added up yet"
    return CannotJudge(Outcome.WARN, reason, "keep one store for all runs; the next promotion is the first to add")


def _worst_chain(check: CheckResult, judged: Evidence, releases: int, suite: Suite) -> _Chain:
    """Return the chain back from the candidate, as far as comparisons follow one another, with the largest regression.

    If several runs promoted one release, each is a chain: a run with another baseline removes none of them. Requires a
    check that adds up.
    """
    known, slo = dict[tuple[PastRelease, int], _Chain](), suite.to_stored().get("slo")

    def worst_from(place: PastRelease, left: int) -> _Chain:
        """Return the worst chain from here by its first `left` links; by all of them if none is left to count."""
        if (place, left) not in known:
            chains = [through(step, left) for step in steps_back(judged.history, place)]
            counted = [sum(link.regression for link in (one.links[:left] if left else one.links)) for one in chains]
            worst = max(range(len(chains)), key=lambda k: (bool(chains[k].links), counted[k]), default=None)
            known[place, left] = _Chain((), ()) if worst is None else chains[worst]
        return known[place, left]

    def through(step: StepBack, left: int) -> _Chain:
        link: ChainLink | str
        if isinstance(step, Gap):
            run, link = step.before, _gap_link(check, step, judged, suite)
        else:
            run, source = step.run, f"run {step.run.title}"
            past = run.checks.get(check.id)
            if past is None or past.scale is not check.scale or past.n < 2:
                link = f"{source} has no {check.id} to add"
            elif not run.counts_as(check.metric, slo):
                link = f"{source} counted good requests by another `slo`"
            else:
                link = ChainLink(past.harm, Limits(past.lower, past.upper), past.alpha, past.n, source, past.freedom)
        if isinstance(link, str):
            return _Chain((), (), link)
        rest = worst_from(step.older, max(left - 1, 0))
        return _Chain((link, *rest.links), (run, *rest.since), rest.broken)

    chain = worst_from(judged_baseline(judged.history, *_past_arms(judged)), releases - 1)
    assert check.harm is not None and check.lower is not None and check.upper is not None, "it adds up"
    limits = Limits(check.lower, check.upper)
    own = ChainLink(check.harm, limits, check.limits_alpha or suite.gate.alpha, check.n, "this run", check.freedom)
    return _Chain((own, *chain.links), chain.since, chain.broken)


def _past_arms(judged: Evidence) -> tuple[PastArm, PastArm]:
    arms, environment = judged.run.arms, judged.run.environment
    return past_arm(arms[Arm.BASELINE], environment), past_arm(arms[Arm.CANDIDATE], environment)


def _gap_link(check: CheckResult, gap: Gap, judged: Evidence, suite: Suite) -> ChainLink | str:
    """Compare a release that no run promoted with the one before it by two runs' baselines, or return why it cannot."""
    if gap.after is None:
        newer, run, new = _past_arms(judged)[0], "now", check.baseline
    else:
        past = gap.after.checks.get(check.id)
        newer, run, new = gap.after.baseline, f"in run {gap.after.title}", past.baseline if past is not None else None
    missing = f"no run promoted {newer.name}, the baseline {run}, after the one of run {gap.before.title}"
    old = gap.before.checks.get(check.id)
    if check.metric in COST_METRICS:  # prices move between runs, and one that fell would hide a regression
        return missing
    if check.scale is not Scale.LOG_RATIO or old is None or new is None or min(old.baseline, new) <= 0:
        return missing
    ratio = math.log(new / old.baseline) * (-1 if METRICS[check.metric].higher_is_better else 1)
    changed = f"{missing}; from one run to the other it {change_of(ratio, check.scale, check.unit)}"
    if newer.hardware != gap.before.baseline.hardware:
        return f"{changed}, on other hardware"
    noise = judged.noise.spread(check.metric, check.statistic, check.stage or "") if judged.noise else None
    if judged.noise is None or noise is None or noise.n < 2:
        return f"{changed}, and how much of that is noise is not known"
    if stale := stale_noise(suite, judged.run, judged.noise):
        return f"{changed}, and the noise profile is stale: {stale[0]}"
    return link_across_runs(ratio, noise.cv_run, noise.n, suite.gate.alpha, f"the time since run {gap.before.title}")


def _best_on_record(chain: _Chain, estimate: Estimate, alpha: float, *, shared: bool) -> str | None:
    """Return a warning if the candidate is shown to be further behind another release than the one looked at.

    The release is the best of all in the chain, so alpha is divided among them.
    """
    among, rule = len(chain.since), estimate.rule
    sums = [sum_chain(chain.links[: k + 2], alpha / among, shared=shared) for k in range(among)]
    best = max(range(among), key=lambda k: sums[k].regression)
    shown = sums[best].p_value <= alpha / among and sums[best].limits.upper >= estimate.margin
    if best == estimate.n - 2 or not shown:
        return None
    behind, run = change_of(sums[best].regression, rule.scale, rule.unit, falls=rule.falls), chain.since[best]
    return f"since the best on record, {run.baseline.name} of run {run.title}, it {behind}"


def _line(
    check: CheckResult, estimate: Estimate, p_holm: float | None, gate: Gate, tested: Sequence[tuple[str, float]]
) -> CheckResult:
    outcome = decide(estimate, p_holm, gate.alpha, gate.warn_fraction)
    over = f"the last {estimate.n} promotions" if estimate.problem is None else "the promotions before"
    advice = None
    if estimate.problem is not None:
        advice = estimate.problem.advice
    elif outcome is Outcome.INCONCLUSIVE:
        advice = "more blocks in future runs make the sum more certain"
    elif outcome is not Outcome.PASS:
        margin = show_margin(estimate.margin, estimate.rule.scale, estimate.rule.unit)
        advice = f"each promotion stayed inside its own margin; find those that took most of the {margin} (--explain)"
    line = Line(
        id=f"creep:{check.id}",
        title=f"{check.title} over {over}",
        family=HISTORY,
        metric=check.metric,
        required=gate.creep is not None and gate.creep.required,
        statistic=check.statistic,
        stage=check.stage,
        task=check.task,
    )
    p_values, ids = [p for _, p in tested], [name for name, _ in tested]
    return check_line(line, estimate, outcome, p_holm, gate, advice=advice, p_values=p_values, ids=ids)


def attempt_notes(judged: Evidence) -> tuple[str, ...]:
    """Return notes on earlier runs of the same two releases that did not promote, or were never judged.

    They change no outcome. Of n runs of a candidate that must not pass, each wrong with probability alpha, one or more
    pass with up to n times that, so a reader must know of the others.
    """
    if len(judged.run.arms) < len(Arm):
        return ()
    arms = _past_arms(judged)
    blocked, unjudged = (
        [one for one in attempts if same_pair((one.baseline, one.candidate), arms)]
        for attempts in (judged.attempts, judged.unjudged)
    )
    blocked = [one for one in blocked if one.outcome in (Outcome.BLOCK, Outcome.INCONCLUSIVE)]
    kinds = (
        ([f"{one.outcome} {one.title}" for one in blocked], f"{'was' if len(blocked) == 1 else 'were'} not promoted"),
        ([one.title for one in unjudged], "had results but no verdict when this one began"),
    )
    notes = []
    for names, what in kinds:
        if names:
            newest = names[::-1][:_LISTED_ATTEMPTS]
            if len(names) > _LISTED_ATTEMPTS:
                newest.append(f"and {len(names) - _LISTED_ATTEMPTS} more")
            runs = f"{len(names)} earlier run{'' if len(names) == 1 else 's'} of this candidate and baseline"
            notes.append(f"{runs} {what} ({', '.join(newest)})")
    return tuple(notes)
