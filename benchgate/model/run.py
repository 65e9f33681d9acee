"""Run of a suite: its identity, everything observed in it, and the evidence for a verdict."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, date, datetime
from enum import StrEnum
from itertools import chain
from typing import Any, Literal, NamedTuple
from uuid import UUID

import numpy as np

from benchgate.errors import EvidenceError
from benchgate.model.deployment import Arm, Deployment, from_json
from benchgate.model.history import Attempt, PastRun
from benchgate.model.noise import NoiseProfile
from benchgate.model.records import DivergenceObservation, EvalItem, RequestColumns, ShadowItem
from benchgate.model.telemetry import TelemetryWindow
from benchgate.model.verdict import Outcome

# Keys of a run's environment.
MEASURED_BY = "measured_by"  # tool whose file the numbers of an imported run come from
LOAD_SALT = "load_salt"  # number that changes the words of the load's prompts (`plan.salt`)
ONLY_PART = "only"  # the only part of the suite that was measured: load, quality, shadow, or QUICK_LOOK
QUICK_LOOK = "quick"  # fewer blocks and items of the whole suite


# Kinds of events in a run's journal.
REPLICAS = "replicas"  # data: a `ReplicaCount`; part of the run's hash
LOAD_ENDED = "load_ended"  # data: a `LoadEnd`
LOOK = "look"  # result of an interim look at the load
MEASURED = "measured"  # an execution of a stage is stored completely; data: its place, and ANSWERS
ANSWERS = "answers"  # those to eval items that were sent among its requests, not yet scored
RESUMED = "resumed"  # data: a `Resumption`; part of the run's hash
SESSION_BEGUN = "sitting"  # a session of the run begins: its process, its spool, its servers
SERVER_PROCESSES = "processes"  # server process of each side when a session began
ALL_STORED = "all_stored"  # the store has what the spool of an interrupted run held


# Times and reasons of faults.
AT_THE_START = "at the start"
AT_THE_END = "at the end"
REFUSES_REQUESTS = "refuses requests"  # the server answers, but not the request
NO_LLM_SERVER = "is no LLM server"  # something else answers at the address
NOT_ALL_READY = "replicas were ready"  # part of a reason: fewer replicas than declared
NOT_COUNTABLE = "its replicas cannot be counted"  # part of a reason
ONE_SERVER = "both arms are served by the same endpoint and model"
CANNOT_SCORE = "it cannot score the given texts"  # the suite requires what the server does not support
CHANGED = "it is not what it was at the start"  # the deployment was replaced or reconfigured during the run
INTERRUPTED = "interrupted"  # the user ended the run
UNKNOWN_SERIES = "not reported"  # series of points without a value for the grouping text
MAX_PROMOTION_AGE_S = 30 * 86_400.0  # default age limit of a run for promotion, from its end
_AHEAD_S = 300.0  # tolerated difference of clocks


class RunStatus(StrEnum):
    """Completeness of a run. Only a COMPLETE run can promote."""

    RUNNING = "running"
    COMPLETE = "complete"
    PARTIAL = "partial"


@dataclass(frozen=True, slots=True)
class Run:
    """Identity and circumstances of a run; instants are RFC 3339 UTC texts."""

    id: str
    suite_name: str
    suite: Mapping[str, object]  # the whole one with defaults, plain JSON without any secret
    suite_sha256: str
    measurement_sha256: str  # workload, stages, tasks, prompts, seed; not deployments, policy
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
        """Return the UTC day of its start. Raises EvidenceError for an invalid stored time."""
        try:
            return date.fromisoformat(self.started_at[:10])
        except ValueError:
            found = f"run {self.id} has the start time {self.started_at[:40]!r}, which is invalid"
            raise EvidenceError(f"{found}; the store is damaged") from None

    @property
    def keeps_texts(self) -> bool:
        """Return True if prompts and answers of users are stored with it."""
        shadow = self.suite.get("shadow")
        return isinstance(shadow, Mapping) and shadow.get("store_text") is True

    @property
    def calibrates(self) -> bool:
        """Return True if both sides are one deployment, measured for its noise; such a run is not judged."""
        return self.suite.get("calibration") is True

    @property
    def load_salt(self) -> int:
        """Return the number that changes the words of the load's prompts; 0 for those of the plan."""
        salt = self.environment.get(LOAD_SALT, 0)
        if not isinstance(salt, int) or isinstance(salt, bool) or salt < 0:
            raise EvidenceError(f"run {self.id} has the {LOAD_SALT} {salt!r}, which is invalid; the store is damaged")
        return salt

    @property
    def only_part(self) -> str | None:
        """Return the only part of its suite that was measured; None if all of it was."""
        part = self.environment.get(ONLY_PART)
        return None if part is None else str(part)

    @property
    def is_quick_look(self) -> bool:
        """Return True if it measured fewer blocks and items than its suite; such a run never promotes."""
        return self.only_part == QUICK_LOOK

    @property
    def scope(self) -> str | None:
        """Return what was measured of the suite in words; None for all of it."""
        return "quick look" if self.is_quick_look else f"{self.only_part} only" if self.only_part else None

    @property
    def measured_by(self) -> str | None:
        """Return the tool whose file an imported run's numbers come from; None for any other run."""
        tool = self.environment.get(MEASURED_BY)
        return None if tool is None else str(tool)

    @property
    def judges_candidate(self) -> bool:
        """Return True if it was measured to judge a candidate: no calibration, and no file of another tool."""
        return not self.calibrates and self.measured_by is None

    @property
    def judges_whole_suite(self) -> bool:
        """Return True if it judges a candidate by all of its suite: no quick look, and no run of one part."""
        return self.judges_candidate and self.only_part is None

    @property
    def imported(self) -> bool:
        """Return True if its evals were read from files of another tool."""
        return any(arm.facts.get("imported") is True for arm in self.arms.values())


