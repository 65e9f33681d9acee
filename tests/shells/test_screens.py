"""Every screen at the widths that people have: no line is wider than the terminal, and no number is cut."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchgate.errors import BenchgateError
from benchgate.model.deployment import Arm
from benchgate.model.run import MEASURED_BY, MetricRow
from benchgate.report.load_result import render_load, render_search
from benchgate.report.screen import Screen, fitting_table, table_lines
from benchgate.store.repository import Store
from tests.fakes import quick_command
from tests.fakes.demand import changed, write_demand
from tests.fakes.right_sized import candidate, write
from tests.fakes.sized import PLAN, SUITE, write_sized
from tests.shells.store_samples import make_deployment, make_run
from tests.shells.test_load_result import LOAD, SEARCH
from tests.shells.test_store_profiles import PROFILE

PRICES = {"q8": 1.2, "q4": 0.6}
STYLE = re.compile(r"\x1b\[[0-9;]*m")
COMMANDS = (
    "runs", "show @latest", "gate tiny-q4", "gate tiny-q4 --explain accuracy", "compare loads-1 loads-2", "trend ttft",
    "trend output_throughput --by suite", "frontier tiny", "capacity size --demand demand.yaml",
    "plan suite.yaml", "store info", "store gc --keep-last 1 --dry-run", "init --list", "doctor", "doctor --client",
)  # fmt: skip


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with candidates of a suite, a sized run and two runs with numbers alone; a demand; a suite."""
    folder = tmp_path_factory.mktemp("screens")
    with Store.open(str(folder / "benchgate.db")) as store:
        arms = {Arm.BASELINE: make_deployment("f16"), Arm.CANDIDATE: make_deployment("q8_0")}
        write_sized(store, make_run(arms=arms, suite_name="sized", label="size"))
        for number, value in enumerate((0.1, 0.12), 1):
            run = make_run(arms=arms, suite_name="a load test of the whole fleet", label=f"loads-{number}")
            run = replace(run, environment={MEASURED_BY: "vllm", "version": "1"}, finished_at=None)
            ends = value, 60, 0.9 * value, 1.1 * value
            rows = [
                MetricRow(Arm.CANDIDATE, name, "p95", "a stage with a long name", None, *ends)
                for name in ("ttft", "tpot", "e2e")
            ]
            store.save_import(run, PLAN, rows, {"sha256": str(number) * 64}, source="x.json", at=run.started_at)
        for name, outcome in (("q8", "PASS"), ("q4", "BLOCK")):
            shown = candidate(name, price=PRICES[name], listed=PRICES, suite_name="tiny", label=f"tiny-{name}")
            write(store, shown, outcome)
    (folder / "suite.yaml").write_text(SUITE)
    write_demand(folder, changed({"demand": {"output_tokens_per_s": 5000}}))
    return folder


def is_held(line: str, columns: int) -> bool:
    """A line that is wider than the terminal is one word, or a command that stays whole so that it can be copied."""
    return len(line) <= columns or line.startswith(("next: ", "again ")) or " " not in line.strip()


def assert_fits(text: str, columns: int) -> None:
    plain = STYLE.sub("", text)
    assert plain.strip()
    assert [line for line in plain.splitlines() if not is_held(line, columns)] == []
    assert re.findall(r"\S*(?:[0-9.]…|…[0-9.])\S*", plain) == []


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_screen_fits_the_terminal_and_colours_change_no_character(
    command: str, columns: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr("tests.fakes.quick_command.io.StringIO", Terminal)
    monkeypatch.setattr("benchgate.doctor.client.measure_client", lambda progress: PROFILE)
    monkeypatch.setattr(Store, "save_client_profile", lambda store, profile: None)
    monkeypatch.setattr("os.getloadavg", lambda: (0.5, 0.5, 0.5))
    monkeypatch.setattr("benchgate.doctor.machine._cpu_times", lambda proc: [])  # what others steal changes
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = {}
    for colour in ("never", "always"):
        words = [*command.split(), "--color", colour]
        if command.split()[0] != "init":
            words += ["--store", "benchgate.db"]
        try:
            shown[colour] = quick_command.told(*words).stdout
        except BenchgateError as error:
            raise AssertionError(error) from error
        assert_fits(shown[colour], columns)
    plain = {colour: STYLE.sub("", text) for colour, text in shown.items()}
    if command.split()[0] == "doctor":  # the machine's own figures change from one call to the next
        plain = {colour: re.sub(r"\d", "0", text) for colour, text in plain.items()}
    assert plain["always"] == plain["never"]


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize(("render", "document"), [(render_load, LOAD), (render_search, SEARCH)], ids=["load", "search"])
def test_result_of_a_load_fits(render: Callable[..., str], document: dict[str, object], columns: int) -> None:
    for colour in (False, True):
        assert_fits(render(document, Screen(columns, colour)), columns)


def test_no_paragraph_is_coloured() -> None:
    document = LOAD | {"client": LOAD["client"] | {"saturated": True, "reasons": ["the loop was late " * 20]}}
    coloured = re.findall(r"\x1b\[[0-9;]*3\dm([^\x1b]*)", render_load(document, Screen(80, colour=True)))
    assert coloured and max(map(len, coloured)) <= len("what to do first:")


def test_a_long_name_stands_whole_on_a_line_before_its_row() -> None:
    rows = [("ttft-p50@c4", "+101 %"), ("output_throughput@c4", "-59.6 %")]
    assert "\n".join(table_lines(Screen(24), ("check", "difference"), rows, right=(1,), shrink=(0,))).splitlines() == [
        "check         difference",
        "ttft-p50@c4       +101 %",
        "output_throughput@c4",
        "                 -59.6 %",
    ]


def test_a_table_that_is_too_wide_wraps_its_last_text_and_else_names_each_cell() -> None:
    rows = [("q8_0", "1,234,567", "no, because something else is as good and cheaper")]
    headings = ("deployment", "requests", "frontier")
    assert [*fitting_table(Screen(50), headings, rows)] == [
        "deployment  requests   frontier",
        "q8_0        1,234,567  no, because something else",
        "                       is as good and cheaper",
    ]
    assert [*fitting_table(Screen(40), headings, rows)] == [
        "q8_0",
        "  requests 1,234,567; frontier no,",
        "    because something else is as good",
        "    and cheaper",
    ]
