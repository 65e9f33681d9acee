"""Request to a model, independent of any engine's API (see `targets.dialect`)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Literal
from urllib.parse import quote, unquote

Endpoint = Literal[
    "chat", "completions", "responses", "messages", "generate", "triton-generate", "predictions", "infer",
    "embeddings", "rerank", "transcriptions", "grpc-infer",
]  # fmt: skip
MediaKind = Literal["images", "audio", "videos"]
EXACT_RECORDS = 10_000_000
"""Most records of a class of traffic that are merged one by one; beyond, they are summarised."""
LARGEST_SALT = 2**32 - 1
"""A salt is a number that changes the words of a load's prompts, so that no cache has seen them."""

MEDIA_KEYS = frozenset({"image_url", "input_audio", "audio_url", "video_url", "file"})
"""Keys of a request's content whose values are media, not text."""
_MODEL = "{model}"  # the model's name in a path


@dataclass(frozen=True, slots=True)
class EndpointSpec:
    """Path, input and output of an endpoint, whatever engine serves it.

    `text_key` is the key of a request's `content` for a single text, `messages_key` that for the messages of a
    conversation. Without either, a request is more than one text, or none. `media` go beside a text; an endpoint that
    `transcribes` takes one recording instead, and its answers are as long as the speech.
    """

    path: str
    text_key: str | None = None
    messages_key: str | None = None
    stream_path: str | None = None  # of streamed answers, where it is another one
    generates: bool = True  # a text that is counted in tokens
    streams: bool = True
    calls_tools: bool = False
    media: frozenset[MediaKind] = frozenset()
    transcribes: bool = False
    by_grpc: bool = False  # over HTTP/2, at an address of its own

    @property
    def takes_text(self) -> bool:
        """True if one text makes a request."""
        return self.text_key is not None or self.messages_key is not None

    @property
    def is_made_up(self) -> bool:
        """True if requests can be made up of one synthetic text or recording."""
        return self.takes_text or self.transcribes

    def path_for(self, model: str, *, stream: bool) -> str:
        """Return the path of a request to a model."""
        path = self.stream_path if stream and self.stream_path is not None else self.path
        return path.replace(_MODEL, quote(model))


ENDPOINTS: Mapping[Endpoint, EndpointSpec] = MappingProxyType(
    {
        "chat": EndpointSpec(
            "/v1/chat/completions", None, "messages", calls_tools=True, media=frozenset({"images", "audio", "videos"})
        ),
        "completions": EndpointSpec("/v1/completions", "prompt"),
        "responses": EndpointSpec("/v1/responses", "input", "input"),
        "messages": EndpointSpec("/v1/messages", None, "messages", calls_tools=True, media=frozenset({"images"})),
        "generate": EndpointSpec("/generate", "prompt", stream_path="/generate_stream"),
        "triton-generate": EndpointSpec(
            "/v2/models/{model}/generate", "prompt", stream_path="/v2/models/{model}/generate_stream"
        ),
        "predictions": EndpointSpec("/predictions/{model}", "prompt"),
        "infer": EndpointSpec("/v2/models/{model}/infer", "prompt", generates=False, streams=False),
        "embeddings": EndpointSpec("/v1/embeddings", "input", generates=False, streams=False),
        "rerank": EndpointSpec("/v1/rerank", generates=False, streams=False),
        "grpc-infer": EndpointSpec(
            "/inference.GRPCInferenceService/ModelInfer",
            "prompt",
            stream_path="/inference.GRPCInferenceService/ModelStreamInfer",
            by_grpc=True,
        ),
        "transcriptions": EndpointSpec("/v1/audio/transcriptions", media=frozenset({"audio"}), transcribes=True),
    }
)


_PATHS = tuple((path, name) for name, spec in ENDPOINTS.items() for path in (spec.path, spec.stream_path) if path)
_MODEL_NAME = "[^/]+(?:/(?:versions/)?[0-9.]+)?"  # of Triton and TorchServe, with its version


def _pattern(path: str, model: str) -> str:
    return re.escape(path).replace(re.escape(_MODEL), model)


ENDPOINT_PATHS = "|".join(_pattern(path, _MODEL_NAME) for path, _ in _PATHS)
"""Regular expression of every endpoint's path."""

