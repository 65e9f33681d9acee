"""Exporters and tools of four makers of accelerators: their pages and reports, to values in one vocabulary."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from benchgate.model.telemetry import Counter, Gauge, TelemetryMetric
from benchgate.telemetry import smi
from benchgate.telemetry.accelerators import EXPORTERS, name_accelerators, read_accelerators
from benchgate.telemetry.engine_metrics import BadPageError, UnreadError
from benchgate.telemetry.smi import SMI_TOOLS, Report, SmiSource, SmiTool, combine_rows
from benchgate.telemetry.sources import Sources, accelerator_facts
from tests.fakes.scripted_server import Received, ScriptedServer, Step
from tests.shells.load_helpers import target_at as target

DCGM = """\
# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a",modelName="NVIDIA H100",DCGM_FI_DRIVER_VERSION="570.1"} 90
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-b",modelName="NVIDIA H100",DCGM_FI_DRIVER_VERSION="570.1"} 10
# HELP DCGM_FI_PROF_DRAM_ACTIVE Ratio of cycles the device memory interface is active.
# TYPE DCGM_FI_PROF_DRAM_ACTIVE gauge
DCGM_FI_PROF_DRAM_ACTIVE{gpu="0",UUID="GPU-a"} 0.8
DCGM_FI_PROF_DRAM_ACTIVE{gpu="1",UUID="GPU-b"} 0.2
# HELP DCGM_FI_DEV_POWER_USAGE Power draw (in W).
# TYPE DCGM_FI_DEV_POWER_USAGE gauge
DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-a"} 650.5
DCGM_FI_DEV_POWER_USAGE{gpu="1",UUID="GPU-b"} 100
# HELP DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION Total energy consumption since boot (in mJ).
# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="0",UUID="GPU-a"} 5000
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="1",UUID="GPU-b"} 1000
"""

_MI = (
    'card_model="102-G30211-0C",card_series="AMD Instinct MI300X OAM",driver_version="6.12.12",gpu_id="{}",'
    'gpu_partition_id="0",serial_number="SN-{}"'
)


def typed(lines: Iterable[str], *counters: str) -> str:
    """The page of these samples as an exporter writes it: each metric together, after its type."""
    by_name: dict[str, list[str]] = {}
    for line in lines:
        by_name.setdefault(line.partition("{")[0], []).append(line)
    pages = ([f"# TYPE {name} {'counter' if name in counters else 'gauge'}", *own] for name, own in by_name.items())
    return "\n".join([*itertools.chain.from_iterable(pages), ""])


def amd_page(prefix: str = "", clock: str = "system", power: str = "package_power") -> str:
    lines = []
    for number, (busy, watts, used) in enumerate(((80, 700, 96), (40, 500, 48))):
        labels = _MI.format(number, number)
        lines += [
            f"{prefix}gpu_gfx_activity{{{labels}}} {busy}",
            f"{prefix}gpu_umc_activity{{{labels}}} {busy / 2}",
            f"{prefix}gpu_{power}{{{labels}}} {watts}",
            f"{prefix}gpu_energy_consumed{{{labels}}} 2e6",
            f"{prefix}gpu_used_vram{{{labels}}} {used}",
            f"{prefix}gpu_total_vram{{{labels}}} 192",
            *(f'{prefix}gpu_clock{{{labels},clock_index="{index}",clock_type="{clock}"}} 2100' for index in range(2)),
            f'{prefix}gpu_clock{{{labels},clock_index="8",clock_type="memory"}} 1300',
        ]
    return typed(lines)  # the exporter's energy is a gauge too


_MAX = 'uuid="0000-{}",dev_name="Intel(R) Data Center GPU Max 1550",pci_bdf="0000:0{}:00.0"'


def xpum_page() -> str:
    """Two devices of two tiles on one card, as the exporter writes them: all comments first, then every level."""
    lines = ["# TYPE xpum_engine_ratio gauge", "# TYPE xpum_power_watts gauge", "# TYPE xpum_energy_joules counter"]
    for number, (busy, watts) in enumerate(((0.5, 300.0), (0.25, 200.0))):
        device = _MAX.format(number, number)
        lines += [
            f'xpum_engine_ratio{{{device},src="avg"}} {busy}',
            f'xpum_power_watts{{{device},src="direct"}} {watts}',
            f'xpum_energy_joules_total{{{device},src="direct"}} 1000',
            f'xpum_memory_ratio{{{device},src="avg"}} 0.75',
        ]
        for tile in range(2):
            part = f'{device},sub_dev="{tile}",src="direct"'
            lines += [
                f"xpum_engine_ratio{{{part}}} 0.9",
                f"xpum_power_watts{{{part}}} 90",
                f'xpum_frequency_mhz{{{part},location="gpu",type="actual"}} 1600',
                f'xpum_frequency_mhz{{{part},location="gpu",type="request"}} 9999',
            ]
    lines.append('xpum_power_watts{card="2147483648",src="sum"} 500')
    return "\n".join(lines) + "\n"


_TPU = (
    'accelerator_id="1234-{}",container="server",make="cloud-tpu",model="tpu-v6e-slice",namespace="default",'
    'pod="test",tpu_topology="2x2"'
)


def tpu_page() -> str:
    lines = []
    for number, (busy, bandwidth, used) in enumerate(((20, 11, 1000), (40, 13, 2000))):
        labels = _TPU.format(number)
        lines += [
            f"duty_cycle{{{labels}}} {busy}",
            f"memory_bandwidth_utilization{{{labels}}} {bandwidth}",
            f"memory_used{{{labels}}} {used}",
            f"memory_total{{{labels}}} 4000",
            f"tensorcore_utilization{{{labels}}} 99",
        ]
    return typed(lines)


AMD_VALUES: Mapping[TelemetryMetric, float] = {
    Gauge.GPU_BUSY: 0.6,
    Gauge.GPU_MEMORY_BUSY: 0.3,
    Gauge.GPU_POWER: 1200.0,
    Gauge.GPU_MEMORY_USED: 0.375,
    Gauge.GPU_CLOCK: 2.1e9,
    Counter.GPU_ENERGY_J: 4.0,
}


@pytest.mark.parametrize(
    ("page", "values"),
    [
        (
            DCGM,
            {Gauge.GPU_BUSY: 0.5, Gauge.GPU_BANDWIDTH: 0.5, Gauge.GPU_POWER: 750.5, Counter.GPU_ENERGY_J: 6.0},
        ),
        (amd_page(), AMD_VALUES),
        (amd_page("amd_", "GPU_CLOCK_TYPE_SYSTEM", "average_package_power"), AMD_VALUES),
        (
            xpum_page(),
            {
                Gauge.GPU_BUSY: 0.375,
                Gauge.GPU_POWER: 500.0,
                Gauge.GPU_MEMORY_USED: 0.75,
                Gauge.GPU_CLOCK: 1.6e9,
                Counter.GPU_ENERGY_J: 2000.0,
            },
        ),
        (tpu_page(), {Gauge.GPU_BUSY: 0.3, Gauge.GPU_BANDWIDTH: 0.12, Gauge.GPU_MEMORY_USED: 0.375}),
    ],
    ids=["DCGM", "AMD", "AMD with a prefix", "XPU Manager", "GKE"],
)
def test_an_exporters_accelerators_are_combined(page: str, values: Mapping[TelemetryMetric, float]) -> None:
    assert read_accelerators(page, None).values == pytest.approx(values)


def test_only_the_accelerators_of_a_deployment_count() -> None:
    assert read_accelerators(DCGM, (0,)).values[Gauge.GPU_BANDWIDTH] == 0.8
    assert read_accelerators(amd_page(), (1,)).values[Gauge.GPU_POWER] == 500.0
    assert read_accelerators(tpu_page(), (1,)).values[Gauge.GPU_BUSY] == 0.4
    for page in (DCGM, amd_page(), tpu_page()):
        with pytest.raises(BadPageError, match="none of these"):
            read_accelerators(page, (7,))
    with pytest.raises(BadPageError, match="no numbers; leave out `gpu_devices`"):
        read_accelerators(xpum_page(), (0,))


def test_a_figure_that_an_accelerator_lacks_is_left_out_with_a_problem_and_not_summed_over_the_others() -> None:
    said = (
        "accelerator {} did not report {}, left out for all accelerators; if the deployment does not use it, list the "
        "others in `gpu_devices`"
    )
    missing = read_accelerators(DCGM, (0, 2))
    assert missing.values == {}
    assert missing.problems == (
        said.format(2, "gpu_busy_ratio, gpu_memory_bandwidth_ratio, gpu_power_w, gpu_energy_j"),
    )
    for text in (
        DCGM.replace("} 100\n", "} NaN\n"),
        DCGM.replace('DCGM_FI_DEV_POWER_USAGE{gpu="1",UUID="GPU-b"} 100\n', ""),
    ):
        one = read_accelerators(text, None)
        assert set(one.values) == {Gauge.GPU_BUSY, Gauge.GPU_BANDWIDTH, Counter.GPU_ENERGY_J}
        assert one.problems == (said.format(1, "gpu_power_w"),)
    alone = read_accelerators('DCGM_FI_DEV_POWER_USAGE{gpu="0"} 600\nDCGM_FI_DEV_POWER_USAGE{gpu="1"} NaN\n', None)
    assert (alone.values, alone.problems) == ({}, (said.format(1, "gpu_power_w"),))
    assert not read_accelerators(DCGM, None).problems


def test_an_older_name_that_all_accelerators_report_stands_for_a_newer_one_that_some_lack() -> None:
    newer = 'DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0",UUID="GPU-a"} 0.7\n'
    found = read_accelerators(DCGM + newer, None)
    assert (found.values[Gauge.GPU_BUSY], found.problems) == (0.5, ())


def test_figures_of_a_whole_accelerator_count_once_however_many_instances_of_mig_it_has() -> None:
    """As in issue 317 of NVIDIA/dcgm-exporter: the power of the whole stands on every instance."""
    lines = []
    for gpu, instances in ((0, (3, 4, 5, 6)), (1, (1, 2))):
        for instance in instances:
            labels = f'gpu="{gpu}",UUID="GPU-{gpu}",modelName="NVIDIA A30",GPU_I_PROFILE="1g.6gb",GPU_I_ID="{instance}"'
            lines += [
                f"DCGM_FI_DEV_POWER_USAGE{{{labels}}} {50 + gpu}",
                f"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{labels}}} {1000 + gpu}",
                f"DCGM_FI_DEV_SM_CLOCK{{{labels}}} {1000 + 200 * gpu}",
                f"DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{labels}}} {instance / 10}",
            ]
    found = read_accelerators(typed(lines, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"), None)
    assert found.values == pytest.approx(
        {Gauge.GPU_POWER: 101.0, Counter.GPU_ENERGY_J: 2.001, Gauge.GPU_CLOCK: 1.1e9, Gauge.GPU_BUSY: 0.35}
    )
    assert not found.problems


def test_partitions_of_an_accelerator_do_not_lack_what_the_first_of_them_reports_for_all() -> None:
    """AMD's docs/configuration/metricslist.md: the power of the others is 0, and their energy is suppressed."""
    labels = '{gpu_id="0",gpu_partition_id="0"}'
    first = f"gpu_package_power{labels} 700\ngpu_energy_consumed{labels} 2e6\n"
    second = 'gpu_package_power{gpu_id="1",gpu_partition_id="1"} 0\n'
    found = read_accelerators(first + second, None)
    assert (found.values, found.problems) == ({Gauge.GPU_POWER: 700.0, Counter.GPU_ENERGY_J: 2.0}, ())


