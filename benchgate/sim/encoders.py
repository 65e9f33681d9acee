"""The bytes of an answer, in vLLM's shape: events of a stream, or one document. No framing, no socket.

Every word is six bytes with its space, so the head of an event and the size of its chunk are the same for every token
of a plain answer: they are made once, and a token costs one concatenation.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from benchgate.sim.content import LAP_BITS, MASK, WORDS, TokenKind, start_of, stride_of
from benchgate.sim.http_server import EVENT_STREAM, JSON_TYPE, TEXT_TYPE
from benchgate.sim.requests import ApiRequest
from benchgate.targets.grpc_messages import write_answer, write_stream_answer

DONE = b"data: [DONE]\n\n"
FRAME = struct.Struct(">BI")  # before each message of gRPC: whether it is compressed, and its length
_CHAT_TAIL = b'"},"logprobs":null,"finish_reason":null}]}\n\n'
_TEXT_TAIL = b'","logprobs":null,"finish_reason":null}]}\n\n'


class Usage(NamedTuple):
    """Token counts that an answer reports. None: not reported."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class Script(ABC):
    """Encodes one answer for its endpoint. Every event is one item of a list; without a stream there are none."""

    plain = False  # True where `framed_token` may be used
    stream_type = EVENT_STREAM  # content types
    document_type = JSON_TYPE
    _request: ApiRequest

    def framed_token(self, index: int) -> bytes:
        """Return the event of one token as one HTTP chunk, fast; only where it carries no usage."""
        raise NotImplementedError

    def opening(self) -> list[bytes]:
        """Return the events that come with the first token and carry no output."""
        return []

    def tokens(self, first: int, count: int, reason: str | None = None) -> list[bytes]:
        """Return `count` tokens from that index on, with the finish reason when they are the last."""
        return []

    def finish(self, reason: str, sent: int) -> list[bytes]:
        """Return a finish event without output."""
        return []

    def closing(self, reason: str, usage: Usage | None) -> list[bytes]:
        """Return the events after the finish event, with the usage unless it is None; all but `done`."""
        return []

    def done(self) -> list[bytes]:
        """Return the last mark of a stream, where there is one."""
        return []

    def error(self, document: object) -> bytes:
        """Return an error inside a stream."""
        return error_event(document)

    @abstractmethod
    def document(self, reason: str, usage: Usage | None, tokens: int | None = None) -> bytes:
        """Return the answer as one JSON document: all of it, or its first `tokens`."""

    def _made(self, tokens: int | None) -> int:
        return self._request.output_tokens if tokens is None else tokens


