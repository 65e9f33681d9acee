"""What production had spent of an error budget when a run started.

Counts of a deployment's replicas: how many were there at one moment of a run, of how many that are declared.

One execution of a suite: its identity, everything observed in it, and the evidence a verdict rests on.

How long ago a run ended, and whether that is too long: what goes into service rests on what was measured lately.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from enum import StrEnum
from typing import Any, Literal, NamedTuple
from uuid import UUID

import numpy as np

from benchgate.errors import EvidenceError
from benchgate.model.deployment import Arm, Deployment
from benchgate.model.history import Attempt, PastRun
from benchgate.model.noise import NoiseProfile
from benchgate.model.records import DivergenceObservation, EvalItem, RequestColumns, ShadowItem
from benchgate.model.telemetry import TelemetryWindow
from benchgate.model.verdict import Outcome


@dataclass(frozen=True, slots=True)
class BudgetSpent:
    """A reading, kept with the run: deciding it again later asks nobody.

    `spent_ratio` is 0.4 where 40 % of the budget of the whole window is gone, and above 1 where more was spent than
    there was. `source` says whence it came, without a secret; `read_at` when, RFC 3339 in UTC. ValueError for a number
    that nobody can have spent.
    """

    spent_ratio: float
    source: str
    read_at: str

    def __post_init__(self) -> None:
        if not math.isfinite(self.spent_ratio) or self.spent_ratio < 0:
            raise ValueError(f"{self.spent_ratio} is no share of a budget that was spent; expected 0 or more")

    @property
    def blown(self) -> bool:
        """Whether nothing of the budget is left."""
        return self.spent_ratio >= 1


REPLICAS = "replicas"
"""The kind of the journal's event whose data is a `ReplicaCount`. The run's hash covers it."""

AT_THE_END = "at the end"

NOT_ALL_READY = "replicas were ready"
"""Part of a fault's reason where a deployment answers and does not have the declared number of replicas."""

NOT_COUNTABLE = "its replicas cannot be counted"
"""Part of a fault's reason where no way to count replicas is known."""


@dataclass(frozen=True, slots=True)
class ReplicaCount:
    """One count. `block` is that before which it was taken, from 0; None for a count that precedes no block.

    `count` is None where the replicas could not be counted; `problem` then says why.
    """

    arm: Arm
    when: str
    block: int | None
    count: int | None
    wanted: int
    problem: str | None = None

    def document(self) -> dict[str, object]:
        """Return the count as the journal keeps it."""
        place = {"arm": self.arm.value, "when": self.when, "block": self.block}
        return {**place, "count": self.count, "wanted": self.wanted, "problem": self.problem}

    @classmethod
    def from_document(cls, found: Mapping[str, Any]) -> ReplicaCount:
        """Read what `document` wrote. Raises KeyError, TypeError and ValueError for anything else."""
        whole = {name: found[name] for name in ("block", "count", "wanted")}
        if any(value is not None and (type(value) is not int or value < 0) for value in whole.values()):
            raise ValueError(f"{whole} are no counts")
        if whole["wanted"] is None:
            raise ValueError("it does not say how many were declared")
        problem = None if found["problem"] is None else str(found["problem"])
        return cls(Arm(found["arm"]), str(found["when"]), problem=problem, **whole)

    @property
    def shown(self) -> str:
        """Say the count: `7 of 8 replicas`, or why there is none."""
        if self.count is None:
            return f"not counted ({self.problem})"
        return f"{self.count} of {self.wanted} replicas"


class RunStatus(StrEnum):
    """How far a run came. Only a COMPLETE run can promote."""

    RUNNING = "running"
    COMPLETE = "complete"
    PARTIAL = "partial"


MEASURED_BY = "measured_by"
"""The key of a run's environment that names the tool whose file its numbers come from; no other run has it."""

LOAD_SALT = "load_salt"
"""The key of a run's environment with the number that changes the words of its load's prompts (`plan.salt`)."""