def test_a_page_of_no_known_exporter_has_no_values() -> None:
    with pytest.raises(BadPageError, match="expected a page of DCGM, AMD"):
        read_accelerators('gpu_clock{gpu_index="0"} 300\nduty_cycle 5\n', None)


def test_accelerators_are_named_by_an_exporters_labels() -> None:
    assert name_accelerators(DCGM) == {0: ("NVIDIA H100", "570.1"), 1: ("NVIDIA H100", "570.1")}
    assert name_accelerators(amd_page())[1] == ("AMD Instinct MI300X OAM", "6.12.12")
    assert name_accelerators(xpum_page()) == dict.fromkeys((0, 1), ("Intel(R) Data Center GPU Max 1550", ""))
    assert name_accelerators(tpu_page())[0] == ("tpu-v6e-slice", "")


def test_no_name_stands_for_two_exporters() -> None:
    owners: dict[str, str] = {}
    for exporter, known in EXPORTERS.items():
        for name in {name for sources in known.names.values() for source in sources for name in source.names}:
            assert owners.setdefault(name, exporter) == exporter, name


NVIDIA_SMI = "0, 90, 40, 600.5, 70000, 80000, 1980\n1, 10, [N/A], 100, 10000, 80000, 1020\nNVIDIA-SMI has failed\n"
# The columns of `amd-smi monitor -p -u -m -v -w 1 --csv`, with a header for every interval and an idle second one.
AMD_SMI = """\
timestamp,gpu,power_usage,gfx,gfx_clock,mem,mem_clock,vram_used,vram_total
1729700000,0,700,80,2100,40,1300,96000,192000
1729700000,1,500,40,2000,N/A,1300,48000,192000

timestamp,gpu,power_usage,gfx,gfx_clk,mem,mem_clock,vram_used,vram_total
1729700001,0,N/A,90,2200,45,1300,96000,192000
1729700001,1,510,50,2100,35,1300,48000,192000
"""
XPU_SMI = """\
Timestamp, DeviceId, GPU Utilization (%), GPU Power (W), GPU Frequency (MHz), GPU Memory Utilization (%), \
GPU Memory Bandwidth Utilization (%)
23:48:25.043,    0,  N/A, 280.50, 1600.00,  N/A,  N/A
23:48:26.043,    0, 50.00, 300.00, 1600.00, 11.00, 20.00
23:48:26.043,    1, 30.00, 200.00, 1400.00, 13.00, 40.00
"""