class ChoiceScript(Script):
    """Encoder of chat and completions: one choice, or two where a fault makes a second."""

    def __init__(self, request: ApiRequest, number: int, created: int) -> None:
        self._request = request
        self._chat = request.endpoint == "chat"
        self._number = number
        self.plain = request.answer.plain
        name, kind = ("chatcmpl", "chat.completion") if self._chat else ("cmpl", "text_completion")
        rest = f'"created":{created},"model":{json.dumps(request.model)},'
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
        self._start, self._stride = start_of(request.key), stride_of(request.key)

    def framed_token(self, index: int) -> bytes:
        """Return the event of one word as one chunk; `content.word` in place, without a call."""
        stride = self._stride + (index >> LAP_BITS << 1)
        return self._framed_start + self._framed_words[(self._start + index * stride) & MASK]

    def opening(self) -> list[bytes]:
        """Return the role event of a chat; nothing for completions."""
        return [self._event('{"role":"assistant","content":""}', None, 0)] if self._chat else []

    def tokens(self, first: int, count: int, reason: str | None = None) -> list[bytes]:
        """Return one event for each kind of token and each choice among them."""
        spans = [span for part in self._choices(first, count) for span in self._request.answer.spans(*part)]
        last = len(spans) - 1
        return [
            self._event(self._delta(kind, at, size), reason if place == last else None, at + size)
            for place, (kind, at, size) in enumerate(spans)
        ]

    def finish(self, reason: str, sent: int) -> list[bytes]:
        """Return an event with the finish reason and an empty delta."""
        return [self._event("{}" if self._chat else '""', reason, sent)]

    def closing(self, reason: str, usage: Usage | None) -> list[bytes]:
        """Return the event with empty choices and the usage."""
        if usage is None or not self._request.include_usage:
            return []
        return [f'data: {self._opening}"choices":[],"usage":{usage_text(usage)}}}\n\n'.encode()]

    def done(self) -> list[bytes]:
        """Return [DONE]."""
        return [DONE]

    def document(self, reason: str, usage: Usage | None, tokens: int | None = None) -> bytes:
        """Return the whole answer as one JSON document."""
        choices = []
        for index, (first, count) in enumerate(self._choices(0, self._made(tokens))):
            text = json.dumps(self._request.answer.text(first, count))
            content = f'"message":{self._message(first, count)}' if self._chat else f'"text":{text}'
            choices.append(
                f'{{"index":{index},{content},"logprobs":null,"finish_reason":"{reason}","stop_reason":null}}'
            )
        usage_json = "null" if usage is None else usage_text(usage)
        return f'{self._whole_opening}"choices":[{",".join(choices)}],"usage":{usage_json}}}'.encode()

    def _choices(self, first: int, count: int) -> list[tuple[int, int]]:
        """Split a range of tokens where the second choice begins."""
        second, end = self._request.answer.second_from, first + count
        if second is None or not first < second < end:
            return [(first, count)]
        return [(first, second - first), (second, end - second)]

    def _message(self, first: int, count: int) -> str:
        answer = self._request.answer
        message: dict[str, object] = {"role": "assistant", "content": None if count else ""}
        for kind, at, size in answer.spans(first, count):
            text = answer.text(at, size)
            if kind == "tool":
                message["tool_calls"] = [self._call(text)]
            else:
                message["reasoning_content" if kind == "reasoning" else "content"] = text
        return json.dumps(message, separators=(",", ":"))

    def _delta(self, kind: TokenKind, first: int, count: int) -> str:
        answer = self._request.answer
        text = answer.text(first, count)
        if kind == "tool":
            call = self._call(text) if first == answer.thought_tokens else {"function": {"arguments": text}}
            return json.dumps({"tool_calls": [{"index": 0, **call}]}, separators=(",", ":"))
        quoted = json.dumps(text)
        if not self._chat:
            return quoted
        return f'{{"reasoning_content":{quoted}}}' if kind == "reasoning" else f'{{"content":{quoted}}}'

    def _call(self, arguments: str) -> dict[str, object]:
        function = {"name": self._request.answer.tool, "arguments": arguments}
        return {"id": f"call_{self._number:016x}", "type": "function", "function": function}

    def _event(self, delta: str, reason: str | None, sent: int) -> bytes:
        field, usage = "delta" if self._chat else "text", ""
        if self._request.continuous_usage:
            usage = f',"usage":{usage_text(Usage(self._request.input_tokens, sent))}'
        ending = "null" if reason is None else f'"{reason}"'
        second = self._request.answer.second_from
        index = int(second is not None and sent > second)
        choice = f'{{"index":{index},"{field}":{delta},"logprobs":null,"finish_reason":{ending}}}'
        return f'data: {self._opening}"choices":[{choice}]{usage}}}\n\n'.encode()


def error_event(document: object) -> bytes:
    """Encode a document as an event, of an error or of anything else."""
    return f"data: {json.dumps(document)}\n\n".encode()


def usage_text(usage: Usage) -> str:
    """Return the usage object of chat and completions; details only where they are known."""
    total = usage.input_tokens + usage.output_tokens
    counts = f'"prompt_tokens":{usage.input_tokens},"total_tokens":{total},"completion_tokens":{usage.output_tokens}'
    if usage.cached_tokens is not None:
        counts += f',"prompt_tokens_details":{{"cached_tokens":{usage.cached_tokens}}}'
    if usage.reasoning_tokens is not None:
        counts += f',"completion_tokens_details":{{"reasoning_tokens":{usage.reasoning_tokens}}}'
    return f"{{{counts}}}"


def _framed(tail: bytes) -> tuple[bytes, ...]:
    """Return the end of an event, up to the end of its chunk, for every word."""
    return tuple(word.encode() + tail + b"\r\n" for word in WORDS)


_CHAT_FRAMED = _framed(_CHAT_TAIL)
_TEXT_FRAMED = _framed(_TEXT_TAIL)


