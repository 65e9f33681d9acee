"""Profile of the load generator: the loads that it can hold on one machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from benchgate.model.deployment import sha256_of


@dataclass(frozen=True, slots=True)
class ClientStep:
    """A load held by one worker against a simulated server that keeps its own time."""

    streams: int | None  # in flight in a closed loop; None for an open one
    offered_rps: float  # what the server would deliver to a client without delay
    offered_tokens_per_s: float  # likewise
    delivered_ratio: float | None  # share of it that arrived
    cpu_us_per_token: float | None
    read_delay_p99_s: float | None
    ttft_error_p99_s: float | None  # the client's p99 TTFT minus the server's own
    client_bound: tuple[str, ...]  # reasons why the client was the bottleneck; empty if it was not
    server_late: str | None = None  # why the simulated server was; the step then says nothing of the client

    @property
    def sound(self) -> bool:
        """Return True if the client delivered this load and measured it correctly."""
        return not self.client_bound and self.server_late is None

    @property
    def at_limit(self) -> bool:
        """Return True if the client was the bottleneck."""
        return bool(self.client_bound) and self.server_late is None


@dataclass(frozen=True, slots=True)
class ClientProfile:
    """Loads and results of the load generator on one machine; all figures are per worker."""

    measured_at: str  # RFC 3339, UTC
    machine: Mapping[str, object]  # processor, cores, system and versions, for which alone it holds
    steps: tuple[ClientStep, ...]

    @property
    def fingerprint(self) -> str:
        """Return the identity of the machine."""
        return machine_fingerprint(self.machine)

    @property
    def streams(self) -> int | None:
        """Return the most streams in flight that one worker served soundly; None if there are none."""
        return max((step.streams for step in self.steps if step.sound and step.streams is not None), default=None)

    @property
    def tokens_per_s(self) -> float | None:
        """Return the most tokens per second that one worker received soundly."""
        sound = (step.offered_tokens_per_s for step in self.steps if step.sound and step.streams is not None)
        return max(sound, default=None)

    @property
    def requests_per_s(self) -> float | None:
        """Return the most one-token requests per second that one worker sent soundly."""
        return max((step.offered_rps for step in self.steps if step.sound and step.streams is None), default=None)

    @property
    def streams_limited(self) -> bool:
        """Return True if a larger load of streams was tried and too much; otherwise no limit is known."""
        return any(step.at_limit for step in self.steps if step.streams is not None)

    @property
    def requests_limited(self) -> bool:
        """Return True if a higher rate of one-token requests was tried and too much."""
        return any(step.at_limit for step in self.steps if step.streams is None)

    @property
    def least_cpu_us_per_token(self) -> float | None:
        """Return the least CPU time per streamed token in a sound step; None if never measured."""
        return _least(step.cpu_us_per_token for step in self.steps if step.sound and step.streams is not None)

    @property
    def least_cpu_us_per_request(self) -> float | None:
        """Return the least CPU time per one-token request in a sound step; None if never measured."""
        return _least(step.cpu_us_per_token for step in self.steps if step.sound and step.streams is None)

    def to_json(self) -> dict[str, object]:
        """Return plain JSON values for the store."""
        return {
            "measured_at": self.measured_at,
            "machine": dict(self.machine),
            "steps": [asdict(s) for s in self.steps],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ClientProfile:
        """Read what `to_json` wrote. Raises KeyError or TypeError for another shape."""
        steps = tuple(ClientStep(**{**step, "client_bound": tuple(step["client_bound"])}) for step in data["steps"])
        return cls(data["measured_at"], data["machine"], steps)


def machine_fingerprint(machine: Mapping[str, object]) -> str:
    """Return the SHA-256 over a machine's facts, all of which must be equal for a profile to hold."""
    return sha256_of(dict(machine))


def _least(values: Iterable[float | None]) -> float | None:
    return min((value for value in values if value), default=None)
