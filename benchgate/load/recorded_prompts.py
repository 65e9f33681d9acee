"""Files of recorded prompts: our own rows, OpenAI chat requests, and ShareGPT conversations."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path

from benchgate.errors import Problem, SuiteError
from benchgate.load.traces import MOST_PROBLEMS, MOST_TOKENS, RowError
from benchgate.plan.model import RecordedRequest
from benchgate.suite.formats import parse_object
from benchgate.system import RECORDED_BYTES, read_text_file

_OWN = ("id", "prompt", "system", "output_tokens")
_SPEAKERS = {"human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "assistant": "assistant",
             "bing": "assistant", "bard": "assistant", "system": "system"}  # fmt: skip
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
KEPT = ("tools", "tool_choice", "response_format", "stop")  # of a logged request; how it was sampled is not
LIMITS = ("max_tokens", "max_completion_tokens")


def load_prompts_file(path: Path, *, conversing: bool) -> tuple[RecordedRequest, ...]:
    """Read every request, conversations whole with `conversing`, else up to a question. Raises SuiteError."""
    source = str(path)
    try:
        text = read_text_file(path, RECORDED_BYTES, "utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        what = f"the prompts cannot be read ({error}); `prompts` names a JSON or JSONL file beside the suite"
        raise SuiteError([Problem(source, None, None, "", what)]) from error
    rows: list[RecordedRequest] = []
    problems: list[Problem] = []
    for line, element in _elements(text):
        try:
            rows.append(_recorded(parse_object(element), line, conversing))
        except RowError as error:
            problems.append(error.problem(source))
        except ValueError as error:
            problems.append(RowError(line, None, "", str(error)).problem(source))
        if len(problems) == MOST_PROBLEMS:
            break
    if not rows and not problems:
        problems.append(Problem(source, None, None, "", "the file has no prompts; write one JSON object for each"))
    if problems:
        raise SuiteError(problems)
    return tuple(rows)


def _elements(text: str) -> Iterator[tuple[int, str]]:
    """The text of every object with the line it begins at: of a JSON array, or line by line."""
    if not text.lstrip().startswith("["):
        yield from ((n, line) for n, line in enumerate(text.split("\n"), start=1) if line.strip())
        return
    decoder, at, line = json.JSONDecoder(), text.index("[") + 1, 1
    counted = 0
    while True:
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        line, counted = line + text.count("\n", counted, at), at
        if at >= len(text) or text[at] == "]":
            if at >= len(text):
                yield line, "["  # cut off: the array never ends, and so it is no JSON
            return
        try:
            _, end = decoder.raw_decode(text, at)
        except (json.JSONDecodeError, RecursionError):
            yield line, text[at : at + 200]  # whoever reads it says what is wrong there; nothing below can be found
            return
        yield line, text[at:end]
        at = end


def _recorded(values: dict[str, object], line: int, conversing: bool) -> RecordedRequest:
    body = values.get("body")
    if isinstance(body, dict):
        values = body
    if "prompt" in values:
        return _own(values, line)
    if "messages" in values:
        return _logged(values, line)
    if "conversations" in values:
        return _conversation(values, line, conversing)
    found = ", ".join(f"`{key}`" for key in list(values)[:8]) or "an empty object"
    raise RowError(line, None, "", f"found {found}; expected `prompt`, `messages` (a chat request) or `conversations`")


def _own(values: dict[str, object], line: int) -> RecordedRequest:
    if not set(values) & set(LIMITS):  # a completion request as OpenAI spells it has further fields
        for key in values:
            if key not in _OWN:
                near = get_close_matches(key, _OWN, n=1)
                hint = f"did you mean `{near[0]}`?" if near else f"a row has {', '.join(_OWN)}"
                raise RowError(line, None, key, f"unknown key; {hint}")
    messages: list[Mapping[str, object]] = []
    if values.get("system") is not None:
        messages.append({"role": "system", "content": _text(values, "system", line)})
    messages.append({"role": "user", "content": _text(values, "prompt", line)})
    return RecordedRequest(tuple(messages), read_limit(values, ("output_tokens", *LIMITS), line), {}, line)


def _logged(values: dict[str, object], line: int) -> RecordedRequest:
    found = values["messages"]
    if not isinstance(found, list) or not found:
        raise RowError(line, None, "messages", "is no list of messages; write at least one")
    messages = [read_message(message, line) for message in found]
    while messages and messages[-1]["role"] == "assistant":
        messages.pop()  # the answer was recorded too; it is generated again
    if not any(message["role"] == "user" for message in messages):
        raise RowError(line, None, "messages", "has no message of a user to be answered")
    fields = {key: values[key] for key in KEPT if values.get(key) is not None}
    return RecordedRequest(tuple(messages), read_limit(values, LIMITS, line), fields, line)


def read_message(message: object, line: int) -> Mapping[str, object]:
    """Return a message of a chat request. Raises RowError unless it is one."""
    if not isinstance(message, dict) or message.get("role") not in _ROLES:
        role = message.get("role") if isinstance(message, dict) else message
        raise RowError(line, None, "messages", f"found the role {role!r}; expected one of {', '.join(sorted(_ROLES))}")
    content = message.get("content")
    if content is None and not message.get("tool_calls"):
        raise RowError(line, None, "messages", f"the message of the {message['role']} has no `content`")
    if content is not None and not isinstance(content, str | list):
        raise RowError(line, None, "messages", "a `content` is neither text nor a list of parts")
    return message


def _conversation(values: dict[str, object], line: int, conversing: bool) -> RecordedRequest:
    found = values["conversations"]
    if not isinstance(found, list) or not found:
        raise RowError(line, None, "conversations", "is no list of turns; take the row out")
    messages: list[Mapping[str, object]] = []
    for turn in found:
        speaker = _SPEAKERS.get(str(turn.get("from"))) if isinstance(turn, dict) else None
        if speaker is None:
            raise RowError(line, None, "conversations", "a turn has no `from` that is human, gpt or system")
        messages.append({"role": speaker, "content": _text(turn, "value", line)})
        if speaker == "user" and not conversing:
            break
    while messages and messages[-1]["role"] != "user":
        messages.pop()
    if not messages:
        raise RowError(line, None, "conversations", "has no turn of a human to be answered; take the row out")
    return RecordedRequest(tuple(messages), None, {}, line)


def _text(values: Mapping[str, object], key: str, line: int) -> str:
    found = values.get(key)
    if not isinstance(found, str) or not found.strip():
        raise RowError(line, None, key, f"found {'an empty text' if isinstance(found, str) else repr(found)[:40]}; "
                       "expected a text")  # fmt: skip
    return found


def read_limit(values: Mapping[str, object], keys: tuple[str, ...], line: int) -> int | None:
    """Return the answer length under the first of these keys; None without one. Raises RowError."""
    for key in keys:
        found = values.get(key)
        if found is None:
            continue
        if not isinstance(found, int) or isinstance(found, bool) or not 1 <= found <= MOST_TOKENS:
            raise RowError(line, None, key, f"found {found!r}; expected a whole number of tokens, 1 to {MOST_TOKENS:,}")
        return found
    return None
