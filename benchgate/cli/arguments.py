"""What is wrong with an argument of the command line, in words of our own: Typer repeats those of its validator."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

_KINDS = {
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a whole number that is not so large",
    "float_parsing": "a number",
    "bool_parsing": "true or false",
}
_BOUNDS = {
    "greater_than_equal": ("ge", "{} or more"),
    "greater_than": ("gt", "more than {}"),
    "less_than_equal": ("le", "at most {}"),
    "less_than": ("lt", "less than {}"),
}


class Commands(TyperGroup):
    """Commands whose arguments are refused with what was found and what was expected."""

    def invoke(self, ctx: Any) -> Any:
        """Raises typer.BadParameter, which ends the command with 2."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as refused:
            message = _words(refused.__cause__)
            if message is None:
                raise
            raise typer.BadParameter(message, ctx=refused.ctx, param=refused.param) from refused


def _words(cause: BaseException | None) -> str | None:
    """What a validator's error says; None where it was none, or where its own words are as good."""
    from pydantic import ValidationError

    if not isinstance(cause, ValidationError):
        return None
    detail = cause.errors(include_url=False)[0]
    kind, found, context = detail["type"], detail["input"], detail.get("ctx", {})
    if kind in _KINDS:
        return f"found {found!r}; expected {_KINDS[kind]}"
    if kind in _BOUNDS:
        bound, words = _BOUNDS[kind]
        return f"found {found!r}; expected {words.format(context[bound])}"
    return str(context["error"]) if kind == "value_error" else None
