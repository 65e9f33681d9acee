"""The ceiling of a waiver: a bound in the words of the check that it is for, and that check held to it instead.

The file of waivers: YAML text → waivers, or every mistake in it at once, each with its place. Opens no file.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from pydantic import ValidationError

from benchgate import units
from benchgate.errors import Problem, SuiteError
from benchgate.model.metric import METRICS
from benchgate.model.waiver import LONGEST_DAYS, RELEASE_CHARACTERS, Waiver, Waivers
from benchgate.suite.checks import Check
from benchgate.suite.messages import nearest, suggestion
from benchgate.suite.yaml import Document, Fault, Path, Plain, read_text
from benchgate.units import show_found

_ABSOLUTE = re.compile(r":(?P<side>slo|max|min)(?P<over>-over-.+)?$")
_NO_WAIVER = ("error_budget", "error_budget_burn")


@dataclass(frozen=True, slots=True)
class Bounded:
    """What the id of a check says of it: its metric, and how it is bounded; no `side` where it has a margin."""

    metric: str
    side: str | None
    over: bool


def bounded(check_id: str) -> Bounded:
    """`ttft-p95@c4` → a margin of ttft; `goodput@c4:slo` → a `min`. ValueError for an id that no check can have."""
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
    """Let a ceiling pass that is a bound in the unit of the check with this id; ValueError otherwise."""
    _ = _probe(bounded(check_id), text)


def held_to(check: Check, ceiling: str) -> Check:
    """The check with the ceiling in place of its own bound, and with nothing that would widen it.

    ValueError for a ceiling in another unit than that of the check.
    """
    probe = _probe(_bounds_of(check), ceiling)
    bounds = {"margin": probe.margin, "max": probe.max, "min": probe.min, "min_abs": None}
    return check.model_copy(update=bounds)


def _bounds_of(check: Check) -> Bounded:
    if check.margin is not None:
        return Bounded(check.metric, None, over=False)
    return Bounded(check.metric, "max" if check.max is not None else "min", over=check.over is not None)


def _probe(bound: Bounded, text: object) -> Check:
    """A check of the metric that is held to the ceiling: what may stand in a suite may be a ceiling."""
    line: dict[str, object] = {"metric": bound.metric, bound.side or "margin": text}
    if bound.over:
        line |= {"stage": "one", "over": "other"}
    try:
        return Check.model_validate(line)
    except ValidationError as error:
        raise ValueError(_first(error, text)) from None


def _first(error: ValidationError, text: object) -> str:
    detail = error.errors(include_url=False)[0]
    context = detail.get("ctx", {})
    if "error" in context:
        return str(context["error"])
    return f"found {units.show_found(text)}; expected a bound with its unit, like 8%, 3 points or 600ms"


KEYS = ("suite", "check", "deployment", "release", "ceiling", "expires", "owner", "issue", "reason", "approved_by")
"""What a waiver says, in the order in which `benchgate waive` writes it."""

REQUIRED = tuple(key for key in KEYS if key != "release")

MANY_ON_ONE_DAY = 5
"""From so many waivers on that end on one day, that day is worth a word: all they cover blocks at once."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_RELEASE = re.compile(rf"[0-9a-f]{{{RELEASE_CHARACTERS},64}}")

PATTERNS = {
    key: rf"^\s*{pattern.pattern}\s*$"
    for key, pattern in (("suite", _NAME), ("deployment", _NAME), ("release", _RELEASE), ("expires", _DATE))
}
"""What some keys hold, for editors."""

_BLANK = frozenset(
    map(chr, (0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, *range(0x180B, 0x1810), *range(0xFE00, 0xFE10)))
)
"""Characters that show nothing although Unicode counts them among letters, marks and symbols."""


@dataclass(frozen=True, slots=True)
class WaiverFile:
    """The waivers of a file, where each of them begins (line and column, from 1), and what is worth a word."""

    source: str
    waivers: Waivers
    places: tuple[tuple[int, int], ...]
    notes: tuple[str, ...]


