"""Who is in a cluster: connecting to it, its workers, and whether they may take part in a load test."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, TypeAlias

from benchgate.errors import ClusterError, UsageError, lacking
from benchgate.targets.address import ServerAddress

Client: TypeAlias = Any
"""A `distributed.Client`: that library loads late and is typed in parts. Methods are coroutines in its own loop."""

_CONNECT_S = 10
_ANSWER_S = 30.0
_LOOPBACK = ("localhost", "::1", "0.0.0.0", "::")
_SAMPLES = 20
_ENOUGH_NS = 500_000  # of uncertainty: more samples would not help


@dataclass(frozen=True, slots=True)
class Clock:
    """Another machine's clock of day against ours: theirs - ours, and by how much that may be wrong."""

    offset_ns: int
    uncertainty_ns: int


def require_distributed() -> None:
    """UsageError when dask.distributed is not installed; cheap, so that it can be asked before any request is sent."""
    if find_spec("distributed") is None:
        raise UsageError(lacking("--cluster needs dask.distributed, which is not installed", "cluster"))


def connected(address: str) -> Client:
    """A client of the scheduler at this address; TLS and the rest of it as dask's own settings say.

    Raises UsageError without dask.distributed or with no address, ClusterError when nobody answers.
    """
    require_distributed()
    from benchgate.load.cluster_client import SchedulerClient  # takes most of a second

    try:
        return SchedulerClient(  # type: ignore[no-untyped-call]  # distributed is typed in parts
            address, timeout=_CONNECT_S, set_as_default=False, name="benchgate"
        )
    except ValueError as error:
        raise UsageError(
            f"--cluster: {address!r} is not a scheduler's address ({error}); write tcp://HOST:8786"
        ) from error
    except (OSError, TypeError) as error:
        raise ClusterError(
            f"no scheduler answers at {address}: {error}; see that it runs there, and that tls:// addresses have their "
            "certificates in dask's settings"
        ) from error


async def workers_now(client: Client) -> dict[str, str]:
    """Every worker by address, `running` or what else it is. Raises ClusterError when the scheduler is lost."""
    lost = ClusterError("the cluster's scheduler was lost; what is stored stays. Start the cluster and run again")
    if client.status != "running":  # it would go on trying, but what was under way is gone
        raise lost
    try:
        known = await asyncio.wait_for(client.scheduler.identity(n_workers=-1), _ANSWER_S)
    except (OSError, TimeoutError, AttributeError) as error:  # a closed client has no scheduler
        raise lost from error
    return {address: worker["status"] for address, worker in known["workers"].items()}


async def versions_fit(client: Client, addresses: Sequence[str]) -> None:
    """Raises ClusterError when a worker runs another benchgate, or another minor version of Python, than this."""
    told = await answered(client.get_versions(packages=["benchgate"]))
    ours = _versions(told["client"])
    for address in addresses:
        theirs = _versions(told["workers"].get(address))
        if theirs != ours or None in theirs:
            raise ClusterError(
                f"worker {address} runs {_shown(theirs)}, and this is {_shown(ours)}: "
                "install the same on both, or the parts of one load would not be alike"
            )


async def reach_fits(client: Client, addresses: Sequence[str], url: str) -> None:
    """Raises ClusterError when the server has an address of this machine that means another one to a worker."""
    server = ServerAddress.of(url)
    if not (server.host in _LOOPBACK or server.host.startswith("127.")):  # a Unix socket is at localhost too
        return
    here = host_name()
    hosts = await answered(client.run(host_name, workers=list(addresses)))
    for address, host in hosts.items():
        if host != here:
            raise ClusterError(
                f"{server.shown} is an address of this machine alone, and worker {address} runs on another one, "
                f"{host}: give the server an address that all workers reach"
            )


def host_name() -> str:
    """What the machine that this is called on calls itself."""
    return socket.gethostname()


async def clock_of(client: Client, address: str) -> Clock | None:
    """A worker's clock by round trips, as in NTP (RFC 5905, 8); None when it does not answer.

    Of several the shortest round trip counts: its answer was made at some moment of it, so half of it is how far the
    offset may be off, however uneven the ways are.
    """
    best: Clock | None = None
    for _ in range(_SAMPLES):
        asked_ns, asked_at = time.time_ns(), time.monotonic_ns()
        try:
            told = await asyncio.wait_for(client.run(time.time_ns, workers=[address]), _ANSWER_S)
        except (OSError, TimeoutError):
            return best
        half_ns = (time.monotonic_ns() - asked_at) // 2
        if best is None or half_ns < best.uncertainty_ns:
            best = Clock(told[address] - asked_ns - half_ns, half_ns)
        if best.uncertainty_ns <= _ENOUGH_NS:
            break
    return best


async def answered(asked: Any) -> Any:
    """What workers say to something that takes no time. Raises ClusterError when one of them does not answer."""
    try:
        return await asyncio.wait_for(asked, _ANSWER_S)
    except (OSError, TimeoutError) as error:
        why = str(error) or f"not within {_ANSWER_S:.0f} s"
        raise ClusterError(f"the cluster's workers do not answer: {why}; see that they run, and run again") from error


def _versions(told: Mapping[str, Any] | None) -> tuple[str | None, str | None]:
    """Of benchgate, and of Python up to its minor version."""
    packages = {} if told is None else told["packages"]
    python = packages.get("python")
    return packages.get("benchgate"), None if python is None else ".".join(python.split(".")[:2])


def _shown(versions: tuple[str | None, str | None]) -> str:
    benchgate, python = versions
    return f"benchgate {benchgate or '(not installed)'} on Python {python or '(unknown)'}"
