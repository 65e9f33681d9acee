"""`per: accelerator`: throughput and capacity divided by what the suite says that each deployment holds."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from benchgate.errors import SuiteError
from benchgate.gate.judge import judge
from benchgate.gate.summary.metric_rows import metric_rows
from benchgate.model.deployment import Arm
from benchgate.model.metric import THROUGHPUT_METRICS
from benchgate.model.run import Evidence
from benchgate.model.verdict import CheckResult, Outcome, Unit, policy_sha256
from benchgate.report import display
from benchgate.suite.loader import parse_suite
from benchgate.suite.schema import Suite
from benchgate.suite.waivers import bounded
from tests.core.test_gate_capacity import capacity_check, searched_run, suite
from tests.fakes.measured import Effect, Noise, SuiteText, measured

ERRORS: dict[str, object] = {"metric": "error_rate", "max": "1%"}
QUIET = Noise(cv=0.001)


def throughput(metric: str = "output_throughput", **asked: object) -> dict[str, object]:
    return {"metric": metric, "per": "accelerator", **asked}


def on_accelerators(evidence: Evidence, baseline: int, candidate: int) -> Evidence:
    counts = {Arm.BASELINE: baseline, Arm.CANDIDATE: candidate}
    arms = {arm: replace(one, accelerators=counts[arm]) for arm, one in evidence.run.arms.items()}
    return replace(evidence, run=replace(evidence.run, arms=arms))


def dividing(asked: Suite) -> Suite:
    """The same suite whose check of the capacity is one of each accelerator."""
    checks = tuple(
        check.model_copy(update={"per": "accelerator"}) if check.metric == "capacity" else check
        for check in asked.gate.checks
    )
    return asked.model_copy(update={"gate": asked.gate.model_copy(update={"checks": checks})})


def first(made: Suite, evidence: Evidence) -> CheckResult:
    return judge(made, evidence).checks[0]


@pytest.mark.parametrize("metric", THROUGHPUT_METRICS)
def test_a_throughput_is_compared_by_what_one_accelerator_does(metric: str) -> None:
    """Eight accelerators that do 4 times as much as one: each does half of what the one does."""
    line: dict[str, object] = {"metric": metric, "margin": "5%"}
    plain, each = SuiteText([line, ERRORS]).suite(), SuiteText([throughput(metric, margin="5%"), ERRORS]).suite()
    slower = Effect(slowdown=4.0, accelerators=1)
    check = first(plain, measured(plain, slower, Effect(accelerators=8), noise=QUIET))
    assert (check.id, check.outcome) == (f"{metric}@c4", Outcome.BLOCK)
    check = first(each, measured(each, slower, Effect(accelerators=8), noise=QUIET))
    assert (check.id, check.outcome) == (f"{metric}@c4:per-accelerator", Outcome.PASS)
    assert check.harm == pytest.approx(-math.log(2), abs=0.01)
    assert check.candidate == pytest.approx(2 * (check.baseline or 0), rel=0.01)
    assert "per accelerator at c4" in check.title
    assert str(check.unit).endswith("/s per accelerator")
    assert "8 of baseline, 1 of candidate" in check.notes[0]
    assert check.steps[0].value == "8 of baseline, 1 of candidate"
    worse = first(each, measured(each, Effect(slowdown=9.0, accelerators=1), Effect(accelerators=8), noise=QUIET))
    assert worse.outcome is Outcome.BLOCK


@pytest.mark.parametrize(("least", "outcome"), [("30/s", Outcome.PASS), ("60/s", Outcome.BLOCK)])
def test_a_least_throughput_of_each_accelerator(least: str, outcome: Outcome) -> None:
    made = SuiteText([throughput(min=least), ERRORS]).suite()
    check = first(made, measured(made, Effect(accelerators=2), noise=QUIET))  # 100 tokens/s by two
    assert (check.id, check.outcome) == ("output_throughput@c4:per-accelerator:slo", outcome)
    assert check.candidate == pytest.approx(50, rel=0.02)
    assert check.unit is Unit.TOKENS_PER_S_EACH
    assert display.value(check.candidate, check.unit).endswith(" tok/s per accelerator")
    assert check.steps[0].value == "2 of candidate"


@pytest.mark.parametrize(("asked", "side"), [({"margin": "5%"}, None), ({"min": "1/s"}, "min")])
def test_its_id_says_how_it_is_bounded(asked: dict[str, str], side: str | None) -> None:
    made = SuiteText([{**throughput(), **asked}, ERRORS]).suite()
    found = bounded(first(made, measured(made)).id)
    assert (found.metric, found.side, found.over) == ("output_throughput", side, False)


@pytest.mark.parametrize(
    ("theirs", "ours", "says"),
    [
        (8, 2, "candidate is declared with 1 of the accelerators by which it is divided, and its server reports 2"),
        (4, 1, "baseline is declared with 8 of the accelerators by which it is divided, and its server reports 4"),
        (8, 1, None),
    ],
)
def test_accelerators_that_a_server_counts_otherwise_warn(theirs: int, ours: int, says: str | None) -> None:
    made = SuiteText([throughput(margin="5%"), ERRORS], gate={"allow_different": ["hardware"]}).suite()
    facts: list[dict[str, object]] = [{"accelerator_names": ["H200"] * count} for count in (ours, theirs)]
    evidence = measured(made, *(Effect(facts=one, accelerators=n) for one, n in zip(facts, (1, 8), strict=True)))
    check = first(made, evidence)
    assert check.outcome is (Outcome.PASS if says is None else Outcome.WARN)
    assert says is None or says in check.reason


def test_a_capacity_is_compared_by_what_one_accelerator_carries() -> None:
    plain, each = suite(), dividing(suite())
    evidence = on_accelerators(searched_run(4, 2), 8, 1)
    assert capacity_check(plain, evidence).outcome is Outcome.BLOCK
    whole, check = capacity_check(plain, evidence), capacity_check(each, evidence)
    assert (check.id, check.title, check.outcome) == (
        "capacity:per-accelerator",
        "Capacity per accelerator",
        Outcome.PASS,
    )
    assert check.unit is Unit.REQUESTS_PER_S_EACH
    for name in ("harm", "lower", "upper"):
        assert getattr(check, name) == pytest.approx(getattr(whole, name) - math.log(8))
    assert check.candidate == whole.candidate
    assert check.baseline == pytest.approx((whole.baseline or 0) / 8)
    equal = on_accelerators(searched_run(2, 2), 1, 8)
    assert capacity_check(each, equal).outcome is Outcome.BLOCK  # eight carry as much as one did


@pytest.mark.parametrize(("least", "outcome"), [("7/s", Outcome.PASS), ("15/s", Outcome.BLOCK)])
def test_a_least_capacity_of_each_accelerator(least: str, outcome: Outcome) -> None:
    asked = dividing(suite(check=f"{{metric: capacity, min: {least}}}"))
    check = capacity_check(asked, on_accelerators(searched_run(2, 2), 1, 2))
    assert (check.id, check.outcome) == ("capacity:per-accelerator:slo", outcome)
    assert check.lower is not None
    assert check.lower <= 10 <= (check.upper or 0)


def test_the_history_keeps_what_one_accelerator_does_where_a_check_asks_for_it() -> None:
    made = SuiteText([throughput(margin="5%"), ERRORS]).suite()
    evidence = measured(made, Effect(accelerators=2), Effect(accelerators=8))
    rows = {(row.arm, row.name): row for row in metric_rows(evidence)}
    for arm, count in ((Arm.BASELINE, 8), (Arm.CANDIDATE, 2)):
        whole, each = rows[arm, "output_throughput"], rows[arm, "output_throughput_per_accelerator"]
        assert each.value == pytest.approx(whole.value / count)
        assert each.upper == pytest.approx((whole.upper or 0) / count)
    assert not [name for _, name in rows if name == "request_throughput_per_accelerator"]
    # Each request has 8 tokens of input and 10 of output.
    of_output = rows[Arm.CANDIDATE, "output_throughput"].value
    assert rows[Arm.CANDIDATE, "input_throughput"].value == pytest.approx(of_output * 0.8)
    assert rows[Arm.CANDIDATE, "total_throughput"].value == pytest.approx(of_output * 1.8)
    plain = SuiteText([{"metric": "output_throughput", "margin": "5%"}, ERRORS]).suite()
    assert not [row for row in metric_rows(measured(plain)) if "per_accelerator" in row.name]
    searched = on_accelerators(searched_run(2, 2), 4, 1)
    searched = replace(searched, run=replace(searched.run, suite=dividing(suite()).to_stored()))
    kept = {(row.arm, row.name): row.value for row in metric_rows(searched)}
    of_each = kept[Arm.BASELINE, "capacity_per_accelerator"]
    assert of_each == pytest.approx(kept[Arm.BASELINE, "capacity"] / 4)


def text(check: str, accelerators: str = ", accelerators: 2") -> str:
    return f"""
