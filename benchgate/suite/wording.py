"""pydantic's findings in our words: what was found, what was expected, what to do. No value of a secret is repeated."""

from __future__ import annotations

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from benchgate.suite.schema import Expected, Suite
from benchgate.suite.text import Fault, Path
from benchgate.suite.vocabulary import Slot, expectation, homes_of, nearest, slot_at, slots_of, suggestion
from benchgate.units import show_found

_SECRET_KEYS = ("api_key", "proxy", "url")
_NAME = expectation(slots_of(Suite)["suite"])


def faults_of(error: ValidationError, root: Slot | None = None) -> list[Fault]:
    """Every finding of a validation that is a mistake of its own, in our words; `root` is that of another file."""
    details = error.errors(include_url=False)
    meant = {_meant_key(detail["loc"], root) for detail in details if detail["type"] == "extra_forbidden"}
    return [_fault(detail, root) for detail in details if not _only_follows(detail, meant)]


def _only_follows(detail: ErrorDetails, meant: set[Path]) -> bool:
    """Findings that another one brings about: mending that one mends them.

    A missing key that stands there misspelt, a list that is short only because its entries are wrong, and a default
    that waits for a key which is wrong.
    """
    if detail["type"] == "missing":
        return detail["loc"] in meant
    return detail["type"] == "default_factory_not_called" or (detail["type"] == "too_short" and bool(detail["input"]))


def _meant_key(path: Path, root: Slot | None) -> Path:
    near = nearest(str(path[-1]), _known_keys(path[:-1], root))
    return (*path[:-1], near) if near else path


def _fault(detail: ErrorDetails, root: Slot | None) -> Fault:
    path: Path = detail["loc"]
    kind, context = detail["type"], detail.get("ctx", {})
    if path and path[-1] == "[key]":  # pydantic's mark for a key of a mapping of names
        return Fault(path[:-1], f"{show_found(path[-2])} is not {_NAME}", at_key=True)
    if kind == "extra_forbidden":
        return Fault(path, _unknown_key(path, root), at_key=True)
    if kind == "missing":
        return Fault(path, f"is required and missing; expected {_expected(path, root)}")
    if kind == "value_error":
        return Fault(path, str(context["error"]))
    if kind == "literal_error" and isinstance(detail["input"], str):
        choices = slot_at(path, root)
        options = choices.choices if choices else ()
        return Fault(path, f"found {show_found(detail['input'])}; {suggestion(detail['input'], options)}")
    told = _expected(path, root) + _remedy(path, detail["input"], root)
    return Fault(path, f"found {_found(path, detail['input'])}; expected {told}")


def _unknown_key(path: Path, root: Slot | None) -> str:
    key = str(path[-1])
    known = _known_keys(path[:-1], root)
    homes = "" if root is not None else " and ".join(homes_of(key))
    if homes and nearest(key, known):
        return f"unknown key here; {suggestion(key, known)} `{key}` belongs in {homes}"
    return f"unknown key here; it belongs in {homes}" if homes else f"unknown key; {suggestion(key, known)}"


def _known_keys(path: Path, root: Slot | None) -> list[str]:
    section = slot_at(path, root)
    return list(slots_of(section.model)) if section and section.model else []


def _expected(path: Path, root: Slot | None) -> str:
    slot = slot_at(path, root)
    return expectation(slot) if slot else "nothing here"


def _remedy(path: Path, found: object, root: Slot | None) -> str:
    """Where text is wanted and a number stands, the quotes are missing; where a quantity is wanted, its unit is."""
    slot = slot_at(path, root)
    if slot is None or slot.kind is not str or isinstance(found, bool) or not isinstance(found, int | float):
        return ""
    if any(isinstance(mark, Expected) and mark.quantity for mark in slot.metadata):
        return "; write it with its unit"
    return "; put it in quotes"


def _found(path: Path, value: object) -> str:
    secret = bool(path) and (path[-1] in _SECRET_KEYS or "headers" in path)
    if secret and not isinstance(value, dict | list | tuple):
        return "a value of another kind"
    return show_found(value)
