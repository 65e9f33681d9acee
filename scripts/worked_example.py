"""Measurements and verdicts of the worked example in docs/concepts.md, decided by benchgate itself."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from benchgate.gate.judge import judge
from benchgate.model.records import FloatArray
from benchgate.model.run import Evidence, RunStatus
from benchgate.model.verdict import CheckResult, Verdict
from benchgate.stats.distributions import t_ppf
from benchmarks.made_runs import executions, load_suite, run_of

BASELINE_MS = (100, 104, 98, 101, 97)
MARGIN = 0.10
STAGE = "c2"


@dataclass(frozen=True, slots=True)
class Example:
    """One candidate: its median TTFT in each block, in milliseconds. `interrupted`: the run did not end."""

    name: str
    candidate_ms: tuple[int, ...]
    interrupted: bool = False


EXAMPLES = (
    Example("as fast as the baseline", (101, 103, 99, 100, 98)),
    Example("a little slower", (103, 106, 102, 103, 101)),
    Example("slower than the margin allows", (113, 116, 111, 112, 110)),
    Example("too noisy", (97, 118, 94, 112, 103)),
    Example("interrupted", (101, 103, 99, 100, 98), interrupted=True),
)
WORKED = EXAMPLES[1]


@dataclass(frozen=True, slots=True)
class PairedT:
    """Arithmetic of the worked example. Logarithms of ratios, except `changes`."""

    log_ratios: FloatArray
    mean: float
    deviation: float
    error: float
    quantile: float
    lower: float
    upper: float


@cache
def verdict_of(example: Example) -> Verdict:
    """Return benchgate's verdict: median TTFT with a margin of 10%, five blocks, one interim analysis."""
    check: dict[str, object] = {"metric": "ttft", "statistic": "p50", "stage": STAGE, "margin": f"{MARGIN:.0%}"}
    suite = load_suite([check], [STAGE], [len(BASELINE_MS)])
    run = run_of(suite)
    if example.interrupted:
        run = replace(run, status=RunStatus.PARTIAL)
    values_s = np.array([BASELINE_MS, example.candidate_ms]).T / 1000
    return judge(suite, Evidence(run, tuple(executions(STAGE, values_s)), (), None, ()))


def check_of(example: Example) -> CheckResult:
    """Return the only check of the verdict."""
    (check,) = verdict_of(example).checks
    return check


def paired_t(example: Example) -> PairedT:
    """Compute by hand what the check computes."""
    ratios: FloatArray = np.log(np.array(example.candidate_ms) / np.array(BASELINE_MS))
    mean, deviation = float(ratios.mean()), float(ratios.std(ddof=1))
    error = deviation / math.sqrt(len(ratios))
    quantile = t_ppf(0.95, len(ratios) - 1)
    return PairedT(ratios, mean, deviation, error, quantile, mean - quantile * error, mean + quantile * error)


def percent(log_ratio: float | None) -> str:
    """Show a log ratio as a signed change in percent."""
    assert log_ratio is not None
    return f"{100 * math.expm1(log_ratio):+.1f}%".replace("-", "\N{MINUS SIGN}")
