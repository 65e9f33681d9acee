"""What is taken for granted of deployments that were never calibrated: shown as assumed, it refuses nothing.

The spreads are of serving on a quiet machine of one's own; shared ones have more (Laaber, Scheuner and Leitner 2019 saw
0.03 % to more than 100 % in clouds).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from benchgate.suite.shadow import Shadow

RUN_CV: Mapping[str | None, float] = MappingProxyType(
    {None: 0.03, "mean": 0.03, "p50": 0.03, "p90": 0.06, "p95": 0.06, "p99": 0.10}
)
"""How much one arm's value varies from block to block, by statistic; None is a rate. The throughput of a quiet GPU
varies by 1 to 3 %; a p95 of some hundred requests by twice a median's spread, a p99 by three times and more."""

FLIPS = 0.05
"""Items on which two equal arms differ: greedy decoding flips 2 to 5 % of its answers against itself."""

FREE_TEXT_DIFFERS = 0.30
"""Prompts whose free-form answers differ between two askings of one deployment, word by word."""

FORM_DIFFERS = 0.05
"""The same of answers that are compared by their JSON, calls or structure."""

JUDGE_DIFFERS = 0.136
"""Pairs about which a judge of equal answers prefers one: so many verdicts change when it is asked again."""

ALIKE_IN_CLUSTERS = 0.3
"""Intra-class correlation of the differences of items in one cluster."""

MISSES = 0.01
"""Requests that fail, or are not valid, where nobody knows."""

_BY_FORM = ("json", "tool_calls", "structure")


def cv_of(statistic: str | None) -> float:
    """The run-to-run spread that is assumed of a statistic."""
    return RUN_CV.get(statistic, RUN_CV["p99"])


def shadow_differs(shadow: Shadow) -> float:
    """How often one deployment's answers are taken to differ when it is asked twice."""
    return FORM_DIFFERS if shadow.compare.by in _BY_FORM else FREE_TEXT_DIFFERS
