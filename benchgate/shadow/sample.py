"""A file of recorded prompts: JSON Lines → the prompts of a shadow comparison, or every problem in it at once.

What users wrote stands in these files. So no problem quotes more of a row than its id and the names of its keys.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, cast

from benchgate.errors import Problem, SuiteError
from benchgate.plan.items import ShadowPrompt
from benchgate.shadow.form import form_problems
from benchgate.suite.formats import Row, parse_rows
from benchgate.text_files import RECORDED_BYTES, text_of

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
SENT = ("tools", "tool_choice", "parallel_tool_calls", "response_format", "stop")
"""What goes into the request beside the messages, as it stands in the row."""

_OF_CHAT = frozenset(SENT) - {"stop"}
_KEYS = ("id", "prompt", "messages", *SENT, "max_tokens", "endpoint", "stratum", "length", "redacted")
_MOST_TOKENS = 1_000_000


def load_prompts(path: Path) -> tuple[ShadowPrompt, ...]:
    """The prompts of a JSONL file, in file order: rows of an `id` and a `prompt`, or `messages` as OpenAI spells them.

    Raises SuiteError with every problem and its line: a file that cannot be read, a row that is not such an object, an
    `id` used twice, an empty prompt, an unknown key, keys that contradict each other.
    """
    source = str(path)
    try:
        text = text_of(path, RECORDED_BYTES)
    except (OSError, UnicodeDecodeError) as exc:
        reason = f"the recorded prompts cannot be read ({_why(exc)}); name a JSONL file of them"
        raise SuiteError([Problem(source, None, None, "", reason)]) from exc
    rows, problems = parse_rows(text, source, quote=False)
    faults = [Problem(source, row.line, None, "", message) for row in rows for message in _faults(row)]
    problems += faults
    if len(problems) > 1 and not {row.line for row in rows} - {fault.line for fault in faults}:
        none = f"none of its {len({problem.line for problem in problems}):,} lines is a recorded prompt"
        first = min(problems, key=lambda problem: problem.line or 0)
        message = f"{first.message}. {none}; from a log of requests draw them with `benchgate shadow sample`"
        raise SuiteError([replace(first, message=message)])
    if problems:
        raise SuiteError(problems)
    prompts = [(row.line, _prompt(row.values)) for row in rows]
    problems = [Problem(source, line, None, "", what) for line, prompt in prompts for what in form_problems(prompt)]
    if problems:
        raise SuiteError(problems)
    return tuple(prompt for _, prompt in prompts)


def _why(error: OSError | UnicodeDecodeError) -> str:
    if isinstance(error, UnicodeDecodeError):  # whose own words repeat the bytes
        return f"byte {error.start} is not UTF-8"
    return str(error.strerror)


def _prompt(values: Mapping[str, object]) -> ShadowPrompt:
    messages = cast("list[Mapping[str, object]]", values.get("messages", []))
    spelled = json.dumps(messages, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return ShadowPrompt(
        id=str(values["id"]),
        prompt=spelled if messages else str(values["prompt"]),
        messages=tuple(messages),
        fields={key: values[key] for key in SENT if values.get(key) is not None},
        endpoint=cast('Literal["chat", "completions"]', values.get("endpoint", "chat")),
        max_tokens=cast("int | None", values.get("max_tokens")),
        stratum=cast("str | None", values.get("stratum")),
    )


def _faults(row: Row) -> Iterator[str]:
    values = row.values
    if "messages" in values:
        yield from _message_faults(values)
    elif not isinstance(prompt := values.get("prompt"), str) or not prompt.strip():
        yield "`prompt` is missing or empty; it must be the text to send (or write `messages`)"
    yield from _endpoint_faults(values)
    if (limit := values.get("max_tokens")) is not None and not _is_count(limit):
        yield f"`max_tokens` is not a whole number of tokens, 1 to {_MOST_TOKENS:,}"
    if not isinstance(values.get("stratum"), str | None):
        yield "`stratum` is not a text"
    for key in values:
        if key not in _KEYS:
            near = get_close_matches(key, _KEYS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"a row has {', '.join(_KEYS)}"
            yield f"unknown key {key[:40]!r}; {hint}"


def _message_faults(values: Mapping[str, object]) -> Iterator[str]:
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
        yield "`messages` end with an answer; take it off, for it is asked for"


def _endpoint_faults(values: Mapping[str, object]) -> Iterator[str]:
    endpoint = values.get("endpoint", "chat")
    if endpoint not in ("chat", "completions"):
        yield "`endpoint` is neither chat nor completions"
    elif endpoint == "completions":
        for key in ("messages", *SENT):
            if key in values and (key == "messages" or key in _OF_CHAT):
                yield f"`{key}` belongs to the endpoint chat, and the row says completions"


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MOST_TOKENS
