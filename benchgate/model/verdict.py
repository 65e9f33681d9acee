"""Verdict of the gate: outcomes, check results, guard results, exit codes, and waivers of checks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date
from enum import StrEnum

from benchgate.errors import ExitCode
from benchgate.model.deployment import Arm, sha256_of
from benchgate.model.telemetry import Role


class Outcome(StrEnum):
    """Conclusions of benchgate. Only PASS and WARN allow promotion."""

    PASS = "PASS"
    WARN = "WARN"
    INCONCLUSIVE = "INCONCLUSIVE"
    INVALID = "INVALID"
    BLOCK = "BLOCK"

    @property
    def severity(self) -> int:
        """Return the rank in the roll-up: BLOCK > INVALID > INCONCLUSIVE > WARN > PASS."""
        return _SEVERITY.index(self)

    @property
    def promotes(self) -> bool:
        """Return True if the candidate may be promoted."""
        return self in (Outcome.PASS, Outcome.WARN)

    def exit_code(self, *, strict: bool = False) -> ExitCode:
        """Return the process exit code; with `strict`, WARN exits like BLOCK."""
        if self is Outcome.WARN and strict:
            return ExitCode.BLOCK
        return _EXIT[self]


def policy_sha256(gate: object) -> str:
    """Return the identity of a policy: the SHA-256 over the gate section of a stored suite."""
    return sha256_of(gate)


_SEVERITY = (Outcome.PASS, Outcome.WARN, Outcome.INCONCLUSIVE, Outcome.INVALID, Outcome.BLOCK)
_EXIT = {
    Outcome.PASS: ExitCode.OK,
    Outcome.WARN: ExitCode.OK,
    Outcome.BLOCK: ExitCode.BLOCK,
    Outcome.INCONCLUSIVE: ExitCode.INCONCLUSIVE,
    Outcome.INVALID: ExitCode.INVALID,
}


class Unit(StrEnum):
    """Unit of a check's values, which decides their format."""

    SECONDS = "s"
    TOKENS_PER_S = "tokens/s"
    REQUESTS_PER_S = "requests/s"
    TOKENS_PER_S_EACH = "tokens/s per accelerator"
    REQUESTS_PER_S_EACH = "requests/s per accelerator"
    COUNT_EACH = "per accelerator"  # requests in flight
    TOKENS = "tokens"  # of one answer
    RATIO = "ratio"
    POINTS = "points"  # difference of two shares, 0.02 = 2 points
    MULTIPLE = "x"  # ratio of two values
    COUNT = "count"
    NATS = "nats"  # of a Kullback-Leibler divergence
    PERPLEXITY = "perplexity"
    USD = "$"  # per million tokens
    JOULES = "J"  # per token


HISTORY = "history"  # family of checks over earlier promotions, which never make a verdict pass
BUDGET = "budget"  # family of checks over production's error budget, which never make a verdict pass


class Scale(StrEnum):
    """Scale of a regression, its interval and its margin."""

    LOG_RATIO = "log ratio"  # ln(candidate/baseline) for latency, ln(baseline/candidate) for throughput
    DIFFERENCE = "difference"  # absolute difference of two shares, 0.02 = 2 points
    ABSOLUTE = "absolute"  # the candidate's own value against an SLO


@dataclass(frozen=True, slots=True)
class ArithmeticStep:
    """Step of a check's arithmetic, for a reader who recomputes it."""

    what: str  # name of the quantity
    formula: str  # with the numbers filled in; empty for observed values
    value: str  # with all digits that the next step needs


