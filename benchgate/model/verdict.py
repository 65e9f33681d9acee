"""What the gate says: outcomes, checks, guards and the verdict, with the exit code each maps to.

A verdict as lists of tests that passed, warned and failed, which is all that other systems ask of one.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from enum import StrEnum

from benchgate.errors import ExitCode
from benchgate.model.deployment import sha256_of
from benchgate.model.waiver import WAIVED, Waiver, WaiverState


class Outcome(StrEnum):
    """The five things benchgate can conclude. Only PASS and WARN let a promotion through."""

    PASS = "PASS"
    WARN = "WARN"
    INCONCLUSIVE = "INCONCLUSIVE"
    INVALID = "INVALID"
    BLOCK = "BLOCK"

    @property
    def severity(self) -> int:
        """Order of the roll-up: BLOCK > INVALID > INCONCLUSIVE > WARN > PASS."""
        return _ORDER.index(self)

    @property
    def promotes(self) -> bool:
        """True when the candidate may be promoted."""
        return self in (Outcome.PASS, Outcome.WARN)

    def exit_code(self, *, strict: bool = False) -> ExitCode:
        """The process exit code; with `strict` a WARN is as bad as a BLOCK."""
        if self is Outcome.WARN and strict:
            return ExitCode.BLOCK
        return _EXIT[self]


def policy_sha256(gate: object) -> str:
    """Identity of a policy: over the gate section of a stored suite."""
    return sha256_of(gate)


_ORDER = (Outcome.PASS, Outcome.WARN, Outcome.INCONCLUSIVE, Outcome.INVALID, Outcome.BLOCK)
_EXIT = {
    Outcome.PASS: ExitCode.OK,
    Outcome.WARN: ExitCode.OK,
    Outcome.BLOCK: ExitCode.BLOCK,
    Outcome.INCONCLUSIVE: ExitCode.INCONCLUSIVE,
    Outcome.INVALID: ExitCode.INVALID,
}


class Unit(StrEnum):
    """The unit of a check's values, which decides how they are shown."""

    SECONDS = "s"
    TOKENS_PER_S = "tokens/s"
    REQUESTS_PER_S = "requests/s"
    TOKENS_PER_S_EACH = "tokens/s per accelerator"
    REQUESTS_PER_S_EACH = "requests/s per accelerator"
    COUNT_EACH = "per accelerator"  # requests in flight
    TOKENS = "tokens"  # of one answer
    RATIO = "ratio"
    POINTS = "points"  # a difference of two shares, 0.02 = 2 points
    MULTIPLE = "x"  # a value over another one
    COUNT = "count"
    NATS = "nats"  # of a divergence between two distributions
    PERPLEXITY = "perplexity"
    USD = "$"  # for a million tokens


HISTORY = "history"
"""The family of checks over earlier promotions: they never make a verdict pass."""

BUDGET = "budget"
"""The family of checks over production's error budget: neither do these."""


