"""API requests: read strictly into what the answer needs, and refused in vLLM's words where vLLM refuses them."""

from __future__ import annotations

import base64
import io
import json
import math
import re
import wave
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any
from zlib import crc32

from benchgate.model.request import ENDPOINTS, Endpoint
from benchgate.sim.content import JSON_OBJECT, AnswerText, Unsupported, corrupted, json_pieces, word
from benchgate.suite.simulator import SimSettings


class Refused(Exception):
    """A request that is answered with an error document, in vLLM's shape."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        self.status = status
        self.document = {"error": {"message": message, "type": kind, "param": param, "code": status}}
        super().__init__(message)


_TEXTS = ("text", "input_text", "output_text")
_IMAGES = ("image_url", "input_image", "image")
_LINKED_S = 10.0  # length of audio at an address, which this server does not fetch


@dataclass(frozen=True, slots=True)
class Prompt:
    """Text that decides the answer, and its tokens."""

    text: str
    words: Sequence[str]

    def __len__(self) -> int:
        return len(self.words)


def chat_prompt(messages: object, settings: SimSettings) -> Prompt:
    """Return the text of a chat's messages, or of the items of a response's input. Raises Refused."""
    if not isinstance(messages, list) or not messages:
        raise Refused(400, "1 validation error: Field required", "Bad Request", "body.messages")
    return _worded("\n".join(_content(message, settings) for message in messages))


def completion_prompt(prompt: object) -> Prompt:
    """Return one text or one list of token ids. Raises Refused."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return _worded(prompt)
    if isinstance(prompt, list) and _is_ids(prompt):
        return Prompt(repr(prompt), [str(token) for token in prompt])
    raise Refused(400, "the prompt must be one text or one list of token ids", "Bad Request", "body.prompt")


def _worded(text: str) -> Prompt:
    return Prompt(text, text.split())


def _is_ids(given: object) -> bool:
    return isinstance(given, list) and bool(given) and all(isinstance(token, int) for token in given)


def _content(message: object, settings: SimSettings) -> str:
    """Return the text of one message; a medium becomes as many words of its own as it has tokens."""
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        return content
    if isinstance(message, dict) and content is None:
        texts = [message[field] for field in ("tool_calls", "arguments", "output") if message.get(field)]
        if texts:
            return json.dumps(texts)
    parts = content if isinstance(content, list) else [None]
    return " ".join(_part(part, settings) for part in parts)


def _part(part: object, settings: SimSettings) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(part, dict) and kind in (*_TEXTS, None) and isinstance(part.get("text"), str):
        return str(part["text"])
    if kind in _IMAGES and settings.image_tokens is not None:
        return _medium("image", part, settings.image_tokens)
    if isinstance(part, dict) and kind in ("input_audio", "audio_url") and settings.audio_tokens is not None:
        return _medium("audio", part, audio_tokens(_audio_s(part.get(kind)), settings))
    if isinstance(part, dict) and kind == "video_url" and settings.video_tokens is not None:
        address = _address(part.get("video_url"))
        if address.startswith("data:"):
            _decoded(address.partition(",")[2], "video")
        return _medium("video", part, settings.video_tokens)
    raise Refused(400, "a message needs a content of text", "Bad Request", "body.messages")


def _medium(name: str, part: object, tokens: int) -> str:
    checksum = crc32(json.dumps(part, sort_keys=True).encode())
    return " ".join(f"{name}-{checksum:08x}-{index}" for index in range(tokens))


def _audio_s(found: object) -> float:
    """Return the length of the audio of a part: an object with base64 and its format, or with an address."""
    if isinstance(found, dict) and "data" in found:
        return wav_seconds(_decoded(found["data"], "audio"))
    address = _address(found)
    return wav_seconds(_decoded(address.partition(",")[2], "audio")) if address.startswith("data:") else _LINKED_S


def _address(found: object) -> str:
    address = found.get("url") if isinstance(found, dict) else found
    if not isinstance(address, str) or not address.startswith(("data:", "http://", "https://")):
        raise Refused(400, "The URL must be either a HTTP or data URL.", param="url")
    return address


