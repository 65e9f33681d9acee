"""The part of a printed plan that tells what its checks can show, and what the run takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

from benchgate.units import as_written, show_number, show_percent, show_points

if TYPE_CHECKING:
    from benchgate.plan.check_power import CheckPower
    from benchgate.plan.power import PromotionChance
    from benchgate.plan.preview import RunCost, RunCostRange

_HEADINGS = ("check", "margin", "sees (80 / 95 %)", "has", "needs", "equal passes", "spread")
_MINUTE_S = 60.0
_WIDTH = 100
_INDENT = " " * 9


def check_lines(checks: Sequence[CheckPower], promotion: PromotionChance | None) -> Iterator[str]:
    """A row for each check, what they rest on, and how often an equal candidate is promoted by all of them."""
    if not checks:
        return
    yield ""
    rows = [_HEADINGS, *map(_row, checks)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    yield ""
    yield from _rests_on(checks)
    for note in dict.fromkeys(check.note for check in checks if check.note is not None):
        named = ", ".join(check.id for check in checks if check.note == note)
        yield from _wrapped("", f"{named}: {note}")
    if promotion is not None:
        yield from _wrapped("equal", _promotion(promotion, [c.id for c in checks if c.required and c.passes is None]))


def total_lines(found: RunCostRange) -> Iterator[str]:
    """Requests, tokens, minutes and dollars, from the first look to the last."""
    least, most = found.least, found.most
    requests = f"{_span(least.requests, most.requests)} requests"
    tokens = f"{_span(least.input_tokens, most.input_tokens)} tokens in and at most {most.output_tokens:,} out"
    asked = f"{requests}, {tokens} of the load" if most.blocks else requests
    yield from _wrapped("total", f"{asked}; {_time(found)}; {_money(least, most)}")


def _wrapped(title: str, text: str) -> list[str]:
    """A title and what belongs to it, in lines that are short enough to read."""
    first = title.ljust(len(_INDENT))
    return wrap(
        text, _WIDTH, initial_indent=first, subsequent_indent=_INDENT, break_on_hyphens=False, break_long_words=False
    )


def _row(check: CheckPower) -> tuple[str, ...]:
    seen = "/".join(_shown(check, value) for value in (check.sees_80, check.sees_95))
    return (
        check.id if check.required else f"({check.id})",
        "" if check.margin is None else _shown(check, check.margin),
        seen if check.sees_80 is not None or check.sees_95 is not None else "?",
        "?" if check.has is None else f"{check.has:,} {check.n_unit}",
        "?" if check.needs is None else f"{check.needs:,}",
        "?" if check.passes is None else _chance(check.passes),
        "" if check.spread is None else f"{'' if check.source != 'assumed' else '~'}{show_percent(check.spread)}",
    )


def _shown(check: CheckPower, value: float | None) -> str:
    if value is None:
        return "?"
    return as_written(show_points(value) if check.measure == "difference" else show_percent(value))


def _chance(share: float) -> str:
    """Never 100 % of what is not certain, and never 0 of what is not impossible."""
    if share >= 0.995:
        return ">99 %"
    return "<1 %" if 0 < share < 0.01 else f"{share:.0%}".replace("%", " %")


def _rests_on(checks: Sequence[CheckPower]) -> Iterator[str]:
    sources = dict.fromkeys(check.source for check in checks if check.source not in (None, "assumed"))
    if any(check.source == "assumed" for check in checks):
        yield "spread   ~ is assumed, and refuses nothing; `benchgate calibrate` measures it"
    for source in sources:
        yield f"spread   by the {source}"
    if any(not check.required for check in checks):
        yield "         checks in brackets are advisory"


def _promotion(promotion: PromotionChance, unknown: Sequence[str]) -> str:
    """`unknown` are the required checks of which nobody knows how often they pass: the chance leaves them out."""
    if promotion.chance is None:
        return "how often an equal candidate is promoted cannot be foretold"
    by = (
        "required checks"
        if promotion.checks == promotion.of
        else f"required checks that can be foretold ({promotion.checks} of {promotion.of})"
    )
    after = "" if promotion.blocks is None else f", after {show_number(promotion.blocks)} blocks on average"
    without = f"; not counting {', '.join(unknown)} (`?` above), which may stop it too" if unknown else ""
    return f"promoted {_chance(promotion.chance)} of the time by all {by}, were they independent{after}{without}"


def _time(found: RunCostRange) -> str:
    least, most = found.least.seconds, found.most.seconds
    if least is None or most is None:
        return "minutes not known before"
    unit, size = ("minutes", _MINUTE_S) if most >= 2 * _MINUTE_S else ("seconds", 1.0)
    took = f"{_span(least / size, most / size)} {unit}"
    return (
        f"at least {took}, by its schedules"
        if found.seconds_from == "schedules"
        else f"{took}, as {found.seconds_from} took"
    )


def _money(least: RunCost, most: RunCost) -> str:
    if least.usd is None or most.usd is None:
        return "dollars not known"
    return f"${_cents(least.usd)}" + (f" to ${_cents(most.usd)}" if most.usd > least.usd else "")


def _cents(usd: float) -> str:
    return f"{usd:,.2f}" if usd >= 0.01 or usd == 0 else "0.01 at most"


def _span(least: float, most: float) -> str:
    """`120`, or `120 to 480`."""
    low, high = (f"{one:,}" if isinstance(one, int) else show_number(one) for one in (least, most))
    return low if low == high else f"{low} to {high}"
