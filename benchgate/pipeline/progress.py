"""Progress of a run, for whoever watches it."""

from __future__ import annotations


class Progress:
    """Listener to the progress of a run. Every method does nothing here: override those of interest."""

    def begin(self, phase: str, steps: int) -> None:
        """Take the start of a phase of `steps` steps."""

    def step(self, done: str) -> None:
        """Take the end of a step of the phase, which is stored."""

    def status(self, line: str) -> None:
        """Take the reason for a delay, which replaces the one before."""

    def note(self, line: str) -> None:
        """Take a warning or a finding, which stays."""
