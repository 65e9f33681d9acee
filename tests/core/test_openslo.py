"""OpenSLO files: what is read of them, and that every other one is refused with its place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchgate.errors import SuiteError
from benchgate.suite.error_budget import BudgetMetric
from benchgate.suite.openslo import INDICATORS, Objective, read_objective

AVAILABILITY = """\
# As the specification has it, with parts that are not read.
apiVersion: openslo/v1
kind: Service
metadata: {name: chat}
spec: {description: ""}
---
apiVersion: openslo/v1
kind: SLI
metadata:
  name: Request_Success
spec:
  ratioMetric:
    counter: true
    good: {metricSource: {type: Prometheus, spec: {query: up}}}
    total: {metricSource: {type: Prometheus, spec: {query: up}}}
---
apiVersion: openslo/v1
kind: SLO
metadata:
  name: chat-availability
  displayName: Chat answers
spec:
  service: chat
  indicatorRef: Request_Success
  timeWindow:
    - duration: 4w
      isRolling: true
  budgetingMethod: Occurrences
  objectives:
    - displayName: Good experience
      target: 0.9995
  alertPolicies:
"""
LATENCY = """\
apiVersion: openslo/v1
kind: SLO
metadata: {name: search-slo}
spec:
  indicator:
    metadata: {name: request-latency}
    spec: {thresholdMetric: {metricSource: {type: Any, spec: {query: Any}}}}
  timeWindow:
    - duration: 1M
      calendar: {startTime: 2022-01-01 12:00:00, timeZone: America/New_York}
  budgetingMethod: Occurrences
  objectives:
    - {op: lt, value: 500, targetPercent: 99}
