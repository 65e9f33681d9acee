"""One number over many runs: as a chart in a page, as a picture of its own, and as a table for other programs."""

from __future__ import annotations

import csv
import io
import re
import struct
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import pytest

from benchgate.cli.history import TrendFormat, require_place, trend_document
from benchgate.errors import UsageError
from benchgate.model.deployment import Arm
from benchgate.model.run import TrendPoint
from benchgate.model.verdict import Outcome
from benchgate.report.charts import svg_file, svg_of
from benchgate.report.screen import Screen
from benchgate.report.trend import (
    MOST_SERIES,
    TrendChart,
    TrendMark,
    TrendSeries,
    TrendValue,
    chart_of,
    day_labels,
    trend_spec,
)


def inline_svg(chart: TrendChart, label: str) -> str:
    return svg_of(trend_spec(chart), label)


SVG = "{http://www.w3.org/2000/svg}"


def values(*numbers: float, limits: float | None = 0.1, promoted: int | None = None) -> tuple[TrendValue, ...]:
    """One value a run; all but the last let through."""
    last = len(numbers) - 1
    lower, upper = ([None if limits is None else n * (1 + way * limits) for n in numbers] for way in (-1, 1))
    return tuple(
        TrendValue(at, number, lower[at], upper[at], promotes=at < last, promoted=at == promoted)
        for at, number in enumerate(numbers)
    )


def chart(*series: TrendSeries, marks: tuple[TrendMark, ...] = (), breaks: tuple[int, ...] = ()) -> TrendChart:
    days = tuple(f"2026-01-{day:02}" for day in range(1, 1 + max(len(one.values) for one in series)))
    return TrendChart("ttft", "TTFT p50", days, series, marks, frozenset(breaks))


def point(run: str, value: float, **changes: object) -> TrendPoint:
    fields = {"label": run, "suite": "s", "deployment": "new", "outcome": Outcome.PASS, "stage": "c4", "task": None}
    where = {"run_id": run, "started_at": "2026-01-01T00:00:00Z", "arm": Arm.CANDIDATE, "n": 20, "value": value}
    return TrendPoint(**{**where, **fields, **changes})  # type: ignore[arg-type]  # a test may put anything in


def paths(svg: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(svg).iter("path"))


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter("text")]


def test_the_inline_chart_takes_the_pages_colours_and_fetches_nothing() -> None:
    svg = inline_svg(chart(TrendSeries("c4", values(0.1, 0.12, 0.11))), 'a "label" <b>')
    assert 'fill="currentColor"' in svg and "#010203" not in svg
    assert not any(word in svg for word in ("http", "url(", "style=", "<script", "<image", "href"))
    assert ElementTree.fromstring(svg).get("aria-label") == 'a "label" <b>'
    assert svg == inline_svg(chart(TrendSeries("c4", values(0.1, 0.12, 0.11))), 'a "label" <b>')


def test_the_axis_is_in_milliseconds_and_the_days_stand_below() -> None:
    found = texts(inline_svg(chart(TrendSeries("c4", values(0.1, 0.12, 0.11))), ""))
    assert "TTFT p50, ms" in found and "120" in found
    assert {"2026-01-01", "2026-01-03"} <= set(found)


def test_who_was_not_let_through_is_hollow_and_who_was_promoted_has_a_ring() -> None:
    svg = inline_svg(chart(TrendSeries("c4", values(0.1, 0.12, 0.11, promoted=1))), "")
    points = [
        p for p in paths(svg) if (p.get("transform") or "").startswith("translate(") and "M-" in (p.get("d") or "")
    ]
    hollow = [p for p in points if p.get("fill-opacity") == "0" and p.get("stroke") == "#3d7dd8"]
    filled = [p for p in points if p.get("fill") == "#3d7dd8" and p.get("fill-opacity") is None]
    rings = [p for p in paths(svg) if p.get("stroke") == "currentColor" and p.get("stroke-width") == "1.5"]
    assert (len(rings), len(hollow), len(filled)) == (1, 1, 3)  # of three runs, and of the name beside them


