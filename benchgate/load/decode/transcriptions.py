"""Transcriptions: documents, plain texts, and streams as OpenAI (`transcript.text.delta`) and vLLM spell them.

vLLM and SGLang stream chunks like those of a chat. They answer a recording that is longer than their model reads at
once in parts: each part has a finish reason, and `[DONE]` alone ends the answer.
"""

from __future__ import annotations

from collections.abc import Iterable

from benchgate.load.decode.answer import ParsedAnswer
from benchgate.load.decode.body import Read
from benchgate.load.decode.chat import joined_reads
from benchgate.load.decode.events import read_events
from benchgate.model.request import ModelRequest
from benchgate.targets.answers import text_in
from benchgate.targets.error_messages import Secret, event_error, json_object
from benchgate.targets.transcriptions import TEXT_FORMS, stated_duration_s

_CHUNKS = (None, "transcription.chunk", "translation.chunk")  # what vLLM and SGLang call their chunks
_WHOLE_FORM = "verbose_json"


def read_transcript_stream(body: Iterable[Read], *, secret: Secret = None) -> ParsedAnswer:
    """Read a body as the events of a transcription."""
    stream = read_events(body, _take_event, secret=secret)
    if not stream.is_over:  # a part of the recording may be missing
        stream.finish_reason = stream.finish_ns = stream.finish_at = None
    return stream


def read_transcript(body: Iterable[Read], ask: ModelRequest, *, secret: Secret = None) -> ParsedAnswer:
    """Read a body as a whole transcription. Without events when it is empty, or no JSON object where one was requested.

    A server that knows no plain text (vLLM) sends JSON instead.
    """
    stream = ParsedAnswer(secret=secret)
    at_ns, raw = joined_reads(body)
    data, form = json_object(raw), ask.fields.get("response_format")
    if data is None:
        if form in TEXT_FORMS and raw.strip():
            stream.events, stream.unstated_end_ns = 1, at_ns
            stream.take_text(at_ns, raw.decode("utf-8", "replace"))
        return stream
    stream.events = 1
    if not isinstance(data.get("text"), str):
        stream.error = event_error(data)
        stream.malformed = "a transcription without a text"
    elif form == _WHOLE_FORM and stated_duration_s(data) is None:
        stream.malformed = "a verbose transcription without the duration of the recording"
    else:
        stream.take_text(at_ns, data["text"])
        stream.take_finish(at_ns, "stop")
    stream.take_usage(data)
    stream.take_id(data)
    return stream


def _take_event(stream: ParsedAnswer, at_ns: int, kind: str, data: dict[str, object]) -> bool:
    if kind == "transcript.text.delta":
        stream.take_text(at_ns, data.get("delta"))
    elif kind == "transcript.text.done":
        if not isinstance(data.get("text"), str):
            stream.malformed = "a transcription without a text"
        elif not stream.chunk_ns:  # it comes in one piece
            stream.take_text(at_ns, data["text"])
        stream.take_usage(data)
        stream.take_finish(at_ns, "stop")
        stream.is_over = True
    elif isinstance(choices := data.get("choices"), list) and data.get("object") in _CHUNKS:
        for choice in choices:
            if isinstance(choice, dict):
                _take_choice(stream, at_ns, choice)
        stream.take_usage(data)
        stream.take_id(data)
    return kind.startswith("transcript.") or ("choices" in data and data.get("object") in _CHUNKS)


def _take_choice(stream: ParsedAnswer, at_ns: int, choice: dict[str, object]) -> None:
    delta = choice.get("delta")
    stream.take_text(at_ns, text_in(delta.get("content")) if isinstance(delta, dict) else None)
    if choice.get("finish_reason") is not None:
        was_cut = stream.finish_reason == "length"
        stream.take_finish(at_ns, choice["finish_reason"])
        stream.finish_ns, stream.finish_at = at_ns, len(stream.chunk_ns)  # of the last part
        if was_cut and stream.finish_reason == "stop":
            stream.finish_reason = "length"
