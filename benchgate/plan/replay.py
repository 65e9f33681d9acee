"""Recorded traffic played again: which rows of a trace a stage sends, and when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """One row of a trace: when it came, in ns since the first row, and its lengths where the trace says them.

    `hash_ids` stand for the blocks of its prompt, in order: prompts that begin with equal ones begin alike. `line` is
    where it stands in its file, from 1.
    """

    at_ns: int
    input_tokens: int | None
    output_tokens: int | None
    hash_ids: tuple[int, ...] = ()
    line: int | None = field(default=None, compare=False)


def replayed_rows(trace: Sequence[TracedRequest], count: int, block: int, blocks: int) -> Sequence[TracedRequest]:
    """The rows that a block sends: its own stretch of the trace where there is one for each block, else the first.

    Stretches of their own make the blocks speak for more of the traffic; with fewer rows every block plays the same
    ones, and says so much the less about others. ValueError when the trace has fewer rows than one block sends.
    """
    if len(trace) < count:
        raise ValueError(f"the trace has {len(trace):,} rows and a block sends {count:,}")
    first = block * count if len(trace) >= blocks * count else 0
    return trace[first : first + count]


def replayed_offsets_ns(rows: Sequence[TracedRequest], speed: float) -> tuple[int, ...]:
    """Intended sends in ns since the start of the stage: the first row at 0, gaps as recorded divided by `speed`."""
    return tuple(round((row.at_ns - rows[0].at_ns) / speed) for row in rows)
