"""The charts of the load: every one with both arms told apart without colour, its words, and its numbers beside it."""

from __future__ import annotations

import functools
import itertools
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from benchgate.model.deployment import Arm
from benchgate.model.records import RequestColumns
from benchgate.model.run import Evidence
from benchgate.report import charts
from benchgate.report.charts import TITLED, Figure, Name, log_ticks, log_x, names_beside, plot, svg_of, y_field
from benchgate.report.comparability import sides
from benchgate.report.sections.load import Axis, axes, knee_sweeps, load_figures
from benchgate.report.sections.stages import StageRow, stage_rows
from benchgate.suite.schema import Suite
from tests.fakes import evidence as fake
from tests.fakes import hostile
from tests.fakes.drills import drill
from tests.fakes.measured import measured

SHAPED = ("#7d8796", "#3d7dd8")


def drawn(evidence: Evidence) -> tuple[Figure, ...]:
    return tuple(figure for sweep in load_figures(rows_of(evidence), {}) for figure in sweep)


def rows_of(evidence: Evidence) -> tuple[StageRow, ...]:
    return stage_rows(sides(evidence, None), Suite.from_stored(evidence.run.suite))


@functools.cache
def usual() -> Mapping[str, Figure]:
    return {figure.anchor: figure for figure in drawn(fake.evidence())}


def texts(figure: Figure) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(figure.svg).iter("text")]


def across(evidence: Evidence) -> tuple[Axis, ...]:
    return axes(rows_of(evidence))


def test_a_sweep_has_its_latencies_its_throughput_and_its_goodput_against_what_it_offers() -> None:
    assert list(usual()) == [
        "figure-ttft-p50",
        "figure-ttft-p95",
        "figure-tpot-p50",
        "figure-tpot-p95",
        "figure-throughput",
        "figure-goodput",
    ]
    assert all("requests in flight" in texts(figure) for figure in usual().values())


def test_each_arm_is_named_on_the_chart_and_drawn_with_its_own_dash_and_shape() -> None:
    for figure in usual().values():
        assert {"baseline", "candidate"} <= set(texts(figure))
        paths = list(ElementTree.fromstring(figure.svg).iter("path"))
        dashes = {path.get("stroke-dasharray") for path in paths if path.get("stroke-width") == "2"} - {None}
        assert len(dashes) == 2
        shapes = [{path.get("d") for path in paths if path.get("fill") == colour} for colour in SHAPED]
        assert shapes[0].isdisjoint(shapes[1])


def test_a_point_has_its_interval_in_the_chart_and_in_the_table() -> None:
    figure = usual()["figure-goodput"]
    assert [column.title for column in figure.table.columns] == ["stage", "arm", "value", "95 % interval"]
    stage, arm, value, interval = figure.table.rows[3]
    low, _, high = interval.partition(" to ")
    assert (stage, arm, value) == ("c4", "candidate", "43.8 %")
    assert float(low.split()[0]) < 43.8 < float(high.split()[0])
    bands = [path for path in ElementTree.fromstring(figure.svg).iter("path") if path.get("opacity") == "0.14"]
    assert {path.get("fill") for path in bands} == set(SHAPED)


def test_text_and_axes_take_the_colour_of_the_page_and_nothing_is_fetched() -> None:
    for figure in usual().values():
        assert 'fill="currentColor"' in figure.svg
        assert "#010203" not in figure.svg
        assert not any(word in figure.svg for word in ("http", "url(", "style=", "<script", "<image", "href"))


def test_who_cannot_see_a_chart_is_told_its_ends() -> None:
    label = ElementTree.fromstring(usual()["figure-ttft-p50"].svg).get("aria-label")
    assert label is not None
    assert "TTFT p50 at c4: baseline 36.0 ms, candidate 51.0 ms. Lower is better." in label
    assert "candidate: 25.0 ms at c1 to 51.0 ms at c4." in label


def test_without_an_slo_there_is_no_goodput_chart_and_no_rule() -> None:
    evidence = fake.evidence()
    evidence = replace(evidence, run=replace(evidence.run, suite={**evidence.run.suite, "slo": None}))
    figures = drawn(evidence)
    assert "figure-goodput" not in [figure.anchor for figure in figures]
    assert not any("SLO" in texts(figure) for figure in figures)


def test_the_target_and_the_slo_are_drawn_and_named_with_their_values() -> None:
    assert "target" in texts(usual()["figure-goodput"])
    assert "SLO" in texts(usual()["figure-ttft-p95"])
    assert "Dotted: SLO 50 ms." in usual()["figure-ttft-p95"].caption
    assert "Dotted: target 95 %." in usual()["figure-goodput"].caption


