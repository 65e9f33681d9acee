"""Upper bound of a stream's token rate, by the memory bandwidth of its accelerators (the memory roofline).

Every decoding step reads the weights that it uses from memory once, however many requests share the step. So no stream
gets more steps a second than bandwidth / bytes read, and no more tokens than steps times the tokens of one step, which
is 1 without speculative decoding. See Williams et al. 2009, doi 10.1145/1498765.1498785; Pope et al. 2022, arXiv
2211.05102, section 2.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from benchgate.gate.evidence.deployments import FLAGS, accelerators_by_flags, reported_accelerators
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence
from benchgate.model.telemetry import Counter, Gauge

_GB = 1e9
_UNKNOWN_DRAFT_TOKENS = 15  # beyond the usual 1 to 8, and prompt lookup that copies long passages
_DRAFT_FLAGS = ("speculative_num_draft_tokens", "speculative_num_steps")


class Bandwidth(NamedTuple):
    """Memory bandwidth of an accelerator by its vendor: the fastest one sold under this name."""

    name: str  # words that must all be in the name of an accelerator
    gb_per_s: float
    source: str


_NVIDIA, _AMD, _INTEL, _GOOGLE = "NVIDIA", "AMD", "Intel", "Google Cloud"
BANDWIDTHS: tuple[Bandwidth, ...] = (
    Bandwidth("T4", 320, f"{_NVIDIA} T4 datasheet"),
    Bandwidth("V100", 1_134, f"{_NVIDIA} V100 datasheet, V100S"),
    Bandwidth("A2", 200, f"{_NVIDIA} A2 datasheet"),
    Bandwidth("A10", 600, f"{_NVIDIA} A10 datasheet"),
    Bandwidth("A10G", 600, f"{_NVIDIA} A10G, Amazon EC2 G5"),
    Bandwidth("A30", 933, f"{_NVIDIA} A30 datasheet"),
    Bandwidth("A40", 696, f"{_NVIDIA} A40 datasheet"),
    Bandwidth("A100", 2_039, f"{_NVIDIA} A100 datasheet, 80 GB SXM"),
    Bandwidth("A800", 2_039, f"{_NVIDIA} A800 datasheet, 80 GB SXM"),
    Bandwidth("A6000", 768, f"{_NVIDIA} RTX A6000 datasheet"),
    Bandwidth("L4", 300, f"{_NVIDIA} L4 datasheet"),
    Bandwidth("L20", 864, f"{_NVIDIA} L20 datasheet"),
    Bandwidth("L40", 864, f"{_NVIDIA} L40 datasheet"),
    Bandwidth("L40S", 864, f"{_NVIDIA} L40S datasheet"),
    Bandwidth("H20", 4_800, f"{_NVIDIA} H20 datasheet, 141 GB"),
    Bandwidth("H100", 3_938, f"{_NVIDIA} H100 datasheet, NVL"),
    Bandwidth("H100 PCIe", 2_039, f"{_NVIDIA} H100 datasheet, PCIe"),
    Bandwidth("H100 SXM", 3_350, f"{_NVIDIA} H100 datasheet, SXM"),
    Bandwidth("H100 80GB HBM3", 3_350, f"{_NVIDIA} H100 datasheet, SXM"),
    Bandwidth("H800", 3_938, f"{_NVIDIA} H800 datasheet, NVL"),
    Bandwidth("H200", 4_800, f"{_NVIDIA} H200 datasheet"),
    Bandwidth("GH200", 4_900, f"{_NVIDIA} GH200 datasheet, 144 GB HBM3e"),
    Bandwidth("B100", 8_000, f"{_NVIDIA} Blackwell architecture brief"),
    Bandwidth("B200", 8_000, f"{_NVIDIA} Blackwell architecture brief"),
    Bandwidth("B300", 8_000, f"{_NVIDIA} Blackwell Ultra datasheet"),
    Bandwidth("GB200", 8_000, f"{_NVIDIA} GB200 datasheet, each of its two GPUs"),
    Bandwidth("GB300", 8_000, f"{_NVIDIA} GB300 datasheet, each of its two GPUs"),
    Bandwidth("GB10", 273, f"{_NVIDIA} DGX Spark datasheet"),
    Bandwidth("RTX 3090", 1_008, f"{_NVIDIA} GeForce RTX 3090 specifications, Ti"),
    Bandwidth("RTX 4090", 1_008, f"{_NVIDIA} GeForce RTX 4090 specifications"),
    Bandwidth("RTX 5090", 1_792, f"{_NVIDIA} GeForce RTX 5090 specifications"),
    Bandwidth("RTX 6000", 1_792, f"{_NVIDIA} RTX PRO 6000 Blackwell datasheet"),
    Bandwidth("MI210", 1_638, f"{_AMD} Instinct MI210 datasheet"),
    Bandwidth("MI250", 3_277, f"{_AMD} Instinct MI250 datasheet"),
    Bandwidth("MI250X", 3_277, f"{_AMD} Instinct MI250X datasheet"),
    Bandwidth("MI300A", 5_300, f"{_AMD} Instinct MI300A datasheet"),
    Bandwidth("MI300X", 5_300, f"{_AMD} Instinct MI300X datasheet"),
    Bandwidth("MI308X", 5_300, f"{_AMD} Instinct MI300X datasheet, of which it is a part"),
    Bandwidth("MI325X", 6_000, f"{_AMD} Instinct MI325X datasheet"),
    Bandwidth("MI350X", 8_000, f"{_AMD} Instinct MI350X datasheet"),
    Bandwidth("MI355X", 8_000, f"{_AMD} Instinct MI355X datasheet"),
    Bandwidth("Gaudi2", 2_450, f"{_INTEL} Gaudi 2 white paper"),
    Bandwidth("Gaudi3", 3_700, f"{_INTEL} Gaudi 3 white paper"),
    Bandwidth("Max 1550", 3_277, f"{_INTEL} Data Center GPU Max 1550 specifications"),
    Bandwidth("TPU v4", 1_228, f"{_GOOGLE} TPU v4 documentation"),
    Bandwidth("TPU v5e", 819, f"{_GOOGLE} TPU v5e documentation"),
    Bandwidth("TPU v5p", 2_765, f"{_GOOGLE} TPU v5p documentation"),
    Bandwidth("TPU v6e", 1_638, f"{_GOOGLE} TPU v6e documentation"),
)


def bandwidth_of(name: str) -> Bandwidth | None:
    """Return the entry with the most words that are all in an accelerator's name; None if there is none."""
    words = _words(name)
    found = [one for one in BANDWIDTHS if _words(one.name) <= words]
    return max(found, key=lambda one: len(_words(one.name)), default=None)


