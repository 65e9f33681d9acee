"""Registry of guards: every guard in the order of the results, and the function that runs them.

A tripped guard prevents PASS, even if all checks pass, and makes the checks that it invalidates INVALID.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchgate.gate.comparison import Comparison, TiedRuns, UntiedRuns
from benchgate.gate.guards import anomalies, answers, arms, caches, client, load, roofline, run, server, text
from benchgate.gate.guards.answers import Evals
from benchgate.gate.guards.base import Guard, are_comparisons, run_each
from benchgate.model.run import Evidence
from benchgate.model.verdict import GuardResult
from benchgate.suite.schema import Suite

COMPARISON_GUARDS: tuple[Guard[TiedRuns], ...] = (
    run.same_measurement, run.same_client, run.same_baseline, arms.sides_alike,
)  # fmt: skip
"""Guards of two stored runs."""

RUN_GUARDS: tuple[Guard[Evidence], ...] = (
    # the run
    run.targets_up, run.run_complete, run.all_measured, run.few_interruptions, run.replicas_changed,
    # the load generator
    client.load_as_planned, client.times_possible, client.client_keeps_up, client.one_client,
    # both arms' responses to the load, the most specific text guards first
    load.sent_once, load.prompts_alike, load.tokens_alike, load.tokens_plausible, load.answers_not_too_long,
    roofline.pace_possible, text.text_not_degenerate, text.answers_there, text.first_token_visible, text.same_text,
    text.model_names, load.same_work, caches.load_not_cached, caches.order_does_not_matter, load.failures_judged,
    load.background_alike,
    # the servers
    server.server_kept_running, server.server_alone, server.cache_cold, arms.arms_alike, arms.two_deployments,
    # the shadow comparison
    answers.shadow_not_empty, answers.shadow_not_refused, caches.shadow_not_cached, anomalies.shadow_sound,
)  # fmt: skip
"""Guards of one run. Of two compared runs, the reference run is examined first."""

UNTIED_GUARDS: tuple[Guard[Evidence], ...] = (
    load.prompts_alike, load.tokens_alike, load.answers_not_too_long, load.same_work, caches.load_not_cached,
    text.text_not_degenerate, text.answers_there, text.first_token_visible, text.same_text, load.failures_judged,
    load.background_alike,
)  # fmt: skip
"""Guards that compare two candidates' requests when their runs share no live baseline."""

EVAL_GUARDS: tuple[Guard[Evals], ...] = (
    answers.answers_not_empty, answers.answers_readable, answers.items_paired, answers.same_harness,
    answers.baseline_able, answers.above_chance, answers.not_guessing, answers.baseline_as_known,
    caches.not_cached, answers.gain_plausible, anomalies.answers_sound,
)  # fmt: skip
"""Guards of the evals of one run or two."""

GUARDS: tuple[Guard[Any], ...] = (run.no_calibration, *COMPARISON_GUARDS, *RUN_GUARDS, *EVAL_GUARDS)
"""Every guard, once."""


def run_guards(comparison: Comparison, suite: Suite) -> tuple[GuardResult, ...]:
    """Return the result of every guard, tripped or not, in a fixed order."""
    runs = tuple(reversed(comparison.runs))
    results = [result for one in runs for result in run_each((run.no_calibration,), one, suite)]
    if isinstance(comparison, TiedRuns):
        results += [guard(comparison, suite) for guard in COMPARISON_GUARDS]
    results += [result for one in runs for result in run_each(RUN_GUARDS, one, suite)]
    if isinstance(comparison, UntiedRuns):
        results += run_each(UNTIED_GUARDS, comparison.interleaved, suite, judged=comparison.judged)
    results += run_each(EVAL_GUARDS, Evals.of(comparison, suite), suite)
    if arms.has_only_load_bounds(suite):  # guards that invalidate only comparisons do not trip
        without = "no load check compares with the baseline, so none is affected"
        results = [
            replace(one, tripped=False, reason=f"{one.reason}; {without}", remedy=None, invalidates=())
            if one.tripped and are_comparisons(one.invalidates)
            else one
            for one in results
        ]
    return tuple(results)