@dataclass(frozen=True, slots=True)
class CheckResult:
    """A policy line and its outcome.

    `harm`, `lower` and `upper` are the estimated regression (above 0 = the candidate is worse) and its one-sided limits
    at alpha on `scale` (at an interim look: at the alpha of that look). `margin` is the allowed regression, or the SLO
    itself if `scale` is ABSOLUTE. The three are None when the evidence cannot give them, and then `outcome` is INVALID
    or INCONCLUSIVE, never PASS. `p_value` tests "no regression" (for `block_when: breach`, "regression within the
    margin"). `p_holm` is the same after Holm's step-down over the required checks, or over the advisory ones. With
    `min_abs`, `p_value` is of a regression beyond that; if `two_sided`, of a change in either direction. If the load
    has several looks, it is the repeated p-value, comparable with alpha at any of them.
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
    over: str | None = None  # stage whose value takes the place of the baseline's
    at_least: bool | None = None  # an ABSOLUTE margin is the least (True) or the most (False) allowed
    two_sided: bool = False  # a change in either direction is a regression, with the margin on both sides of 0
    steps: tuple[ArithmeticStep, ...] = ()  # arithmetic, in documents only on request
    limits_alpha: float | None = None  # error of `lower` and of `upper`, if not the verdict's own alpha
    freedom: tuple[float | None, float | None] = (None, None)  # degrees of freedom of each, None for n - 1
    n_of: int | None = None  # total number, if some were excluded
    waiver: Waiver | None = None  # waiver in effect; `outcome` is that without it

    @property
    def shown(self) -> str:
        """Return the displayed outcome: WAIVED for a waived check, never PASS."""
        return self.outcome.value if self.waiver is None else WAIVED

    @property
    def counted(self) -> Outcome:
        """Return the outcome for the roll-up: a waived check warns."""
        return self.outcome if self.waiver is None else Outcome.WARN


@dataclass(frozen=True, slots=True)
class GuardResult:
    """Result of a guard: is the evidence usable? A tripped guard prevents PASS."""

    id: str
    tripped: bool
    reason: str
    remedy: str | None
    invalidates: tuple[str, ...] = ()  # kinds of checks that become INVALID
    known: bool = True  # False without evidence to examine; `reason` says why
    warns: bool = False  # it did not trip, and turns PASS into WARN


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference between the two sides. Weights, model, address and price are declared by being the candidate."""

    what: str
    baseline: str
    candidate: str
    declared: bool  # part of the change; else it trips `arms-alike` if something compared depends on it
    field: str | None = None  # key of the deployments, or of `gate.allow_different`, that declares it