@dataclass(frozen=True, slots=True)
class Run:
    """Identity and circumstances of a run; instants are RFC 3339 UTC texts.

    `suite` is the whole suite, defaults filled in, as plain JSON without any secret; `suite_sha256` is over it.
    `measurement_sha256` covers what was asked of both arms (workload, stages, tasks, prompts, seed) and not the
    deployments or the policy: two runs with the same one measured the same thing.
    """

    id: str
    suite_name: str
    suite: Mapping[str, object]
    suite_sha256: str
    measurement_sha256: str
    plan_sha256: str
    seed: int
    tool_version: str
    label: str | None
    status: RunStatus
    started_at: str
    finished_at: str | None
    environment: Mapping[str, object]
    arms: Mapping[Arm, Deployment]

    @property
    def day(self) -> date:
        """That on which it began, in UTC. Raises EvidenceError where its row says none."""
        try:
            return date.fromisoformat(self.started_at[:10])
        except ValueError:
            told = f"run {self.id}: it began at {self.started_at[:40]!r}, which is no instant"
            raise EvidenceError(f"{told}; the store is damaged") from None

    @property
    def calibrates(self) -> bool:
        """Whether both of its arms are one deployment, measured to know its noise: it judges nobody."""
        return self.suite.get("calibration") is True

    @property
    def load_salt(self) -> int:
        """Return what changes the words of its load's prompts; 0 where they are those of the plan."""
        salt = self.environment.get(LOAD_SALT, 0)
        if not isinstance(salt, int) or isinstance(salt, bool) or salt < 0:
            raise EvidenceError(f"run {self.id}: its {LOAD_SALT} is {salt!r}, which is no salt; the store is damaged")
        return salt

    @property
    def measured_by(self) -> str | None:
        """The other tool whose file its numbers come from, where it has numbers alone and judges nobody; else None."""
        tool = self.environment.get(MEASURED_BY)
        return None if tool is None else str(tool)

    @property
    def imported(self) -> bool:
        """Whether its evals were made elsewhere and read from files, so that no server was asked anything."""
        return any(arm.facts.get("imported") is True for arm in self.arms.values())


@dataclass(frozen=True, slots=True)
class ClientUse:
    """What the load generator itself spent and how late it was during one stage.

    `busiest_share`: the largest share of one core that any worker used over 5 s; None where the stage was shorter.
    Read delay is how long what had arrived waited for the client: of a canary event that came at known instants through
    the same event loop, or (`kernel`) of the answers themselves by the kernel's stamps. None where it was not measured.
    `faults` name workers that were lost or late: then the load was not the one that was planned.
    `start_uncertainty_s` is how far from the common instant the worst placed of several machines may have started, by
    what is known of their clocks; None on one machine. `unasked`: how often a server sent something over a connection
    when no request was under way, other than that it closes it. `closed_early`: how many kept connections it had closed
    within a second of an answer, before the next request was sent over them.
    """

    cpu_s: float
    wall_s: float
    workers: int
    busiest_share: float | None = None
    read_delay_p50_s: float | None = None
    read_delay_p99_s: float | None = None
    read_delay_max_s: float | None = None
    read_delay_by: Literal["canary", "kernel"] | None = None
    faults: tuple[str, ...] = ()
    start_uncertainty_s: float | None = None
    unasked: int = 0
    closed_early: int = 0

    @property
    def cpu_share(self) -> float:
        """CPU seconds per wall second and worker; near 1 the client, not the server, sets the pace."""
        return self.cpu_s / (self.wall_s * self.workers) if self.wall_s > 0 else 1.0


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class LoadObservation:
    """One load stage, or one class of traffic in it, of one arm in one block.

    `position` counts the executions of the run in time order. `requests` are the measured ones. `ramp` are those sent
    while the stage filled up or drained: they are in the error rate and in nothing else. `left` are those that the
    client broke off on purpose, which are in no rate, no share and no latency.
    """

    stage: str
    arm: Arm
    block: int
    position: int
    requests: RequestColumns
    window_s: float
    client: ClientUse
    left: RequestColumns = field(default_factory=lambda: RequestColumns.pack([]))
    ramp: RequestColumns = field(default_factory=lambda: RequestColumns.pack([]))

    @property
    def parts(self) -> tuple[RequestColumns, ...]:
        """All recorded requests: measured, ramp, left."""
        return self.requests, self.ramp, self.left

    @property
    def with_ramp(self) -> tuple[RequestColumns, RequestColumns]:
        """Measured and ramp requests: all those whose failures count."""
        return self.requests, self.ramp

    @property
    def recorded(self) -> int:
        """How many requests have a record."""
        return sum(map(len, self.parts))

    @property
    def recorded_planned(self) -> int:
        """How many requests of the plan have a record: all but those of the ramp."""
        return self.recorded - sum(int(np.count_nonzero(part.ramp == 1)) for part in self.parts)


