"""JSON Schema 2020-12 of suites and of files of waivers, prices and demand, for completion and checks in editors.

It has keys, types of values and spellings of quantities. Rules between sections need `benchgate plan`.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from benchgate.suite.demand_file import DemandFile
from benchgate.suite.messages import Slot, key_of, sections, slots_of
from benchgate.suite.price_file import PriceFile
from benchgate.suite.schema import Suite
from benchgate.suite.types import Written
from benchgate.suite.waivers import WaiverList
from benchgate.units import as_written

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_LANGUAGES: dict[str, type[BaseModel]] = {
    "suite": Suite, "waivers": WaiverList, "prices": PriceFile, "demand": DemandFile,
}  # fmt: skip
_LIMITS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


class _Generator(GenerateJsonSchema):
    """A generator for the text of a suite: without titles, without null, which is an error, with defaults in units."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])  # the default is in base units; `json_schema` adds it

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def json_schema(language: str) -> dict[str, Any]:
    """Return the schema of a `suite`, or of a file of `waivers`, `prices` or `demand`."""
    model = _LANGUAGES[language]
    whole = model.model_json_schema(schema_generator=_Generator)
    for _, section in sections(Slot(model, ())):
        described = whole if section is model else whole["$defs"][section.__name__]
        del described["title"]
        slots = slots_of(section)
        for name, field in section.model_fields.items():
            key, value = key_of(name, field), field.default
            show = next((mark.show for mark in slots[key].metadata if isinstance(mark, Written) and mark.show), None)
            if isinstance(value, int | float) and show is not None:
                value = as_written(show, value).replace(",", "")
            if isinstance(value, str | int | float):
                described["properties"][key]["default"] = value
    return {"$schema": DIALECT, **_tidied(whole), "title": f"benchgate {language}"}


def _tidied(node: Any) -> Any:
    """Return a schema in which bounds of numbers stand at the forms that are numbers, and names are the only keys."""
    if isinstance(node, list):
        return [_tidied(inner) for inner in node]
    if not isinstance(node, dict):
        return node
    limits = {_LIMITS.get(key, key): node[key] for key in node if key in _LIMITS or key in _LIMITS.values()}
    tidy = {key: _tidied(inner) for key, inner in node.items() if key not in _LIMITS and key not in limits}
    for form in tidy.get("anyOf", [tidy]) if limits else ():
        if form.get("type") in ("integer", "number"):
            form |= {**limits, **form}
    if "patternProperties" in tidy:
        tidy["additionalProperties"] = False
    return tidy
