"""Whether an answer is what its request asked it to be: JSON after a schema, or calls of tools that were offered."""

from __future__ import annotations

from collections.abc import Mapping

from benchgate.load.answer_text import Key, Words
from benchgate.model.request import ModelRequest
from benchgate.targets.answer_form import accepts, callable_tools, json_value


def is_judged(ask: ModelRequest) -> bool:
    """Whether answers to this are valid or not; others are neither."""
    return ask.schema is not None or bool(ask.fields.get("tools"))


def is_valid(ask: ModelRequest, words: Words) -> bool | None:
    """Whether an answer is what was asked for. None when its validity is not judged.

    With a schema, all of the text must be JSON that the schema accepts; text around it is for nobody to cut off. Where
    tools are offered, every call must be one of them, its arguments a JSON object, and there must be a call where one
    is required; then a schema leaves the text of an answer that calls only the choice to be empty. An answer in words
    to an offer is neither valid nor invalid. A call that nobody offered stands for nothing.
    """
    offered = bool(ask.fields.get("tools"))
    if offered and words.arguments:
        silent = ask.schema is None or not words.text.strip() or accepts(ask.schema, words.text)
        return silent and all(_calls(ask, words, key) for key in words.arguments)
    choice = ask.fields.get("tool_choice")
    if offered and (choice == "required" or isinstance(choice, dict)):
        return False
    return None if ask.schema is None else accepts(ask.schema, words.text)


def _calls(ask: ModelRequest, words: Words, key: Key) -> bool:
    """Whether this is a call that was asked for. A tool that needs no argument may be called with an empty text."""
    name, arguments = words.names.get(key), words.arguments[key]
    tools = ask.fields.get("tools")
    if name is None or name not in callable_tools(tools, ask.fields.get("tool_choice")):
        return False
    if arguments.strip():
        return isinstance(json_value(arguments), dict)
    parameters = callable_tools(tools, None).get(name, {}).get("parameters")
    return not isinstance(parameters, Mapping) or accepts(parameters, "{}")
