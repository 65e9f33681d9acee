"""Slow creep at its edges: links that are missing, comparisons across runs, and which release is furthest behind."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from scipy import stats as scipy_stats

from benchgate.gate.cumulative import creep_checks
from benchgate.gate.judge import judge
from benchgate.model.deployment import Arm
from benchgate.model.history import PastArm, PastRun
from benchgate.model.noise import NoiseProfile, NoiseSpread, noise_key
from benchgate.model.run import Evidence
from benchgate.model.verdict import CheckResult, Outcome, Scale, Unit
from benchgate.stats.distributions import Limits
from benchgate.stats.meta import ChainLink, sum_chain
from benchgate.suite.schema import Suite
from tests.core.test_gate_creep import CHECK, arm, chain, last_baseline, promoted, run_of, suite
from tests.fakes.measured import Effect, Noise, SuiteText, measured

Line = dict[str, object]


def of_version(evidence: Evidence, version: str = "1") -> Evidence:
    arms = {arm: replace(one, facts={**one.facts, "engine_version": version}) for arm, one in evidence.run.arms.items()}
    return replace(evidence, run=replace(evidence.run, arms=arms))


REQUIRED = suite(required=True)
RUN = of_version(run_of(REQUIRED))
OWN: CheckResult = judge(REQUIRED, RUN).checks[0]
HERE = last_baseline(RUN).hardware


def line_of(policy: Suite, evidence: Evidence, *checks: CheckResult) -> CheckResult:
    (line,) = creep_checks(policy, evidence, checks or (OWN,))
    return line


def with_history(*history: PastRun) -> Evidence:
    return replace(RUN, history=history)


def at(one: PastRun, **changed: object) -> PastRun:
    """The same run with its comparison changed."""
    past = replace(one.checks[CHECK], **changed)  # type: ignore[arg-type]  # fields of the check by name
    return replace(one, checks={CHECK: past})


def here(name: str) -> PastArm:
    """A release on this run's hardware."""
    return replace(arm(name), hardware=HERE)


# Missing links


@pytest.mark.parametrize("changed", [None, {"scale": Scale.DIFFERENCE}, {"n": 1}])
def test_a_run_that_has_no_such_comparison_ends_the_way_and_says_so(changed: dict[str, object] | None) -> None:
    whole = chain(RUN, CHECK, [0.01] * 4)
    for gone, outcome in ((3, Outcome.INCONCLUSIVE), (1, Outcome.WARN)):
        broken = replace(whole[gone], checks={}) if changed is None else at(whole[gone], **changed)
        line = line_of(REQUIRED, with_history(*whole[:gone], broken, *whole[gone + 1 :]))
        assert line.outcome is outcome
        assert f"run {broken.title} has no {CHECK} to add" in " ".join([line.reason, *line.notes])
        assert line.n == 4 - gone
    assert line_of(REQUIRED, with_history(*whole[:1], at(whole[1], n=2), *whole[2:])).n == 5


def test_a_way_that_is_long_enough_needs_nothing_beyond_it() -> None:
    whole = chain(RUN, CHECK, [0.0] * 4)
    broken = (replace(whole[0], checks={}), *whole[1:])
    for releases, outcome in ((4, Outcome.PASS), (5, Outcome.WARN)):
        line = line_of(suite(required=True, releases=releases), with_history(*broken))
        assert (line.outcome, line.n) == (outcome, 4)
        assert any("has no" in note for note in line.notes) is (outcome is Outcome.WARN)
    advisory = line_of(suite(releases=5), with_history(*broken))
    assert advisory.outcome is Outcome.PASS
    assert any("has no" in note for note in advisory.notes)


# Across runs


def calibrated(evidence: Evidence, noise: NoiseSpread, measured_at: str = RUN.run.started_at) -> Evidence:
    key = noise_key(evidence.run.arms[Arm.BASELINE], evidence.run.environment, evidence.run.measurement_sha256)
    return replace(evidence, noise=NoiseProfile(key, measured_at, "calibration", 9, (noise,), engine_version="1"))


