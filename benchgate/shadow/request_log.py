"""Request logs: files, gzip or not, read into requests, with a count of every line that holds none.

Supported are JSON Lines of OpenAI requests (bare, of a batch, or logged beside the answer), of plain prompts, and the
log of a vLLM server; each line is recognised by its content. No message repeats anything of a line.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import json
import re
import unicodedata
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Literal

from benchgate.errors import UsageError
from benchgate.shadow.prompts import REQUEST_FIELDS, ROLES
from benchgate.suite.formats import holds_half_a_pair, parse_json

Endpoint = Literal["chat", "completions", "messages"]  # endpoint to which a recorded request can be sent again
_LENGTH_BOUNDS = (128, 512, 2_048, 8_192, 32_768, 131_072)  # characters
_WHITE_SPACE = re.compile(r"\s+")


@dataclass(frozen=True)
class LoggedRequest:
    """A recorded request, without its id, its answer and its sampling: `messages` of a chat, or one text `prompt`.

    `endpoint` is the one to which it can be sent again: a rendered prompt goes to completions as it is. `label` is the
    route it was logged with, as far as known. Messages and `fields` beside them (tools, response_format, …) are spelled
    as OpenAI does, those of Anthropic's Messages too.
    """

    endpoint: Endpoint
    label: str
    messages: tuple[Mapping[str, object], ...] = ()
    prompt: str | None = None
    fields: Mapping[str, object] = field(default_factory=dict)

    @cached_property
    def text(self) -> str:
        """The text of all messages in order, without roles."""
        return self.prompt if self.prompt is not None else "\n".join(_texts(self.messages))

    @cached_property
    def normalised(self) -> str:
        """The text in the form in which requests are compared and measured."""
        return _collapse_white_space(self.text)

    @property
    def first_text(self) -> str:
        """The normalised text of the first message, which is the system prompt if there is one."""
        return _collapse_white_space(next(_texts(self.messages), "") if self.prompt is None else self.prompt)

    @cached_property
    def digest(self) -> bytes:
        """Digest of the request, the same on any route, for any white space and any Unicode form."""
        roles = [str(message.get("role")) for message in self.messages]
        rest = json.dumps([self.endpoint, roles, self.fields], sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(f"{rest}\n{self.normalised}".encode()).digest()[:16]

    @property
    def length_class(self) -> str:
        """The class of its length in characters, like `128-511`."""
        low = 0
        for bound in _LENGTH_BOUNDS:
            if len(self.normalised) < bound:
                return f"{low}-{bound - 1}"
            low = bound
        return f"{low}-"

    def row(self, label: str) -> dict[str, object]:
        """Return its row in a sample, with an id made of its content. `label` is part of the stratum."""
        row: dict[str, object] = {"id": f"p-{self.digest.hex()[:16]}"}
        if self.prompt is not None:
            row["prompt"] = self.prompt
        else:
            row["messages"] = [dict(message) for message in self.messages]
        row |= self.fields
        if self.endpoint != "chat":
            row["endpoint"] = self.endpoint
        return row | {"stratum": f"{label}/{self.length_class}", "length": len(self.normalised)}


def _collapse_white_space(text: str) -> str:
    """Normalise Unicode (NFKC), make every run of white space one space and strip both ends."""
    return _WHITE_SPACE.sub(" ", unicodedata.normalize("NFKC", text)).strip()


def _texts(messages: tuple[Mapping[str, object], ...]) -> Iterator[str]:
    for message in messages:
        content = message.get("content")
        for part in content if isinstance(content, list) else [content]:
            text = part.get("text") if isinstance(part, Mapping) else part
            if isinstance(text, str):
                yield text
        if message.get("tool_calls"):
            yield json.dumps(message["tool_calls"], sort_keys=True, ensure_ascii=False)


MAX_PLACES = 5  # lines named for each reason why lines were skipped
_MAX_LINE_BYTES = 64 * 2**20
_SEVERAL = 5
_MAX_HELD = 1_000  # prompts of a server's log whose settings have not come
_UNKNOWN_LINE = "is neither a JSON object nor a request of a server's log"


@dataclass(slots=True)
class LogSummary:
    """Counts of the lines read so far: `bad` and `left_out` by reason, `places` the first lines of each reason."""

    lines: int = 0
    requests: int = 0
    other: int = 0  # lines of a server's log that show no request
    longest: int = 0  # characters of the longest prompt in a server's log
    at_longest: set[int] = field(default_factory=set)  # hashes of prompts of that length
    bad: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    places: dict[str, list[str]] = field(default_factory=dict)

    @property
    def cut_at(self) -> int | None:
        """Length at which several different prompts of a server's log end, so that the log seems cut there."""
        return self.longest if len(self.at_longest) >= _SEVERAL else None

    def note(self, reasons: Counter[str], reason: str, place: str) -> None:
        """Count a skipped line, and remember the first places."""
        reasons[reason] += 1
        known = self.places.setdefault(reason, [])
        if len(known) < MAX_PLACES:
            known.append(place)


