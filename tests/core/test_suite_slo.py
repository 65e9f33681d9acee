"""The SLO of a class of traffic begins with that of the suite: leaving a bound out never loosens it silently."""

from __future__ import annotations

from benchgate.errors import SuiteError
from benchgate.suite.loader import parse_suite
from benchgate.suite.schema import Suite
from benchgate.suite.stages import SloSpec

TEXT = """\
suite: mixed
deployments: {baseline: {url: http://b, model: m}, candidate: {url: http://c, model: m}}
slo: {ttft: 500ms, tpot: 80ms, target: 99%}
load:
  workload: {input: 8, output: 8}
  sweep:
    - stage: s
      classes:
        people: {rate: 2/s, requests: 100, slo: SLO}
        batch: {rate: 2/s, requests: 100}
gate: {checks: [{metric: goodput}]}
"""


def spec(**written: str) -> SloSpec:
    return SloSpec.model_validate(written)


def slo_of(written: str, text: str = TEXT) -> SloSpec | None:
    suite = parse_suite(text.replace("SLO", written), "s.yaml")
    assert suite.load is not None
    classes = suite.load.sweep[0].classes
    assert classes is not None
    assert classes["batch"].slo is None
    assert Suite.from_stored(suite.to_stored()) == suite
    return classes["people"].slo


def test_what_a_class_leaves_out_of_its_slo_is_as_in_the_suites() -> None:
    assert slo_of("{ttft: 300ms}") == spec(ttft="300ms", tpot="80ms", target="99%")
    assert slo_of("{e2e: 60s, target: 90%}") == spec(ttft="500ms", tpot="80ms", e2e="60s", target="90%")


def test_a_bound_that_is_not_for_a_class_is_written_none() -> None:
    assert slo_of("{e2e: 60s, ttft: none, tpot: none}") == spec(e2e="60s", target="99%")


def test_a_class_left_without_any_bound_is_a_mistake_at_its_place() -> None:
    told = problems("{ttft: none, tpot: none}")
    assert "s.yaml:9:" in told
    assert "needs at least one of" in told


def test_an_slo_of_tpot_alone_is_refused_for_answers_that_have_none() -> None:
    whole = TEXT.replace("output: 8}", "output: 8, stream: false}")
    told = problems("{ttft: none}", whole)
    assert 'whose `tpot` in stage "s/people" is undefined for answers that come whole (`stream: false`); bound' in told
    assert slo_of("{ttft: 300ms}", whole) == spec(ttft="300ms", tpot="80ms", target="99%")


def test_without_an_slo_of_the_suite_a_class_has_what_it_says() -> None:
    alone = TEXT.replace("slo: {ttft: 500ms, tpot: 80ms, target: 99%}\n", "").replace(
        "requests: 100}\n", "requests: 100, slo: {ttft: 1s}}\n"
    )
    suite = parse_suite(alone.replace("SLO", "{ttft: 300ms}"), "s.yaml")
    assert suite.load is not None
    assert suite.load.classes()[0].slo_spec == spec(ttft="300ms", target="95%")


def test_a_mistake_in_the_suites_slo_is_told_once() -> None:
    told = problems("{ttft: 300ms}", TEXT.replace("tpot: 80ms", "tpot: 80"))
    assert told.count("is not a duration") == 1


def test_a_target_of_all_requests_is_none_that_a_search_can_show() -> None:
    text = TEXT.replace("target: 99%", "target: 100%").replace("load:\n", "load:\n  capacity: CAPACITY\n")
    search = "{over: rate, from: 1/s, to: 8/s}"
    told = problems("{ttft: 300ms}", text.replace("CAPACITY", search))
    assert "s.yaml:5:13: load.capacity: the target of the `slo` is 100%" in told
    own = text.replace("CAPACITY", search.replace("}", ", target: 99%}")).replace("SLO", "{ttft: 300ms}")
    suite = parse_suite(own, "s.yaml")
    assert suite.load is not None
    assert suite.load.capacity is not None


def test_a_stored_class_means_what_it_meant() -> None:
    stored = parse_suite(TEXT.replace("SLO", "{ttft: 300ms}"), "s.yaml").to_stored()
    own = stored["load"]["sweep"][0]["classes"]["people"]["slo"]
    own["tpot_s"], own["target_ratio"] = None, 0.95
    again = Suite.from_stored(stored)
    assert again.load is not None
    assert again.load.classes()[0].slo_spec == spec(ttft="300ms", target="95%")


def problems(written: str, text: str = TEXT) -> str:
    try:
        slo_of(written, text)
    except SuiteError as error:
        return str(error)
    return ""