"""


def read(text: str, wanted: str | None = None, metric: BudgetMetric | None = None) -> Objective:
    return read_objective(text, "slo.yaml", wanted, metric)


def faults(text: str, wanted: str | None = None) -> list[str]:
    with pytest.raises(SuiteError) as wrong:
        read(text, wanted)
    return [str(problem) for problem in wrong.value.problems]


def test_objective_window_and_metric_are_read_from_the_documents_of_a_file() -> None:
    found = read(AVAILABILITY)
    assert (found.name, found.objective_ratio, found.window_s, found.metric) == (
        "chat-availability",
        0.9995,
        28 * 86_400.0,
        "error_rate",
    )
    assert found.notes == ("its data sources are not asked: `spent` of the suite says what production has spent",)


def test_what_is_not_used_is_told() -> None:
    found = read(LATENCY)
    assert (found.objective_ratio, found.window_s, found.metric) == (0.99, 30 * 86_400.0, "goodput")
    assert len(found.notes) == 3
    assert found.notes[0].startswith("`op` and `value` are not used")
    assert found.notes[1] == "the window of 1M is taken for 30 days"


def test_slo_is_chosen_by_name_where_there_are_several() -> None:
    both = f"{AVAILABILITY}---\n{LATENCY}"
    assert read(both, "search-slo").metric == "goodput"
    assert read(both, "chat-availability").metric == "error_rate"
    assert "holds 2 SLOs (chat-availability, search-slo); choose one" in faults(both)[0]
    assert "did you mean `search-slo`?" in faults(both, "serch-slo")[0]
    assert 'holds 2 SLOs called "search-slo"' in faults(f"{LATENCY}---\n{LATENCY}", "search-slo")[0]


def test_metric_of_the_suite_goes_before_the_name_of_the_indicator() -> None:
    assert read(LATENCY, metric="error_rate").metric == "error_rate"
    elsewhere = AVAILABILITY.replace("indicatorRef: Request_Success", "indicatorRef: of-another-file")
    assert read(elsewhere, metric="goodput").metric == "goodput"


@pytest.mark.parametrize(("name", "metric"), INDICATORS.items())
def test_indicator_is_known_however_it_is_spelled(name: str, metric: str) -> None:
    spelled = name.upper().replace("-", "_")
    assert read(LATENCY.replace("name: request-latency", f"name: {spelled}")).metric == metric


def test_table_of_the_page_is_the_one_that_is_used() -> None:
    page = (Path(__file__).parents[2] / "docs" / "error-budgets.md").read_text(encoding="utf-8")
    table = page.split("| the indicator is called | metric |")[1].split("\n\n")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines()[2:]]
    told = {name: metric.strip(" `") for names, metric in rows for name in re.findall(r"`([^`]+)`", names)}
    assert told == INDICATORS


@pytest.mark.parametrize(
    ("written", "instead", "place", "says"),
    [
        ("openslo/v1\nkind: SLO", "openslo/v1alpha\nkind: SLO", "1:13", "this reads openslo/v1 alone"),
        ("kind: SLO", "kind: Slo", "2:7", "did you mean `SLO`?"),
        ("kind: SLO\n", "", "1:1", "has no `kind`"),
        ("kind: SLO", "kind: Service", "", "holds no document of `kind: SLO`"),
        ("{name: search-slo}", "{displayName: a}", "3:11", "expected the SLO's name"),
        ("budgetingMethod: Occurrences", "budgetingMethod: Timeslices", "11:20", "only Occurrences is read"),
        ("  budgetingMethod: Occurrences\n", "", "5:3", "found nothing; a burn is predicted from counts"),
        ("targetPercent: 99}", "targetPercent: 100}", "13:43", "above 0 and below 100, like 99.5"),
        ("targetPercent: 99}", "target: 99}", "13:36", "above 0 and below 1, like 0.995"),
        ("targetPercent: 99}", "target: true}", "13:36", "found true; expected a number"),
        ("targetPercent: 99}", "target: 0.99, targetPercent: 99}", "13:7", "exactly one of `target`"),
        ("value: 500, targetPercent: 99}", "value: 500}", "13:7", "exactly one of `target` and `targetPercent`"),
        ("targetPercent: 99}", "targetPercent: 99}\n    - {target: 0.9}", "13:5", "found 2 objectives"),
        ("{op: lt, value", "{indicatorRef: a, value", "13:7", "composite SLO"),
        ("duration: 1M", "duration: 30 days", "9:17", "like 30d"),
        ("duration: 1M", "duration: 0d", "9:17", "like 30d"),
        ("    - duration: 1M\n", "    - isRolling: true\n", "9:7", "found nothing; expected a whole number"),
        ("timeWindow:\n    - duration: 1M\n      ", "timeWindow:\n      ", "9:7", "a list of one window"),
        ("name: request-latency", "name: request-latncy", "6:5", "did you mean `request-latency`?"),
        ("name: request-latency", "name: gpu-temperature", "6:5", "write `metric: error_rate`"),
        ("    metadata: {name: request-latency}\n", "", "6:5", "has no name"),
        ("  indicator:\n", "  indicatorRef: a\n  indicator:\n", "5:3", "exactly one of `indicator`"),
        ("targetPercent: 99}", "targetPercent: 99, targetPercent: 98}", "13:47", "written twice"),
        ("kind: SLO", "kind: !x SLO", "2:7", "a YAML tag is not allowed"),
    ],
)
def test_mistake_has_its_place(written: str, instead: str, place: str, says: str) -> None:
    assert LATENCY.count(written) == 1, written
    found = faults(LATENCY.replace(written, instead))
    assert [fault for fault in found if fault.startswith(f"slo.yaml{place and f':{place}'}: ") and says in fault], found


def test_reference_that_leads_nowhere_names_what_is_there() -> None:
    (fault,) = faults(AVAILABILITY.replace("indicatorRef: Request_Success", "indicatorRef: request-sucess"))
    assert fault.startswith("slo.yaml:24:17: spec.indicatorRef") and "did you mean `Request_Success`?" in fault
    alone = AVAILABILITY.split("---\n")[2]
    assert "there is none in it" in faults(alone)[0]
    (number,) = faults(AVAILABILITY.replace("indicatorRef: Request_Success", "indicator: 5"))
    assert "found 5; expected" in number


def test_spec_that_is_no_mapping_is_told_with_all_it_lacks() -> None:
    found = faults("apiVersion: openslo/v1\nkind: SLO\nmetadata: {name: a}\nspec: nothing\n")
    assert any("expected a mapping with `objectives`" in fault for fault in found)


@pytest.mark.parametrize("text", ["", "---\n---\n", "# nothing\n"])
def test_file_with_nothing_in_it_is_empty(text: str) -> None:
    assert "the OpenSLO file is empty" in faults(text)[0]


def test_list_is_no_openslo_document() -> None:
    assert "expected keys and values like `kind: SLO`" in faults("- 1\n")[0]


def test_anchors_are_of_their_own_document() -> None:
    anchored = LATENCY.replace("{name: search-slo}", "{name: &a search-slo}")
    assert read(f"{anchored}---\n{anchored.replace('search', 'other')}", "search-slo").name == "search-slo"


def test_missing_window_is_left_to_the_suite() -> None:
    without = re.sub(r"  timeWindow:.*?(?=  budgetingMethod)", "", LATENCY, flags=re.DOTALL)
    assert read(without).window_s is None
