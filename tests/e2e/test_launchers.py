"""Real launchers: sshd and Slurm on this machine, started for the test, send what one process would."""

from __future__ import annotations

import pytest

from benchmarks.launchers import LAUNCHERS, AbsentError, Sent, send

pytestmark = [pytest.mark.beside, pytest.mark.slow]  # requests are counted, and no time decides


@pytest.fixture(scope="module")
def alone() -> Sent:
    """The load of one local process."""
    with LAUNCHERS["local processes"]() as launch:
        return send(launch, 1)


@pytest.mark.parametrize("name", ["local processes", "SSH", "Slurm"])
def test_launcher_sends_the_same_requests_over_two_shards(name: str, alone: Sent) -> None:
    try:
        with LAUNCHERS[name]() as launch:
            sent = send(launch, 2)
    except AbsentError as absent:
        pytest.skip(f"needs {absent}")
    assert (sent.requests, sent.union) == (alone.requests, alone.union)
    assert len(sent.figures) == 1
