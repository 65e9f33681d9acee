"""What a verdict makes of fixed texts: each line a claim about one way to be wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchgate.gate.checks.divergence import measure_perplexity
from benchgate.gate.comparison import compare
from benchgate.gate.decision import Estimate, Rule, decide
from benchgate.gate.judge import judge
from benchgate.gate.summary.metric_rows import metric_rows
from benchgate.model.deployment import Arm
from benchgate.model.records import DivergenceItem, DivergenceObservation
from benchgate.model.run import Evidence
from benchgate.model.verdict import CheckResult, Outcome, Scale, Unit, Verdict
from benchgate.report.sections.divergence import divergence_section
from benchgate.suite.schema import Suite
from tests.fakes import evidence as fakes

Policy = dict[str, object]
PIECES, EACH = 20, 10
KLD: Policy = {"metric": "kld", "max": "0.1 nats"}
TOP1: Policy = {"metric": "same_top1", "min": "90%"}
PPL: Policy = {"metric": "perplexity", "margin": "2%"}


def suite(*checks: Policy) -> Suite:
    return Suite.model_validate(
        {
            "suite": "texts",
            "deployments": {"a": {"embedded": {}}, "b": {"embedded": {"weights": "q2_k"}}},
            "baseline": "a",
            "candidate": "b",
            "divergence": {"texts": "texts.jsonl", "positions": PIECES * EACH},
            "gate": {"checks": list(checks)},
        }
    )


def items(kld: float = 0.01, *, same: float = 1.0, harm: float = 0.0, bound: bool = False) -> list[DivergenceItem]:
    """Divergences about `kld`, a share `same` of agreements, and a candidate worse by `harm` nats of the true token."""
    generator = np.random.default_rng(3)
    return [
        DivergenceItem(
            text_id=f"t{piece}",
            piece=0,
            position=20 + place,
            kld=kld * float(generator.gamma(2, 0.5)),
            same_top1=bool(generator.random() < same),
            bound=bound,
            shared=20,
            baseline_ln=-1.0 - float(generator.random()),
            candidate_ln=-2.5 - harm - 0.02 * float(generator.normal()),
        )
        for piece in range(PIECES)
        for place in range(EACH)
    ]


def near(harm: float, spread: float = 0.02) -> list[DivergenceItem]:
    generator = np.random.default_rng(4)
    return [
        replace(item, candidate_ln=min(0.0, (item.baseline_ln or 0) - harm - spread * float(generator.normal())))
        for item in items()
    ]


def observed(seen: Sequence[DivergenceItem], **changes: object) -> DivergenceObservation:
    whole = not any(item.bound for item in seen)
    kept = DivergenceObservation(tuple(seen), len(seen), None, "n_probs", 264 if whole else 20, whole)
    return replace(kept, **changes)  # type: ignore[arg-type]  # by name


def evidence(policy: Suite, seen: DivergenceObservation | None) -> Evidence:
    run = replace(fakes.run(), suite=policy.to_stored())
    return Evidence(run, (), (), None, (), divergence=seen)


def verdict(seen: Sequence[DivergenceItem], *checks: Policy, **changes: object) -> Verdict:
    policy = suite(*checks)
    return judge(policy, evidence(policy, observed(seen, **changes)))


def only(found: Verdict) -> CheckResult:
    [check] = found.checks
    return check


REQUIRED: Policy = {"required": True}


@pytest.mark.parametrize(
    ("kld", "check", "outcome", "whole"),
    [
        (0.01, KLD | REQUIRED, Outcome.PASS, Outcome.PASS),
        (0.09, KLD | REQUIRED, Outcome.WARN, Outcome.WARN),  # past 80 % of what is allowed
        (0.4, KLD | REQUIRED, Outcome.BLOCK, Outcome.BLOCK),
        (0.4, KLD, Outcome.BLOCK, Outcome.WARN),  # advisory unless the suite says otherwise
        (0.01, KLD, Outcome.PASS, Outcome.PASS),
    ],
)
def test_exact_divergence_against_its_limit(
    kld: float, check: dict[str, object], outcome: Outcome, whole: Outcome
) -> None:
    found = verdict(near_items(kld), check, PPL)
    assert (found.checks[0].outcome, found.outcome) == (outcome, whole)


def near_items(kld: float) -> list[DivergenceItem]:
    generator = np.random.default_rng(5)
    return [replace(item, kld=kld * float(generator.gamma(4, 0.25))) for item in near(0.0)]


def test_lower_bound_shows_too_much_and_never_little_enough() -> None:
    far = only(verdict(items(0.4, bound=True), KLD | REQUIRED))
    assert (far.outcome, far.upper) == (Outcome.BLOCK, math.inf)
    near_ = verdict(items(0.01, bound=True), KLD | REQUIRED)
    assert near_.outcome is Outcome.INCONCLUSIVE
    assert "at least 0.0103 nats" in only(near_).reason and "whole vocabulary" in only(near_).reason


def test_lower_bound_below_its_advisory_limit_takes_nothing_from_a_verdict() -> None:
    found = verdict([replace(item, bound=True) for item in near(0.0)], KLD, PPL)
    assert found.outcome is Outcome.PASS
    assert [check.outcome for check in found.checks] == [Outcome.INCONCLUSIVE, Outcome.PASS]


def test_what_the_baseline_differs_from_itself_is_taken_off() -> None:
    floors = [replace(item, floor_kld=item.kld * 0.95, floor_same_top1=item.same_top1) for item in items(0.4, same=0.8)]
    noisy = [replace(item, kld=item.kld / 5, floor_kld=(item.floor_kld or 0) / 5) for item in floors]
    found = verdict(noisy, KLD | REQUIRED, TOP1 | REQUIRED)
    assert [check.outcome for check in found.checks] == [Outcome.PASS, Outcome.PASS]
    assert any("from itself" in note for note in found.checks[0].notes)
    without = verdict(items(0.4, same=0.8), KLD | REQUIRED, TOP1 | REQUIRED)
    assert [check.outcome for check in without.checks] == [Outcome.BLOCK, Outcome.BLOCK]


def test_floor_that_leaves_a_broken_candidate_room_to_hide_is_invalid() -> None:
    broken = [replace(item, kld=6.0, floor_kld=6.0, same_top1=False, floor_same_top1=False) for item in items()]
    found = verdict(broken, KLD | REQUIRED, TOP1 | REQUIRED)
    assert [check.outcome for check in found.checks] == [Outcome.INVALID, Outcome.INVALID]
    assert "the baseline lies 6.00 nats from itself" in found.checks[0].reason
    assert "the baseline disagrees with itself at 100 % of the positions" in found.checks[1].reason
    noisy = [replace(item, floor_same_top1=number % 20 == 0) for number, item in enumerate(broken)]
    assert verdict(noisy, TOP1 | REQUIRED).outcome is Outcome.INVALID  # 95 %, where 90 % must agree


def test_harm_shown_beyond_a_large_floor_is_harm() -> None:
    far = [replace(item, kld=item.kld + 0.5, floor_kld=0.2) for item in items()]
    assert verdict(far, KLD | REQUIRED).outcome is Outcome.BLOCK


def test_baseline_noisier_than_its_candidate_gives_no_value_that_cannot_be_one() -> None:
    seen = [replace(item, floor_kld=0.05, floor_same_top1=number % 9 != 0) for number, item in enumerate(items())]
    found = verdict(seen, KLD | REQUIRED, TOP1 | REQUIRED)
    assert [check.outcome for check in found.checks] == [Outcome.PASS, Outcome.PASS]
    assert [check.candidate for check in found.checks] == [0.0, 1.0]


def test_agreement_is_held_to_its_least_share() -> None:
    assert only(verdict(items(same=1.0), TOP1 | REQUIRED)).outcome is Outcome.PASS
    blocked = only(verdict(items(same=0.6), TOP1 | REQUIRED))
    assert blocked.outcome is Outcome.BLOCK and blocked.candidate == pytest.approx(0.6, abs=0.1)
    assert only(verdict(items(same=0.9), TOP1 | REQUIRED)).outcome is Outcome.INCONCLUSIVE


def test_agreement_everywhere_is_not_certainty_about_all_texts() -> None:
    check = only(verdict(items(same=1.0), {"metric": "same_top1", "min": "99%", "required": True}))
    assert check.lower is not None
    assert check.lower == pytest.approx(1 - 0.0149, abs=2e-4)  # Clopper-Pearson, 0 of 200
    assert check.outcome is Outcome.INCONCLUSIVE


@pytest.mark.parametrize(
    ("harm", "spread", "outcome"),
    [
        (0.0, 0.02, Outcome.PASS),
        (0.010, 0.02, Outcome.WARN),  # real, inside the margin of 2 %
        (0.08, 0.02, Outcome.BLOCK),
        (0.01, 0.3, Outcome.INCONCLUSIVE),
    ],
)
def test_perplexity_against_its_margin(harm: float, spread: float, outcome: Outcome) -> None:
    check = only(verdict(near(harm, spread), PPL))
    assert check.outcome is outcome
    assert check.margin == pytest.approx(math.log(1.02))
    assert check.baseline is not None and check.candidate is not None
    assert math.log(check.candidate / check.baseline) == pytest.approx(check.harm or 0, abs=1e-9)


def test_perplexity_beyond_any_number_is_a_regression_and_is_shown() -> None:
    seen = [replace(one, candidate_ln=-800.0 - number % 7) for number, one in enumerate(near(0.0))]
    asked = suite(PPL)
    found = evidence(asked, observed(seen))
    check = only(judge(asked, found))
    assert (check.outcome, check.candidate) == (Outcome.BLOCK, math.inf)
    kept = [row.arm for row in metric_rows(found) if row.name == "perplexity"]
    assert kept == [Arm.BASELINE]
    assert divergence_section(found) is not None
    assert "∞" in check.reason


def test_perplexity_far_below_the_baselines_is_no_evidence() -> None:
    sure = [replace(item, candidate_ln=0.0) for item in items()]  # what a server tells that does not look
    for seen in (near(-0.5), sure):
        check = only(verdict(seen, PPL))
        assert check.outcome is Outcome.INVALID
        assert "the baseline may be broken" in check.reason
    assert only(verdict(near(-0.03), PPL)).outcome is Outcome.PASS


def test_way_that_does_not_tell_the_texts_own_token_has_no_perplexity() -> None:
    seen = [replace(item, baseline_ln=None, candidate_ln=None, bound=True) for item in items()]
    found = verdict(seen, PPL, way="cut")
    assert found.outcome is Outcome.INVALID and "`cut`" in found.reason


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"fault": "interrupted"}, "not read as planned: interrupted"),
        ({"expected_n": 201}, "only 200 of 201 positions"),
        ({"items": (), "expected_n": 0}, "only 0 of 0"),
    ],
)
def test_reading_that_is_not_whole_is_invalid(change: dict[str, object], said: str) -> None:
    found = verdict(items(), KLD | REQUIRED, PPL, **change)
    assert found.outcome is Outcome.INVALID
    assert all(check.outcome is Outcome.INVALID and said in check.reason for check in found.checks)


@pytest.mark.parametrize(
    "wrong",
    [
        {"kld": math.nan},
        {"kld": math.inf},
        {"kld": -0.1},
        {"candidate_ln": 0.2},
        {"floor_kld": math.nan},
        {"kld": None},
    ],
)
def test_value_that_cannot_be_one_is_invalid(wrong: dict[str, Any]) -> None:
    seen = items()
    seen[7] = replace(seen[7], **wrong)
    assert verdict(seen, KLD | REQUIRED).outcome is Outcome.INVALID


def test_floor_of_some_positions_is_no_floor() -> None:
    seen = items()
    seen[7] = replace(seen[7], floor_kld=0.01, floor_same_top1=True)
    assert verdict(seen, KLD | REQUIRED).outcome is Outcome.INVALID


def test_position_read_twice_is_invalid() -> None:
    seen = items()
    seen[7] = seen[6]
    assert verdict(seen, KLD | REQUIRED).outcome is Outcome.INVALID


def test_arms_that_list_nothing_in_common_where_texts_are_cut_have_no_common_tokenizer() -> None:
    seen = [replace(item, shared=0 if number % 5 == 0 else 20, bound=True) for number, item in enumerate(items())]
    found = verdict(seen, TOP1 | REQUIRED, way="cut")
    assert found.outcome is Outcome.INVALID and "tokenizers differ" in found.reason
    assert verdict(seen, TOP1 | REQUIRED, way="echo").outcome is Outcome.PASS  # there the tokens were compared


def test_run_without_a_reading_is_invalid() -> None:
    policy = suite(KLD | REQUIRED)
    assert judge(policy, evidence(policy, None)).outcome is Outcome.INVALID


def test_few_pieces_of_text_cannot_carry_a_verdict() -> None:
    seen = [replace(item, text_id=f"t{number % 4}", position=number) for number, item in enumerate(items())]
    for one in (KLD | REQUIRED, TOP1 | REQUIRED, PPL):
        check = only(verdict(seen, one))
        assert check.outcome is Outcome.INCONCLUSIVE and "4 pieces of text" in check.reason


def test_two_stored_runs_compare_their_candidates_perplexities() -> None:
    policy = suite(PPL)
    before, after = near(0.0), near(0.2)
    reference = evidence(policy, observed(before))
    found = judge(policy, evidence(policy, observed(after)), reference)
    assert only(found).outcome is Outcome.BLOCK
    assert only(found).harm == pytest.approx(0.2, abs=1e-9)
    distance = judge(suite(KLD), evidence(suite(KLD), observed(after)), reference).checks[0]
    assert "from f16, the baseline of its own run" in distance.notes
    elsewhere = [replace(item, position=item.position + 1) for item in before]
    assert judge(policy, evidence(policy, observed(after)), evidence(policy, observed(elsewhere))).outcome is (
        Outcome.INVALID
    )


def test_trend_has_what_was_read_and_nothing_where_it_was_not() -> None:
    policy = suite(PPL)
    rows = metric_rows(evidence(policy, observed(near(0.0))))
    named = {(row.arm, row.name): row for row in rows}
    assert set(named) == {
        (Arm.CANDIDATE, "kld"), (Arm.CANDIDATE, "same_top1"), (Arm.BASELINE, "perplexity"),
        (Arm.CANDIDATE, "perplexity"),
    }  # fmt: skip
    assert named[Arm.CANDIDATE, "same_top1"].value == 1.0
    assert metric_rows(evidence(policy, observed(near(0.0), fault="interrupted"))) == ()


def simulated(harm: float, times: int) -> dict[Outcome, float]:
    """Outcomes of a margin of 2 % on texts whose positions move together and have a long tail on the harmful side."""
    generator = np.random.default_rng(21)
    policy = suite(PPL)
    template = items()
    counts = dict.fromkeys(Outcome, 0)
    for _ in range(times):
        common = np.repeat(generator.normal(0, 0.01, PIECES), EACH)
        tail = 0.03 * (generator.gamma(0.5, 2.0, PIECES * EACH) - 1)
        harms = harm + common + tail
        seen = [
            replace(item, baseline_ln=-2.0, candidate_ln=-2.0 - float(one))
            for item, one in zip(template, harms, strict=True)
        ]
        estimate = Estimate(Rule(Unit.PERPLEXITY, Scale.LOG_RATIO), math.log1p(0.02))
        measure_perplexity(estimate, compare(evidence(policy, observed(seen))), 0.05)
        counts[decide(estimate, estimate.p_value, 0.05, 0.8)] += 1
    return {outcome: count / times for outcome, count in counts.items()}


@pytest.mark.slow
def test_equal_candidates_are_promoted_and_those_at_the_margin_are_not() -> None:
    equal = simulated(0.0, 300)
    assert equal[Outcome.BLOCK] <= 0.05 and equal[Outcome.PASS] >= 0.85
    at_margin = simulated(math.log1p(0.02), 300)
    assert at_margin[Outcome.PASS] + at_margin[Outcome.WARN] <= 0.09
    beyond = simulated(0.05, 100)
    assert beyond[Outcome.BLOCK] >= 0.95