def read_logs(
    paths: Sequence[Path], summary: LogSummary, on_file: Callable[[str], None] = lambda line: None
) -> Iterator[tuple[str, LoggedRequest]]:
    """Yield each request with `file:line`, and count the rest in `summary`. Raises UsageError for a useless file."""
    for path in dict.fromkeys(paths):
        on_file(f"reading {path}")
        yield from _LogFile(path, summary).requests()


class _LogFile:
    def __init__(self, path: Path, summary: LogSummary) -> None:
        self._path, self._summary = path, summary
        self._lines = self._requests = self._left_out = self._server_lines = self._without_prompt = 0
        self._unknown: list[int] = []  # the first of the lines that are valid in a server's log alone
        self._unknown_n = 0
        # Newer versions of vLLM log the settings of a request in a line after its prompt: line and request by id.
        self._held: dict[str, tuple[int, LoggedRequest]] = {}

    def requests(self) -> Iterator[tuple[str, LoggedRequest]]:
        with _opened(self._path) as file:
            while raw := file.readline(_MAX_LINE_BYTES + 1):
                self._lines += 1
                if len(raw) > _MAX_LINE_BYTES:
                    while (rest := file.readline(2**20)) and not rest.endswith(b"\n"):
                        pass
                request = self._request(raw)
                if request is not None:
                    self._requests += 1
                    yield self._place(self._lines), request
                if len(self._held) > _MAX_HELD:
                    yield self._release(next(iter(self._held)))
        while self._held:
            yield self._release(next(iter(self._held)))
        summary = self._summary
        summary.lines += self._lines
        summary.requests += self._requests
        if self._server_lines:
            summary.other += self._unknown_n
        elif self._unknown_n:
            for number in self._unknown:
                summary.note(summary.bad, _UNKNOWN_LINE, self._place(number))
            summary.bad[_UNKNOWN_LINE] += self._unknown_n - len(self._unknown)
        if self._requests == 0:
            raise UsageError(f"{self._path}: {self._why_empty()}")

    def _release(self, request_id: str) -> tuple[str, LoggedRequest]:
        line, request = self._held.pop(request_id)
        self._requests += 1
        return self._place(line), request

    def _request(self, raw: bytes) -> LoggedRequest | None:
        try:
            return self._read(raw)
        except _BadLineError as error:
            self._summary.note(self._summary.bad, str(error), self._place(self._lines))
        except _LeftOutError as error:
            self._left_out += 1
            self._summary.note(self._summary.left_out, str(error), self._place(self._lines))
        except _WithoutPromptError:
            self._server_lines += 1
            self._without_prompt += 1
            self._unknown_n += 1
        return None

    def _read(self, raw: bytes) -> LoggedRequest | None:
        if len(raw) > _MAX_LINE_BYTES:
            raise _BadLineError(f"is longer than {_MAX_LINE_BYTES // 2**20} MiB")
        try:
            line = raw.decode("utf-8-sig" if self._lines == 1 else "utf-8").strip()
        except UnicodeDecodeError:
            raise _BadLineError("is not UTF-8") from None
        if not line:
            return None
        if line.startswith("{"):
            wrapped = _wrapped_line(line)
            if wrapped is None:
                return _read_json_line(line)
            line = wrapped
        found = _VLLM_PROMPT.search(line)
        settings = _VLLM_NO_PROMPT.search(line) if found is None else None
        if settings is not None and settings["id"] in self._held:
            self._server_lines += 1
            return _with_settings(self._held.pop(settings["id"])[1], line[settings.end() :])
        request = _read_server_line(line, found)
        if request is None:
            self._unknown_n += 1
            if len(self._unknown) < MAX_PLACES:
                self._unknown.append(self._lines)
        else:
            self._server_lines += 1
            if len(request.text) > self._summary.longest:
                self._summary.longest, self._summary.at_longest = len(request.text), set()
            if len(request.text) == self._summary.longest and len(self._summary.at_longest) < _SEVERAL:
                self._summary.at_longest.add(hash(request.text))
            if found is not None and found["details"]:
                before = self._held.pop(found["id"], None)
                self._held[found["id"]] = self._lines, request
                return before[1] if before is not None else None
        return request

    def _why_empty(self) -> str:
        if self._without_prompt:
            return (
                f"{self._without_prompt:,} requests are logged without their prompts; vLLM writes prompts only with "
                "VLLM_LOGGING_LEVEL=DEBUG beside --enable-log-requests"
            )
        expected = "expected JSON Lines of OpenAI's requests or of prompts, or vLLM's log with --enable-log-requests"
        if not self._lines:
            return f"the file is empty; {expected}"
        if self._left_out:
            return f"of its {self._lines:,} lines none is a request that can be drawn: {self._first_reason()}"
        return f"of its {self._lines:,} lines none is a request ({self._first_reason()}); {expected}"

    def _first_reason(self) -> str:
        for reason, places in self._summary.places.items():
            for place in places:
                file, _, line = place.rpartition(":")
                if file == str(self._path):
                    return f"line {line} {reason}"
        return "all are empty"

    def _place(self, line: int) -> str:
        return f"{self._path}:{line}"


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes] | gzip.GzipFile]:
    """Open a file, unpacked if its first bytes are those of gzip."""
    try:
        with path.open("rb") as raw:
            magic = raw.read(4)
            raw.seek(0)
            if magic == b"\x28\xb5\x2f\xfd":
                raise UsageError(f"{path} is packed with zstd; unpack it first")
            if magic[:2] != b"\x1f\x8b":
                yield raw
                return
            with gzip.open(raw, "rb") as unpacked:
                yield unpacked
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UsageError(f"{path} is gzip, but broken or cut off") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}; name a file of logged requests") from error


