"""Where the guards over telemetry begin to trip, and what each of them invalidates."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchgate.gate.guards.base import FIRST, SPEED, TOKENS, invalidated_by, metric_kinds
from benchgate.model.deployment import Arm
from benchgate.model.records import RequestColumns
from benchgate.model.run import Evidence
from benchgate.model.telemetry import Counter, TelemetryMetric, TelemetrySample, TelemetryWindow
from benchgate.model.verdict import GuardResult
from benchgate.suite.schema import Suite
from tests.fakes.guards import TELEMETRY, of_run
from tests.fakes.measured import SuiteText, measured

SUITE = SuiteText([{"metric": "ttft", "margin": "10%"}, {"metric": "error_rate", "max": "1%"}], requests=100).suite()
QUIET = measured(SUITE)
ASKED: dict[TelemetryMetric, float] = {
    Counter.REQUESTS: 100.0,
    Counter.PROMPT_TOKENS: 800.0,
    Counter.GENERATION_TOKENS: 1000.0,
    Counter.PREFIX_QUERIES: 1000.0,
    Counter.PREFIX_HITS: 0.0,
}


def served(
    more: dict[tuple[Arm, int | None], dict[TelemetryMetric, float | None]], evidence: Evidence = QUIET
) -> Evidence:
    """Servers that counted what they were asked, and more of it on an arm: in one block, or in all (None)."""
    windows = []
    for o in evidence.load:
        changed = {**more.get((o.arm, None), {}), **more.get((o.arm, o.block), {})}
        counts = {
            w: n + (changed.get(w) or 0.0) for w, n in ASKED.items() if w not in changed or changed[w] is not None
        }
        readings = (
            TelemetrySample(0, dict.fromkeys(counts, 50.0), f"born {o.arm}"),
            TelemetrySample(9, {word: 50.0 + count for word, count in counts.items()}, f"born {o.arm}"),
        )
        windows.append(TelemetryWindow(o.stage, o.arm, o.block, o.position, "vllm", 9.0, True, readings))
    return replace(evidence, telemetry=tuple(windows))


def guard(name: str, evidence: Evidence) -> GuardResult:
    (found,) = [one for one in of_run(evidence, SUITE, *TELEMETRY) if one.id == name]
    assert bool(found.remedy) is found.tripped
    assert found.tripped or found.invalidates == ()
    return found


@pytest.mark.parametrize("arm", Arm)
@pytest.mark.parametrize("word", [Counter.REQUESTS, Counter.PROMPT_TOKENS, Counter.GENERATION_TOKENS])
@pytest.mark.parametrize(
    ("block", "share", "trips"),
    [(None, 0.05, False), (None, 0.06, True), (1, 0.20, False), (1, 0.21, True)],
)
def test_a_server_may_do_a_twentieth_more_than_asked_and_in_one_block_a_fifth(
    arm: Arm, word: TelemetryMetric, block: int | None, share: float, trips: bool
) -> None:
    found = guard("server-alone", served({(arm, block): {word: round(share * ASKED[word])}}))
    assert found.tripped is trips
    assert found.invalidates == (invalidated_by(arm, "load") if trips else ())
    assert not trips or f"{arm.value}: the server counted" in found.reason


@pytest.mark.parametrize("arm", Arm)
@pytest.mark.parametrize(
    ("warm", "other", "trips"),
    [(0.10, 0.0, False), (0.11, 0.0, True), (0.50, 0.45, False), (0.50, 0.44, True), (0.50, 0.50, False)],
)
def test_a_tenth_of_the_prompts_in_the_cache_of_one_arm_and_a_twentieth_more_than_in_the_others(
    arm: Arm, warm: float, other: float, trips: bool
) -> None:
    hits: dict[tuple[Arm, int | None], dict[TelemetryMetric, float | None]] = {
        (arm, None): {Counter.PREFIX_HITS: warm * 1000},
        (arm.other, None): {Counter.PREFIX_HITS: other * 1000},
    }
    found = guard("cache-cold", served(hits))
    is_warm = Arm.CANDIDATE if (warm if arm is Arm.CANDIDATE else other) > 0.10 else Arm.BASELINE
    assert (found.tripped, found.invalidates) == (trips, invalidated_by(is_warm, SPEED) if trips else ())


@pytest.mark.parametrize("arm", Arm)
@pytest.mark.parametrize(("warm", "trips"), [(0.10, False), (0.11, True)])
def test_a_warm_cache_beside_one_that_nobody_tells_of(arm: Arm, warm: float, trips: bool) -> None:
    untold: dict[TelemetryMetric, float | None] = {Counter.PREFIX_HITS: None, Counter.PREFIX_QUERIES: None}
    found = guard("cache-cold", served({(arm, None): {Counter.PREFIX_HITS: warm * 1000}, (arm.other, None): untold}))
    assert (found.tripped, found.invalidates) == (trips, (SPEED,) if trips else ())


@pytest.mark.parametrize("arm", Arm)
def test_a_restart_in_the_last_block_invalidates_the_load(arm: Arm) -> None:
    whole = served({})
    last = max(i for i, window in enumerate(whole.telemetry) if window.arm is arm)
    before, after = whole.telemetry[last].readings
    restarted = replace(whole.telemetry[last], readings=(before, replace(after, marker="reborn")))
    telemetry = (*whole.telemetry[:last], restarted, *whole.telemetry[last + 1 :])
    found = guard("server-kept-running", replace(whole, telemetry=telemetry))
    assert (found.tripped, found.invalidates) == (True, invalidated_by(arm, "load"))


SPEEDS = [
    "ttft", "tpot", "e2e", "output_throughput", "request_throughput", "goodput", "capacity", "knee",
]  # fmt: skip
COUNTED = {"tpot", "output_throughput", "output_length", "goodput", "capacity", "knee"}
BY_FIRST = {"ttft", "tpot", "goodput", "capacity", "knee"}


@pytest.mark.parametrize("metric", [*SPEEDS, "output_length", "error_rate"])
def test_what_is_measured_in_time_from_the_first_token_or_in_tokens_is_invalidated_as_such(metric: str) -> None:
    kinds = {"load"} | ({SPEED} if metric in SPEEDS else set()) | ({TOKENS} if metric in COUNTED else set())
    kinds |= {FIRST} if metric in BY_FIRST else set()
    assert metric_kinds(metric) == kinds


def test_a_restart_beside_stages_of_which_nothing_was_read_is_a_restart() -> None:
    first, *others, last = served({}).telemetry
    before, after = last.readings
    restarted = replace(last, readings=(before, replace(after, marker="reborn")))
    silent = replace(first, readings=())
    assert guard("server-kept-running", replace(QUIET, telemetry=(silent, *others, restarted))).tripped


@pytest.mark.parametrize(
    ("answered", "word", "trips"),
    [
        (True, Counter.PROMPT_TOKENS, True),
        (False, Counter.PROMPT_TOKENS, False),  # of what was cut nobody knows how long its prompts were
        (False, Counter.REQUESTS, True),
        (False, Counter.GENERATION_TOKENS, True),
    ],
)
def test_traffic_in_the_background_that_was_cut_excuses_prompts_and_nothing_else(
    answered: bool, word: TelemetryMetric, trips: bool
) -> None:
    text = SUITE.to_stored()
    classes = {"chat": {"concurrency": 2, "requests": 100}, "batch": {"concurrency": 1, "background": True}}
    text["load"]["sweep"] = [{"name": "c4", "classes": classes, "requests": 100}]
    whole = served({(Arm.CANDIDATE, None): {word: 3 * ASKED[word]}})
    chats = tuple(replace(o, stage="c4/chat") for o in whole.load)
    batches = tuple(
        replace(o, stage="c4/batch", requests=o.requests if answered else RequestColumns.pack([])) for o in whole.load
    )
    guards = of_run(replace(whole, load=(*chats, *batches)), Suite.from_stored(text), *TELEMETRY)
    assert next(one for one in guards if one.id == "server-alone").tripped is trips


@pytest.mark.parametrize("busy", ["c4", "c8"])
def test_what_a_server_did_in_one_stage_is_held_against_that_stages_requests(busy: str) -> None:
    text = SUITE.to_stored()
    (stage,) = text["load"]["sweep"]
    text["load"]["sweep"] = [stage, {**stage, "name": "c8"}]
    two = Suite.from_stored(text)
    quiet = served({}, measured(two))
    shared = served({(Arm.CANDIDATE, None): {Counter.REQUESTS: 50.0}}, measured(two))
    windows = tuple(b if a.stage == busy else a for a, b in zip(quiet.telemetry, shared.telemetry, strict=True))
    tripped = [g for g in of_run(replace(quiet, telemetry=windows), two, *TELEMETRY) if g.tripped]
    assert [g.id for g in tripped] == ["server-alone"]
    assert f"stage {busy}, block 1, candidate" in tripped[0].reason
    assert not any(g.tripped for g in of_run(quiet, two, *TELEMETRY))
