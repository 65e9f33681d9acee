"""How much load: a closed loop of so many at once, or an open loop at a rate."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

_GUESSED_ANSWER_S = 0.1


@dataclass(frozen=True, slots=True)
class Level:
    """One load level: a closed loop of `concurrency` slots, or an open loop at `rate_rps`.

    With `issue_until_s` nothing measured is sent later than that after the start, in a closed loop after the first
    measured request; requests not sent by then were never part of the stage and leave no record.
    """

    concurrency: int | None
    rate_rps: float | None
    issue_until_s: float | None = None
    slots: int | None = None  # of all workers together, where this is one worker's share
    worker: int = 0
    workers: int = 1

    @property
    def slot_numbers(self) -> range:
        """Numbers of this worker's slots among those of all workers; empty for an open loop."""
        return range(self.worker, self.all_slots, self.workers)

    @property
    def all_slots(self) -> int:
        """Slots of all workers together; 0 for an open loop."""
        return (self.concurrency or 0) if self.slots is None else self.slots

    @property
    def connections(self) -> int:
        """How many are opened before the start; an open loop adds more as it needs them.

        What is open and idle costs the server: one that keeps a thread per connection (llama.cpp) leaves requests on
        the connections beyond its threads unanswered until another one is closed or used. So an open loop starts with
        about as many as are in flight when an answer takes a tenth of a second.
        """
        if self.concurrency is not None:
            return self.concurrency
        return max(1, min(64, math.ceil((self.rate_rps or 0) * _GUESSED_ANSWER_S)))

    def share(self, worker: int, workers: int) -> Level:
        """The part of one of `workers`: slot i goes to worker i modulo their number."""
        if self.concurrency is not None:
            slots = len(range(worker, self.concurrency, workers))
            return replace(self, concurrency=slots, slots=self.concurrency, worker=worker, workers=workers)
        return replace(self, rate_rps=(self.rate_rps or 0) / workers)