def with_slo(**bounds: object) -> Evidence:
    evidence = fake.evidence()
    assert isinstance(evidence.run.suite["slo"], dict)
    slo = {**evidence.run.suite["slo"], **bounds}
    return replace(evidence, run=replace(evidence.run, suite={**evidence.run.suite, "slo": slo}))


def test_an_slo_far_beyond_every_value_is_told_and_does_not_flatten_the_curves() -> None:
    figure = drawn(with_slo(ttft_s=30.0))[0]
    assert "SLO 30 s, above the plot." in figure.caption
    assert "SLO" not in texts(figure)


def test_names_at_the_right_edge_never_cover_each_other() -> None:
    names = [Name(str(i), at, "#000000", "circle") for i, at in enumerate((165.0, 3.0, 166.0, 1.0, 169.0, 400.0))]
    first = names_beside(names)[0]["data"]
    assert isinstance(first, dict)
    heights = sorted(value["pixel"] for value in first["values"])
    assert all(lower - upper >= 12 for upper, lower in itertools.pairwise(heights))
    assert heights[0] >= 0 and heights[-1] <= 170


def test_an_infinite_quantile_is_named_and_not_drawn() -> None:
    evidence = replace(fake.evidence(), load=fake.load(failing_arm=Arm.CANDIDATE))
    p50 = drawn(evidence)[0]
    assert "Not drawn, because too many requests failed: c1 candidate, c4 candidate." in p50.caption
    assert "candidate" not in texts(p50)
    assert p50.table.rows[1][2] == "∞"


def test_a_run_in_which_everything_failed_has_no_latency_chart() -> None:
    observations = tuple(
        fake.load_observation("c1", arm, 0, position, all_failed=True) for position, arm in enumerate(Arm)
    )
    anchors = [figure.anchor for figure in drawn(replace(fake.evidence(), load=observations))]
    assert anchors == ["figure-throughput", "figure-goodput"]


def sweep(*stages: dict[str, object]) -> Evidence:
    """The hand-written run with these stages in the suite, and what was measured at c1 under each of their names."""
    evidence = fake.evidence()
    stored: dict[str, Any] = Suite.from_stored(evidence.run.suite).to_stored()
    stored["load"]["sweep"] = [{"requests": fake.REQUESTS, **stage} for stage in stages]
    template = [o for o in fake.load() if o.stage == "c1"]
    load = tuple(replace(o, stage=str(stage["name"])) for stage in stages for o in template)
    return replace(evidence, load=load, run=replace(evidence.run, suite=stored))


def test_stages_of_one_kind_stand_where_their_load_is_and_others_by_their_names() -> None:
    (rates,) = across(sweep({"name": "slow", "rate_rps": 2.0}, {"name": "fast", "rate_rps": 8.0}))
    assert (rates.title, rates.levels) == ("requests offered per second", {"slow": 2.0, "fast": 8.0})
    (alike,) = across(sweep({"name": "short", "concurrency": 4}, {"name": "long", "concurrency": 4}))
    (alone,) = across(sweep({"name": "c4", "concurrency": 4}))
    assert (alike.levels, alike.stages, alone.stages) == ({}, ("short", "long"), ("c4",))


def test_two_kinds_of_load_have_charts_of_their_own_the_larger_one_first() -> None:
    loops: list[dict[str, object]] = [{"name": f"c{level}", "concurrency": level} for level in (1, 2, 4)]
    found = across(sweep({"name": "slow", "rate_rps": 2.0}, *loops, {"name": "fast", "rate_rps": 8.0}))
    assert [one.stages for one in found] == [("c1", "c2", "c4"), ("slow", "fast")]
    one_rate = across(sweep({"name": "slow", "rate_rps": 2.0}, *loops))
    assert [(one.title, one.stages) for one in one_rate] == [
        ("requests in flight", ("c1", "c2", "c4")),
        ("stage", ("slow",)),
    ]
    figures = drawn(sweep({"name": "slow", "rate_rps": 2.0}, *loops[:2]))
    anchors = [figure.anchor for figure in figures]
    assert len({figure.table.caption for figure in figures}) == 12
    assert (len(anchors), anchors[0], anchors[6]) == (12, "figure-ttft-p50", "figure-ttft-p50_2")


def test_stages_of_unlike_requests_are_no_levels_of_one_curve_and_have_no_knee() -> None:
    def loops(**of_the_last: object) -> Evidence:
        levels: list[dict[str, object]] = [{"name": f"c{level}", "concurrency": level} for level in (1, 2, 4, 8, 16)]
        return sweep(*levels[:3], *({**level, **of_the_last} for level in levels[3:]))

    assert [one.stages for one in across(loops())] == [("c1", "c2", "c4", "c8", "c16")]
    assert knee_sweeps(Suite.from_stored(loops().run.suite), {}) != {}
    unlike = loops(input_tokens=4096)
    assert [one.stages for one in across(unlike)] == [("c1", "c2", "c4"), ("c8", "c16")]
    assert knee_sweeps(Suite.from_stored(unlike.run.suite), {}) == {}