def parse_waivers(text: str, source: str, as_of: date) -> WaiverFile:
    """The waivers that a text holds, looked at on a day. `source` is what to call it in messages.

    Raises SuiteError with every mistake in it.
    """
    document = read_text(text, source, "file of waivers")
    faults = _top_faults(document.data)
    entries = document.data.get("waivers")
    rows: list[tuple[int, Waiver]] = []
    for number, entry in enumerate(entries if isinstance(entries, list) else ()):
        found, wrong = _entry(entry, ("waivers", number), as_of)
        faults += wrong
        rows += [(number, found)] if found is not None else []
    faults += _twice(document, rows)
    problems = document.problems + [document.problem(fault) for fault in faults]
    if problems:
        raise SuiteError(_each_place_once(problems))
    waivers = tuple(waiver for _, waiver in rows)
    places = tuple(_place(document, number) for number, _ in rows)
    return WaiverFile(source, Waivers(waivers, as_of), places, tuple(_crowded(waivers, as_of)))


def parse_day(text: str) -> date:
    """`2026-12-31`; ValueError for anything else."""
    if _DATE.fullmatch(text):
        try:
            return date.fromisoformat(text)
        except ValueError:
            pass
    raise ValueError(f"{show_found(text)} is not a day; write it like 2026-12-31")


def check_expiry(expires: date, as_of: date) -> None:
    """ValueError for a day further ahead than a waiver may end."""
    if expires > as_of + timedelta(days=LONGEST_DAYS):
        last = as_of + timedelta(days=LONGEST_DAYS)
        raise ValueError(
            f"{expires} is more than {LONGEST_DAYS} days ahead; write {last} at most, or change the suite's policy"
        )


def check_persons(owner: str, approved_by: str) -> None:
    """ValueError where somebody approves what they themselves answer for."""
    for person in (owner, approved_by):
        if not _seen(person):
            raise ValueError(f"{show_found(person)} names nobody")
    if _seen(owner) == _seen(approved_by):
        raise ValueError(f"{show_found(approved_by)} is the owner too; somebody else has to approve it")


