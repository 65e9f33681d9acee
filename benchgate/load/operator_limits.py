"""Limits that the operator of a load machine sets for every load sent from it. No suite and no option lifts them.

They are in `/etc/benchgate/load-limits.yaml`, and in a file that BENCHGATE_LOAD_LIMITS names. Both hold:

    hosts: ["*.staging.example", "10.0.0.7:8000"]
    rate: 500/s
    concurrency: 2000
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from pydantic import ValidationError

from benchgate.errors import LimitError, Problem, SuiteError
from benchgate.load.shards import Shard
from benchgate.suite.messages import Slot, faults_of
from benchgate.suite.types import Rate, Section, Text, Whole, key
from benchgate.suite.yaml import read_text
from benchgate.system import read_text_file
from benchgate.targets.address import ServerAddress
from benchgate.units import show_number

VARIABLE = "BENCHGATE_LOAD_LIMITS"
_SYSTEM_FILE = Path("/etc/benchgate/load-limits.yaml")


class OperatorLimits(Section):
    """Limits of all workers of a load together; a key that is left out limits nothing."""

    hosts: tuple[Text, ...] | None = key(
        "Hosts, or host:port, that may be loaded; `*` stands for any text.", default=None
    )
    rate_rps: Rate | None = key("Most requests per second.", default=None, alias="rate", gt=0)
    concurrency: Whole | None = key("Most requests in flight of a closed loop.", default=None, ge=1)


def read_limits(path: Path) -> OperatorLimits:
    """Read a file of limits. Raises SuiteError with every problem, also for a file that cannot be read."""
    try:
        document = read_text(read_text_file(path), str(path), "file of limits")
    except (OSError, UnicodeDecodeError) as error:
        what = f"the operator's limits cannot be read ({error}); mend the file, or unset {VARIABLE}"
        raise SuiteError([Problem(str(path), None, None, "", what)]) from error
    if document.problems:
        raise SuiteError(document.problems)
    try:
        return OperatorLimits.model_validate(document.data)
    except ValidationError as error:
        faults = faults_of(error, Slot(OperatorLimits, ()))
        raise SuiteError([document.problem(fault) for fault in faults]) from None


def require_allowed(shard: Shard, environment: Mapping[str, str] = os.environ) -> float | None:
    """Check a stage against the operator's limits before anything is sent. Raises LimitError and SuiteError.

    Returns the rate per second that this worker must not pass: a closed loop's rate is known only as it runs. None
    without such a limit.
    """
    caps_rps = []
    for path in _files(environment):
        limits = read_limits(path)
        server = ServerAddress.of(shard.loaded_url)
        names = {server.host, server.host if server.port is None else f"{server.host}:{server.port}"}
        if limits.hosts is not None and not any(fnmatchcase(name, host) for name in names for host in limits.hosts):
            raise LimitError(
                f"{path} allows load on {', '.join(limits.hosts) or 'no host'}, and this is {server.shown}"
            )
        levels = [part.level for part in shard.parts]
        slots = sum(level.all_slots for level in levels)
        if limits.concurrency is not None and slots > limits.concurrency:
            raise LimitError(f"{path} allows {limits.concurrency:,} requests in flight, and this load has {slots:,}")
        rate_rps = sum(level.rate_rps or 0.0 for level in levels) * shard.workers
        if limits.rate_rps is not None and rate_rps > limits.rate_rps:
            most, found = show_number(limits.rate_rps), show_number(rate_rps)
            raise LimitError(f"{path} allows {most} requests/s, and this load has {found}")
        if limits.rate_rps is not None:
            caps_rps.append(limits.rate_rps / shard.workers)
    return min(caps_rps, default=None)


def _files(environment: Mapping[str, str]) -> Iterator[Path]:
    if _SYSTEM_FILE.exists():
        yield _SYSTEM_FILE
    if environment.get(VARIABLE):
        yield Path(environment[VARIABLE])