_MESSAGE_KEYS = ("role", "content", "name", "tool_calls", "tool_call_id")
_COMPLETIONS_KEYS = ("model", "max_tokens", "max_completion_tokens")  # any of them marks a `prompt` of completions
_ROUTE_KEYS = ("url", "path", "endpoint", "route")
_WITHOUT_TEXT = (
    "embeddings", "pooling", "rerank", "score", "classify", "tokenize", "detokenize", "moderations",
)  # fmt: skip
_REQUEST_KEYS = ("request", "body", "messages", "prompt", "input")
_WRAPPED = re.compile(r'\{\s*"(?:log|message|msg|stream|time|ts|timestamp|level|severity|logger)"')
_STATUS_CODE = re.compile(r"(?:HTTP(?:/[0-9.]{1,3})? )?([0-9]{3})(?![0-9])")
_FAILURES = ("error", "failed", "failure", "cancelled", "canceled", "rejected", "timeout")
_NO_TEXT = "requests no text (embeddings, rerank and the like)"
_MAX_LABEL_CHARACTERS = 64

# Keys of a request that change the form of its answer, and that a sample cannot hold.
_FORM_KEYS = (
    "guided_json", "guided_regex", "guided_choice", "guided_grammar", "guided_decoding", "structured_outputs",
    "structural_tag", "json_schema", "regex", "ebnf", "grammar", "allowed_token_ids", "suffix", "echo",
    "chat_template", "chat_template_kwargs", "continue_final_message", "web_search_options", "mcp_servers",
)  # fmt: skip

