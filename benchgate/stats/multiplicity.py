"""Many checks, one error probability."""

from __future__ import annotations

from collections.abc import Sequence


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Holm's step-down adjusted p-values (1979), in the order given: max over j <= i of (m-j+1)·p(j), at most 1.

    Rejecting where the result is <= alpha keeps the chance of any false rejection at alpha, whatever the dependence.
    Empty in, empty out. ValueError for a p-value outside [0, 1], NaN included: undefined is no evidence either way.
    """
    for p_value in p_values:
        if not 0 <= p_value <= 1:
            raise ValueError(f"{p_value!r} is not a p-value; expected a number from 0 to 1")
    adjusted = [1.0] * len(p_values)
    running = 0.0
    for step, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        running = max(running, min(1.0, (len(p_values) - step) * p_values[place]))
        adjusted[place] = running
    return tuple(adjusted)