def _decoded(text: object, name: str) -> bytes:
    try:
        content = base64.b64decode(text if isinstance(text, str) else "", validate=True)
    except ValueError:
        content = b""
    if not content:
        raise Refused(400, f"Invalid or unsupported {name} file.", param=name)
    return content


def wav_seconds(content: bytes) -> float:
    """Return the length of a WAV, the only kind of audio that this server reads. Raises Refused."""
    seconds = 0.0
    with suppress(wave.Error, EOFError, ZeroDivisionError), wave.open(io.BytesIO(content)) as file:
        seconds = file.getnframes() / file.getframerate()
    if not seconds:
        raise Refused(400, "Invalid or unsupported audio file.", param="audio")
    return seconds


def audio_tokens(seconds: float, settings: SimSettings) -> int:
    """Return the tokens of audio of a length."""
    return max(1, math.ceil(seconds * (settings.audio_tokens or _AUDIO_TOKENS)))


_AUDIO_TOKENS = 50  # of a second, as Whisper has them
_UNLIMITED_TOKENS = 64  # length of a chat answer nobody bounded
_COMPLETION_TOKENS = 16  # default of the completions API
_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")


def limit_of(data: Mapping[str, object]) -> int | None:
    """Return the token limit of the answer; None without one. Raises Refused."""
    return next((value for value in (count_of(data, name) for name in _LIMITS) if value is not None), None)


def count_of(data: Mapping[str, object], name: str) -> int | None:
    """Return a field that is a whole number of at least 1; None without it. Raises Refused."""
    value = data.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise Refused(400, f"{name} must be at least 1, got {value}. (parameter={name}, value={value})", param=name)
    return value


def check_context(input_tokens: int, limit: int | None, settings: SimSettings) -> None:
    """Raise Refused when prompt and answer are more than the model or the KV cache can hold."""
    most = settings.context_tokens
    if input_tokens >= most:
        message = f"This model's maximum context length is {most} tokens. However, your prompt contains at least "
        raise Refused(400, f"{message}{most + 1} input tokens. Please reduce its length.", param="input_tokens")
    if limit is not None and input_tokens + limit > most:
        message = f"max_tokens={limit} is too large: the prompt has {input_tokens} tokens, and max_model_len={most}."
        raise Refused(400, message, param="max_tokens")
    room = settings.kv_tokens
    if settings.is_engine and input_tokens + (limit or 1) > room:
        message = f"The request needs {input_tokens + (limit or 1)} tokens of KV cache, and there is room for {room}."
        raise Refused(400, message, param="max_tokens")


def most_tokens(settings: SimSettings) -> int:
    """Return the most tokens of prompt and answer together."""
    most = settings.context_tokens
    return min(most, settings.kv_tokens) if settings.is_engine else most


def thought_tokens(endpoint: Endpoint, key: int, settings: SimSettings) -> int | None:
    """Return the number of reasoning tokens before the answer; None when this model does not reason here."""
    if settings.reasoning_tokens is None or ENDPOINTS[endpoint].messages_key is None:
        return None
    low, high = settings.reasoning_tokens
    return low + (key >> 5) % (high - low + 1)


def answer_length(
    endpoint: Endpoint, data: Mapping[str, object], key: int, thought: int, settings: SimSettings
) -> tuple[int, str]:
    """Return the length of the answer in tokens, its reasoning included, and its finish reason."""
    limit = limit_of(data)
    if data.get("ignore_eos") and limit is not None:
        return limit, "length"
    if settings.output_tokens is not None:
        low, high = settings.output_tokens
        drawn = thought + low + key % (high - low + 1)
        return (drawn, "stop") if limit is None or drawn < limit else (limit, "length")
    if limit is not None:
        return limit, "length"
    if ENDPOINTS[endpoint].messages_key is None:
        return _COMPLETION_TOKENS, "length"
    return thought + _UNLIMITED_TOKENS, "stop"


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    """Schema of the answer, or of the arguments of the tool it calls; `param` is the field of the request."""

    schema: Mapping[str, object] | None = None
    tool: str | None = None
    param: str = "response_format"