def across(
    noise: NoiseSpread | None, old: PastRun, *, check: CheckResult = OWN, measured_at: str = RUN.run.started_at
) -> CheckResult:
    """A baseline that no run promoted, after the one of an old run."""
    evidence = with_history(old)
    return line_of(REQUIRED, evidence if noise is None else calibrated(evidence, noise, measured_at), check)


SPREAD = NoiseSpread("ttft", "p50", "c4", 0.02, 0.01, 9)
BEFORE = promoted(0, here("r0"), here("r1"), 0.0, CHECK)


def test_a_release_that_no_run_promoted_is_compared_across_runs_with_their_noise() -> None:
    line = across(SPREAD, BEFORE)
    assert OWN.baseline is not None and OWN.harm is not None
    ratio = math.log(OWN.baseline / 0.05)
    assert line.n == 2
    assert line.harm == pytest.approx(OWN.harm + ratio)
    reach = float(scipy_stats.t.ppf(0.95, 8)) * math.sqrt(2) * 0.02
    assert line.upper is not None and line.harm is not None
    assert 0.8 * reach < line.upper - line.harm < 1.1 * reach  # this run's own is next to nothing beside it
    assert line.outcome is Outcome.BLOCK  # 6 % across the runs, and this run's own
    assert across(SPREAD, at(BEFORE, baseline=OWN.baseline)).outcome is Outcome.PASS
    assert line.notes[0] == f"since r0, the baseline of run {BEFORE.title}"


def test_a_stale_noise_profile_adds_nothing() -> None:
    line = across(SPREAD, at(BEFORE, baseline=OWN.baseline), measured_at="2020-01-01T00:00:00Z")
    assert line.outcome is Outcome.INCONCLUSIVE
    assert "the noise profile is stale: it is" in line.reason


def test_goodput_by_another_slo_adds_nothing_and_latencies_do() -> None:
    goodput = replace(OWN, id="goodput@c4", metric="goodput", unit=Unit.POINTS, scale=Scale.DIFFERENCE)
    for check, adds in ((goodput, False), (OWN, True)):
        past = promoted(0, here("r0"), last_baseline(RUN), 0.0, check.id)
        past = replace(past, checks={check.id: replace(past.checks[check.id], unit=check.unit, scale=check.scale)})
        line = line_of(REQUIRED, with_history(replace(past, slo={"ttft": 9.0})), check)
        assert ("by another `slo`" not in line.reason) is adds
        same = line_of(REQUIRED, with_history(replace(past, slo=REQUIRED.to_stored()["slo"])), check)
        assert "by another `slo`" not in same.reason


@pytest.mark.parametrize(
    ("noise", "old", "says"),
    [
        (None, BEFORE, "how much of that is noise is not known"),
        (replace(SPREAD, n=1), BEFORE, "how much of that is noise is not known"),
        (replace(SPREAD, statistic="p95"), BEFORE, "how much of that is noise is not known"),
        (SPREAD, replace(BEFORE, baseline=arm("r0")), "on other hardware"),
        (SPREAD, replace(BEFORE, checks={}), "no run promoted baseline, the baseline now"),
        (SPREAD, at(BEFORE, baseline=0.0), "no run promoted baseline, the baseline now"),
        (SPREAD, at(BEFORE, baseline=-1.0), "no run promoted baseline, the baseline now"),
    ],
)
def test_what_nobody_can_compare_across_runs_is_not_added(noise: NoiseSpread | None, old: PastRun, says: str) -> None:
    line = across(noise, old)
    assert line.outcome is Outcome.INCONCLUSIVE
    assert says in line.reason
    assert (line.harm, line.upper, line.p_value) == (None, None, None)


def test_a_spread_of_two_pairs_is_one() -> None:
    assert across(replace(SPREAD, n=2), BEFORE).n == 2


def test_shares_are_never_compared_across_runs() -> None:
    line = across(SPREAD, at(BEFORE, scale=Scale.DIFFERENCE), check=replace(OWN, scale=Scale.DIFFERENCE))
    assert line.outcome is Outcome.INCONCLUSIVE
    assert "from one run to the other" not in line.reason


