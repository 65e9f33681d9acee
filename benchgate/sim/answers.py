"""The bytes of an answer, in vLLM's shape: events of a stream, or one document. No framing, no socket.

Every word is six bytes with its space, so the head of an event and the size of its chunk are the same for every token
of a plain answer: they are made once, and a token costs one concatenation.
"""

from __future__ import annotations

import json
from typing import NamedTuple, Protocol

from benchgate.sim.asks import Ask
from benchgate.sim.words import LAP_BITS, MASK, WORDS, Kind, start_of, stride_of

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