@pytest.mark.parametrize(
    ("name", "report", "values"),
    [
        (
            "nvidia-smi",
            NVIDIA_SMI,
            {Gauge.GPU_BUSY: 0.5, Gauge.GPU_POWER: 700.5, Gauge.GPU_MEMORY_USED: 0.5, Gauge.GPU_CLOCK: 1.5e9},
        ),
        (
            "amd-smi",
            AMD_SMI,
            {
                Gauge.GPU_BUSY: 0.7, Gauge.GPU_MEMORY_BUSY: 0.4, Gauge.GPU_MEMORY_USED: 0.375, Gauge.GPU_CLOCK: 2.15e9,
            },
        ),
        (
            "xpu-smi",
            XPU_SMI,
            {
                Gauge.GPU_BUSY: 0.4, Gauge.GPU_BANDWIDTH: 0.3, Gauge.GPU_POWER: 500.0, Gauge.GPU_MEMORY_USED: 0.12,
                Gauge.GPU_CLOCK: 1.5e9,
            },
        ),
    ],
)  # fmt: skip
def test_the_last_report_of_each_accelerator_counts_and_incomplete_figures_are_left_out(
    name: str, report: str, values: Mapping[TelemetryMetric, float]
) -> None:
    reader = Report(SMI_TOOLS[name])
    rows = dict(row for line in report.splitlines() if (row := reader.read(line)) is not None)
    assert combine_rows(rows).values == pytest.approx(values)