def test_a_rate_that_fell_across_runs_is_harm() -> None:
    rate = replace(OWN, metric="output_throughput", statistic=None, unit=Unit.TOKENS_PER_S, harm=0.0, baseline=80.0)
    old = at(BEFORE, baseline=100.0, candidate=100.0)
    line = across(replace(SPREAD, metric="output_throughput", statistic=None), old, check=rate)
    assert line.harm == pytest.approx(math.log(100 / 80))
    assert line.margin == pytest.approx(-math.log(0.9))


def test_a_gap_in_the_middle_is_compared_by_the_run_that_first_had_that_baseline() -> None:
    """r0 → r1, then r2 from nowhere, beside which this run's baseline was promoted."""
    late = at(promoted(1, here("r2"), last_baseline(RUN), 0.01, CHECK), baseline=0.06)
    evidence = calibrated(with_history(BEFORE, late), SPREAD)
    line = line_of(REQUIRED, evidence)
    assert OWN.harm is not None
    assert line.n == 3
    assert line.harm == pytest.approx(OWN.harm + late.checks[CHECK].harm + math.log(0.06 / 0.05))
    for broken in (at(late, baseline=0.0), replace(evidence.history[1], baseline=arm("r2"))):
        short = line_of(REQUIRED, replace(evidence, history=(BEFORE, broken)))
        assert (short.n, short.outcome) == (2, Outcome.WARN)


# What adds up


@pytest.mark.parametrize(
    "changed",
    [
        {"required": False}, {"metric": "flips"}, {"scale": Scale.ABSOLUTE}, {"n": 1}, {"outcome": Outcome.INVALID},
        {"harm": None}, {"lower": None}, {"upper": None}, {"harm": math.inf}, {"lower": -math.inf}, {"upper": math.inf},
        {"upper": math.nan},
    ],
)  # fmt: skip
def test_what_has_no_numbers_of_its_own_is_not_added_up(changed: dict[str, object]) -> None:
    check = replace(OWN, **changed)  # type: ignore[arg-type]  # fields of the check by name
    evidence = with_history(*chain(RUN, CHECK, [0.01] * 4))
    assert creep_checks(suite(), evidence, (check,)) == ()
    lines = creep_checks(REQUIRED, evidence, (check, replace(OWN, id="other", metric="capacity")))
    assert [line.outcome for line in lines] == [Outcome.INCONCLUSIVE]
    assert "compares both arms with numbers that add up" in lines[0].reason
    assert (lines[0].margin, lines[0].n) == (0.05, 0)


@pytest.mark.parametrize(
    "metric",
    [
        "ttft", "ttfot", "tpot", "itl", "e2e", "output_throughput", "request_throughput", "goodput", "error_rate",
        "rejected", "validity", "accuracy", "perplexity",
    ],
)  # fmt: skip
def test_every_time_rate_and_share_is_added_up(metric: str) -> None:
    evidence = with_history(*chain(RUN, CHECK, [0.01] * 4))
    assert line_of(REQUIRED, evidence, replace(OWN, metric=metric)).n == 5


@pytest.mark.parametrize("outcome", [Outcome.PASS, Outcome.WARN, Outcome.INCONCLUSIVE, Outcome.BLOCK])
def test_two_observations_are_enough_whatever_they_showed(outcome: Outcome) -> None:
    evidence = with_history(*chain(RUN, CHECK, [0.01] * 4))
    assert line_of(REQUIRED, evidence, replace(OWN, n=2, outcome=outcome)).n == 5


@pytest.mark.parametrize(
    ("line", "margin"),
    [
        ({"metric": "ttft", "margin": "10%"}, math.log(1.2)),
        ({"metric": "output_throughput", "margin": "10%"}, -math.log(0.8)),
        ({"metric": "error_rate", "margin": "5 points"}, 0.03),
    ],
)
def test_each_kind_of_harm_has_its_own_margin(line: Line, margin: float) -> None:
    policy = SuiteText([line], gate={"creep": {"required": True, "margin": "20%", "points": "3 points"}}).suite()
    evidence = measured(policy)
    found = judge(policy, evidence)
    assert found.checks[1].margin == pytest.approx(margin)


