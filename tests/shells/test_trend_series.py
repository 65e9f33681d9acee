"""`trend --by` and what narrows it: series by what each run remembers of its candidate, from the command line."""

from __future__ import annotations

import csv
import io
import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchgate.errors import UsageError
from benchgate.model.deployment import Arm
from benchgate.model.run import MetricRow
from benchgate.report.trend import HARDWARE, SLO, breaks_of, chart_of
from benchgate.store.repository import Store
from tests.fakes import quick_command
from tests.shells.store_samples import make_deployment, write_run
from tests.shells.test_report_trend import point

pytest_plugins = ["tests.shells.store_databases"]

COST = "usd_per_million_output_tokens"
COMMIT = "c" * 40
H200 = {"accelerator_names": ["H200"] * 8}
SERVED: tuple[dict[str, Any], ...] = (
    {
        "model": "org/big",
        "settings": {"revision": COMMIT},
        "facts": {**H200, "engine_version": "1"},
        "accelerators": 8,
    },
    {"model": "org/small", "facts": {**H200, "engine_version": "2"}, "accelerators": 8},
    {"model": "org/big", "settings": {"revision": COMMIT}, "facts": {"engine_version": "2"}, "url": "http://moved"},
    {"model": "tiny", "url": None, "settings": {"weights": "q4_0"}, "facts": {}},
)


def fill(store: Store) -> list[str]:
    """Four runs whose candidates have one name and differ in all else; the last is on two machines."""
    ids = []
    for number, said in enumerate((*SERVED, SERVED[-1])):
        arms = {arm: make_deployment("new") for arm in Arm}
        arms[Arm.CANDIDATE] = replace(arms[Arm.CANDIDATE], **said)
        environment = {"cpu": f"processor {number}", "cpus": 4}
        run = write_run(store, arms=arms, environment=environment, label=f"r{number}")
        value = 1.0 + number
        row = MetricRow(Arm.CANDIDATE, COST, None, "c4", None, value, 8, value * 0.9, value * 1.1)
        store.save_metrics(run.id, [row, replace(row, arm=Arm.BASELINE)])
        ids.append(run.id)
    return ids


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    address = str(tmp_path_factory.mktemp("series") / "b.db")
    with Store.open(address) as store:
        fill(store)
    return address


def asked(address: str, *said: str) -> quick_command.Told:
    result = quick_command.told("trend", COST, *said, "--store", address)
    assert result.exit_code == 0, result.output
    return result


def labels(address: str, *said: str) -> list[str]:
    return [one["label"] for one in json.loads(asked(address, "--format", "json", *said).stdout)]


def test_every_point_has_what_its_run_remembers_of_the_deployment(store: Store) -> None:
    fill(store)
    told = [(one.model, one.engine, one.hardware) for one in store.trend(COST, suite="smoke", arm=Arm.CANDIDATE)]
    assert told == [
        (f"org/big@{COMMIT}", "llamacpp 1", "8 x H200"),
        ("org/small", "llamacpp 2", "8 x H200"),
        (f"org/big@{COMMIT}", "llamacpp 2", "not reported (accelerators: 2)"),
        ("tiny q4_0", "llamacpp", "this machine: processor 3, 4 processors"),
        ("tiny q4_0", "llamacpp", "this machine: processor 4, 4 processors"),
    ]
    assert {one.model for one in store.trend(COST, arm=Arm.BASELINE)} == {"tiny"}


def test_what_each_run_asked_is_known_by_its_id(store: Store) -> None:
    runs = [write_run(store, measurement_sha256=letter * 64, label=letter) for letter in "ab"]
    assert store.measurements([run.id for run in runs]) == {run.id: run.measurement_sha256 for run in runs}
    assert store.measurements([runs[0].id, "nobody"]) == {runs[0].id: "a" * 64}
    assert store.measurements([]) == {}


