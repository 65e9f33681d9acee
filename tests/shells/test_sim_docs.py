"""docs/sim.md and the practice server say the same: every option, every fault, every key of the truth."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from benchgate.cli.sim_command import sim as command
from benchgate.sim.faults import METRICS
from benchgate.sim.ground_truth import Truth
from benchgate.sim.options import list_faults, parse_settings
from benchgate.sim.settings import BatchingCosts, SimSettings
from benchgate.suite.loader import parse_suite

PAGE = (Path(__file__).parents[2] / "docs" / "sim.md").read_text(encoding="utf-8")


def rows(first_cell: str) -> list[list[str]]:
    """The cells of the table whose head begins with that cell."""
    table = PAGE.split(f"\n| {first_cell} |", 1)[1].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[2:]]


def test_every_option_is_on_the_page() -> None:
    options = {f"--{name.replace('_', '-')}" for name in inspect.signature(command).parameters}
    assert {option for option in options if f"`{option}" not in PAGE} == set()
    assert set(re.findall(r"`(--[a-z-]+)`", PAGE)) <= options | {"--stream-interval"}


def test_table_of_faults_is_the_list_of_faults() -> None:
    assert rows("fault") == [[f"`{kind.usage}`", kind.what] for kind in METRICS]
    assert len(list_faults().splitlines()) == len(METRICS)


def test_every_key_of_the_truth_is_on_the_page() -> None:
    told = Truth().document(tokens_under_way=0, with_requests=True)
    documented = {key for row in rows("key") for key in re.findall(r"`(\w+)`", row[0])}
    assert documented == set(told) - {"rows"}
    assert "`rows`" in PAGE


@pytest.mark.parametrize("option", ["ttft", "itl", "prefill", "decode", "decode_per_sequence"])
def test_documented_cost_is_the_one_that_holds_when_none_is_given(option: str) -> None:
    table = PAGE.split("\n| option |", 1)[1].split("\n\n")[0]
    (written,) = re.findall(rf"^\| `--{option.replace('_', '-')}` \| `([^`]+)`", table, re.MULTILINE)
    given = parse_settings(**{option: written})
    assert given == (SimSettings() if option in ("ttft", "itl") else SimSettings(batching=BatchingCosts()))


def test_suite_of_the_page_is_a_suite() -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    suite = parse_suite(text, "docs/sim.md")
    ports = re.findall(r"benchgate sim --port (\d+)", PAGE)
    assert [spec.url for spec in suite.deployments.values()] == [f"http://127.0.0.1:{port}" for port in ports]