PLAIN = ResponseFormat()  # words


def read_response_format(endpoint: Endpoint, data: Mapping[str, Any], key: int) -> ResponseFormat:
    """Return the requested format. Raises Refused for an unknown one."""
    tool = _tool(endpoint, data, key)
    if tool is not None:
        return tool
    if endpoint == "responses":
        text = data.get("text")
        return _format(text.get("format") if isinstance(text, Mapping) else None, "text.format")
    structured = data.get("structured_outputs")
    if isinstance(structured, Mapping) and structured.get("json") is not None:
        return ResponseFormat(_schema(structured["json"], "structured_outputs"), param="structured_outputs")
    return _format(data.get("response_format"), "response_format")


def _format(form: object, param: str) -> ResponseFormat:
    """Read `{"type": "json_schema", "json_schema": {"schema": …}}`, in a response without the second level."""
    if form is None:
        return PLAIN
    kind = form.get("type") if isinstance(form, Mapping) else None
    if isinstance(form, Mapping) and kind == "json_schema":
        inner = form.get("json_schema", form)
        return ResponseFormat(_schema(inner.get("schema") if isinstance(inner, Mapping) else None, param), param=param)
    if kind == "json_object":
        return ResponseFormat(JSON_OBJECT, param=param)
    if kind == "text":
        return PLAIN
    raise Refused(400, f"{param} must have the type text, json_object or json_schema", "Bad Request", param)


def _tool(endpoint: Endpoint, data: Mapping[str, Any], key: int) -> ResponseFormat | None:
    """Return the call of the named tool, or of any: this server uses a tool whenever it is given some."""
    tools, choice = data.get("tools"), data.get("tool_choice", "auto")
    if not tools or choice == "none" or ENDPOINTS[endpoint].messages_key is None:
        return None
    functions = [_function(tool) for tool in tools] if isinstance(tools, list) else []
    named = _function(choice).get("name") if isinstance(choice, Mapping) else None
    matching = [function for function in functions if named in (None, function.get("name"))]
    if not matching:
        raise Refused(400, "tool_choice names a tool that is not among the tools", "Bad Request", "tool_choice")
    function = matching[key % len(matching)]
    name = function.get("name")
    if not isinstance(name, str):
        raise Refused(400, "1 validation error: a tool has no name", "Bad Request", "body.tools")
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    return ResponseFormat(_schema(parameters, "tools"), name, "tools")


def _function(tool: object) -> Mapping[str, Any]:
    """Return the function of a tool: a tool of a chat holds it, a tool of a response is it."""
    inner = tool.get("function", tool) if isinstance(tool, Mapping) else None
    return inner if isinstance(inner, Mapping) else {}


def _schema(schema: object, param: str) -> Mapping[str, object]:
    if not isinstance(schema, Mapping):
        raise Refused(400, f"{param} needs a JSON schema that is an object", "Bad Request", param)
    return schema


_ASKS = "say: "


def echo_prompt(prompt: str, key: int, right_ratio: float | None) -> tuple[str, ...] | None:
    """Return the answer, token by token, to a prompt whose last line is `say: TEXT`; None for other prompts.

    For `right_ratio` of such prompts, drawn from the key, it is the text. For the others its last word is another one:
    an answer of the same length and finish reason.
    """
    line = prompt.rpartition("\n")[2]
    words = line.removeprefix(_ASKS).split()
    if right_ratio is None or not line.startswith(_ASKS) or not words:
        return None
    digest = blake2b(key.to_bytes(4, "big"), digest_size=4).digest()  # keys of two seeds are correlated checksums
    if not int.from_bytes(digest, "big") / 2**32 < right_ratio:
        words[-1] = next(other for index in range(2) if (other := word(key, index).strip()) != words[-1])
    return (words[0], *(f" {one}" for one in words[1:]))


