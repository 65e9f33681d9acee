"""Text of answers: deterministic words, and instances of a JSON schema padded to a length."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

WORDS = (
    " river", " stone", " cloud", " light", " north", " table", " green", " bread",
    " water", " house", " field", " music", " paper", " glass", " horse", " sugar",
    " chair", " plant", " night", " earth", " ocean", " metal", " sound", " storm",
    " grain", " coast", " train", " brush", " crane", " flame", " orbit", " shelf",
    " ridge", " tower", " wheel", " amber", " basin", " cedar", " delta", " ember",
    " frost", " grove", " heron", " ivory", " jewel", " knoll", " lemon", " maple",
    " naval", " olive", " pearl", " quilt", " raven", " sable", " thorn", " umber",
    " vivid", " wheat", " yacht", " zebra", " alder", " birch", " coral", " dunes",
)  # fmt: skip
MASK = len(WORDS) - 1  # the number of words is a power of two
LAP_BITS = MASK.bit_length()

# Reasoning before the answer, the answer, and the arguments of a tool call.
TokenKind = Literal["reasoning", "content", "tool"]


def start_of(key: int) -> int:
    """Return the index of the first word of a key."""
    return key >> 8


def stride_of(key: int) -> int:
    """Return the distance between two words of a key in the first lap: odd, so that every word has its turn."""
    return (key & 0x3F) | 1


def word(key: int, index: int) -> str:
    """Return a word with its space. The stride grows by 2 every 64 words: an answer repeats after 2,048 words."""
    return WORDS[(start_of(key) + index * (stride_of(key) + (index >> LAP_BITS << 1))) & MASK]


@dataclass(frozen=True, slots=True)
class AnswerText:
    """Text of an answer; `pieces`, over and over, replace the words after the reasoning.

    `second_from` begins a second choice.
    """

    key: int
    thought_tokens: int = 0
    pieces: tuple[str, ...] | None = None
    tool: str | None = None
    second_from: int | None = None

    @property
    def plain(self) -> bool:
        """Return True if every token is a word of the answer."""
        return not self.thought_tokens and self.pieces is None and self.second_from is None

    def text(self, first: int, count: int) -> str:
        """Return the text of `count` tokens from that index on."""
        start = first - self.thought_tokens
        if self.pieces and start >= 0:
            return "".join(self.pieces[at % len(self.pieces)] for at in range(start, start + count))
        return "".join(word(self.key, index) for index in range(first, first + count))

    def spans(self, first: int, count: int) -> Iterator[tuple[TokenKind, int, int]]:
        """Yield the runs of equal kind among these tokens: kind, first token and number of tokens."""
        thought = max(0, min(count, self.thought_tokens - first))
        if thought:
            yield "reasoning", first, thought
        if count > thought:
            yield "content" if self.tool is None else "tool", first + thought, count - thought


_MOST_NESTED = 16
_KNOWN = frozenset({
    "type", "properties", "required", "additionalProperties", "items", "minItems", "maxItems", "enum", "const",
    "anyOf", "oneOf", "$ref", "$defs", "definitions", "minLength", "maxLength", "minimum", "maximum",
    "exclusiveMinimum", "exclusiveMaximum", "title", "description", "default", "examples", "$schema", "$id",
    "format", "strict",
})  # fmt: skip
# Schema of an answer of the type json_object.
JSON_OBJECT: Mapping[str, object] = {"type": "object", "properties": {"answer": {"type": "string"}}}


class Unsupported(ValueError):
    """A schema with a keyword that is not supported, or that contradicts itself."""


@dataclass(frozen=True, slots=True)
class _Free:
    """A string of any number of words."""


class _Instance:
    def __init__(self, schema: Mapping[str, object], key: int) -> None:
        self._root = schema
        self._key = key

    def of(self, schema: object, depth: int = 0) -> object:
        """Return a value that the schema allows. Raises Unsupported."""
        if schema is True:
            return _Free()
        if not isinstance(schema, Mapping) or depth > _MOST_NESTED:
            raise Unsupported("it is no schema" if depth <= _MOST_NESTED else f"it nests deeper than {_MOST_NESTED}")
        unknown = sorted(set(schema) - _KNOWN)
        if unknown:
            raise Unsupported(f"this server does not know the keyword {unknown[0]!r}")
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            values = schema["enum"]
            if not isinstance(values, list) or not values:
                raise Unsupported("an enum has no values")
            return values[self._key % len(values)]
        for choice in ("anyOf", "oneOf"):
            if choice in schema:
                return self.of(self._first(schema[choice]), depth + 1)
        if "$ref" in schema:
            place = schema["$ref"]
            found: object = self._root
            for step in str(place).removeprefix("#/").split("/"):
                if not isinstance(found, Mapping) or step not in found:
                    raise Unsupported(f"{place!r} refers to nothing in it")
                found = found[step]
            return self.of(found, depth + 1)
        return self._typed(schema, depth)

    def _typed(self, schema: Mapping[str, object], depth: int) -> object:
        kind = schema.get("type", "object" if "properties" in schema else "string")
        kind = self._first(kind) if isinstance(kind, list) else kind
        if kind == "object":
            properties, required = schema.get("properties", {}), schema.get("required", [])
            if not isinstance(properties, Mapping) or not isinstance(required, list):
                raise Unsupported("the properties of an object are no map, or what it requires is no list")
            missing: dict[str, object] = {str(name): True for name in required if name not in properties}
            return {str(name): self.of(inner, depth + 1) for name, inner in {**properties, **missing}.items()}
        if kind == "array":
            least, most = _bound(schema, "minItems") or 1, _bound(schema, "maxItems")
            count = least if most is None else min(least, most)
            return [self.of(schema.get("items", True), depth + 1) for _ in range(count)]
        if kind == "string":
            shortest, longest = _bound(schema, "minLength") or 0, _bound(schema, "maxLength")
            if longest is None and not shortest:
                return _Free()
            text = word(self._key, 0).strip()
            text += "x" * max(0, shortest - len(text))
            return text if longest is None else text[:longest]
        if kind in ("integer", "number"):
            whole = kind == "integer"
            for bound, step in (("minimum", 0), ("exclusiveMinimum", 1), ("maximum", 0), ("exclusiveMaximum", -1)):
                value = schema.get(bound)
                if isinstance(value, int | float) and not isinstance(value, bool):
                    within = value + step if whole else value + step / 1024
                    return int(within) if whole else within
            return self._key % 100 if whole else self._key % 1000 / 10
        if kind == "boolean":
            return bool(self._key & 1)
        if kind == "null":
            return None
        raise Unsupported(f"there is no type {kind!r}")

    def _first(self, values: object) -> object:
        if not isinstance(values, list) or not values:
            raise Unsupported("a choice has nothing to choose from")
        return values[0]


def json_pieces(schema: Mapping[str, object], key: int, tokens: int, *, cut: bool) -> tuple[str, ...]:
    """Return an instance as `tokens` tokens, padded, or truncated with `cut`. Raises Unsupported."""
    value = _Instance(schema, key).of(schema)
    pieces = list(_Writer(key, 0).write(value))
    if len(pieces) < tokens:
        pieces = list(_Writer(key, tokens - len(pieces)).write(value))
        pieces += ["\n"] * (tokens - len(pieces))
    return tuple(pieces[:tokens] if cut else pieces)


def corrupted(pieces: tuple[str, ...], key: int) -> tuple[str, ...]:
    """Replace the last sign by a word: the text is invalid JSON afterwards."""
    last = max(index for index, piece in enumerate(pieces) if piece.strip())
    return (*pieces[:last], word(key, 7), *pieces[last + 1 :])


class _Writer:
    """Writes a value token by token; the first string of any length gets all spare words."""

    def __init__(self, key: int, spare: int) -> None:
        self._key = key
        self._spare = spare

    def write(self, value: object) -> Iterator[str]:
        """Yield the tokens of the value."""
        if isinstance(value, _Free):
            more, self._spare = self._spare, 0
            yield '"' + word(self._key, 0).strip()
            yield from (word(self._key, index) for index in range(1, 1 + more))
            yield '"'
        elif isinstance(value, dict):
            yield from self._members("{}", [(f"{json.dumps(name)}: ", inner) for name, inner in value.items()])
        elif isinstance(value, list):
            yield from self._members("[]", [("", inner) for inner in value])
        else:
            yield json.dumps(value)

    def _members(self, brackets: str, members: list[tuple[str, object]]) -> Iterator[str]:
        yield brackets[0]
        for number, (name, inner) in enumerate(members):
            if number:
                yield ", "
            if name:
                yield name
            yield from self.write(inner)
        yield brackets[1]


def _bound(schema: Mapping[str, object], name: str) -> int | None:
    value = schema.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise Unsupported(f"{name} is {value!r}, which is no number of things")
    return value
