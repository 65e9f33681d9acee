"""What a million tokens cost as a check: against the baseline's, or a bound; never known without a price."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from benchgate.errors import SuiteError
from benchgate.gate.comparison import compare
from benchgate.gate.decision import Estimate
from benchgate.gate.evidence.costs import cost_coverage_warning
from benchgate.gate.judge import judge
from benchgate.gate.summary.metric_rows import metric_rows
from benchgate.model.deployment import Arm, Deployment
from benchgate.model.records import ABSENT
from benchgate.model.run import Evidence, LoadObservation
from benchgate.model.verdict import CheckResult, Outcome, Unit
from benchgate.suite.loader import parse_suite
from tests.fakes.blocks import both, compared, estimate_of
from tests.fakes.measured import Effect, Noise, SuiteText, measured

OUTPUT, GOOD = "usd_per_million_output_tokens", "usd_per_million_good_tokens"
HEALTHY = Effect()
ERRORS: dict[str, object] = {"metric": "error_rate", "max": "30%"}
QUIET = Noise(cv=0.002)


def priced(evidence: Evidence, baseline: float | None, candidate: float | None) -> Evidence:
    prices = {Arm.BASELINE: baseline, Arm.CANDIDATE: candidate}
    arms = {arm: replace(one, price_usd_per_hour=prices[arm]) for arm, one in evidence.run.arms.items()}
    return replace(evidence, run=replace(evidence.run, arms=arms))


def check(
    asked: dict[str, object],
    candidate: Effect = HEALTHY,
    *,
    prices: tuple[float | None, float | None] = (4.0, 4.0),
) -> CheckResult:
    suite = SuiteText([asked, ERRORS]).suite()
    verdict = judge(suite, priced(measured(suite, candidate, noise=QUIET), *prices))
    return next(one for one in verdict.checks if one.metric == asked["metric"])


def test_cost_is_the_price_of_an_hour_by_the_tokens_of_an_hour() -> None:
    """600 tokens in a window of 6 s a block at $4/h: 4 / 0.36 M tokens."""
    found = check({"metric": OUTPUT, "margin": "5%"})
    assert found.unit is Unit.USD
    assert found.baseline == pytest.approx(4 / 0.36, rel=0.01)
    assert found.outcome is Outcome.PASS


@pytest.mark.parametrize(
    ("candidate", "prices", "change", "outcome"),
    [
        (Effect(slowdown=1.2), (4.0, 4.0), 1.2, Outcome.BLOCK),  # as dear, and slower
        (Effect(slowdown=0.95), (4.0, 5.2), 1.235, Outcome.BLOCK),  # a win of 5 % that costs 30 % more
        (Effect(slowdown=1.2), (4.0, 3.0), 0.9, Outcome.PASS),  # slower, and cheaper by more
        (Effect(), (4.0, 4.0), 1.0, Outcome.PASS),
    ],
)
def test_cost_rises_by_the_price_and_falls_by_the_pace(
    candidate: Effect, prices: tuple[float, float], change: float, outcome: Outcome
) -> None:
    found = check({"metric": OUTPUT, "margin": "10%"}, candidate, prices=prices)
    assert found.harm is not None
    assert math.exp(found.harm) == pytest.approx(change, rel=0.02)
    assert found.outcome is outcome
    assert found.margin == pytest.approx(math.log(1.1))


def test_accelerators_are_all_paid_for() -> None:
    two, suite = Effect(accelerators=2), SuiteText([{"metric": OUTPUT, "margin": "10%"}, ERRORS]).suite()
    found = judge(suite, priced(measured(suite, two, two, noise=QUIET), 4.0, 4.0)).checks[0]
    assert [found.baseline, found.candidate] == pytest.approx([8 / 0.36] * 2, rel=0.01)


@pytest.mark.parametrize(
    ("prices", "whose"),
    [((None, 4.0), "baseline has no price"), ((4.0, None), "candidate has no price"), ((0.0, 4.0), "a price of $0")],
)
def test_cost_without_a_price_is_never_good(prices: tuple[float | None, float | None], whose: str) -> None:
    found = check({"metric": OUTPUT, "margin": "10%"}, prices=prices)
    assert found.outcome is Outcome.INVALID
    assert whose in found.reason


def test_candidate_without_a_token_costs_without_bound() -> None:
    """Failing requests are cheap for nobody: what is paid buys nothing."""
    found = check({"metric": OUTPUT, "margin": "10%"}, Effect(failed=60))
    assert (found.harm, found.outcome) == (math.inf, Outcome.BLOCK)


def test_only_tokens_of_good_requests_count_where_that_is_asked() -> None:
    """A fifth of the requests fails in every block: of 600 tokens 480 are left, in both costs."""
    for metric in (OUTPUT, GOOD):
        found = check({"metric": metric, "margin": "10%"}, Effect(failed=12))
        assert found.harm is not None
        assert math.exp(found.harm) == pytest.approx(1.25, rel=0.02)
    slow = check({"metric": GOOD, "margin": "10%"}, Effect(slowdown=5.0))  # 250 ms to the first token, and 200 are good
    assert (slow.harm, slow.outcome) == (math.inf, Outcome.BLOCK)
    assert check({"metric": OUTPUT, "margin": "10%"}, Effect(slowdown=5.0)).harm == pytest.approx(math.log(5), rel=0.02)


@pytest.mark.parametrize(
    ("bound", "outcome"), [("$15", Outcome.PASS), ("$10", Outcome.BLOCK), ("$11.09", Outcome.INCONCLUSIVE)]
)
def test_cost_is_held_to_a_bound(bound: str, outcome: Outcome) -> None:
    """$11.09 are what it is."""
    found = check({"metric": OUTPUT, "max": bound}, prices=(None, 4.0))  # whose baseline is asked nothing
    assert found.outcome is outcome
    assert found.candidate == pytest.approx(11.09, rel=0.01)
    assert found.lower is not None and found.upper is not None
    assert found.lower < 11.09 < found.upper
    assert found.margin == float(bound[1:])


def test_bound_of_a_cost_is_not_met_by_what_has_no_token_or_no_price() -> None:
    silent = check({"metric": OUTPUT, "max": "$100"}, Effect(failed=60))
    assert silent.outcome is Outcome.INVALID
    assert "no token that counts came" in silent.reason
    assert check({"metric": OUTPUT, "max": "$100"}, prices=(4.0, None)).outcome is Outcome.INVALID


HOSTED = {"input": 1.0, "cached_input": 0.5, "output": 4.0}


def hosted(evidence: Evidence, arm: Arm, prices: dict[str, float]) -> Evidence:
    """An arm that is paid by the token."""
    arms = {**evidence.run.arms, arm: replace(evidence.run.arms[arm], price_usd_per_hour=None, token_prices=prices)}
    return replace(evidence, run=replace(evidence.run, arms=arms))


def test_hosted_model_costs_what_its_tokens_are_billed() -> None:
    """8 tokens of input for 10 of output: $8 and $40 for ten million, so $4.8 a million; slower is no dearer."""
    suite = SuiteText([{"metric": OUTPUT, "margin": "5%"}, ERRORS]).suite()
    evidence = measured(suite, Effect(slowdown=1.5), noise=QUIET)
    for arm in Arm:
        evidence = hosted(evidence, arm, HOSTED)
    found = judge(suite, evidence).checks[0]
    assert [found.baseline, found.candidate] == pytest.approx([4.8, 4.8])
    dear = judge(suite, hosted(evidence, Arm.CANDIDATE, {**HOSTED, "output": 4.5})).checks[0]
    assert dear.candidate == pytest.approx(5.3)
    assert dear.outcome is Outcome.BLOCK


def test_cached_input_has_its_own_price_and_unknown_input_no_cost() -> None:
    suite = SuiteText([{"metric": OUTPUT, "margin": "5%"}, ERRORS]).suite()
    evidence = hosted(measured(suite, noise=QUIET), Arm.CANDIDATE, HOSTED)

    def counted(cached: int, read: int = 8) -> Evidence:
        def of(seen: LoadObservation) -> LoadObservation:
            n = len(seen.requests)
            requests = replace(seen.requests, cached_tokens=np.full(n, cached), input_tokens=np.full(n, read))
            return replace(seen, requests=requests)

        return replace(evidence, load=tuple(map(of, evidence.load)))

    cached = judge(suite, counted(6)).checks[0]
    assert cached.candidate == pytest.approx((2 * 1.0 + 6 * 0.5 + 10 * 4.0) / 10)
    more_than_asked = judge(suite, counted(60)).checks[0]
    assert more_than_asked.candidate == pytest.approx((8 * 0.5 + 10 * 4.0) / 10)

    def one_of_all(seen: LoadObservation) -> LoadObservation:
        """One request that says it had more cached than all of them read."""
        told = np.where(np.arange(len(seen.requests)) == 0, 10_000, 0)
        return replace(seen, requests=replace(seen.requests, cached_tokens=told))

    one = judge(suite, replace(evidence, load=tuple(map(one_of_all, evidence.load)))).checks[0]
    assert one.candidate == pytest.approx(4.8 - 8 * 0.5 / 600)  # its own 8 tokens at half the price
    unknown = judge(suite, counted(0, ABSENT)).checks[0]
    assert (unknown.candidate, unknown.outcome) == (None, Outcome.INVALID)


def test_cost_by_the_token_leaves_its_numbers_with_limits() -> None:
    suite = SuiteText([{"metric": OUTPUT, "margin": "5%"}, ERRORS]).suite()
    evidence = hosted(measured(suite, Effect(failed=6, failed_block=2), noise=QUIET), Arm.CANDIDATE, HOSTED)
    rows = {row.name: row for row in metric_rows(evidence) if row.arm is Arm.CANDIDATE and row.name.startswith("usd")}
    assert rows[OUTPUT].value == pytest.approx(4.8)  # failed requests are in neither part
    assert rows["usd_per_million_input_tokens"].value == pytest.approx(6.0)
    assert rows["usd_per_million_total_tokens"].value == pytest.approx(48 / 18)
    assert rows[GOOD].value == pytest.approx(4.8)
    silent = hosted(measured(suite, Effect(failed=60), noise=QUIET), Arm.CANDIDATE, HOSTED)
    assert not [row for row in metric_rows(silent) if row.arm is Arm.CANDIDATE and row.name.startswith("usd")]


def with_arm(evidence: Evidence, arm: Arm, **changes: object) -> Evidence:
    arms = {**evidence.run.arms, arm: replace(evidence.run.arms[arm], **changes)}  # type: ignore[arg-type]  # its own
    return replace(evidence, run=replace(evidence.run, arms=arms))


def test_baseline_that_never_tells_of_its_cache_makes_no_candidate_cheap() -> None:
    """Both are billed alike; only the candidate says that most of its input was cached."""
    suite = SuiteText([{"metric": OUTPUT, "margin": "5%"}, ERRORS]).suite()
    evidence = measured(suite, noise=QUIET)
    for arm in Arm:
        evidence = hosted(evidence, arm, HOSTED)

    def told(*arms: Arm) -> Estimate:
        load = tuple(
            replace(one, requests=replace(one.requests, cached_tokens=np.full(len(one.requests), 6)))
            if one.arm in arms
            else one
            for one in evidence.load
        )
        return estimate_of({"metric": OUTPUT, "margin": "5%"}, compare(replace(evidence, load=load)))

    problem = told(Arm.CANDIDATE).problem
    assert problem is not None
    assert problem.outcome is Outcome.INVALID
    assert "never told how much of its input was cached" in problem.reason
    assert told().value == told(*Arm).value == pytest.approx(0.0)
    assert told(Arm.BASELINE).value == pytest.approx(math.log(4.8 / 4.5))  # what the candidate does not tell is paid


def test_candidate_that_is_used_less_warns_where_cost_is_compared_at_full_use() -> None:
    suite = SuiteText([{"metric": OUTPUT, "margin": "5%"}, ERRORS]).suite()
    evidence = priced(measured(suite, noise=QUIET), 4.0, 4.0)
    half, full = ({"overhead_ratio": 0.0, "utilisation_ratio": use} for use in (0.5, 1.0))

    def outcome(baseline: dict[str, float], candidate: dict[str, float]) -> Outcome:
        terms = {Arm.BASELINE: baseline, Arm.CANDIDATE: candidate}
        used = evidence
        for arm in Arm:
            used = with_arm(used, arm, price_terms=terms[arm])
        return judge(suite, used).checks[0].outcome

    assert outcome(full, half) is outcome({}, half) is Outcome.WARN
    assert outcome(half, half) is outcome(half, full) is Outcome.PASS


@pytest.mark.parametrize("asked", [{"margin": "5%"}, {"max": "$100"}])
@pytest.mark.parametrize(
    ("facts", "paid", "outcome"),
    [
        ({"accelerator_names": ["H200"] * 4}, 1, Outcome.WARN),
        ({"accelerator_names": ["H200"] * 4}, 4, Outcome.PASS),
        ({"flags": {"tp_size": 2, "pp_size": 2}}, 2, Outcome.WARN),
        ({"flags": {"tp_size": 2}}, 2, Outcome.PASS),
        ({}, 1, Outcome.PASS),
    ],
)
def test_accelerators_that_nobody_pays_for_warn(
    asked: dict[str, object], facts: dict[str, object], paid: int, outcome: Outcome
) -> None:
    suite = SuiteText([{"metric": OUTPUT, **asked}, ERRORS], gate={"allow_different": ["engine_flags"]}).suite()
    arm = Effect(facts=facts, accelerators=paid)
    found = judge(suite, priced(measured(suite, arm, arm, noise=QUIET), 4.0, 4.0)).checks[0]
    assert found.outcome is outcome
    assert ("its server reports 4" in found.reason) is (outcome is Outcome.WARN)


def test_baseline_that_is_paid_for_more_accelerators_than_it_tells_of_warns() -> None:
    """It would cost twice what it does, and the candidate as much as it is allowed to."""
    theirs = Deployment("b", "m", "vllm", None, facts={"accelerator_names": ["H200"]}, price_usd_per_hour=4.0)
    ours = replace(theirs, accelerators=1)
    assert cost_coverage_warning(theirs, ours) is None
    assert "the baseline is paid for 2" in (cost_coverage_warning(replace(theirs, accelerators=2), ours) or "")


@pytest.mark.parametrize(
    ("paid", "told", "doubted"),
    [
        ("H100", ["NVIDIA A100-SXM4-80GB"], True),
        ("l4", ["NVIDIA L40S"], True),
        ("H200", ["NVIDIA H200", "NVIDIA GH200 480GB"], True),
        ("H100", ["NVIDIA H100 80GB HBM3"], False),
        ("nvidia-h100-sxm", ["NVIDIA H100 80GB HBM3"], False),
        ("MI300X", ["AMD Instinct MI300X"], False),
        ("p5.48xlarge", ["NVIDIA H100 80GB HBM3"], False),  # a machine is no accelerator
        ("H100", ["Radeon of a kind"], False),
        ("H100", [], False),
        (None, ["NVIDIA A100-SXM4-80GB"], False),  # its suite says the price itself
    ],
)
def test_price_of_another_kind_of_accelerator_than_is_told_warns(
    paid: str | None, told: list[str], doubted: bool
) -> None:
    suite = SuiteText([{"metric": OUTPUT, "margin": "5%"}, ERRORS]).suite()
    evidence = priced(measured(suite, noise=QUIET), 4.0, 4.0)
    for arm in Arm:
        entry = {} if paid is None else {"file": "prices.yaml", "accelerator": paid, "price": "$4/h"}
        evidence = with_arm(
            evidence, arm, facts={"accelerator_names": told}, price_entry=entry, accelerators=max(len(told), 1)
        )
    found = judge(suite, evidence).checks[0]
    assert found.outcome is (Outcome.WARN if doubted else Outcome.PASS)
    assert (f"has the price of accelerator {paid}, and its server reports" in found.reason) is doubted
    alone = Deployment("c", "m", "vllm", None)
    assert (cost_coverage_warning(evidence.run.arms[Arm.BASELINE], alone) is not None) is doubted


def test_other_token_prices_are_told_as_a_difference() -> None:
    evidence = hosted(measured(SuiteText([ERRORS]).suite(), noise=QUIET), Arm.CANDIDATE, HOSTED)
    told = {one.what: one.candidate for one in judge(SuiteText([ERRORS]).suite(), evidence).differences}
    assert told["price of a million tokens (output)"] == "$4"


def test_bound_of_a_cost_takes_two_blocks() -> None:
    one = compared([both(0, [0.1] * 4, [0.1] * 4)])
    found = estimate_of({"metric": OUTPUT, "max": "$5"}, compare(priced(one.judged, 4.0, 4.0)))
    assert found.problem is not None
    assert found.problem.outcome is Outcome.INCONCLUSIVE


SUITE = """\
suite: s
deployments:
  old: {url: "http://one:8000", model: m, price: $4/h}
  new: {url: "http://two:8000", model: m PRICE}
