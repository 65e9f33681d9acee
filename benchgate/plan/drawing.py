"""Numbers drawn from what a suite says of them: lengths, numbers of turns, pauses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from benchgate.plan.material import Material, SeenLengths
from benchgate.suite.lengths import Lengths, Pauses
from benchgate.suite.workload import Workload


def drawn_length(length: int | Lengths, generator: np.random.Generator) -> int:
    """One number. A normal or lognormal draw beyond a bound is that bound."""
    if isinstance(length, int):
        return length
    if length.uniform is not None:
        least, most = length.uniform
        return int(generator.integers(least, most + 1))
    if length.normal is not None:
        drawn = generator.normal(length.normal.mean_tokens, length.normal.sd_tokens)
    elif length.lognormal is not None:
        drawn = generator.lognormal(np.log(length.lognormal.median_tokens), length.lognormal.sigma)
    else:
        raise ValueError("lengths of a file are drawn row by row")
    bounds = length.normal or length.lognormal
    assert bounds is not None
    return int(np.clip(round(drawn), bounds.least_tokens, bounds.most_tokens))


def drawn_pause_s(pause: float | Pauses, generator: np.random.Generator) -> float:
    """One pause in seconds, to the microsecond."""
    if not isinstance(pause, Pauses):
        return pause
    if pause.uniform is not None:
        drawn = generator.uniform(*pause.uniform)
    else:
        assert pause.lognormal is not None
        drawn = generator.lognormal(np.log(pause.lognormal.median_s), pause.lognormal.sigma)
    return round(float(drawn), 6)


def drawn_lengths(
    workload: Workload, material: Material, generator: np.random.Generator
) -> Iterator[tuple[int, int | None]]:
    """Input and output tokens of one request after the other, without end; None where no text is generated.

    Lengths of one file are drawn together, as they were seen together; of two files, each for itself.
    """
    while True:
        rows: dict[str, SeenLengths] = {}
        for name in workload.files:
            if name not in rows:
                seen: Sequence[SeenLengths] = material.lengths[name]
                rows[name] = seen[int(generator.integers(len(seen)))]
        yield (
            _one(workload.input_tokens or 1, rows, "input_tokens", generator),
            None if workload.output_tokens is None else _one(workload.output_tokens, rows, "output_tokens", generator),
        )


def _one(length: int | Lengths, rows: dict[str, SeenLengths], column: str, generator: np.random.Generator) -> int:
    if isinstance(length, Lengths) and length.file is not None:
        seen: int | None = getattr(rows[length.file], column)
        assert seen is not None, "the file was read for this column"
        return seen
    return drawn_length(length, generator)
