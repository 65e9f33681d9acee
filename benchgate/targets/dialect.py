"""Targets and the request bodies that each engine understands. An engine is a row here and in docs/engines.yaml."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from benchgate.errors import UsageError
from benchgate.model.deployment import Arm
from benchgate.model.request import ENDPOINTS, Endpoint, ModelRequest
from benchgate.suite.address import base_address, check_proxy, reference_name, resolve_secret, written_out
from benchgate.suite.deployment import OFF, DeploymentSpec, MaxTokensField
from benchgate.targets.address import DIRECT, Route, ServerAddress, tls_context
from benchgate.targets.error_messages import one_line

AudioPart = Literal["input_audio", "audio_url"]


@dataclass(frozen=True, slots=True)
class Dialect:
    """An engine's names for what benchgate sends.

    `ignore_eos` are the body fields that make an answer run to its full length, None where the engine has no way to
    ask for it (and refuses unknown fields, as transformers serve does with 422). `extra` goes into every request,
    `leave_out` into none, and `max_tokens_field` is the name of the limit of an answer's length. The sources of each
    row are in docs/engines.yaml.
    """

    engine: str
    ignore_eos: Mapping[str, object] | None = None
    extra: Mapping[str, object] = field(default_factory=dict)
    leave_out: tuple[str, ...] = ()
    max_tokens_field: MaxTokensField = "max_tokens"
    adapter_field: str = "model"  # of a request, that names a LoRA adapter
    audio_part: AudioPart | None = None  # the only type of content part that it knows for audio; None: all
    stream_usage: bool = True  # understands stream_options.include_usage
    health_path: str | None = "/health"
    version_at: tuple[str, str] | None = None  # path and key of a JSON document with the engine's version
    about_at: tuple[str, ...] = ()  # paths of documents about itself; the first that exists is read
    flags_page: str | None = None  # a page of metrics with a sample whose labels are flags
    key_header: str | None = None  # header of the API key; None for `authorization: Bearer KEY`
    headers: Mapping[str, str] = field(default_factory=dict)  # of every request
    owners: tuple[str, ...] = ()  # `owned_by` of its models; detection by other pages is in `engine_detection`
    api_below: str | None = None  # pattern of the path beneath which it serves the API, and nothing else


_IGNORE_EOS = {"ignore_eos": True}
DIALECTS: Mapping[str, Dialect] = MappingProxyType(
    {
        d.engine: d
        for d in (
            Dialect("openai", health_path=None),
            Dialect(
                "vllm",
                ignore_eos=_IGNORE_EOS,
                version_at=("/version", "version"),
                flags_page="/metrics",
                owners=("vllm",),
            ),
            Dialect(
                "sglang",
                ignore_eos=_IGNORE_EOS,
                audio_part="audio_url",
                about_at=("/server_info", "/get_server_info"),
                owners=("sglang",),
            ),
            # TGI has no way to ignore the end of text: every request ends at it.
            Dialect("tgi", version_at=("/info", "version"), about_at=("/info",)),
            Dialect(
                "trtllm",
                ignore_eos=_IGNORE_EOS,
                audio_part="audio_url",
                version_at=("/version", "version"),
                owners=("tensorrt_llm",),
            ),
            # The OpenAI frontend of Triton, which refuses unknown fields.
            Dialect("triton", ignore_eos=_IGNORE_EOS, health_path="/health/ready", owners=("Triton Inference Server",)),
            # The prompt cache would answer the second of two equal prompts for free.
            Dialect(
                "llamacpp",
                ignore_eos=_IGNORE_EOS,
                extra={"cache_prompt": False},
                version_at=("/props", "build_info"),
                about_at=("/props",),
                owners=("llamacpp",),
            ),
            Dialect("ollama", health_path=None, version_at=("/api/version", "version"), owners=("library",)),
            # mlx_lm.server ignores unknown fields. An adapter is a path in `adapters`.
            Dialect("mlx", adapter_field="adapters"),
            # Honoured under `mlc_llm serve --enable-debug`, else ignored: the records show the length.
            Dialect("mlc", ignore_eos={"debug_config": {"ignore_eos": True}}, health_path=None, owners=("MLC-LLM",)),
            # `model` is the adapter: `adapter_id` of its own /generate. It has no list of models.
            Dialect(
                "lorax",
                ignore_eos={"ignore_eos_token": True},
                version_at=("/info", "version"),
                about_at=("/info",),
            ),
            # KServe's model server with vLLM's request types, under /openai.
            Dialect(
                "kserve",
                ignore_eos=_IGNORE_EOS,
                health_path="/v2/health/ready",
                version_at=("/v2", "version"),
                api_below="/openai",
            ),
            # Ray Serve LLM with vLLM's or SGLang's request types. An adapter is `model: BASE:ADAPTER`.
            Dialect("rayserve", ignore_eos=_IGNORE_EOS, health_path=None, owners=("organization-owner",)),
            # A proxy: other servers decide about `ignore_eos`. Its cache would answer the second of two equal prompts.
            Dialect(
                "litellm",
                extra={"cache": {"no-cache": True}},
                health_path="/health/liveliness",
                version_at=("/health/readiness/details", "litellm_version"),
            ),
            # It refuses fields that it does not know.
            Dialect("dynamo", ignore_eos=_IGNORE_EOS),
            # TorchServe's vLLM handler behind /predictions/MODEL/VERSION/v1.
            Dialect(
                "torchserve", ignore_eos=_IGNORE_EOS, health_path="/ping", api_below="/predictions/[^/]+(?:/[^/]+)?"
            ),
            Dialect("anthropic", health_path=None, key_header="x-api-key", headers={"anthropic-version": "2023-06-01"}),
        )
    }
)


def dialect_of(spec: DeploymentSpec) -> Dialect:
    """Return the dialect of a deployment: its engine's, changed by what the suite declares of this one server."""
    engine = DIALECTS[spec.engine]
    return replace(
        engine,
        extra={**engine.extra, **spec.extra},
        leave_out=spec.leave_out,
        max_tokens_field=spec.max_tokens_field,
        flags_page=None if spec.metrics.page == OFF else engine.flags_page,
    )


