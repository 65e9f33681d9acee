"""Answers over gRPC: one message, or as many as a model sends (`targets.grpc_messages`).

A model of Triton that answers several times states which answer is the last, where the request asks for it. Any other
server states no end: there the end of the call is the end of the answer. Neither counts tokens: messages are counted.
"""

from __future__ import annotations

from collections.abc import Iterable

from benchgate.load.decode.answer import ParsedAnswer
from benchgate.load.decode.body import RawBody, Read
from benchgate.targets.error_messages import Secret
from benchgate.targets.grpc_messages import decode


def read_inferences(body: Iterable[Read], *, secret: Secret = None) -> ParsedAnswer:
    """Read a body as the messages of `ModelStreamInfer`."""
    return _read(body, secret, streamed=True)


def read_one_inference(body: Iterable[Read], *, secret: Secret = None) -> ParsedAnswer:
    """Read a body as the message of `ModelInfer`."""
    return _read(body, secret, streamed=False)


def _read(body: Iterable[Read], secret: Secret, *, streamed: bool) -> ParsedAnswer:
    stream, message = ParsedAnswer(secret=secret), bytearray()
    reads = iter(body if isinstance(body, RawBody) else RawBody.of(body))
    ended: bool | None = None  # as stated
    for at_ns, data in reads:
        message += data
        if not reads.between_chunks:
            continue
        stream.events += 1
        found = decode(bytes(message), streamed=streamed)
        message.clear()
        if found is None:
            stream.malformed = stream.malformed or "a message that is no answer of the inference protocol"
            continue
        if found.error is not None:
            stream.error = stream.error or found.error
            continue
        ended = ended if found.is_final is None else found.is_final
        stream.model = stream.model or found.model
        if found.text is None and found.is_final is None:
            stream.malformed = stream.malformed or "an answer without an output of BYTES"
        stream.take_text(at_ns, found.text)
        stream.unstated_end_ns = None if ended is False else at_ns
    return stream
