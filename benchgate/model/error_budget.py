"""What production had spent of an error budget when a run started."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BudgetSpent:
    """A reading, kept with the run: deciding it again later asks nobody.

    `spent_ratio` is 0.4 where 40 % of the budget of the whole window is gone, and above 1 where more was spent than
    there was. `source` says whence it came, without a secret; `read_at` when, RFC 3339 in UTC. ValueError for a number
    that nobody can have spent.
    """

    spent_ratio: float
    source: str
    read_at: str

    def __post_init__(self) -> None:
        if not math.isfinite(self.spent_ratio) or self.spent_ratio < 0:
            raise ValueError(f"{self.spent_ratio} is no share of a budget that was spent; expected 0 or more")

    @property
    def blown(self) -> bool:
        """Whether nothing of the budget is left."""
        return self.spent_ratio >= 1