@dataclass(frozen=True, slots=True)
class Target:
    """A deployment as clients need it: address, dialect, headers and route.

    `url` is the base without a trailing slash; `api_key` is resolved, never stored and never shown, and so are
    `secret_headers`. `open_headers` stand in the suite as they are. Names of headers are in lower case.
    `hides_url`: the suite refers to the address, whose path may be a credential too.
    """

    arm: Arm
    url: str
    model: str
    dialect: Dialect
    api_key: str | None = field(default=None, repr=False)
    open_headers: Mapping[str, str] = field(default_factory=dict)
    secret_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    route: Route = DIRECT
    hides_url: bool = False
    grpc: str | None = None  # `grpc://host:port`, or `grpcs://` with TLS

    def with_adapter(self, name: str) -> Target:
        """Return the target for requests that are all for one adapter."""
        if self.dialect.adapter_field == "model":
            return replace(self, model=name)
        extra = {**self.dialect.extra, self.dialect.adapter_field: name}
        return replace(self, dialect=replace(self.dialect, extra=extra))

    def headers(self) -> dict[str, str]:
        """Return the headers of every request."""
        return {
            **self.dialect.headers,
            **self.open_headers,
            "content-type": "application/json",
            "accept-encoding": "identity",
            **self.credentials(),
        }

    def credentials(self) -> dict[str, str]:
        """Return the headers that nobody may see."""
        key = {}
        if self.api_key is not None:
            name = self.dialect.key_header
            key = {"authorization": f"Bearer {self.api_key}"} if name is None else {name: self.api_key}
        return {**key, **self.secret_headers}

    def page(self, path: str) -> str:
        """Return the URL of a page beside the API, like `/metrics`."""
        server = ServerAddress.of(self.url)
        if self.dialect.api_below is not None:
            server = server._replace(prefix=re.sub(f"{self.dialect.api_below}(?:/v1)?$", "", server.prefix))
        return server.page(path)

    @property
    def secrets(self) -> tuple[str, ...]:
        """The texts to redact in whatever a server sends: some repeat what they were sent."""
        credentials = self.credentials()
        found = {part for value in credentials.values() for part in (value, value.partition(" ")[2].strip()) if part}
        if self.hides_url and (prefix := ServerAddress.of(self.url).prefix):
            found.add(prefix)
        return tuple(sorted(found, key=lambda part: (-len(part), part)))

    def redact(self, text: str) -> str:
        """Return a text on one line, without the credentials and the path of the address, which servers repeat."""
        prefix = ServerAddress.of(self.url).prefix
        return one_line(text.replace(prefix, "[path]") if prefix else text, secret=self.secrets)


