"""Answers of TGI, Triton, KServe and TorchServe, followed as their servers send them.

TGI (`router/src/server.rs`) streams an event a token; the last one has the whole text and the details. Triton
(`src/http_server.cc`), KServe and TorchServe (`RestJob.java`) state no end: there a whole body is a whole answer, and a
stream that the server cut in good order cannot be told from one. Nor do they count tokens, so chunks are counted;
vLLM's backend of Triton does both if the request asks for it.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Iterable

from benchgate.load.decode.answer import ParsedAnswer, is_text
from benchgate.load.decode.body import RawBody, Read
from benchgate.load.decode.chat import joined_reads, whole_document
from benchgate.load.decode.events import read_events
from benchgate.targets.answers import token_count
from benchgate.targets.error_messages import Secret, event_error
from benchgate.targets.text_apis import output_text, prediction_error, tensor_text


def read_tgi_stream(body: Iterable[Read], *, secret: Secret = None) -> ParsedAnswer:
    """Read a body as the events of TGI's `generate_stream`."""
    return read_events(body, _take_tgi_event, secret=secret)


def read_tgi_document(body: Iterable[Read], *, secret: Secret = None) -> ParsedAnswer:
    """Read a body as the document of TGI's `generate`. Without events when it is no JSON object."""
    stream, at_ns, data = _document(body, "generated_text", secret)
    if data is not None:
        stream.take_text(at_ns, data["generated_text"])
        _take_details(stream, at_ns, data.get("details"))
    return stream


def _take_tgi_event(stream: ParsedAnswer, at_ns: int, kind: str, data: dict[str, object]) -> bool:
    token = data.get("token")
    if isinstance(token, dict) and not token.get("special"):  # as the end of the text is
        stream.take_text(at_ns, token.get("text"))
    _take_details(stream, at_ns, data.get("details"))
    return "token" in data


def _take_details(stream: ParsedAnswer, at_ns: int, details: object) -> None:
    """Note finish reason and token counts; LoRAX has another name for those of the prompt."""
    if isinstance(details, dict):
        stream.take_finish(at_ns, details.get("finish_reason"))
        stream.usage_tokens = token_count(details.get("generated_tokens"))
        prefill = details.get("prefill")
        listed = len(prefill) if isinstance(prefill, list) else None
        stream.input_tokens = token_count(details.get("input_length", details.get("prompt_tokens", listed)))


def read_triton_stream(body: Iterable[Read], *, secret: Secret = None) -> ParsedAnswer:
    """Read a body as the events of Triton's `generate_stream`."""
    return read_events(body, _take_triton_event, _plain_triton_text, secret=secret)


def read_triton_document(body: Iterable[Read], *, secret: Secret = None) -> ParsedAnswer:
    """Read a body as the document of Triton's `generate`. Without events when it is no JSON object."""
    stream, at_ns, data = _document(body, "text_output", secret)
    if data is not None:
        _take_triton_event(stream, at_ns, "", data)
    return stream


def _take_triton_event(stream: ParsedAnswer, at_ns: int, kind: str, data: dict[str, object]) -> bool:
    if "text_output" not in data:
        return False
    stream.take_text(at_ns, output_text(data))
    if stream.model is None and is_text(name := data.get("model_name")):
        stream.model = str(name)
    stream.unstated_end_ns = at_ns
    if (reason := data.get("finish_reason")) != "None":  # as vLLM's backend writes it before the end
        stream.take_finish(at_ns, reason)
    if (tokens := token_count(data.get("num_output_tokens"))) is not None:  # of this event
        stream.usage_tokens = (stream.usage_tokens or 0) + tokens
    stream.input_tokens = token_count(data.get("num_input_tokens")) or stream.input_tokens
    return True


def _plain_triton_text(data: dict[str, object]) -> object:
    return data.get("text_output") if data.keys() <= {"model_name", "model_version", "text_output"} else None


def read_inference(body: Iterable[Read], *, secret: Secret = None) -> ParsedAnswer:
    """Read a body as the output tensors of KServe's `infer`. Without events when it is no JSON object."""
    stream, at_ns, data = _document(body, "outputs", secret)
    if data is not None:
        text = tensor_text(data)
        if text is None:
            stream.malformed = "a document without an output of BYTES"
        stream.take_text(at_ns, text)
        stream.unstated_end_ns = at_ns
    return stream


def read_predictions_stream(body: Iterable[Read], *, secret: Secret = None) -> ParsedAnswer:
    """Read a body of TorchServe as text: each chunk is a piece of output, unless it is an error."""
    stream, piece = ParsedAnswer(secret=secret), bytearray()
    decoder = getincrementaldecoder("utf-8")("replace")  # a character may be cut between two chunks
    reads = iter(body if isinstance(body, RawBody) else RawBody.of(body))
    for at_ns, data in reads:
        piece += data
        if reads.between_chunks:
            _take_prediction(stream, at_ns, bytes(piece), decoder.decode(piece))
            piece.clear()
    return stream


def read_predictions_document(body: Iterable[Read], *, secret: Secret = None) -> ParsedAnswer:
    """Read a body of TorchServe as one text, whether or not it is JSON. Without events when it is empty."""
    stream = ParsedAnswer(secret=secret)
    at_ns, raw = joined_reads(body)
    if raw.strip():
        _take_prediction(stream, at_ns, raw, raw.decode("utf-8", "replace"))
    return stream


def _take_prediction(stream: ParsedAnswer, at_ns: int, raw: bytes, text: str) -> None:
    stream.events += 1
    stream.unstated_end_ns = at_ns
    if (error := prediction_error(raw)) is not None:
        stream.error = stream.error or error
    elif raw.startswith((b"data:", b"event:")):
        events = "events where TorchServe's own answer was expected; write the endpoint that sends them"
        stream.malformed = stream.malformed or events
    else:
        stream.words.texts.append(text)
        stream.take_chunk(at_ns, answers=True)


def _document(body: Iterable[Read], key: str, secret: Secret) -> tuple[ParsedAnswer, int, dict[str, object] | None]:
    """Return the document of a body, None unless it has the `key`; without events when it is no JSON object."""
    at_ns, data = whole_document(body)
    stream = ParsedAnswer(secret=secret)
    if data is None:
        return stream, at_ns, None
    stream.events = 1
    if key in data and not data.get("error"):
        return stream, at_ns, data
    stream.error = event_error(data)
    stream.malformed = f"a document without {key}"
    return stream, at_ns, None
