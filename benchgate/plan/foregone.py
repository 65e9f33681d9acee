"""Evals of which it is known before anything is asked that they cannot pass: too few items for the margin."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchgate.stats.item_harm import answers_harm
from benchgate.stats.recovery import ScorePairs
from benchgate.units import show_points


def foregone(counts: Sequence[int], margin: float, alpha: float) -> str | None:
    """Why a check of accuracy stays open even where the candidate answers as the baseline does; None where it may not.

    `counts` are the items of each task that it judges together. They are taken for independent: in clusters they carry
    less, so a check named here cannot pass in any case. ValueError without items.
    """
    least = answers_harm([ScorePairs(np.ones(count), np.ones(count)) for count in counts], alpha).limits.upper
    if least < margin:
        return None
    return (
        f"with {sum(counts):,} items, even where no answer changes, a loss of up to {show_points(least)} cannot be "
        f"ruled out, and the margin is {show_points(margin)}"
    )
