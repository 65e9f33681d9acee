"""Everything that the measurements of one run share: its suite, plan, folders, and what is complete of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchgate.model.verdict import Waivers
from benchgate.pipeline.checkpoint import NOTHING_COMPLETED, Completed
from benchgate.pipeline.progress import Progress
from benchgate.plan.schedule import Plan
from benchgate.suite.schema import Suite


@dataclass(frozen=True, slots=True)
class Work:
    """Everything needed to measure a run. Paths in the suite are relative to `suite_dir`.

    The load comes from `workers` processes of this machine, or from the workers of a cluster whose dask scheduler has
    the address `cluster`. Interim looks judge it with `waivers`. `salt` varies the words of the load's prompts; 0 sends
    them as planned. `completed` is what earlier sessions of the run measured, and `session` counts them.
    """

    suite: Suite
    suite_dir: Path
    plan: Plan
    log_dir: Path
    weights_dir: Path
    progress: Progress
    waivers: Waivers | None = None
    workers: int = 1
    cluster: str | None = None
    salt: int = 0
    completed: Completed = NOTHING_COMPLETED
    session: int = 0

    @property
    def clusters(self) -> str | Mapping[str, str] | None:
        """Return the scheduler of the cluster that sends the load, or those of its regions; None for this machine."""
        return self.cluster or self.suite.regions or None

    @property
    def starts_left(self) -> bool:
        """Return True if starts of the servers remain to be measured: they come before anything else."""
        return self.suite.start is not None and self.completed.starts < self.suite.start.times
