"""The families of checks, in one explicit list."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from benchgate.gate.checks.accuracy import Accuracy
from benchgate.gate.checks.base import CheckFamily
from benchgate.gate.checks.capacity import CapacityChecks, Knee
from benchgate.gate.checks.divergence import Divergence
from benchgate.gate.checks.flips import FlipsCheck
from benchgate.gate.checks.server import ColdStart, Telemetry
from benchgate.gate.checks.shadow import ShadowChecks
from benchgate.gate.checks.shares import Shares
from benchgate.gate.checks.timing import Timing

CHECKS: tuple[CheckFamily, ...] = (
    Timing(), Shares(), Telemetry(), CapacityChecks(), Knee(), ColdStart(), Accuracy(), FlipsCheck(), Divergence(),
    ShadowChecks(),
)  # fmt: skip

FAMILIES: Mapping[str, CheckFamily] = MappingProxyType(
    {metric: family for family in CHECKS for metric in family.metrics}
)
"""The family that judges each metric, by the metric's name."""
