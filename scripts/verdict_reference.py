"""Generated parts of docs/concepts.md, docs/reference/verdict.md and docs/reference/metrics.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from benchgate.errors import ExitCode
from benchgate.gate.evidence.roofline import BANDWIDTHS
from benchgate.gate.guards import COMPARISON_GUARDS, EVAL_GUARDS, RUN_GUARDS
from benchgate.gate.guards.base import EVERYTHING, Guard
from benchgate.gate.guards.run import no_calibration
from benchgate.model.metric import METRICS, Metric
from benchgate.model.verdict import Outcome
from scripts.worked_example import BASELINE_MS, EXAMPLES, MARGIN, WORKED, check_of, paired_t, percent, verdict_of


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def worked_blocks() -> str:
    """Return the blocks of the worked example: both medians and the log ratio."""
    ratios = paired_t(WORKED).log_ratios
    rows = [
        [str(number), f"{baseline} ms", f"{candidate} ms", f"{ratio:.5f}"]
        for number, (baseline, candidate, ratio) in enumerate(
            zip(BASELINE_MS, WORKED.candidate_ms, ratios, strict=True), 1
        )
    ]
    return table(("block", "baseline", "candidate", "ln(candidate / baseline)"), rows)


def worked_interval() -> str:
    """Return the arithmetic of the worked example, and the sentence that benchgate writes."""
    found, check = paired_t(WORKED), check_of(WORKED)
    blocks = len(BASELINE_MS)
    assert check.p_value is not None
    spread = f"{found.quantile:.3f} * {found.error:.5f}"
    lines = [
        f"mean            {found.mean:.5f} = {percent(found.mean)}",
        f"standard error  {found.deviation:.5f} / sqrt({blocks}) = {found.error:.5f}",
        f"t quantile      {found.quantile:.3f} (95%, {blocks - 1} degrees of freedom)",
        f"lower bound     {found.mean:.5f} - {spread} = {found.lower:.5f} = {percent(found.lower)}",
        f"upper bound     {found.mean:.5f} + {spread} = {found.upper:.5f} = {percent(found.upper)}",
        f"margin          ln(1 + {MARGIN:.0%}) = {check.margin:.5f}",
        f'p-value         {check.p_value:.4f} of "no regression"',
    ]
    return "\n".join(["```text", *lines, "```", "", f"> {verdict_of(WORKED).reason}"])


def five_outcomes() -> str:
    """Return the verdicts of the worked example's candidates."""
    rows = []
    for example in EXAMPLES:
        check, verdict = check_of(example), verdict_of(example)
        interval = f"{percent(check.lower)} to {percent(check.upper)}"
        rows.append([example.name, percent(check.harm), interval, f"**{verdict.outcome}**", _promoted(verdict.outcome)])
    return table(("candidate", "estimate", "bounds", "outcome", "promoted"), rows)


def _promoted(outcome: Outcome) -> str:
    return "yes" if outcome.promotes else "no"


EXIT_CODES = {
    ExitCode.OK: "PASS or WARN; the command succeeded",
    ExitCode.CRASH: "A defect of benchgate. Never a verdict",
    ExitCode.USAGE: "The command line, the suite or one of its files is wrong",
    ExitCode.BLOCK: "BLOCK, or WARN with `--strict`",
    ExitCode.INCONCLUSIVE: "INCONCLUSIVE",
    ExitCode.INVALID: "INVALID, or a deployment, the load cluster or the error budget's source cannot be used",
    ExitCode.PUBLISH_FAILED: "The store, a report or a publisher failed. A verdict may have been printed",
    ExitCode.INTERRUPTED: "Interrupted by Ctrl-C. What was measured is stored",
    ExitCode.TERMINATED: "Ended by SIGTERM. What was measured is stored",
}


def exit_codes() -> str:
    """Return the exit codes and their meaning."""
    rows = [[str(code.value), f"`{code.name}`", EXIT_CODES[code]] for code in ExitCode]
    return table(("code", "name", "meaning"), rows)


def _guards(guards: Iterable[Guard[Any]]) -> str:
    """Return a table of guards, from their docstrings."""
    rows = []
    for one in guards:
        flagged = " ".join((one.check.__doc__ or "").split()).removeprefix("Flag ").replace("|", "\\|")
        needs = one.needs.name if one.needs is not None else ""
        rows.append([f"`{one.id}`", one.passes, flagged, _invalidates(one), needs])
    return table(("guard", "passes when", "flags", "invalidates", "needs"), rows)


def _invalidates(one: Guard[Any]) -> str:
    kinds = "everything" if one.invalidates == EVERYTHING else ", ".join(one.invalidates).replace("-", " ")
    return f"{kinds}; of the baseline alone compared {kinds}" if one.by_arm else kinds


def bandwidths() -> str:
    """Return the memory bandwidth of every known accelerator, with its source."""
    return table(
        ("words in the name", "TB/s", "source"),
        [[f"`{one.name}`", f"{one.gb_per_s / 1e3:.4g}", one.source] for one in BANDWIDTHS],
    )


def metrics_table() -> str:
    """Return the table of all metrics that a check can judge."""
    return table(
        ("metric", "meaning", "unit", "judged per", "needs", "margin", "bounds", "regression"),
        [
            [
                f"`{metric.name}`",
                metric.title,
                metric.unit.value,
                {"run": "run", "sweep": "sweep", "stage": "stage", "task": "eval task"}[metric.scope],
                f"`{metric.family}`" + (f", {metric.requires}" if metric.requires else ""),
                metric.margin or "",
                ", ".join(f"`{bound}`" for bound in metric.bounds) + _unit_of_bounds(metric),
                _regression(metric),
            ]
            for metric in METRICS.values()
        ],
    )


_BOUNDS = {
    "duration": "duration", "rate": "rate, like `100/s`", "percentage": "percentage", "whole number": "whole number",
    "level": "rate, or number in flight", "nats": "nats, like `0.1 nats`", "money": "dollars, like `$3`",
    "energy": "joules, like `0.5 J`",
}  # fmt: skip


def _unit_of_bounds(metric: Metric) -> str:
    return f": {_BOUNDS[metric.bound_type]}" if metric.bound_type is not None else ""


def _regression(metric: Metric) -> str:
    return "; ".join(text for text in (metric.worse, "advisory by default" if metric.advisory else "") if text)


def guards_of_two_runs() -> str:
    """Return the guards of two stored runs, and that of calibrations."""
    return _guards((no_calibration, *COMPARISON_GUARDS))


def guards_of_a_run() -> str:
    """Return the guards of one run."""
    return _guards(RUN_GUARDS)


def guards_of_evals() -> str:
    """Return the guards of evals."""
    return _guards(EVAL_GUARDS)
