"""What holds for every test."""

from __future__ import annotations

import signal
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


_MEASURE = Path(__file__).parent / "e2e"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole runs are judged by what they measured; beside another test the load generator would be the bottleneck."""
    for item in items:
        if _MEASURE in item.path.parents and item.get_closest_marker("beside") is None:
            item.add_marker(pytest.mark.alone)
