"""One line of a log → the request it shows. No reason for refusing one repeats anything of what it says."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Mapping

from benchgate.shadow.asked import Asked, Endpoint
from benchgate.shadow.sample import ROLES, SENT
from benchgate.suite.formats import holds_half_a_pair, parse_json

_KEPT_OF_MESSAGES = ("role", "content", "name", "tool_calls", "tool_call_id")
_OF_COMPLETIONS = ("model", "max_tokens", "max_completion_tokens")  # one of them makes a `prompt` a request of theirs
_PLACES = ("url", "path", "endpoint", "route")
_NO_WORDS = ("embeddings", "pooling", "rerank", "score", "classify", "tokenize", "detokenize", "moderations")
_REQUESTS = ("request", "body", "messages", "prompt", "input")
_WRAPPED = re.compile(r'\{\s*"(?:log|message|msg|stream|time|ts|timestamp|level|severity|logger)"')
_WORDLESS = "asks for no text (embeddings, rerank and the like)"
_LABEL_CHARACTERS = 64

_TEXT = r"(?P<text>'[^'\\]*(?:\\.[^'\\]*)*'|\"[^\"\\]*(?:\\.[^\"\\]*)*\")"  # as Python's repr writes it
_VLLM_PROMPT = re.compile(r"(?:Received request|Request) (?P<id>\S+?)(?: details)?: prompt: (?:" + _TEXT + r"|None)")
_VLLM_CUT = re.compile(r"(?:Received request|Request) \S+?(?: details)?: prompt: ['\"]")
_VLLM_NO_PROMPT = re.compile(r"Received request \S+?: (?:params|sampling_params|params_list): ")
_VLLM_LABELS = {"chatcmpl": "chat", "cmpl": "completions", "resp": "responses"}


class BadLineError(Exception):
    """A line that shows no request, though it should; the message is the reason."""


class LeftOutError(Exception):
    """A request that cannot be asked again or should not be; the message is the reason."""


class WithoutPromptError(Exception):
    """A server's log tells of a request here, and not what was asked."""


def read_json_line(line: str) -> Asked:
    """The request of one JSON object. Raises BadLineError and LeftOutError."""
    values = _object(line)
    if _failed(values):
        raise LeftOutError("the request failed or was refused")
    label = _label(values)
    body = _body(values)
    if label in _NO_WORDS:
        raise LeftOutError(_WORDLESS)
    if "messages" in body:
        return _chat(body["messages"], body, label or "chat")
    if "prompt" in body:
        return _prompt(body, label)
    if "input" in body:
        if "encoding_format" in body or "dimensions" in body or "embed" in str(body.get("model")).lower():
            raise LeftOutError(_WORDLESS)
        return _response(body, label or "responses")
    raise BadLineError("holds no `messages`, `prompt` or `input`")


def wrapped_line(line: str) -> str | None:
    """The line of a server's log that a container's log holds as JSON (`{"log": "…", …}`); None for other lines."""
    if not _WRAPPED.match(line):
        return None
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if any(key in values for key in _REQUESTS):
        return None
    return next((values[key] for key in ("log", "message", "msg") if isinstance(values.get(key), str)), None)


def read_server_line(line: str) -> Asked | None:
    """The request that a line of vLLM's own log shows (`--enable-log-requests`); None where it tells of something else.

    What it shows is the prompt after the chat template, so it is for the completions endpoint. Raises BadLineError,
    LeftOutError and WithoutPromptError.
    """
    found = _VLLM_PROMPT.search(line)
    if found is None:
        if _VLLM_NO_PROMPT.search(line):
            raise WithoutPromptError
        if _VLLM_CUT.search(line):
            raise BadLineError("a request whose line was cut")
        return None
    if "PoolingParams(" in line[found.end() :]:
        raise LeftOutError(_WORDLESS)
    if found["text"] is None:
        raise LeftOutError("is logged by its tokens alone, without text")
    text = _unquoted(found["text"])
    kind = found["id"].partition("-")[0]
    return Asked("completions", _VLLM_LABELS.get(kind, "other"), prompt=text)


