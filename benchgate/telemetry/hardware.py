"""Which accelerators serve a deployment, by name, and under which driver: asked once, before anything is measured."""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Mapping, Sequence

from benchgate.suite.deployment import NVIDIA_SMI
from benchgate.targets.dialect import Target
from benchgate.targets.error_messages import one_line
from benchgate.telemetry.engines import GPU_LABEL
from benchgate.telemetry.page import BadPageError, Sample, samples_of
from benchgate.telemetry.sources import PageSource, Sources, UnreadError

COMMAND = ("nvidia-smi", "--query-gpu=index,name,driver_version", "--format=csv,noheader")
_LONGEST_S = 10.0  # the driver may have to wake up
_NAME, _DRIVER = "modelName", "DCGM_FI_DRIVER_VERSION"  # labels of an exporter's samples


def accelerator_facts(sources: Sources, target: Target, command: Sequence[str] = COMMAND) -> dict[str, object]:
    """`accelerator_names`, one per accelerator in the order of their numbers, and `driver`; empty where nobody tells.

    A name is told by whatever `gpu` of the deployment names: `nvidia-smi` of this machine, or a DCGM exporter.
    """
    if sources.gpu is None:
        return {}
    told = _by_smi(command) if sources.gpu == NVIDIA_SMI else _by_page(sources.gpu, target)
    return _facts(told, sources.devices)


def _facts(told: Mapping[int, tuple[str, str]], devices: Collection[int] | None) -> dict[str, object]:
    kept = [told[number] for number in sorted(told) if devices is None or number in devices]
    drivers = sorted({driver for _, driver in kept if driver})
    facts: dict[str, object] = {"accelerator_names": [name for name, _ in kept]} if kept else {}
    return facts | ({"driver": ", ".join(drivers)} if drivers else {})


def _by_smi(command: Sequence[str]) -> dict[int, tuple[str, str]]:
    """`0, NVIDIA H200, 570.86.15` a line; nothing from a machine without accelerators."""
    try:
        ran = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_LONGEST_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    rows = [[cell.strip() for cell in line.split(",")] for line in ran.stdout.splitlines()]
    whole = [row for row in rows if len(row) == 3 and row[0].isdigit()]
    return {int(row[0]): (one_line(row[1]), one_line(row[2])) for row in whole}


def _by_page(address: str, target: Target) -> dict[int, tuple[str, str]]:
    """What an exporter's samples say in their labels of the accelerators they are of."""
    try:
        with PageSource(address, target) as source:
            samples = samples_of(source.fetch().text)
    except (UnreadError, BadPageError):
        return {}
    return dict(entry for sample in samples if (entry := _named(sample)) is not None)


def _named(sample: Sample) -> tuple[int, tuple[str, str]] | None:
    number, name = sample.labels.get(GPU_LABEL, ""), sample.labels.get(_NAME)
    if name is None or not number.isdigit():
        return None
    return int(number), (one_line(name), one_line(sample.labels.get(_DRIVER, "")))
