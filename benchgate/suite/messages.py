"""Error messages for invalid keys and values: found, expected, and what to do, without secrets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from benchgate.errors import nearest, suggestion
from benchgate.suite.schema import Suite
from benchgate.suite.types import Expected
from benchgate.suite.yaml import Fault, Path
from benchgate.units import show_found


@dataclass(frozen=True, slots=True)
class Slot:
    """Type of a value, without `None`, and the annotations of the type."""

    kind: Any
    metadata: tuple[object, ...]

    @property
    def model(self) -> type[BaseModel] | None:
        """Section that belongs here, if any."""
        return self.kind if isinstance(self.kind, type) and issubclass(self.kind, BaseModel) else None

    @property
    def choices(self) -> tuple[str, ...]:
        """Words that are allowed here, if only some are."""
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    @property
    def entry(self) -> Slot | None:
        """Slot of the entries of a list or mapping."""
        if get_origin(self.kind) is tuple:
            return _slot(get_args(self.kind)[0], ())
        return _slot(get_args(self.kind)[1], ()) if get_origin(self.kind) is dict else None

    @property
    def names(self) -> Slot | None:
        """Slot of the names of a mapping."""
        return _slot(get_args(self.kind)[0], ()) if get_origin(self.kind) is dict else None


ROOT = Slot(Suite, ())


def key_of(name: str, field: FieldInfo) -> str:
    """Return how a suite spells a field."""
    return field.alias or name


@cache
def slots_of(model: type[BaseModel]) -> Mapping[str, Slot]:
    """Return the slots of a section by key, in order."""
    return {key_of(name, field): _slot(field.annotation, field.metadata) for name, field in model.model_fields.items()}


def slot_at(path: Path, root: Slot | None = None) -> Slot | None:
    """Return the slot at a path of a suite, or of another file with this `root`; None for an unknown path."""
    slot: Slot | None = root or ROOT
    for part in path:
        if slot is None:
            return None
        slot = slot.entry or (slots_of(slot.model).get(str(part)) if slot.model else None)
    return slot


def sections(root: Slot = ROOT) -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield every section once, with its first place, like `("load.sweep[]", Stage)`; the root's place is empty."""
    met: set[type[BaseModel]] = set()
    waiting = [("", root)]
    while waiting:
        place, slot = waiting.pop()
        if slot.model is None or slot.model in met:
            continue
        met.add(slot.model)
        yield place, slot.model
        for key, inner in reversed(list(slots_of(slot.model).items())):
            below = f"{place}.{key}" if place else key
            suffix = "" if inner.entry is None else "[]" if get_origin(inner.kind) is tuple else ".<name>"
            waiting.append((below + suffix, inner.entry or inner))


def expectation(slot: Slot) -> str:
    """Return what fits a slot, as a phrase."""
    for mark in reversed(slot.metadata):  # the mark of a field comes after that of its type
        if isinstance(mark, Expected):
            return mark.phrase
    if slot.choices:
        return f"one of {', '.join(slot.choices)}"
    if slot.model is not None:
        return f"a mapping with the keys {', '.join(slots_of(slot.model))}"
    if slot.kind in (int, float):
        return ("a whole number" if slot.kind is int else "a number") + limits(slot.metadata)
    if get_origin(slot.kind) is tuple:
        return "a list with at least one entry"
    if get_origin(slot.kind) is dict:
        return "a mapping with at least one name and what it stands for"
    return {bool: "true or false", str: "text"}.get(slot.kind, "another kind of value")


def limits(metadata: Iterable[object]) -> str:
    """Return the bounds among the annotations of a type, like `, at least 1 and at most 64`; empty without any."""
    words: list[str] = []
    for mark in metadata:
        match mark:
            case Ge(ge=limit):
                words.append(f"at least {limit:,}")
            case Gt(gt=limit):
                words.append(f"above {limit:,}")
            case Le(le=limit):
                words.append(f"at most {limit:,}")
            case Lt(lt=limit):
                words.append(f"below {limit:,}")
    return ", " + " and ".join(words) if words else ""


