"""The arithmetic of an estimate, recorded by the estimators themselves so that a reader can repeat it.

Numbers have eight digits, enough for a pocket calculator to come to the same limits. A step without a formula was
observed. `t(p, f)` is the p-quantile of Student's t with f degrees of freedom, `T(f)` a value drawn from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from benchgate.model.records import FloatArray
from benchgate.model.verdict import ArithmeticStep
from benchgate.stats.distributions import Limits

_LISTED_VALUES = 200


def digits(value: float) -> str:
    """Format a number with eight significant digits."""
    return f"{value:.8g}"


@dataclass(slots=True)
class Trace:
    """Steps of one estimate's arithmetic, in order."""

    steps: list[ArithmeticStep] = field(default_factory=list)

    def observed(self, what: str, values: Sequence[float] | FloatArray) -> None:
        """Record measured numbers; of more than 200 only the first are listed."""
        listed = ", ".join(digits(float(value)) for value in values[:_LISTED_VALUES])
        more = len(values) - _LISTED_VALUES
        self.text(what, "", f"{listed}, and {more} more" if more > 0 else listed)

    def count(self, what: str, value: int, formula: str = "") -> None:
        """Record a number of things."""
        self.text(what, formula, str(value))

    def made(self, what: str, formula: str, value: float) -> None:
        """Record the result of a formula."""
        self.text(what, formula, digits(value))

    def limits(self, limits: Limits, lower: str, upper: str, of: str = "") -> None:
        """Record both one-sided limits with the formula of each."""
        self.made(f"lower limit{of}", lower, limits.lower)
        self.made(f"upper limit{of}", upper, limits.upper)

    def text(self, what: str, formula: str, value: str) -> None:
        """Record a step whose value is already written."""
        self.steps.append(ArithmeticStep(what, formula, value))

    def add(self, steps: Iterable[ArithmeticStep], of: str = "") -> None:
        """Append steps recorded elsewhere, with `of` after their names."""
        self.steps.extend(replace(step, what=f"{step.what}{of}") for step in steps)
