"""Waiver files: parsed into waivers, or every problem at once with line and column. Opens no file."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Annotated

from pydantic import BeforeValidator, StringConstraints, ValidationError, ValidationInfo, field_validator

from benchgate.errors import SuiteError, suggestion
from benchgate.model.metric import METRICS
from benchgate.model.verdict import MAX_WAIVER_DAYS, RELEASE_CHARACTERS, Waiver, Waivers
from benchgate.suite.checks import Check
from benchgate.suite.messages import Slot, faults_of
from benchgate.suite.types import Day, Expected, Name, Section, Text, Written, checked, key, text
from benchgate.suite.yaml import Document, Fault, read_text
from benchgate.units import show_found

_ABSOLUTE = re.compile(r":(?P<side>slo|max|min)(?P<over>-over-.+)?$")
_NO_WAIVER = ("error_budget", "error_budget_burn")


@dataclass(frozen=True, slots=True)
class Bounded:
    """Metric and kind of bound of a check; `side` is None for a margin."""

    metric: str
    side: str | None
    over: bool


def bounded(check_id: str) -> Bounded:
    """Parse the id of a check: `ttft-p95@c4` → a margin of ttft; `goodput@c4:slo` → a `min`. Raises ValueError."""
    metric = re.split(r"[-@:]", check_id, maxsplit=1)[0]
    if metric in _NO_WAIVER:
        raise ValueError(f"{metric} cannot be waived: an error budget is spent whoever answers for it")
    if metric not in METRICS:
        raise ValueError(
            f'no check is called "{check_id}": an id begins with its metric, and there is no "{metric}"; '
            f"{suggestion(metric, METRICS)}"
        )
    found = _ABSOLUTE.search(check_id)
    if found is None:
        return Bounded(metric, None, over=False)
    side = found["side"] if found["side"] != "slo" else next(iter(METRICS[metric].bounds), "max")
    return Bounded(metric, side, over=found["over"] is not None)


def check_ceiling(check_id: str, text: object) -> None:
    """Raise ValueError unless a ceiling is a bound in the unit of the check with this id."""
    _ = _probe(bounded(check_id), text)


def held_to(check: Check, ceiling: str) -> Check:
    """Return the check with the ceiling in place of its own bound. Raises ValueError for a ceiling in another unit."""
    side = None if check.margin is not None else "max" if check.max is not None else "min"
    probe = _probe(Bounded(check.metric, side, over=check.over is not None), ceiling)
    bounds = {"margin": probe.margin, "max": probe.max, "min": probe.min, "min_abs": None}
    return check.model_copy(update=bounds)


def _probe(bound: Bounded, text: object) -> Check:
    """Return a check with the ceiling as its bound: a ceiling is what a suite could say."""
    line: dict[str, object] = {"metric": bound.metric, bound.side or "margin": text}
    if bound.over:
        line |= {"stage": "one", "over": "other"}
    try:
        return Check.model_validate(line)
    except ValidationError as error:
        context = error.errors(include_url=False)[0].get("ctx", {})
        expected = f"found {show_found(text)}; expected a bound with its unit, like 8%, 3 points or 600ms"
        raise ValueError(str(context.get("error", expected))) from None


MANY_ON_ONE_DAY = 5
"""Least number of waivers whose common last day is mentioned: all their checks may block on the day after."""

_BLANK = frozenset(
    map(chr, (0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, *range(0x180B, 0x1810), *range(0xFE00, 0xFE10)))
)
"""Characters that show nothing although Unicode counts them among letters, marks and symbols."""


_Strip = BeforeValidator(lambda found: found.strip() if isinstance(found, str) else found)
_RELEASE = rf"^[0-9a-f]{{{RELEASE_CHARACTERS},64}}$"
_Line = Annotated[Text, _Strip]
_Release = Annotated[str, StringConstraints(pattern=_RELEASE), _Strip, Written(text(_RELEASE))]


class WaiverEntry(Section):
    """A waiver, as written in its file."""

    suite: Annotated[Name, _Strip] = key("Name of the suite")
    check: Annotated[
        _Line, checked(bounded), Expected("the id of a check as `benchgate gate --format json` shows it")
    ] = key("Id of the check as `benchgate gate --format json` shows it, like ttft-p95@c4")
    deployment: Annotated[Name, _Strip] = key("Name of the candidate")
    release: (
        Annotated[_Release, Expected(f"at least {RELEASE_CHARACTERS} characters of the candidate's fingerprint")] | None
    ) = key("First characters of the candidate's fingerprint, in quotes; any release if left out", default=None)
    ceiling: Annotated[_Line, Expected("a bound with its unit: 8%, 3 points, 600ms")] = key(
        "Largest regression that is tolerated, with its unit: 8%, 3 points, 600ms"
    )
    expires: Day = key("Last day on which the waiver holds, like 2026-12-31")
    owner: Annotated[_Line, Expected("the person who answers for it")] = key("Person who answers for the waiver")
    issue: Annotated[_Line, Expected("the issue in which it is followed up")] = key("Issue in which it is followed up")
    reason: Annotated[_Line, Expected("the reason why it is tolerated")] = key("Reason why it is tolerated")
    approved_by: Annotated[_Line, Expected("the person who approved it, other than the owner")] = key(
        "Person who approved it, other than the owner"
    )

    @field_validator("ceiling")
    @classmethod
    def _has_the_unit_of_its_check(cls, ceiling: str, info: ValidationInfo) -> str:
        if "check" in info.data:
            check_ceiling(info.data["check"], ceiling)
        return ceiling

    @field_validator("expires")
    @classmethod
    def _is_near(cls, expires: date, info: ValidationInfo) -> date:
        check_expiry(expires, (info.context or {})["as_of"])
        return expires

    @field_validator("approved_by")
    @classmethod
    def _is_another_person(cls, approved_by: str, info: ValidationInfo) -> str:
        if "owner" in info.data:
            check_persons(info.data["owner"], approved_by)
        return approved_by


class WaiverList(Section):
    """The content of a waiver file."""

    waivers: Annotated[tuple[WaiverEntry, ...], Expected("a list of waivers, which may be empty: []")] = key(
        "Checks whose regression is tolerated for a while"
    )


KEYS = tuple(WaiverEntry.model_fields)  # the keys of a waiver, in the order in which `benchgate waive` writes them


@dataclass(frozen=True, slots=True)
class WaiverFile:
    """The waivers of a file, line and column (from 1) of each, and warnings."""

    source: str
    waivers: Waivers
    places: tuple[tuple[int, int], ...]
    notes: tuple[str, ...]


def parse_waivers(text: str, source: str, as_of: date) -> WaiverFile:
    """Parse the waivers of a file, judged on a day. Raises SuiteError with every mistake in it."""
    document = read_text(text, source, "file of waivers")
    context = {"as_of": as_of}
    faults: list[Fault] = []
    try:
        WaiverList.model_validate(document.data, context=context)
    except ValidationError as error:
        faults = faults_of(error, Slot(WaiverList, ()))
    broken = {fault.path[1] for fault in faults if len(fault.path) > 1}
    entries = document.data.get("waivers")
    rows = {
        number: Waiver(**dict(WaiverEntry.model_validate(entry, context=context)))
        for number, entry in enumerate(entries if isinstance(entries, list) else ())
        if number not in broken
    }
    empty = {problem.path for problem in document.problems}
    found = [document.problem(fault) for fault in (*faults, *_twice(document, rows))]
    problems = document.problems + [problem for problem in found if problem.path not in empty]
    if problems:
        raise SuiteError(problems)
    waivers = tuple(rows.values())
    places = tuple(_place(document, number) for number in rows)
    ends = Counter(waiver.expires for waiver in waivers if waiver.days_left(as_of) >= 0)
    notes = (
        f"{number} waivers end on {day}: all that they cover may block on the day after; spread them out"
        for day, number in sorted(ends.items())
        if number >= MANY_ON_ONE_DAY
    )
    return WaiverFile(source, Waivers(waivers, as_of), places, tuple(notes))


def check_expiry(expires: date, as_of: date) -> None:
    """Raise ValueError for a day further ahead than a waiver may end."""
    if expires > as_of + timedelta(days=MAX_WAIVER_DAYS):
        last = as_of + timedelta(days=MAX_WAIVER_DAYS)
        raise ValueError(
            f"{expires} is more than {MAX_WAIVER_DAYS} days ahead; write {last} at most, or change the suite's policy"
        )


def check_persons(owner: str, approved_by: str) -> None:
    """Raise ValueError where owner and approver are one person, however the name is spelled."""
    for person in (owner, approved_by):
        if not _folded(person):
            raise ValueError(f"{show_found(person)} is no name")
    if _folded(owner) == _folded(approved_by):
        raise ValueError(f"{show_found(approved_by)} is the owner too; somebody else has to approve it")


def _folded(name: str) -> str:
    """Return a name without invisible characters, and independent of its Unicode spelling."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    return "".join(c for c in folded if unicodedata.category(c)[0] not in "CZ" and c not in _BLANK)


def _twice(document: Document, rows: dict[int, Waiver]) -> Iterator[Fault]:
    """Refuse two waivers for one check."""
    first: dict[tuple[str, str, str], int] = {}
    for number, waiver in rows.items():
        earlier = first.setdefault((waiver.suite, waiver.deployment, waiver.check), number)
        if earlier != number:
            line = _place(document, earlier)[0]
            message = f"{waiver.check} of {waiver.suite} on {waiver.deployment} is waived in line {line} already"
            yield Fault(("waivers", number), f"{message}; keep one of them")


def _place(document: Document, number: int) -> tuple[int, int]:
    place = document.values["waivers", number]
    return place.line, place.column