_INCOMPLETE = {"length": "max_output_tokens"}
_TYPES: dict[TokenKind, str] = {"reasoning": "reasoning", "content": "message", "tool": "function_call"}
_DELTAS: dict[TokenKind, str] = {
    "reasoning": "response.reasoning_text",
    "content": "response.output_text",
    "tool": "response.function_call_arguments",
}
_PARTS: dict[TokenKind, str] = {"reasoning": "reasoning_text", "content": "output_text"}


class ResponseScript(Script):
    """Encoder of the Responses API. Events are numbered in the order of the calls, and the response ends once."""

    def __init__(self, request: ApiRequest, number: int, created: int) -> None:
        self._request = request
        self._name = f"{number:016x}"
        self._created = created
        self._events = 0
        self._items = 0
        self._open: TokenKind | None = None  # the item that is being written
        self._open_from = 0
        self._sent = 0
        self._ended = False

    def opening(self) -> list[bytes]:
        """Return `response.created` and `response.in_progress`."""
        response: dict[str, object] = {"response": self._response("in_progress", [], None)}
        return [self._event("response.created", response), self._event("response.in_progress", response)]

    def tokens(self, first: int, count: int, reason: str | None = None) -> list[bytes]:
        """Return the tokens, and the events that begin and end the items they belong to."""
        events = []
        for kind, at, size in self._request.answer.spans(first, count):
            if kind != self._open:
                events += [*self._close_item(), *self._open_item(kind, at)]
            self._sent = at + size
            delta = {"delta": self._request.answer.text(at, size)}
            events.append(self._event(f"{_DELTAS[kind]}.delta", self._place(kind) | delta))
        return events

    def closing(self, reason: str, usage: Usage | None) -> list[bytes]:
        """Return the end of the open item, and the whole response with its status and usage."""
        if self._ended:
            return []
        events, self._ended = self._close_item(), True
        response = self._response(_status(reason), self._output(self._sent), usage, reason)
        return [*events, self._event("response.completed", {"response": response})]

    def document(self, reason: str, usage: Usage | None, tokens: int | None = None) -> bytes:
        """Return the whole answer as one JSON document."""
        output = self._output(self._made(tokens))
        return json.dumps(self._response(_status(reason), output, usage, reason), separators=(",", ":")).encode()

    def _open_item(self, kind: TokenKind, first: int) -> list[bytes]:
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
        text = self._request.answer.text(self._open_from, self._sent - self._open_from)
        content = {"arguments": text} if kind == "tool" else {"text": text}
        events = [self._event(f"{_DELTAS[kind]}.done", self._place(kind) | content)]
        if kind != "tool":
            events.append(self._event("response.content_part.done", self._place(kind) | {"part": _part(kind, text)}))
        item = self._item(kind, "completed", text)
        events.append(self._event("response.output_item.done", {"output_index": self._items, "item": item}))
        self._open = None
        self._items += 1
        return events

    def _place(self, kind: TokenKind) -> dict[str, object]:
        place: dict[str, object] = {"item_id": self._item_id(kind), "output_index": self._items}
        return place if kind == "tool" else place | {"content_index": 0}

    def _item_id(self, kind: TokenKind) -> str:
        return f"{_TYPES[kind]}_{self._name}"

    def _item(self, kind: TokenKind, status: str, text: str) -> dict[str, object]:
        item: dict[str, object] = {"id": self._item_id(kind), "type": _TYPES[kind], "status": status}
        if kind == "tool":
            call = {"call_id": f"call_{self._name}", "name": self._request.answer.tool, "arguments": text}
            return item | call
        content = [_part(kind, text)] if text else []
        if kind == "reasoning":
            return item | {"summary": [], "content": content}
        return item | {"role": "assistant", "content": content}

    def _output(self, tokens: int) -> list[dict[str, object]]:
        answer = self._request.answer
        return [self._item(kind, "completed", answer.text(at, size)) for kind, at, size in answer.spans(0, tokens)]

    def _response(
        self, status: str, output: list[dict[str, object]], usage: Usage | None, reason: str = "stop"
    ) -> dict[str, object]:
        cut = _INCOMPLETE.get(reason)
        return {
            "id": f"resp_{self._name}",
            "object": "response",
            "created_at": self._created,
            "model": self._request.model,
            "status": status,
            "incomplete_details": None if cut is None or status != "incomplete" else {"reason": cut},
            "error": None,
            "output": output,
            "usage": None if usage is None else _usage(usage),
        }

    def _event(self, name: str, content: dict[str, object]) -> bytes:
        document = json.dumps({"type": name, "sequence_number": self._events} | content, separators=(",", ":"))
        self._events += 1
        return f"event: {name}\ndata: {document}\n\n".encode()