def test_what_is_no_use_is_a_cross_and_what_was_blocked_is_hollow() -> None:
    drawn = chart_of(
        [point("a", 1), point("b", 2, outcome=Outcome.BLOCK), point("c", 3, outcome=Outcome.INVALID)], "m", None
    )
    assert [(one.promotes, one.invalid) for one in drawn.series[0].values] == [
        (True, False),
        (False, False),
        (False, True),
    ]
    strokes = {}
    for outcome in (Outcome.BLOCK, Outcome.INVALID):
        svg = inline_svg(chart_of([point("a", 1, outcome=outcome)], "m", None), "")
        hollow = [p.get("d") or "" for p in paths(svg) if p.get("transform") and p.get("stroke") == "#3d7dd8"]
        strokes[outcome] = [outline.count("M") for outline in hollow]
    assert strokes == {Outcome.BLOCK: [1], Outcome.INVALID: [2]}  # one outline, two strokes across each other


def test_there_is_room_for_the_whole_name_of_each_line() -> None:
    def width(name: str) -> float:
        drawn = ElementTree.fromstring(inline_svg(chart(TrendSeries(name, values(0.1, 0.2))), ""))
        return float((drawn.get("viewBox") or "").split()[2])

    assert width("c4") == width("arithmetic") < width("fast arithmetic") < width("fast arithmetics")
    assert width("fast arithmetic") - width("c4") >= 16 + 6 * len("fast arithmetic") - 84


def test_what_was_promoted_against_its_verdict_is_ringed_and_not_filled() -> None:
    of = [point("a", 1, promoted="overridden", outcome=outcome) for outcome in (Outcome.BLOCK, Outcome.INVALID)]
    for one, became in zip(of, ("not let through", "INVALID"), strict=True):
        svg = inline_svg(chart_of([one], "ttft", None), "")
        assert [p for p in paths(svg) if p.get("fill-opacity") == "0" and p.get("stroke") == "#3d7dd8"]
        assert [p for p in paths(svg) if p.get("stroke") == "currentColor" and p.get("stroke-width") == "1.5"]
        (told,) = (title.text for title in ElementTree.fromstring(svg).iter("title"))
        assert told == f"c4, a, 2026-01-01 00:00 UTC, promoted, {became}: 1.00 s"


def test_lines_with_one_value_stand_beside_each_other() -> None:
    svg = inline_svg(chart(*(TrendSeries(name, values(0.1, 0.1)) for name in ("c4", "c8"))), "")
    at = {
        colour: {
            p.get("transform") for p in paths(svg) if colour in (p.get("fill"), p.get("stroke")) and p.get("transform")
        }
        for colour in ("#3d7dd8", "#c2672a")
    }
    assert all(len(places) >= 2 for places in at.values()) and not at["#3d7dd8"] & at["#c2672a"]


def test_runs_of_one_day_are_told_apart_by_their_times() -> None:
    began = ["2026-01-02T09:05:00.000Z", "2026-01-02T11:00:00.000Z", "2026-01-02T12:30:00.000Z"]
    assert day_labels(began) == ("09:05\n2026-01-02", "11:00", "12:30")
    assert day_labels([*began, "2026-01-03T00:00:00.000Z"]) == ("2026-01-02",) * 3 + ("2026-01-03",)
    assert day_labels(began[:1]) == ("2026-01-02",) and day_labels([]) == ()


def test_which_end_is_the_newest_is_said_in_words_and_days_do_not_meet() -> None:
    found = texts(inline_svg(chart(TrendSeries("c4", values(*[0.1] * 20))), ""))
    assert {"← oldest", "newest →", "2026-01-01", "2026-01-10", "2026-01-20"} <= set(found)
    few = texts(inline_svg(chart(TrendSeries("c4", values(*[0.1] * 7))), ""))
    assert {"2026-01-01", "2026-01-07"} <= set(few) and "2026-01-04" not in few
    alone = texts(inline_svg(chart(TrendSeries("c4", values(0.1))), ""))
    assert not {"← oldest", "newest →"} & set(alone)


