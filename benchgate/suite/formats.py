"""Formats of data that suites refer to: JSON Lines with ids, paths into JSON, JSON schemas of answers.

The package jsonschema takes a tenth of a second to import, so it is imported only for a suite that has a schema.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, cast

from benchgate.errors import Problem


@dataclass(frozen=True, slots=True)
class Row:
    """A JSON object of a file, and its line, counted from 1."""

    line: int
    values: dict[str, object]


def parse_rows(text: str, source: str, *, quote: bool = True) -> tuple[list[Row], list[Problem]]:
    """Return the valid rows in order, and a problem for each invalid one. Empty lines are skipped.

    A row is a JSON object with a text `id` that no earlier row has: answers are paired by it. Without `quote` no
    problem repeats the content of a row, except ids.
    """
    rows: list[Row] = []
    problems: list[Problem] = []
    first_line: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            values = parse_object(line, quote=quote)
            row_id = values.get("id")
            if not isinstance(row_id, str) or not row_id:
                found = f"`id` is {json.dumps(row_id)}" if "id" in values else "the row has no `id`"
                raise ValueError(f"{found}; give every row its own text `id`, because answers are paired by it")
            earlier = first_line.setdefault(row_id, number)
            if earlier != number:
                raise ValueError(f"`id` {row_id!r} is already used on line {earlier}; ids must be unique")
        except ValueError as exc:
            problems.append(Problem(source, number, None, "", str(exc)))
        else:
            rows.append(Row(number, values))
    if not rows and not problems:
        problems.append(Problem(source, None, None, "", "the file has no rows; write one JSON object per line"))
    return rows, problems


def parse_object(line: str, *, quote: bool = True) -> dict[str, object]:
    """Parse one JSON object. Raises ValueError with a remedy; without `quote` it repeats nothing of the line."""
    try:
        values = parse_json(line)
    except json.JSONDecodeError as exc:
        raise ValueError(f"not JSON: {exc.msg} at column {exc.colno}; write one JSON object per line") from None
    except ValueError as exc:
        raise exc if quote else ValueError("holds what JSON cannot carry, or a key twice; take the row out") from None
    if not isinstance(values, dict):
        found = line.strip()[:40] if quote else "the line"
        raise ValueError(f'{found} is not a JSON object; write {{"id": "…", …}}')
    return values


def load_json(text: str | bytes) -> object:
    """Parse JSON whose objects have every key once and whose numbers are finite.

    Raises JSONDecodeError, ValueError, and RecursionError for what is nested too deeply.
    """
    value: object = json.loads(text, parse_constant=_refuse_number, parse_float=_finite, object_pairs_hook=unique_keys)
    return value


def parse_json(text: str) -> object:
    """Parse a JSON value that can be sent on. Raises JSONDecodeError, or ValueError for what cannot be sent."""
    try:
        value = load_json(text)
        written = json.dumps(value, ensure_ascii=False)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if holds_half_a_pair(written):
        raise ValueError(HALF_A_PAIR)
    return value


HALF_A_PAIR = "holds half of a surrogate pair (\\ud800 to \\udfff), which is no text; write the character itself"


def holds_half_a_pair(text: str) -> bool:
    """Return True for text with half of a surrogate pair, which cannot be sent or stored."""
    return re.search("[\ud800-\udfff]", text) is not None


class RepeatedKey(ValueError):
    """A key that an object has twice."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(f"the key {key!r} is written twice in one object")


