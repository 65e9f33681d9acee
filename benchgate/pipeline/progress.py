"""Progress of a run, for whoever watches it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchgate.load.live import LiveFigures
    from benchgate.model.deployment import Arm


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of a run. Step n takes about as long as step n - `cycle`. A phase `at_most` so long may end earlier."""

    name: str
    steps: int
    cycle: int = 1
    at_most: bool = False


class Progress:
    """Listener to the progress of a run. Every method does nothing here: override those of interest.

    `watches_requests` asks for the figures of a stage under way, about once a second.
    """

    watches_requests = False

    def begin(self, phase: Phase) -> None:
        """Take the start of a phase."""

    def follow(self, parts: Sequence[str]) -> None:
        """Take what is measured after the load, like `800 eval items`."""

    def step(self, done: str) -> None:
        """Take the end of a step of the phase, which is stored."""

    def items(self, done: int, total: int) -> None:
        """Take the number of items answered so far, in a phase with few and long steps."""

    def status(self, line: str) -> None:
        """Take the reason for a delay, which replaces the one before."""

    def note(self, line: str) -> None:
        """Take a warning or a finding, which stays."""

    def look(self, line: str) -> None:
        """Take the number of checks that the last interim analysis settled."""

    def stage(self, arm: Arm, stage: str, place: str) -> None:
        """Take the start of an execution of a stage on an arm; `place` is its block or look, like `block 3 of 10`."""

    def figures(self, figures: LiveFigures) -> None:
        """Take the figures of the execution under way."""

    def executed(self, figures: LiveFigures, billed_usd: float) -> None:
        """Take the figures of an execution at its end, and the price of its tokens where tokens have one."""

    def price(self, usd_per_hour: float) -> None:
        """Take the price of the deployments that are paid by the hour."""
