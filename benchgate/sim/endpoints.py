"""Endpoints of the simulated server: their paths, requests and encoders. One row for each."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from benchgate.model.request import Endpoint
from benchgate.sim.encoders import ChoiceScript, MessageScript, ResponseScript, Script, VectorScript
from benchgate.sim.requests import (
    ApiRequest,
    RequestBody,
    parse_embedding,
    parse_generation,
    parse_ranking,
    read_object,
    request_body,
)
from benchgate.suite.simulator import SimSettings

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ServedEndpoint:
    """An endpoint of the server. `translate` spells a body as chat or completions do."""

    endpoint: Endpoint
    paths: tuple[str, ...]
    script: Callable[[ApiRequest, int, int], Script]  # of a request, the number of the answer, and its second
    parse: Callable[[RequestBody], ApiRequest] = parse_generation
    translate: Callable[[Body], Body] = dict

    def request(self, body: bytes, settings: SimSettings) -> ApiRequest:
        """Parse a request. Raises Refused."""
        return self.parse(request_body(self.endpoint, self.translate(read_object(body)), settings))


_TOOL_CHOICES = {"any": "required", "none": "none"}


def _from_messages(data: Body) -> Body:
    """Spell a request to Messages as one to chat."""
    system, messages = data.get("system"), data.get("messages")
    if isinstance(messages, list) and messages:
        instructions = [] if system is None else [{"role": "system", "content": system}]
        messages = [_message(message) for message in (*instructions, *messages)]
    tools, choice, config = data.get("tools"), data.get("tool_choice"), data.get("output_config")
    spelled = data | {"messages": messages}
    if isinstance(tools, list):
        spelled["tools"] = [
            {"type": "function", "function": tool | {"parameters": tool.get("input_schema")}}
            for tool in tools
            if isinstance(tool, dict)
        ]
    if isinstance(choice, dict):
        kind = str(choice.get("type"))
        named = {"function": {"name": choice.get("name")}}
        spelled["tool_choice"] = named if kind == "tool" else _TOOL_CHOICES.get(kind, "auto")
    if isinstance(config, dict):
        spelled["response_format"] = config.get("format")
    return spelled


def _message(message: object) -> object:
    """Spell calls and their results as texts."""
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(message, dict) or not isinstance(content, list):
        return message
    texts = [
        {"type": "text", "text": json.dumps(part)}
        if isinstance(part, dict) and part.get("type") in ("tool_use", "tool_result")
        else part
        for part in content
    ]
    return message | {"content": texts}


SERVED: Mapping[Endpoint, ServedEndpoint] = MappingProxyType(
    {
        each.endpoint: each
        for each in (
            ServedEndpoint("chat", ("/v1/chat/completions",), ChoiceScript),
            ServedEndpoint("completions", ("/v1/completions",), ChoiceScript),
            ServedEndpoint("responses", ("/v1/responses",), ResponseScript),
            ServedEndpoint("messages", ("/v1/messages",), MessageScript, translate=_from_messages),
            ServedEndpoint("embeddings", ("/v1/embeddings",), VectorScript, parse_embedding),
            ServedEndpoint("rerank", ("/v1/rerank", "/rerank"), VectorScript, parse_ranking),
        )
    }
)
SERVED_AT: Mapping[str, ServedEndpoint] = MappingProxyType(
    {path: served for served in SERVED.values() for path in served.paths}
)
