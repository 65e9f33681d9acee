"""A stage as it went: what became of the requests of each class of traffic in it, and what the client spent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from benchgate.model.records import RequestColumns
from benchgate.model.run import ClientUse


def no_rows() -> RequestColumns:
    """Columns of no request."""
    return RequestColumns.pack([])


@dataclass(frozen=True, slots=True, eq=False)
class ClassResult:
    """One class of traffic. `requests` are the measured ones, `left` those broken off on purpose.

    `ramp` are those that were sent to bring the stage into steady state and to hold it there. `window_s` runs from the
    first intended send to the last end or intended send of `requests`. Where `in_steady_state`, for a closed loop that
    was held full, it is the time in which the measured requests began: up to the first intended send after them.
    """

    name: str  # "" when the stage has no other
    requests: RequestColumns
    window_s: float
    left: RequestColumns = field(default_factory=no_rows)
    ramp: RequestColumns = field(default_factory=no_rows)
    in_steady_state: bool = False

    @property
    def recorded(self) -> int:
        """How many requests have a record."""
        return len(self.requests) + len(self.left) + len(self.ramp)


@dataclass(frozen=True, slots=True, eq=False)
class StageResult:
    """A stage, class by class.

    `down_after_s`: how long after the start the target stopped accepting connections, when it was given up for that.
    What was due later was not even tried, and in a closed loop for a time is in no record.
    """

    classes: tuple[ClassResult, ...]
    client: ClientUse
    down_after_s: float | None = None

    @classmethod
    def of(
        cls, requests: RequestColumns, window_s: float, client: ClientUse, down_after_s: float | None = None
    ) -> Self:
        """Of a stage that has one class of traffic, which nobody left."""
        return cls((ClassResult("", requests, window_s),), client, down_after_s)

    @property
    def only(self) -> ClassResult:
        """The one class of a stage that has no other; ValueError for a stage of several."""
        if len(self.classes) != 1:
            raise ValueError(f"the stage has {len(self.classes)} classes of traffic, not one")
        return self.classes[0]

    @property
    def requests(self) -> RequestColumns:
        """Those of its only class."""
        return self.only.requests

    @property
    def window_s(self) -> float:
        """That of its only class."""
        return self.only.window_s
