"""Recorded prompts: a JSON Lines file read for a shadow comparison, and the answer form that a prompt requests.

The file holds text of users, so no problem quotes more of a row than its id and the names of its keys.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, cast

from benchgate.errors import Problem, SuiteError
from benchgate.plan.items import ShadowPrompt
from benchgate.suite.formats import Row, parse_rows, schema_problem
from benchgate.suite.schema import Suite
from benchgate.system import RECORDED_BYTES, read_text_file
from benchgate.targets.validity import response_schema, tool_schemas

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
# Keys of a row that are sent unchanged beside the messages.
REQUEST_FIELDS = ("tools", "tool_choice", "parallel_tool_calls", "response_format", "stop")
_KEYS = ("id", "prompt", "messages", *REQUEST_FIELDS, "max_tokens", "endpoint", "stratum", "length", "redacted")
_MAX_TOKENS = 1_000_000
_FORMATS = ("text", "json_object", "json_schema")


def load_prompts(path: Path) -> tuple[ShadowPrompt, ...]:
    """Read prompts in file order: rows of an `id` and a `prompt`, or `messages` as OpenAI spells them.

    Raises SuiteError with every problem and its line: an unreadable file, invalid JSON, a repeated `id`, an empty
    prompt, an unknown key, keys that contradict each other, an answer form that cannot be checked.
    """
    source = str(path)
    try:
        text = read_text_file(path, RECORDED_BYTES)
    except (OSError, UnicodeDecodeError) as exc:
        # The error's own words would repeat the bytes.
        why = f"byte {exc.start} is not UTF-8" if isinstance(exc, UnicodeDecodeError) else exc.strerror
        reason = f"the recorded prompts cannot be read ({why}); name a JSONL file of them"
        raise SuiteError([Problem(source, None, None, "", reason)]) from exc
    rows, problems = parse_rows(text, source, quote=False)
    faults = [Problem(source, row.line, None, "", message) for row in rows for message in _row_problems(row)]
    problems += faults
    if len(problems) > 1 and not {row.line for row in rows} - {fault.line for fault in faults}:
        none = f"none of its {len({problem.line for problem in problems}):,} lines is a recorded prompt"
        first = min(problems, key=lambda problem: problem.line or 0)
        message = f"{first.message}. {none}; from a log of requests draw them with `benchgate shadow sample`"
        raise SuiteError([replace(first, message=message)])
    if problems:
        raise SuiteError(problems)
    prompts = [(row.line, _prompt(row.values)) for row in rows]
    problems = [
        Problem(source, line, None, "", what) for line, prompt in prompts for what in form_problems(prompt.fields)
    ]
    if problems:
        raise SuiteError(problems)
    return tuple(prompt for _, prompt in prompts)


def form_problems(fields: Mapping[str, object]) -> list[str]:
    """Return the reasons why no answer can be checked: an unknown `response_format`, an invalid JSON schema."""
    requested = fields.get("response_format")
    problems = []
    if requested is not None and not (isinstance(requested, Mapping) and requested.get("type") in _FORMATS):
        problems.append(f"`response_format` has no `type` that is one of {', '.join(_FORMATS)}")
    elif isinstance(requested, Mapping) and requested.get("type") == "json_schema":
        schema = response_schema(requested)
        if not isinstance(schema, Mapping) or schema_problem(schema) is not None:
            problems.append("`response_format` has no `json_schema.schema` that is a JSON schema")
    for number, schema in enumerate(tool_schemas(fields.get("tools")).values()):
        if schema_problem(schema) is not None:
            problems.append(f"the `parameters` of `tools[{number}]` are no JSON schema")
    return problems


def unmeasurable_checks(suite: Suite, prompts: Sequence[ShadowPrompt]) -> Iterator[Problem]:
    """Yield a problem for each check of the answer form if no prompt requests one."""
    if suite.shadow is None or any(prompt.requests_form for prompt in prompts):
        return
    for number, check in enumerate(suite.gate.checks):
        if check.metric == "shadow_validity":
            what = f"no prompt of {suite.shadow.prompts} requests an answer form (`response_format` or `tools`)"
            message = f"{what}, so validity cannot be measured; draw prompts that do, or remove the check"
            yield Problem("", None, None, f"gate.checks[{number}].metric", message)


def _prompt(values: Mapping[str, object]) -> ShadowPrompt:
    messages = cast("list[Mapping[str, object]]", values.get("messages", []))
    spelled = json.dumps(messages, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return ShadowPrompt(
        id=str(values["id"]),
        prompt=spelled if messages else str(values["prompt"]),
        messages=tuple(messages),
        fields={key: values[key] for key in REQUEST_FIELDS if values.get(key) is not None},
        endpoint=cast('Literal["chat", "completions", "messages"]', values.get("endpoint", "chat")),
        max_tokens=cast("int | None", values.get("max_tokens")),
        stratum=cast("str | None", values.get("stratum")),
    )


def _row_problems(row: Row) -> Iterator[str]:
    values = row.values
    if "messages" in values:
        yield from _message_problems(values)
    elif not isinstance(prompt := values.get("prompt"), str) or not prompt.strip():
        yield "`prompt` is missing or empty; it must be the text to send (or write `messages`)"
    endpoint = values.get("endpoint", "chat")
    if endpoint not in ("chat", "completions", "messages"):
        yield "`endpoint` is none of chat, completions and messages"
    elif endpoint == "completions":
        for key in ("messages", *REQUEST_FIELDS):
            if key in values and key != "stop":
                yield f"`{key}` belongs to the endpoint chat, and the row says completions"
    limit = values.get("max_tokens")
    if limit is not None and not (isinstance(limit, int) and limit is not True and 1 <= limit <= _MAX_TOKENS):
        yield f"`max_tokens` is not a whole number of tokens, 1 to {_MAX_TOKENS:,}"
    if not isinstance(values.get("stratum"), str | None):
        yield "`stratum` is not a text"
    for key in values:
        if key not in _KEYS:
            near = get_close_matches(key, _KEYS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"a row has {', '.join(_KEYS)}"
            yield f"unknown key {key[:40]!r}; {hint}"


def _message_problems(values: Mapping[str, object]) -> Iterator[str]:
    messages = values["messages"]
    if "prompt" in values:
        yield "has both `prompt` and `messages`; write one of them"
    if not isinstance(messages, list) or not messages:
        yield "`messages` is no list of messages; write at least one"
        return
    for place, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            yield f"`messages[{place}]` has no `role` that is one of {', '.join(sorted(ROLES))}"
        elif not isinstance(message.get("content"), str | list) and not message.get("tool_calls"):
            yield f"`messages[{place}]` has no `content`"
    if isinstance(messages[-1], dict) and messages[-1].get("role") == "assistant":
        yield "`messages` end with an answer; remove it, because the servers are to write it"