@dataclass(frozen=True, slots=True)
class ReplicaFigures:
    """Telemetry of one replica, or of all replicas of a role, over the blocks of a stage; None: not reported."""

    arm: Arm
    stage: str
    replica: str | None  # None for all of the role
    role: Role | None
    restarts: int
    requests: float | None
    output_tokens: float | None
    running_mean: float | None
    waiting_max: float | None
    queue_s: float | None  # of a mean request, as the next two
    prefill_s: float | None
    per_token_s: float | None
    kv_usage_mean: float | None
    kv_usage_max: float | None
    prefix_hit_ratio: float | None
    preemptions: float | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Decision on one comparison, with everything it rests on."""

    outcome: Outcome
    reason: str
    checks: tuple[CheckResult, ...]
    guards: tuple[GuardResult, ...]
    alpha: float
    policy_sha256: str | None = None  # of the gate section that was applied, maybe another than the run's
    waivers: tuple[WaiverState, ...] = ()  # those of this suite and candidate
    as_of: date | None = None  # day on which waivers were applied
    differences: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()  # further remarks, which change no outcome
    next_step: str | None = None  # first thing to do, in words
    replicas: tuple[ReplicaFigures, ...] = ()  # of deployments whose telemetry tells replicas apart

    def failing(self) -> tuple[CheckResult, ...]:
        """Return the checks that are not PASS, worst first, required before advisory."""
        bad = (check for check in self.checks if check.outcome is not Outcome.PASS)
        return tuple(sorted(bad, key=lambda check: (not check.required, -check.counted.severity)))


COMPARABILITY = "comparability"
"""Test that fails when the evidence allows no decision, for systems without a third state."""
STORED = "kept"  # test that fails when a verdict could not be stored


@dataclass(frozen=True, slots=True)
class ChecksByResult:
    """Ids of checks by result."""

    passed: tuple[str, ...]
    warned: tuple[str, ...]  # with guards that warn
    failed: tuple[str, ...]  # with tripped guards, and COMPARABILITY or STORED


def checks_by_result(verdict: Verdict, exit_code: ExitCode) -> ChecksByResult:
    """Sort the checks of a verdict by result, for a process that ends with this exit code.

    Checks are listed as the roll-up counts them: advisory and waived ones can only warn. If a warning alone makes the
    exit code nonzero, it is listed as failed. A nonzero exit code always has a failed test.
    """
    strict = verdict.outcome is Outcome.WARN and exit_code is ExitCode.BLOCK
    lists: dict[Outcome, list[str]] = {Outcome.PASS: [], Outcome.WARN: [], Outcome.BLOCK: []}
    for check in verdict.checks:
        listed = Outcome.WARN
        if check.counted is Outcome.PASS:
            listed = Outcome.PASS
        elif strict or (check.required and not check.counted.promotes):
            listed = Outcome.BLOCK
        lists[listed].append(check.id)
    lists[Outcome.BLOCK if strict else Outcome.WARN] += [guard.id for guard in verdict.guards if guard.warns]
    failed = [*lists[Outcome.BLOCK], *(guard.id for guard in verdict.guards if guard.tripped)]
    if verdict.outcome in (Outcome.INVALID, Outcome.INCONCLUSIVE):
        failed.append(COMPARABILITY)
    if exit_code is ExitCode.PUBLISH_FAILED:
        failed.append(STORED)
    if strict and not failed:  # the verdict warns of the run it was compared with, but no check does
        failed.append(COMPARABILITY)
    return ChecksByResult(tuple(lists[Outcome.PASS]), tuple(lists[Outcome.WARN]), tuple(failed))


EXPIRY_NOTICE_DAYS = 14  # days before expiry from which a waiver is reported
MAX_WAIVER_DAYS = 180  # longest validity of a waiver; a permanent one is policy and belongs in the suite
RELEASE_CHARACTERS = 12  # length of a fingerprint prefix that identifies a release
WAIVED = "WAIVED"  # displayed outcome of a waived check, never PASS


@dataclass(frozen=True, slots=True)
class Waiver:
    """Entry of a waiver file, for one check of one suite on one candidate."""

    check: str
    suite: str
    deployment: str
    ceiling: str  # largest tolerated regression, as written in the check's unit: `8%`, `3 points`, `600ms`
    expires: date  # last valid day, to its end, in UTC
    owner: str
    issue: str
    reason: str
    approved_by: str
    release: str | None = None  # prefix of the candidate's fingerprint; None covers its name

    def names(self, suite: str, deployment: str) -> bool:
        """Return True if it is for this suite and a candidate of this name."""
        return (self.suite, self.deployment) == (suite, deployment)

    def fits(self, fingerprint: str) -> bool:
        """Return True if the candidate with this fingerprint is its release."""
        return self.release is None or fingerprint.startswith(self.release)

    def days_left(self, as_of: date) -> int:
        """Return the valid days after this one; 0 on its last day, negative once it has expired."""
        return (self.expires - as_of).days


@dataclass(frozen=True, slots=True)
class Waivers:
    """All waivers given for a verdict, and the day (in UTC) of their use."""

    entries: tuple[Waiver, ...]
    as_of: date

    def not_before(self, day: date) -> Waivers:
        """Return these waivers as of their own day, or as of `day` if that is later."""
        return replace(self, as_of=max(self.as_of, day))


class WaiverUse(StrEnum):
    """Use of a waiver in one verdict."""

    USED = "used"
    UNUSED = "unused"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class WaiverState:
    """Waiver of the judged suite and candidate, with its use and the reason."""

    waiver: Waiver
    use: WaiverUse
    why: str
    days_left: int

    @property
    def expires_soon(self) -> bool:
        """Return True if it is valid and about to expire."""
        return 0 <= self.days_left <= EXPIRY_NOTICE_DAYS
