"""Between two looks at the load: decide from what is on disk whether to measure on, write it down and say so."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict

from benchgate.gate.interim import ContinueLoad, StopLoad, limit_passed, next_step
from benchgate.gate.reasons import show_numbers
from benchgate.model.run import LOAD_ENDED, LOOK, Evidence, LoadEnd
from benchgate.model.verdict import CheckResult, Outcome, Waivers
from benchgate.store.repository import RunWriter
from benchgate.suite.load import Load
from benchgate.suite.schema import Suite


class Looks:
    """The looks at one run's load, in order; its clock starts when it is made, before the load.

    `before_s` is what earlier sittings of the run spent on it, which a limit of the suite counts too.
    """

    def __init__(
        self,
        suite: Suite,
        load: Load,
        so_far: Callable[[], Evidence],
        waivers: Waivers | None,
        writer: RunWriter,
        note: Callable[[str], None],
        before_s: float = 0.0,
    ) -> None:
        self._suite = suite
        self._load = load
        self._so_far = so_far
        self._waivers = waivers
        self._writer = writer
        self._note = note
        self._begun_s = time.monotonic() - before_s
        self._first_block_s = self._begun_s if before_s else None

    def begin_block(self) -> None:
        """A block begins: from the first one on, blocks tell how long those to come will take."""
        if self._first_block_s is None:
            self._first_block_s = time.monotonic()

    def end_after(self, blocks: int) -> bool:
        """Whether the load ends after so many blocks; between two looks, and of a fixed number of blocks, never."""
        step = next_step(self._suite, self._so_far(), self._waivers) if blocks in self._load.looks else None
        if step is None:
            return False
        end = (
            LoadEnd(blocks, self._load.blocks, step.reason)
            if isinstance(step, StopLoad)
            else self._over_limit(step, blocks)
        )
        self._writer.event(LOOK, self._told(blocks, step, end))
        if end is not None:
            self._writer.event(LOAD_ENDED, asdict(end))
        self._note(f"after {blocks} block{'s' if blocks > 1 else ''}: {_words(step, end)}")
        return end is not None

    def _over_limit(self, step: ContinueLoad, blocks: int) -> LoadEnd | None:
        """The end of the load where the next look, as long as the blocks so far took, would pass the suite's limit."""
        now_s = time.monotonic()
        first_s = self._first_block_s if self._first_block_s is not None else self._begun_s
        next_s = (now_s - first_s) / blocks * (step.blocks - blocks)
        passed = limit_passed(self._suite, now_s - self._begun_s, next_s)
        return LoadEnd(blocks, self._load.blocks, passed) if passed is not None else None

    def _told(self, blocks: int, step: StopLoad | ContinueLoad, end: LoadEnd | None) -> dict[str, object]:
        return {
            "blocks": blocks,
            "of": self._load.blocks,
            "after_s": round(time.monotonic() - self._begun_s, 3),
            "checks": [_outcome(check) for check in step.checks],
            "then": f"on to {step.blocks}" if isinstance(step, ContinueLoad) and end is None else "ended",
        }


def _outcome(check: CheckResult) -> dict[str, object]:
    return {"id": check.id, "required": check.required, "outcome": check.shown, "reason": check.reason}


def _words(step: StopLoad | ContinueLoad, end: LoadEnd | None) -> str:
    """`ttft-p50@c4 still open (+1.2 %, -3.0 to +5.4, margin 5 %); measuring up to 10`."""
    if isinstance(step, ContinueLoad):
        first, more = step.undecided[0], len(step.undecided) - 1
        others = f" and {more} more" if more else ""
        what = f"{first.id} still open ({show_numbers(first)}){others}"
        if end is None:
            return f"{what}; measuring up to {step.blocks}"
        return f"{what}; up to {step.blocks} would pass the limit of {end.why}, so the load ends here"
    return f"{_ENDS[step.reason]}{_blocking(step.checks)}"


def _blocking(checks: Sequence[CheckResult]) -> str:
    blocked = [check.id for check in checks if check.required and check.counted is Outcome.BLOCK]
    return f" ({', '.join(blocked)} blocked)" if blocked else ""


_ENDS = {
    "decided": "settled, so the load ends here",
    "invalid": "what is not settled is INVALID as it was at the look before, so the load ends here",
    "last": "that was the last look",
}
