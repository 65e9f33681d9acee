"""A verdict as lists of tests that passed, warned and failed, which is all that other systems ask of one."""

from __future__ import annotations

from dataclasses import dataclass

from benchgate.errors import ExitCode
from benchgate.model.verdict import CheckResult, Outcome, Verdict

COMPARABILITY = "comparability"
"""The test that fails where evidence cannot carry a decision: other systems know no third state."""

KEPT = "kept"
"""The test that fails where a verdict could not be kept."""


@dataclass(frozen=True, slots=True)
class ByResult:
    """Ids of checks, each in one of the three lists.

    `warned` names guards that warn too; `failed` names tripped guards too, and COMPARABILITY or KEPT.
    """

    passed: tuple[str, ...]
    warned: tuple[str, ...]
    failed: tuple[str, ...]


def tested(verdict: Verdict, exit_code: ExitCode) -> ByResult:
    """What the verdict says of each check, in its order, of a process that ends with this code.

    Checks are listed as the roll-up counts them: an advisory one, and one that is waived, can only warn. Where a
    warning alone ends the process with another code than 0, it failed. Whatever has such a code has a failed test.
    """
    strict = verdict.outcome is Outcome.WARN and exit_code is ExitCode.BLOCK
    lists: dict[Outcome, list[str]] = {Outcome.PASS: [], Outcome.WARN: [], Outcome.BLOCK: []}
    for check in verdict.checks:
        listed = _listed(check)
        lists[Outcome.BLOCK if strict and listed is Outcome.WARN else listed].append(check.id)
    lists[Outcome.BLOCK if strict else Outcome.WARN] += [guard.id for guard in verdict.guards if guard.warns]
    failed = [*lists[Outcome.BLOCK], *(guard.id for guard in verdict.guards if guard.tripped)]
    if verdict.outcome in (Outcome.INVALID, Outcome.INCONCLUSIVE):
        failed.append(COMPARABILITY)
    if exit_code is ExitCode.PUBLISH_FAILED:
        failed.append(KEPT)
    if strict and not failed:  # no check warns: the verdict does, of the run that it was held against
        failed.append(COMPARABILITY)
    return ByResult(tuple(lists[Outcome.PASS]), tuple(lists[Outcome.WARN]), tuple(failed))


def _listed(check: CheckResult) -> Outcome:
    if check.counted is Outcome.PASS:
        return Outcome.PASS
    return Outcome.BLOCK if check.required and not check.counted.promotes else Outcome.WARN
