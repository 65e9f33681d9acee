"""Clock, run ids, facts of this machine, and the client profile of its load generator."""

from __future__ import annotations

import os
import platform
import secrets
import time
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from benchgate import __version__
from benchgate.errors import StoreError
from benchgate.model.client import ClientProfile, machine_fingerprint
from benchgate.model.run import new_run_id
from benchgate.store.missing import is_absent
from benchgate.system import usable_cpus

if TYPE_CHECKING:
    from benchgate.store.repository import Store

_LIBRARIES = ("numpy", "scipy", "sqlalchemy", "uvloop", "lm_eval", "xllamacpp")


def utc_now() -> str:
    """Return the current time, RFC 3339 in UTC with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def fresh_run_id() -> str:
    """Return an id for a run that starts now."""
    return new_run_id(time.time_ns() // 1_000_000, secrets.token_bytes(10))


def environment_facts() -> dict[str, object]:
    """Return facts of the load generator's machine and its software; no host name, user or path."""
    governor = {}
    with suppress(OSError):
        file = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
        governor["cpu_governor"] = file.read_text(encoding="utf-8").strip()
    return {
        "os": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cpu": _cpu_model(),
        "cpus": os.cpu_count(),
        "load_average_1min": round(os.getloadavg()[0], 2),
        **governor,
        "python": platform.python_version(),
        "libraries": {name: version for name in _LIBRARIES if (version := _version(name)) is not None},
    }


def client_machine() -> dict[str, object]:
    """Return the facts that the speed of the load generator depends on: processor, usable cores, system, software."""
    from benchgate.load.http.library import library

    return {
        "cpu": _cpu_model(),
        "machine": platform.machine(),
        "cpus": usable_cpus(),
        "os": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "uvloop": _version("uvloop"),
        "benchgate": __version__,
        "reads": "in Python" if library() is None else "compiled",
    }


def known_client(store: Store) -> ClientProfile | None:
    """Return the client profile that was last measured on this machine; None without one."""
    return store.client_profile(machine_fingerprint(client_machine()))


def known_client_at(store_address: str) -> ClientProfile | None:
    """Return the client profile without writing; a store that is missing, old or unreadable counts as empty."""
    if is_absent(store_address):
        return None
    from benchgate.store.repository import Store  # slow to import

    try:
        store = Store.open_as_is(store_address)
        if store is None:
            return None
        with store:
            return known_client(store)
    except StoreError:
        return None


def _cpu_model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or None
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), None)


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
