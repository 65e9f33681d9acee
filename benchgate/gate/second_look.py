"""Leaving blocks out may take a candidate's chance away, never give it one.

A block in which the load generator was late says little of times, and what it adds to the baseline hides what the
candidate costs: without it a check is sharper. But the candidate's own slow answers stood in that block too. So what
passes without such blocks must not look worse with them: the candidate is then not promoted, and not blocked either,
for what was seen there may be the client's.
"""

from __future__ import annotations

from dataclasses import replace

from benchgate.gate.block_values import OWN_MACHINE
from benchgate.gate.findings import Measured
from benchgate.gate.rule import Finding, Problem, decide
from benchgate.gate.sentences import check_reason, told_margin
from benchgate.model.verdict import Outcome
from benchgate.suite.schema import Gate


def held_to_all_blocks(
    found: list[Measured],
    findings: list[Finding],
    adjusted: list[float | None],
    adjusted_over_all: list[float | None],
    gate: Gate,
) -> list[Finding]:
    """The findings, each with a problem or a warning where it would do better than over all blocks.

    `adjusted` are the p-values of `findings` after Holm, `adjusted_over_all` those over all blocks.
    """
    return [
        _held(one.over_all, finding, p_holm, p_over_all, gate)
        for one, finding, p_holm, p_over_all in zip(found, findings, adjusted, adjusted_over_all, strict=True)
    ]


def _held(
    over_all: Finding | None, finding: Finding, p_holm: float | None, p_over_all: float | None, gate: Gate
) -> Finding:
    if over_all is None:
        return finding
    outcome = decide(finding, p_holm, gate.alpha, gate.warn_fraction)
    with_all = decide(over_all, p_over_all, gate.alpha, gate.warn_fraction)
    if not outcome.promotes or with_all.severity <= outcome.severity:
        return finding
    told = check_reason(over_all, with_all, gate.warn_fraction, gate.alpha)
    if with_all is Outcome.WARN:
        told = told.removesuffix(f" of {told_margin(over_all)}")  # which stands in the sentence already
        warning = f"over all blocks, with those that were left out because the load generator was late: {told}"
        return replace(finding, warning=warning, warning_advice=f"weigh what all blocks show, or {OWN_MACHINE}")
    reason = f"holds only without the blocks in which the load generator was late (over all of them: {told})"
    return replace(finding, problem=Problem(Outcome.INCONCLUSIVE, reason, OWN_MACHINE))
