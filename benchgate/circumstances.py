"""When and on what a run happens: the clock, a new run id, the machine. Everything here is asked once, at the start."""

from __future__ import annotations

import os
import platform
import secrets
import time
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from benchgate.model.run import new_run_id

_LIBRARIES = ("numpy", "scipy", "sqlalchemy", "uvloop", "lm_eval", "xllamacpp")


def utc_now() -> str:
    """Now, RFC 3339 in UTC with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def fresh_run_id() -> str:
    """An id for a run that starts now."""
    return new_run_id(time.time_ns() // 1_000_000, secrets.token_bytes(10))


def environment_facts() -> dict[str, object]:
    """The load generator's machine and the versions that made the numbers. No host name, user or path."""
    return {
        "os": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cpu": _cpu_model(),
        "cpus": os.cpu_count(),
        "load_average_1min": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "libraries": {name: version for name in _LIBRARIES if (version := _version(name)) is not None},
    }


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
