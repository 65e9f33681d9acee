"""The bytes of an answer, in vLLM's shape: events of a stream, or one document. No framing, no socket.

Every word is six bytes with its space, so the head of an event and the size of its chunk are the same for every token
of a plain answer: they are made once, and a token costs one concatenation.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from benchgate.sim.content import LAP_BITS, MASK, WORDS, Kind, start_of, stride_of
from benchgate.sim.requests import Ask

DONE = b"data: [DONE]\n\n"
_CHAT_TAIL = b'"},"logprobs":null,"finish_reason":null}]}\n\n'
_TEXT_TAIL = b'","logprobs":null,"finish_reason":null}]}\n\n'


class Usage(NamedTuple):
    """What an answer says it took. None: not told."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class Script(Protocol):
    """All that one answer can say, in the words of its endpoint. Every event is one item of a list."""

    plain: bool  # whether `framed_token` may be used

    def framed_token(self, index: int) -> bytes:
        """The event of one token as one HTTP chunk, fast; only where no usage belongs into it."""

    def opening(self) -> list[bytes]:
        """What comes with the first token and carries no output."""

    def tokens(self, first: int, count: int, reason: str | None = None) -> list[bytes]:
        """So many tokens from that index on, and the finish reason when they are the last."""

    def finish(self, reason: str, sent: int, usage: Usage | None = None) -> list[bytes]:
        """A finish event without output, with the usage in it when given."""

    def closing(self, reason: str, usage: Usage | None) -> list[bytes]:
        """What follows the finish event, with the usage when it is to be told; all but the last mark."""

    def done(self) -> list[bytes]:
        """The last mark of a stream, where there is one."""

    def document(self, reason: str, usage: Usage | None, *, empty: bool = False) -> bytes:
        """The whole answer as one JSON document, or one that says nothing."""


