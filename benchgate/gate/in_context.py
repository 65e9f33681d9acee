"""What a check's sentence must know of more than the check: what was left out, and which other one ended the load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchgate.gate.findings import Measured
from benchgate.gate.rule import Finding, decide
from benchgate.gate.showing import check_title
from benchgate.gate.specs import CheckSpec
from benchgate.model.verdict import Outcome
from benchgate.suite.schema import Gate


def in_context(
    specs: Sequence[CheckSpec],
    found: Sequence[Measured],
    findings: Sequence[Finding],
    adjusted: Sequence[float | None],
    gate: Gate,
) -> list[Finding]:
    """The findings, each with `n_of`, `ended_by` and `required`; nothing of these decides anything."""
    outcomes = [decide(f, p, gate.alpha, gate.warn_fraction) for f, p in zip(findings, adjusted, strict=True)]
    blocking = tuple(
        check_title(spec)
        for spec, outcome in zip(specs, outcomes, strict=True)
        if spec.stages and spec.check.required and outcome is Outcome.BLOCK
    )
    return [
        replace(finding, n_of=_n_of(one, finding), ended_by=blocking, required=spec.check.required)
        for spec, one, finding in zip(specs, found, findings, strict=True)
    ]


def _n_of(one: Measured, finding: Finding) -> int | None:
    """How many there are of what the check counts, where it left some out."""
    whole = one.over_all
    return None if whole is None or whole.n_unit != finding.n_unit or whole.n <= finding.n else whole.n
