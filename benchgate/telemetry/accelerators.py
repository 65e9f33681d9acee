"""Metric names of the exporters of accelerators, and the values on their pages. Pure.

A page belongs to the first exporter whose names and device label are on it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from benchgate.model.telemetry import Counter, Gauge, TelemetryMetric
from benchgate.targets.error_messages import one_line
from benchgate.telemetry.engine_metrics import (
    BadPageError,
    MetricNames,
    MetricSource,
    Sample,
    parse_samples,
    read_values,
)


@dataclass(frozen=True, slots=True)
class Exporter:
    """An exporter of accelerators' metrics.

    `device` is the label that identifies an accelerator. `number` finds its number in that label; None: the exporter
    does not number them. `part` labels the parts of an accelerator, `group` the sums over several. `partition` labels
    partitions that are devices of their own, of which the first alone reports what is measured of the whole.
    `repeated` are figures of a whole accelerator that the page has once for each of its instances or users.
    """

    names: MetricNames
    source: str  # repository, file and commit that define the names
    device: str
    number: re.Pattern[str] | None
    kinds: tuple[str, ...]  # labels with the name of the accelerator, the best first
    driver: str | None = None
    part: str | None = None
    group: str | None = None
    partition: str | None = None
    repeated: tuple[TelemetryMetric, ...] = ()


_PERCENT = 0.01
_MILLI = 1e-3
_MICRO = 1e-6
_MEGA = 1e6
_WHOLE = re.compile(r"^(\d+)$")
_LAST = re.compile(r"^[^-]+-(\d+)$")


def _mean(name: str, scale: float = 1.0, **labels: str) -> MetricSource:
    return MetricSource((name,), labels, scale, combine="mean")


def _share(used: str, total: str) -> MetricSource:
    return MetricSource((used,), divisor=MetricSource((total,)))


# Names that the exporter shows by default and, the PROF ones, where profiling is allowed.
_DCGM: MetricNames = {
    Gauge.GPU_BUSY: (_mean("DCGM_FI_PROF_GR_ENGINE_ACTIVE"), _mean("DCGM_FI_DEV_GPU_UTIL", _PERCENT)),
    Gauge.GPU_BANDWIDTH: (_mean("DCGM_FI_PROF_DRAM_ACTIVE"),),
    Gauge.GPU_MEMORY_BUSY: (_mean("DCGM_FI_DEV_MEM_COPY_UTIL", _PERCENT),),
    Gauge.GPU_POWER: (MetricSource(("DCGM_FI_DEV_POWER_USAGE",)),),
    Gauge.GPU_CLOCK: (_mean("DCGM_FI_DEV_SM_CLOCK", _MEGA),),
    Counter.GPU_ENERGY_J: (MetricSource(("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",), scale=_MILLI),),
}


def _amd(prefix: str) -> MetricNames:
    """Return AMD's names; `prefix` is what a configuration may put before them."""
    return {
        Gauge.GPU_BUSY: (_mean(f"{prefix}gpu_gfx_activity", _PERCENT),),
        Gauge.GPU_MEMORY_BUSY: (_mean(f"{prefix}gpu_umc_activity", _PERCENT),),
        # MI3xx report the first, MI2xx the second.
        Gauge.GPU_POWER: tuple(
            MetricSource((f"{prefix}gpu_{name}",)) for name in ("package_power", "average_package_power", "power_usage")
        ),
        Gauge.GPU_MEMORY_USED: (_share(f"{prefix}gpu_used_vram", f"{prefix}gpu_total_vram"),),
        Gauge.GPU_CLOCK: tuple(
            _mean(f"{prefix}gpu_clock", _MEGA, clock_type=kind) for kind in ("system", "GPU_CLOCK_TYPE_SYSTEM")
        ),
        Counter.GPU_ENERGY_J: (MetricSource((f"{prefix}gpu_energy_consumed",), scale=_MICRO),),
    }


# Ratios are scaled to 1 by the exporter. Its client library adds `_total` to a counter.
_XPUM: MetricNames = {
    Gauge.GPU_BUSY: (_mean("xpum_engine_ratio"),),
    Gauge.GPU_BANDWIDTH: (_mean("xpum_memory_bandwidth_ratio"),),
    Gauge.GPU_POWER: (MetricSource(("xpum_power_watts",)),),
    Gauge.GPU_MEMORY_USED: (_mean("xpum_memory_ratio"),),
    Gauge.GPU_CLOCK: (_mean("xpum_frequency_mhz", _MEGA, location="gpu", type="actual"),),
    Counter.GPU_ENERGY_J: (MetricSource(("xpum_energy_joules_total",)),),
}

