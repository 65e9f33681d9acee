"""Examples and figures of docs/guides/cost.md are those of `benchgate capacity`."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchgate.model.deployment import Arm
from benchgate.report.sizing import NamedRun, RunSeen, sizing_text
from benchgate.sizing.fleet import REQUESTS, Demand, KvCache, Replica, SizingInput, size_demand
from benchgate.sizing.kv_cache import cache_layout
from benchgate.sizing.operating_point import LoadLevel, OperatingPoint, QueueTrend, choose_operating_point
from benchgate.sizing.signals import KV_USAGE, TOKENS, WAITING, ScalingSignal, SignalRange
from benchgate.suite.demand_file import DemandFile
from benchgate.suite.loader import parse_suite
from benchgate.suite.messages import Slot, sections
from tests.core.test_cost_fleet import LLAMA_70B
from tests.fakes.quick_command import answer

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "cost.md").read_text(encoding="utf-8")

# What the run of the page measured, by its own JSON.
R4 = LoadLevel(
    "r4", 135.50828106889344, 115.84434527381039, 3.387707026722336, 2.8961086318452596, 0.9898054331179876, 0.9,
    0.8491315062722223, is_open=True, tokens_upper=155.1722168639765, offered_load=4.0,
)  # fmt: skip
C6 = LoadLevel("c6", 257.9130317713664, 257.91, 6.4478, 6.4477, 0.9847, 0.9, 0.9267, offered_load=6)
R16 = LoadLevel(
    "r16", 319.5594401240209, 313.4, 7.98, 7.83, 0.0721, 0.9, 3.38, is_open=True, misses=True, piles_up=True,
    offered_load=16.0,
)  # fmt: skip
SIGNALS = (
    ScalingSignal(WAITING, SignalRange("r4", 0.026667, 0.0, 0.083333), SignalRange("r16", 18.58333, 13.5, 22.33), True),
    ScalingSignal(
        TOKENS,
        SignalRange("r4", R4.tokens_per_s, 115.8, 155.2),
        SignalRange("r16", R16.tokens_per_s, 313.4, 325.7),
        True,
    ),
    ScalingSignal(
        KV_USAGE, SignalRange("r4", 0.17155, 0.12656, 0.21159), SignalRange("r16", 0.45996, 0.4443, 0.4688), True
    ),
)
WATCHED = QueueTrend(13.8598488244, 0.8638234960266192, piles_up=False)
RUN = NamedRun("01a1ff9c-7f9a-75f3-a73c-b678abe15fed", None, "fleet", "2026-11-21", "fp8", "candidate", "PASS")


def test_answer_of_the_page_is_what_the_command_says_of_that_run() -> None:
    choice = choose_operating_point({row.stage: row for row in (R4, C6, R16)}, Arm.CANDIDATE)
    assert isinstance(choice, OperatingPoint)
    asked = SizingInput(
        REQUESTS, Demand(30, None, 75), Replica(R4.requests_per_s, R4.requests_lower, 4.0), residence_s=R4.e2e_mean_s,
        tokens_per_request=R4.tokens_per_request,
    )  # fmt: skip
    said = sizing_text(size_demand(asked), RunSeen(choice, RUN, signals=SIGNALS, watched=WATCHED))
    assert f"```\n{said}```\n" in PAGE
    assert [one.tells for one in SIGNALS] == [True, True, False]


def test_first_demand_file_of_the_page_gives_its_output(tmp_path: Path) -> None:
    code, output, _ = answer("capacity", "--demand", str(written(tmp_path)[0]))
    assert (code, f"```\n{output}```\n" in PAGE) == (0, True)


def test_second_demand_file_of_the_page_is_simulated(tmp_path: Path) -> None:
    (tmp_path / "week.csv").write_text("requests_per_s\n1\n9\n")
    code, output, _ = answer("capacity", "--demand", str(written(tmp_path)[1]))
    assert (code, "Simulated: " in output) == (0, True)


def test_table_of_the_page_has_every_key_with_its_default() -> None:
    rows = dict(
        re.findall(
            r"^\| `((?:demand|replica|simulation|safety_factor|spares)[a-z0-9_.]*)` \| (.*?) \|", PAGE, re.MULTILINE
        )
    )
    expected = {}
    for place, section in sections(Slot(DemandFile, ())):
        for name, field in section.model_fields.items():
            path = f"{place}.{name}".removeprefix(".")
            if not path.startswith(("demand.requests_per_s.", "demand.output_tokens_per_s.")):
                expected[path] = field
    assert [path for path in expected if not any(row.startswith(path) for row in rows)] == []
    assert [row for row in rows if row not in expected] == []
    assert {path: rows[path] for path, field in expected.items() if path in rows and field.is_required()} == {
        path: "required" for path, field in expected.items() if path in rows and field.is_required()
    }


def written(folder: Path) -> list[Path]:
    """Write the demand files of the page."""
    texts = re.findall(r'^```yaml title="demand.yaml"\n(.*?)^```', PAGE, re.MULTILINE | re.DOTALL)
    files = [folder / f"{number}.yaml" for number, _ in enumerate(texts)]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text, encoding="utf-8")
    return files


def test_suite_of_the_page_is_of_the_servers_that_it_starts() -> None:
    (text,) = re.findall(r"^```yaml\n(suite: fleet.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    suite = parse_suite(text, "docs/guides/cost.md")
    ports = re.findall(r"benchgate sim .*--port (\d+)", PAGE)
    assert [spec.url for spec in suite.deployments.values()] == [f"http://127.0.0.1:{port}" for port in ports]


def test_sizes_of_a_shared_cache_are_those_of_the_page() -> None:
    layout = cache_layout(LLAMA_70B)
    alone, shared = KvCache(layout, 1e12, 8192), KvCache(layout, 1e12, 8192, accelerators=16)
    assert alone.bytes_per_token == 327_680
    assert alone.bytes_per_request / 1e9 == pytest.approx(2.7, abs=0.05)
    assert "8 KV heads on 16 accelerators take 5.37 GB for those 8,192 tokens, 336 MB on each" in PAGE
    assert shared.bytes_per_request / 1e9 == pytest.approx(5.37, abs=0.005)
    assert shared.bytes_per_request / 16e6 == pytest.approx(336, abs=0.5)
    assert replace(shared, accelerators=8).bytes_per_request == alone.bytes_per_request
