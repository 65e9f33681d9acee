"""The bytes of a response of the responses API: named events with a number each, or one document, as vLLM has them.

The last event of a stream is `response.completed` however the answer ended; its `status` is `incomplete` when the
limit cut it. There is no [DONE].
"""

from __future__ import annotations

import json

from benchgate.sim.answers import Usage
from benchgate.sim.asks import Ask
from benchgate.sim.words import Kind

_INCOMPLETE = {"length": "max_output_tokens"}
_TYPES: dict[Kind, str] = {"reasoning": "reasoning", "content": "message", "tool": "function_call"}
_DELTAS: dict[Kind, str] = {
    "reasoning": "response.reasoning_text",
    "content": "response.output_text",
    "tool": "response.function_call_arguments",
}
_PARTS: dict[Kind, str] = {"reasoning": "reasoning_text", "content": "output_text"}


class ResponseScript:
    """One response. Its events are numbered in the order in which they are asked for, and it ends once."""

    plain = False

    def __init__(self, ask: Ask, number: int, created: int) -> None:
        self._ask = ask
        self._name = f"{number:016x}"
        self._created = created
        self._events = 0
        self._items = 0
        self._open: Kind | None = None  # the item that is being written
        self._open_from = 0
        self._sent = 0
        self._ended = False

    def framed_token(self, index: int) -> bytes:
        """Never asked for: no event is like another."""
        raise NotImplementedError("events of a response are numbered")

    def opening(self) -> list[bytes]:
        """As `Script` says."""
        response: dict[str, object] = {"response": self._response("in_progress", [], None)}
        return [self._event("response.created", response), self._event("response.in_progress", response)]

    def tokens(self, first: int, count: int, reason: str | None = None) -> list[bytes]:
        """The tokens, and around them what begins and ends the items they belong to."""
        events = []
        for kind, at, size in self._ask.saying.spans(first, count):
            if kind != self._open:
                events += [*self._close_item(), *self._open_item(kind, at)]
            self._sent = at + size
            delta = {"delta": self._ask.saying.text(at, size)}
            events.append(self._event(f"{_DELTAS[kind]}.delta", self._place(kind) | delta))
        return events

    def finish(self, reason: str, sent: int, usage: Usage | None = None) -> list[bytes]:
        """Here the last event is the finish event: without the usage it is still to come."""
        return [] if usage is None else self.closing(reason, usage)

    def closing(self, reason: str, usage: Usage | None) -> list[bytes]:
        """The end of the open item, and the whole response with its status and its usage."""
        if self._ended:
            return []
        events, self._ended = self._close_item(), True
        response = self._response(_status(reason), self._output(self._sent), usage, reason)
        return [*events, self._event("response.completed", {"response": response})]

    def done(self) -> list[bytes]:
        """As `Script` says."""
        return []

    def document(self, reason: str, usage: Usage | None, *, empty: bool = False) -> bytes:
        """As `Script` says."""
        output = self._output(0 if empty else self._ask.output_tokens)
        return json.dumps(self._response(_status(reason), output, usage, reason), separators=(",", ":")).encode()

    def _open_item(self, kind: Kind, first: int) -> list[bytes]:
        self._open, self._open_from = kind, first
        item = self._item(kind, "in_progress", "")
        added = self._event("response.output_item.added", {"output_index": self._items, "item": item})
        if kind == "tool":
            return [added]
        part = {"part": _part(kind, "")}
        return [added, self._event("response.content_part.added", self._place(kind) | part)]

    def _close_item(self) -> list[bytes]:
        kind = self._open
        if kind is None:
            return []
        text = self._ask.saying.text(self._open_from, self._sent - self._open_from)
        told = {"arguments": text} if kind == "tool" else {"text": text}
        events = [self._event(f"{_DELTAS[kind]}.done", self._place(kind) | told)]
        if kind != "tool":
            events.append(self._event("response.content_part.done", self._place(kind) | {"part": _part(kind, text)}))
        item = self._item(kind, "completed", text)
        events.append(self._event("response.output_item.done", {"output_index": self._items, "item": item}))
        self._open = None
        self._items += 1
        return events

    def _place(self, kind: Kind) -> dict[str, object]:
        place: dict[str, object] = {"item_id": self._item_id(kind), "output_index": self._items}
        return place if kind == "tool" else place | {"content_index": 0}

    def _item_id(self, kind: Kind) -> str:
        return f"{_TYPES[kind]}_{self._name}"

    def _item(self, kind: Kind, status: str, text: str) -> dict[str, object]:
        """One item of the output, with this text as far as it has any."""
        item: dict[str, object] = {"id": self._item_id(kind), "type": _TYPES[kind], "status": status}
        if kind == "tool":
            call = {"call_id": f"call_{self._name}", "name": self._ask.saying.tool, "arguments": text}
            return item | call
        content = [_part(kind, text)] if text else []
        if kind == "reasoning":
            return item | {"summary": [], "content": content}
        return item | {"role": "assistant", "content": content}

    def _output(self, tokens: int) -> list[dict[str, object]]:
        saying = self._ask.saying
        return [self._item(kind, "completed", saying.text(at, size)) for kind, at, size in saying.spans(0, tokens)]

    def _response(
        self, status: str, output: list[dict[str, object]], usage: Usage | None, reason: str = "stop"
    ) -> dict[str, object]:
        cut = _INCOMPLETE.get(reason)
        return {
            "id": f"resp_{self._name}",
            "object": "response",
            "created_at": self._created,
            "model": self._ask.model,
            "status": status,
            "incomplete_details": None if cut is None or status != "incomplete" else {"reason": cut},
            "error": None,
            "output": output,
            "usage": None if usage is None else _usage(usage),
        }

    def _event(self, name: str, told: dict[str, object]) -> bytes:
        document = json.dumps({"type": name, "sequence_number": self._events} | told, separators=(",", ":"))
        self._events += 1
        return f"event: {name}\ndata: {document}\n\n".encode()


def _status(reason: str) -> str:
    if reason == "abort":
        return "cancelled"
    return "incomplete" if reason in _INCOMPLETE else "completed"


def _part(kind: Kind, text: str) -> dict[str, object]:
    part: dict[str, object] = {"type": _PARTS[kind], "text": text}
    return part if kind == "reasoning" else part | {"annotations": []}


def _usage(usage: Usage) -> dict[str, object]:
    """Details are always there, and 0 where there is nothing to tell, as the API has them."""
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens or 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