def _seen(name: str) -> str:
    """A name as a reader takes it: without what does not show, and whatever its spelling in Unicode."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    return "".join(c for c in folded if unicodedata.category(c)[0] not in "CZ" and c not in _BLANK)


def _top_faults(data: dict[str, Plain]) -> list[Fault]:
    faults = [Fault((key,), f"unknown key; {suggestion(key, ['waivers'])}", True) for key in data if key != "waivers"]
    if "waivers" not in data:
        return [*faults, Fault((), "has no `waivers`; expected a list of them under this key, which may be empty: []")]
    if not isinstance(data["waivers"], list):
        found = show_found(data["waivers"])
        faults.append(
            Fault(("waivers",), f"found {found}; expected a list of waivers, each with {', '.join(REQUIRED)}")
        )
    return faults


def _entry(entry: Plain, path: Path, as_of: date) -> tuple[Waiver | None, list[Fault]]:
    """A waiver, or all that is wrong with it."""
    if not isinstance(entry, dict):
        return None, [Fault(path, f"found {show_found(entry)}; expected a waiver with {', '.join(REQUIRED)}")]
    faults = [Fault((*path, key), f"unknown key; {suggestion(key, KEYS)}", True) for key in entry if key not in KEYS]
    meant = {nearest(key, KEYS) for key in entry if key not in KEYS}
    missing = [key for key in REQUIRED if key not in entry and key not in meant]
    faults += [Fault(path, f"`{key}` is required and missing") for key in missing]
    texts: dict[str, str] = {}
    for key in KEYS:
        if key in entry:
            value = entry[key]
            if isinstance(value, str) and value.strip():
                texts[key] = value.strip()
            else:
                faults.append(Fault((*path, key), f"found {show_found(value)}; expected {EXPECTED[key]}"))
    faults += _wrong(texts, path, as_of)
    if faults:
        return None, faults
    day = parse_day(texts["expires"])
    said = {key: text for key, text in texts.items() if key != "expires"}
    return Waiver(expires=day, **said), []


def _wrong(texts: dict[str, str], path: Path, as_of: date) -> list[Fault]:
    """What is wrong with what is said, as far as it is text."""
    faults = [
        Fault((*path, key), f"{show_found(texts[key])} is no name of a {what}")
        for key, what in (("suite", "suite"), ("deployment", "deployment"))
        if key in texts and _NAME.fullmatch(texts[key]) is None
    ]
    try:
        if "check" in texts:
            _ = bounded(texts["check"])
    except ValueError as error:
        faults.append(Fault((*path, "check"), str(error)))
    else:
        if {"check", "ceiling"} <= texts.keys():
            faults += _raised((*path, "ceiling"), lambda: check_ceiling(texts["check"], texts["ceiling"]))
    if "release" in texts and _RELEASE.fullmatch(texts["release"]) is None:
        faults.append(
            Fault((*path, "release"), f"found {show_found(texts['release'])}; expected {EXPECTED['release']}")
        )
    if "expires" in texts:
        faults += _raised((*path, "expires"), lambda: check_expiry(parse_day(texts["expires"]), as_of))
    if {"owner", "approved_by"} <= texts.keys():
        faults += _raised((*path, "approved_by"), lambda: check_persons(texts["owner"], texts["approved_by"]))
    return faults


def _raised(path: Path, check: Callable[[], None]) -> list[Fault]:
    """The fault that a check raises as a ValueError; none where it lets things pass."""
    try:
        check()
    except ValueError as error:
        return [Fault(path, str(error))]
    return []


def _twice(document: Document, rows: Sequence[tuple[int, Waiver]]) -> Iterator[Fault]:
    """Of two waivers for one check it would not be known which holds."""
    first: dict[tuple[str, str, str], int] = {}
    for number, waiver in rows:
        earlier = first.setdefault((waiver.suite, waiver.deployment, waiver.check), number)
        if earlier != number:
            line = _place(document, earlier)[0]
            message = f"{waiver.check} of {waiver.suite} on {waiver.deployment} is waived in line {line} already"
            yield Fault(("waivers", number), f"{message}; keep one of them")


def _place(document: Document, number: int) -> tuple[int, int]:
    place = document.values["waivers", number]
    return place.line, place.column


def _each_place_once(problems: Sequence[Problem]) -> list[Problem]:
    """An empty value is told by the reader of the text already."""
    told: dict[tuple[int | None, int | None, str], Problem] = {}
    for problem in problems:
        told.setdefault((problem.line, problem.column, problem.path), problem)
    return list(told.values())


def _crowded(waivers: Sequence[Waiver], as_of: date) -> Iterator[str]:
    """Days on which many waivers end."""
    ends = Counter(waiver.expires for waiver in waivers if waiver.days_left(as_of) >= 0)
    for day, number in sorted(ends.items()):
        if number >= MANY_ON_ONE_DAY:
            yield f"{number} waivers end on {day}: all that they cover may block on the day after; spread them out"


EXPECTED = {
    "suite": "the name of the suite",
    "check": "the id of a check as `benchgate gate --format json` shows it, like ttft-p95@c4",
    "deployment": "the name of the candidate",
    "release": f"{RELEASE_CHARACTERS} or more of the first characters of the candidate's fingerprint, in quotes",
    "ceiling": "the most harm that is tolerated, with its unit: 8%, 3 points, 600ms",
    "expires": "the last day on which it holds, like 2026-12-31",
    "owner": "who answers for it",
    "issue": "where it is followed up",
    "reason": "why it is tolerated",
    "approved_by": "who approved it, who is not the owner",
}