_VERSION = "/v1"
VERSIONLESS_PATHS = "|".join(
    re.escape(spec.path.removeprefix(_VERSION)) for spec in ENDPOINTS.values() if spec.path.startswith(_VERSION)
)
"""Regular expression of the endpoints' paths beneath a base path that has a version of its own."""


@lru_cache(maxsize=256)
def endpoint_at(path: str) -> tuple[Endpoint, str | None] | None:
    """Return the endpoint at a path, and the model that the path names; None for any other path."""
    for known, endpoint in _PATHS:
        if (found := re.fullmatch(_pattern(known, f"({_MODEL_NAME})"), path)) is not None:
            return endpoint, unquote(found[1]) if found.groups() else None
    return None


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """Request content and options.

    `content` is the endpoint's input under the keys of its `EndpointSpec`: `{"messages": […]}` for chat and messages
    (as OpenAI spells them), `{"prompt": …}` for completions, `{"query": …, "documents": […]}` for rerank, and
    `{"file": "data:audio/wav;base64,…"}` for transcriptions. In a conversation that continues with the model's own
    answers, an assistant message whose `content` is None is a slot for one of them.
    """

    endpoint: Endpoint
    content: Mapping[str, object]
    output_tokens: int | None  # upper limit; None if the endpoint generates none
    stream: bool = True  # always False for an endpoint that does not stream
    ignore_eos: bool = True  # generate up to the full length, if the engine supports it
    fields: Mapping[str, object] = field(default_factory=dict)  # of the body, as OpenAI spells them
    model: str | None = None  # adapter name instead of the target's model
    schema: Mapping[str, object] | None = None  # JSON schema of a valid answer
    recorded: bool = False  # written by people: stored by its digest, never by its text

    @property
    def requests_form(self) -> bool:
        """Return True if the validity of the answer is judged."""
        return self.schema is not None or bool(self.fields.get("tools"))

    @property
    def prompt(self) -> str | None:
        """Return the text of a request that is a single text; None for any other."""
        spec = ENDPOINTS[self.endpoint]
        if spec.text_key is not None:
            return _text(self.content.get(spec.text_key))
        messages = self.content.get(spec.messages_key or "")
        if not isinstance(messages, list) or len(messages) != 1 or messages[0].get("role") != "user":
            return None
        return _text(messages[0].get("content"))


def text_request(endpoint: Endpoint, text: str, output_tokens: int | None, *, ignore_eos: bool = True) -> ModelRequest:
    """Build a request of one text. Raises ValueError for an endpoint that takes several."""
    spec, content = ENDPOINTS[endpoint], text_content(endpoint, text)
    limit = output_tokens if spec.generates else None
    return ModelRequest(endpoint, content, limit, stream=spec.streams, ignore_eos=ignore_eos)


def text_content(endpoint: Endpoint, text: str) -> dict[str, object]:
    """Return the `content` of a request of one text. Raises ValueError for an endpoint that takes several."""
    spec = ENDPOINTS[endpoint]
    if spec.text_key is not None:
        return {spec.text_key: text}
    if spec.messages_key is None:
        raise ValueError(f"a {endpoint} request is more than one text")
    return {spec.messages_key: [{"role": "user", "content": text}]}


def fill_conversation(ask: ModelRequest, earlier: Sequence[str]) -> ModelRequest:
    """Fill the model's earlier answers into a later turn. Raises ValueError unless there is one for each slot."""
    key = ENDPOINTS[ask.endpoint].messages_key
    messages = None if key is None else ask.content.get(key)
    if key is None or not isinstance(messages, list):
        raise ValueError(f"a {ask.endpoint} request carries no conversation on")
    answers = iter(earlier)
    filled = [
        {**message, "content": next(answers, None)} if message.get("content") is None else message
        for message in messages
    ]
    if any(message["content"] is None for message in filled) or next(answers, None) is not None:
        places = sum(message.get("content") is None for message in messages)
        raise ValueError(f"the conversation has {places} places for answers and {len(earlier)} answers were given")
    return replace(ask, content={**ask.content, key: filled})


def _text(found: object) -> str | None:
    return found if isinstance(found, str) else None
