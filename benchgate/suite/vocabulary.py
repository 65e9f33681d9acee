"""The keys and values the schema accepts, read off the schema itself: what stands where, and what is nearest."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from benchgate.suite.schema import Expected, Suite
from benchgate.suite.text import Path


@dataclass(frozen=True, slots=True)
class Slot:
    """A place for a value: the type that fits it, without `None`, and what the type is annotated with."""

    kind: Any
    metadata: tuple[object, ...]

    @property
    def model(self) -> type[BaseModel] | None:
        """The section that stands here, if one does."""
        return self.kind if isinstance(self.kind, type) and issubclass(self.kind, BaseModel) else None

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that fit here, when only some do."""
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    @property
    def entry(self) -> Slot | None:
        """The slot of each entry, when a list or a mapping of names stands here."""
        if get_origin(self.kind) is tuple:
            return _slot(get_args(self.kind)[0], ())
        return _slot(get_args(self.kind)[1], ()) if get_origin(self.kind) is dict else None

    @property
    def names(self) -> Slot | None:
        """The slot of the names, when a mapping of names stands here."""
        return _slot(get_args(self.kind)[0], ()) if get_origin(self.kind) is dict else None


ROOT = Slot(Suite, ())


def key_of(name: str, field: FieldInfo) -> str:
    """How a suite spells a field."""
    return field.alias or name


def slots_of(model: type[BaseModel]) -> dict[str, Slot]:
    """The keys a section accepts, in order, and what fits each."""
    return {key_of(name, field): _slot(field.annotation, field.metadata) for name, field in model.model_fields.items()}


def slot_at(path: Path, root: Slot | None = None) -> Slot | None:
    """What fits at a path of a suite, or of another file whose `root` is told; None where the language has nothing."""
    slot: Slot | None = root or ROOT
    for part in path:
        if slot is None:
            return None
        slot = slot.entry or (slots_of(slot.model).get(str(part)) if slot.model else None)
    return slot


def sections() -> Iterator[tuple[str, type[BaseModel]]]:
    """Every section of the language with its place, like `("load.sweep[]", Stage)`; the root's place is empty.

    One that stands in several places comes once, with the first of them.
    """
    met: set[type[BaseModel]] = set()
    for place, model in _sections(ROOT, ""):
        if model not in met:
            met.add(model)
            yield place, model


def _sections(slot: Slot, place: str) -> Iterator[tuple[str, type[BaseModel]]]:
    if slot.model is None:
        return
    yield place, slot.model
    for key, inner in slots_of(slot.model).items():
        below = f"{place}.{key}" if place else key
        if inner.entry is not None:
            suffix = "[]" if get_origin(inner.kind) is tuple else ".<name>"
            yield from _sections(inner.entry, below + suffix)
        else:
            yield from _sections(inner, below)


def homes_of(key: str) -> list[str]:
    """The sections in which a key means something; the root is called "the top level"."""
    return [f"`{place}`" if place else "the top level" for place, model in sections() if key in slots_of(model)]


def nearest(word: str, options: Iterable[str]) -> str | None:
    """The option most like a word, letters' case aside; None when none is like it."""
    spelled = {option.lower(): option for option in options}
    close = difflib.get_close_matches(word.lower(), spelled, n=1, cutoff=0.6)
    return spelled[close[0]] if close else None


def suggestion(word: str, options: Iterable[str]) -> str:
    """`did you mean …?`, or all the options when none is near."""
    known = list(dict.fromkeys(options))
    near = nearest(word, known)
    return f"did you mean `{near}`?" if near else f"expected one of {', '.join(known)}"


def expectation(slot: Slot) -> str:
    """What fits a slot, as a phrase."""
    for mark in reversed(slot.metadata):  # what a field says of itself stands after what its type says
        if isinstance(mark, Expected):
            return mark.phrase
    if slot.choices:
        return f"one of {', '.join(slot.choices)}"
    if slot.model is not None:
        return f"a mapping with the keys {', '.join(slots_of(slot.model))}"
    if slot.kind in (int, float):
        return ("a whole number" if slot.kind is int else "a number") + _limits(slot.metadata)
    if get_origin(slot.kind) is tuple:
        return "a list with at least one entry"
    if get_origin(slot.kind) is dict:
        return "a mapping with at least one name and what it stands for"
    return {bool: "true or false", str: "text"}.get(slot.kind, "another kind of value")


def _limits(metadata: Iterable[object]) -> str:
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
    """Peel `Annotated` and `| None` off an annotation, keeping what it was annotated with."""
    marks = list(metadata)
    while True:
        if get_origin(annotation) is Annotated:
            annotation, *more = get_args(annotation)
            marks += [mark for inner in more for mark in (inner.metadata if isinstance(inner, FieldInfo) else [inner])]
        elif get_origin(annotation) in (Union, UnionType):
            kinds = [kind for kind in get_args(annotation) if kind is not type(None)]
            models = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
            if len(kinds) > 1 and len(models) != 1:
                return Slot(annotation, tuple(marks))  # what it is annotated with says what fits
            annotation = models[0] if models else kinds[0]  # beside a section stands its short form
        else:
            return Slot(annotation, tuple(marks))
