"""`benchgate schema`: the languages of its files as JSON Schema, for editors and other checkers."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from benchgate.cli.saying import say_json


class Language(StrEnum):
    """Whose schema."""

    SUITE = "suite"
    WAIVERS = "waivers"
    PRICES = "prices"


class SchemaFormat(StrEnum):
    """How a schema is printed."""

    JSON = "json"


def schema(
    language: Annotated[Language, typer.Argument(help="Of suites, or of files of waivers or prices.")] = Language.SUITE,
    output: Annotated[SchemaFormat, typer.Option("--format", help="How to print it.")] = SchemaFormat.JSON,
) -> None:
    """Print the JSON Schema (2020-12) by which editors complete a suite and mark its mistakes."""
    from benchgate.suite.json_schema import prices_schema, suite_schema, waivers_schema

    schemas = {Language.SUITE: suite_schema, Language.WAIVERS: waivers_schema, Language.PRICES: prices_schema}
    say_json(schemas[language](), ensure_ascii=False)