def _words(name: str) -> set[str]:
    return {word.upper() for word in re.split("[^A-Za-z0-9]+", name) if word}


@dataclass(frozen=True, slots=True)
class Roofline:
    """Bytes that a step reads, and the bandwidth of all accelerators; `replicas` of the deployment share them."""

    bandwidth: Bandwidth
    accelerators: int
    replicas: int
    step_bytes: float
    step_tokens: int  # most tokens of one step
    deployment: str

    @property
    def most_tokens_per_s(self) -> float:
        """Return the bound of a stream's rate, if all accelerators of the deployment worked for it."""
        return self._steps_per_s(self.accelerators) * self.step_tokens

    @property
    def plain_tokens_per_s(self) -> float:
        """Return the bound of a stream's rate on one replica, without speculative decoding."""
        return self._steps_per_s(self.accelerators / self.replicas)

    def _steps_per_s(self, accelerators: float) -> float:
        return self.bandwidth.gb_per_s * _GB * accelerators / self.step_bytes


def roofline_of(run: Evidence, arm: Arm) -> Roofline | str | None:
    """Return the roofline of an arm, or why there is none; None if its suite declares no `active_weights`."""
    spec = _declared(run, arm)
    size = spec.get("active_weights_bytes")
    if not isinstance(size, int | float) or size <= 0:
        return None
    deployment = run.run.arms[arm]
    names, kind = reported_accelerators(deployment), spec.get("accelerator")
    known = [found for name in names if (found := bandwidth_of(name)) is not None]
    if len(known) < len(names) or not names:
        declared = bandwidth_of(kind) if isinstance(kind, str) else None
        known = [] if declared is None else [declared]
    if not known:
        unknown = ", ".join(dict.fromkeys(names)) or (kind if isinstance(kind, str) else "undeclared and not reported")
        return f"the accelerator of the {arm.value} is {unknown}, and its memory bandwidth is not known"
    return Roofline(
        max(known, key=lambda one: one.gb_per_s),
        max(deployment.accelerators, accelerators_by_flags(deployment), len(names)),
        _whole(_mapping(spec.get("ready")).get("replicas")) or 1,
        float(size),
        1 + _draft_tokens(run, arm, spec),
        deployment.name,
    )


def _declared(run: Evidence, arm: Arm) -> Mapping[str, object]:
    deployment = run.run.arms.get(arm)
    return _mapping(_mapping(run.run.suite.get("deployments")).get(deployment.name)) if deployment is not None else {}


def _draft_tokens(run: Evidence, arm: Arm, spec: Mapping[str, object]) -> int:
    """Return the most tokens that a step drafts. A declared number that the server contradicts is not used."""
    windows = [window for window in run.telemetry if window.arm is arm]
    drafts = any(window.change(Counter.DRAFTED) or window.peak(Gauge.ACCEPTANCE) for window in windows)
    declared = _whole(spec.get("draft_tokens"))
    if declared is not None and (declared or not drafts):
        return declared
    flags = _mapping(run.run.arms[arm].facts.get(FLAGS))
    reported = [count for name in _DRAFT_FLAGS if (count := _whole(flags.get(name)))]
    return max(reported, default=_UNKNOWN_DRAFT_TOKENS)


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else MappingProxyType({})


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
