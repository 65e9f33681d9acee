"""What a plan is told beside itself: the policy's checks made concrete, and what is known of the deployments before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from benchgate.model.noise import NoiseProfile, Spread
from benchgate.suite.metric_kinds import spread_of
from benchgate.suite.schema import Check


@dataclass(frozen=True, slots=True)
class JudgedCheck:
    """One check as the gate will judge it, under the gate's own name for it.

    `stage` is the place of the load, `tasks` the names of the tasks that it judges together; `target_ratio` is what a
    goodput without a bound of its own is held to.
    """

    id: str
    check: Check
    statistic: str | None = None
    stage: str | None = None
    tasks: tuple[str, ...] = ()
    target_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Earlier:
    """A complete run of the same measurement: so many blocks of load, and how long all of it took."""

    run_id: str
    finished_at: str
    blocks: int
    took_s: float


@dataclass(frozen=True, slots=True)
class Known:
    """What the store tells of how much the baseline differs from itself, and of how long such a run takes.

    `noise` comes from a calibration, or from a `run` of both arms, whose pairs vary as the next one's will. Only a
    calibration that is not too old is proof enough to refuse anything.
    """

    noise: NoiseProfile | None = None
    noise_from: Literal["calibration", "stale calibration", "run"] = "calibration"
    earlier: Earlier | None = None

    @property
    def noise_source(self) -> str:
        """Where the spreads are from, for a person; empty without any."""
        if self.noise is None:
            return ""
        day = self.noise.measured_at[:10]
        if self.noise_from == "run":
            return f"run {self.noise.run_id} of {day}"
        return f"{'stale ' if self.noise_from == 'stale calibration' else ''}noise profile of {day}"

    @property
    def calibrated(self) -> bool:
        """Whether its spreads are those of a calibration that still holds."""
        return self.noise is not None and self.noise_from == "calibration"

    def spread(self, metric: str, statistic: str | None, stage: str | None) -> Spread | None:
        """The spread of one number of a block; None where nobody measured it."""
        return None if self.noise is None or stage is None else self.noise.spread(spread_of(metric), statistic, stage)


NOTHING_KNOWN = Known()