_QUOTED = r"(?:'[^'\\]*(?:\\.[^'\\]*)*'|\"[^\"\\]*(?:\\.[^\"\\]*)*\")"  # as Python's repr writes it
_VLLM_PROMPT = re.compile(
    rf"(?:Received request|Request) (?P<id>\S+?)(?P<details> details)?: prompt: (?:(?P<text>{_QUOTED})|None)"
)
_VLLM_CUT = re.compile(r"(?:Received request|Request) \S+?(?: details)?: prompt: ['\"]")
_VLLM_NO_PROMPT = re.compile(r"Received request (?P<id>\S+?): (?:params|sampling_params|params_list): ")
_VLLM_STOP = re.compile(rf"\bstop=(?P<list>\[(?:{_QUOTED}(?:, {_QUOTED})*)?\])")
_VLLM_FORM = re.compile(r"\b(guided_decoding|structured_outputs|allowed_token_ids)=(?!None\b|\[\])")
_VLLM_LABELS = {"chatcmpl": "chat", "cmpl": "completions", "resp": "responses"}


class _BadLineError(Exception):
    """A line that should hold a request and does not; the message is the reason."""


class _LeftOutError(Exception):
    """A request that cannot or should not be sent again; the message is the reason."""


class _WithoutPromptError(Exception):
    """A request in a server's log without its prompt."""


def _read_json_line(line: str) -> LoggedRequest:
    values = _object(line)
    response = values.get("response")
    for holder in (values, response) if isinstance(response, dict) else (values,):
        if holder.get("error") or any(_is_failure(holder.get(key)) for key in ("status_code", "status")):
            raise _LeftOutError("the request failed or was refused")
    path = _path(values)
    label, kind = _label(path), _kind(path)
    body = _body(values)
    if kind in _WITHOUT_TEXT:
        raise _LeftOutError(_NO_TEXT)
    _refuse_other_forms(body)
    if "messages" in body and (kind == "messages" or _is_anthropic(body)):
        return replace(_chat_request(*_from_messages(body), label or "messages"), endpoint="messages")
    if "messages" in body:
        return _chat_request(body["messages"], body, label or "chat")
    if "prompt" in body:
        return _prompt_request(body, label, kind)
    if "input" in body:
        if "encoding_format" in body or "dimensions" in body or "embed" in str(body.get("model")).lower():
            raise _LeftOutError(_NO_TEXT)
        return _responses_request(body, label or "responses")
    raise _BadLineError("holds no `messages`, `prompt` or `input`")


def _is_failure(status: object) -> bool:
    """Return True for an HTTP status from 400, as a number or in a text like `500 Server Error`, and for `failed`."""
    if isinstance(status, str):
        code = _STATUS_CODE.match(status.strip())
        return int(code[1]) >= 400 if code else status.strip().lower() in _FAILURES
    return isinstance(status, int | float) and status >= 400


def _refuse_other_forms(body: Mapping[str, object]) -> None:
    """Raise _LeftOutError for a request whose answer has a form that a sample cannot request again."""
    extra = body.get("extra_body")
    for holder in (body, extra) if isinstance(extra, dict) else (body,):
        for key in _FORM_KEYS:
            if holder.get(key):
                raise _other_form(key)
        if holder.get("add_generation_prompt") is False:
            raise _other_form("add_generation_prompt")
        modalities = holder.get("modalities")
        if modalities and modalities != ["text"]:
            raise _other_form("modalities")


def _other_form(key: str) -> _LeftOutError:
    return _LeftOutError(f"asks by `{key}` for a form of answer that a sample cannot hold")


def _wrapped_line(line: str) -> str | None:
    """Return the line of a server's log that a container's log wraps in JSON (`{"log": "…", …}`). None for others."""
    if not _WRAPPED.match(line):
        return None
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if any(key in values for key in _REQUEST_KEYS):
        return None
    return next((values[key] for key in ("log", "message", "msg") if isinstance(values.get(key), str)), None)


