"""docs/sim.md and the practice server say the same: every option, every fault, every key of the truth."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from benchgate.cli.sim import sim as command
from benchgate.sim.ground_truth import GroundTruth
from benchgate.sim.settings import parse_settings
from benchgate.suite.loader import parse_suite
from benchgate.suite.simulator_faults import FAULTS, list_faults

PAGE = (Path(__file__).parents[2] / "docs" / "sim.md").read_text(encoding="utf-8")


def rows(first_cell: str) -> list[list[str]]:
    """The cells of the table whose head begins with that cell."""
    table = PAGE.split(f"\n| {first_cell} |", 1)[1].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[2:]]


def test_every_option_is_on_the_page() -> None:
    given = {name.replace("_", "-") for name in inspect.signature(command).parameters if name != "file"}
    options = {f"--{'set' if name == 'assignments' else name}" for name in given}
    assert {option for option in options if f"`{option}" not in PAGE} == set()
    assert set(re.findall(r"`(--[a-z-]+)`", PAGE)) <= options | {"--stream-interval"}


def test_table_of_faults_is_the_list_of_faults() -> None:
    assert rows("fault") == [[f"`{kind.usage}`", kind.effect] for kind in FAULTS]
    assert len(list_faults().splitlines()) == len(FAULTS)


def test_every_key_of_the_truth_is_on_the_page() -> None:
    told = GroundTruth().document(tokens_under_way=0, with_requests=True)
    documented = {key for row in rows("key") for key in re.findall(r"`(\w+)`", row[0])}
    assert documented == set(told) - {"rows"}
    assert "`rows`" in PAGE


@pytest.mark.parametrize("assignment", re.findall(r"--set (?:'([^']+)'|([a-z]\w*=[^\s`'\"]+))", PAGE))
def test_assignments_of_the_page_are_accepted(assignment: tuple[str, str]) -> None:
    parse_settings(None, "", ["".join(assignment)])


DRILLS = [cell for row in rows("to see") for cell in re.findall(r"`((?!say:)\w+: [^`]+)`", row[1])]


@pytest.mark.parametrize("settings", DRILLS)
def test_settings_for_drills_are_accepted(settings: str) -> None:
    parse_settings(f"{{replicas: 2, {settings}}}" if "affinity" in settings else f"{{{settings}}}", "docs/sim.md", ())


def test_suite_of_the_page_is_a_suite() -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    suite = parse_suite(text, "docs/sim.md")
    ports = re.findall(r"benchgate sim .*--port (\d+)", PAGE)
    assert [spec.url for spec in suite.deployments.values()] == [f"http://127.0.0.1:{port}" for port in ports]
