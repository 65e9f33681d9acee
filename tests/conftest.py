"""What holds for every test."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Tests that interrupt themselves work in the background too, where a shell makes a command ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
