"""Regions of a load: each is judged by what was sent from it, and the whole by all of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchgate.errors import SuiteError
from benchgate.gate.calibration import spreads
from benchgate.gate.comparison import load_of
from benchgate.gate.judge import judge
from benchgate.gate.summary.metric_rows import metric_rows
from benchgate.model.columns import with_region
from benchgate.model.deployment import Arm
from benchgate.model.records import TextColumn
from benchgate.model.run import Evidence, LoadObservation
from benchgate.model.verdict import CheckResult, Outcome
from benchgate.pipeline.forecast import judged_checks
from benchgate.plan.check_power import NO_KNOWN_NOISE
from benchgate.plan.power import forecast_power
from benchgate.plan.schedule import make_plan, measurement_sha256
from benchgate.report.comparability import sides
from benchgate.report.sections.load import regions_table
from benchgate.report.view import report_view
from benchgate.suite.loader import parse_suite
from benchgate.suite.schema import Suite
from tests.fakes.answer_texts import plain, saying
from tests.fakes.measured import Effect, measured

TEXT = """
suite: chat
deployments: {{now: {{url: "http://b", model: m}}, next: {{url: "http://c", model: m}}}}
baseline: now
candidate: next
slo: {{ttft: 500ms}}
load:
  workload: {{input: 8 tokens, output: 10 tokens}}
  regions: {regions}
  blocks: 8
  sweep: [{{stage: c4, concurrency: {slots}, requests: 60}}, {{stage: c8, concurrency: 8, requests: 60}}]
gate:
  checks: [{checks}]
"""
CHECKS = "{metric: ttft, margin: 10%}, {metric: error_rate, max: 2%}, {metric: output_throughput, margin: 30%}"
REGIONS = "{eu: 'tcp://eu:8786', us: 'tcp://us:8786'}"


def suite_of(checks: str = CHECKS, regions: str = REGIONS, slots: int = 4) -> Suite:
    return parse_suite(TEXT.format(checks=checks, regions=regions, slots=slots), "suite.yaml")


def from_regions(evidence: Evidence, *, slower_in_us: float = 0.0) -> Evidence:
    """Deal the requests to eu and us in turn; the candidate's answers to us begin so much later, as a share of TTFT."""

    def dealt(one: LoadObservation) -> LoadObservation:
        columns = one.requests
        us = columns.index % 2 == 1
        region = TextColumn(("eu", "us"), us.astype(np.int32))
        if one.arm is Arm.CANDIDATE:
            waited_ns = columns.chunk_ns[columns.chunk_start[:-1]] - columns.intended_ns
            late_ns = np.where(us, waited_ns * slower_in_us, 0).astype(np.int64)
            chunk_ns = columns.chunk_ns + np.repeat(late_ns, np.diff(columns.chunk_start))
            columns = replace(columns, chunk_ns=chunk_ns, end_ns=columns.end_ns + late_ns)
        window_s = float(columns.end_ns.max()) / 1e9
        return replace(one, requests=replace(columns, region=region), window_s=window_s)

    return replace(evidence, load=tuple(map(dealt, evidence.load)))


def failing_in_us(evidence: Evidence) -> Evidence:
    """Let every request of the candidate that was sent from us fail."""

    def failed(one: LoadObservation) -> LoadObservation:
        us = (one.requests.index % 2 == 1).astype(np.int32)
        error, detail = TextColumn((None, "stream_broken"), us), TextColumn((None, "reset"), us)
        return replace(one, requests=replace(one.requests, error=error, error_detail=detail))

    load = [failed(one) if one.arm is Arm.CANDIDATE else one for one in evidence.load]
    return replace(evidence, load=tuple(load))


def outcomes(suite: Suite, evidence: Evidence) -> dict[str, Outcome]:
    def counted(check: CheckResult) -> Outcome:
        return check.counted

    return {check.id: counted(check) for check in judge(suite, evidence).checks}


def test_every_region_is_judged_and_one_that_is_slower_blocks() -> None:
    suite = suite_of()
    evidence = from_regions(measured(suite), slower_in_us=0.3)
    found = outcomes(suite, evidence)
    assert {name: outcome for name, outcome in found.items() if name.startswith("ttft")} == {
        "ttft-p50@c4@eu": Outcome.PASS, "ttft-p50@c4@us": Outcome.BLOCK,
        "ttft-p50@c8@eu": Outcome.PASS, "ttft-p50@c8@us": Outcome.BLOCK,
    }  # fmt: skip
    assert found["output_throughput@c4"] is found["error_rate@c4@us:slo"] is Outcome.PASS
    assert judge(suite, evidence).outcome is Outcome.BLOCK
    assert judge(suite, from_regions(measured(suite))).outcome is Outcome.PASS