def test_a_point_says_its_line_its_run_and_its_value() -> None:
    limits = {"lower": 0.09, "upper": 0.12}
    points = [point("a", 0.1, **limits), point("b<b>", 0.2, outcome=Outcome.BLOCK), point("c", 0.3, promoted="yes")]
    svg = inline_svg(chart_of(points, "ttft", "p50"), "")
    assert [one.text for one in ElementTree.fromstring(svg).iter("title")] == [
        "c4, a, 2026-01-01 00:00 UTC: 100 ms (90.0 ms to 120 ms)",
        "c4, c, 2026-01-01 00:00 UTC, promoted: 300 ms",
        "c4, b<b>, 2026-01-01 00:00 UTC, not let through: 200 ms",
    ]


def test_a_band_ends_where_a_line_may_not_go_through() -> None:
    whole = inline_svg(chart(TrendSeries("", values(1, 2, 3, 4))), "")
    broken = inline_svg(chart(TrendSeries("", values(1, 2, 3, 4)), breaks=(2,), marks=(TrendMark(2, "H"),)), "")
    bands = [
        sum(p.get("opacity") == "0.18" or p.get("fill-opacity") == "0.18" for p in paths(s)) for s in (whole, broken)
    ]
    assert bands == [1, 2]
    assert "H" in texts(broken) and "H" not in texts(whole)


def test_marks_of_one_run_share_one_rule() -> None:
    svg = inline_svg(chart(TrendSeries("", values(1, 2)), marks=(TrendMark(1, "S"), TrendMark(1, "H"))), "")
    assert "HS" in texts(svg)


def test_lines_that_end_at_one_value_have_names_that_do_not_cover_each_other() -> None:
    series = [TrendSeries(f"stage {n}", values(0.1, 0.1)) for n in range(MOST_SERIES)]
    svg = inline_svg(chart(*series), "")
    names = [e for e in ElementTree.fromstring(svg).iter("text") if (e.text or "").startswith("stage")]
    heights = sorted(float(re.findall(r",(-?[0-9.]+)\)", e.get("transform") or "")[0]) for e in names)
    assert len(heights) == MOST_SERIES
    assert all(b - a >= 14.9 for a, b in pairwise(heights))


@pytest.mark.parametrize("limits", [0.1, None])
def test_a_single_run_is_drawn(limits: float | None) -> None:
    svg = inline_svg(chart(TrendSeries("c4", values(0.1, limits=limits))), "")
    assert "2026-01-01" in texts(svg)


@pytest.mark.parametrize("apart", [0.0, 1e-12, 1e-8, 1e-5])
def test_runs_of_almost_one_value_are_drawn(apart: float) -> None:
    svg = inline_svg(chart(TrendSeries("c4", values(100.0, 100.0 * (1 + apart), limits=None))), "l")
    assert "c4" in texts(svg)


def test_no_name_of_a_stage_becomes_markup() -> None:
    svg = inline_svg(chart(TrendSeries('</text><script>"', values(1, 2))), "")
    assert "<script" not in svg
    assert any(text.startswith("</text>") for text in texts(svg))


def test_a_picture_of_its_own_is_whole_and_on_white() -> None:
    svg = svg_file(trend_spec(chart_of([point("a", 0.1), point("b", 0.2)], "ttft", "p50")), "ttft")
    root = ElementTree.fromstring(svg)
    assert root.tag == f"{SVG}svg" and root.find(f"{SVG}rect") is not None
    assert "currentColor" not in svg


def test_a_png_has_twice_the_pixels() -> None:
    document = trend_document([point("a", 0.1), point("b", 0.2)], TrendFormat.PNG, "ttft", "p50")
    assert isinstance(document, bytes) and document.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", document[16:24]) == (720, 532)


