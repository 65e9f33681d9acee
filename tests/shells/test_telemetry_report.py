"""Telemetry in the report: a column only for what was told, silence said once, joules per token, the bottleneck."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence, LoadObservation
from benchgate.model.telemetry import Counter, Gauge, Reading, TelemetryWindow, Word
from benchgate.report.html import render_html
from benchgate.report.markdown import render_markdown
from benchgate.report.telemetry_section import TelemetrySection
from benchgate.report.view import report_view
from tests.fakes import evidence as fakes


def window(seen: LoadObservation, during: dict[Word, float], grown: dict[Word, float]) -> TelemetryWindow:
    looks = (
        Reading(0, dict.fromkeys(grown, 0.0)),
        Reading(1, {Gauge.RUNNING: 4.0, **during}),
        Reading(2, {**grown, Gauge.RUNNING: 0.0}),
    )
    return TelemetryWindow(seen.stage, seen.arm, seen.block, seen.position, "vllm", 2.0, True, looks)


def silent(seen: LoadObservation) -> TelemetryWindow:
    return TelemetryWindow(seen.stage, seen.arm, seen.block, seen.position, None, 2.0, False, (), ("HTTP 404",))


def told(of: Callable[[LoadObservation], TelemetryWindow]) -> Evidence:
    evidence = fakes.evidence()
    return replace(evidence, telemetry=tuple(of(o) for o in evidence.load))


def section(evidence: Evidence) -> TelemetrySection:
    found = report_view(evidence, fakes.verdict()).telemetry
    assert found is not None
    return found


def busy(seen: LoadObservation) -> TelemetryWindow:
    waiting = 6.0 if seen.arm is Arm.CANDIDATE else 0.0
    queue: dict[Word, float] = {Counter.QUEUE_S: waiting * 24, Counter.QUEUED: 24}
    parts: dict[Word, float] = {Counter.PREFILL_S: 24.0, Counter.PREFILLED: 24, Counter.DECODE_S: 48.0,
                                Counter.DECODED: 24}  # fmt: skip
    return window(seen, {Gauge.WAITING: waiting, Gauge.GPU_POWER: 96.0}, {**queue, **parts})


def test_a_run_in_which_nobody_looked_has_no_such_part() -> None:
    assert report_view(fakes.evidence(), fakes.verdict()).telemetry is None


def test_columns_stand_for_what_was_told_and_for_nothing_else() -> None:
    table = section(told(busy)).table
    assert table is not None
    titles = [column.title for column in table.columns]
    assert titles == [
        "stage", "arm", "running", "waiting", "waiting, most", "queue wait", "power, W", "per token", "per good token",
        "bottleneck",
    ]  # fmt: skip
    by_place = {row[:2]: dict(zip(titles, row, strict=True)) for row in table.rows}
    assert by_place["c1", "candidate"]["queue wait"] == "6.00 s"
    assert by_place["c1", "candidate"]["bottleneck"] == "queue"
    assert by_place["c1", "baseline"]["bottleneck"] == "decode"
    # 96 W for 2 s over 24 answers of 8 tokens each in every block.
    assert by_place["c1", "baseline"]["per token"] == "1.00 J"


def test_who_tells_nothing_is_named_once() -> None:
    found = section(told(lambda o: silent(o) if o.arm is Arm.CANDIDATE else busy(o)))
    assert found.silent == ("candidate: HTTP 404",)
    assert {row.role for row in found.rows} == {Arm.BASELINE}
    nobody = section(told(silent))
    assert nobody.table is None
    assert nobody.silent == ("baseline: HTTP 404", "candidate: HTTP 404")


def test_html_and_markdown_show_it() -> None:
    evidence = told(busy)
    html = render_html(evidence, fakes.verdict())
    assert "What the servers said of themselves" in html
    assert "of a mean request: queue" in html
    assert "What the servers said of themselves" in render_markdown(evidence, fakes.verdict())


def test_what_telemetry_cautions_of_stands_in_the_box_of_fairness() -> None:
    def restarted(seen: LoadObservation) -> TelemetryWindow:
        marker = "b" if seen.block >= 2 else "a"
        found = busy(seen)
        return replace(found, readings=tuple(replace(reading, marker=marker) for reading in found.readings))

    view = report_view(told(restarted), fakes.verdict())
    assert [caution for caution in view.fairness.cautions if "restarted before block 3" in caution]


def test_the_longest_queue_is_drawn_look_by_look_where_there_was_one() -> None:
    def queueing(seen: LoadObservation) -> TelemetryWindow:
        depth = 9.0 if (seen.stage, seen.block, seen.arm) == ("c4", 2, Arm.CANDIDATE) else 1.0
        looks = (Reading(at_s, {Gauge.RUNNING: 1.0, Gauge.WAITING: depth * at_s}) for at_s in (0.0, 0.5, 1.5, 2.0))
        return replace(busy(seen), readings=tuple(looks))

    evidence = told(queueing)
    timeline = section(evidence).longest_queue
    assert timeline is not None
    assert (timeline.stage, timeline.block) == ("c4", 2)
    assert set(timeline.looks) == {
        (Arm.BASELINE, 0.5, 0.5), (Arm.BASELINE, 1.5, 1.5), (Arm.CANDIDATE, 0.5, 4.5), (Arm.CANDIDATE, 1.5, 13.5),
    }  # fmt: skip
    assert 'id="figure-queue"' in render_html(evidence, fakes.verdict())
    assert section(told(silent)).longest_queue is None
