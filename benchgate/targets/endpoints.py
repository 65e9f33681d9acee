"""Endpoints as clients call them: request bodies, and what a whole answer must hold. One row for each.

The path of an endpoint, its input and its output stand in `model.request.ENDPOINTS`, its decoders in
`load.decode.endpoints`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from benchgate.model.request import ENDPOINTS, Endpoint, ModelRequest, text_request
from benchgate.targets import messages
from benchgate.targets.answers import missing_choice, missing_embedding, missing_rank, missing_response
from benchgate.targets.dialect import Target, openai_body
from benchgate.targets.error_messages import RequestError, success_document


@dataclass(frozen=True, slots=True)
class EndpointApi:
    """An endpoint's bodies. `missing_output` names the part that an answer of status 200 lacks, if any."""

    missing_output: Callable[[Mapping[str, object]], str | None]
    body: Callable[[Target, ModelRequest, int | None], dict[str, object]] = openai_body


APIS: Mapping[Endpoint, EndpointApi] = MappingProxyType(
    {
        "chat": EndpointApi(missing_choice),
        "completions": EndpointApi(missing_choice),
        "responses": EndpointApi(missing_response),
        "messages": EndpointApi(messages.missing_block, messages.body),
        "embeddings": EndpointApi(missing_embedding),
        "rerank": EndpointApi(missing_rank),
    }
)


def path_of(endpoint: Endpoint) -> str:
    """Return the path of an endpoint's requests."""
    return ENDPOINTS[endpoint].path


def ask_body(target: Target, ask: ModelRequest, *, seed: int | None = None) -> dict[str, object]:
    """Return the JSON body of a request; the suite's `extra` for this one server overrides everything else."""
    body = APIS[ask.endpoint].body(target, ask, seed) | dict(target.dialect.extra)
    return {name: value for name, value in body.items() if name not in target.dialect.leave_out}


def request_body(
    target: Target,
    endpoint: Endpoint,
    prompt: str,
    max_tokens: int,
    *,
    stream: bool,
    seed: int | None = None,
    ignore_eos: bool = False,
) -> dict[str, object]:
    """Return the `ask_body` of one text."""
    ask = text_request(endpoint, prompt, max_tokens, ignore_eos=ignore_eos)
    return ask_body(target, replace(ask, stream=stream and ask.stream), seed=seed)


def answer_document(endpoint: Endpoint, status: int, body: bytes) -> dict[str, object]:
    """Return the document of an answer with output (a bare list as `results`). Raises RequestError, unredacted."""
    if endpoint == "rerank" and status == 200 and body.lstrip().startswith(b"["):
        body = b'{"results": %b}' % body
    document = success_document(status, body)
    missing = APIS[endpoint].missing_output(document)
    if missing is not None:
        raise RequestError(missing)
    return document
