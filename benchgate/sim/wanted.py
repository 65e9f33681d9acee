"""What an answer must be where it is not to be plain words: JSON, JSON of a schema, or the call of a tool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchgate.sim.refused import Refused
from benchgate.sim.shapes import JSON_OBJECT


@dataclass(frozen=True, slots=True)
class Wanted:
    """The schema of the answer, or of the arguments of the tool it calls; `param` is where it was said."""

    schema: Mapping[str, object] | None = None
    tool: str | None = None
    param: str = "response_format"


PLAIN = Wanted()
"""Words."""


def read_wanted(endpoint: str, data: Mapping[str, Any], key: int) -> Wanted:
    """Raises Refused where it is said in a way that is not known."""
    tool = _tool(endpoint, data, key)
    if tool is not None:
        return tool
    if endpoint == "responses":
        text = data.get("text")
        return _format(text.get("format") if isinstance(text, Mapping) else None, "text.format")
    structured = data.get("structured_outputs")
    if isinstance(structured, Mapping) and structured.get("json") is not None:
        return Wanted(_schema(structured["json"], "structured_outputs"), param="structured_outputs")
    return _format(data.get("response_format"), "response_format")


def _format(form: object, param: str) -> Wanted:
    """`{"type": "json_schema", "json_schema": {"schema": …}}`, or the schema without the second level in a response."""
    if form is None:
        return PLAIN
    kind = form.get("type") if isinstance(form, Mapping) else None
    if isinstance(form, Mapping) and kind == "json_schema":
        inner = form.get("json_schema", form)
        return Wanted(_schema(inner.get("schema") if isinstance(inner, Mapping) else None, param), param=param)
    if kind == "json_object":
        return Wanted(JSON_OBJECT, param=param)
    if kind == "text":
        return PLAIN
    raise Refused(400, f"{param} must have the type text, json_object or json_schema", "Bad Request", param)


def _tool(endpoint: str, data: Mapping[str, Any], key: int) -> Wanted | None:
    """The tool that is called: the one that is named, or any, for a server that is given tools uses one."""
    tools, choice = data.get("tools"), data.get("tool_choice", "auto")
    if not tools or choice == "none" or endpoint == "completions":
        return None
    functions = [_function(tool) for tool in tools] if isinstance(tools, list) else []
    named = _function(choice).get("name") if isinstance(choice, Mapping) else None
    matching = [function for function in functions if named in (None, function.get("name"))]
    if not matching:
        raise Refused(400, "tool_choice names a tool that is not among the tools", "Bad Request", "tool_choice")
    function = matching[key % len(matching)]
    name = function.get("name")
    if not isinstance(name, str):
        raise Refused(400, "1 validation error: a tool has no name", "Bad Request", "body.tools")
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    return Wanted(_schema(parameters, "tools"), name, "tools")


def _function(tool: object) -> Mapping[str, Any]:
    """A tool of a chat holds its function, a tool of a response is it."""
    inner = tool.get("function", tool) if isinstance(tool, Mapping) else None
    return inner if isinstance(inner, Mapping) else {}


def _schema(schema: object, param: str) -> Mapping[str, object]:
    if not isinstance(schema, Mapping):
        raise Refused(400, f"{param} needs a JSON schema that is an object", "Bad Request", param)
    return schema