baseline: old
candidate: new
load:
  workload: {input: 64 tokens, output: 32 tokens}
  sweep: [{stage: c4, concurrency: 4, requests: 60}]
gate:
  checks:
    - {metric: error_rate, max: 5%}
    - CHECK
"""


@pytest.mark.parametrize(
    ("asked", "price", "problem"),
    [
        (f"{{metric: {OUTPUT}, margin: 5%}}", "", 'the candidate "new" has no `price`'),
        (f"{{metric: {OUTPUT}, max: $3}}", "", 'the candidate "new" has no `price`'),
        (f"{{metric: {OUTPUT}, max: 3%}}", ", price: $4/h", "sum of money"),
        (f"{{metric: {OUTPUT}, max: $0}}", ", price: $4/h", "it must be finite and above 0"),
        (f"{{metric: {OUTPUT}, min: $1}}", ", price: $4/h", "no lower bound; use `max` or `margin`"),
        (f"{{metric: {OUTPUT}, margin: 2 points}}", ", price: $4/h", "a part of the baseline's value"),
        (f"{{metric: {GOOD}, margin: 5%}}", ", price: $4/h", f"{GOOD} counts the requests that meet the `slo`"),
        ("{metric: usd_per_million_tokens, margin: 5%}", ", price: $4/h", "usd_per_million_"),
    ],
)
def test_check_of_a_cost_that_cannot_be_is_an_error_of_the_suite(asked: str, price: str, problem: str) -> None:
    with pytest.raises(SuiteError) as caught:
        parse_suite(SUITE.replace("CHECK", asked).replace(" PRICE", price), "s.yaml")
    (found,) = caught.value.problems
    assert problem in str(found)


def test_bound_on_the_candidates_own_cost_asks_no_price_of_the_baseline() -> None:
    text = SUITE.replace("CHECK", f"{{metric: {OUTPUT}, max: $3}}").replace(" PRICE", ", price: $4/h")
    suite = parse_suite(text.replace("model: m, price: $4/h}\n  new", "model: m}\n  new"), "s.yaml")
    assert suite.gate.checks[1].slo_value == 3
