"""What holds for every test."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# The same examples every time and no time limit of their own: a shared machine must not decide what a test says.
settings.register_profile("the same every time", derandomize=True, deadline=None)
settings.load_profile("the same every time")


def pytest_configure() -> None:
    """Tests that interrupt themselves work in the background too, where a shell makes a command ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages without charts, which have tests of their own and cost most of a rendering's time."""
    from benchgate.report import html
    from benchgate.report.figures import Figures
    from benchgate.report.view import ReportView

    def none(view: ReportView) -> Figures:
        return Figures()

    monkeypatch.setattr(html, "figures_of", none)


SAMPLES_ARE_OVER = "2098-01-02T00:00:00.000Z"
_MEASURE = Path(__file__).parent / "e2e"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole runs are judged by what they measured; beside another test the load generator would be the bottleneck."""
    for item in items:
        if _MEASURE in item.path.parents and item.get_closest_marker("beside") is None:
            item.add_marker(pytest.mark.alone)


@pytest.fixture(scope="session", autouse=True)
def the_samples_are_of_the_past() -> Iterator[None]:
    """Samples have fixed days, and a store takes nothing of a time to come: by its clock they are over on any day."""
    from benchgate.store import clock

    by_the_database = clock.latest
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(clock, "latest", lambda connection: max(by_the_database(connection), SAMPLES_ARE_OVER))
        yield
