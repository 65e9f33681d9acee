"""The decoders of each endpoint. One row for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from benchgate.load.decode.answer import ParsedAnswer
from benchgate.load.decode.body import Read
from benchgate.load.decode.chat import read_document, read_stream
from benchgate.load.decode.embeddings import read_embeddings, read_ranking
from benchgate.load.decode.grpc_infer import read_inferences, read_one_inference
from benchgate.load.decode.messages import read_messages_document, read_messages_stream
from benchgate.load.decode.responses import read_responses_document, read_responses_stream
from benchgate.load.decode.text_apis import (
    read_inference,
    read_predictions_document,
    read_predictions_stream,
    read_tgi_document,
    read_tgi_stream,
    read_triton_document,
    read_triton_stream,
)
from benchgate.load.decode.transcriptions import read_transcript, read_transcript_stream
from benchgate.model.request import Endpoint, ModelRequest
from benchgate.targets.error_messages import Secret


@dataclass(frozen=True, slots=True)
class Decoder:
    """The readers of whole and of streamed answers. The document's reader gets the request too, where it needs it.

    Every chunk with output of a streamed answer contains the bytes `hint`, though not everything that contains them is
    such a chunk. It is empty where chunks have nothing in common.
    """

    document: Callable[..., ParsedAnswer]
    stream: Callable[..., ParsedAnswer] | None = None
    needs_request: bool = False
    hint: bytes = b"data:"

    def read(self, body: Iterable[Read], ask: ModelRequest, secret: Secret = None) -> ParsedAnswer:
        """Decode the answer to a request."""
        if ask.stream and self.stream is not None:
            return self.stream(body, secret=secret)
        return self.document(body, *([ask] if self.needs_request else []), secret=secret)


DECODERS: Mapping[Endpoint, Decoder] = MappingProxyType(
    {
        "chat": Decoder(read_document, read_stream),
        "completions": Decoder(read_document, read_stream),
        "responses": Decoder(read_responses_document, read_responses_stream),
        "messages": Decoder(read_messages_document, read_messages_stream),
        "generate": Decoder(read_tgi_document, read_tgi_stream),
        "triton-generate": Decoder(read_triton_document, read_triton_stream),
        "predictions": Decoder(read_predictions_document, read_predictions_stream, hint=b""),  # bare text
        "infer": Decoder(read_inference),
        "embeddings": Decoder(read_embeddings, needs_request=True),
        "rerank": Decoder(read_ranking, needs_request=True),
        "grpc-infer": Decoder(read_one_inference, read_inferences, hint=b"BYTES"),  # type of a tensor with text
        "transcriptions": Decoder(read_transcript, read_transcript_stream, needs_request=True),
    }
)


def read_body(body: Iterable[Read], ask: ModelRequest, secret: Secret = None) -> ParsedAnswer:
    """Decode a body by the endpoint of its request."""
    return DECODERS[ask.endpoint].read(body, ask, secret)