def test_check_may_name_one_region_and_a_stage_is_held_over_another_in_the_same_one() -> None:
    checks = "{metric: ttft, region: us, margin: 10%}, {metric: error_rate, max: 2%}"
    over = ", {metric: ttft, stage: c8, over: c4, max: 1.5x}"
    suite = suite_of(checks + over)
    found = outcomes(suite, from_regions(measured(suite), slower_in_us=0.3))
    assert found["ttft-p50@c4@us"] is Outcome.BLOCK and "ttft-p50@c4@eu" not in found
    assert found["ttft-p50@c8@eu:max-over-c4"] is found["ttft-p50@c8@us:max-over-c4"] is Outcome.PASS


def test_records_without_the_region_leave_its_checks_invalid() -> None:
    suite = suite_of()
    assert judge(suite, measured(suite)).outcome is Outcome.INVALID


def test_trends_noise_and_forecasts_have_each_region() -> None:
    suite = suite_of()
    evidence = from_regions(measured(suite))
    rows = {(row.name, row.stage) for row in metric_rows(evidence) if row.arm is Arm.CANDIDATE}
    assert {("ttft", "c4@eu"), ("error_rate", "c8@us"), ("goodput", "c4@us")} <= rows
    assert ("output_throughput", "c4@eu") not in rows
    bare = replace(
        evidence, load=tuple(replace(one, requests=with_region(one.requests, None)) for one in evidence.load)
    )
    assert not any(row.stage and "@" in row.stage and row.name == "error_rate" for row in metric_rows(bare))
    spread = {(one.metric, one.stage) for one in spreads(evidence, suite)}
    assert ("ttft", "c4@us") in spread and ("output_throughput", "c4@us") not in spread
    plan = make_plan(suite, (), ())
    forecast = {one.id: one for one in forecast_power(suite, plan, judged_checks(suite, plan), NO_KNOWN_NOISE).checks}
    assert forecast["error_rate@c4@us:slo"].has == 8 * (60 + 4) // 2  # four of a ramp, in which failures count


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize(
    ("checks", "unjudged"),
    [("{metric: goodput}", []), ("{metric: goodput, region: us}, {metric: error_rate, max: 2%}", ["c4", "c8"])],
)
def test_stage_whose_goodput_is_judged_in_every_region_is_not_said_to_be_unjudged(
    checks: str, unjudged: list[str]
) -> None:
    text = TEXT.replace("ttft: 500ms", "ttft: 500ms, target: 95%")
    suite = parse_suite(text.format(checks=checks, regions=REGIONS, slots=4), "suite.yaml")
    evidence = from_regions(measured(suite, Effect(slowdown=20.0)))
    limits = report_view(evidence, judge(suite, evidence)).provenance.limits
    told = [line.partition(":")[0] for line in limits if line.startswith("No check judges")]
    assert told == [f"No check judges goodput at {stage}" for stage in unjudged]


def test_part_of_a_region_is_made_once() -> None:
    evidence = from_regions(measured(suite_of()))
    first, again = (load_of(evidence, "c4@eu", Arm.CANDIDATE)[0] for _ in range(2))
    assert first is again and set(first.requests.region) == {"eu"} and len(first.requests) == 30


def test_measurement_is_told_by_the_names_of_regions_and_not_by_their_schedulers() -> None:
    hashes = []
    for regions in (
        REGIONS,
        "{eu: 'tcp://other:1', us: 'tcp://us:8786'}",
        "{eu: 'tcp://eu:8786', asia: 'tcp://us:8786'}",
    ):
        suite = suite_of(regions=regions)
        hashes.append(measurement_sha256(suite, make_plan(suite, (), ())))
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.parametrize(
    ("suite", "complaint"),
    [
        ({"regions": "{eu: eu.example}"}, '"eu.example" is not a scheduler\'s address; write tcp://HOST:8786'),
        ({"regions": "{eu: 'tcp://a:1', us: 'tcp://a:1'}"}, "us and eu have one scheduler, tcp://a:1"),
        ({"slots": 3}, "3 slots are no equal part for 2 regions; write 4"),
        ({"checks": "{metric: ttft, region: eux, margin: 10%}"}, 'is named "eux"; did you mean `eu`?'),
        ({"checks": "{metric: output_throughput, region: eu, margin: 10%}"}, "means nothing for output_throughput"),
        (
            {"checks": "{metric: ttft, margin: 10%}, {metric: error_rate, region: eu, max: 1%}"},
            'requests of stage "c4@us" and "c8@us" could fail unjudged',
        ),
        (
            {"checks": CHECKS + ", {metric: ttft, region: eu, margin: 20%}"},
            'the margin of ttft p50 of "c4@eu" is already judged by gate.checks[0]',
        ),
    ],
)  # fmt: skip
def test_regions_that_cannot_be_used_are_refused(suite: dict[str, str | int], complaint: str) -> None:
    with pytest.raises(SuiteError) as refused:
        suite_of(**suite)  # type: ignore[arg-type]  # of a table
    assert complaint in str(refused.value)