# `tensorcore_utilization` is a share of peak operations, not of time, so it is not the utilisation.
_TPU: MetricNames = {
    Gauge.GPU_BUSY: (_mean("duty_cycle", _PERCENT),),
    Gauge.GPU_BANDWIDTH: (_mean("memory_bandwidth_utilization", _PERCENT),),
    Gauge.GPU_MEMORY_USED: (_share("memory_used", "memory_total"),),
}

_AMD_SOURCE = (
    "ROCm/device-metrics-exporter pkg/amdgpu/gpuagent/gpuagent_gpu_metrics.go, docs/configuration/metricslist.md @ "
    "0778d3ab4d66fce90f0ca846e114be1d976f3e35"
)


def _amd_exporter(prefix: str) -> Exporter:
    kinds = ("card_series", "card_model")
    return Exporter(_amd(prefix), _AMD_SOURCE, "gpu_id", _WHOLE, kinds, "driver_version", partition="gpu_partition_id")


EXPORTERS: Mapping[str, Exporter] = MappingProxyType(
    {
        "DCGM": Exporter(
            _DCGM,
            "NVIDIA/dcgm-exporter etc/default-counters.csv",
            "gpu",
            _WHOLE,
            ("modelName",),
            "DCGM_FI_DRIVER_VERSION",
            repeated=(Gauge.GPU_POWER, Gauge.GPU_CLOCK, Counter.GPU_ENERGY_J),  # with MIG: issues 257 and 317 there
        ),
        "AMD": _amd_exporter(""),
        "AMD with a prefix": _amd_exporter("amd_"),
        "XPU Manager": Exporter(
            _XPUM,
            "intel/xpumanager rest/prometheus_exporter/prometheus_exporter_types.py @ "
            "04ebef93553e85a3410b6e499388776b7e3642bc, prometheus_exporter.py @ "
            "004009ec1bfbcf8f4239a5a955cfd74470fb0bb0",
            "uuid",
            None,
            ("dev_name",),
            part="sub_dev",
            group="card",
        ),
        "GKE": Exporter(
            _TPU,
            "ray-project/ray python/ray/dashboard/modules/reporter/tests/test_reporter.py @ "
            "dc74d6f7b3e9bed79f844657e4a9e5f963d837b9, llm-d/llm-d docs/operations/observability/tpu-metrics-gke.md @ "
            "3d016852a467fd7b592799fcdf17dce9917e9f7c",
            "accelerator_id",
            _LAST,
            ("model",),
        ),
    }
)


@dataclass(frozen=True, slots=True)
class AcceleratorReading:
    """Figures of all accelerators of a deployment together, and why some are left out."""

    values: Mapping[TelemetryMetric, float]
    problems: tuple[str, ...] = ()


def read_accelerators(text: str, devices: Collection[int] | None) -> AcceleratorReading:
    """Read an exporter's values for these accelerators, None for all. Raises BadPageError.

    A figure that one of them lacks is left out: a sum over the others would be too small.
    """
    exporter, samples = _recognise(text)
    if exporter is None:
        raise BadPageError("it names no accelerator; expected a page of " + ", ".join(EXPORTERS))
    if devices is not None:
        if exporter.number is None:
            raise BadPageError("its accelerators have no numbers; leave out `gpu_devices`")
        samples = [sample for sample in samples if _number_of(sample, exporter) in devices]
        if not samples:
            raise BadPageError("it names none of these accelerators")
    absent = set(map(str, devices or ())) - {_key(sample, exporter) for sample in samples}
    expected = absent | {_key(sample, exporter) for sample in samples if _is_measured_whole(sample, exporter)}
    names, lacking = dict[TelemetryMetric, tuple[MetricSource, ...]](), dict[TelemetryMetric, set[str]]()
    for metric, alternatives in exporter.names.items():
        missing = [(source, expected - _reporting(source, samples, exporter)) for source in alternatives]
        names[metric] = tuple(source for source, without in missing if not without)
        named = [without for source, without in missing if any(sample.name in source.names for sample in samples)]
        if not names[metric] and named:
            lacking[metric] = min(named, key=len)
    finite = [sample for sample in samples if math.isfinite(sample.value)]
    return AcceleratorReading(read_values(finite, names, None), lacking_problems(lacking))