@dataclass(frozen=True, slots=True)
class Item:
    """An input of a request for embeddings, or a document to be ranked. `key` decides its numbers."""

    text: str
    key: int


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A parsed request. `key` decides the words of the answer: equal prompts get equal answers."""

    endpoint: Endpoint
    model: str
    stream: bool
    include_usage: bool
    continuous_usage: bool
    key: int
    prompt: Prompt
    input_tokens: int
    output_tokens: int  # 0 where there are none to be had
    room_tokens: int  # KV room that the engine must have for it
    finish_reason: str
    answer: AnswerText
    reasoning_tokens: int | None = None  # of the output; None: this model does not reason
    adapter: str | None = None
    priority: int = 0
    items: tuple[Item, ...] = ()
    width: int = 0  # numbers in an embedding, or documents in a ranking
    base64: bool = False  # how embeddings are written
    audio_s: float = 0.0  # length of the recording that is transcribed
    form: str = "json"  # of a transcription


@dataclass(frozen=True, slots=True)
class RequestBody:
    """A request's JSON object as vLLM's endpoints take it, and the adapter that it names."""

    endpoint: Endpoint
    data: dict[str, object]
    settings: SimSettings
    adapter: str | None

    def key(self, prompt: Prompt) -> int:
        """Return the checksum of prompt, adapter and the server's seed, which decides the answer."""
        seed = crc32((self.adapter or "").encode(), self.settings.seed & 0xFFFFFFFF)
        return crc32(prompt.text.encode("utf-8", "surrogatepass"), seed)


def request_body(endpoint: Endpoint, data: dict[str, object], settings: SimSettings) -> RequestBody:
    """Return the request with its adapter. Raises Refused for a model that is not served."""
    model, adapter = data.get("model"), None
    if model is not None and model != settings.model:
        if not isinstance(model, str) or model not in settings.adapters:
            names = ", ".join([settings.model, *settings.adapters])
            raise Refused(404, f"The model `{model}` does not exist. Valid aliases: {names}.", "NotFoundError", "model")
        adapter = model
    return RequestBody(endpoint, data, settings, adapter)


