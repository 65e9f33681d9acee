"""Whether an answer to a recorded prompt has the form that the prompt asked for. Pure.

`response_format` asks for a JSON object, or for JSON after a schema; `tools` offer calls. As in a load
(docs/metrics.md, `validity`), and stricter in one thing: the arguments of a call must satisfy the schema that its tool
gives for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from benchgate.errors import Problem
from benchgate.plan.shadow import ShadowPrompt
from benchgate.shadow.compare import Said
from benchgate.suite.formats import schema_problem
from benchgate.suite.schema import Suite
from benchgate.targets.validity import form_of_fields, response_schema, tool_schemas


def has_form(prompt: ShadowPrompt, said: Said) -> bool | None:
    """Return True if an answer has the form that its prompt asked for. None where no form was asked for."""
    return form_of_fields(prompt.fields).is_met(said.text, [(call.name, call.arguments) for call in said.calls])


def form_problems(prompt: ShadowPrompt) -> list[str]:
    """What of a prompt no answer could be held to: a `response_format` of no known kind, a schema that is none."""
    asked = prompt.fields.get("response_format")
    problems = []
    if asked is not None and not (isinstance(asked, Mapping) and asked.get("type") in _KINDS):
        problems.append(f"`response_format` has no `type` that is one of {', '.join(_KINDS)}")
    elif isinstance(asked, Mapping) and asked.get("type") == "json_schema":
        schema = response_schema(asked)
        if not isinstance(schema, Mapping) or schema_problem(schema) is not None:
            problems.append("`response_format` has no `json_schema.schema` that is a JSON schema")
    for number, schema in enumerate(tool_schemas(prompt.fields.get("tools")).values()):
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
