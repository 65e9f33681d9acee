"""Endpoints as clients call them: request bodies, and what a whole answer must hold. One row for each.

The path of an endpoint, its input and its output stand in `model.request.ENDPOINTS`, its decoders in
`load.decode.endpoints`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pydantic_core import PydanticSerializationError, to_json

from benchgate.model.request import ENDPOINTS, Endpoint, ModelRequest
from benchgate.targets import grpc_messages, messages, text_apis, transcriptions
from benchgate.targets.answers import missing_choice, missing_embedding, missing_rank, missing_response
from benchgate.targets.dialect import Target, openai_body
from benchgate.targets.error_messages import RequestError, json_object, success_document
from benchgate.targets.multipart import FORM_TYPE, FormBody, form_body


@dataclass(frozen=True, slots=True)
class EndpointApi:
    """An endpoint's bodies, which are JSON unless it takes a form.

    `missing_output` names the part that an answer of status 200 lacks, if any.
    """

    missing_output: Callable[[Mapping[str, object]], str | None]
    body: Callable[[Target, ModelRequest, int | None], dict[str, object]] = openai_body
    as_object: Callable[[bytes], bytes] = bytes  # makes a JSON object of a body that is none
    takes_form: bool = False
    encode: Callable[[Mapping[str, object]], bytes] | None = None  # of a body that is neither JSON nor a form


def _ranked(body: bytes) -> bytes:
    return b'{"results": %b}' % body if body.lstrip().startswith(b"[") else body


def _joined(body: bytes) -> bytes:
    """Join the events of a stream of Triton; the first error stands for all."""
    if not body.lstrip().startswith(b"data:"):
        return body
    events = [json_object(line[len(b"data:") :]) or {} for line in body.splitlines() if line.startswith(b"data:")]
    failed = next((event for event in events if event.get("error")), {})
    texts = [text_apis.output_text(event) or "" for event in events]
    return json.dumps({**events[-1], "text_output": "".join(texts), **failed}).encode()


def _predicted(body: bytes) -> bytes:
    error = text_apis.prediction_error(body)
    found = {"prediction": body.decode("utf-8", "replace")} if error is None else {"error": error}
    return json.dumps(found).encode()


APIS: Mapping[Endpoint, EndpointApi] = MappingProxyType(
    {
        "chat": EndpointApi(missing_choice),
        "completions": EndpointApi(missing_choice),
        "responses": EndpointApi(missing_response),
        "messages": EndpointApi(messages.missing_block, messages.body),
        "generate": EndpointApi(text_apis.missing_generated_text, text_apis.tgi_body),
        "triton-generate": EndpointApi(text_apis.missing_text_output, text_apis.triton_body, _joined),
        "predictions": EndpointApi(text_apis.missing_prediction, text_apis.predictions_body, _predicted),
        "infer": EndpointApi(text_apis.missing_tensor, text_apis.infer_body),
        "embeddings": EndpointApi(missing_embedding),
        "rerank": EndpointApi(missing_rank, as_object=_ranked),
        "grpc-infer": EndpointApi(text_apis.missing_tensor, grpc_messages.body, encode=grpc_messages.encode),
        "transcriptions": EndpointApi(transcriptions.missing_transcript, transcriptions.body, takes_form=True),
    }
)


def request_path(target: Target, ask: ModelRequest) -> str:
    """Return the path of a request."""
    return ENDPOINTS[ask.endpoint].path_for(ask.model or target.model, stream=ask.stream)


def ask_body(target: Target, ask: ModelRequest, *, seed: int | None = None) -> dict[str, object]:
    """Return the fields of a request's body; the suite's `extra` for this one server overrides everything else."""
    body = APIS[ask.endpoint].body(target, ask, seed) | dict(target.dialect.extra)
    return {name: value for name, value in body.items() if name not in target.dialect.leave_out}


def request_content(target: Target, ask: ModelRequest, *, seed: int | None = None) -> dict[str, object] | FormBody:
    """Return the body of a request: the object to be sent as JSON, or an encoded form. Raises ValueError for a form."""
    fields = ask_body(target, ask, seed=seed)
    return form_body(fields) if APIS[ask.endpoint].takes_form else fields


def wire_body(target: Target, ask: ModelRequest, *, seed: int | None = None) -> bytes:
    """Return the bytes of a request's body. Raises ValueError for what cannot be encoded."""
    encode = APIS[ask.endpoint].encode
    if encode is not None:
        return encode(ask_body(target, ask, seed=seed))
    content = request_content(target, ask, seed=seed)
    if isinstance(content, FormBody):
        return content.content
    try:
        return to_json(content)
    except PydanticSerializationError:  # a lone surrogate has no UTF-8; json escapes it
        return json.dumps(content).encode()


def content_type(endpoint: Endpoint) -> str:
    """Return the type of an endpoint's request bodies."""
    return FORM_TYPE if APIS[endpoint].takes_form else "application/json"


def answer_document(endpoint: Endpoint, status: int, body: bytes) -> dict[str, object]:
    """Return the document of an answer with output. Raises RequestError, unredacted."""
    api = APIS[endpoint]
    document = success_document(status, api.as_object(body) if status == 200 else body)
    missing = api.missing_output(document)
    if missing is not None:
        raise RequestError(missing)
    return document
