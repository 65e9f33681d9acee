"""docs/guides/servers.md and the practice server agree: every option, every key of the truth, every setting."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from benchgate.cli.sim import sim as command
from benchgate.sim.ground_truth import GroundTruth
from benchgate.sim.settings import parse_settings

PAGE = (Path(__file__).parents[2] / "docs/guides/servers.md").read_text(encoding="utf-8")


def rows(first_cell: str) -> list[list[str]]:
    """The cells of the table whose head begins with that cell."""
    table = PAGE.split(f"\n| {first_cell} |", 1)[1].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[2:]]


def test_every_option_is_on_the_page() -> None:
    given = {name.replace("_", "-") for name in inspect.signature(command).parameters if name != "file"}
    options = {f"--{'set' if name == 'assignments' else name}" for name in given}
    assert {option for option in options if option not in PAGE} == set()


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
    parse_settings(f"{{replicas: 2, {settings}}}" if "affinity" in settings else f"{{{settings}}}", "servers.md", ())