@pytest.mark.parametrize(
    "checks",
    [
        "{metric: ttft, region: eu, margin: 10%}, {metric: error_rate, region: eu, max: 2%}",
        "{metric: error_rate, region: eu, max: 2%}",
    ],
)
def test_failures_of_a_region_are_not_judged_by_a_check_of_another(checks: str) -> None:
    suite = suite_of(checks)
    assert judge(suite, from_regions(measured(suite))).outcome is Outcome.PASS
    verdict = judge(suite, failing_in_us(from_regions(measured(suite))))
    assert verdict.outcome is Outcome.INVALID
    (guard,) = [guard for guard in verdict.guards if guard.id == "failures-judged"]
    assert guard.tripped and "c4@us" in guard.reason
    assert guard.remedy is not None and "region: us" in guard.remedy


def test_failures_that_are_few_in_each_region_are_counted_over_all_of_them() -> None:
    suite = suite_of()
    checks = tuple(check for check in suite.gate.checks if check.metric != "error_rate")
    suite = suite.model_copy(update={"gate": suite.gate.model_copy(update={"checks": checks})})

    def failing(one: LoadObservation) -> LoadObservation:
        """The first request of each of the two regions, in five of eight blocks: 5 of 240, and 10 of 480."""
        lost = ((one.requests.index < 2) & (one.block < 5)).astype(np.int32)
        error, detail = TextColumn((None, "stream_broken"), lost), TextColumn((None, "reset"), lost)
        return replace(one, requests=replace(one.requests, error=error, error_detail=detail))

    seen = from_regions(measured(suite))
    load = tuple(failing(one) if one.arm is Arm.CANDIDATE else one for one in seen.load)
    (guard,) = [one for one in judge(suite, replace(seen, load=load)).guards if one.id == "failures-judged"]
    assert guard.tripped
    assert "stage c4: 10 of 480 requests of the candidate failed, 0 of 480" in guard.reason


def test_why_requests_failed_is_told_of_the_region_that_is_judged() -> None:
    suite = suite_of("{metric: error_rate, max: 2%}")
    checks = {check.id: check for check in judge(suite, failing_in_us(from_regions(measured(suite)))).checks}
    n = checks["error_rate@c4@us:slo"].n
    assert any(f"{n} of {n} requests failed" in note for note in checks["error_rate@c4@us:slo"].notes)
    assert not any("failed" in note for note in checks["error_rate@c4@eu:slo"].notes)


def test_goodput_of_a_region_goes_by_the_tokens_of_the_text() -> None:
    """52 ms a token by its text and 48 ms by its usage, beside a bound of 50 ms."""
    text = TEXT.replace("ttft: 500ms", "tpot: 50ms, target: 95%").replace("output: 10", "output: 120")
    suite = parse_suite(text.format(checks="{metric: goodput}", regions=REGIONS, slots=4), "suite.yaml")
    inflated = Effect(tokens=100, slowdown=5.2, usage=108, finish="stop")
    evidence = measured(suite, inflated, Effect(tokens=100, slowdown=4.5, finish="stop"))
    evidence = saying(saying(evidence, Arm.BASELINE, plain), Arm.CANDIDATE, plain)
    for check in judge(suite, from_regions(evidence)).checks:
        assert (check.outcome, check.candidate) == (Outcome.BLOCK, 0.0)


@pytest.mark.parametrize("name", [None, "mars"])
def test_requests_of_no_region_of_the_suite_promote_nobody(name: str | None) -> None:
    """Failed ones would be counted by no check of a region."""
    suite = suite_of("{metric: ttft, margin: 10%}, {metric: error_rate, max: 9%}")
    evidence = from_regions(measured(suite))

    def lost(one: LoadObservation) -> LoadObservation:
        bad = one.requests.index % 4 == 1
        region = TextColumn(("eu", "us", name), np.where(bad, 2, one.requests.index % 2).astype(np.int32))
        error, detail = (TextColumn((None, word), bad.astype(np.int32)) for word in ("stream_broken", "reset"))
        return replace(one, requests=replace(one.requests, region=region, error=error, error_detail=detail))

    load = [lost(one) if one.arm is Arm.CANDIDATE else one for one in evidence.load]
    verdict = judge(suite, replace(evidence, load=tuple(load)))
    assert verdict.outcome is Outcome.INVALID
    assert "all-measured" in {guard.id for guard in verdict.guards if guard.tripped}


def test_failures_of_the_ramp_are_never_more_than_the_requests_beside_them() -> None:
    suite = suite_of()
    found = failing_in_us(from_regions(measured(suite)))
    ramped = replace(found, load=tuple(replace(one, ramp=one.requests) for one in found.load))
    table = regions_table(sides(ramped, None), suite)
    assert table is not None
    assert ("c4", "us", "candidate", "240, and 240 of the ramp", "480") in {row[:5] for row in table.rows}