class ChoiceScript:
    """Chat and completions: a list of choices, of which there is one, or two where a fault makes a second."""

    def __init__(self, ask: Ask, number: int, created: int) -> None:
        self._ask = ask
        self._chat = ask.endpoint == "chat"
        self._number = number
        self.plain = ask.saying.plain
        name, kind = ("chatcmpl", "chat.completion") if self._chat else ("cmpl", "text_completion")
        rest = f'"created":{created},"model":{json.dumps(ask.model)},'
        self._whole_opening = f'{{"id":"{name}-{number:016x}","object":"{kind}",{rest}'
        self._opening = (
            self._whole_opening.replace(kind, "chat.completion.chunk", 1) if self._chat else self._whole_opening
        )
        start = b"data: " + self._opening.encode()
        start += b'"choices":[{"index":0,"delta":{"content":"' if self._chat else b'"choices":[{"index":0,"text":"'
        tail = _CHAT_TAIL if self._chat else _TEXT_TAIL
        size = len(start) + len(WORDS[0]) + len(tail)
        self._framed_start = b"%x\r\n%b" % (size, start)
        self._framed_words = _CHAT_FRAMED if self._chat else _TEXT_FRAMED
        self._start, self._stride = start_of(ask.key), stride_of(ask.key)

    def framed_token(self, index: int) -> bytes:
        """As `Script` says; the place is that of `words.word`, without a call."""
        stride = self._stride + (index >> LAP_BITS << 1)
        return self._framed_start + self._framed_words[(self._start + index * stride) & MASK]

    def opening(self) -> list[bytes]:
        """The role event of a chat; nothing for completions."""
        return [self._event('{"role":"assistant","content":""}', None, 0)] if self._chat else []

    def tokens(self, first: int, count: int, reason: str | None = None) -> list[bytes]:
        """One event for each kind of token, and each choice, among them."""
        spans = [span for part in self._choices(first, count) for span in self._ask.saying.spans(*part)]
        last = len(spans) - 1
        return [
            self._event(self._said(kind, at, size), reason if place == last else None, at + size)
            for place, (kind, at, size) in enumerate(spans)
        ]

    def finish(self, reason: str, sent: int, usage: Usage | None = None) -> list[bytes]:
        """As `Script` says."""
        told = "" if usage is None else f',"usage":{usage_text(usage)}'
        return [self._event("{}" if self._chat else '""', reason, sent, told)]

    def closing(self, reason: str, usage: Usage | None) -> list[bytes]:
        """The event with empty choices that tells the usage."""
        if usage is None or not self._ask.include_usage:
            return []
        return [f'data: {self._opening}"choices":[],"usage":{usage_text(usage)}}}\n\n'.encode()]

    def done(self) -> list[bytes]:
        """As `Script` says."""
        return [DONE]

    def document(self, reason: str, usage: Usage | None, *, empty: bool = False) -> bytes:
        """As `Script` says."""
        choices = []
        for index, (first, count) in enumerate(self._choices(0, 0 if empty else self._ask.output_tokens)):
            text = json.dumps(self._ask.saying.text(first, count))
            content = f'"message":{self._message(first, count)}' if self._chat else f'"text":{text}'
            choices.append(
                f'{{"index":{index},{content},"logprobs":null,"finish_reason":"{reason}","stop_reason":null}}'
            )
        told = "null" if usage is None else usage_text(usage)
        return f'{self._whole_opening}"choices":[{",".join(choices)}],"usage":{told}}}'.encode()

    def _choices(self, first: int, count: int) -> list[tuple[int, int]]:
        """Split a range of tokens where the second choice begins."""
        second, end = self._ask.saying.second_from, first + count
        if second is None or not first < second < end:
            return [(first, count)]
        return [(first, second - first), (second, end - second)]

    def _message(self, first: int, count: int) -> str:
        saying = self._ask.saying
        message: dict[str, object] = {"role": "assistant", "content": None if count else ""}
        for kind, at, size in saying.spans(first, count):
            text = saying.text(at, size)
            if kind == "tool":
                message["tool_calls"] = [self._call(text)]
            else:
                message["reasoning_content" if kind == "reasoning" else "content"] = text
        return json.dumps(message, separators=(",", ":"))

    def _said(self, kind: Kind, first: int, count: int) -> str:
        """What stands for these tokens in an event."""
        saying = self._ask.saying
        text = saying.text(first, count)
        if kind == "tool":
            call = self._call(text) if first == saying.thought_tokens else {"function": {"arguments": text}}
            return json.dumps({"tool_calls": [{"index": 0, **call}]}, separators=(",", ":"))
        quoted = json.dumps(text)
        if not self._chat:
            return quoted
        return f'{{"reasoning_content":{quoted}}}' if kind == "reasoning" else f'{{"content":{quoted}}}'

    def _call(self, arguments: str) -> dict[str, object]:
        function = {"name": self._ask.saying.tool, "arguments": arguments}
        return {"id": f"call_{self._number:016x}", "type": "function", "function": function}

    def _event(self, said: str, reason: str | None, sent: int, usage: str = "") -> bytes:
        field = "delta" if self._chat else "text"
        if not usage and self._ask.continuous_usage:
            usage = f',"usage":{usage_text(Usage(self._ask.input_tokens, sent))}'
        ending = "null" if reason is None else f'"{reason}"'
        second = self._ask.saying.second_from
        index = int(second is not None and sent > second)
        choice = f'{{"index":{index},"{field}":{said},"logprobs":null,"finish_reason":{ending}}}'
        return f'data: {self._opening}"choices":[{choice}]{usage}}}\n\n'.encode()


def error_event(document: object) -> bytes:
    """An error inside a stream."""
    return f"data: {json.dumps(document)}\n\n".encode()


def usage_text(usage: Usage) -> str:
    """Usage as chat and completions tell it; details only where they are known."""
    total = usage.input_tokens + usage.output_tokens
    counts = f'"prompt_tokens":{usage.input_tokens},"total_tokens":{total},"completion_tokens":{usage.output_tokens}'
    if usage.cached_tokens is not None:
        counts += f',"prompt_tokens_details":{{"cached_tokens":{usage.cached_tokens}}}'
    if usage.reasoning_tokens is not None:
        counts += f',"completion_tokens_details":{{"reasoning_tokens":{usage.reasoning_tokens}}}'
    return f"{{{counts}}}"