def _read_server_line(line: str, found: re.Match[str] | None) -> LoggedRequest | None:
    """Read the rendered prompt in a line of vLLM's log (`--enable-log-requests`). None for any other line."""
    if found is None:
        if _VLLM_NO_PROMPT.search(line):
            raise _WithoutPromptError
        if _VLLM_CUT.search(line):
            raise _BadLineError("a request whose line was cut")
        return None
    if found["text"] is None and "PoolingParams(" not in line:
        raise _LeftOutError("is logged by its tokens alone, without text")
    kind = found["id"].partition("-")[0]
    prompt = str(_literal(found["text"] or "''") or "")
    request = LoggedRequest("completions", _VLLM_LABELS.get(kind, "other"), prompt=prompt)
    request = _with_settings(request, line[found.end() :])
    if not prompt.strip() or holds_half_a_pair(prompt):
        raise _BadLineError("holds an empty prompt, or one that is no text")
    return request


def _with_settings(request: LoggedRequest, settings: str) -> LoggedRequest:
    """Add the stops in the settings of a request, as vLLM logs them."""
    if "PoolingParams(" in settings:
        raise _LeftOutError(_NO_TEXT)
    found = _VLLM_STOP.search(settings)
    if found is None and "stop=[" in settings:
        raise _BadLineError("a request whose line was cut")
    form = _VLLM_FORM.search(_VLLM_STOP.sub("", settings))
    if form is not None:
        raise _other_form(form[1])
    stops = _literal(found["list"]) if found is not None else []
    if not isinstance(stops, list) or any(not isinstance(text, str) or holds_half_a_pair(text) for text in stops):
        raise _BadLineError("has a `stop` that is no list of texts")
    return replace(request, fields={"stop": stops}) if stops else request


