"""The bytes of an answer, in vLLM's shape: events of a stream, or one document. No framing, no socket.

Every word is six bytes with its space, so the head of an event and the size of its chunk are the same for every token
of an answer: they are made once, and a token costs one concatenation.
"""

from __future__ import annotations

import json

from benchgate.sim.asks import Ask

WORDS = (
    " river", " stone", " cloud", " light", " north", " table", " green", " bread",
    " water", " house", " field", " music", " paper", " glass", " horse", " sugar",
    " chair", " plant", " night", " earth", " ocean", " metal", " sound", " storm",
    " grain", " coast", " train", " brush", " crane", " flame", " orbit", " shelf",
    " ridge", " tower", " wheel", " amber", " basin", " cedar", " delta", " ember",
    " frost", " grove", " heron", " ivory", " jewel", " knoll", " lemon", " maple",
    " naval", " olive", " pearl", " quilt", " raven", " sable", " thorn", " umber",
    " vivid", " wheat", " yacht", " zebra", " alder", " birch", " coral", " dunes",
)  # fmt: skip
DONE = b"data: [DONE]\n\n"
_MASK = len(WORDS) - 1  # the number of words is a power of two
_CHAT_TAIL = b'"},"logprobs":null,"finish_reason":null}]}\n\n'
_TEXT_TAIL = b'","logprobs":null,"finish_reason":null}]}\n\n'


class Script:
    """All that one answer can say. Words follow from the ask's key alone."""

    def __init__(self, ask: Ask, model: str, number: int, created: int) -> None:
        self._ask = ask
        self._start = ask.key >> 8
        self._stride = (ask.key & 0x3F) | 1  # odd, so that every word has its turn
        name, kind = ("chatcmpl", "chat.completion") if ask.chat else ("cmpl", "text_completion")
        rest = f'"created":{created},"model":{json.dumps(model)},'
        self._whole_opening = f'{{"id":"{name}-{number:016x}","object":"{kind}",{rest}'
        self._opening = (
            self._whole_opening.replace(kind, "chat.completion.chunk", 1) if ask.chat else self._whole_opening
        )
        start = b"data: " + self._opening.encode()
        start += b'"choices":[{"index":0,"delta":{"content":"' if ask.chat else b'"choices":[{"index":0,"text":"'
        tail = _CHAT_TAIL if ask.chat else _TEXT_TAIL
        size = len(start) + len(WORDS[0]) + len(tail)
        self._framed_start = b"%x\r\n%b" % (size, start)
        self._framed_words = _CHAT_FRAMED if ask.chat else _TEXT_FRAMED

    def word(self, index: int) -> str:
        """The token of that index, with the space before it."""
        return WORDS[(self._start + index * self._stride) & _MASK]

    def text(self, first: int, count: int) -> str:
        """So many tokens from that index on."""
        return "".join(self.word(index) for index in range(first, first + count))

    def framed_token(self, index: int) -> bytes:
        """The event of one token as one HTTP chunk, fast; only where no usage belongs into it."""
        return self._framed_start + self._framed_words[(self._start + index * self._stride) & _MASK]

    def role(self) -> bytes:
        """The event that opens a chat stream and carries no output; nothing for completions."""
        if not self._ask.chat:
            return b""
        return self._event('{"role":"assistant","content":""}', None, 0)

    def tokens(self, first: int, count: int, reason: str | None = None) -> bytes:
        """One event with so many tokens from that index on, and the finish reason when they are the last."""
        return self.said(self.text(first, count), first + count, reason)

    def said(self, text: str, sent: int, reason: str | None = None) -> bytes:
        """One event with any text; `sent` is how many tokens will have been sent with it."""
        quoted = json.dumps(text)
        return self._event(f'{{"content":{quoted}}}' if self._ask.chat else quoted, reason, sent)

    def finish(self, reason: str, sent: int, usage: tuple[int, int] | None = None) -> bytes:
        """A finish event without output, with `usage` (input and output tokens) in it when given."""
        told = "" if usage is None else f',"usage":{_usage(*usage)}'
        return self._event("{}" if self._ask.chat else '""', reason, sent, told)

    def usage(self, output_tokens: int, input_tokens: int | None = None) -> bytes:
        """The event with empty choices that tells the usage."""
        told = _usage(self._ask.input_tokens if input_tokens is None else input_tokens, output_tokens)
        return f'data: {self._opening}"choices":[],"usage":{told}}}\n\n'.encode()

    def document(self, text: str, reason: str, usage: tuple[int, int] | None) -> bytes:
        """The whole answer as one JSON document."""
        said = json.dumps(text)
        content = f'"message":{{"role":"assistant","content":{said}}}' if self._ask.chat else f'"text":{said}'
        choice = f'{{"index":0,{content},"logprobs":null,"finish_reason":"{reason}","stop_reason":null}}'
        told = "null" if usage is None else _usage(*usage)
        return f'{self._whole_opening}"choices":[{choice}],"usage":{told}}}'.encode()

    def _event(self, said: str, reason: str | None, sent: int, usage: str = "") -> bytes:
        field = "delta" if self._ask.chat else "text"
        if not usage and self._ask.continuous_usage:
            usage = f',"usage":{_usage(self._ask.input_tokens, sent)}'
        ending = "null" if reason is None else f'"{reason}"'
        choice = f'{{"index":0,"{field}":{said},"logprobs":null,"finish_reason":{ending}}}'
        return f'data: {self._opening}"choices":[{choice}]{usage}}}\n\n'.encode()


def error_event(document: object) -> bytes:
    """An error inside a stream."""
    return f"data: {json.dumps(document)}\n\n".encode()


def _usage(input_tokens: int, output_tokens: int) -> str:
    total = input_tokens + output_tokens
    return f'{{"prompt_tokens":{input_tokens},"total_tokens":{total},"completion_tokens":{output_tokens}}}'


def _framed(tail: bytes) -> tuple[bytes, ...]:
    """What follows the start of an event, for every word, up to the end of its chunk."""
    return tuple(word.encode() + tail + b"\r\n" for word in WORDS)


_CHAT_FRAMED = _framed(_CHAT_TAIL)
_TEXT_FRAMED = _framed(_TEXT_TAIL)
