"""Requests and whole answers of Anthropic's Messages API, which vLLM, SGLang and llama.cpp serve too.

Planned requests are spelled as OpenAI's chat. Here they become Messages: instructions stand beside the messages, parts
of a message are blocks, and a call's result belongs to the user.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from benchgate.model.request import ModelRequest
from benchgate.targets.answers import EMPTY_ANSWER, is_hidden_reasoning, text_in
from benchgate.targets.dialect import Target
from benchgate.targets.validity import response_schema

_TOOL_CHOICES = {"auto": "auto", "required": "any", "none": "none"}
_INSTRUCTIONS = ("system", "developer")


def body(target: Target, ask: ModelRequest, seed: int | None) -> dict[str, object]:
    """Return the body of a request. There is no seed, and no way to request the full length."""
    fields = dict(ask.fields)
    written = ask.content.get("messages")
    messages = [message for message in written if isinstance(message, Mapping)] if isinstance(written, list) else []
    found: dict[str, object] = {
        "model": ask.model or target.model,
        "max_tokens": ask.output_tokens,
        "temperature": 0,
        "messages": [_message(message) for message in messages if message.get("role") not in _INSTRUCTIONS],
    }
    system = [text_in(message.get("content")) for message in messages if message.get("role") in _INSTRUCTIONS]
    if system:
        found["system"] = "\n\n".join(text or "" for text in system)
    if ask.stream:
        found["stream"] = True
    tools, choice = fields.pop("tools", None), fields.pop("tool_choice", None)
    if isinstance(tools, list | tuple):
        found["tools"] = [_tool(tool) for tool in tools if isinstance(tool, Mapping)]
    if isinstance(choice, Mapping):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, Mapping) else choice.get("name")
        found["tool_choice"] = {"type": "tool", "name": name}
    elif isinstance(choice, str):
        found["tool_choice"] = {"type": _TOOL_CHOICES.get(choice, choice)}
    stop = fields.pop("stop", None)
    if stop is not None:
        found["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    if fields.pop("parallel_tool_calls", None) is False and "tools" in found:
        chosen = found.setdefault("tool_choice", {"type": "auto"})
        if isinstance(chosen, dict) and chosen["type"] != "none":
            chosen["disable_parallel_tool_use"] = True
    schema = response_schema(fields.get("response_format"))
    if schema is not None:
        del fields["response_format"]
        found["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
    return found | fields


def _tool(tool: Mapping[str, object]) -> dict[str, object]:
    """Spell a tool as Messages do. One that is no function stays as it is: it is spelled so already."""
    function = tool.get("function")
    if not isinstance(function, Mapping):
        return dict(tool)
    spelled = {name: function[name] for name in ("name", "description", "strict") if name in function}
    return {**spelled, "input_schema": function.get("parameters", {"type": "object", "properties": {}})}


def _message(message: Mapping[str, object]) -> dict[str, object]:
    content, role = message.get("content"), message.get("role")
    if role == "tool":
        result = {"type": "tool_result", "tool_use_id": message.get("tool_call_id"), "content": text_in(content) or ""}
        return {"role": "user", "content": [result]}
    calls = message.get("tool_calls")
    blocks: list[object] = []
    if isinstance(calls, list):
        blocks = [_call(call) for call in calls if isinstance(call, Mapping)]
    if not blocks and not isinstance(content, list):
        return {"role": role, "content": content}
    texts = [{"type": "text", "text": content}] if isinstance(content, str) and content else []
    parts = [_part(part) for part in content] if isinstance(content, list) else texts
    return {"role": role, "content": [*parts, *blocks]}


def _part(part: object) -> object:
    """Spell an image as Messages do; any other part is the same in both."""
    image = part.get("image_url") if isinstance(part, Mapping) else None
    if not isinstance(image, Mapping) or not isinstance(address := image.get("url"), str):
        return part
    kind, comma, data = address.partition(";base64,")
    if not comma:
        return {"type": "image", "source": {"type": "url", "url": address}}
    return {"type": "image", "source": {"type": "base64", "media_type": kind.removeprefix("data:"), "data": data}}


def _call(call: Mapping[str, object]) -> dict[str, object]:
    function = call.get("function")
    called = function if isinstance(function, Mapping) else {}
    arguments = called.get("arguments")
    given: object = arguments
    if isinstance(arguments, str):
        try:
            given = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            given = {}
    return {"type": "tool_use", "id": call.get("id"), "name": called.get("name"), "input": given}


def missing_block(document: Mapping[str, object]) -> str | None:
    """Return the part that an answer of status 200 lacks. None if it holds a text, a thought or a call."""
    if not isinstance(document.get("content"), list):
        return "HTTP 200 without content in it"
    reasoned = is_hidden_reasoning(document.get("stop_reason"), document.get("usage"))
    return None if reasoned or any(_holds_output(block) for block in blocks_of(document)) else EMPTY_ANSWER


def blocks_of(document: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    """Yield the blocks of a message."""
    content = document.get("content")
    return (block for block in (content if isinstance(content, list) else ()) if isinstance(block, Mapping))


def _holds_output(block: Mapping[str, object]) -> bool:
    return any(isinstance(block.get(key), str) and block[key] for key in ("text", "thinking", "data", "name"))
