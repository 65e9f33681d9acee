"""Telemetry in the report: a column only for what was told, silence said once, joules per token, the bottleneck."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from benchgate.gate.evidence.client_strain import paced_by_client
from benchgate.gate.summary.replica_figures import replica_figures
from benchgate.model.deployment import Arm
from benchgate.model.metric import Slo
from benchgate.model.records import RequestColumns
from benchgate.model.run import ClientUse, Evidence, LoadObservation
from benchgate.model.telemetry import (
    Counter,
    Gauge,
    Replica,
    Role,
    TelemetryMetric,
    TelemetrySample,
    TelemetryWindow,
)
from benchgate.model.verdict import Outcome, Verdict
from benchgate.report import display
from benchgate.report.comparability import sides
from benchgate.report.document import verdict_document
from benchgate.report.section import Section
from benchgate.report.sections.servers import Timeline, stage_telemetry, timeline_figures
from benchgate.report.sections.servers import timeline as timeline_of
from benchgate.report.view import report_view
from benchgate.suite.schema import Suite
from tests.fakes import evidence as fakes
from tests.fakes.rendered import render_html, render_markdown


def window(
    seen: LoadObservation, during: dict[TelemetryMetric, float], grown: dict[TelemetryMetric, float]
) -> TelemetryWindow:
    looks = (
        TelemetrySample(0, dict.fromkeys(grown, 0.0)),
        TelemetrySample(1, {Gauge.RUNNING: 4.0, **during}),
        TelemetrySample(2, {**grown, Gauge.RUNNING: 0.0}),
    )
    return TelemetryWindow(seen.stage, seen.arm, seen.block, seen.position, "vllm", 2.0, True, looks)


def silent(seen: LoadObservation) -> TelemetryWindow:
    return TelemetryWindow(seen.stage, seen.arm, seen.block, seen.position, None, 2.0, False, (), ("HTTP 404",))


def told(of: Callable[[LoadObservation], TelemetryWindow]) -> Evidence:
    evidence = fakes.evidence()
    return replace(evidence, telemetry=tuple(of(o) for o in evidence.load))


def section(evidence: Evidence) -> Section:
    found = report_view(evidence, fakes.verdict()).section("servers")
    assert found is not None
    return found


def busy(seen: LoadObservation) -> TelemetryWindow:
    waiting = 6.0 if seen.arm is Arm.CANDIDATE else 0.0
    queue: dict[TelemetryMetric, float] = {Counter.QUEUE_S: waiting * 24, Counter.QUEUED: 24}
    parts: dict[TelemetryMetric, float] = {Counter.PREFILL_S: 24.0, Counter.PREFILLED: 24, Counter.DECODE_S: 48.0,
                                Counter.DECODED: 24}  # fmt: skip
    return window(seen, {Gauge.WAITING: waiting, Gauge.GPU_POWER: 96.0}, {**queue, **parts})


def test_a_run_in_which_nobody_looked_has_no_such_part() -> None:
    assert report_view(fakes.evidence(), fakes.verdict()).section("servers") is None


def test_columns_stand_for_what_was_told_and_for_nothing_else() -> None:
    (table,) = section(told(busy)).tables
    titles = [column.title for column in table.columns]
    assert titles == [
        "stage", "arm", "running", "waiting", "waiting, max", "queue wait", "power, W", "energy per token",
        "energy per good token", "bottleneck",
    ]  # fmt: skip
    by_place = {row[:2]: dict(zip(titles, row, strict=True)) for row in table.rows}
    assert by_place["c1", "candidate"]["queue wait"] == "6.00 s"
    assert by_place["c1", "candidate"]["bottleneck"] == "queue"
    assert by_place["c1", "baseline"]["bottleneck"] == "decode"
    # 96 W for 2 s over 24 answers of 8 tokens each in every block.
    assert by_place["c1", "baseline"]["energy per token"] == "1.00 J"


def test_every_answer_of_a_class_without_an_slo_is_good_as_in_the_check() -> None:
    """Two classes of 24 answers each, of which one has an SLO that none of its answers meets."""
    evidence = told(busy)
    suite = Suite.from_stored(evidence.run.suite)
    row = next(row for row in stage_telemetry(sides(evidence, None), suite) if row.stage == "c1")
    (one, *_) = row.executions
    classes = tuple(replace(one, stage=f"c1/{name}") for name in ("chat", "batch"))
    mixed = replace(row, windows=row.windows[:1], executions=classes, slos={"c1/chat": Slo(ttft_s=1e-9)})
    assert mixed.joules_per_token(of_good=False) == pytest.approx(96 * 2 / (24 * 8 * 2))
    assert mixed.joules_per_token(of_good=True) == pytest.approx(96 * 2 / (24 * 8))


def hitting(seen: LoadObservation) -> TelemetryWindow:
    """A counter of cache hits that is on the page from the first hit on: after the first block, not before it."""
    whole = window(seen, {}, {Counter.PREFIX_QUERIES: 1000.0, Counter.PREFIX_HITS: 500.0})
    if seen.block == 0:
        whole = replace(whole, readings=(TelemetrySample(0, {Counter.PREFIX_QUERIES: 0.0}), *whole.readings[1:]))
    return replace(whole, replicas=(Replica("r:1", None, whole.readings),))


def test_a_share_is_of_the_blocks_that_tell_both_of_its_counters() -> None:
    evidence = told(hitting)
    verdict = replace(fakes.verdict(), replicas=replica_figures(evidence))
    found = report_view(evidence, verdict).section("servers")
    assert found is not None
    for table in found.tables:
        titles = [column.title for column in table.columns]
        assert {row[titles.index("prefix cache hits")] for row in table.rows} == {"50.0 %"}


def of_a_fleet(seen: LoadObservation) -> TelemetryWindow:
    whole = busy(seen)

    def replica(name: str, role: Role, pace_s: float, *, restarts: bool = False) -> Replica:
        after: dict[TelemetryMetric, float] = {
            Counter.REQUESTS: 12.0,
            Counter.DECODE_S: pace_s * 96,
            Counter.GENERATION_TOKENS: 96.0,
        }
        samples = (
            TelemetrySample(0, dict.fromkeys(after, 24.0 if restarts else 0.0)),
            TelemetrySample(1, {Gauge.RUNNING: 2.0, Gauge.KV_USAGE: 0.5}),
            TelemetrySample(2, {**after, Gauge.RUNNING: 0.0}),
        )
        return Replica(name, role, samples)

    slow = 0.03 if seen.arm is Arm.CANDIDATE else 0.01
    replicas = (
        replica("p:1", Role.PREFILL, 0.01, restarts=seen.block == 0),
        replica("d:1", Role.DECODE, 0.01),
        replica("d:2", Role.DECODE, slow),
        replica("d:3", Role.DECODE, 0.01),
    )
    return replace(whole, replicas=replicas)


def test_replicas_and_roles_have_figures_of_their_own() -> None:
    evidence = told(of_a_fleet)
    verdict = replace(fakes.verdict(), replicas=replica_figures(evidence))
    found = report_view(evidence, verdict).section("servers")
    assert found is not None
    _, table = found.tables
    titles = [column.title for column in table.columns]
    assert titles == [
        "stage", "arm", "replica", "role", "requests", "output tokens", "running", "time per token", "KV cache, mean",
        "KV cache, max", "restarts",
    ]  # fmt: skip
    rows = {row[:4]: dict(zip(titles, row, strict=True)) for row in table.rows}
    assert rows["c1", "candidate", "d:2", "decode"]["time per token"] == "30.0 ms"
    assert rows["c1", "candidate", "all", "decode"]["time per token"] == "16.7 ms"
    assert rows["c1", "candidate", "all", "decode"]["running"] == "6.00"
    assert rows["c1", "candidate", "p:1", "prefill"]["restarts"] == "1"
    assert rows["c1", "candidate", "p:1", "prefill"]["time per token"] == display.NOT_APPLICABLE
    replicas = verdict_document(evidence.run, verdict)["replicas"]
    assert isinstance(replicas, list) and len(replicas) == len(rows)
    of_decode = next(one for one in replicas if one["replica"] is None and one["role"] == "decode")
    assert of_decode["requests"] == 36.0 * 4 and of_decode["queue_s"] is None
    assert "replicas" not in verdict_document(evidence.run, fakes.verdict())


def test_who_tells_nothing_is_named_once() -> None:
    found = section(told(lambda o: silent(o) if o.arm is Arm.CANDIDATE else busy(o)))
    assert found.sentences[-1] == "Telemetry of the candidate: HTTP 404."
    assert {row[1] for row in found.tables[0].rows} == {"baseline"}
    nobody = section(told(silent))
    assert not nobody.tables
    assert nobody.sentences == ("Telemetry of the baseline: HTTP 404.", "Telemetry of the candidate: HTTP 404.")


@pytest.mark.usefixtures("no_figures")
def test_html_and_markdown_show_it() -> None:
    evidence = told(busy)
    html = render_html(evidence, fakes.verdict())
    assert "Telemetry of servers and accelerators" in html
    assert "of a mean request: queue" in html
    assert "### Server telemetry" in render_markdown(evidence, fakes.verdict())


def test_what_telemetry_cautions_of_stands_in_the_box_of_fairness() -> None:
    def restarted(seen: LoadObservation) -> TelemetryWindow:
        marker = "b" if seen.block >= 2 else "a"
        found = busy(seen)
        return replace(found, readings=tuple(replace(reading, marker=marker) for reading in found.readings))

    view = report_view(told(restarted), fakes.verdict())
    assert [caution for caution in view.fairness.cautions if "restarted before block 3" in caution]


def queueing(seen: LoadObservation) -> TelemetryWindow:
    depth = 9.0 if (seen.stage, seen.block, seen.arm) == ("c4", 2, Arm.CANDIDATE) else 1.0
    looks = (
        TelemetrySample(at_s, {Gauge.RUNNING: 1.0, Gauge.WAITING: depth * at_s, Gauge.KV_USAGE: 0.25 * at_s})
        for at_s in (0.0, 0.5, 1.0, 1.5, 2.0)
    )
    return replace(busy(seen), readings=tuple(looks))


def timeline_or_none(evidence: Evidence, verdict: Verdict) -> Timeline | None:
    suite = Suite.from_stored(evidence.run.suite)
    rows = stage_telemetry(sides(evidence, None), suite)
    return timeline_of(rows, verdict, paced_by_client(suite, evidence))


def timeline(evidence: Evidence, verdict: Verdict | None = None) -> Timeline:
    found = timeline_or_none(evidence, verdict or fakes.verdict())
    assert found is not None
    return found


def test_the_longest_queue_is_shown_over_time_beside_what_its_users_waited_for() -> None:
    found = timeline(told(queueing))
    assert (found.stage, found.block, found.why) == ("c4", 2, "where the queue was longest")
    waiting, running, cache = found.gauges
    assert [(one.arm, one.at_s, one.value) for one in waiting.samples] == [
        (Arm.BASELINE, 0.5, 0.5), (Arm.BASELINE, 1.0, 1.0), (Arm.BASELINE, 1.5, 1.5),
        (Arm.CANDIDATE, 0.5, 4.5), (Arm.CANDIDATE, 1.0, 9.0), (Arm.CANDIDATE, 1.5, 13.5),
    ]  # fmt: skip
    assert (running.name, cache.samples[0].value) == ("Requests running", 12.5)
    assert len(found.ttft) == 2 * fakes.REQUESTS
    failed = [one for one in found.ttft if math.isinf(one.value)]
    assert [(one.arm, round(one.at_s, 3)) for one in failed] == [(Arm.CANDIDATE, 0.15), (Arm.CANDIDATE, 0.18)]


def paced(evidence: Evidence, *blocks: int) -> Evidence:
    busy_client = ClientUse(cpu_s=2.0, wall_s=1.0, workers=1)
    load = tuple(replace(o, client=busy_client) if o.block in blocks else o for o in evidence.load)
    return replace(evidence, load=load)


def test_a_block_in_which_the_load_generator_set_the_pace_is_not_the_one_shown() -> None:
    found = timeline(paced(told(queueing), 2))
    assert found.block != 2 and "load generator" not in found.why
    every = timeline(paced(told(queueing), *range(fakes.BLOCKS)))
    assert every.block == 2
    assert every.why.startswith("where the queue was longest; the load generator was the bottleneck")


def test_its_charts_share_one_axis_and_mark_what_failed() -> None:
    figures = timeline_figures(timeline(told(queueing)))
    assert [figure.anchor.removeprefix("figure-timeline-") for figure in figures] == [
        "ttft", "waiting_requests", "running_requests", "kv_usage_ratio",
    ]  # fmt: skip
    across = [re.findall(r">([0-9.]+)</text>", figure.svg.partition("seconds into the stage")[0]) for figure in figures]
    assert across[0] and all(ticks == across[0] for ticks in across)
    assert "Cross: failed request (2 drawn)." in figures[0].caption


def test_every_look_and_every_request_says_what_it_was() -> None:
    ttft, waiting, _, cache = timeline_figures(timeline(told(queueing)))
    words = [re.findall(r"<title>([^<]*)</title>", figure.svg) for figure in (ttft, waiting, cache)]
    assert len(words[0]) == 2 * fakes.REQUESTS
    assert "candidate, 150 ms into the stage: failed" in words[0]
    assert "candidate, 1.00 s into the stage: waiting 9.00" in words[1]
    assert all(re.fullmatch(r"\w+, [\d.]+ m?s into the stage: KV cache [\d.]+ %", one) for one in words[2]) and words[2]


def test_where_nothing_waited_the_stage_of_a_failing_check_is_shown() -> None:
    def calm(seen: LoadObservation) -> TelemetryWindow:
        looks = (TelemetrySample(at_s, {Gauge.RUNNING: 1.0, Gauge.WAITING: 0.0}) for at_s in (0.0, 0.5, 1.0, 1.5, 2.0))
        return replace(busy(seen), readings=tuple(looks))

    found = timeline(told(calm))
    assert (found.stage, found.block, found.why) == ("c4", 0, "where a check fails")
    assert [gauged.name for gauged in found.gauges] == ["Requests running"]
    assert found.zero == ("No sample of this block has a waiting request.",)
    passed = timeline(told(calm), fakes.verdict(Outcome.PASS))
    assert (passed.block, passed.why) == (fakes.BLOCKS - 1, "the last sampled block")


def test_nobody_who_looked_three_times_leaves_no_timeline() -> None:
    assert timeline_or_none(told(silent), fakes.verdict()) is None
    assert timeline_or_none(told(busy), fakes.verdict()) is None


def test_of_many_requests_the_slowest_of_each_stretch_is_kept() -> None:
    evidence = told(queueing)
    many = [fakes.request(i, 2, 1, 20, 5) for i in range(400)]
    many[200] = replace(many[200], chunk_ns=tuple(ns + 500 * fakes.MS for ns in many[200].chunk_ns))
    columns = RequestColumns.pack(many)
    load = tuple(replace(o, requests=columns) if (o.stage, o.block) == ("c4", 2) else o for o in evidence.load)
    found = timeline(replace(evidence, load=load))
    assert (found.requests, len(found.ttft)) == (800, 160)
    assert max(one.value for one in found.ttft) > 0.5