def test_long_names_that_begin_alike_stay_apart() -> None:
    names = [f"a-stage-with-a-long-name-{number}" for number in range(3)]
    (found,) = across(sweep(*({"name": name, "concurrency": 4} for name in names)))
    assert len(set(found.names.values())) == 3
    axis = found.encoding()["axis"]
    assert isinstance(axis, dict)
    assert axis["labelAngle"] == -35


def test_points_of_stages_without_a_common_load_are_joined_by_no_line() -> None:
    figure = drawn(sweep({"name": "short", "concurrency": 4}, {"name": "long", "concurrency": 4}))[0]
    assert {"short", "long"} <= set(texts(figure))
    lines = [path for path in ElementTree.fromstring(figure.svg).iter("path") if path.get("fill") is None]
    assert not [path for path in lines if path.get("stroke") in SHAPED]
    assert figure.title.startswith("TTFT p50 at long: ")


def test_the_knee_of_each_side_stands_in_the_chart_of_throughput() -> None:
    stages = ("c1", "c2", "c4", "c8", "c16")
    suite = drill({"metric": "error_rate", "max": "1%"}, stages=stages)
    rows, knees = rows_of(measured(suite)), {Arm.BASELINE: 4.0, Arm.CANDIDATE: 4.0}
    plain, knee = ({f.anchor: f for f in load_figures(rows, at)[0]}["figure-throughput"] for at in ({}, knees))
    assert "knee" not in plain.caption
    assert "Vertical line: knee." in knee.caption
    assert "knee" in texts(knee) and "knee" not in texts(plain)


def test_hostile_stage_names_stay_text() -> None:
    template = fake.load()[0]
    evidence = fake.evidence()
    plain = {element.tag for figure in usual().values() for element in ElementTree.fromstring(figure.svg).iter()}
    template = replace(template, requests=RequestColumns.pack([fake.failed_request(0), fake.request(1, 0, 9, 9, 0)]))
    load = tuple(
        replace(template, stage=text, arm=arm, position=2 * i + j)
        for i, text in enumerate(hostile.TEXTS)
        for j, arm in enumerate(Arm)
    )
    suite = {**evidence.run.suite, "load": None, "slo": None}
    named = drawn(replace(evidence, load=load, run=replace(evidence.run, suite=suite)))
    assert len(named) == 2  # no SLO and no pace, so that there are few: each has every text
    for figure in named:
        root = ElementTree.fromstring(figure.svg)
        assert {element.tag for element in root.iter()} <= plain
        assert not [name for element in root.iter() for name in element.attrib if name.startswith("on")]
        assert any("<script>" in text for text in texts(figure))


def test_the_same_numbers_give_the_same_bytes() -> None:
    first = drawn(fake.evidence())
    charts._drawn.cache_clear()
    assert drawn(fake.evidence()) == first


def test_an_axis_that_multiplies_has_round_ticks_and_few_of_them() -> None:
    assert log_ticks(1.0, 1000.0) == [1.0, 10.0, 100.0, 1000.0]
    assert log_ticks(20.0, 60.0) == [20.0, 30.0, 40.0, 50.0, 60.0]
    assert log_ticks(1e-3, 1e6) == [0.001, 0.1, 10.0, 1000.0, 100000.0]
    assert log_ticks(30.2, 58.3) == [35.0, 40.0, 45.0, 50.0, 55.0]
    assert log_ticks(41.0, 42.0) == [41.0, 41.4, 41.8]
    axis = log_x("x", 1.0, 16.0, at=[1.0, 16.0])["axis"]
    assert isinstance(axis, dict)
    assert axis["values"] == [1.0, 16.0]


def test_what_cannot_be_seen_is_drawn_as_something_that_can() -> None:
    words = {"type": "text", "text": "a\ud800\x1b\u202eb"}
    layer = {"data": {"values": [{"y": 1}]}, "mark": words, "encoding": {"y": y_field(2.0)}}
    svg = svg_of(plot([layer], "title\x07", 2.0), "label")
    assert "a\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}b" in svg
    assert svg.encode() and "\x07" not in svg


def test_a_mark_has_its_words_as_its_title_and_the_drawing_is_otherwise_one_image() -> None:
    mark = {"type": "point"} | TITLED
    layer = {"data": {"values": [{"y": 1, "title": '"<b>" & c4'}]}, "mark": mark, "encoding": {"y": y_field(2.0)}}
    svg = svg_of(plot([layer], "title", 2.0), "label")
    (mark_of,) = ElementTree.fromstring(svg).iterfind(".//path[title]")
    assert mark_of.findtext("title") == '"<b>" & c4'
    assert svg.count("role=") == svg.count('role="img"') == 1