def printing(tool: SmiTool, text: str, tmp_path: Path, *, ends: bool, first: str = "") -> SmiTool:
    """The tool with a program in its place that prints a report over and over, or once, and another one first."""
    script = tmp_path / "smi.py"
    again = "" if ends else "while True:\n print(text, end='', flush=True)\n time.sleep(0.05)\n"
    script.write_text(f"import time\ntext = {text!r}\nprint({first!r} or text, end='')\n{again}")
    command = (sys.executable, str(script))
    return replace(tool, command=command, names_command=command)


@pytest.mark.parametrize(("name", "report", "power_w"), [("nvidia-smi", NVIDIA_SMI, 600.5), ("amd-smi", AMD_SMI, None)])
def test_a_tool_is_one_process_that_reports_and_is_gone_afterwards(
    name: str, report: str, power_w: float | None, tmp_path: Path
) -> None:
    with SmiSource(printing(SMI_TOOLS[name], report, tmp_path, ends=False), (0,)) as source:
        process = source._process
        assert process is not None
        assert source.fetch().values[Gauge.GPU_BUSY] == 0.9
        assert source.fetch().values.get(Gauge.GPU_POWER) == power_w
    assert process.poll() is not None


def test_an_accelerator_that_a_tool_reports_no_more_leaves_no_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smi, "_FRESH_S", 0.5)
    both, one = NVIDIA_SMI, "0, 90, 40, 600.5, 70000, 80000, 1980\n"
    tool = printing(SMI_TOOLS["nvidia-smi"], one, tmp_path, ends=False, first=both)
    with SmiSource(tool) as source:
        assert source.fetch().values[Gauge.GPU_POWER] == 700.5
        time.sleep(0.7)
        lost = source.fetch()
    assert lost.values == {}
    assert [problem.startswith("accelerator 1 did not report ") for problem in lost.problems] == [True]
    with SmiSource(tool, (0, 7)) as source:
        assert source.fetch().values == {}