def test_points_before_and_after_another_slo_are_not_connected_where_the_metric_depends_on_it(tmp_path: Path) -> None:
    address = str(tmp_path / "b.db")
    with Store.open(address) as store:
        for number, slo in enumerate((None, None, {"ttft_s": 0.2})):
            run = write_run(store, suite={"suite": "smoke", "slo": slo}, label=f"r{number}")
            rows = [
                MetricRow(Arm.CANDIDATE, name, None, "c4", None, 0.9, 8, 0.8, 1.0) for name in ("goodput", "capacity")
            ]
            store.save_metrics(run.id, [*rows, MetricRow(Arm.CANDIDATE, "ttft", "p50", "c4", None, 0.9, 8, 0.8, 1.0)])
    for metric, last in (("goodput", SLO), ("capacity", SLO), ("ttft", None)):
        points = json.loads(quick_command.told("trend", metric, "--store", address, "--format", "json").stdout)
        assert [one["begins_anew"] for one in points] == [None, None, last]


def test_text_has_a_heading_for_each_series_and_every_interval(address: str) -> None:
    lines = asked(address, "--by", "model").stdout.splitlines()
    headings = [line for line in lines if line.startswith("model ")]
    assert headings == [f"model org/big@{COMMIT}, 2 runs:", "model org/small, 1 run:", "model tiny q4_0, 2 runs:"]
    under = lines[lines.index(headings[0]) + 2 : lines.index(headings[1]) - 1]
    assert [line.split()[1] for line in under] == ["r0", "r2"]
    assert under[0].endswith(" $1.00 ($0.900 to $1.10)")


def test_tables_have_the_texts_and_points_of_a_series_together(address: str) -> None:
    assert labels(address, "--by", "engine") == ["r0", "r1", "r2", "r3", "r4"]
    assert labels(address, "--by", "model") == ["r0", "r2", "r1", "r3", "r4"]
    assert labels(address, "--by", "suite") == labels(address, "--by", "deployment") == labels(address)
    table = asked(address, "--by", "hardware", "--format", "csv").stdout
    assert [row["hardware"] for row in csv.DictReader(io.StringIO(table))][:2] == ["8 x H200"] * 2


def test_points_are_narrowed_by_whole_texts_or_their_first_words(address: str) -> None:
    assert labels(address, "--model", "org/big") == labels(address, "--model", f"org/big@{COMMIT}") == ["r0", "r2"]
    assert labels(address, "--engine", "llamacpp 2") == ["r1", "r2"]
    assert labels(address, "--engine", "llamacpp") == labels(address)
    assert labels(address, "--hardware", "not reported") == ["r2"]
    assert labels(address, "--hardware", "this machine") == ["r3", "r4"]
    assert labels(address, "--model", "org/big", "--hardware", "8 x H200") == ["r0"]


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (("--model", "org/smal"), "of model 'org/smal'; did you mean 'org/small'?"),
        (("--model", "org/bi"), "of model 'org/bi'; did you mean 'org/big'?"),
        (("--model", "Tyni"), f"there are org/big@{COMMIT}, org/small, tiny q4_0"),
        (("--engine", "VLM"), "there are llamacpp 1, llamacpp 2, llamacpp"),
        (("--engine", "LlamaCCP"), "did you mean 'llamacpp'?"),
        (("--hardware", "this machin"), "did you mean 'this machine'?"),
        (("--engine", ""), "of engine ''; there are llamacpp 1, llamacpp 2, llamacpp"),
        (("--model", "org/small", "--engine", "llamacpp 1"), "of engine 'llamacpp 1'; did you mean 'llamacpp 2'?"),
        (("--hardware", "B300"), "there are 8 x H200, not reported (accelerators: 2), this machine"),
    ],
)
def test_a_text_that_no_run_is_of_is_refused_with_those_there_are(
    address: str, said: tuple[str, ...], problem: str
) -> None:
    with pytest.raises(UsageError) as caught:
        asked(address, *said)
    assert problem in str(caught.value)