def unique_keys(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    """Return the pairs as a dictionary. Raises RepeatedKey."""
    values = dict(pairs)
    if len(values) != len(pairs):
        keys = [key for key, _ in pairs]
        raise RepeatedKey(next(key for key in keys if keys.count(key) > 1))
    return values


def _finite(digits: str) -> float:
    value = float(digits)
    return value if math.isfinite(value) else _refuse_number(digits)


def _refuse_number(found: str) -> float:
    raise ValueError(f"{found} is not a number that JSON can carry; write a finite one or null")


_STEP = re.compile(
    r"""(?P<deep>\.\.)(?P<deep_key>[A-Za-z_][\w-]*)
      | \.(?P<key>[A-Za-z_][\w-]*)
      | \.(?P<every_key>\*)
      | \[(?P<index>\d{1,9})\]
      | \[(?P<every>\*)\]
      | \["(?P<quoted>[^"\\]*)"\]
      | \['(?P<single>[^'\\]*)'\]""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a path: a key, a position in a list, or (None) all there are. `deep`: at any depth below."""

    of: str | int | None
    deep: bool = False


def parse_path(text: str) -> tuple[Step, ...]:
    """Parse a path like `$.items[*].ts` or `$..created`. Raises ValueError, with a remedy, for any other text."""
    example = 'write it like $.id, $.items[*].ts, $["a key"] or $..created'
    if not text.startswith("$"):
        raise ValueError(f"{text!r} is no path into JSON; {example}")
    steps, at = [], 1
    while at < len(text):
        match = _STEP.match(text, at)
        if match is None:
            raise ValueError(f"{text!r} is no path into JSON from character {at + 1} on; {example}")
        if match["deep"]:
            steps.append(Step(match["deep_key"], deep=True))
        elif match["index"]:
            steps.append(Step(int(match["index"])))
        elif match["every"] or match["every_key"]:
            steps.append(Step(None))
        else:
            steps.append(Step(next(match[name] for name in ("key", "quoted", "single") if match[name] is not None)))
        at = match.end()
    if not steps:
        raise ValueError(f"{text!r} is the whole of every answer, and then nothing is compared; {example}")
    if all(step.of is None for step in steps):
        raise ValueError(f"{text!r} leads to everything at some depth, and then little is compared; {example}")
    return tuple(steps)


_LATEST = "https://json-schema.org/draft/2020-12/schema"


class Validator(Protocol):
    """A validator of a JSON schema."""

    def is_valid(self, instance: object) -> bool:
        """Return True if a value satisfies the schema."""


def schema_problem(schema: Mapping[str, object]) -> str | None:
    """Return what is wrong with a JSON schema; None for a valid one."""
    try:
        validator = validator_of(json.dumps(schema))
        _check_references(schema)
        validator.is_valid(None)  # which ends, unless the schema leads back to itself
    except RecursionError:
        return "it leads back to itself before it says anything, or is nested too deeply"
    except ValueError as exc:
        return str(exc)
    return None


def _check_references(schema: Mapping[str, object]) -> None:
    """Raise ValueError for the first reference that leads outside the schema or nowhere."""
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import specification_with

    dialect = str(schema.get("$schema", _LATEST))
    resource = specification_with(dialect).create_resource(schema)
    waiting, seen = [(resource, Registry().resolver_with_root(resource))], set[int]()
    while waiting:
        part, resolver = waiting.pop()
        if id(part.contents) in seen or not isinstance(part.contents, Mapping):
            continue
        seen.add(id(part.contents))
        if part.contents.get("$schema", dialect) != dialect:
            raise ValueError(f"`$schema` inside it is another than its own ({dialect})")
        for reference in (part.contents.get(key) for key in ("$ref", "$dynamicRef")):
            if not isinstance(reference, str):
                continue
            try:
                found = resolver.lookup(reference)
            except (Unresolvable, ValueError, TypeError) as exc:  # the last two: a pointer into a number or text
                nowhere = f"{reference} leads nowhere inside the schema"
                raise ValueError(f"{nowhere}, and nothing outside it is looked up") from exc
            _checked(found.contents, schema)  # not checked yet if it lies where no schema is expected
            waiting.append((specification_with(dialect).create_resource(found.contents), found.resolver))
        waiting += [(inner, resolver.in_subresource(inner)) for inner in part.subresources()]


@lru_cache(maxsize=64)
def validator_of(schema: str) -> Validator:
    """Return the validator of a schema in JSON, by its draft or the latest. Raises ValueError if it is no schema."""
    from referencing import Registry

    found = json.loads(schema)
    return cast(Validator, _checked(found, found)(found, registry=Registry()))


def _checked(part: object, whole: Mapping[str, object]) -> Any:
    """Check a part of a schema, and return the class of validators for the draft that the whole names."""
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import Draft202012Validator, validator_for
    from referencing.jsonschema import UnknownDialect, specification_with

    named = whole.get("$schema", _LATEST)
    try:
        specification_with(named if isinstance(named, str) else "")
    except UnknownDialect as exc:
        what = f"`$schema` is {json.dumps(named)[:80]}, which is no known draft"
        raise ValueError(f'{what}; write "{_LATEST}" or leave it out') from exc
    kind: Any = validator_for({"$schema": named}, default=Draft202012Validator)
    try:
        kind.check_schema(part, format_checker=kind.FORMAT_CHECKER)  # which reads its patterns too
    except SchemaError as exc:
        raise ValueError(f"{exc.json_path}: {exc.message}") from exc
    return kind
