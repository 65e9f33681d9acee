"""Guard framework: rules that evidence must meet, and the kinds of checks that a violation invalidates."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from benchgate.model.deployment import Arm
from benchgate.model.metric import METRICS, names_of
from benchgate.model.run import Evidence
from benchgate.model.verdict import GuardResult
from benchgate.suite.schema import Suite, traffic_classes

LOAD = "load"
QUALITY = "quality"
SHADOW = "shadow"
SPEED = "speed"  # latencies, throughputs and goodput: a late client distorts them without changing any response
FIRST = "first-token"  # metrics that depend on when the first output chunk came
TOKENS = "tokens"  # metrics that divide by, or sum, the server's count of output tokens
EVERYTHING = (LOAD, QUALITY, "divergence", SHADOW)

_COMPARED = "compared-"


def compared(*kinds: str) -> tuple[str, ...]:
    """Return the kinds of checks that compare with the baseline: `speed` gives `compared-speed`.

    A check with a bound of its own stays valid then: it rests on the candidate's numbers alone.
    """
    return tuple(f"{_COMPARED}{kind}" for kind in kinds)


def invalidated_by(arm: Arm, *kinds: str) -> tuple[str, ...]:
    """Return the kinds that a fault of one arm invalidates: of the baseline, only those that compare."""
    return kinds if arm is Arm.CANDIDATE else compared(*kinds)


OWN_LOAD_KINDS = frozenset({LOAD, SPEED, FIRST, TOKENS})
ALL_LOAD_KINDS = OWN_LOAD_KINDS | {*compared(*OWN_LOAD_KINDS)}
"""Kinds of load checks: of the candidate's own values, and comparisons."""

SPEED_METRICS = frozenset(names_of(lambda metric: metric.timed))
FIRST_METRICS = frozenset(names_of(lambda metric: metric.from_first))
TOKEN_METRICS = frozenset(names_of(lambda metric: metric.counts_tokens))


def metric_kinds(metric: str) -> frozenset[str]:
    """Return the kinds of a metric: its family, and speed, first token or tokens."""
    kinds: set[str] = {METRICS[metric].family}
    if metric in SPEED_METRICS:
        kinds.add(SPEED)
    if metric in FIRST_METRICS:
        kinds.add(FIRST)
    if metric in TOKEN_METRICS:
        kinds.add(TOKENS)
    return frozenset(kinds)


def invalidating_guard(guards: Iterable[GuardResult], kinds: Collection[str]) -> GuardResult | None:
    """Return the first tripped guard that invalidates any of these kinds of checks."""
    return next((guard for guard in guards if guard.tripped and not set(guard.invalidates).isdisjoint(kinds)), None)


def are_comparisons(kinds: tuple[str, ...]) -> bool:
    """Return True for kinds whose invalidation leaves the candidate's own numbers valid."""
    return bool(kinds) and all(kind.startswith(_COMPARED) for kind in kinds)


@dataclass(frozen=True, slots=True)
class Violation:
    """Unusable evidence and what to do about it.

    `arm` is the arm at fault, for guards that invalidate `by_arm`. `invalidates` overrides the guard's kinds of checks.
    """

    reason: str
    remedy: str
    arm: Arm | None = None
    invalidates: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Caution:
    """Doubt that turns a PASS into a WARN and invalidates no check."""

    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Passed:
    """Usable evidence; `reason` replaces the guard's own sentence."""

    reason: str


@dataclass(frozen=True, slots=True)
class NotApplicable:
    """Missing evidence: the guard had nothing to examine."""

    reason: str


Finding = Violation | Caution | Passed | NotApplicable | None
"""Result of a guard's function. None: it passed, and the guard's own sentence says so."""


def most_serious(violations: Sequence[Violation]) -> Violation | None:
    """Return the first violation that invalidates the candidate's own numbers, else the first one."""
    for one in violations:
        by_arm = one.arm is Arm.BASELINE
        if not (by_arm if one.invalidates is None else are_comparisons(one.invalidates)):
            return one
    return next(iter(violations), None)


@dataclass(frozen=True, slots=True)
class Need:
    """Evidence that a guard examines.

    If a run lacks it, a guard that found nothing is not applicable, with the reason `otherwise`. If that is None, the
    guard is omitted from the results.
    """

    name: str
    is_met: Callable[[Evidence, Suite], bool]
    otherwise: str | None = None


A_LOAD = Need("a load", lambda run, _: bool(run.load), "no load was measured")
EVALS = Need("evals", lambda run, _: bool(run.quality), "no eval was run")
LIVE_SERVERS = Need(
    "live servers", lambda run, _: not run.run.imported, "the evals were imported: no server was measured"
)
TELEMETRY = Need("telemetry", lambda run, _: bool(run.telemetry))
BACKGROUND = Need(
    "background traffic", lambda _, suite: any(place.requests is None for place in traffic_classes(suite))
)


class _Compared(Protocol):
    @property
    def judged(self) -> Evidence: ...


Subject = TypeVar("Subject", bound=Evidence | _Compared)


@dataclass(frozen=True, slots=True)
class Guard(Generic[Subject]):
    """Rule that evidence must meet. `check` examines a run or a comparison of runs; its docstring is the manual.

    `by_arm`: a fault of the baseline alone invalidates only comparisons.
    """

    id: str
    check: Callable[[Subject, Suite], Finding]
    passes: str
    invalidates: tuple[str, ...]
    needs: Need | None
    by_arm: bool

    def __call__(self, subject: Subject, suite: Suite, *, judged: Evidence | None = None) -> GuardResult:
        """Return the guard's result. `judged` is the run that must meet `needs`; by default the subject's own."""
        run = judged or (subject if isinstance(subject, Evidence) else subject.judged)
        found = self.check(subject, suite)
        if isinstance(found, Violation):
            kinds = self.invalidates if found.invalidates is None else found.invalidates
            if self.by_arm:
                assert found.arm is not None, "a violation of a by_arm guard names the arm at fault"
                kinds = invalidated_by(found.arm, *kinds)
            return GuardResult(self.id, tripped=True, reason=found.reason, remedy=found.remedy, invalidates=kinds)
        if isinstance(found, Caution):
            return GuardResult(self.id, tripped=False, reason=found.reason, remedy=found.remedy, warns=True)
        if self.needs is not None and not self.needs.is_met(run, suite):
            found = NotApplicable(self.needs.otherwise or f"there is no {self.needs.name}")
        reason = self.passes if found is None else found.reason
        known = not isinstance(found, NotApplicable)
        return GuardResult(self.id, tripped=False, reason=reason, remedy=None, known=known)


def guard(
    name: str,
    passes: str,
    *,
    invalidates: str | tuple[str, ...] = (),
    by_arm: bool = False,
    needs: Need | None = None,
) -> Callable[[Callable[[Subject, Suite], Finding]], Guard[Subject]]:
    """Turn a function into a guard. `passes` is the sentence for evidence that meets it."""
    kinds = (invalidates,) if isinstance(invalidates, str) else invalidates
    return lambda check: Guard(name, check, passes, kinds, needs, by_arm)


def run_each(
    guards: Iterable[Guard[Subject]], subject: Subject, suite: Suite, *, judged: Evidence | None = None
) -> Iterator[GuardResult]:
    """Yield the results of guards, in order, without those omitted because the judged run lacks what they need.

    Only a need without its own word for what is missing omits its guard. `judged` is by default the subject's own run.
    """
    run = judged or (subject if isinstance(subject, Evidence) else subject.judged)
    for one in guards:
        if one.needs is None or one.needs.otherwise is not None or one.needs.is_met(run, suite):
            yield one(subject, suite, judged=run)
