"""The results of guards by name, as a verdict lists them."""

from __future__ import annotations

from benchgate.gate.comparison import Comparison, compare
from benchgate.gate.guards import EVAL_GUARDS, RUN_GUARDS, UNTIED_GUARDS
from benchgate.gate.guards.answers import Evals
from benchgate.gate.guards.base import run_each
from benchgate.model.run import Evidence
from benchgate.model.verdict import GuardResult
from benchgate.suite.schema import Suite

TELEMETRY = ("server-kept-running", "server-alone", "cache-cold")
SHADOW = ("shadow-not-empty", "shadow-not-refused", "shadow-not-cached")


def of_run(evidence: Evidence, suite: Suite, *names: str) -> list[GuardResult]:
    """The results of these guards of one run, without those that are left out."""
    return [one for one in run_each(RUN_GUARDS, evidence, suite) if one.id in names]


def of_evals(comparison: Comparison, suite: Suite) -> list[GuardResult]:
    return list(run_each(EVAL_GUARDS, Evals.of(comparison, suite), suite))


def one_of_evals(name: str, evidence: Evidence, suite: Suite) -> GuardResult:
    return next(one for one in of_evals(compare(evidence), suite) if one.id == name)


def of_untied_runs(comparison: Comparison, suite: Suite) -> list[GuardResult]:
    return [guard(comparison.request_pairs, suite) for guard in UNTIED_GUARDS]