def _literal(shown: str) -> object:
    """Return the value that Python's repr shows. None if it is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # an escape that repr does not write
            return ast.literal_eval(shown)
    except (SyntaxError, ValueError, Warning):
        return None


def _object(text: str) -> Mapping[str, object]:
    try:
        values = parse_json(text)
    except json.JSONDecodeError:
        raise _BadLineError("is not JSON") from None
    except ValueError:
        raise _BadLineError("holds what JSON cannot carry, or a key twice") from None
    if not isinstance(values, dict):
        raise _BadLineError("is not a JSON object")
    return values


def _body(values: Mapping[str, object]) -> Mapping[str, object]:
    """Return the request itself: bare, the `body` of a batch, or the `request` of a log, possibly as JSON text."""
    for key in ("request", "body"):
        inner = values.get(key)
        if isinstance(inner, str):
            inner = _object(inner)
        if isinstance(inner, dict):
            values = inner
    return values


def _path(values: Mapping[str, object]) -> str | None:
    """Return the path of a request without its version, like `chat/completions`. None if absent."""
    inner = values.get("request")
    holders = (inner, values) if isinstance(inner, dict) else (values,)
    for route in (holder.get(key) for holder in holders for key in _ROUTE_KEYS):
        if isinstance(route, str) and route.strip():
            path = re.sub(r"^\w+://[^/]*", "", route.strip()).partition("?")[0].partition("#")[0]
            return re.sub(r"^/?v[0-9]+/", "", path).strip("/") or None
    return None


def _label(path: str | None) -> str | None:
    """Return a short route like `chat` of `chat/completions`, `*` for parts that may be ids."""
    if path is None:
        return None
    parts = path.removesuffix("/completions").split("/")
    shown = ["*" if re.search(r"[0-9]|[^A-Za-z_.-]", part) else part for part in parts]
    return "/".join(shown)[:_MAX_LABEL_CHARACTERS]


def _kind(path: str | None) -> str | None:
    """Return the endpoint that a path ends with, whatever a proxy puts before it: `chat`, `completions`, `messages`."""
    if path is None:
        return None
    *_, before, last = ("", *path.split("/"))
    return "chat" if (before, last) == ("chat", "completions") else last


def _chat_request(found: object, body: Mapping[str, object], label: str) -> LoggedRequest:
    if not isinstance(found, list) or not found:
        raise _BadLineError("has `messages` that are no list of messages")
    messages = [_message(message) for message in found]
    while messages and messages[-1]["role"] == "assistant":
        messages.pop()  # the recorded answer
    if not any(message["role"] == "user" for message in messages):
        raise _BadLineError("has no message of a user to be answered")
    fields = {key: body[key] for key in REQUEST_FIELDS if body.get(key) is not None} | _from_functions(body)
    first = messages[0]
    if len(messages) == 1 and not fields and isinstance(first["content"], str) and set(first) == {"role", "content"}:
        return LoggedRequest("chat", label, prompt=first["content"])
    return LoggedRequest("chat", label, messages=tuple(messages), fields=fields)


def _from_functions(body: Mapping[str, object]) -> dict[str, object]:
    """Spell `functions` and `function_call`, which chat knew before, as tools."""
    functions, call = body.get("functions"), body.get("function_call")
    if not functions:
        return {}
    if not isinstance(functions, list) or body.get("tools"):
        raise _BadLineError("has `functions` that are no list, or `tools` beside them")
    fields: dict[str, object] = {"tools": [{"type": "function", "function": function} for function in functions]}
    if call is not None:
        fields["tool_choice"] = {"type": "function", "function": call} if isinstance(call, dict) else call
    return fields


def _message(message: object) -> dict[str, object]:
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        raise _BadLineError("has a message without a known `role`")
    kept = {key: message[key] for key in _MESSAGE_KEYS if message.get(key) is not None}
    content = kept.setdefault("content", None)
    if isinstance(content, list):
        kept["content"] = content = [_part(part) for part in content]
    elif not isinstance(content, str | None):
        raise _BadLineError("has a `content` that is neither text nor a list of parts")
    if message.get("function_call") or kept["role"] == "function":
        raise _LeftOutError("calls by `function_call`, which `tool_calls` replaced")
    calls = kept.get("tool_calls")
    if not calls and (content is None or (isinstance(content, str) and not content.strip() and kept["role"] == "user")):
        raise _BadLineError("has a message without `content`")
    return kept


def _part(part: object) -> dict[str, object]:
    if not isinstance(part, dict):
        raise _BadLineError("has a `content` that is neither text nor a list of parts")
    if part.get("type") not in ("text", "input_text", "output_text") or not isinstance(part.get("text"), str):
        raise _LeftOutError("holds images, audio or files, which no rule can redact")
    return {"type": "text", "text": part["text"]}


def _is_anthropic(body: Mapping[str, object]) -> bool:
    """Return True for a request that only Anthropic's Messages take."""
    tools, messages = body.get("tools"), body.get("messages")
    first = tools[0] if isinstance(tools, list) and tools else None
    if "system" in body or "anthropic_version" in body or (isinstance(first, dict) and "input_schema" in first):
        return True
    if not isinstance(messages, list):
        return False
    contents = [message.get("content") for message in messages if isinstance(message, dict)]
    blocks = [block for content in contents if isinstance(content, list) for block in content]
    return any(isinstance(block, dict) and block.get("type") in _ANTHROPIC_BLOCKS for block in blocks)


_ANTHROPIC_BLOCKS = ("tool_use", "tool_result", "thinking", "redacted_thinking")
_ANTHROPIC_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def _from_messages(body: Mapping[str, object]) -> tuple[object, dict[str, object]]:
    """Spell messages and fields of a request to Anthropic's Messages as OpenAI does."""
    messages, system = body["messages"], body.get("system")
    last = messages[-1] if isinstance(messages, list) and messages else None
    if isinstance(last, dict) and last.get("role") == "assistant":
        raise _LeftOutError("begins the answer itself, by a last message of the assistant")
    spelled: list[object] = [] if system is None else [{"role": "system", "content": system}]
    for message in messages if isinstance(messages, list) else ():
        spelled += _chat_messages(message)
    fields: dict[str, object] = {}
    if body.get("stop_sequences"):
        fields["stop"] = body["stop_sequences"]
    tools, choice = body.get("tools"), body.get("tool_choice")
    if isinstance(tools, list) and tools:
        fields["tools"] = [_chat_tool(tool) for tool in tools]
    output, form = body.get("output_config"), body.get("output_format")
    if isinstance(output, dict) and output.get("format") is not None:
        form = output["format"]
    if form is not None:
        fields["response_format"] = _response_format(form, "output_config")
    if isinstance(choice, dict):
        if choice.get("disable_parallel_tool_use"):
            fields["parallel_tool_calls"] = False
        named = {"type": "function", "function": {"name": choice.get("name")}}
        kind = choice.get("type")
        fields["tool_choice"] = named if kind == "tool" else _ANTHROPIC_CHOICES.get(str(kind), "auto")
    return spelled, fields