suite: each
deployments:
  old: {{url: "http://a", model: m{accelerators}}}
  new: {{url: "http://b", model: m, accelerators: 1}}
baseline: old
candidate: new
load:
  workload: {{input: 8, output: 8}}
  blocks: 4
  sweep: [{{stage: c4, concurrency: 4, requests: 40}}, {{stage: c8, concurrency: 8, requests: 40}}]
gate: {{checks: [{{metric: error_rate, max: 5%}}, {check}]}}
"""


@pytest.mark.parametrize(
    ("check", "says"),
    [
        ("{metric: ttft, per: accelerator, margin: 5%}",
         "gate.checks[1].per: means nothing for ttft, which does not add up over accelerators"),
        ("{metric: output_throughput, per: gpu, margin: 5%}",
         'gate.checks[1].per: found "gpu"; expected one of accelerator'),
        ("{metric: output_throughput, per: accelerator, stage: c8, over: c4, min: 2x}",
         "served by the same accelerators, so `per` changes nothing"),
        ("{metric: output_throughput, stage: c4, per: accelerator, margin: 5%}, "
         "{metric: output_throughput, per: accelerator, margin: 8%}",
         'the margin of output_throughput per accelerator of "c4" is already judged by gate.checks[1]'),
    ],
)  # fmt: skip
def test_what_it_means_nothing_for_is_an_error_with_the_reason(check: str, says: str) -> None:
    with pytest.raises(SuiteError) as caught:
        parse_suite(text(check), "suite.yaml")
    assert says in str(caught.value)


def test_who_divides_by_accelerators_says_how_many_there_are() -> None:
    check = "{metric: output_throughput, per: accelerator, margin: 5%}"
    with pytest.raises(SuiteError) as caught:
        parse_suite(text(check, ""), "suite.yaml")
    assert 'gate.checks[1].per: divides by `accelerators`, which the baseline "old" does not say' in str(caught.value)
    assert parse_suite(text(check), "suite.yaml").gate.checks[1].per == "accelerator"
    own = "{metric: output_throughput, per: accelerator, min: 5/s}"
    assert parse_suite(text(own, ""), "suite.yaml").gate.checks[1].slo_value == 5  # the baseline has no part in it


def test_beside_the_plain_check_and_through_the_store() -> None:
    both = "{metric: output_throughput, margin: 5%}, {metric: output_throughput, per: accelerator, margin: 5%}"
    made = parse_suite(text(both), "suite.yaml")
    assert Suite.from_stored(made.to_stored()) == made
    ids = [check.id for check in judge(made, measured(made)).checks]
    assert len(set(ids)) == len(ids) == 6
    written = [set(check) for check in made.to_stored()["gate"]["checks"]]
    assert ["per" in keys for keys in written] == [False, False, True]  # a policy without it keeps its identity


def test_a_stored_policy_that_permits_engine_and_accelerators_is_read_and_keeps_its_hash() -> None:
    stored = SuiteText([ERRORS]).suite().to_stored()
    stored["gate"]["allow_different"] = ["accelerators", "engine", "context"]
    again = Suite.from_stored(stored)
    assert policy_sha256(again.to_stored()["gate"]) == policy_sha256(stored["gate"])
    assert "engine_version" not in stored["deployments"]["baseline"]


@pytest.mark.parametrize("word", ["engine", "accelerators"])
def test_what_the_deployments_say_needs_no_permission(word: str) -> None:
    written = text("{metric: ttft, margin: 5%}").replace("gate: {", f"gate: {{allow_different: [{word}], ")
    with pytest.raises(SuiteError) as caught:
        parse_suite(written, "suite.yaml")
    said = f"`{word}` of the deployments declares the change, which needs no permission; remove it"
    assert f"gate.allow_different[0]: {said}" in str(caught.value)


def test_a_version_without_quotes_is_told_to_have_them() -> None:
    written = text("{metric: ttft, margin: 5%}", ", engine_version: 0.10")
    with pytest.raises(SuiteError) as caught:
        parse_suite(written, "suite.yaml")
    assert 'expected a version in quotes, like "0.10.1"' in str(caught.value)
