"""Checks of the server's own queue, cache, draft model and energy: values by hand, and what has no value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from benchgate.gate.judge import judge
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence
from benchgate.model.telemetry import Counter, Gauge, TelemetryMetric, TelemetrySample, TelemetryWindow
from benchgate.model.verdict import CheckResult, Outcome
from benchgate.report import display
from benchgate.suite.schema import Suite
from benchgate.telemetry.accelerators import lacking_problems
from tests.fakes.drills import drill, seen
from tests.fakes.measured import Effect, Noise, measured

Line = dict[str, object]
Values = Mapping[TelemetryMetric, float]
ERRORS: Line = {"metric": "error_rate", "max": "5%"}

BEFORE: Values = {
    Counter.QUEUE_S: 100.0, Counter.QUEUED: 50.0, Counter.DRAFTED: 1000.0, Counter.ACCEPTED: 10.0, Gauge.KV_USAGE: 0.1,
}  # fmt: skip
DURING: tuple[Values, ...] = ({**BEFORE, Gauge.KV_USAGE: 0.3}, {**BEFORE, Gauge.KV_USAGE: 0.7})
AFTER: Values = {
    Counter.QUEUE_S: 110.0, Counter.QUEUED: 90.0, Counter.DRAFTED: 1200.0, Counter.ACCEPTED: 160.0, Gauge.KV_USAGE: 0.9,
}  # fmt: skip
"""40 requests waited 10 s, 150 of 200 drafted tokens were accepted, and at most 0.7 of the cache was seen in use."""


def window(
    block: int, before: Values = BEFORE, during: tuple[Values, ...] = DURING, after: Values = AFTER
) -> TelemetryWindow:
    inside = [TelemetrySample(0.5 + i, values) for i, values in enumerate(during)]
    readings = (TelemetrySample(0.0, before), *inside, TelemetrySample(3.0, after))
    return TelemetryWindow("long", Arm.CANDIDATE, block, 0, "vllm", 2.0, drained=True, readings=readings)


def with_windows(suite: Suite, *windows: TelemetryWindow) -> Evidence:
    return replace(measured(suite), telemetry=windows)


def check_of(line: Line, *windows: TelemetryWindow) -> CheckResult:
    suite = drill({"stage": "long", **line}, ERRORS)
    return judge(suite, with_windows(suite, *windows)).checks[0]


@pytest.mark.parametrize(
    ("metric", "value", "holds", "breaks"),
    [
        ("queue_wait", 0.25, {"max": "300ms"}, {"max": "200ms"}),
        ("kv_usage", 0.7, {"max": "75%"}, {"max": "60%"}),
        ("speculation_acceptance", 0.75, {"min": "70%"}, {"min": "80%"}),
    ],
)
def test_a_servers_own_metric_is_held_to_its_bound(metric: str, value: float, holds: Line, breaks: Line) -> None:
    for bound, outcome in ((holds, Outcome.PASS), (breaks, Outcome.BLOCK)):
        check = check_of({"metric": metric, "required": True, **bound}, *(window(block) for block in range(8)))
        assert check.outcome is outcome, check.reason
        assert check.candidate == pytest.approx(value)


@pytest.mark.parametrize(
    ("metric", "bound", "missing"),
    [
        ("queue_wait", {"max": "1s"}, Counter.QUEUE_S),
        ("queue_wait", {"max": "1s"}, Counter.QUEUED),
        ("kv_usage", {"max": "90%"}, Gauge.KV_USAGE),
        ("speculation_acceptance", {"min": "1%"}, Counter.ACCEPTED),
        ("speculation_acceptance", {"min": "1%"}, Counter.DRAFTED),
    ],
)
def test_an_unreported_metric_is_invalid_and_blocks_only_where_it_is_required(
    metric: str, bound: Line, missing: TelemetryMetric
) -> None:
    def without(values: Values) -> Values:
        return {name: value for name, value in values.items() if name is not missing}

    silent = window(5, without(BEFORE), tuple(map(without, DURING)), without(AFTER))
    windows = [silent if block == 5 else window(block) for block in range(8)]
    for required, outcome in ((None, Outcome.WARN), (True, Outcome.INVALID)):
        line: Line = {"metric": metric, "stage": "long", **bound} | ({} if required is None else {"required": required})
        suite = drill(line, ERRORS)
        verdict = judge(suite, with_windows(suite, *windows))
        check = verdict.checks[0]
        assert (check.outcome, check.required, verdict.outcome) == (Outcome.INVALID, required is True, outcome)
        assert check.reason == f"the candidate's server did not tell {metric} of stage long in block 6"


@pytest.mark.parametrize(
    ("metric", "bound", "idle"),
    [
        ("queue_wait", {"max": "1s"}, {Counter.QUEUE_S: 100.0, Counter.QUEUED: 50.0}),
        ("speculation_acceptance", {"min": "1%"}, {Counter.DRAFTED: 1000.0, Counter.ACCEPTED: 10.0}),
    ],
)
def test_a_mean_of_nothing_is_no_value(metric: str, bound: Line, idle: Values) -> None:
    windows = (window(block, after={**AFTER, **idle}) for block in range(8))
    check = check_of({"metric": metric, **bound}, *windows)
    assert (check.outcome, check.candidate) == (Outcome.INVALID, None)


def test_an_engine_that_reports_only_a_ratio_of_acceptance_has_its_mean() -> None:
    seen: tuple[Values, ...] = ({Gauge.ACCEPTANCE: 0.5}, {Gauge.ACCEPTANCE: 0.7})
    windows = [window(block, {}, seen, {Gauge.ACCEPTANCE: 0.1}) for block in range(8)]
    assert check_of({"metric": "speculation_acceptance", "min": "50%"}, *windows).candidate == pytest.approx(0.6)


def test_a_stage_without_a_sample_has_no_peak_of_the_cache() -> None:
    check = check_of({"metric": "kv_usage", "max": "90%"}, *(window(block, during=()) for block in range(8)))
    assert check.outcome is Outcome.INVALID
    assert check.reason.endswith("too short for a look at the KV cache")


def test_the_blocks_that_a_mean_wait_takes_are_estimated_on_its_own_scale() -> None:
    """Waits of 0.1 s and 0.4 s in turn have a deviation of 0.1604 s: t(29) * 0.1604 / sqrt(30) = 0.0497 s < 0.05 s."""
    waits = (window(block, after={**AFTER, Counter.QUEUE_S: 100 + 40 * (0.1, 0.4)[block % 2]}) for block in range(8))
    check = check_of({"metric": "queue_wait", "max": "300ms"}, *waits)
    assert check.outcome is Outcome.INCONCLUSIVE
    assert check.advice == "measure more blocks: about 30 in all would settle it"


def energy_windows(energy_j: float | None, power_w: float | None = None) -> tuple[TelemetryWindow, ...]:
    """Of each block the counted joules, or the power over the 2 s of the stage."""
    drawn: Values = {} if power_w is None else {Gauge.GPU_POWER: power_w}
    ends: list[Values] = [
        {} if energy_j is None else {Counter.GPU_ENERGY_J: 7.0 + grown} for grown in (0.0, energy_j or 0)
    ]
    return tuple(window(block, ends[0], ({**ends[0], **drawn},), ends[1]) for block in range(8))


ENERGY: Line = {"metric": "joules_per_token", "stage": "long", "required": True}


@pytest.mark.parametrize(("energy_j", "power_w"), [(200.0, None), (200.0, 9.0), (None, 100.0)])
@pytest.mark.parametrize(("bound", "outcome"), [("0.51 J", Outcome.PASS), ("0.49 J", Outcome.BLOCK)])
def test_energy_is_spread_over_the_output_tokens(
    energy_j: float | None, power_w: float | None, bound: str, outcome: Outcome
) -> None:
    """200 J for 40 answers of 10 tokens: by the counter, and else by 100 W for 2 s."""
    check = check_of({**ENERGY, "max": bound}, *energy_windows(energy_j, power_w))
    assert check.outcome is outcome, check.reason
    assert check.candidate == pytest.approx(0.5)
    assert display.value(check.candidate, check.unit) == "0.500 J"


def test_tokens_of_answers_that_miss_the_slo_take_energy_and_do_not_count() -> None:
    """First tokens after 3.9 * (50 ms + 0.1 ms for each request before): 13 of 40 within 200 ms, with 130 tokens."""
    suite = drill({**ENERGY, "max": "2 J"}, ERRORS)
    evidence = seen(suite, {"long": Effect(slowdown=3.9)}, noise=Noise(cv=0.0))
    check = judge(suite, replace(evidence, telemetry=energy_windows(200.0))).checks[0]
    assert check.candidate == pytest.approx(200 / 130)


@pytest.mark.parametrize(
    ("energy_j", "failed", "reason"),
    [
        (None, 0, "did not tell joules_per_token of stage long in block 1"),
        (0.0, 0, "did not tell joules_per_token of stage long in block 1"),
        (200.0, 40, "has no good answer in stage long in block 1, so its energy is for no token"),
    ],
)
def test_energy_that_is_unknown_or_for_nothing_is_invalid(energy_j: float | None, failed: int, reason: str) -> None:
    suite = drill({**ENERGY, "max": "9 J"}, ERRORS)
    evidence = seen(suite, {"long": Effect(failed=failed)})
    check = judge(suite, replace(evidence, telemetry=energy_windows(energy_j))).checks[0]
    assert (check.outcome, check.candidate) == (Outcome.INVALID, None)
    assert reason in check.reason


LACKING = {metric: ["1"] for metric in (Gauge.GPU_CLOCK, Gauge.GPU_POWER, Counter.GPU_ENERGY_J)}


def test_an_unknown_energy_has_the_problems_of_its_telemetry_as_the_reason() -> None:
    def judged(*problems: str) -> CheckResult:
        windows = (replace(one, problems=problems) for one in energy_windows(None))
        return check_of({**ENERGY, "max": "9 J"}, *windows)

    lacking, missing = lacking_problems(LACKING)[0], "http://h answers HTTP 404 to the request for its metrics"
    told, silent = judged(missing, lacking), judged()
    assert told.outcome is silent.outcome is Outcome.INVALID
    assert lacking in told.reason and missing in told.reason
    assert "did not tell joules_per_token" in silent.reason


@pytest.mark.parametrize("bound", ["0.5", "0.5 W", "0 J", "-1 J"])
def test_a_bound_on_energy_is_in_joules(bound: str) -> None:
    with pytest.raises(ValueError, match=r"energy|usable"):
        drill({**ENERGY, "max": bound}, ERRORS)
