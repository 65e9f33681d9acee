"""JSON schemas that answers are held to: is it one, and what tells whether a value is as it wants it.

The package jsonschema takes a tenth of a second to load, so only a suite that has a schema loads it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Protocol, cast

_REFERENCES = ("$ref", "$dynamicRef")
_LATEST = "https://json-schema.org/draft/2020-12/schema"


class Validator(Protocol):
    """What tells whether a value is as a schema wants it."""

    def is_valid(self, instance: object) -> bool:
        """Whether it is."""


def schema_problem(schema: Mapping[str, object]) -> str | None:
    """What is wrong with a JSON schema, before anything is asked after it; None when nothing is."""
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
    """ValueError for the first reference that leads to no schema: what stands outside is not looked up."""
    from referencing import Registry
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
        for reference in _references(part.contents):
            found = _followed(reference, resolver)
            _checked(found.contents, schema)  # nobody has looked there, if it stands where no schema is expected
            waiting.append((specification_with(dialect).create_resource(found.contents), found.resolver))
        waiting += [(inner, resolver.in_subresource(inner)) for inner in part.subresources()]


def _references(part: Mapping[str, object]) -> Iterator[str]:
    for key in _REFERENCES:
        reference = part.get(key)
        if isinstance(reference, str):
            yield reference


def _followed(reference: str, resolver: Any) -> Any:
    from referencing.exceptions import Unresolvable

    try:
        return resolver.lookup(reference)
    except (Unresolvable, ValueError, TypeError) as exc:  # the last two: a pointer into what is no list or mapping
        raise ValueError(f"{reference} leads nowhere inside the schema, and nothing outside it is looked up") from exc


@lru_cache(maxsize=64)
def validator_of(schema: str) -> Validator:
    """Of a schema in JSON; of the draft it names, else the latest. It looks nothing up outside itself.

    Raises ValueError when it is no schema.
    """
    from referencing import Registry

    found = json.loads(schema)
    return cast(Validator, _checked(found, found)(found, registry=Registry()))


def _checked(part: object, whole: Mapping[str, object]) -> Any:
    """The class of validators that a schema names, once it has found no fault with this part of it."""
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
