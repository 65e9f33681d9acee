"""What was seen of two models reading the same fixed texts: one record per position, and their packing into columns.

What each arm listed is not kept, only what it comes to: the lists are large, and they would tell the texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np

from benchgate.model.records import ABSENT, ColumnMap

Way = Literal["echo", "n_probs", "cut"]
"""How a server is brought to tell: the probabilities of the text itself (`echo`), llama.cpp's own endpoint
(`n_probs`), or a completion of one token after the text cut off at a position (`cut`)."""


@dataclass(frozen=True, slots=True)
class DivergenceItem:
    """One position of one piece of a fixed text, as both arms saw it: everything before it was given, not generated.

    `position` is the number of the token in the piece; where a text was cut (`cut`) the number of characters before it.
    `kld` is KL(baseline || candidate) of the next token in nats, or, where `bound`, a lower bound of it. `same_top1`:
    both hold the same token for the most probable. `shared` is how many of the tokens that one listed the other listed
    too. `baseline_ln` and `candidate_ln` are ln p of the token that stands in the text; None where the way cannot tell
    it. `floor_*` are the same of the baseline against itself, asked once more; None where it was not.
    """

    text_id: str
    piece: int
    position: int
    kld: float
    same_top1: bool
    bound: bool
    shared: int
    baseline_ln: float | None
    candidate_ln: float | None
    floor_kld: float | None = None
    floor_same_top1: bool | None = None

    @property
    def place(self) -> tuple[str, int, int]:
        """What it is paired by between two runs."""
        return self.text_id, self.piece, self.position


@dataclass(frozen=True, slots=True)
class DivergenceObservation:
    """The reading of the fixed texts by both arms. `fault` is set when a part of it failed; the rest is kept.

    `way` is None when no way was found. `top` is how many tokens were asked for at each position, and all of the
    vocabulary where that is known to be no more (`whole`). `passed_over` says why a stronger way was not taken.
    """

    items: tuple[DivergenceItem, ...]
    expected_n: int
    fault: str | None
    way: Way | None
    top: int
    whole: bool
    passed_over: tuple[str, ...] = ()


_FLOATS = ("kld", "baseline_ln", "candidate_ln", "floor_kld")
_TEXTS = ("text_id",)
_LATER = ("floor_kld", "floor_same_top1")  # no column where the baseline was asked once


def pack_divergence(items: Sequence[DivergenceItem]) -> ColumnMap:
    """Columns by name, for the store: None is NaN in a column of floats and ABSENT in one of integers."""
    columns: dict[str, Any] = {}
    for field in fields(DivergenceItem) if items else ():
        values = [getattr(item, field.name) for item in items]
        if field.name in _LATER and all(value is None for value in values):
            continue
        if field.name in _TEXTS:
            columns[field.name] = tuple(values)
        elif field.name in _FLOATS:
            columns[field.name] = np.array([np.nan if v is None else v for v in values], dtype=np.float64)
        else:
            columns[field.name] = np.array([ABSENT if v is None else int(v) for v in values], dtype=np.int64)
    return columns


def unpack_divergence(columns: ColumnMap) -> tuple[DivergenceItem, ...]:
    """The inverse of `pack_divergence`."""
    plain = {name: _values(name, column) for name, column in columns.items()}
    rows = zip(*plain.values(), strict=True)
    return tuple(DivergenceItem(**dict(zip(plain, row, strict=True))) for row in rows)


def _values(name: str, column: Any) -> list[Any]:
    if name in _TEXTS:
        return list(column)
    if name in _FLOATS:
        return [None if np.isnan(value) else float(value) for value in column]
    known = [None if value == ABSENT else int(value) for value in column]
    return [None if v is None else bool(v) for v in known] if name in _TRUTHS else known


_TRUTHS = ("same_top1", "bound", "floor_same_top1")


def divergence_meta(seen: DivergenceObservation) -> dict[str, object]:
    """Everything of an observation but its items, as plain JSON."""
    return {
        "expected_n": seen.expected_n,
        "fault": seen.fault,
        "way": seen.way,
        "top": seen.top,
        "whole": seen.whole,
        "passed_over": list(seen.passed_over),
    }


def divergence_of(items: tuple[DivergenceItem, ...], meta: Mapping[str, Any]) -> DivergenceObservation:
    """The inverse of `divergence_meta`, with the items put back."""
    return DivergenceObservation(items, **{**meta, "passed_over": tuple(meta["passed_over"])})