def _status(reason: str) -> str:
    if reason == "abort":
        return "cancelled"
    return "incomplete" if reason in _INCOMPLETE else "completed"


def _part(kind: TokenKind, text: str) -> dict[str, object]:
    part: dict[str, object] = {"type": _PARTS[kind], "text": text}
    return part if kind == "reasoning" else part | {"annotations": []}


def _usage(usage: Usage) -> dict[str, object]:
    """Return the usage object of a response; its details are always there, 0 if unknown, as in the API."""
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens or 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}  # vLLM has none for an abort
_BLOCKS: dict[TokenKind, tuple[str, str, str]] = {  # its type, the type of its deltas, and the name of their text
    "reasoning": ("thinking", "thinking_delta", "thinking"),
    "content": ("text", "text_delta", "text"),
    "tool": ("tool_use", "input_json_delta", "partial_json"),
}


class MessageScript(Script):
    """Encoder of Anthropic's Messages API, as vLLM writes it. The message ends once."""

    def __init__(self, request: ApiRequest, number: int, created: int) -> None:
        self._request = request
        self._name = f"msg_{number:016x}"
        self._blocks = 0
        self._open: TokenKind | None = None  # the block that is being written
        self._ended = False

    def opening(self) -> list[bytes]:
        """Return `message_start` and a ping."""
        message = self._message([], None, Usage(self._request.input_tokens, 0))
        return [self._event("message_start", {"message": message}), self._event("ping", {})]

    def tokens(self, first: int, count: int, reason: str | None = None) -> list[bytes]:
        """Return the tokens, and the events that begin and end the blocks they belong to."""
        events = []
        for kind, at, size in self._request.answer.spans(first, count):
            if kind != self._open:
                events += self._close_block()
                block = self._block(kind, "", {})
                events.append(self._event("content_block_start", {"index": self._blocks, "content_block": block}))
                self._open = kind
            _, delta_type, key = _BLOCKS[kind]
            delta = {"type": delta_type, key: self._request.answer.text(at, size)}
            events.append(self._event("content_block_delta", {"index": self._blocks, "delta": delta}))
        return events

    def closing(self, reason: str, usage: Usage | None) -> list[bytes]:
        """Return the end of the open block, the stop reason with the usage, and the end of the message."""
        if self._ended:
            return []
        self._ended = True
        counts = {} if usage is None else {"usage": _message_usage(usage)}
        delta = {"stop_reason": _STOP_REASONS.get(reason), "stop_sequence": None}
        return [
            *self._close_block(),
            self._event("message_delta", {"delta": delta, **counts}),
            self._event("message_stop", {}),
        ]

    def error(self, document: object) -> bytes:
        """Return an error event."""
        error = document.get("error") if isinstance(document, dict) else document
        return self._event("error", {"error": error})

    def document(self, reason: str, usage: Usage | None, tokens: int | None = None) -> bytes:
        """Return the whole answer as one JSON document."""
        answer, blocks = self._request.answer, list[dict[str, object]]()
        for kind, at, size in answer.spans(0, self._made(tokens)):
            text = answer.text(at, size)
            blocks.append(self._block(kind, text, _input_of(text) if kind == "tool" else {}))
        return json.dumps(self._message(blocks, reason, usage), separators=(",", ":")).encode()

    def _close_block(self) -> list[bytes]:
        if self._open is None:
            return []
        self._open = None
        self._blocks += 1
        return [self._event("content_block_stop", {"index": self._blocks - 1})]

    def _block(self, kind: TokenKind, text: str, given: object) -> dict[str, object]:
        block_type, _, key = _BLOCKS[kind]
        if kind == "tool":
            return {"type": block_type, "id": f"toolu_{self._name}", "name": self._request.answer.tool, "input": given}
        return {"type": block_type, key: text}

    def _message(self, blocks: list[dict[str, object]], reason: str | None, usage: Usage | None) -> dict[str, object]:
        return {
            "id": self._name,
            "type": "message",
            "role": "assistant",
            "content": blocks,
            "model": self._request.model,
            "stop_reason": None if reason is None else _STOP_REASONS.get(reason),
            "stop_sequence": None,
            "usage": None if usage is None else _message_usage(usage),
        }

    def _event(self, name: str, content: dict[str, object]) -> bytes:
        return f"event: {name}\ndata: {json.dumps({'type': name} | content, separators=(',', ':'))}\n\n".encode()


