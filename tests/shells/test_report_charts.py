from __future__ import annotations

import itertools
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence
from benchgate.report.charts import figures
from benchgate.report.drawing import Figure
from benchgate.report.view import report_view
from tests.fakes import evidence as fake
from tests.fakes import hostile


def drawn(evidence: Evidence) -> tuple[Figure, ...]:
    return figures(report_view(evidence, fake.verdict()).load)


def texts(figure: Figure) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(figure.svg).iter("text")]


def test_each_arm_is_named_on_the_chart_and_drawn_with_its_own_dash_and_shape() -> None:
    for figure in drawn(fake.evidence()):
        assert {"baseline", "candidate"} <= set(texts(figure))
        paths = list(ElementTree.fromstring(figure.svg).iter("path"))
        dashes = {path.get("stroke-dasharray") for path in paths if path.get("stroke-width") == "2"} - {None}
        assert len(dashes) == (2 if figure.anchor.startswith("figure-ttft") else 0)
        for colour in ("#7d8796", "#3d7dd8"):
            assert len({path.get("d") for path in paths if path.get("fill") == colour}) == 1


def test_text_and_axes_take_the_colour_of_the_page_and_nothing_is_fetched() -> None:
    for figure in drawn(fake.evidence()):
        assert 'fill="currentColor"' in figure.svg
        assert "#010203" not in figure.svg
        assert not any(word in figure.svg for word in ("http", "url(", "style=", "<script", "<image", "href"))


def test_without_an_slo_there_is_no_goodput_chart() -> None:
    evidence = fake.evidence()
    evidence = replace(evidence, run=replace(evidence.run, suite={**evidence.run.suite, "slo": None}))
    assert [figure.anchor for figure in drawn(evidence)] == ["figure-ttft-p50", "figure-ttft-p95"]


def test_the_target_of_the_slo_is_drawn_and_named() -> None:
    goodput = drawn(fake.evidence())[-1]
    assert goodput.anchor == "figure-goodput"
    assert "target" in texts(goodput)


def test_names_at_the_right_edge_never_cover_each_other() -> None:
    for figure in drawn(fake.evidence()):
        ends = [
            float((element.get("transform") or "").partition(",")[2].rstrip(")"))
            for element in ElementTree.fromstring(figure.svg).iter("text")
            if element.text in ("baseline", "candidate", "target")
        ]
        ends.sort()
        assert all(lower - upper >= 12 for upper, lower in itertools.pairwise(ends))


def test_an_infinite_quantile_is_named_and_not_drawn() -> None:
    evidence = replace(fake.evidence(), load=fake.load(failing_arm=Arm.CANDIDATE))
    p50 = drawn(evidence)[0]
    assert "Not drawn, because too many requests failed: c1 candidate, c4 candidate." in p50.caption
    assert "candidate" not in texts(p50)
    assert p50.numbers.rows[1][-1] == "∞"


def test_a_run_in_which_everything_failed_has_no_latency_chart() -> None:
    observations = tuple(
        fake.load_observation("c1", arm, 0, position, all_failed=True) for position, arm in enumerate(Arm)
    )
    assert [figure.anchor for figure in drawn(replace(fake.evidence(), load=observations))] == ["figure-goodput"]


def test_hostile_stage_names_stay_text() -> None:
    template = fake.load()[0]
    evidence = fake.evidence()
    load = tuple(
        replace(template, stage=text, arm=arm, position=2 * i + j)
        for i, text in enumerate(hostile.TEXTS)
        for j, arm in enumerate(Arm)
    )
    suite = {**evidence.run.suite, "load": None}
    named = drawn(replace(evidence, load=load, run=replace(evidence.run, suite=suite)))
    plain = {element.tag for figure in drawn(evidence) for element in ElementTree.fromstring(figure.svg).iter()}
    assert len(named) == 3
    for figure in named:
        root = ElementTree.fromstring(figure.svg)
        assert {element.tag for element in root.iter()} <= plain
        assert not [name for element in root.iter() for name in element.attrib if name.startswith("on")]
        assert any("<script>" in text for text in texts(figure))


def test_the_same_numbers_give_the_same_bytes() -> None:
    assert drawn(fake.evidence()) == drawn(fake.evidence())
