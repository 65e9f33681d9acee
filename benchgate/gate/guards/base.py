"""Guards decide whether evidence is usable at all: what a guard is, and which checks a violation invalidates."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from benchgate.gate.comparison import places
from benchgate.model.deployment import Arm
from benchgate.model.metric import METRICS, names_of
from benchgate.model.run import Evidence
from benchgate.model.verdict import GuardResult
from benchgate.suite.checks import Check
from benchgate.suite.schema import Suite

LOAD = "load"
QUALITY = "quality"
SHADOW = "shadow"
SPEED = "speed"
"""Latencies, throughputs and goodput: what a late client changes although the servers' answers stay the same."""
TOKENS = "tokens"
"""Metrics that divide by, or add up, a server's own count of output tokens."""
EVERYTHING = (LOAD, QUALITY, "divergence", SHADOW)

_COMPARED = "compared-"


def compared(*kinds: str) -> tuple[str, ...]:
    """Return the kinds of checks that compare with the baseline: `speed` gives `compared-speed`.

    Invalidating only these leaves a check with a bound of its own valid: it rests on the candidate's numbers alone.
    """
    return tuple(f"{_COMPARED}{kind}" for kind in kinds)


def invalidated_by(arm: Arm, *kinds: str) -> tuple[str, ...]:
    """Return what a fault of one arm invalidates: the baseline's only comparisons, the candidate's everything."""
    return kinds if arm is Arm.CANDIDATE else compared(*kinds)


OWN_LOAD_KINDS = frozenset({LOAD, SPEED, TOKENS})
ALL_LOAD_KINDS = OWN_LOAD_KINDS | {*compared(*OWN_LOAD_KINDS)}
"""Every kind of load check: those of the candidate's own values and those that compare."""

SPEED_METRICS = frozenset(names_of(lambda metric: metric.timed))
TOKEN_METRICS = frozenset(names_of(lambda metric: metric.counts_tokens))


def check_kinds(check: Check) -> frozenset[str]:
    """Return the kinds of a check. One with a margin also belongs to the `compared` form of each."""
    kinds = metric_kinds(check.metric)
    return kinds if check.margin is None else kinds | {*compared(*kinds)}


def metric_kinds(metric: str) -> frozenset[str]:
    """Return the kinds of a check that bounds the candidate's own value: its family, speed, tokens."""
    kinds: set[str] = {METRICS[metric].family}
    if metric in SPEED_METRICS:
        kinds.add(SPEED)
    if metric in TOKEN_METRICS:
        kinds.add(TOKENS)
    return frozenset(kinds)


def invalidating_guard(guards: Iterable[GuardResult], kinds: Collection[str]) -> GuardResult | None:
    """Return the first tripped guard that invalidates checks of one of these kinds."""
    return next((guard for guard in guards if guard.tripped and not set(guard.invalidates).isdisjoint(kinds)), None)


def invalidates_only_comparisons(guard: GuardResult) -> bool:
    """Return True for a tripped guard that invalidates comparisons and no number of the candidate's own."""
    return guard.tripped and _are_comparisons(guard.invalidates)


def _are_comparisons(kinds: tuple[str, ...]) -> bool:
    return bool(kinds) and all(kind.startswith(_COMPARED) for kind in kinds)


@dataclass(frozen=True, slots=True)
class Violation:
    """Unusable evidence and what to do about it.

    `arm` is the arm at fault, for guards that invalidate `by_arm`. `invalidates` replaces the guard's own kinds of
    checks where they depend on what was found.
    """

    reason: str
    remedy: str
    arm: Arm | None = None
    invalidates: tuple[str, ...] | None = None

    @property
    def only_comparisons(self) -> bool:
        """True where the candidate's own numbers stay valid."""
        if self.invalidates is None:
            return self.arm is Arm.BASELINE
        return _are_comparisons(self.invalidates)


@dataclass(frozen=True, slots=True)
class Caution:
    """A doubt that turns a PASS into a WARN and invalidates no check."""

    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Passed:
    """Nothing wrong was found; `reason` says more than the guard's own sentence."""

    reason: str


