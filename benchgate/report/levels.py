"""How sure the limits are: the level of the suite, or that of the look at the load that a check was made from."""

from __future__ import annotations

import math

from benchgate import units
from benchgate.model.verdict import CheckResult, Verdict


def level(alpha: float) -> str:
    """0.05 → `95 %`, 0.00052 → `99.948 %`: two digits of the error, so that no level is rounded up to certainty."""
    decimals = max(0, 1 - math.floor(math.log10(alpha * 100)))
    return units.as_written(f"{100 * (1 - alpha):.{decimals}f} %")


def own_level(check: CheckResult, alpha: float) -> str:
    """The level of a check's limits where it is not that of the suite; empty without limits."""
    if check.lower is None or check.limits_alpha is None or check.limits_alpha == alpha:
        return ""
    return level(check.limits_alpha)


def limits_told(verdict: Verdict) -> str:
    """What holds of the limits that the checks stand beside, as a sentence without its end."""
    own = {told for check in verdict.checks if (told := own_level(check, verdict.alpha))}
    if not own:
        return f"Every limit is one-sided, at {level(verdict.alpha)} confidence"
    return (
        f"Every limit is one-sided: at the confidence that stands beside it ({', '.join(sorted(own))}, for there may "
        f"be several looks at the load), and at {level(verdict.alpha)} where none does"
    )
