"""What keeps two stored runs from being held against each other: they, or what is known of them, are not alike."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchgate.gate.checks import evaluate
from benchgate.gate.comparison import compare
from benchgate.gate.judge import judge
from benchgate.gate.policy import concrete_checks
from benchgate.model.noise import NoiseSpread
from benchgate.model.run import ClientUse, Evidence
from benchgate.model.verdict import Outcome
from tests.fakes.apart import TOLD, TTFT, Line, alone, check_of, known, profile, suite
from tests.fakes.measured import Effect


def test_what_the_profile_does_not_know_is_not_decided() -> None:
    lines: Line = {"metric": "ttft", "statistic": "p95", "margin": "10%"}
    check = check_of(alone(seed=2), known(alone()), lines)
    assert check.outcome is Outcome.INCONCLUSIVE
    assert "no noise profile tells how much ttft at c4 differs" in check.reason


def test_an_old_profile_is_stale_and_decides_nothing() -> None:
    for slowdown in (1.0, 3.0):
        judged, reference = alone(Effect(slowdown=slowdown), seed=2), known(alone())
        check = check_of(judged, reference, noise_max_age="11d")
        assert check.outcome is Outcome.INCONCLUSIVE
        assert "stale: it is 12 days old, and more than 11 days is stale" in check.reason
    assert check_of(alone(seed=2), known(alone()), noise_max_age="13d").outcome is Outcome.PASS


def test_a_profile_of_another_version_of_the_engine_decides_nothing() -> None:
    check = check_of(alone(seed=2), known(alone(), engine_version="0.10.0"))
    assert check.outcome is Outcome.INCONCLUSIVE
    assert "measured on 0.10.0 of the engine, and this is 0.11.0" in check.reason


def test_the_profile_of_each_run_is_of_its_own_version_of_the_engine() -> None:
    own = known(alone(Effect(facts={"engine_version": "0.12.0"}), seed=2), run_id="own", engine_version="0.12.0")
    assert check_of(own, known(alone()), allow_different=["engine_version"]).outcome is Outcome.PASS
    stale = known(alone(seed=2), run_id="own", engine_version="0.12.0")
    assert check_of(stale, known(alone()), allow_different=["engine_version"]).outcome is Outcome.INCONCLUSIVE


@pytest.mark.parametrize("then", [None, "0.11.0"])
@pytest.mark.parametrize("now", [None, "0.11.0"])
def test_an_engine_whose_version_is_unreported_is_not_known_to_be_the_same(then: str | None, now: str | None) -> None:
    effect = Effect(facts={"made": "up"} if now is None else {"engine_version": now})
    check = check_of(alone(effect, seed=2), known(alone(effect), engine_version=then))
    assert check.outcome is (Outcome.PASS if then == now == "0.11.0" else Outcome.INCONCLUSIVE), check.reason
    if then is now is None:
        assert "the engine's version was reported neither then nor now" in check.reason


def test_runs_at_other_addresses_are_not_known_to_be_on_one_machine() -> None:
    judged = alone(seed=2)
    moved = {arm: replace(one, url="http://elsewhere") for arm, one in judged.run.arms.items()}
    judged = replace(judged, run=replace(judged.run, arms=moved))
    check = check_of(judged, known(alone()))
    assert check.outcome is Outcome.INCONCLUSIVE
    assert "not known to be the same" in check.reason
    assert "elsewhere" not in check.reason  # an address may say more than a report should


def test_answers_that_end_early_are_no_speed_across_runs_either() -> None:
    lines: Line = {"metric": "output_throughput", "margin": "10%"}
    check = check_of(alone(Effect(tokens=8, slowdown=0.7), seed=2), known(alone()), lines)
    assert check.outcome is Outcome.INVALID
    assert "end early" in check.reason or "reach the requested length" in check.reason


def test_another_client_invalidates_a_comparison_without_a_live_baseline() -> None:
    judged = alone(Effect(client=ClientUse(cpu_s=0.1, wall_s=1.0, workers=4)), seed=2)
    verdict = judge(suite(TTFT), judged, known(alone()))
    assert verdict.outcome is Outcome.INVALID
    assert [guard.id for guard in verdict.guards if guard.tripped] == ["same-client"]


def test_another_measurement_is_not_compared() -> None:
    judged = alone(seed=2)
    judged = replace(judged, run=replace(judged.run, measurement_sha256="x" * 64))
    assert judge(suite(TTFT), judged, known(alone())).outcome is Outcome.INVALID


def test_what_no_request_was_asked_for_is_invalid_and_not_undecided() -> None:
    check = check_of(alone(seed=2), alone(), {"metric": "validity", "margin": "5 points"})
    assert check.outcome is Outcome.INVALID


def test_runs_in_which_nothing_varies_at_all_say_nothing_either() -> None:
    check = check_of(alone(cv=0.0, seed=2), known(alone(cv=0.0), cv=0.0))
    assert check.outcome is Outcome.INCONCLUSIVE
    assert "tells nothing of how much this varies" in check.reason


def test_two_sides_of_two_runs_must_be_served_alike_and_do_the_same_work() -> None:
    """No baseline beside either ties them together, so the sides themselves are compared."""

    def tripped(judged: Evidence) -> set[str]:
        verdict = judge(suite(TTFT), known(judged), known(alone()))
        assert verdict.outcome is (Outcome.INVALID if any(one.tripped for one in verdict.guards) else Outcome.PASS)
        return {one.id for one in verdict.guards if one.tripped}

    assert tripped(alone(seed=2)) == set()
    assert tripped(alone(Effect(tokens=9), seed=2)) == {"same-work"}
    assert tripped(alone(Effect(facts={**TOLD, "max_model_len": 4096}), seed=2)) == {"sides-alike"}


def test_age_is_that_at_the_end_of_the_judged_run() -> None:
    judged = alone(seed=2)
    judged = replace(judged, run=replace(judged.run, finished_at="2026-01-20T00:00:00Z"))  # a run of nineteen days
    assert "it is 31 days old" in check_of(judged, known(alone())).reason
    unfinished = replace(judged, run=replace(judged.run, finished_at=None))
    assert check_of(unfinished, known(alone())).outcome is Outcome.PASS  # the verdict is INVALID: it was cut short


@pytest.mark.parametrize("fewer", ["judged", "reference"])
def test_answers_in_other_pieces_are_no_pace_across_runs_either(fewer: str) -> None:
    pieces, plain = alone(Effect(usage=20), seed=2), alone()
    judged, reference = (pieces, plain) if fewer == "judged" else (plain, pieces)
    reference = known(reference, spreads=(*profile(plain).spreads, NoiseSpread("tpot", "p50", "c4", 0.02, 0.02, 10)))
    policy = suite({"metric": "tpot", "margin": "10%"}, TTFT)
    specs = tuple(concrete_checks(policy, judged))
    pace, first = (one.estimate.problem for one in evaluate.evaluate(specs, policy, compare(judged, reference)))
    assert pace is not None and pace.outcome is Outcome.INVALID
    assert "in other pieces" in pace.reason
    assert first is None


def test_noise_of_a_pace_says_nothing_of_what_is_paid_by_the_token() -> None:
    """How much input is cached and how long answers are differs between days that have one pace."""
    cost: Line = {"metric": "usd_per_million_output_tokens", "margin": "10%"}

    def hosted(evidence: Evidence) -> Evidence:
        prices = {"input": 1.0, "cached_input": 1.0, "output": 4.0}
        arms = {a: replace(d, price_usd_per_hour=None, token_prices=prices) for a, d in evidence.run.arms.items()}
        return replace(evidence, run=replace(evidence.run, arms=arms))

    judged, reference = alone(seed=2), known(alone())
    assert check_of(judged, reference, cost).outcome is Outcome.PASS
    found = check_of(hosted(judged), hosted(reference), cost)
    assert found.outcome is Outcome.INCONCLUSIVE
    assert "where tokens are paid for" in found.reason
    assert check_of(hosted(judged), reference, cost).outcome is Outcome.INVALID  # at two prices, of no one list


def test_price_that_fell_between_two_runs_makes_no_candidate_cheaper() -> None:
    cost: Line = {"metric": "usd_per_million_output_tokens", "margin": "10%"}
    judged, reference = alone(seed=2), known(alone())
    arms = {arm: replace(one, price_usd_per_hour=1.0) for arm, one in judged.run.arms.items()}
    found = check_of(replace(judged, run=replace(judged.run, arms=arms)), reference, cost)
    assert found.outcome is Outcome.INVALID
    assert "are of no one price list" in found.reason
