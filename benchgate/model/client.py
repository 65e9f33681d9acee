"""What the load generator can do on one machine: a curve of offered loads, and in which it was the bottleneck."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from benchgate.model.deployment import sha256_of


@dataclass(frozen=True, slots=True)
class ClientStep:
    """One load held by one worker against a practice server that keeps its own time.

    `streams` is what was in flight in a closed loop, None in an open one. `offered_*` is what the server would have
    delivered to a client that adds no delay; `delivered_ratio` is the part of it that came. `ttft_error_p99_s` is the
    client's p99 of TTFT minus the server's own. `client_bound` says why the client was the bottleneck, empty when it
    was not; `server_late` says so of the practice server, and then the step says nothing about the client.
    """

    streams: int | None
    offered_rps: float
    offered_tokens_per_s: float
    delivered_ratio: float | None
    cpu_us_per_token: float | None
    read_delay_p99_s: float | None
    ttft_error_p99_s: float | None
    client_bound: tuple[str, ...]
    server_late: str | None = None

    @property
    def sound(self) -> bool:
        """Whether the client delivered this load and its numbers were the server's."""
        return not self.client_bound and self.server_late is None

    @property
    def at_limit(self) -> bool:
        """Whether the client itself was the bottleneck: what it can do lies below this load."""
        return bool(self.client_bound) and self.server_late is None


@dataclass(frozen=True, slots=True)
class ClientProfile:
    """The delivered-rate curve of the load generator on one machine; all figures are of one worker.

    `machine` is what must be the same for the curve to hold: processor, cores, system, and the versions of what runs.
    """

    measured_at: str  # RFC 3339, UTC
    machine: Mapping[str, object]
    steps: tuple[ClientStep, ...]

    @property
    def fingerprint(self) -> str:
        """Identity of the machine."""
        return machine_fingerprint(self.machine)

    @property
    def streams(self) -> int | None:
        """Most streams in flight that one worker served soundly; None when it never did."""
        return max((step.streams for step in self.steps if step.sound and step.streams is not None), default=None)

    @property
    def tokens_per_s(self) -> float | None:
        """Most tokens per second that one worker took soundly."""
        return _most(step.offered_tokens_per_s for step in self.steps if step.sound and step.streams is not None)

    @property
    def requests_per_s(self) -> float | None:
        """Most one-token answers per second that one worker asked for soundly."""
        return _most(step.offered_rps for step in self.steps if step.sound and step.streams is None)

    @property
    def streams_limited(self) -> bool:
        """Whether more streams and tokens than the sound ones were tried and were too much; else no limit is known."""
        return any(step.at_limit for step in self.steps if step.streams is not None)

    @property
    def requests_limited(self) -> bool:
        """The same of one-token answers."""
        return any(step.at_limit for step in self.steps if step.streams is None)

    @property
    def least_cpu_us_per_token(self) -> float | None:
        """Least processor time that a token of streams took in a sound step; None where it was measured in none."""
        return _least(step.cpu_us_per_token for step in self.steps if step.sound and step.streams is not None)

    @property
    def least_cpu_us_per_request(self) -> float | None:
        """The same of a one-token answer."""
        return _least(step.cpu_us_per_token for step in self.steps if step.sound and step.streams is None)

    def to_json(self) -> dict[str, object]:
        """Plain JSON values, for the store."""
        return {
            "measured_at": self.measured_at,
            "machine": dict(self.machine),
            "steps": [asdict(s) for s in self.steps],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ClientProfile:
        """The inverse of `to_json`. Raises KeyError or TypeError for another shape."""
        steps = tuple(ClientStep(**{**step, "client_bound": tuple(step["client_bound"])}) for step in data["steps"])
        return cls(data["measured_at"], data["machine"], steps)


def machine_fingerprint(machine: Mapping[str, object]) -> str:
    """SHA-256 over a machine's facts: a curve holds only where all of them are the same."""
    return sha256_of(dict(machine))


def _least(values: Iterable[float | None]) -> float | None:
    return min((value for value in values if value), default=None)


def _most(values: Iterable[float]) -> float | None:
    return max(values, default=None)