@dataclass(frozen=True, slots=True)
class NotApplicable:
    """The guard had nothing to look at."""

    reason: str


Finding = Violation | Caution | Passed | NotApplicable | None
"""What a guard's function returns. None: it passed, and the guard's own sentence says so."""


def most_serious(violations: Sequence[Violation]) -> Violation | None:
    """Return the first violation that invalidates the candidate's own numbers, else the first one, None of none."""
    return next((one for one in violations if not one.only_comparisons), next(iter(violations), None))


@dataclass(frozen=True, slots=True)
class Need:
    """Evidence that a guard looks at.

    Where a run lacks it, a guard that found nothing is not applicable for the reason `otherwise`. Where that is None,
    the guard is left out of the results.
    """

    name: str
    is_met: Callable[[Evidence, Suite], bool]
    otherwise: str | None = None


A_LOAD = Need("a load", lambda run, _: bool(run.load), "no load was measured")
EVALS = Need("evals", lambda run, _: bool(run.quality), "no eval was run")
LIVE_SERVERS = Need(
    "servers that were asked", lambda run, _: not run.run.imported, "the evals were imported: no server was asked"
)
TELEMETRY = Need("telemetry", lambda run, _: bool(run.telemetry))
BACKGROUND = Need("background traffic", lambda _, suite: any(place.requests is None for place in places(suite)))


class _Compared(Protocol):
    @property
    def judged(self) -> Evidence: ...


Subject = TypeVar("Subject", bound=Evidence | _Compared)


@dataclass(frozen=True, slots=True)
class Guard(Generic[Subject]):
    """One rule that evidence must meet. `check` looks at a run or at a comparison of runs; its docstring is the manual.

    `by_arm`: a fault of the baseline alone invalidates only comparisons.
    """

    id: str
    check: Callable[[Subject, Suite], Finding]
    passes: str
    invalidates: tuple[str, ...]
    needs: Need | None
    by_arm: bool

    def __call__(self, subject: Subject, suite: Suite, *, judged: Evidence | None = None) -> GuardResult:
        """Return what the guard found. `judged` is the run that must have what the guard needs: the subject's own."""
        run = judged or (subject if isinstance(subject, Evidence) else subject.judged)
        found = self.check(subject, suite)
        if isinstance(found, Violation):
            kinds = self.invalidates if found.invalidates is None else found.invalidates
            if self.by_arm:
                assert found.arm is not None, "the guard says which arm is at fault"
                kinds = invalidated_by(found.arm, *kinds)
            return GuardResult(self.id, tripped=True, reason=found.reason, remedy=found.remedy, invalidates=kinds)
        if isinstance(found, Caution):
            return GuardResult(self.id, tripped=False, reason=found.reason, remedy=found.remedy, warns=True)
        if self.needs is not None and not self.needs.is_met(run, suite):
            found = NotApplicable(self.needs.otherwise or f"there is no {self.needs.name}")
        reason = self.passes if found is None else found.reason
        known = not isinstance(found, NotApplicable)
        return GuardResult(self.id, tripped=False, reason=reason, remedy=None, known=known)

    def is_listed(self, run: Evidence, suite: Suite) -> bool:
        """Return False where the results leave the guard out because the run lacks what it needs."""
        return self.needs is None or self.needs.otherwise is not None or self.needs.is_met(run, suite)


def guard(
    name: str,
    passes: str,
    *,
    invalidates: str | tuple[str, ...] = (),
    by_arm: bool = False,
    needs: Need | None = None,
) -> Callable[[Callable[[Subject, Suite], Finding]], Guard[Subject]]:
    """Make a function a guard. `passes` is the sentence for evidence that meets it."""
    kinds = (invalidates,) if isinstance(invalidates, str) else invalidates
    return lambda check: Guard(name, check, passes, kinds, needs, by_arm)


def run_each(guards: Iterable[Guard[Evidence]], run: Evidence, suite: Suite) -> Iterator[GuardResult]:
    """Yield the results of the guards of one run, in their order, without those that are left out."""
    return (one(run, suite) for one in guards if one.is_listed(run, suite))