def _response_format(form: object, key: str) -> dict[str, object]:
    """Spell as chat does the form of answer that `key` holds: the schema stands in it directly."""
    kind = form.get("type") if isinstance(form, dict) else None
    if not isinstance(form, dict) or kind not in ("text", "json_object", "json_schema"):
        raise _other_form(key)
    if kind != "json_schema":
        return {"type": kind}
    schema = {key: form[key] for key in ("name", "description", "schema", "strict") if form.get(key) is not None}
    return {"type": kind, "json_schema": {"name": "answer"} | schema}


def _chat_tool(tool: object) -> dict[str, object]:
    if not isinstance(tool, dict) or "input_schema" not in tool:
        raise _LeftOutError("offers tools of Anthropic's own servers")
    described = {key: tool[key] for key in ("name", "description", "strict") if key in tool}
    return {"type": "function", "function": {**described, "parameters": tool["input_schema"]}}


def _chat_messages(message: object) -> list[object]:
    """Spell a message of Anthropic's as chat does: calls beside the content, each result a message of its own."""
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(message, dict) or not isinstance(content, list):
        return [message]
    parts, calls, results = list[object](), list[object](), list[object]()
    for block in content:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_use":
            function = {"name": block.get("name"), "arguments": json.dumps(block.get("input") or {})}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind == "tool_result":
            answer = block.get("content") or ""
            results.append({"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": answer})
        elif kind not in ("thinking", "redacted_thinking"):  # thoughts are not sent again
            parts.append(block)
    if not parts and not calls:
        return results
    said = {"role": message.get("role"), "content": parts or None}
    return [*results, said | {"tool_calls": calls} if calls else said]


def _prompt_request(body: Mapping[str, object], label: str | None, kind: str | None) -> LoggedRequest:
    prompt = body["prompt"]
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        prompt = prompt[0]
    if isinstance(prompt, list) and prompt:
        raise _LeftOutError("holds several prompts at once, or tokens without text")
    if not isinstance(prompt, str) or not prompt.strip():
        raise _BadLineError("has a `prompt` that is empty or no text")
    is_rendered = kind == "completions" or (kind is None and any(key in body for key in _COMPLETIONS_KEYS))
    if is_rendered and body.get("response_format"):
        raise _other_form("response_format")
    keys = ("stop",) if is_rendered else REQUEST_FIELDS
    fields = {key: body[key] for key in keys if body.get(key) is not None}
    endpoint: Endpoint = "completions" if is_rendered else "chat"
    return LoggedRequest(endpoint, label or endpoint, prompt=prompt, fields=fields)


def _responses_request(body: Mapping[str, object], label: str) -> LoggedRequest:
    """Convert a request of the responses API to chat. One that continues a stored answer cannot be converted."""
    if body.get("previous_response_id") or body.get("conversation"):
        raise _LeftOutError("continues an answer that the server stored")
    if body.get("tools"):
        raise _LeftOutError("offers tools of the responses API, which chat spells otherwise")
    found = body["input"]
    messages = [{"role": "user", "content": found}] if isinstance(found, str) else found
    if isinstance(messages, list) and any(
        isinstance(m, dict) and m.get("type", "message") != "message" for m in messages
    ):
        raise _LeftOutError("holds items of the responses API that chat does not have")
    instructions = body.get("instructions")
    if isinstance(instructions, str) and isinstance(messages, list):
        messages = [{"role": "system", "content": instructions}, *messages]
    text = body.get("text")
    form = text.get("format") if isinstance(text, dict) else None
    fields = {} if form is None else {"response_format": _response_format(form, "text.format")}
    if fields.get("response_format") == {"type": "text"}:
        fields = {}  # what is answered anyway
    return _chat_request(messages, fields, label)
