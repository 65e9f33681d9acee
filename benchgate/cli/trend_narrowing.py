"""Which points of a trend are wanted, by the model, the engine or the hardware that the run remembers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from benchgate.errors import UsageError

if TYPE_CHECKING:
    from benchgate.model.run import TrendPoint

_ENDS_OF_WORDS = ("@", " ", ": ")


def narrowed(points: Sequence[TrendPoint], metric: str, asked: Mapping[str, str | None]) -> list[TrendPoint]:
    """The points of what is asked for by `model`, `engine` and `hardware`; None is any.

    A text is asked for whole or by its first words: `vllm` is every version of it, `org/name` every revision, `this
    machine` each that is one. Raises UsageError for one that no point is of, with those that there are.
    """
    kept = list(points)
    for what, name in asked.items():
        if name is None or not kept:
            continue
        there = dict.fromkeys(point.series(what) for point in kept)
        kept = [point for point in kept if _is(point.series(what), name)]
        if not kept:
            raise UsageError(f"no stored run has {metric} of {what} {name!r}; {nearest_of(name, list(there))}")
    return kept


def _is(told: str, name: str) -> bool:
    return told == name or (bool(name) and told.startswith(tuple(f"{name}{end}" for end in _ENDS_OF_WORDS)))


def nearest_of(name: str, there: Sequence[str]) -> str:
    """The one that is most like what was asked for, whole or by its first words, or all that there are."""
    import difflib

    beginnings = (one for whole in there for one in (whole, *(whole.rpartition(end)[0] for end in _ENDS_OF_WORDS)))
    words = {one.casefold(): one for one in beginnings if one}
    near = [words[one] for one in difflib.get_close_matches(name.casefold(), words, n=1)]
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(there)}"