@dataclass(frozen=True, slots=True)
class QualityObservation:
    """One eval task on one arm. `fault` is set when the harness or the server failed; items seen so far are kept.

    `repeat` 0 is what is judged; above it, the same arm was asked once more, to know how much it differs from itself.
    """

    task: str
    arm: Arm
    items: tuple[EvalItem, ...]
    expected_n: int
    fault: str | None
    harness: Mapping[str, object] = field(default_factory=dict)
    repeat: int = 0


@dataclass(frozen=True, slots=True)
class ShadowObservation:
    """The shadow comparison: every prompt to the baseline twice and to the candidate once."""

    items: tuple[ShadowItem, ...]
    expected_n: int
    fault: str | None


AT_THE_START = "at the start"
"""When a deployment was not there: before anything was asked of it."""

REFUSES = "refuses requests"
"""What a fault says of a deployment that is there and answers, though not with what was asked for."""

ONE_SERVER = "both arms are served by the same endpoint and model"
CANNOT_SCORE = "it cannot score the given texts"
"""What a fault says where a deployment is there, and the suite asks of it what it cannot be asked."""

CHANGED = "it is not what it was at the start"
"""What a fault says of a deployment that was replaced, or served otherwise, while it was measured."""


@dataclass(frozen=True, slots=True)
class TargetFault:
    """A deployment that was not there: at the start, or at the check after a stage."""

    arm: Arm
    when: str  # AT_THE_START, "after block 2 of 6, stage c4"
    reason: str


@dataclass(frozen=True, slots=True)
class StartUp:
    """One start of a deployment's server, from nothing to its first good completion; `number` counts from 0 per arm."""

    arm: Arm
    number: int
    to_answer_s: float


LOAD_ENDED = "load_ended"
"""The kind of the event in a run's journal whose data is a `LoadEnd`."""

LOOK = "look"
"""The kind of the event that tells what a look at the load found."""

MEASURED = "measured"
"""The kind of the event that an execution of a stage leaves when all of it is stored; its data is its place."""

RESUMED = "resumed"
"""The kind of the event whose data is a `Resumption`. The run's hash covers it."""

SITTING = "sitting"
"""The kind of the event with which a stretch of measuring begins: who measures, where its spool is, whom it asks."""

PROCESSES = "processes"
"""The kind of the event that tells which process answered for each arm as a sitting began; its data is by arm."""

ALL_STORED = "all_stored"
"""The kind of the event that says of a run which was cut short that no spool has more of it than the store."""

INTERRUPTED = "interrupted"
"""What a fault says where nothing failed: whoever ran benchgate ended it."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """A run that had been cut short went on, at `at` (RFC 3339 UTC), by the process of this number.

    `again` is what it had only begun by then, in words: it was measured again from its beginning, and `set_aside` are
    the rows (by their `seq`) that count no more for it. `without_spool`: what was kept beside its store was not there,
    so whole blocks may have been measured of which nothing is known. `by_spool`: it was there, and nobody can say that
    it is all of what was kept. `same_process` are the arms whose server was found to be the process it was before.
    """

    at: str
    process: int
    again: tuple[str, ...]
    set_aside: tuple[int, ...]
    without_spool: bool = False
    by_spool: bool = False
    same_process: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LoadEnd:
    """Where the load of a run with several looks ended: after `blocks` of at most `of`.

    `why`: what was measured "decided" it, or is "invalid" in a way that more blocks did not cure; the next look would
    have passed the suite's limit of "time" or "cost"; or it was the "last" look.
    """

    blocks: int
    of: int
    why: Literal["decided", "invalid", "time", "cost", "last"]


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """All that was observed in a run, as the store gives it back. Sequences are in order of observation.

    `noise` is what was known, when the run ended, of how much its baseline differs from itself; None where that was
    never measured.
    """

    run: Run
    load: tuple[LoadObservation, ...]
    quality: tuple[QualityObservation, ...]
    shadow: ShadowObservation | None
    target_faults: tuple[TargetFault, ...]
    telemetry: tuple[TelemetryWindow, ...] = ()
    starts: tuple[StartUp, ...] = ()
    divergence: DivergenceObservation | None = None
    noise: NoiseProfile | None = None
    ended: LoadEnd | None = None  # where the load ended, by the journal; None for a fixed number of blocks
    history: tuple[PastRun, ...] = ()  # promoting runs of the same measurement before this one, oldest first
    attempts: tuple[Attempt, ...] = ()  # those that did not promote, by their first verdict, oldest first
    unjudged: tuple[Attempt, ...] = ()  # those that had measured something and had no verdict, oldest first
    budget_spent: BudgetSpent | None = None  # by production, when it began or went on; None where nobody read it
    resumptions: tuple[Resumption, ...] = ()  # how it went on after it was cut short, oldest first
    replicas: tuple[ReplicaCount, ...] = ()  # every count of a deployment that declares its replicas, oldest first


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One derived number of a run, kept for trends; it can always be recomputed from the observations.

    `lower` and `upper` are the ends of its 95 % interval, both None where it has none.
    """

    arm: Arm
    name: (
        str  # a metric of docs/metrics.md with its unit, like "output_tokens_per_s" or "usd_per_million_output_tokens"
    )
    statistic: str | None
    stage: str | None
    task: str | None
    value: float
    n: int
    lower: float | None = None
    upper: float | None = None