def _message_usage(usage: Usage) -> dict[str, object]:
    """Return the usage object of a message, whose `input_tokens` are those that no cache held."""
    counts: dict[str, object] = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
    if usage.cached_tokens is not None:
        uncached = {"input_tokens": usage.input_tokens - usage.cached_tokens}
        counts |= uncached | {"cache_read_input_tokens": usage.cached_tokens}
    return counts


def _input_of(arguments: str) -> object:
    """Return a call's input as an object; empty where the arguments are no JSON."""
    try:
        return json.loads(arguments)
    except ValueError:
        return {}


_TGI_REASONS = {"stop": "eos_token", "length": "length"}
_TGI_ERROR = {"error": "Request failed during generation: aborted", "error_type": "generation"}


class TgiScript(Script):
    """Encoder of TGI's `generate`: an event for each token; the last one has the text and the details."""

    def __init__(self, request: ApiRequest, number: int, created: int) -> None:
        self._request = request
        self._sent = 0
        self._last: str | None = None  # the last token, which waits for the details

    def tokens(self, first: int, count: int, reason: str | None = None) -> list[bytes]:
        """Return an event a token, but for the one with the finish reason."""
        texts = [self._request.answer.text(at, 1) for at in range(first, first + count)]
        if reason is not None:
            self._last = texts.pop()
        return [self._event(text) for text in texts]

    def closing(self, reason: str, usage: Usage | None) -> list[bytes]:
        """Return the event with the last token, or else the end of the text, and the details."""
        if reason not in _TGI_REASONS:
            return [self.error(_TGI_ERROR)]
        output = 0 if usage is None else usage.output_tokens
        details: dict[str, object] = {"finish_reason": _TGI_REASONS[reason], "generated_tokens": output, "seed": None}
        if usage is not None:
            details["input_length"] = usage.input_tokens
        is_end = self._last is None
        text, self._last = self._last or "</s>", None
        return [self._event(text, is_end, self._request.answer.text(0, output), details)]

    def error(self, document: object) -> bytes:
        """Return an error inside a stream."""
        return f"data:{json.dumps(_tgi_error(document))}\n\n".encode()

    def document(self, reason: str, usage: Usage | None, tokens: int | None = None) -> bytes:
        """Return the whole answer as one JSON document."""
        if reason not in _TGI_REASONS:
            return json.dumps(_TGI_ERROR).encode()
        output = 0 if usage is None else usage.output_tokens
        text = self._request.answer.text(0, self._made(tokens))
        details: dict[str, object] = {"finish_reason": _TGI_REASONS[reason], "generated_tokens": output, "seed": None}
        details |= {"prefill": [], "tokens": []}
        return json.dumps({"generated_text": text, "details": details}, separators=(",", ":")).encode()

    def _event(self, text: str, is_end: bool = False, whole: str | None = None, details: object = None) -> bytes:
        self._sent += 1
        token = {"id": self._sent, "text": text, "logprob": -0.5, "special": is_end}
        event = {"index": self._sent, "token": token, "generated_text": whole, "details": details}
        return f"data:{json.dumps(event, separators=(',', ':'))}\n\n".encode()


def _tgi_error(document: object) -> object:
    error = document.get("error") if isinstance(document, dict) else None
    return {"error": error["message"], "error_type": "generation"} if isinstance(error, dict) else document


def _error_text(document: object) -> object:
    error = _tgi_error(document)
    return error.get("error") if isinstance(error, dict) else error