def test_a_machine_without_the_tool_reports_so() -> None:
    missing = replace(SMI_TOOLS["amd-smi"], command=("no-such-smi",), names_command=("no-such-smi",))
    with SmiSource(missing) as source, pytest.raises(UnreadError, match="there is no no-such-smi on this machine"):
        source.fetch()
    assert missing.name_devices() == {}


NAMES = {
    "nvidia-smi": (
        "1, NVIDIA H100, 570.1\n0, NVIDIA H200, 570.1\nno devices were found\n",
        {"accelerator_names": ["NVIDIA H200", "NVIDIA H100"], "driver": "570.1"},
    ),
    "amd-smi": (
        "gpu,market_name,vendor_id\n1,AMD Instinct MI325X,0x1002\n0,AMD Instinct MI300X,0x1002\n",
        {"accelerator_names": ["AMD Instinct MI300X", "AMD Instinct MI325X"]},
    ),
    "xpu-smi": (
        'Device ID,Device Name\n0,"Intel(R) Graphics [0x56c0], B"\n1,"Intel(R) Graphics [0x56c1]"\n',
        {"accelerator_names": ["Intel(R) Graphics [0x56c0], B", "Intel(R) Graphics [0x56c1]"]},
    ),
}


@pytest.mark.parametrize("name", NAMES)
def test_accelerators_are_named_by_a_tool_in_order_of_their_numbers(name: str, tmp_path: Path) -> None:
    text, facts = NAMES[name]
    tools = {name: printing(SMI_TOOLS[name], text, tmp_path, ends=True)}
    assert accelerator_facts(Sources(gpu=name), target("http://h"), tools) == facts
    only = accelerator_facts(Sources(gpu=name, devices=(1,)), target("http://h"), tools)
    assert only["accelerator_names"] == facts["accelerator_names"][1:]
    assert accelerator_facts(Sources(), target("http://h"), tools) == {}


def test_accelerators_are_read_again_where_a_page_did_not_answer_once() -> None:
    statuses = [503, 200]

    def answer(received: Received) -> list[Step]:
        head = f"HTTP/1.1 {statuses.pop(0)} Scripted\r\ncontent-length: {len(DCGM)}\r\n\r\n"
        return [head.encode() + DCGM.encode()]

    with ScriptedServer(answer) as server:
        facts = accelerator_facts(Sources(gpu=f"{server.url}/metrics"), target("http://h"))
    assert facts == {"accelerator_names": ["NVIDIA H100", "NVIDIA H100"], "driver": "570.1"}