@dataclass(frozen=True, slots=True)
class WorkerAddresses:
    """Addresses of the server for workers (from 0) that saw the same ones: by DNS, and those they connected to."""

    workers: tuple[int, ...]
    resolved: tuple[str, ...]
    connected: tuple[str, ...]
    region: str | None = None


def merged_addresses(found: Iterable[Sequence[WorkerAddresses]]) -> tuple[WorkerAddresses, ...]:
    """Put workers of a region that saw the same addresses together, in order of their first one."""
    workers: dict[WorkerAddresses, set[int]] = {}
    for one in chain.from_iterable(found):
        workers.setdefault(replace(one, workers=()), set()).update(one.workers)
    together = [replace(seen, workers=tuple(sorted(numbers))) for seen, numbers in workers.items()]
    return tuple(sorted(together, key=lambda one: one.workers))


@dataclass(frozen=True, slots=True)
class ClientUse:
    """Resources and delays of the load generator during one stage."""

    cpu_s: float
    wall_s: float
    workers: int
    busiest_share: float | None = None  # of one core, by any worker over 5 s; None for shorter stages
    read_delay_p50_s: float | None = None  # received data waited for the client; None if not measured
    read_delay_p99_s: float | None = None
    read_delay_max_s: float | None = None
    read_delay_by: Literal["canary", "kernel"] | None = None  # events at known times, or timestamps
    faults: tuple[str, ...] = ()  # workers lost or late: the load differed from the plan
    by_cluster: bool = False  # workers of a cluster sent it, however many; False: processes of this machine
    start_uncertainty_s: float | None = None  # between machines by their clocks; None on one machine
    clock_offset_s: float | None = None  # largest of a machine's clock, which the start allows for; as far as known
    unasked: int = 0  # data without a request under way, except closing
    closed_early: int = 0  # kept connections closed by the server within a second of an answer
    addresses: tuple[WorkerAddresses, ...] = ()  # of the server, by worker; empty in runs of earlier versions

    def to_document(self) -> dict[str, object]:
        """Return it as plain JSON values."""
        unset = {"addresses": (), "by_cluster": False, "clock_offset_s": None}
        absent = {name for name, default in unset.items() if getattr(self, name) == default}
        return {name: value for name, value in asdict(self).items() if name not in absent}

    @classmethod
    def from_document(cls, found: Mapping[str, Any]) -> ClientUse:
        """Read what `to_document` wrote. Raises ValueError for anything else."""
        read = from_json(cls, found)
        if read.workers < 1:
            raise ValueError(f"{read.workers} workers; expected at least 1")
        return read

    @property
    def cpu_share(self) -> float:
        """Return CPU seconds per wall second and worker; near 1 the client limits the load."""
        return self.cpu_s / (self.wall_s * self.workers) if self.wall_s > 0 else 1.0


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class LoadObservation:
    """A load stage, or one class of traffic in it, on one side in one block."""

    stage: str
    arm: Arm
    block: int
    position: int  # number of the execution in the run, in time order
    requests: RequestColumns  # the measured ones; `ramp` count only in the error rate, `left` nowhere
    window_s: float
    client: ClientUse
    left: RequestColumns = field(default_factory=lambda: RequestColumns.pack([]))
    ramp: RequestColumns = field(default_factory=lambda: RequestColumns.pack([]))
    session: int = 0  # of a resumed run: how often it had been resumed before

    @property
    def parts(self) -> tuple[RequestColumns, ...]:
        """Return all recorded requests: measured, ramp, left."""
        return self.requests, self.ramp, self.left

    @property
    def with_ramp(self) -> tuple[RequestColumns, RequestColumns]:
        """Return measured and ramp requests: all those whose failures count."""
        return self.requests, self.ramp

    @property
    def recorded(self) -> int:
        """Return the number of recorded requests."""
        return sum(map(len, self.parts))

    @property
    def recorded_planned(self) -> int:
        """Return the number of planned requests with a record: all but those of the ramp."""
        return self.recorded - sum(int(np.count_nonzero(part.ramp == 1)) for part in self.parts)


