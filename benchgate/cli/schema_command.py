"""`benchgate schema`: the languages of its files as JSON Schema, for editors and other checkers."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from benchgate.cli.places import page_of_suites
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
    from benchgate.suite.json_schema import meanings_of, prices_schema, suite_schema, waivers_schema

    if language is Language.WAIVERS:
        found = waivers_schema()
    else:
        meanings = meanings_of(page_of_suites().read_text(encoding="utf-8"))
        found = suite_schema(meanings) if language is Language.SUITE else prices_schema(meanings)
    say_json(found, ensure_ascii=False)