def test_a_chart_has_a_line_for_each_series_with_its_whole_name(address: str) -> None:
    svg = asked(address, "--by", "model", "--format", "svg").stdout
    drawn = [element.text for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert {"org/small", "tiny q4_0", f"org/big@{'c' * 12}…{'c' * 19}"} <= set(drawn)


def test_no_line_of_hardware_or_engine_goes_from_one_model_to_another() -> None:
    of = [point("a", 1, model="m"), point("b", 2, model="n"), point("c", 3, model="m")]
    for by in ("hardware", "engine"):
        drawn = chart_of(of, "m", None, by).series
        assert [[one.at for one in line.values] for line in drawn] == [[0, 2], [1]]
        assert [line.name for line in drawn] == ["not reported m", "not reported n"]


LESS = "not reported (accelerators: 2)"


@pytest.mark.parametrize(
    ("hardware", "anew"),
    [
        (("8 x H200", "8 x H200", "8 x H100"), [2]),
        (("8 x H200", LESS, "8 x H200"), []),  # in between nobody told
        (("8 x H200", LESS, "8 x H100"), [2]),
        ((LESS, LESS, "not reported (accelerators: 4)"), [2]),
        ((LESS, "8 x H200", LESS), []),
        ((None, LESS, "this machine: c, 4 processors"), []),
    ],
)
def test_a_line_ends_where_the_hardware_is_shown_to_be_another(
    hardware: tuple[str | None, ...], anew: list[int]
) -> None:
    of = [point(f"r{at}", 1, hardware=one) for at, one in enumerate(hardware)]
    breaks = breaks_of(of, {})
    assert breaks == {(f"r{at}", "c4", None): HARDWARE for at in anew}
    assert chart_of(of, "m", None, breaks=breaks).series[0].breaks == frozenset(anew)


def test_a_line_ends_where_the_suite_asks_something_else_and_every_form_says_so(tmp_path: Path) -> None:
    address = str(tmp_path / "b.db")
    with Store.open(address) as store:
        for number in range(4):
            arms = {arm: make_deployment("new") for arm in Arm}
            run = write_run(store, arms=arms, measurement_sha256="ab"[number // 2] * 64, label=f"r{number}")
            row = MetricRow(Arm.CANDIDATE, COST, None, "c4", None, 1.0 + number, 8)
            store.save_metrics(run.id, [row, replace(row, stage="c8")])
    told = [line for line in asked(address).stdout.splitlines() if "than before" in line]
    assert [line.split()[1] for line in told] == ["r2", "r2"]
    assert all(line.endswith("  (the suite measures something else than before)") for line in told)
    for found in (
        json.loads(asked(address, "--format", "json").stdout),
        csv.DictReader(io.StringIO(asked(address, "--format", "csv").stdout)),
    ):
        assert [one["label"] for one in found if one["begins_anew"]] == ["r2", "r2"]
    drawn = ElementTree.fromstring(asked(address, "--stage", "c4", "--format", "svg").stdout)
    strokes = [path.get("d") for path in drawn.iter("{http://www.w3.org/2000/svg}path") if path.get("stroke-dasharray")]
    assert [str(stroke).count("L") for stroke in strokes] == [1, 1]  # two lines of two points


def test_names_that_begin_alike_are_told_apart_and_say_what_differs() -> None:
    long = [point(name, 1, model=f"organisation/a-model-with-a-long-name@{name * 40}") for name in "ab"]
    one, other = chart_of(long, "m", None, "model").series
    assert one.name != other.name and len(one.name) <= 40
    of = [point("a", 1, model="m"), point("b", 2, model="m", suite="t"), point("c", 3, model="n", stage="c8")]
    assert [line.name for line in chart_of(of, "m", None, "model").series] == ["m s c4", "m t c4", "n s c8"]
    assert [line.name for line in chart_of(of, "m", None, "suite").series] == ["s c4", "t c4", "s c8"]
    assert [line.name for line in chart_of(of[:2], "m", None, "suite").series] == ["s", "t"]
    assert chart_of([point("a", 1)], "m", None, "hardware").series[0].name == "not reported"
    many = [point("a", 1, engine=f"e{number}") for number in range(5)]
    with pytest.raises(UsageError, match=r"5 lines are too many .* --engine, .*: there are e0 s c4, e1 s c4"):
        chart_of(many, "m", None, "engine")
