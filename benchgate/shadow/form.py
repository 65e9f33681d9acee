"""Whether an answer to a recorded prompt has the form that the prompt asked for. Pure.

`response_format` asks for a JSON object, or for JSON after a schema; `tools` offer calls. As in a load
(docs/metrics.md, `validity`), and stricter in one thing: the arguments of a call must satisfy the schema that its tool
gives for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from benchgate.errors import Problem
from benchgate.plan.items import ShadowPrompt
from benchgate.shadow.compare import Said
from benchgate.suite.formats import schema_problem
from benchgate.suite.schema import Suite
from benchgate.targets.answer import ToolCall
from benchgate.targets.answer_form import accepts, callable_tools, json_value


def has_form(prompt: ShadowPrompt, said: Said) -> bool | None:
    """Whether an answer has the form asked for; None where none was, and for words where tools were offered."""
    tools, choice = prompt.fields.get("tools"), prompt.fields.get("tool_choice")
    asked = prompt.fields.get("response_format")
    if tools and said.calls:
        offered = callable_tools(tools, choice)
        parameters = _parameters(tools)
        silent = not said.text.strip() or _fits(asked, said.text) is not False
        return silent and all(_is_sound(call, offered, parameters) for call in said.calls)
    if tools and (choice == "required" or isinstance(choice, dict)):
        return False
    return _fits(asked, said.text)


def form_problems(prompt: ShadowPrompt) -> list[str]:
    """What of a prompt no answer could be held to: a `response_format` of no known kind, a schema that is none."""
    asked = prompt.fields.get("response_format")
    problems = []
    if asked is not None and not (isinstance(asked, Mapping) and asked.get("type") in _KINDS):
        problems.append(f"`response_format` has no `type` that is one of {', '.join(_KINDS)}")
    elif isinstance(asked, Mapping) and asked.get("type") == "json_schema":
        schema = _schema(asked)
        if not isinstance(schema, Mapping) or schema_problem(schema) is not None:
            problems.append("`response_format` has no `json_schema.schema` that is a JSON schema")
    for number, schema in enumerate(_parameters(prompt.fields.get("tools")).values()):
        if schema_problem(schema) is not None:
            problems.append(f"the `parameters` of `tools[{number}]` are no JSON schema")
    return problems


def unasked_form(suite: Suite, prompts: Sequence[ShadowPrompt]) -> Iterator[Problem]:
    """Checks of the form of answers, where no prompt asks for one: they could never be judged."""
    if suite.shadow is None or any(map(_asks_for_form, prompts)):
        return
    for number, check in enumerate(suite.gate.checks):
        if check.metric == "shadow_validity":
            what = f"no prompt of {suite.shadow.prompts} asks for a form (`response_format` or `tools`)"
            message = f"{what}, so no answer has one; draw prompts that do, or remove the check"
            yield Problem("", None, None, f"gate.checks[{number}].metric", message)


def _asks_for_form(prompt: ShadowPrompt) -> bool:
    asked = prompt.fields.get("response_format")
    return bool(prompt.fields.get("tools")) or (isinstance(asked, Mapping) and asked.get("type") != "text")


_KINDS = ("text", "json_object", "json_schema")


def _fits(asked: object, text: str) -> bool | None:
    kind = asked.get("type") if isinstance(asked, Mapping) else None
    if kind == "json_object":
        return isinstance(json_value(text), dict)
    schema = _schema(asked) if isinstance(asked, Mapping) and kind == "json_schema" else None
    return accepts(schema, text) if isinstance(schema, Mapping) else None


def _schema(asked: Mapping[str, object]) -> object:
    inner = asked.get("json_schema")
    return inner.get("schema") if isinstance(inner, Mapping) else None


def _parameters(tools: object) -> dict[str, Mapping[str, object]]:
    """The schema of every tool's arguments, by the tool's name."""
    said = callable_tools(tools, None)
    return {name: schema for name, tool in said.items() if isinstance(schema := tool.get("parameters"), Mapping)}


def _is_sound(call: ToolCall, offered: Mapping[str, object], parameters: Mapping[str, Mapping[str, object]]) -> bool:
    arguments = call.arguments if call.arguments.strip() else "{}"
    if call.name not in offered or not isinstance(json_value(arguments), dict):
        return False
    schema = parameters.get(call.name)
    return schema is None or accepts(schema, arguments)
