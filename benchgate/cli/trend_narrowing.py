"""Which points of a trend are wanted, by the model, the engine or the hardware that the run remembers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from benchgate.errors import UsageError

if TYPE_CHECKING:
    from benchgate.model.run import TrendPoint

_ENDS_OF_WORDS = ("@", " ")


def narrowed(points: Sequence[TrendPoint], metric: str, asked: Mapping[str, str | None]) -> list[TrendPoint]:
    """The points of what is asked for by `model`, `engine` and `hardware`; None is any.

    A text is asked for whole or by its first words: `vllm` is every version of it, `org/name` every revision. Raises
    UsageError for one that no point is of, with those that there are.
    """
    kept = list(points)
    for what, name in asked.items():
        if name is None or not kept:
            continue
        there = dict.fromkeys(point.series(what) for point in kept)
        kept = [point for point in kept if _is(point.series(what), name)]
        if not kept:
            raise UsageError(f"no stored run has {metric} of {what} {name!r}; {_nearest(name, list(there))}")
    return kept


def _is(told: str, name: str) -> bool:
    return told == name or (bool(name) and told.startswith(tuple(f"{name}{end}" for end in _ENDS_OF_WORDS)))


def _nearest(name: str, there: Sequence[str]) -> str:
    import difflib

    near = difflib.get_close_matches(name, there, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(there)}"