class Scale(StrEnum):
    """The scale on which harm, its interval and its margin are given."""

    LOG_RATIO = "log ratio"  # ln(candidate/baseline) for latency, ln(baseline/candidate) for throughput
    DIFFERENCE = "difference"  # an absolute difference of two shares, 0.02 = 2 points
    ABSOLUTE = "absolute"  # the candidate's own value against an SLO


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a check's arithmetic, for a reader who does it again.

    `what` names the quantity in words, `formula` is how it is had, with the numbers put in (empty for what was
    observed), `value` is what comes out, with all the digits that the next step needs.
    """

    what: str
    formula: str
    value: str


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One policy line and its outcome.

    `harm`, `lower` and `upper` are the estimate of harm (positive = the candidate is worse) and its one-sided limits at
    alpha on `scale` (at a look at the load: at what that look may spend); `margin` is the allowed harm, or the SLO
    itself when `scale` is ABSOLUTE. All are None when the evidence could not give them, and then `outcome` is INVALID
    or INCONCLUSIVE, never PASS. `p_value` tests "no harm" (for `block_when: breach`, "harm within the margin");
    `p_holm` is the same after Holm's step-down over the required checks, or over the advisory ones. Where a change
    below some size is no harm at all (`min_abs`), `p_value` is of harm beyond that; where `two_sided`, of a change in
    either direction. Where the load has several looks, it is the repeated p-value, to be compared with alpha at any of
    them.
    """

    id: str
    title: str
    family: str  # "load", "quality", "shadow"
    metric: str
    statistic: str | None
    stage: str | None
    task: str | None
    required: bool
    outcome: Outcome
    reason: str
    advice: str | None
    unit: Unit
    scale: Scale
    baseline: float | None
    candidate: float | None
    harm: float | None
    lower: float | None
    upper: float | None
    margin: float
    p_value: float | None
    p_holm: float | None
    n: int
    n_unit: str  # "blocks", "items", "requests", "prompts"
    method: str
    notes: tuple[str, ...] = ()
    over: str | None = None  # the stage whose value the candidate's is held against, instead of a baseline's
    at_least: bool | None = None  # whether an ABSOLUTE margin is the least or the most that is allowed
    two_sided: bool = False  # a change is harm whichever way it goes: the margin is one on both sides of 0
    steps: tuple[Step, ...] = ()  # how the numbers came about; in no document unless it is asked for
    limits_alpha: float | None = None  # the error of `lower` and of `upper`, where it is not the verdict's own alpha
    n_of: int | None = None  # how many there were in all, where some were left out
    waiver: Waiver | None = None  # who answers for it; `outcome` stays what it was without that

    @property
    def shown(self) -> str:
        """The outcome as it is told: one that is waived is WAIVED, never PASS."""
        return self.outcome.value if self.waiver is None else WAIVED

    @property
    def counted(self) -> Outcome:
        """The outcome as the roll-up takes it: what is waived warns."""
        return self.outcome if self.waiver is None else Outcome.WARN


@dataclass(frozen=True, slots=True)
class GuardResult:
    """Whether the evidence itself is usable. A tripped guard prevents PASS, whatever the checks say.

    The checks of the families it `spoils` become INVALID too: their numbers say nothing about the candidate. One that
    had nothing to look at is not `known` to hold, and says why. One that `warns` did not trip: it makes a PASS a WARN.
    """

    id: str
    tripped: bool
    reason: str
    remedy: str | None
    spoils: tuple[str, ...] = ()
    known: bool = True
    warns: bool = False


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that was not the same on both sides, and whether it is part of the change that is judged.

    What a candidate is (weights, model, address, price) is `declared` by being the candidate. `field` is the key of the
    deployments, or the word of `gate.allow_different`, that declares whatever else may change speed or answers:
    undeclared, it trips `arms-alike` where something that is compared rests on it.
    Neither declared nor with a field: it was only seen, and follows from the rest or says how far to trust it.
    """

    what: str
    baseline: str
    candidate: str
    declared: bool
    field: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision over one comparison, with everything it rests on.

    `policy_sha256` is over the gate section it was judged by; another one than the run's own suite has means that the
    policy was replaced after the measurement. `waivers` are those of this suite and candidate, `as_of` the day on which
    they were looked at: None where no waivers were given.
    """

    outcome: Outcome
    reason: str
    checks: tuple[CheckResult, ...]
    guards: tuple[GuardResult, ...]
    alpha: float
    policy_sha256: str | None = None
    waivers: tuple[WaiverState, ...] = ()
    as_of: date | None = None
    differences: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()  # what to know beyond this comparison; changes no outcome
    next_step: str | None = None  # what to do first, in words

    def failing(self) -> tuple[CheckResult, ...]:
        """Checks that are not PASS, worst first, required before advisory."""
        bad = (check for check in self.checks if check.outcome is not Outcome.PASS)
        return tuple(sorted(bad, key=lambda check: (not check.required, -check.counted.severity)))


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
