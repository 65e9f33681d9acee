"""The bottleneck that telemetry and latency point at, and "not known" where they do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchgate.gate.summary.bottleneck import NOT_KNOWN, bottleneck, parts_of
from benchgate.gate.summary.replica_figures import replica_figures
from benchgate.model.deployment import Arm
from benchgate.model.records import RequestColumns, RequestRecord, TokenSource
from benchgate.model.run import ClientUse, LoadObservation
from benchgate.model.telemetry import Counter, Gauge, Replica, TelemetryMetric, TelemetrySample, TelemetryWindow
from tests.fakes.measured import SuiteText, measured

S = 1_000_000_000
REQUESTS = 10


def execution(ttft_s: float = 2.0, e2e_s: float = 5.0) -> LoadObservation:
    records = [
        RequestRecord(i, 0, 0, (int(ttft_s * S), int(e2e_s * S)), int(e2e_s * S), 8, 2, TokenSource.USAGE, "stop", 200,
                      None, None)
        for i in range(REQUESTS)
    ]  # fmt: skip
    return LoadObservation("c4", Arm.CANDIDATE, 0, 0, RequestColumns.pack(records), 10.0, ClientUse(0.1, 10.0, 1))


def window(
    grown: dict[TelemetryMetric, float] | None = None, during: dict[TelemetryMetric, float] | None = None
) -> TelemetryWindow:
    grown = grown or {}
    before, after = dict.fromkeys(grown, 0.0), dict(grown)
    looks = (
        TelemetrySample(0, before),
        TelemetrySample(5, {Gauge.RUNNING: 1.0, **(during or {})}),
        TelemetrySample(10, after),
    )
    return TelemetryWindow("c4", Arm.CANDIDATE, 0, 0, "vllm", 10.0, True, looks)


def served(queue_s: float, prefill_s: float, decode_s: float) -> dict[TelemetryMetric, float]:
    """What a server adds up over the requests, each of which spent so long in each part."""
    return {
        Counter.QUEUE_S: queue_s * REQUESTS,
        Counter.QUEUED: REQUESTS,
        Counter.PREFILL_S: prefill_s * REQUESTS,
        Counter.PREFILLED: REQUESTS,
        Counter.DECODE_S: decode_s * REQUESTS,
        Counter.DECODED: REQUESTS,
    }


@pytest.mark.parametrize(
    ("parts", "name"),
    [((3.0, 1.0, 1.0), "queue"), ((0.5, 3.0, 1.0), "prefill"), ((0.5, 1.0, 3.0), "decode")],
)
def test_the_largest_part_of_a_mean_request_names_the_bottleneck(parts: tuple[float, float, float], name: str) -> None:
    found = bottleneck([window(served(*parts))], [execution()], None)
    assert found.name == name
    assert "3.00 s" in found.why


def test_a_client_that_was_the_bottleneck_hides_every_other() -> None:
    found = bottleneck([window(served(3, 1, 1))], [execution()], "sent 60 ms late")
    assert (found.name, found.why) == ("client", "sent 60 ms late")


def test_a_full_cache_with_a_queue_or_with_requests_thrown_out_is_the_bottleneck() -> None:
    thrown_out = bottleneck([window({**served(3, 1, 1), Counter.PREEMPTIONS: 4.0})], [execution()], None)
    full = bottleneck([window(served(3, 1, 1), {Gauge.KV_USAGE: 0.97, Gauge.WAITING: 2.0})], [execution()], None)
    roomy = bottleneck([window(served(3, 1, 1), {Gauge.KV_USAGE: 0.97, Gauge.WAITING: 0.0})], [execution()], None)
    assert (thrown_out.name, full.name, roomy.name) == ("KV cache", "KV cache", "queue")
    assert "97.0 %" in full.why


def test_requests_that_waited_at_another_moment_did_not_wait_for_the_cache() -> None:
    later = replace(execution(), block=1)
    full = window(served(3, 1, 1), {Gauge.KV_USAGE: 0.97, Gauge.WAITING: 0.0})
    waiting = replace(window(served(3, 1, 1), {Gauge.KV_USAGE: 0.2, Gauge.WAITING: 40.0}), block=1)
    assert bottleneck([full, waiting], [execution(), later], None).name == "queue"


def test_a_replica_that_had_nothing_to_do_for_most_of_a_stage_ran_little_on_average() -> None:
    def looks(*running: float) -> tuple[TelemetrySample, ...]:
        samples = (TelemetrySample(at + 1.0, {Gauge.RUNNING: value}) for at, value in enumerate(running))
        return (TelemetrySample(0, {}), *samples, TelemetrySample(10, {}))

    replicas = tuple(
        Replica(name, None, looks(*own)) for name, own in (("a", (4.0,) * 6), ("b", (0.0, 0.0, 0.0, 0.0, 0.0, 4.0)))
    )
    whole = replace(window(), readings=looks(4.0, 4.0, 4.0, 4.0, 4.0, 8.0), replicas=replicas)
    evidence = replace(measured(SuiteText([{"metric": "ttft", "margin": "10%"}]).suite()), telemetry=(whole,))
    means = {one.replica: one.running_mean for one in replica_figures(evidence)}
    assert means == {"a": 4.0, "b": pytest.approx(4 / 6)}


def test_where_a_server_tells_only_how_many_waited_the_queue_follows_and_the_client_knows_the_rest() -> None:
    # 1.5 waiting on average over 10 s and 10 requests: each waited 1.5 s of the 2 s to its first token.
    parts = parts_of([window(during={Gauge.WAITING: 1.5})], [execution().requests])
    assert (parts.queue_s, parts.prefill_s, parts.decode_s) == (1.5, 0.5, 3.0)


def test_seconds_of_a_server_that_counts_no_requests_are_spread_over_those_answered() -> None:
    grown: dict[TelemetryMetric, float] = {Counter.PREFILL_S: 4.0, Counter.DECODE_S: 20.0}
    parts = parts_of([window(grown, {Gauge.WAITING: 0.0})], [execution().requests])
    assert (parts.queue_s, parts.prefill_s, parts.decode_s) == (0.0, 0.4, 2.0)


def test_a_block_that_tells_nothing_makes_no_part_shorter() -> None:
    """Of 2 blocks one has no count, no seconds, or no telemetry: the mean request is that of the other one."""
    later, answered = replace(execution(), block=1), [execution().requests, execution().requests]
    whole = served(3.0, 1.0, 1.0)
    seconds: dict[TelemetryMetric, float] = {Counter.QUEUE_S: 30.0, Counter.PREFILL_S: 10.0}
    without: dict[TelemetryMetric, float] = {
        word: value for word, value in whole.items() if word is not Counter.QUEUE_S
    }
    assert parts_of([window(whole), window(without)], answered).queue_s == pytest.approx(3.0)
    assert parts_of([window(seconds), window({})], answered).prefill_s is None
    blind = replace(window(), block=1, readings=())
    of_one = window({Counter.QUEUE_S: 30.0, **{word: whole[word] for word in (Counter.PREFILL_S, Counter.DECODE_S)}})
    assert "queue 3.00 s" in bottleneck([of_one, blind], [execution(), later], None).why


def test_without_telemetry_or_without_a_queue_nothing_is_known() -> None:
    silent = replace(window(), readings=())
    assert bottleneck([], [execution()], None).name == NOT_KNOWN
    assert bottleneck([silent], [execution()], None).name == NOT_KNOWN
    assert bottleneck([window()], [execution()], None).name == NOT_KNOWN


def test_busy_accelerators_are_told_beside_the_parts() -> None:
    found = bottleneck([window(served(0, 1, 3), {Gauge.GPU_BANDWIDTH: 0.81})], [execution()], None)
    assert found.why.endswith("memory bandwidth used 81.0 %")
