"""The language of suites, and of files of waivers, as JSON Schema 2020-12: what editors complete and mark from.

Read off the same types that a suite is read into. It says shapes: which keys there are, which kind of value each takes
and how quantities are written. What sections must be to each other only `benchgate validate` knows.

The language of files of prices as JSON Schema 2020-12, as `editor_schema` says that of suites.

What the keys of a suite mean, read off the page that explains them, so that editors say what the page says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import BaseModel

from benchgate.suite.messages import Slot, key_of, sections, slots_of
from benchgate.suite.price_file import ListedPrice, PriceFile
from benchgate.suite.pricing import Energy, PriceTerms, TokenPrices
from benchgate.suite.types import Written
from benchgate.suite.waivers import EXPECTED, KEYS, PATTERNS, REQUIRED
from benchgate.suite.yaml import MAX_NODES

DIALECT = "https://json-schema.org/draft/2020-12/schema"

Meanings = Mapping[tuple[str, str], str]
"""What a key means, by the place of its section as `vocabulary.sections` names it, and the key."""

_KINDS = {str: "string", bool: "boolean", int: "integer", float: "number"}
_LIMITS = {Ge: ("ge", "minimum"), Gt: ("gt", "exclusiveMinimum"), Le: ("le", "maximum"), Lt: ("lt", "exclusiveMaximum")}
_SIZES = {"string": "Length", "array": "Items", "object": "Properties"}


def suite_schema(meanings: Meanings) -> dict[str, Any]:
    """The schema of a suite. A key without a meaning is described by nothing."""
    (_, root), *others = sections()
    whole = {"$schema": DIALECT, "title": "benchgate suite", **section_schema("", root, meanings)}
    return {**whole, "$defs": {model.__name__: section_schema(place, model, meanings) for place, model in others}}


def waivers_schema() -> dict[str, Any]:
    """The schema of a file of waivers."""
    properties = {
        key: {"type": "string", "description": EXPECTED[key], **({"pattern": PATTERNS[key]} if key in PATTERNS else {})}
        for key in KEYS
    }
    entry = {"type": "object", "properties": properties, "required": list(REQUIRED), "additionalProperties": False}
    waivers = {"type": "array", "items": entry, "maxItems": MAX_NODES}
    return {
        "$schema": DIALECT,
        "title": "benchgate waivers",
        "type": "object",
        "properties": {"waivers": {"description": "Checks that are let through for a while", **waivers}},
        "required": ["waivers"],
        "additionalProperties": False,
    }


def section_schema(place: str, model: type[BaseModel], meanings: Meanings) -> dict[str, Any]:
    """That of one section; of the sections in it, references to `$defs` by the names of their models."""
    properties = {}
    for key, slot in slots_of(model).items():
        meaning = meanings.get((place, key))
        properties[key] = {**({} if meaning is None else {"description": meaning}), **_value(slot)}
    required = [key_of(name, field) for name, field in model.model_fields.items() if field.is_required()]
    return {
        "type": "object",
        "properties": properties,
        **({"required": required} if required else {}),
        "additionalProperties": False,
    }


def _value(slot: Slot) -> dict[str, Any]:
    """What may stand in a slot; of several forms any."""
    written = next((mark for mark in reversed(slot.metadata) if isinstance(mark, Written)), None)
    forms = [dict(form) for form in written.forms] if written is not None else []
    if slot.model is not None:
        forms.append({"$ref": f"#/$defs/{slot.model.__name__}"})
    elif not forms:
        forms.append(_plain(slot))
    forms = [{**_limits(form, slot), **form} for form in forms]
    return forms[0] if len(forms) == 1 else {"anyOf": forms}


def _plain(slot: Slot) -> dict[str, Any]:
    """A slot whose text is of the type that is read from it."""
    if slot.kind is Any:
        return {}
    if slot.choices:
        return {"enum": list(slot.choices)}
    if slot.kind in _KINDS:
        return {"type": _KINDS[slot.kind]}
    if slot.names is not None and slot.entry is not None:
        return {"type": "object", "propertyNames": _value(slot.names), "additionalProperties": _value(slot.entry)}
    if slot.entry is not None:
        kinds = get_args(slot.kind)
        size = {} if kinds[-1] is Ellipsis else {"minItems": len(kinds), "maxItems": len(kinds)}
        return {"type": "array", "items": _value(slot.entry), **size}
    raise AssertionError(f"nobody says how {slot.kind} ({get_origin(slot.kind)}) is written; annotate it with Written")


def _limits(form: Mapping[str, object], slot: Slot) -> dict[str, object]:
    """What the type says of size where this form is what it counts: how long texts and lists are, how large numbers."""
    limits: dict[str, object] = {}
    kind = str(form.get("type"))
    for mark in slot.metadata:
        if kind in ("integer", "number") and type(mark) in _LIMITS and _counts(slot):
            name, word = _LIMITS[type(mark)]
            limits[word] = getattr(mark, name)
        elif isinstance(mark, MinLen) and kind in _SIZES:
            limits[f"min{_SIZES[kind]}"] = mark.min_length
        elif isinstance(mark, MaxLen) and kind in _SIZES:
            limits[f"max{_SIZES[kind]}"] = mark.max_length
    return limits


def _counts(slot: Slot) -> bool:
    """Whether a bare number in the text is in the unit of what is read from it."""
    return slot.kind is int or not any(isinstance(mark, Written) for mark in slot.metadata)


_MEANT = {
    ("", "prices"): "What deployments cost, each from a day on and until another one.",
    ("prices[]", "deployment"): "Whose price it is, by its name in the suites; or say `accelerator`.",
    ("prices[]", "accelerator"): "Of deployments on what their suites call so, and that have none by name.",
    ("prices[]", "price"): "Of one accelerator for an hour; or say `token_prices`.",
    ("prices[]", "price_terms"): "How it was bought, and what is paid beside it.",
    ("prices[]", "token_prices"): "Of a hosted model, by its `deployment`: for a million tokens of each kind.",
    ("prices[]", "from"): "Its first day, in UTC. Unless said: all days before.",
    ("prices[]", "until"): "Its last day, in UTC. Unless said: for good.",
}


def prices_schema(meanings: Meanings) -> dict[str, Any]:
    """The schema of a file of prices; `meanings` are those of suites, with which it shares its terms."""
    places = {model: place for place, model in sections()}
    shared = {
        model.__name__: section_schema(places[model], model, meanings) for model in (PriceTerms, Energy, TokenPrices)
    }
    listed = section_schema("prices[]", ListedPrice, _MEANT)
    whole = {"$schema": DIALECT, "title": "benchgate prices", **section_schema("", PriceFile, _MEANT)}
    return {**whole, "$defs": {ListedPrice.__name__: listed, **shared}}


_HEADING = re.compile(r"^## (?:`(?P<place>[^`]+)`|(?P<top>The top level))$")
_ROW = re.compile(r"^\| `(?P<key>[^`]+)` \|(?P<rest>.*)\|$")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_METRICS = "<!-- metrics -->"


def meanings_of(page: str) -> dict[tuple[str, str], str]:
    """Meaning and default of every key, by the place of its section and the key; the top level's place is empty.

    `page` is the text of docs/suites.md: one heading for each section, with a row `| key | value | default | meaning |`
    for each of its keys.
    """
    return dict(_rows(page))


def _rows(page: str) -> Iterator[tuple[tuple[str, str], str]]:
    place: str | None = None
    for line in page.splitlines():
        if line.startswith(("## ", _METRICS)):
            heading = _HEADING.match(line)
            place = None if heading is None else heading["place"] or ""
        row = _ROW.match(line)
        if row is not None and place is not None:
            cells = [_bare(cell) for cell in row["rest"].split(" | ")]
            if len(cells) == 3:
                yield (place, row["key"]), _sentence(*cells)


def _sentence(value: str, default: str, meaning: str) -> str:
    usual = "Required" if default == "required" else f"Unless said: {default}"
    return f"{meaning.rstrip('.')}. Value: {value}. {usual}."


def _bare(cell: str) -> str:
    """Without the marks of markdown."""
    return _LINK.sub(r"\1", cell).replace("`", "").replace("\\|", "|").strip()