def _unquoted(text: str) -> str:
    """The text that Python's repr wrote so."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # an escape that repr does not write
            said = str(ast.literal_eval(text))
    except (SyntaxError, ValueError, Warning):
        said = ""
    if not said.strip() or holds_half_a_pair(said):
        raise BadLineError("holds an empty prompt, or one that is no text")
    return said


def _object(text: str) -> Mapping[str, object]:
    try:
        values = parse_json(text)
    except json.JSONDecodeError:
        raise BadLineError("is not JSON") from None
    except ValueError:
        raise BadLineError("holds what JSON cannot carry, or a key twice") from None
    if not isinstance(values, dict):
        raise BadLineError("is not a JSON object")
    return values


def _body(values: Mapping[str, object]) -> Mapping[str, object]:
    """The request itself: bare, as the `body` of a batch, or as the `request` of a log, which may hold it as text."""
    for key in ("request", "body"):
        inner = values.get(key)
        if isinstance(inner, str):
            inner = _object(inner)
        if isinstance(inner, dict):
            values = inner
    return values


def _failed(values: Mapping[str, object]) -> bool:
    response = values.get("response")
    answers = [values, response] if isinstance(response, dict) else [values]
    for answer in answers:
        status = answer.get("status_code", answer.get("status"))
        if answer.get("error") or (isinstance(status, int) and status >= 400):
            return True
    return False


def _label(values: Mapping[str, object]) -> str | None:
    """Where a request was asked, if the log tells: `chat` of `/v1/chat/completions`; parts with numbers are one."""
    inner = values.get("request")
    for holder in (inner, values) if isinstance(inner, dict) else (values,):
        for key in _PLACES:
            place = holder.get(key)
            if isinstance(place, str) and place.strip():
                return _short(place)
    return None


def _short(place: str) -> str | None:
    path = re.sub(r"^\w+://[^/]*", "", place.strip()).partition("?")[0].partition("#")[0]
    path = re.sub(r"^/?v[0-9]+/", "", path).strip("/").removesuffix("/completions")
    parts = ["*" if re.search(r"[0-9]|[^A-Za-z_.-]", part) else part for part in path.split("/")]
    return "/".join(parts)[:_LABEL_CHARACTERS] or None


def _chat(found: object, body: Mapping[str, object], label: str) -> Asked:
    if not isinstance(found, list) or not found:
        raise BadLineError("has `messages` that are no list of messages")
    messages = [_message(message) for message in found]
    while messages and messages[-1]["role"] == "assistant":
        messages.pop()  # the answer was recorded too; it is asked for again
    if not any(message["role"] == "user" for message in messages):
        raise BadLineError("has no message of a user to be answered")
    fields = {key: body[key] for key in SENT if body.get(key) is not None}
    only = messages[0]
    if len(messages) == 1 and not fields and isinstance(only["content"], str) and set(only) == {"role", "content"}:
        return Asked("chat", label, prompt=only["content"])
    return Asked("chat", label, messages=tuple(messages), fields=fields)


def _message(message: object) -> dict[str, object]:
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        raise BadLineError("has a message without a known `role`")
    kept = {key: message[key] for key in _KEPT_OF_MESSAGES if message.get(key) is not None}
    content = kept.setdefault("content", None)
    if isinstance(content, list):
        kept["content"] = content = [_part(part) for part in content]
    elif not isinstance(content, str | None):
        raise BadLineError("has a `content` that is neither text nor a list of parts")
    if message.get("function_call") or kept["role"] == "function":
        raise LeftOutError("calls by `function_call`, which `tool_calls` replaced")
    calls = kept.get("tool_calls")
    if not calls and (content is None or (isinstance(content, str) and not content.strip() and kept["role"] == "user")):
        raise BadLineError("has a message without `content`")
    return kept


def _part(part: object) -> dict[str, object]:
    if not isinstance(part, dict):
        raise BadLineError("has a `content` that is neither text nor a list of parts")
    if part.get("type") not in ("text", "input_text", "output_text") or not isinstance(part.get("text"), str):
        raise LeftOutError("holds images, audio or files, which no rule can redact")
    return {"type": "text", "text": part["text"]}


def _prompt(body: Mapping[str, object], label: str | None) -> Asked:
    prompt = body["prompt"]
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        prompt = prompt[0]
    if isinstance(prompt, list) and prompt:
        raise LeftOutError("asks for several prompts at once, or by tokens without text")
    if not isinstance(prompt, str) or not prompt.strip():
        raise BadLineError("has a `prompt` that is empty or no text")
    bare = label == "completions" or (label is None and any(key in body for key in _OF_COMPLETIONS))
    kept = ("stop",) if bare else SENT
    fields = {key: body[key] for key in kept if body.get(key) is not None}
    endpoint: Endpoint = "completions" if bare else "chat"
    return Asked(endpoint, label or endpoint, prompt=prompt, fields=fields)


def _response(body: Mapping[str, object], label: str) -> Asked:
    """A request of the responses API in the words of chat; one that goes on from a stored answer cannot be told."""
    if body.get("previous_response_id") or body.get("conversation"):
        raise LeftOutError("goes on from an answer that the server kept")
    if body.get("tools"):
        raise LeftOutError("offers tools of the responses API, which chat spells otherwise")
    found = body["input"]
    messages = [{"role": "user", "content": found}] if isinstance(found, str) else found
    if isinstance(messages, list) and any(
        isinstance(m, dict) and m.get("type", "message") != "message" for m in messages
    ):
        raise LeftOutError("holds items of the responses API that chat does not have")
    instructions = body.get("instructions")
    if isinstance(instructions, str) and isinstance(messages, list):
        messages = [{"role": "system", "content": instructions}, *messages]
    return _chat(messages, {}, label)