@dataclass(frozen=True, slots=True)
class QualityObservation:
    """An eval task on one side."""

    task: str
    arm: Arm
    items: tuple[EvalItem, ...]
    expected_n: int
    fault: str | None  # the harness or the server failed; finished items are kept
    harness: Mapping[str, object] = field(default_factory=dict)
    repeat: int = 0  # 0 is judged; higher ones measure the side's self-disagreement


@dataclass(frozen=True, slots=True)
class ImportedEvals:
    """Evals of an arm made elsewhere, in the suite's order, with facts that identify the files and the runs in them."""

    observations: tuple[QualityObservation, ...]
    facts: dict[str, object]
    runs: frozenset[str]

    @property
    def model(self) -> str | None:
        """Return the evaluated model's name, if the files have it."""
        name = self.facts.get("model")
        return name if isinstance(name, str) else None


@dataclass(frozen=True, slots=True)
class ShadowObservation:
    """Shadow comparison: every prompt sent twice to the baseline and once to the candidate."""

    items: tuple[ShadowItem, ...]
    expected_n: int
    fault: str | None


@dataclass(frozen=True, slots=True)
class DeploymentFault:
    """Failed check of a deployment, at the start or after a stage."""

    arm: Arm
    when: str  # AT_THE_START, "after block 2 of 6, stage c4"
    reason: str


@dataclass(frozen=True, slots=True)
class ServerStart:
    """Start of a deployment's server until its first good completion; `number` counts from 0 per side."""

    arm: Arm
    number: int
    to_answer_s: float


@dataclass(frozen=True, slots=True)
class ReplicaCount:
    """Count of a deployment's ready replicas."""

    arm: Arm
    when: str
    block: int | None  # the next one, from 0; None if no block follows the count
    count: int | None  # None if they could not be counted; `problem` then says why
    wanted: int  # the declared number
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
            raise ValueError(f"{whole} is invalid; expected counts of at least 0")
        if whole["wanted"] is None:
            raise ValueError("the declared number of replicas is missing")
        problem = None if found["problem"] is None else str(found["problem"])
        return cls(Arm(found["arm"]), str(found["when"]), problem=problem, **whole)

    @property
    def shown(self) -> str:
        """Format the count: `7 of 8 replicas`, or the problem."""
        if self.count is None:
            return f"not counted ({self.problem})"
        return f"{self.count} of {self.wanted} replicas"


@dataclass(frozen=True, slots=True)
class BudgetReading:
    """Reading of production's error budget at the start of a run, stored so that later verdicts need no request.

    `spent_ratio` is 0.4 when 40% of the budget of the whole window is used, and above 1 when it is exceeded. `source`
    names the origin without a secret; `read_at` is RFC 3339 in UTC. Raises ValueError for a negative or infinite ratio.
    """

    spent_ratio: float
    source: str
    read_at: str

    def __post_init__(self) -> None:
        if not math.isfinite(self.spent_ratio) or self.spent_ratio < 0:
            raise ValueError(f"the spent share of the budget is {self.spent_ratio}; expected 0 or more")

    @property
    def blown(self) -> bool:
        """Return True if the budget is exhausted."""
        return self.spent_ratio >= 1


@dataclass(frozen=True, slots=True)
class Resumption:
    """Continuation of an interrupted run, at `at` (RFC 3339 UTC), by the process of this number."""

    at: str
    process: int
    again: tuple[str, ...]  # unfinished parts that were measured again
    set_aside: tuple[int, ...]  # their rows (by `seq`), which no longer count
    without_spool: bool = False  # it was missing: whole blocks may have been measured without a trace
    by_spool: bool = False  # it was there, but may be incomplete
    same_process: tuple[str, ...] = ()  # sides whose server is still the same process


