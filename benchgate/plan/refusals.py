"""Checks that cannot carry their margins: which of them stand against a run, and which are only told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchgate.plan.power_row import CheckPower
from benchgate.units import as_written, show_percent, show_points

_NAMED = 3
_LET_IT = "write `allow_underpowered: true` at the check, or in `gate`, to measure all the same"


@dataclass(frozen=True, slots=True)
class Shortfalls:
    """What is said of underpowered checks.

    `certain` stands against measuring at all, `likely` against the plan: by what is known of the noise. `told` stands
    against nothing.
    """

    certain: tuple[str, ...] = ()
    likely: tuple[str, ...] = ()
    told: tuple[str, ...] = ()

    @property
    def refused(self) -> tuple[str, ...]:
        """All that a plan is refused for, and how to have it all the same."""
        return tuple(f"{line}; {_LET_IT}" for line in (*self.certain, *self.likely))


def shortfalls(checks: Sequence[CheckPower]) -> Shortfalls:
    """Required checks that cannot hold, or by measured noise do not carry their margin, are refused unless allowed.

    Where noise is assumed, or that of a single run, they are only told, for nobody knows (and not where they are
    allowed to be so); and so are advisory ones that cannot hold.
    """
    certain, likely, told = list[str](), list[str](), list[str]()
    for check in checks:
        if check.short not in ("certain", "measured"):
            continue
        line = _cannot(check) if check.short == "certain" else _not_likely(check)
        if check.required and not check.allowed:
            (certain if check.short == "certain" else likely).append(line)
        elif check.required or check.short == "certain":
            told.append(line)
    return Shortfalls(tuple(certain), tuple(likely), (*told, *_by_assumption(checks)))


def _cannot(check: CheckPower) -> str:
    return f"{check.id} cannot pass: {check.cannot}; {check.remedy}"


def _not_likely(check: CheckPower) -> str:
    needs = f" (it takes {check.needs:,} for 95 %)" if check.needs is not None else ""
    return (
        f"{check.id} is not likely to carry its margin of {_shown(check, check.margin)}: by the {check.source}, "
        f"{check.has or 0:,} {check.n_unit} show a harm of {_shown(check, check.sees_80)} or more in 80 of 100 "
        f"runs{needs}; measure more, accept a wider margin, or make it advisory"
    )


def _by_assumption(checks: Sequence[CheckPower]) -> Iterator[str]:
    """One line for all of them: the table says the rest."""
    short = [check for check in checks if check.short == "assumed" and check.required and not check.allowed]
    for source in dict.fromkeys(check.source for check in short):
        named = [check.id for check in short if check.source == source]
        more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
        by = "assumed spreads" if source == "assumed" else f"the {source}"
        yield (
            f"by {by}, so little is measured that {', '.join(named[:_NAMED])}{more} may not carry the margin; "
            f"`benchgate plan` tells how much it takes, and `benchgate calibrate` measures the spreads"
        )


def _shown(check: CheckPower, value: float | None) -> str:
    if value is None:
        return "?"
    return as_written(show_points(value) if check.measure == "difference" else show_percent(value))