def _slot(annotation: Any, metadata: Iterable[object]) -> Slot:
    """Strip `Annotated` and `| None` off an annotation, keeping its marks."""
    marks = list(metadata)
    while True:
        if get_origin(annotation) is Annotated:
            annotation, *more = get_args(annotation)
            marks += [mark for inner in more for mark in (inner.metadata if isinstance(inner, FieldInfo) else [inner])]
        elif get_origin(annotation) in (Union, UnionType):
            kinds = [kind for kind in get_args(annotation) if kind is not type(None)]
            models = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
            if len(kinds) > 1 and len(models) != 1:
                return Slot(annotation, tuple(marks))  # its `Expected` describes it
            annotation = models[0] if models else kinds[0]  # the other kind is the short form of the section
        else:
            return Slot(annotation, tuple(marks))


_SECRET_KEYS = ("api_key", "proxy", "url")
_NAME = expectation(slots_of(Suite)["suite"])


def faults_of(error: ValidationError, root: Slot | None = None) -> list[Fault]:
    """Return every independent error of a validation as a fault; `root` is that of another file."""
    details = error.errors(include_url=False)
    misspelt = {
        (*path[:-1], nearest(str(path[-1]), _known_keys(path[:-1], root)))
        for path in (detail["loc"] for detail in details if detail["type"] == "extra_forbidden")
    }

    def only_follows(detail: ErrorDetails) -> bool:
        """Return True for a missing key that is misspelt, a list whose entries are wrong, a default of a wrong key."""
        if detail["type"] == "missing":
            return detail["loc"] in misspelt
        return detail["type"] == "default_factory_not_called" or (detail["type"] == "too_short" and detail["input"])

    return [_fault(detail, root) for detail in details if not only_follows(detail)]


def _fault(detail: ErrorDetails, root: Slot | None) -> Fault:
    path: Path = detail["loc"]
    kind, value = detail["type"], detail["input"]
    if path and path[-1] == "[key]":  # pydantic's mark for a key of a mapping of names
        return Fault(path[:-1], f"{show_found(path[-2])} is not {_NAME}", at_key=True)
    if kind == "extra_forbidden":
        return Fault(path, _unknown_key(path, root), at_key=True)
    slot = slot_at(path, root)
    expected = expectation(slot) if slot else "nothing here"
    if kind == "missing":
        return Fault(path, f"is required and missing; expected {expected}")
    if kind == "value_error":
        return Fault(path, str(detail["ctx"]["error"]))
    if kind == "literal_error" and isinstance(value, str):
        return Fault(path, f"found {show_found(value)}; {suggestion(value, slot.choices if slot else ())}")
    secret = bool(path) and (path[-1] in _SECRET_KEYS or "headers" in path)
    found = "a value of another kind" if secret and not isinstance(value, dict | list | tuple) else show_found(value)
    remedy = ""
    if slot is not None and slot.kind is str and isinstance(value, int | float) and not isinstance(value, bool):
        is_quantity = any(isinstance(mark, Expected) and mark.quantity for mark in slot.metadata)
        remedy = "; write it with its unit" if is_quantity else "; put it in quotes"
    return Fault(path, f"found {found}; expected {expected}{remedy}")


def _unknown_key(path: Path, root: Slot | None) -> str:
    if path[-2:] == ("tls", "verify"):
        return "unknown key; certificates are always verified; name your own authority's with `ca`"
    key, known, homes = str(path[-1]), _known_keys(path[:-1], root), ""
    if root is None:
        homes = " and ".join(f"`{place}`" if place else "the top level" for place in _homes().get(key, ()))
    if homes and nearest(key, known):
        return f"unknown key here; {suggestion(key, known)} `{key}` belongs in {homes}"
    return f"unknown key here; it belongs in {homes}" if homes else f"unknown key; {suggestion(key, known)}"


@cache
def _homes() -> Mapping[str, Sequence[str]]:
    """Return the places of the sections that have each key."""
    homes: dict[str, list[str]] = {}
    for place, model in sections():
        for key in slots_of(model):
            homes.setdefault(key, []).append(place)
    return homes


def _known_keys(path: Path, root: Slot | None) -> list[str]:
    section = slot_at(path, root)
    return list(slots_of(section.model)) if section and section.model else []