class TritonScript(Script):
    """Encoder of Triton's `generate`, whose answers state no end and no usage."""

    def __init__(self, request: ApiRequest, number: int, created: int) -> None:
        self._request = request

    def tokens(self, first: int, count: int, reason: str | None = None) -> list[bytes]:
        """Return the tokens in one event."""
        return [b"data: %b\n\n" % self._answer(self._request.answer.text(first, count))]

    def closing(self, reason: str, usage: Usage | None) -> list[bytes]:
        """Return an error for an answer that was aborted; nothing else."""
        return [self.error({"error": "aborted"})] if reason == "abort" else []

    def error(self, document: object) -> bytes:
        """Return an error inside a stream."""
        return error_event({"error": _error_text(document)})

    def document(self, reason: str, usage: Usage | None, tokens: int | None = None) -> bytes:
        """Return the whole answer as one JSON document."""
        if reason == "abort":
            return b'{"error":"aborted"}'
        return self._answer(self._request.answer.text(0, self._made(tokens)))

    def _answer(self, text: str) -> bytes:
        answer = {"model_name": self._request.model, "model_version": "1", "text_output": text}
        return json.dumps(answer, separators=(",", ":")).encode()


class InferenceScript(Script):
    """Encoder of KServe's `infer`: one tensor with one text."""

    def __init__(self, request: ApiRequest, number: int, created: int) -> None:
        self._request = request
        self._number = number

    def document(self, reason: str, usage: Usage | None, tokens: int | None = None) -> bytes:
        """Return the whole answer as one JSON document."""
        text = self._request.answer.text(0, self._made(tokens))
        tensor = {"name": "text_output", "datatype": "BYTES", "shape": [1], "data": [text]}
        answer = {"id": f"{self._number:016x}", "model_name": self._request.model, "model_version": "1"}
        return json.dumps(answer | {"outputs": [tensor]} if reason != "abort" else {"error": "aborted"}).encode()


class GrpcScript(Script):
    """Encoder of KServe's inference over gRPC: every event is a framed message, the last one marked as final."""

    document_type = stream_type = "application/grpc"

    def __init__(self, request: ApiRequest, number: int, created: int) -> None:
        self._request = request

    def tokens(self, first: int, count: int, reason: str | None = None) -> list[bytes]:
        """Return the tokens in one message."""
        text = self._request.answer.text(first, count)
        return [framed(write_stream_answer(write_answer(self._request.model, text, is_final=False)))]

    def closing(self, reason: str, usage: Usage | None) -> list[bytes]:
        """Return the last message, which has no output, or an error for an answer that was aborted."""
        if reason == "abort":
            return [framed(write_stream_answer(error="aborted"))]
        return [framed(write_stream_answer(write_answer(self._request.model, None, is_final=True)))]

    def error(self, document: object) -> bytes:
        """Return an error inside a stream."""
        return framed(write_stream_answer(error=str(_error_text(document))))

    def document(self, reason: str, usage: Usage | None, tokens: int | None = None) -> bytes:
        """Return the whole answer as one message; one that was aborted has no output."""
        text = self._request.answer.text(0, self._made(tokens))
        answer = write_answer(self._request.model, None if reason == "abort" else text, is_final=True)
        return framed(bytes(answer.SerializeToString()))


def framed(message: bytes) -> bytes:
    """Return a message behind its length, as gRPC writes it."""
    return FRAME.pack(0, len(message)) + message


class PredictionScript(Script):
    """Encoder of TorchServe: plain text, a chunk for each write."""

    stream_type = document_type = TEXT_TYPE

    def __init__(self, request: ApiRequest, number: int, created: int) -> None:
        self._request = request

    def tokens(self, first: int, count: int, reason: str | None = None) -> list[bytes]:
        """Return the text of the tokens."""
        return [self._request.answer.text(first, count).encode()]

    def closing(self, reason: str, usage: Usage | None) -> list[bytes]:
        """Return an error for an answer that was aborted; nothing else."""
        return [self.error({})] if reason == "abort" else []

    def error(self, document: object) -> bytes:
        """Return an error inside a stream, as a handler may write it."""
        return b'{"code":503,"type":"InternalServerException","message":"Prediction failed"}'

    def document(self, reason: str, usage: Usage | None, tokens: int | None = None) -> bytes:
        """Return the whole answer as text."""
        if reason == "abort":
            return self.error({})
        return self._request.answer.text(0, self._made(tokens)).encode()


