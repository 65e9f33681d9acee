"""The demand file of `benchgate capacity`: a demand, one replica, and the autoscaler to simulate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Field, Strict, ValidationError, model_validator

from benchgate.errors import SuiteError
from benchgate.suite.messages import Slot, faults_of
from benchgate.suite.types import Duration, Factor, Memory, Percent, Price, Section, Span, Text, Whole, Written, key
from benchgate.suite.yaml import Document, Fault, Path, read_text

MAX_PER_S = 10**12
MAX_REPLICAS = 1_000_000
MAX_SIMULATED_REPLICAS = 10_000
MAX_SLOTS = 1_000_000
MAX_REQUEST_TIME_CV = 10  # beyond it a few requests are nearly all of the work
MAX_REQUEST_S = 1_000_000
MAX_REQUEST_TOKENS = 1_000_000_000

PerSecond = Annotated[float, Strict(), Field(gt=0, le=MAX_PER_S)]
RequestTime = Annotated[Duration, Field(le=MAX_REQUEST_S)]


class DemandLevels(Section):
    """A demand by its mean, its busy hours and its peak. A single number is the mean."""

    mean: PerSecond = key("Mean over all hours")
    p95: PerSecond | None = key("The 95th percentile over the hours", default=None)
    peak: PerSecond | None = key("The highest", default=None)

    @model_validator(mode="before")
    @classmethod
    def _short(cls, found: Any) -> Any:
        return found if isinstance(found, dict | DemandLevels) else {"mean": found}

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        for name in ("mean", "p95"):
            value = getattr(self, name)
            if value is not None and self.peak is not None and value > self.peak:
                raise ValueError(f"`{name}` {value:g} is above `peak` {self.peak:g}")
        return self


_Levels = Annotated[DemandLevels, Written({"type": "number"})]


class DemandSection(Section):
    """The demand: a rate of requests or of output tokens, or a file of hours."""

    requests_per_s: _Levels | None = key("Requests per second: the mean, or `mean`, `p95` and `peak`", default=None)
    output_tokens_per_s: _Levels | None = key("Output tokens per second, likewise", default=None)
    traffic: Text | None = key("CSV file with one row per hour, relative to this file", default=None)

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = [
            name for name in ("requests_per_s", "output_tokens_per_s", "traffic") if getattr(self, name) is not None
        ]
        if len(given) != 1:
            found = f"has {' and '.join(f'`{name}`' for name in given)}; " if given else ""
            raise ValueError(f"{found}needs exactly one of `requests_per_s`, `output_tokens_per_s` and `traffic`")
        return self


class CacheSection(Section):
    """The KV cache of a replica, all its accelerators together."""

    model: Text = key("The model's `config.json`, relative to this file")
    memory: Memory = key("Memory for the cache on all accelerators together, like 40GB or 37GiB")
    request_tokens: Annotated[Whole, Field(ge=1, le=MAX_REQUEST_TOKENS)] = key(
        "Tokens of a long request, prompt and response together"
    )
    dtype: Text | None = key("Type of the cached numbers, like fp8; that of the model if left out", default=None)
    tensor_parallel: Annotated[Whole, Field(ge=1, le=1024)] = key("Accelerators that share every layer", default=1)


class ReplicaSection(Section):
    """Replica of the fleet. A run gives what is left out; without a run a rate is required."""

    requests_per_s: PerSecond | None = key("Requests per second that it serves within its SLO", default=None)
    output_tokens_per_s: PerSecond | None = key("Output tokens per second that it serves within its SLO", default=None)
    request_time: RequestTime | None = key("Mean residence time of a request, like 2.5s", default=None)
    output_tokens: Annotated[float, Strict(), Field(gt=0, le=MAX_REQUEST_TOKENS)] | None = key(
        "Mean output tokens of a request", default=None
    )
    slots: Annotated[Whole, Field(ge=1, le=MAX_SLOTS)] | None = key(
        "Requests that it processes at once, for the simulation", default=None
    )
    cold_start: Span | None = key("Time from requesting a replica to its first response", default=None)
    price: Price | None = key("Dollars per hour of the whole replica, all its accelerators", default=None)
    overhead: Percent | None = key("Paid in addition to each dollar: gateway, on-call", default=None)
    cache: CacheSection | None = key("The KV cache, to see how many requests fit", default=None)

    @model_validator(mode="after")
    def _one_rate(self) -> Self:
        if self.requests_per_s is not None and self.output_tokens_per_s is not None:
            raise ValueError("has two rates; keep one of `requests_per_s` and `output_tokens_per_s`")
        return self


class SimulationSection(Section):
    """An autoscaled fleet that serves the hours of `traffic` in simulation."""

    min_replicas: Annotated[Whole, Field(ge=1, le=MAX_SIMULATED_REPLICAS)] = key("Fewest replicas", default=1)
    max_replicas: Annotated[Whole, Field(ge=1, le=MAX_SIMULATED_REPLICAS)] = key("Most replicas")
    max_wait: Span = key("Longest acceptable wait for a slot", default=1.0)
    target_load: Annotated[Percent, Field(ge=0.01)] = key("Share of the slots that the autoscaler fills", default=0.8)
    interval: Duration = key("Time between two decisions of the autoscaler", default=15.0)
    cooldown: Span = key("Replicas are removed only after fewer were enough for this long", default=300.0)
    request_time_cv: Annotated[float, Strict(), Field(ge=0, le=MAX_REQUEST_TIME_CV)] = key(
        "Coefficient of variation of the request time: 0 is constant, 1 exponential", default=1.0
    )
    balancer: Literal["shared-queue", "round-robin", "least-loaded"] = key(
        "Assignment of requests to replicas", default="shared-queue"
    )
    seed: Annotated[Whole, Field(ge=0)] = key("Seed of arrivals and request times", default=0)

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if self.min_replicas > self.max_replicas:
            raise ValueError(f"`min_replicas` {self.min_replicas} is above `max_replicas` {self.max_replicas}")
        return self


class DemandFile(Section):
    """Content of a demand file."""

    demand: DemandSection = key("The load to serve")
    replica: ReplicaSection = key(
        "What one replica serves and costs; from the run if left out", default=ReplicaSection()
    )
    safety_factor: Factor = key("Multiple of the demand to plan for", default=1.2)
    spares: Annotated[Whole, Field(ge=0, le=MAX_REPLICAS)] = key("Replicas that may fail", default=1)
    simulation: SimulationSection | None = key("An autoscaled fleet that serves `traffic` in simulation", default=None)


@dataclass(frozen=True, slots=True)
class ParsedDemand:
    """A demand file with the places of its keys."""

    content: DemandFile
    document: Document

    def error(self, path: Path, message: str) -> SuiteError:
        """Return an error at a key of the file."""
        return SuiteError([self.document.problem(Fault(path, message))])


def parse_demand(written: str, source: str) -> ParsedDemand:
    """Parse a demand file. `source` is its name. Raises SuiteError with every problem and its place."""
    document = read_text(written, source, "demand file")
    try:
        content = DemandFile.model_validate(document.data)
    except ValidationError as error:
        reported = {problem.path for problem in document.problems}
        found = [document.problem(fault) for fault in faults_of(error, Slot(DemandFile, ()))]
        raise SuiteError([*document.problems, *(one for one in found if one.path not in reported)]) from None
    if document.problems:
        raise SuiteError(document.problems)
    return ParsedDemand(content, document)