def test_lines_share_one_error_and_a_look_s_own_alpha_is_that_of_its_limits() -> None:
    evidence = with_history(*chain(RUN, CHECK, [0.01] * 9))
    alone = line_of(REQUIRED, evidence)
    both = creep_checks(REQUIRED, evidence, (OWN, OWN))
    assert alone.p_value is not None
    assert [line.p_holm for line in both] == pytest.approx([2 * alone.p_value] * 2)
    assert alone.p_holm == alone.p_value
    # The same limits, each wrong less often, are those of a smaller error.
    sharper = line_of(REQUIRED, evidence, replace(OWN, limits_alpha=0.001))
    assert sharper.upper is not None and alone.upper is not None
    assert sharper.upper < alone.upper


def test_a_sum_that_nothing_settles_asks_for_more_blocks() -> None:
    loud = measured(REQUIRED, Effect(slowdown=1.01), noise=Noise(cv=0.15))
    check = judge(REQUIRED, loud).checks[0]
    line = line_of(REQUIRED, replace(loud, history=chain(loud, CHECK, [0.02] * 3)), check)
    assert line.outcome is Outcome.INCONCLUSIVE
    assert line.advice == "more blocks in future runs make the sum more certain"
    assert not judge(REQUIRED, replace(loud, history=chain(loud, CHECK, [0.02] * 3))).outcome.promotes
    passed = line_of(REQUIRED, with_history(*chain(RUN, CHECK, [0.0] * 3)))
    assert (passed.outcome, passed.advice) == (Outcome.PASS, None)
    blocked = line_of(REQUIRED, with_history(*chain(RUN, CHECK, [0.05] * 3)))
    assert blocked.outcome is Outcome.BLOCK
    assert blocked.advice is not None and "most of the 10 %" in blocked.advice


# The best on record


def best(harms: list[float], releases: int) -> CheckResult:
    """Of promotions, oldest first, beside the releases that are counted."""
    return line_of(suite(required=True, releases=releases), with_history(*chain(RUN, CHECK, harms)))


def test_a_release_that_is_further_ahead_than_the_one_looked_at_warns() -> None:
    line = best([0.2, 0.0, 0.0, 0.0], 3)
    assert (line.n, line.outcome) == (3, Outcome.WARN)
    assert "since the best on record, r0 of run run-0000-xxxx of 2026-01-01, it rose by 2" in line.reason
    assert "best on record" not in best([0.2, 0.0, 0.0, 0.0], 5).reason


@pytest.mark.parametrize("oldest", [-0.3, 0.0, 0.03])
def test_a_release_that_is_not_shown_to_be_beyond_the_margin_is_no_reason_to_warn(oldest: float) -> None:
    assert best([oldest, 0.0, 0.0, 0.0], 3).outcome is Outcome.PASS


def test_the_release_that_is_looked_at_may_be_the_best_itself() -> None:
    line = best([-0.3, 0.2, 0.0, 0.0], 4)
    assert line.outcome is Outcome.BLOCK
    assert "best on record" not in line.reason


@pytest.mark.parametrize(
    ("harms", "name"), [([-0.3, 0.3, 0.0, 0.0], "r1"), ([0.3, 0.0, 0.0], "r0"), ([0.0, -0.3, 0.3], "r2")]
)
def test_the_best_on_record_may_stand_anywhere(harms: list[float], name: str) -> None:
    """Between the oldest and the one looked at, next to that, or nearer than it."""
    line = best(harms, 3)
    assert (line.n, line.outcome) == (3, Outcome.WARN)
    assert f"since the best on record, {name} of run" in line.reason


def test_releases_on_record_share_one_error() -> None:
    """Limits at a fifth of alpha reach beyond a margin that those at alpha stay inside of."""
    history = chain(RUN, CHECK, [0.1, 0.0, 0.0, 0.0, 0.0])
    assert OWN.harm is not None and OWN.lower is not None and OWN.upper is not None
    links = [ChainLink(OWN.harm, Limits(OWN.lower, OWN.upper), 0.05, OWN.n)]
    for run in reversed(history):
        past = run.checks[CHECK]
        links.append(ChainLink(past.harm, Limits(past.lower, past.upper), past.alpha, past.n))
    sure, all_of_it, sharing = (sum_chain(links, alpha).limits.upper for alpha in (0.25, 0.05, 0.01))
    assert sure < all_of_it < sharing
    for upper, outcome in (((all_of_it + sharing) / 2, Outcome.WARN), (sharing + 1e-6, Outcome.PASS)):
        policy = suite(required=True, releases=3, margin=f"{100 * math.expm1(upper):.6f}%")
        assert line_of(policy, with_history(*history)).outcome is outcome