class TrendPoint(NamedTuple):
    """One value of one run among those of the runs before it.

    `outcome` is the run's own latest verdict; None when it never got one (comparisons between runs do not count).
    `deployment` is what the suite calls the one that the value is of; `lower` and `upper` are the ends of the value's
    95 % interval, None where it has none. `promoted` says how the run was, or that this was withdrawn; None where it
    never was. `model`, `engine` and `hardware` are what the deployment is known by (`model/identity.py`), as far as the
    run remembers it. `doubt` says why a cost is none of what ran, None where nothing does.
    """

    run_id: str
    started_at: str
    label: str | None
    suite: str
    deployment: str
    outcome: Outcome | None
    arm: Arm
    stage: str | None
    task: str | None
    value: float
    n: int
    lower: float | None = None
    upper: float | None = None
    promoted: str | None = None
    model: str | None = None
    engine: str | None = None
    hardware: str | None = None
    doubt: str | None = None

    def series(self, by: str) -> str:
        """Which series it stands in where points are told apart by one of their texts, `model` or `suite` say."""
        told = getattr(self, by)
        return NOT_TOLD if told is None else str(told)


NOT_TOLD = "not told"
"""The series of what the run does not remember."""


def new_run_id(now_ms: int, random_bytes: bytes) -> str:
    """A UUIDv7 (RFC 9562, 5.7): milliseconds since 1970 in UTC first, so ids sort by time; then 74 random bits.

    `random_bytes` are 10 bytes of the caller's randomness. Raises ValueError for another length or time out of range.
    """
    if len(random_bytes) != 10 or not 0 <= now_ms < 1 << 48:
        raise ValueError("a run id needs 10 random bytes and a time between 1970 and the year 10889")
    value = int.from_bytes(now_ms.to_bytes(6, "big") + random_bytes, "big")
    value = value & ~(0xF << 76) | 0x7 << 76  # version
    value = value & ~(0x3 << 62) | 0x2 << 62  # variant
    return str(UUID(int=value))


def day_begun(run_id: str) -> date | None:
    """The day, in UTC, on which a run began, by its id alone; None of an id that does not tell."""
    try:
        known = UUID(run_id)
        return datetime.fromtimestamp((known.int >> 80) / 1000, UTC).date() if known.version == 7 else None
    except (ValueError, OverflowError):
        return None


PROMOTED_WITHIN_S = 30 * 86_400.0
"""How long after its end a run is promoted, unless somebody says otherwise."""

_AHEAD_S = 300.0  # that another machine's clock may be


def too_old(ended: str | None, now: str, max_age_s: float) -> str | None:
    """Why what ended at an instant is not of today; None where it is. Instants are RFC 3339 with an offset.

    By when it was over: a verdict can be reached anew, and what it rests on stays as old as it is. An instant that is
    missing, unreadable or still to come is too old.
    """
    then, today = _instant(ended), _instant(now)
    if then is None or today is None:
        return "nobody knows when it was measured"
    age_s = (today - then).total_seconds()
    if age_s < -_AHEAD_S:
        return f"it ended at {ended}, which is still to come: some clock is wrong"
    if age_s > max_age_s:
        return f"it ended {_shown(age_s)} ago, and may be {_shown(max_age_s)} old; measure it again"
    return None


def _shown(age_s: float) -> str:
    return f"{age_s / 86_400:,.1f} days" if age_s >= 172_800 else f"{age_s / 3600:.1f} hours"


def _instant(text: str | None) -> datetime | None:
    try:
        found = datetime.fromisoformat(text) if text is not None else None
    except ValueError:
        return None
    return found.astimezone(UTC) if found is not None and found.tzinfo is not None else None