def _framed(tail: bytes) -> tuple[bytes, ...]:
    """What follows the start of an event, for every word, up to the end of its chunk."""
    return tuple(word.encode() + tail + b"\r\n" for word in WORDS)


_CHAT_FRAMED = _framed(_CHAT_TAIL)
_TEXT_FRAMED = _framed(_TEXT_TAIL)


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


_MULTIPLIER, _INCREMENT, _MODULUS = 1_664_525, 1_013_904_223, 2**32  # the generator of Numerical Recipes


class VectorScript:
    """One document and no stream. `spoilt` says how its numbers are wrong: few (one is missing) or nan."""

    plain = False

    def __init__(self, ask: Ask, number: int, created: int) -> None:
        self._ask = ask
        self._number = number
        self._created = created
        self.spoilt: str | None = None

    def framed_token(self, index: int) -> bytes:
        """Never asked for."""
        raise NotImplementedError("numbers are no stream")

    def opening(self) -> list[bytes]:
        """Nothing: there is no stream."""
        return []

    def tokens(self, first: int, count: int, reason: str | None = None) -> list[bytes]:
        """Nothing: there is no stream."""
        return []

    def finish(self, reason: str, sent: int, usage: Usage | None = None) -> list[bytes]:
        """Nothing: there is no stream."""
        return []

    def closing(self, reason: str, usage: Usage | None) -> list[bytes]:
        """Nothing: there is no stream."""
        return []

    def done(self) -> list[bytes]:
        """Nothing: there is no stream."""
        return []

    def document(self, reason: str, usage: Usage | None, *, empty: bool = False) -> bytes:
        """As `Script` says; an empty one has no item."""
        made = self._embeddings(empty) if self._ask.endpoint == "embeddings" else self._ranking(empty)
        told = None
        if usage is not None:
            told = {"prompt_tokens": usage.input_tokens, "total_tokens": usage.input_tokens, "completion_tokens": 0}
        return json.dumps(made | {"usage": told}, separators=(",", ":")).encode()

    def _embeddings(self, empty: bool) -> dict[str, object]:
        items = [] if empty else [self._shown(vector(item.key, self._ask.width)) for item in self._ask.items]
        data = [{"index": at, "object": "embedding", "embedding": shown} for at, shown in enumerate(items)]
        return {
            "id": f"embd-{self._number:016x}",
            "object": "list",
            "created": self._created,
            "model": self._ask.model,
            "data": data[:-1] if self.spoilt == "few" else data,
        }

    def _shown(self, numbers: Sequence[float]) -> Sequence[float] | str:
        values = [math.nan, *numbers[1:]] if self.spoilt == "nan" else numbers
        if not self._ask.base64:
            return values
        return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()

    def _ranking(self, empty: bool) -> dict[str, object]:
        scored = sorted(((item.key / 2**32, -at) for at, item in enumerate(self._ask.items)), reverse=True)
        told = [] if empty else scored[: self._ask.width]
        results: list[dict[str, object]] = [
            {
                "index": -at,
                "document": {"text": self._ask.items[-at].text},
                "relevance_score": math.nan if self.spoilt == "nan" else score,
            }
            for score, at in told
        ]
        return {
            "id": f"rerank-{self._number:016x}",
            "model": self._ask.model,
            "results": results[:-1] if self.spoilt == "few" else results,
        }


def vector(key: int, size: int) -> list[float]:
    """So many numbers of length 1 together, which follow from the key."""
    state, numbers = key, []
    for _ in range(size):
        state = (state * _MULTIPLIER + _INCREMENT) % _MODULUS
        numbers.append(state / 2**31 - 1)
    length = math.sqrt(sum(number * number for number in numbers)) or 1.0
    return [round(number / length, 6) for number in numbers]