def test_of_two_runs_that_promoted_one_release_the_worse_counts_and_what_came_before_them_once() -> None:
    own = last_baseline(RUN)
    before, mild, worse = (
        promoted(0, arm("r0"), arm("r1"), 0.02, CHECK),
        promoted(1, arm("r1"), own, 0.01, CHECK),
        promoted(2, arm("r1"), own, 0.03, CHECK),
    )
    assert OWN.harm is not None
    for history in ((before, mild, worse), (before, worse, mild)):
        line = line_of(REQUIRED, with_history(*history))
        assert line.n == 3
        assert line.harm == pytest.approx(OWN.harm + worse.checks[CHECK].harm + before.checks[CHECK].harm)


def test_the_unlike_ends_of_each_link_add_up_on_their_own_side() -> None:
    """Zou and Donner 2008 (MOVER): .03 + root(.02² + .005²) above, .03 - root(.005² + .04²) below."""
    own = replace(OWN, harm=0.01, lower=0.005, upper=0.03, n=10_000)
    (only,) = chain(RUN, CHECK, [0.0])
    line = line_of(REQUIRED, with_history(at(only, harm=0.02, lower=-0.02, upper=0.025, n=10_000)), own)
    assert line.n == 2
    assert line.harm == pytest.approx(0.03)
    assert line.upper == pytest.approx(0.03 + math.hypot(0.02, 0.005), abs=1e-5)
    assert line.lower == pytest.approx(0.03 - math.hypot(0.005, 0.04), abs=1e-5)


# Of several ways back


def fork(number: int, name: str, newer: PastArm, harm: float, older: float) -> tuple[PastRun, PastRun]:
    """A way back from a release: the run that promoted it, and the one before that, oldest first."""
    before = promoted(number, arm(f"{name}0"), arm(name), older, CHECK)
    return before, promoted(number + 10, arm(name), newer, harm, CHECK)


@pytest.mark.parametrize("worse", ["a", "b"])
def test_the_worst_way_is_that_of_the_promotions_that_are_counted(worse: str) -> None:
    """What came before them makes no way of less harm the worse one, at whichever promotion the ways part."""
    own = last_baseline(RUN)
    for releases, newer in ((2, own), (3, arm("r1"))):
        ways = [fork(k, name, newer, *((0.03, -0.5) if name == worse else (0.01, 0.5))) for k, name in enumerate("ab")]
        last = [promoted(25, newer, own, 0.0, CHECK)] if releases == 3 else []
        history = sorted([run for way in ways for run in way] + last, key=lambda run: run.started_at)
        line = line_of(suite(required=True, releases=releases), with_history(*history))
        assert OWN.harm is not None
        counted = [run for run in history if run.baseline.name == worse] + last
        assert line.n == releases
        assert line.harm == pytest.approx(OWN.harm + sum(run.checks[CHECK].harm for run in counted))


@pytest.mark.parametrize("worse", ["a", "b"])
def test_the_best_on_record_is_looked_for_on_the_worst_way_beyond_what_is_counted(worse: str) -> None:
    ways = [fork(k, name, arm("r1"), 0.0, 0.5 if name == worse else 0.0) for k, name in enumerate("ab")]
    near = [promoted(25, arm("r1"), last_baseline(RUN), 0.0, CHECK)]
    far = [promoted(25, arm("r1"), arm("r2"), 0.0, CHECK), promoted(26, arm("r2"), last_baseline(RUN), 0.0, CHECK)]
    for last in (near, far):
        history = sorted([*ways[0], *ways[1], *last], key=lambda run: run.started_at)
        line = line_of(suite(required=True, releases=2), with_history(*history))
        assert (line.outcome, line.n) == (Outcome.WARN, 2)
        assert f"since the best on record, {worse}0 of run" in line.reason