def read_object(body: bytes) -> dict[str, object]:
    """Return the JSON object of a request. Raises Refused."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        where = f"body.{error.pos}" if isinstance(error, json.JSONDecodeError) else "body"
        raise Refused(400, f"1 validation error: JSON decode error at {where}", "Bad Request", where) from None
    if not isinstance(data, dict):
        raise Refused(400, "1 validation error: the body must be a JSON object", "Bad Request", "body")
    return data


def parse_generation(body: RequestBody) -> ApiRequest:
    """Parse a request for generated text. Raises Refused."""
    endpoint, data, settings = body.endpoint, body.data, body.settings
    prompt, limit = _prompt(body), limit_of(data)
    key = body.key(prompt)
    check_context(len(prompt), limit, settings)
    stream, options = bool(data.get("stream")), data.get("stream_options")
    if options is not None and not stream:
        raise Refused(400, "Stream options can only be defined when `stream=True`.", param="stream_options")
    if data.get("n") not in (None, 1) or data.get("echo") or data.get("best_of") not in (None, 1):
        raise Refused(400, "this server gives one answer, without echo: n, best_of and echo must be left out")
    options = options if isinstance(options, dict) else {}
    reasoning = thought_tokens(endpoint, key, settings)
    length, reason = answer_length(endpoint, data, key, reasoning or 0, settings)
    most = most_tokens(settings) - len(prompt)
    if length > most:
        length, reason = most, "length"
    answer, length, reason = _answer_text(body, prompt, min(reasoning or 0, length), most, length, reason)
    return ApiRequest(
        endpoint=endpoint,
        model=body.adapter or settings.model,
        stream=stream,
        include_usage=bool(options.get("include_usage")) or endpoint == "responses",
        continuous_usage=bool(options.get("continuous_usage_stats")),
        key=key,
        prompt=prompt,
        input_tokens=len(prompt),
        output_tokens=length,
        room_tokens=len(prompt) + (limit or length),
        finish_reason=reason,
        answer=answer,
        reasoning_tokens=None if reasoning is None else min(reasoning, length),
        adapter=body.adapter,
        priority=_priority(data),
    )


_WORDS_PER_S = 2.5  # of speech
_FORMS = ("json", "text", "verbose_json")


def parse_transcription(body: RequestBody) -> ApiRequest:
    """Parse a request to transcribe a recording, whose answer is as long as its speech. Raises Refused."""
    data, settings = body.data, body.settings
    recording, form = data.get("file"), data.get("response_format", "json")
    stream = data.get("stream") == "true"
    if not isinstance(recording, bytes):
        raise Refused(422, "Expected 'file' to be a file-like object, not 'str'.", "Unprocessable Entity", "file")
    if form not in _FORMS:
        raise Refused(400, "Currently only support response_format: `text`, `json` or `verbose_json`")
    if form == "verbose_json" and stream:
        raise Refused(400, "verbose_json format doesn't support streaming case")
    seconds = wav_seconds(recording)
    prompt = Prompt(f"audio-{crc32(recording):08x}", ["audio"] * audio_tokens(seconds, settings))
    key, words = body.key(prompt), max(1, round(seconds * _WORDS_PER_S))
    check_context(len(prompt), None, settings)
    if settings.output_tokens is not None:
        low, high = settings.output_tokens
        words = low + key % (high - low + 1)
    limit = data.get("max_completion_tokens")
    most = min(
        int(limit) if isinstance(limit, str) and limit.isdecimal() else words, most_tokens(settings) - len(prompt)
    )
    return ApiRequest(
        endpoint=body.endpoint,
        model=body.adapter or settings.model,
        stream=stream,
        include_usage=data.get("stream_include_usage") == "true",
        continuous_usage=False,
        key=key,
        prompt=prompt,
        input_tokens=len(prompt),
        output_tokens=min(words, most),
        room_tokens=len(prompt) + min(words, most),
        finish_reason="stop" if words <= most else "length",
        answer=AnswerText(key),
        adapter=body.adapter,
        audio_s=seconds,
        form=str(form),
    )


_DISPOSITION = re.compile(rb'(?i)^content-disposition:[^\r\n]*?;\s*name="([^"\r\n]+)"', re.M)


def read_form(body: bytes) -> dict[str, object]:
    """Return the fields of a form (RFC 7578): a file as bytes, any other as text. Raises Refused."""
    boundary, line_end, _ = body.partition(b"\r\n")
    parts = (b"\r\n" + body).split(b"\r\n" + boundary)
    if not boundary.startswith(b"--") or not line_end or not parts[-1].startswith(b"--"):
        raise Refused(400, "There was an error parsing the body", "Bad Request", "body")
    fields: dict[str, object] = {}
    for part in parts[1:-1]:
        head, _, content = part.partition(b"\r\n\r\n")
        named = _DISPOSITION.search(head)
        if named is None:
            raise Refused(400, "There was an error parsing the body", "Bad Request", "body")
        fields[named[1].decode("utf-8", "replace")] = (
            content if b"filename=" in head else content.decode("utf-8", "replace")
        )
    return fields


_MOST_DIMENSIONS = 65_536


def parse_embedding(body: RequestBody) -> ApiRequest:
    """Parse a request for embeddings. Raises Refused."""
    given = body.data.get("input")
    if isinstance(given, str) or _is_ids(given):
        prompts = [completion_prompt(given)]
    elif isinstance(given, list) and given:
        prompts = [completion_prompt(one) for one in given]
    else:
        raise Refused(400, "1 validation error: Field required", "Bad Request", "body.input")
    request = _pooled(body, prompts, [prompt.text for prompt in prompts])
    width = count_of(body.data, "dimensions") or body.settings.embedding_size
    if width > _MOST_DIMENSIONS:
        message = f"dimensions must be at most {_MOST_DIMENSIONS}, got {width}."
        raise Refused(400, message, param="dimensions")
    return replace(request, width=width, base64=body.data.get("encoding_format") == "base64")


def parse_ranking(body: RequestBody) -> ApiRequest:
    """Parse a request to rank documents. Raises Refused."""
    documents, query = body.data.get("documents"), body.data.get("query")
    given: list[object] = documents if isinstance(documents, list) else []
    found = [one.get("text") if isinstance(one, dict) else one for one in given]
    texts = [text for text in found if isinstance(text, str)]
    if not texts or len(texts) < len(found):
        raise Refused(400, "1 validation error: documents must be a list of texts", "Bad Request", "body.documents")
    if not isinstance(query, str):
        raise Refused(400, "1 validation error: Field required", "Bad Request", "body.query")
    request = _pooled(body, [completion_prompt(f"{query} {text}") for text in texts], texts)
    return replace(request, width=count_of(body.data, "top_n") or len(texts))


def _pooled(body: RequestBody, prompts: Sequence[Prompt], texts: Sequence[str]) -> ApiRequest:
    """Return a request without generated tokens: its answer is numbers."""
    for prompt in prompts:
        check_context(len(prompt), None, body.settings)
    keys = [body.key(prompt) for prompt in prompts]
    return ApiRequest(
        endpoint=body.endpoint,
        model=body.adapter or body.settings.model,
        stream=False,
        include_usage=True,
        continuous_usage=False,
        key=keys[0],
        prompt=Prompt("", ()),
        input_tokens=sum(map(len, prompts)),
        output_tokens=0,
        room_tokens=max(map(len, prompts)),  # one after the other
        finish_reason="stop",
        answer=AnswerText(keys[0]),
        adapter=body.adapter,
        priority=_priority(body.data),
        items=tuple(Item(text, key) for text, key in zip(texts, keys, strict=True)),
    )


def _prompt(body: RequestBody) -> Prompt:
    if body.endpoint == "responses":
        given, instructions = body.data.get("input"), body.data.get("instructions")
        texts = [instructions] if isinstance(instructions, str) else []
        if isinstance(given, str):
            return _worded("\n".join([*texts, given]))
        if not isinstance(given, list) or not given:
            raise Refused(400, "1 validation error: Field required", "Bad Request", "body.input")
        return _worded("\n".join([*texts, *(_content(item, body.settings) for item in given)]))
    if ENDPOINTS[body.endpoint].messages_key is not None:
        return chat_prompt(body.data.get("messages"), body.settings)
    return completion_prompt(body.data.get("prompt"))


def _answer_text(
    body: RequestBody, prompt: Prompt, thought: int, most: int, length: int, reason: str
) -> tuple[AnswerText, int, str]:
    """Return the text of the answer, its length and its finish reason; a free text has the drawn length.

    Any other text has the length that it needs, up to the limit of the request and to `most`, where the context ends.
    """
    key, limit = body.key(prompt), limit_of(body.data)
    form = read_response_format(body.endpoint, body.data, key)
    pieces = echo_prompt(prompt.text, key, body.settings.says_ratio)
    if form.schema is not None:
        try:
            pieces = json_pieces(form.schema, key, length - thought, cut=False)
        except Unsupported as error:
            raise Refused(400, f"the JSON schema cannot be followed: {error}", param=form.param) from None
    if pieces is None:
        return AnswerText(key, thought), length, reason
    room = (most if limit is None else min(limit, most)) - thought
    if len(pieces) > room:
        return AnswerText(key, thought, pieces[:room], form.tool), thought + room, "length"
    if form.schema is not None and crc32(key.to_bytes(4, "big")) / 2**32 < body.settings.invalid_json_ratio:
        pieces = corrupted(pieces, key)
    return AnswerText(key, thought, pieces, form.tool), thought + len(pieces), "tool_calls" if form.tool else "stop"


def _priority(data: dict[str, object]) -> int:
    value = data.get("priority", 0)
    if isinstance(value, bool) or not isinstance(value, int):
        raise Refused(400, "1 validation error: Input should be a valid integer", "Bad Request", "body.priority")
    return value