@dataclass(frozen=True, slots=True)
class LoadEnd:
    """End of the load of a run with several looks: after `blocks` of at most `of`.

    `why`: the results are "decided", or "invalid" in a way that more blocks did not cure; the next look would have
    exceeded the suite's limit of "time" or "cost"; or it was the "last" look.
    """

    blocks: int
    of: int
    why: Literal["decided", "invalid", "time", "cost", "last"]


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """All observations of a run as the store returns them, in order of observation."""

    run: Run
    load: tuple[LoadObservation, ...]
    quality: tuple[QualityObservation, ...]
    shadow: ShadowObservation | None
    target_faults: tuple[DeploymentFault, ...]
    telemetry: tuple[TelemetryWindow, ...] = ()
    starts: tuple[ServerStart, ...] = ()
    divergence: DivergenceObservation | None = None
    noise: NoiseProfile | None = None  # known of the baseline when the run ended; None if never measured
    ended: LoadEnd | None = None  # end of the load by the journal; None for a fixed number of blocks
    history: tuple[PastRun, ...] = ()  # earlier promoting runs of the same measurement, oldest first
    attempts: tuple[Attempt, ...] = ()  # earlier runs that did not promote, by their first verdict, oldest first
    unjudged: tuple[Attempt, ...] = ()  # earlier measured runs without a verdict, oldest first
    budget_spent: BudgetReading | None = None  # in production, at the start or resumption; None if not read
    resumptions: tuple[Resumption, ...] = ()  # oldest first
    replicas: tuple[ReplicaCount, ...] = ()  # counts of deployments that declare replicas, oldest first
    redrawn: bool = False  # its blocks were drawn from a calibration, one perhaps several times; never of a stored run


@dataclass(frozen=True, slots=True)
class MetricRow:
    """Derived number of a run, stored for trends; it can be recomputed. `lower` and `upper` are its 95% interval."""

    arm: Arm
    name: str  # metric of docs/reference/metrics.md; model.metric.TREND_UNITS has its unit
    statistic: str | None
    stage: str | None
    task: str | None
    value: float
    n: int
    lower: float | None = None
    upper: float | None = None


class TrendPoint(NamedTuple):
    """Value of one run in a trend."""

    run_id: str
    started_at: str
    label: str | None
    suite: str
    deployment: str  # name in the suite
    outcome: Outcome | None  # of its own latest verdict, not of comparisons between runs
    arm: Arm
    stage: str | None
    task: str | None
    value: float
    n: int
    lower: float | None = None  # 95% interval, like `upper`
    upper: float | None = None
    promoted: str | None = None  # label of its promotion or withdrawal
    model: str | None = None
    engine: str | None = None
    hardware: str | None = None
    doubt: str | None = None  # why a cost may not match the deployment

    def series(self, by: str) -> str:
        """Return its series when points are grouped by a text such as `model` or `suite`."""
        value = getattr(self, by)
        return UNKNOWN_SERIES if value is None else str(value)


def new_run_id(now_ms: int, random_bytes: bytes) -> str:
    """Return a UUIDv7 (RFC 9562, 5.7) of UTC ms since 1970 and 10 random bytes. Raises ValueError out of range."""
    if len(random_bytes) != 10 or not 0 <= now_ms < 1 << 48:
        raise ValueError("a run id needs 10 random bytes and a time between the years 1970 and 10889")
    value = int.from_bytes(now_ms.to_bytes(6, "big") + random_bytes, "big")
    value = value & ~(0xF << 76) | 0x7 << 76  # version
    value = value & ~(0x3 << 62) | 0x2 << 62  # variant
    return str(UUID(int=value))


def start_day(run_id: str) -> date | None:
    """Return the UTC day on which a run began, by its id; None for an id without a time."""
    try:
        known = UUID(run_id)
        return datetime.fromtimestamp((known.int >> 80) / 1000, UTC).date() if known.version == 7 else None
    except (ValueError, OverflowError):
        return None


def too_old_because(ended: str | None, now: str, max_age_s: float) -> str | None:
    """Return why a run that ended at an instant is too old; None if it is not. Instants are RFC 3339 with an offset.

    A missing, invalid or future instant is too old. The end of the run counts, not its verdict: a new verdict does not
    renew evidence.
    """
    then, today = _parse_instant(ended), _parse_instant(now)
    if then is None or today is None:
        return "its end time is unknown"
    age_s = (today - then).total_seconds()
    if age_s < -_AHEAD_S:
        return f"it ended at {ended}, which is in the future: check the clocks"
    if age_s > max_age_s:
        return f"it ended {_format_age(age_s)} ago, more than {_format_age(max_age_s)}; measure it again"
    return None


def _format_age(age_s: float) -> str:
    return f"{age_s / 86_400:,.1f} days" if age_s >= 172_800 else f"{age_s / 3600:.1f} hours"


def _parse_instant(text: str | None) -> datetime | None:
    try:
        found = datetime.fromisoformat(text) if text is not None else None
    except ValueError:
        return None
    return found.astimezone(UTC) if found is not None and found.tzinfo is not None else None