def lacking_problems(lacking: Mapping[TelemetryMetric, Collection[str]]) -> tuple[str, ...]:
    """Return a problem for the figures that the same accelerators lack: `lacking` holds those of each figure."""
    figures: dict[tuple[str, ...], list[str]] = {}
    for metric, devices in lacking.items():
        figures.setdefault(tuple(sorted(devices)), []).append(metric)
    return tuple(
        f"accelerator{'s' * (len(devices) > 1)} {one_line(', '.join(devices))} did not report {', '.join(metrics)}, "
        f"left out for all accelerators; if the deployment does not use {'them' if len(devices) > 1 else 'it'}, list "
        "the others in `gpu_devices`"
        for devices, metrics in figures.items()
    )


def _reporting(source: MetricSource, samples: Sequence[Sample], exporter: Exporter) -> set[str]:
    """Return the accelerators with samples of every name of the source, and of its divisor: only finite ones."""
    found = []
    for name in source.names:
        own = [one for one in samples if one.name == name and source.labels.items() <= one.labels.items()]
        without = {_key(one, exporter) for one in own if not math.isfinite(one.value)}
        found.append({_key(one, exporter) for one in own} - without)
    if source.divisor is not None:
        found.append(_reporting(source.divisor, samples, exporter))
    return set.intersection(*found)


def _key(sample: Sample, exporter: Exporter) -> str:
    number = _number_of(sample, exporter)
    return sample.labels[exporter.device] if number is None else str(number)


def _is_measured_whole(sample: Sample, exporter: Exporter) -> bool:
    return exporter.partition is None or sample.labels.get(exporter.partition, "0") in ("0", "NA")


def name_accelerators(text: str) -> dict[int, tuple[str, str]]:
    """Return the name and driver of each accelerator by its number, or by its place where the exporter has none."""
    exporter, samples = _recognise(text)
    if exporter is None:
        return {}
    places = {device: place for place, device in enumerate(sorted({s.labels[exporter.device] for s in samples}))}
    found = {}
    for sample in samples:
        number = places[sample.labels[exporter.device]] if exporter.number is None else _number_of(sample, exporter)
        name = next((sample.labels[label] for label in exporter.kinds if sample.labels.get(label)), None)
        if name is not None and number is not None:
            driver = "" if exporter.driver is None else sample.labels.get(exporter.driver, "")
            found[number] = (one_line(name), one_line(driver))
    return found


def _recognise(text: str) -> tuple[Exporter | None, list[Sample]]:
    """Return the exporter of a page and the samples of its accelerators, also those without a number as their value."""
    samples = parse_samples(text, finite=False)
    for exporter in EXPORTERS.values():
        names = {name for sources in exporter.names.values() for source in sources for name in source.series}
        own = [sample for sample in samples if sample.name in names and sample.labels.get(exporter.device)]
        if own:
            return exporter, _whole_accelerators(own, exporter)
    return None, []


def _whole_accelerators(samples: Sequence[Sample], exporter: Exporter) -> list[Sample]:
    """Drop what would count twice: sums over accelerators, parts of one that is reported as a whole, repeated ones."""
    single = [sample for sample in samples if exporter.group is None or exporter.group not in sample.labels]
    if exporter.part is not None:
        whole = {(s.name, s.labels[exporter.device]) for s in single if exporter.part not in s.labels}
        single = [
            s for s in single if exporter.part not in s.labels or (s.name, s.labels[exporter.device]) not in whole
        ]
    repeated = {name for metric in exporter.repeated for source in exporter.names[metric] for name in source.names}
    first: dict[tuple[str, ...], Sample] = {}
    for sample in single:
        if sample.name in repeated:
            first.setdefault((sample.name, sample.labels[exporter.device], sample.labels.get("UUID", "")), sample)
    return [s for s in single if s.name not in repeated] + list(first.values())


def _number_of(sample: Sample, exporter: Exporter) -> int | None:
    found = exporter.number.match(sample.labels[exporter.device]) if exporter.number is not None else None
    return int(found[1]) if found is not None else None