def openai_body(target: Target, ask: ModelRequest, seed: int | None) -> dict[str, object]:
    """Return the JSON body of a request to one of OpenAI's endpoints in the target's dialect, to be answered greedily.

    `stream_options` goes only with `stream` (vLLM answers 400 to it otherwise), and the responses endpoint, which
    always reports its usage, knows neither it nor a seed. `ignore_eos` is not sent to an engine without it: the records
    show how long the answers were.
    """
    dialect = target.dialect
    body: dict[str, object] = {"model": target.model}
    if ask.model is not None:
        body[dialect.adapter_field] = ask.model
    if ENDPOINTS[ask.endpoint].generates:
        limit_field = "max_output_tokens" if ask.endpoint == "responses" else dialect.max_tokens_field
        body[limit_field] = ask.output_tokens
        body["temperature"] = 0
    body.update(ask.content)
    if dialect.audio_part == "audio_url" and ask.endpoint == "chat":
        body["messages"] = _with_audio_urls(body["messages"])
    if seed is not None and ask.endpoint in ("chat", "completions"):
        body["seed"] = seed
    if ask.stream:
        body["stream"] = True
        if dialect.stream_usage and ask.endpoint != "responses":
            body["stream_options"] = {"include_usage": True}
    # TensorRT-LLM refuses unknown fields in responses.
    takes_any_field = dialect.engine in ("vllm", "sglang", "llamacpp")
    accepts_ignore_eos = ask.endpoint in ("chat", "completions") or (ask.endpoint == "responses" and takes_any_field)
    if ask.ignore_eos and dialect.ignore_eos is not None and accepts_ignore_eos:
        body.update(dialect.ignore_eos)
    body.update(_fields_of_engine(dialect.engine, ask.endpoint, ask.fields))
    return body


def _with_audio_urls(messages: object) -> object:
    """Spell the audio of messages as addresses, for engines that do not know `input_audio`."""
    if not isinstance(messages, list):
        return messages
    return [
        {**message, "content": [_audio_url(part) for part in content]}
        if isinstance(content := message.get("content"), list)
        else message
        for message in messages
    ]


def _audio_url(part: object) -> object:
    audio = part.get("input_audio") if isinstance(part, Mapping) else None
    if not isinstance(audio, Mapping):
        return part
    return {"type": "audio_url", "audio_url": {"url": f"data:audio/{audio['format']};base64,{audio['data']}"}}


def _fields_of_engine(engine: str, endpoint: Endpoint, fields: Mapping[str, object]) -> dict[str, object]:
    """Spell the further fields of a body as an engine's own request model does, where it differs from OpenAI."""
    spelled = dict(fields)
    response_format = spelled.get("response_format")
    if not isinstance(response_format, dict) or response_format.get("type") != "json_schema":
        return spelled
    schema = response_format.get("json_schema")
    if not isinstance(schema, dict) or "schema" not in schema:
        return spelled
    if endpoint == "responses":
        del spelled["response_format"]
        spelled["text"] = {"format": {"type": "json_schema", **schema}}
    elif engine == "llamacpp" and endpoint == "completions":
        del spelled["response_format"]  # its completions take the schema itself, and know no response format
        spelled["json_schema"] = schema["schema"]
    elif engine == "mlc":
        spelled["response_format"] = {"type": "json_object", "schema": json.dumps(schema["schema"])}
    elif engine == "tgi":
        spelled["response_format"] = {"type": "json", "value": schema["schema"]}
    return spelled


def target_of(arm: Arm, spec: DeploymentSpec, environment: Mapping[str, str], folder: Path) -> Target:
    """Return the target of a deployment with a `url`; certificates are relative to `folder`, that of the suite.

    Everything it needs is read here, before any request: raises UsageError for a variable that is not set, a file
    that cannot be used, and certificates for an address that is not https.
    """
    try:
        url = base_address(resolve_secret(spec.url or "", environment))
    except ValueError as exc:
        raise UsageError(f"the address that the suite refers to {exc}") from None
    encrypted = url.startswith("https:") or (spec.grpc or "").startswith("grpcs:")
    if spec.tls is not None and not encrypted:
        raise UsageError("`tls` is for https, and the address that the suite refers to is none; correct one of them")
    proxy = None
    if spec.proxy is not None:
        try:
            proxy = check_proxy(resolve_secret(spec.proxy, environment))
        except ValueError as exc:
            raise UsageError(f"`proxy` {exc}") from None
    shown = written_out(spec.headers)
    target = Target(
        arm,
        url,
        spec.model or "",
        dialect_of(spec),
        None if spec.api_key is None else resolve_secret(spec.api_key, environment),
        open_headers=shown,
        secret_headers={
            name: resolve_secret(value, environment) for name, value in spec.headers.items() if name not in shown
        },
        route=route_of(spec, proxy, folder),
        hides_url=reference_name(spec.url or "") is not None,
        grpc=spec.grpc,
    )
    if encrypted:
        tls_context(target.route)
    return target


def route_of(spec: DeploymentSpec, proxy: str | None, folder: Path) -> Route:
    """Return the route to a deployment through a resolved proxy; certificates are relative to `folder`."""

    def absolute(path: str | None) -> str | None:
        return None if path is None else str((folder / path).absolute())  # another process may stand elsewhere

    if spec.tls is None:
        return Route(proxy=proxy)
    return Route(absolute(spec.tls.ca), absolute(spec.tls.cert), absolute(spec.tls.key), proxy)