class TranscriptScript(Script):
    """Encoder of transcriptions, as vLLM sends them."""

    def __init__(self, request: ApiRequest, number: int, created: int) -> None:
        self._request = request
        self.document_type = TEXT_TYPE if request.form == "text" else JSON_TYPE
        self._head = {
            "id": f"trsc-{number:016x}", "object": "transcription.chunk", "created": created, "model": request.model,
        }  # fmt: skip

    def tokens(self, first: int, count: int, reason: str | None = None) -> list[bytes]:
        """Return one event with the text of the tokens."""
        return [self._event({"content": self._request.answer.text(first, count)}, reason)]

    def finish(self, reason: str, sent: int) -> list[bytes]:
        """Return an event with the finish reason and an empty text."""
        return [self._event({"content": ""}, reason)]

    def closing(self, reason: str, usage: Usage | None) -> list[bytes]:
        """Return the event with the usage."""
        if usage is None or not self._request.include_usage:
            return []
        counts = json.loads(usage_text(usage))
        return [error_event(self._head | {"choices": [], "usage": counts})]

    def done(self) -> list[bytes]:
        """Return [DONE]."""
        return [DONE]

    def document(self, reason: str, usage: Usage | None, tokens: int | None = None) -> bytes:
        """Return the whole answer in the form that was requested."""
        if reason == "abort":
            return json.dumps({"error": {"message": "aborted", "type": "InternalServerError", "code": 500}}).encode()
        text, seconds = self._request.answer.text(0, self._made(tokens)), self._request.audio_s
        if self._request.form == "text":
            return text.encode()
        if self._request.form == "json":
            counted = {"type": "duration", "seconds": math.ceil(seconds)}
            return json.dumps({"text": text, "usage": counted}, separators=(",", ":")).encode()
        segment = {"id": 0, "start": 0.0, "end": seconds, "text": text}
        stated = {"duration": str(seconds), "language": "en", "text": text, "segments": [segment]}
        return json.dumps(stated, separators=(",", ":")).encode()

    def _event(self, delta: dict[str, object], reason: str | None) -> bytes:
        choice = {"delta": delta} if reason is None else {"delta": delta, "finish_reason": reason, "stop_reason": None}
        return error_event(self._head | {"choices": [choice]})


_MULTIPLIER, _INCREMENT, _MODULUS = 1_664_525, 1_013_904_223, 2**32  # the generator of Numerical Recipes


class VectorScript(Script):
    """Encoder of embeddings and rankings, whose numbers follow from the texts: one document and no stream."""

    def __init__(self, request: ApiRequest, number: int, created: int) -> None:
        self._request = request
        self._number = number
        self._created = created

    def document(self, reason: str, usage: Usage | None, tokens: int | None = None) -> bytes:
        """Return the whole answer as one JSON document."""
        made = self._embeddings(tokens == 0) if self._request.endpoint == "embeddings" else self._ranking(tokens == 0)
        counts = None
        if usage is not None:
            counts = {"prompt_tokens": usage.input_tokens, "total_tokens": usage.input_tokens, "completion_tokens": 0}
        return json.dumps(made | {"usage": counts}, separators=(",", ":")).encode()

    def _embeddings(self, empty: bool) -> dict[str, object]:
        data = list[dict[str, object]]()
        for at, item in enumerate(() if empty else self._request.items):
            embedding: Sequence[float] | str = vector(item.key, self._request.width)
            if self._request.base64:
                embedding = base64.b64encode(struct.pack(f"<{len(embedding)}f", *embedding)).decode()
            data.append({"index": at, "object": "embedding", "embedding": embedding})
        return {
            "id": f"embd-{self._number:016x}",
            "object": "list",
            "created": self._created,
            "model": self._request.model,
            "data": data,
        }

    def _ranking(self, empty: bool) -> dict[str, object]:
        scored = sorted(((item.key / 2**32, -at) for at, item in enumerate(self._request.items)), reverse=True)
        best = [] if empty else scored[: self._request.width]
        results: list[dict[str, object]] = [
            {"index": -at, "document": {"text": self._request.items[-at].text}, "relevance_score": score}
            for score, at in best
        ]
        return {"id": f"rerank-{self._number:016x}", "model": self._request.model, "results": results}


def vector(key: int, size: int) -> list[float]:
    """Return a vector of length 1 that follows from the key."""
    state, numbers = key, []
    for _ in range(size):
        state = (state * _MULTIPLIER + _INCREMENT) % _MODULUS
        numbers.append(state / 2**31 - 1)
    length = math.sqrt(sum(number * number for number in numbers)) or 1.0
    return [round(number / length, 6) for number in numbers]
