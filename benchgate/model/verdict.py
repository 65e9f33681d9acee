"""What the gate says: outcomes, checks, guards and the verdict, with the exit code each maps to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from benchgate.errors import ExitCode
from benchgate.model.deployment import sha256_of


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
    RATIO = "ratio"
    POINTS = "points"  # a difference of two shares, 0.02 = 2 points
    MULTIPLE = "x"  # a value over another one
    COUNT = "count"
    NATS = "nats"  # of a divergence between two distributions
    PERPLEXITY = "perplexity"


class Scale(StrEnum):
    """The scale on which harm, its interval and its margin are given."""

    LOG_RATIO = "log ratio"  # ln(candidate/baseline) for latency, ln(baseline/candidate) for throughput
    DIFFERENCE = "difference"  # an absolute difference of two shares, 0.02 = 2 points
    ABSOLUTE = "absolute"  # the candidate's own value against an SLO


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One policy line and its outcome.

    `harm`, `lower` and `upper` are the estimate of harm (positive = the candidate is worse) and its one-sided
    95 % limits on `scale`; `margin` is the allowed harm, or the SLO itself when `scale` is ABSOLUTE. All are None
    when the evidence could not give them, and then `outcome` is INVALID or INCONCLUSIVE, never PASS.
    `p_value` tests "no harm" (for `block_when: breach`, "harm within the margin"); `p_holm` is the same after Holm's
    step-down over the required checks, or over the advisory ones.
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


@dataclass(frozen=True, slots=True)
class GuardResult:
    """Whether the evidence itself is usable. A tripped guard prevents PASS, whatever the checks say.

    The checks of the families it `spoils` become INVALID too: their numbers say nothing about the candidate. One that
    had nothing to look at is not `known` to hold, and says why.
    """

    id: str
    tripped: bool
    reason: str
    remedy: str | None
    spoils: tuple[str, ...] = ()
    known: bool = True


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision over one comparison, with everything it rests on.

    `policy_sha256` is over the gate section it was judged by; another one than the run's own suite has means that the
    policy was replaced after the measurement.
    """

    outcome: Outcome
    reason: str
    checks: tuple[CheckResult, ...]
    guards: tuple[GuardResult, ...]
    alpha: float
    policy_sha256: str | None = None

    def failing(self) -> tuple[CheckResult, ...]:
        """Checks that are not PASS, worst first, required before advisory."""
        bad = (check for check in self.checks if check.outcome is not Outcome.PASS)
        return tuple(sorted(bad, key=lambda check: (not check.required, -check.outcome.severity)))
