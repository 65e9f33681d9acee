"""The section `divergence` and its checks: what is refused, and in which words."""

from __future__ import annotations

import pytest

from benchgate.errors import SuiteError
from benchgate.suite.loader import parse_suite
from benchgate.suite.schema import Suite, measured_arms

TEXT = """
suite: texts
deployments: {{a: {{embedded: {{}}}}, b: {{embedded: {{weights: q2_k}}}}}}
baseline: a
candidate: {candidate}
{section}
gate: {{checks: [{check}]}}
"""
SECTION = "divergence: {texts: t.jsonl}"
PPL = "{metric: perplexity, margin: 2%}"


def suite(check: str = PPL, section: str = SECTION, candidate: str = "b") -> Suite:
    return parse_suite(TEXT.format(check=check, section=section, candidate=candidate), "texts.yaml")


def refused(check: str = PPL, section: str = SECTION) -> str:
    with pytest.raises(SuiteError) as caught:
        suite(check, section)
    return str(caught.value)


def test_distance_is_advisory_unless_the_suite_says_so_and_loss_is_required() -> None:
    found = suite(
        "{metric: kld, max: 0.1 nats}, {metric: same_top1, min: 95%}, {metric: perplexity, margin: 2%}"
    ).gate.checks
    assert [check.required for check in found] == [False, False, True]
    assert [check.slo_value for check in found] == [0.1, 0.95, None]
    assert suite("{metric: kld, max: 0.5 nats, required: true}, " + PPL).gate.checks[0].required


@pytest.mark.parametrize(
    ("check", "said"),
    [
        ("{metric: kld, max: 0.1}", "write it with its unit"),
        ('{metric: kld, max: "0.1"}', 'is not a divergence; write it like "0.1 nats"'),
        ("{metric: kld, max: 0 nats}", "finite and above 0"),
        ("{metric: kld, margin: 5%}", "means nothing for kld, which is held to `max`"),
        ("{metric: kld, min: 1 nats}", "kld has no lower bound; use `max`"),
        ("{metric: same_top1, max: 95%}", "same_top1 has no upper bound; use `min`"),
        ("{metric: perplexity, max: 7}", "perplexity has no upper bound; use `margin`"),
        ("{metric: perplexity, margin: 2 points}", "the margin of perplexity is a part of the baseline's value"),
        ("{metric: perplexity, margin: 2%, task: add}", "means nothing for perplexity"),
    ],
)
def test_check_of_fixed_texts_is_bounded_in_its_own_unit(check: str, said: str) -> None:
    assert said in refused(check)


def test_policy_of_advisory_checks_alone_is_refused_unless_one_is_made_to_decide() -> None:
    assert "kld is advisory unless it says `required: true`" in refused("{metric: kld, max: 0.1 nats}")
    assert suite("{metric: kld, max: 0.1 nats, required: true}").gate.checks[0].required


def test_check_of_fixed_texts_needs_its_section() -> None:
    assert "perplexity is measured by `divergence`, which this suite has not" in refused(section="start: {times: 2}")


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("divergence: {texts: t.jsonl, position: 10}", "did you mean `positions`?"),
        ("divergence: {texts: t.jsonl, positions: 9}", "at least 10"),
        ("divergence: {texts: t.jsonl, way: best}", "one of auto, n_probs, echo, cut"),
        ("divergence: {positions: 10}", "texts"),
    ],
)
def test_section_is_strict(section: str, said: str) -> None:
    assert said in refused(section=section)


def test_both_arms_read_even_where_one_deployment_is_both_and_nothing_has_a_margin() -> None:
    alone = suite("{metric: same_top1, min: 95%, required: true}", candidate="a")
    assert len(measured_arms(alone)) == 2


def test_stored_suite_has_the_section_only_where_it_is_used() -> None:
    stored = suite().to_stored()
    assert stored["divergence"]["positions"] == 200
    assert Suite.from_stored(stored).to_stored() == stored
    without = parse_suite(
        TEXT.format(check="{metric: cold_start, max: 9s}", section="start: {times: 2}", candidate="b"), "t"
    )
    assert "divergence" not in without.to_stored()
