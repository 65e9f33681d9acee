"""Two regions with dask clusters of their own, one of them 30 ms away from the servers: a whole run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.alone, pytest.mark.slow]


def namespaces() -> bool:
    """Return True if this user may have mounts of its own, which a worker's hosts file needs."""
    user = [] if os.geteuid() == 0 else ["-r"]
    try:
        return subprocess.run(["unshare", *user, "-m", "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(not namespaces(), reason="needs unshare (util-linux) and the right to mount")
def test_far_region_alone_is_slower_in_a_valid_run_and_a_burst_with_a_far_clock_is_invalid() -> None:
    command = [sys.executable, "-m", "benchmarks.regions", "--json", "--busy"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=590, check=False)
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    steady, burst = found["steady"], found["burst"]
    assert steady["outcome"] != "INVALID", steady["reason"]
    near, far = (steady["regions"][name] for name in ("near", "far"))
    for arm in ("baseline", "candidate"):
        assert far["ttft_ms"][arm] - near["ttft_ms"][arm] > 50  # of 60; a busy machine adds to both
    assert (near["connected"], far["connected"]) == (["127.0.0.1"], ["127.0.0.2"])
    assert burst["outcome"] == "INVALID"
    assert "(far)" in burst["reason"] and "cannot be started within 5 ms" in burst["reason"]
