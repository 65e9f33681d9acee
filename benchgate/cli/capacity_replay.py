"""What `benchgate capacity` is told of a fleet that scales, and the traffic replayed against it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchgate.errors import UsageError

if TYPE_CHECKING:
    from benchgate.sizing.fleet import SizingInput
    from benchgate.sizing.simulation import SimulatedHours


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """As the command line has them; nothing is replayed without `most`."""

    least: int
    most: int | None
    places: int | None
    wait: str
    look: str
    cooldown: str
    target_load: str
    request_cv: float
    balance: str
    seed: int


def rehearsed(asked: ReplayOptions, hours: Sequence[float] | None, fleet: SizingInput) -> SimulatedHours | None:
    """The hours (requests per second) replayed; None where that was not asked for.

    Raises UsageError for what lacks, and where places and request time contradict what a replica of the fleet carries.
    """
    import numpy as np

    from benchgate.cli.capacity_asked import by_option, read_option
    from benchgate.sizing.fleet import require_slots
    from benchgate.sizing.simulation import Balancer, Scaling, Service, simulate_hours
    from benchgate.units import parse_percent_ratio, parse_span_s

    if asked.most is None:
        return None
    if hours is None:
        raise UsageError("--max-replicas replays hours of requests; give --traffic with a column requests_per_s")
    service_s, cold_start_s = fleet.residence_s, fleet.cold_start_s
    if service_s is None or asked.places is None:
        raise UsageError("--max-replicas needs --request-time and --places, what a replica answers at once, or a run")
    if cold_start_s is None and asked.most != asked.least:
        raise UsageError(
            "--max-replicas needs --cold-start, how long a replica takes to its first answer, like 3min, or a run that"
            " timed starts"
        )
    if asked.balance not in list(Balancer):
        raise UsageError(f"--balance is {asked.balance!r}; expected {', '.join(Balancer)}")
    try:
        scaling = Scaling(
            places=asked.places,
            least=asked.least,
            most=asked.most,
            target_ratio=read_option("--target-load", asked.target_load, parse_percent_ratio),
            look_s=read_option("--look", asked.look, parse_span_s),
            cooldown_s=read_option("--cooldown", asked.cooldown, parse_span_s),
            cold_start_s=0.0 if cold_start_s is None else cold_start_s,  # of a fleet that never grows it is not asked
            balance=Balancer(asked.balance),
        )
        wait_s = read_option("--wait", asked.wait, parse_span_s)
        generator = np.random.default_rng(asked.seed)
        service = Service(service_s, asked.request_cv)
        require_slots(fleet.replica.per_s, service_s, asked.places)
        usd_per_hour = fleet.replica.usd_per_hour
        return simulate_hours(hours, service, scaling, wait_s=wait_s, usd_per_hour=usd_per_hour, generator=generator)
    except ValueError as error:
        raise UsageError(f"this cannot be replayed: {by_option(error)}") from None