def test_lines_of_suites_and_stages_are_told_apart_until_they_are_too_many() -> None:
    drawn = chart_of([point("a", 1), point("b", 2, suite="t"), point("b", 3, suite="t", stage="c8")], "ttft", "p50")
    assert [one.name for one in drawn.series] == ["s c4", "t c4", "t c8"]
    assert [one.at for line in drawn.series for one in line.values] == [0, 1, 1]
    many = [point("a", 1, stage=f"c{n}") for n in range(MOST_SERIES + 1)]
    with pytest.raises(UsageError, match=r"5 lines are too many for one chart .* s c0, s c1"):
        chart_of(many, "ttft", "p50")


def test_no_line_goes_from_one_candidate_to_another() -> None:
    of = [point("a", 1), point("b", 2, deployment="fast"), point("c", 3)]
    for by, names in ((None, ("new", "fast")), ("suite", ("s new", "s fast"))):
        drawn = chart_of(of, "ttft", "p50", by)
        assert [[one.at for one in line.values] for line in drawn.series] == [[0, 2], [1]]
        assert [line.name for line in drawn.series] == [f"{name}{' c4' * (by is None)}" for name in names]
    assert len(chart_of([one._replace(model="m") for one in of], "ttft", "p50", "model").series) == 1
    with pytest.raises(UsageError, match=r"--deployment, .* s n0 c4, s n1 c4"):
        chart_of([point("a", 1, deployment=f"n{number}") for number in range(MOST_SERIES + 1)], "ttft", "p50")
    svg = trend_document(of, TrendFormat.SVG, "ttft", "p50")
    assert isinstance(svg, str) and "ttft p50 of the candidates new, fast, oldest run first" in svg


def test_a_withdrawn_run_has_no_ring() -> None:
    drawn = chart_of([point("a", 1, promoted="withdrawn"), point("b", 1, promoted="overridden")], "ttft", "p50")
    assert [one.promoted for one in drawn.series[0].values] == [False, True]


def test_a_spreadsheet_runs_nothing_out_of_a_table() -> None:
    document = trend_document([point("a", 0.1, label="=cmd|'/c calc'!A1")], TrendFormat.CSV, "ttft", "p50")
    assert isinstance(document, str)
    (row,) = csv.DictReader(io.StringIO(document))
    assert row["label"].startswith("'=cmd") and (row["value"], row["outcome"], row["lower"]) == ("0.1", "PASS", "")


def test_no_text_of_a_table_begins_a_line_of_its_own() -> None:
    told = point("a", 0.1, hardware="1 x H\n::error::pwned", engine="\n=cmd", model=" \u2028=cmd")
    document = trend_document([told], TrendFormat.CSV, "ttft", "p50")
    assert isinstance(document, str) and len(document.splitlines()) == 2
    (row,) = csv.DictReader(io.StringIO(document))
    assert (row["hardware"], row["engine"]) == ("1 x H ::error::pwned", "' =cmd")
    assert row["model"].startswith("'")


def test_no_label_is_a_command_to_a_runner_or_a_terminal() -> None:
    hostile = point("a", 0.1, label="x\n::error::pwned \x1b[2J", started_at="::warning::y")
    document = trend_document([hostile], TrendFormat.TEXT, "ttft", "p50")
    assert isinstance(document, str)
    assert len(document.splitlines()) == 2 and "\x1b" not in document
    assert not any(line.startswith("::") for line in document.splitlines())


def test_a_table_on_a_terminal_fits_it() -> None:
    one = point(
        "a", 0.1, suite="a-suite-with-a-long-name", deployment="awq-marlin-with-fp8-kv", label="nightly-2026-11"
    )
    document = trend_document([one], TrendFormat.TEXT, "ttft", "p50", screen=Screen(80))
    assert isinstance(document, str)
    heading, row = document.splitlines()
    assert max(len(heading), len(row)) <= 80
    assert heading.split()[-2:] == ["ttft", "p50"] and row.endswith("100 ms")


def test_pixels_are_not_printed() -> None:
    with pytest.raises(UsageError, match=r"-o FILE"):
        require_place(TrendFormat.PNG, None)
