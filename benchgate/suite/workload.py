"""A `workload`: synthetic or recorded requests, their lengths, and how clients behave."""

from __future__ import annotations

import hashlib
import json
import math
import re
from bisect import bisect_right
from collections.abc import Callable
from functools import cache
from itertools import accumulate
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, Strict, ValidationInfo, model_validator

from benchgate.model.request import ENDPOINTS, Endpoint, MediaKind
from benchgate.suite.types import (
    MAPPING,
    WHOLE,
    Duration,
    Expected,
    Flag,
    PositivePercent,
    Section,
    Text,
    Tokens,
    Whole,
    Written,
    is_stored,
    key,
    optional,
    text,
)
from benchgate.units import PATTERNS, parse_duration_s, parse_tokens, show_duration, show_found

MOST_TOKENS = 1_000_000

Count = Annotated[Tokens, Field(ge=1, le=MOST_TOKENS)]
Weights = Literal["uniform", "zipf"]
Spread = Annotated[float, Strict(), Field(gt=0, le=10)]


class Normal(Section):
    """A normal distribution, rounded to whole tokens and held between its bounds."""

    mean_tokens: Count = key("Mean", alias="mean")
    sd_tokens: Count = key("Standard deviation", alias="sd")
    least_tokens: Count = key("Smallest value", default=1, alias="min")
    most_tokens: Count = key("Largest value", default=MOST_TOKENS, alias="max")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        _check_between(self.least_tokens, self.mean_tokens, self.most_tokens, "mean")
        return self


class LogNormal(Section):
    """A lognormal distribution: half the values are below `median`, and `sigma` is the spread of their logarithms."""

    median_tokens: Count = key("Median", alias="median")
    sigma: Spread = key(
        "Standard deviation of the natural logarithm: at 1, one in six is more than 2.7 times the median"
    )
    least_tokens: Count = key("Smallest value", default=1, alias="min")
    most_tokens: Count = key("Largest value", default=MOST_TOKENS, alias="max")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        _check_between(self.least_tokens, self.median_tokens, self.most_tokens, "median")
        return self


class Lengths(Section):
    """A distribution of token counts: exactly one of these. `output`, and `turns` of a session, are written alike."""

    uniform: tuple[Count, Count] | None = optional("Uniform distribution; both ends are included")
    normal: Normal | None = optional("Normal distribution")
    lognormal: LogNormal | None = optional("Lognormal distribution: a long tail, as lengths of real traffic have")
    file: Text | None = optional(
        "A CSV with a header and the column `input_tokens`, `output_tokens`, or `tokens` for either; each row is "
        "equally likely. Input and output from one file are drawn together"
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        given = [name for name in ("uniform", "normal", "lognormal", "file") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError("lengths are exactly one of `uniform`, `normal`, `lognormal` and `file`")
        if self.uniform is not None and self.uniform[0] >= self.uniform[1]:
            raise ValueError("`uniform` is the least and the most, like [64, 512]")
        return self

    @property
    def most_tokens(self) -> int | None:
        """Largest possible value; None for a file."""
        if self.uniform is not None:
            return self.uniform[1]
        bounded = self.normal or self.lognormal
        return None if bounded is None else bounded.most_tokens

    @property
    def shown(self) -> str:
        """The distribution in words: `64 to 512`."""
        if self.uniform is not None:
            return f"{self.uniform[0]:,} to {self.uniform[1]:,}"
        if self.normal is not None:
            return f"about {self.normal.mean_tokens:,} (normal, sd {self.normal.sd_tokens:,})"
        if self.lognormal is not None:
            return f"about {self.lognormal.median_tokens:,} (lognormal, sigma {self.lognormal.sigma:g})"
        return f"as in {self.file}"


class LogNormalPause(Section):
    """A lognormal distribution of pauses."""

    median_s: Duration = key("Median", alias="median")
    sigma: Spread = key("Standard deviation of the natural logarithm")


class Pauses(Section):
    """A distribution of pauses: exactly one of these."""

    uniform: tuple[Duration, Duration] | None = key("Uniform distribution", default=None)
    lognormal: LogNormalPause | None = key("Lognormal distribution, with a long tail", default=None)

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.uniform is None) == (self.lognormal is None):
            raise ValueError("pauses are exactly one of `uniform` and `lognormal`")
        if self.uniform is not None and self.uniform[0] >= self.uniform[1]:
            raise ValueError("`uniform` is the least and the most, like [1s, 5s]")
        return self


def _check_between(least: int, middle: int, most: int, name: str) -> None:
    if not least <= middle <= most or least == most:
        raise ValueError(f"`{name}` lies outside of `min` and `max`, or they leave no room; correct one of them")


def _parse_length(found: object) -> int:
    tokens = parse_tokens(found)
    if not 1 <= tokens <= MOST_TOKENS:
        raise ValueError(f'found {show_found(found)}; expected a count like "128 tokens", at most {MOST_TOKENS:,}')
    return tokens


def _value_or(section: type[Section], parse: Callable[[object], object]) -> BeforeValidator:
    """Return the validator of one value, or of a distribution of values."""

    def read(found: object, info: ValidationInfo) -> object:
        stored = is_stored(info)
        if isinstance(found, dict):
            return section.model_validate(found, context=info.context, by_name=stored, by_alias=not stored)
        return found if stored or isinstance(found, section) else parse(found)

    return BeforeValidator(read)


_COUNTED = Written({**WHOLE, "minimum": 1, "maximum": MOST_TOKENS}, text(PATTERNS[parse_tokens]))
Length = Annotated[
    int | Lengths,
    _value_or(Lengths, _parse_length),
    Expected('a count like "128 tokens", or lengths like {uniform: [64, 512]}'),
    _COUNTED,
]
Turns = Annotated[
    int | Lengths,
    _value_or(Lengths, _parse_length),
    Expected("a number of turns like 4, or numbers like {uniform: [2, 6]}"),
    _COUNTED,
]
Pause = Annotated[
    float | Pauses,
    _value_or(Pauses, parse_duration_s),
    Expected('a duration like "2s", or pauses like {uniform: [1s, 5s]}'),
    Written(text(PATTERNS[parse_duration_s]), show=show_duration),
]


def most_tokens(length: int | Lengths | None) -> int | None:
    """Return the largest possible value of a length; None for a file."""
    return length.most_tokens if isinstance(length, Lengths) else length


def shown_length(length: int | Lengths) -> str:
    """Format a length: `128`, or `64 to 512`."""
    return f"{length:,}" if isinstance(length, int) else length.shown


_OWN = {
    "max_tokens": "write `max_tokens_field` for another name, the counts stand in `workload`, `quality` and `shadow`",
    "max_completion_tokens": "write `max_tokens_field: max_completion_tokens`",
    "ignore_eos": "`ignore_eos` of the workload asks for it, in load requests alone; `leave_out` takes it out",
    "stream_options": "`leave_out: [stream_options]` takes it out",
    **dict.fromkeys(("model", "messages", "prompt", "stream", "seed", "n"), "remove it"),
}


def check_body_fields(fields: dict[str, object]) -> dict[str, object]:
    """Return fields of a request body as they are. Raises ValueError for those that benchgate sets."""
    for name in fields:
        if name in _OWN:
            raise ValueError(f"`{name}` is set by benchgate itself; {_OWN[name]}")
    return fields


def _check_schema(found: object) -> object:
    if isinstance(found, str | dict) and found:
        return found
    raise ValueError(f"found {show_found(found)}; expected {_SCHEMA}")


def _check_tools(found: object) -> object:
    if isinstance(found, str) and found:
        return found
    if isinstance(found, list | tuple) and found and all(isinstance(tool, dict) for tool in found):
        return list(found)
    raise ValueError(f"found {show_found(found)}; expected {_TOOLS}")


def _check_after(found: object, info: ValidationInfo) -> object:
    if not is_stored(info):
        try:
            parse_tokens(found)
        except ValueError:
            try:
                parse_duration_s(found)
            except ValueError:
                message = f"{show_found(found)} is neither tokens nor a time; write it like 20 tokens or 500ms"
                raise ValueError(message) from None
    return str(found)


_SCHEMA = "a JSON schema, or the file of one"
_TOOLS = "a list of tools as OpenAI spells them, or the JSON file of one"
BodyFields = Annotated[
    dict[str, Any], AfterValidator(check_body_fields), Expected("a mapping of fields for the body of every request")
]
JsonSchema = Annotated[
    Text | dict[str, Any], BeforeValidator(_check_schema), Expected(_SCHEMA), Written(text(), MAPPING)
]
Tools = Annotated[
    Text | list[dict[str, Any]], BeforeValidator(_check_tools), Expected(_TOOLS),
    Written(text(), {"type": "array", "items": {"type": "object"}, "minItems": 1}),
]  # fmt: skip
CancelAfter = Annotated[
    str, BeforeValidator(_check_after), Expected("`20 tokens` or `500ms`"),
    Written(WHOLE, text(PATTERNS[parse_tokens]), text(PATTERNS[parse_duration_s])),
]  # fmt: skip


class Prefix(Section):
    """The shared beginning of prompts, like a system prompt. It is part of their `input`."""

    groups: Whole = key(
        "Number of different beginnings; each prompt gets one of them at random", default=1, ge=1, le=100_000
    )
    prefix_tokens: Count | None = key(
        "Length of a beginning; a shorter prompt shares all but one token", default=None, alias="tokens"
    )
    share_ratio: PositivePercent | None = key(
        "Length of a beginning as a share of each prompt", default=None, alias="share"
    )

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        if (self.prefix_tokens is None) == (self.share_ratio is None):
            raise ValueError("a shared prefix has a length, `tokens`, or is a `share` of each prompt: exactly one")
        if self.share_ratio == 1:
            raise ValueError("`share` of 100% leaves no prompt a text of its own; write less")
        return self


class Retrieval(Section):
    """Documents in front of each prompt, as in retrieval-augmented generation: some of a common pool.

    They follow a shared `prefix`. They are part of the prompt's `input`; in a conversation, of its first turn. A cache
    holds a document only if all that stands before it is the same too.
    """

    pool: Whole = key("Number of different documents", ge=2, le=100_000)
    each: Whole = key("Documents in a prompt, all different", ge=1, le=1_000)
    document_tokens: Count = key("Length of a document", alias="tokens")
    order: Literal["shuffled", "fixed"] = key(
        "`fixed` sorts the documents of a prompt by their place in the pool, so that more prompts begin alike",
        default="shuffled",
    )
    weights: Weights = key(
        "How often documents are drawn: all alike, or the one at place `k` of the pool `1/k` as often",
        default="uniform",
    )

    @model_validator(mode="after")
    def _pool_is_large_enough(self) -> Self:
        if self.each >= self.pool:
            raise ValueError(f"`each` takes {self.each:,} documents of a pool of {self.pool:,}; make the pool larger")
        return self


class Session(Section):
    """Conversations: each turn repeats the earlier ones, the model's own answers included.

    For the endpoints `chat`, `messages` and `responses`. A stage sends exactly its `requests`, all turns together. A
    `rate` starts conversations; `concurrency` is how many are open, including those that pause.
    """

    turns: Turns = key("Requests of a conversation. `input` and `output` hold for each turn")
    think: Pause | None = key("Pause from the end of an answer to the next turn", default=None)


class LeaveSpec(Section):
    """Clients that disconnect on purpose before the end of their answer."""

    share_ratio: PositivePercent = key(
        "Share of the requests, the same number in every block; of conversations, in their last turn", alias="share"
    )
    after: CancelAfter = key("Number of received output chunks, or time after the scheduled send")

    @property
    def after_tokens(self) -> int | None:
        """Output chunks after which the client disconnects; None for a time."""
        try:
            return parse_tokens(self.after)
        except ValueError:
            return None

    @property
    def after_s(self) -> float | None:
        """Time after the request was due; None for tokens."""
        return None if self.after_tokens is not None else parse_duration_s(self.after)


class Media(Section):
    """Media of one kind beside the text of each chat request: generated ones, or files and addresses at random."""

    count: Whole = key("How many in a request; in a conversation, in its first turn", default=1, ge=1, le=64)
    files: tuple[Text, ...] = key(
        "Drawn at random instead of generated ones: files, folders of them, lists of them (JSON Lines with a `file` or "
        "a `url` in each line), and `https://` addresses, which are sent as they are",
        default=(),
    )


class Images(Media):
    """Images beside the text of each chat request: noise, or PNG, JPEG, WebP and GIF files."""

    width: Whole = key("Width of a generated noise image, in pixels; all images differ", default=224, ge=1, le=4096)
    height: Whole = key("Height of a generated noise image, in pixels", default=224, ge=1, le=4096)


class Audio(Media):
    """Audio beside the text of each chat request, or transcribed: speech-like sound, or recordings.

    Generated sound has syllables and pauses but no words: a model that finds none in it answers nothing, and counts as
    failed. Recordings are WAV, MP3, FLAC, Ogg, M4A and WebM files.
    """

    duration_s: Pause = key(
        "Length of a generated clip (WAV, 16 kHz, one channel, 16 bit); all clips differ",
        default=5.0,
        alias="duration",
    )
    part: Literal["input_audio", "audio_url"] = key(
        "Type of the content part. Addresses, and all audio to SGLang and TensorRT-LLM, go as `audio_url`",
        default="input_audio",
    )


class Videos(Media):
    """Videos beside the text of each chat request: noise (MP4 with H.264), or MP4, WebM, MOV, MKV and AVI files."""

    width: Whole = key("Width of a generated video, in pixels", default=128, ge=16, le=1024, multiple_of=16)
    height: Whole = key("Height of a generated video, in pixels", default=128, ge=16, le=1024, multiple_of=16)
    frames: Whole = key("Frames of a generated video, which all differ", default=8, ge=1, le=256)
    fps: Whole = key("Frames per second of a generated video", default=4, ge=1, le=120)


BUILTIN_PROMPTS = "builtin"
_Values = Annotated[
    Text | tuple[Text, ...], Expected("a text, or a list of texts"),
    Written(text(), {"type": "array", "items": text(), "minItems": 1}),
]  # fmt: skip
_HUB = "hf:"
_HUB_SOURCE = re.compile(r"hf:([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)@([0-9a-f]{40})", re.ASCII)
_HUB_NAME = re.compile(r"hf:([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@.*)?", re.ASCII)


def _parse_source(found: object) -> str:
    if not isinstance(found, str) or not found.strip():
        raise ValueError(f"found {show_found(found)}; expected {_PROMPTS}")
    if not found.startswith(_HUB) or _HUB_SOURCE.fullmatch(found):
        return found
    named = _HUB_NAME.fullmatch(found)
    if named is None:
        raise ValueError(f"found {show_found(found)}; write a data set of the Hub as hf:ORG/NAME@COMMIT")
    problem = "names no commit" if named[2] is None else f'"{named[2][1:]}" is no commit of 40 hexadecimal digits'
    remedy = f"`git ls-remote https://huggingface.co/datasets/{named[1]} HEAD` prints the newest one"
    raise ValueError(f"{problem}, and a data set changes; write hf:{named[1]}@COMMIT: {remedy}")


def is_file_source(source: str) -> bool:
    """Return True for the source of a prompt set that is a file or a folder of this machine."""
    return source != BUILTIN_PROMPTS and not source.startswith(_HUB)


class PromptColumns(Section):
    """Columns that hold a request: exactly one of `prompt`, `messages` and `conversations`."""

    prompt: Text | None = optional("Column of a text")
    messages: Text | None = optional("Column of a list of messages, as OpenAI spells them")
    conversations: Text | None = optional("Column of a list of turns, as ShareGPT spells them")
    system: Text | None = optional("Column of a system prompt, beside `prompt`")
    output_tokens: Text | None = optional("Column of the length of the answer, beside `prompt`")

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if sum(kind is not None for kind in (self.prompt, self.messages, self.conversations)) != 1:
            raise ValueError("columns name exactly one of `prompt`, `messages` and `conversations`")
        stray = next((name for name in ("system", "output_tokens") if getattr(self, name) is not None), None)
        if stray is not None and self.prompt is None:
            raise ValueError(f"`{stray}` means nothing without `prompt`; remove it")
        return self


class PromptSet(Section):
    """Recorded requests, and which rows and columns of them are sent. `prompts: SOURCE` sends all rows."""

    source: Annotated[Text, BeforeValidator(_parse_source)] = key(
        "A file beside the suite (JSON, JSONL, CSV, Parquet), the folder of a data set, `hf:ORG/NAME@COMMIT`, or "
        f"`{BUILTIN_PROMPTS}`: the 320 prompts that ship with benchgate"
    )
    subset: Text | None = optional("Subset (configuration) of a data set. Default: its only or default one")
    split: Text = optional("Split of a data set", default="train")
    files: Text | None = optional("Files of a repository on the Hub to load, like `data/train-*.parquet`. Default: all")
    columns: PromptColumns | None = optional(
        "Columns to read. Default: columns that are named as the keys of recorded prompts"
    )
    where: dict[Text, _Values] = optional(
        "Rows to send: those that have one of these values in each of these columns, like `{category: code}`",
        default={},
    )
    limit: Whole | None = optional("Number of rows, the first ones. Default: all", default=None, ge=1)

    @model_validator(mode="after")
    def _fits_its_source(self) -> Self:
        if self.files is not None and self.repository is None:
            raise ValueError("`files` chooses from a repository on the Hub; name the files in `source`")
        stray = self.model_fields_set & {"subset", "split"}
        if stray and (self.source == BUILTIN_PROMPTS or self.source.endswith((".json", ".jsonl", ".ndjson"))):
            raise ValueError(f"`{min(stray)}` belongs to a data set, and {self.source} has none; remove it")
        return self

    @property
    def repository(self) -> tuple[str, str] | None:
        """Name and commit of a data set on the Hub; None for another source."""
        found = _HUB_SOURCE.fullmatch(self.source)
        return None if found is None else (found[1], found[2])

    @property
    def name(self) -> str:
        """Name that tells this set from others: its source, and its other keys if there are any."""
        more = self.model_dump(mode="json", exclude={"source"}, by_alias=True)
        return self.source if not more else f"{self.source} {json.dumps(more, sort_keys=True)}"


_PROMPTS = f"a file, hf:ORG/NAME@COMMIT, {BUILTIN_PROMPTS}, or a mapping with `source`"
Prompts = Annotated[Text | PromptSet, _value_or(PromptSet, _parse_source), Expected(_PROMPTS), Written(text())]


class AdapterMix(Section):
    """Several LoRA adapters: each request, or each conversation, is for one of them, drawn by the suite's seed.

    The report has figures of each adapter. To judge adapters one by one, write classes of traffic.
    """

    names: tuple[Text, ...] = key("Names of the adapters, the most used first", min_length=2)
    weights: Weights = key(
        "How often they are drawn: all alike, or the one at place `k` of `names` `1/k` as often", default="uniform"
    )

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        if len(set(self.names)) < len(self.names):
            raise ValueError(
                "`names` has an adapter twice; name each once, and let `weights` say how often it is drawn"
            )
        return self

    def drawn(self, key: str) -> str:
        """Return the adapter determined by `key`."""
        drawn = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8]) / 2**64
        bounds = _cumulative(self.weights, len(self.names))
        return self.names[min(bisect_right(bounds, drawn * bounds[-1]), len(self.names) - 1)]


@cache
def _cumulative(weights: Weights, count: int) -> tuple[float, ...]:
    return tuple(accumulate(frequencies(weights, count)))


def frequencies(weights: Weights, count: int) -> list[float]:
    """Return how often each of `count` things is drawn; by Zipf's law the one at place k 1/k as often as the first."""
    return [1.0 if weights == "uniform" else 1 / place for place in range(1, count + 1)]


def _parse_adapter(found: object) -> str:
    if isinstance(found, str) and found:
        return found
    raise ValueError(f"found {show_found(found)}; expected {_ADAPTER}")


_ADAPTER = "the name of an adapter, or several like {names: [legal, support], weights: zipf}"
Adapter = Annotated[Text | AdapterMix, _value_or(AdapterMix, _parse_adapter), Expected(_ADAPTER), Written(text())]


class Workload(Section):
    """Requests of a stage or a class: synthetic texts of given lengths, or recorded ones."""

    endpoint: Endpoint = key(
        "API endpoint: `/v1/chat/completions` and so on. `messages` is Anthropic's, `generate` TGI's, "
        "`triton-generate` Triton's, `predictions` TorchServe's and `infer` that of KServe's version 2. The last three "
        "state no usage and no end: chunks count as tokens, a stream that the server cuts in good order is not found, "
        "and `infer` has the latency of whole answers only. `grpc-infer` is `ModelInfer` over gRPC, streamed Triton's "
        "`ModelStreamInfer`: chunks count as tokens; it needs `grpc` of the deployments and the extra `grpc`. "
        "`transcriptions` sends `audio` to "
        "`/v1/audio/transcriptions`, without `input` and `output`",
        default="chat",
    )
    input_tokens: Length | None = key(
        "Length of each prompt; all prompts differ. Default: required without `prompts`", default=None, alias="input"
    )
    text: Literal["words", "letters"] = key(
        "One short common word per token; letters for byte-level models", default="words"
    )
    output_tokens: Length | None = key(
        "Length of each answer. Default: required if text is generated", default=None, alias="output"
    )
    ignore_eos: Flag = key(
        "Request the full length where the engine supports it; answers of equal length make tokens/s comparable",
        default=True,
    )
    tokenizer: Text | None = optional(
        "Make up prompts from words that are one token each for this tokenizer, so that lengths are exact. "
        "Default: one word counts as one token"
    )
    prompts: Prompts | None = optional("Recorded requests instead of made-up ones")
    sessions: Text | None = optional("File of recorded agent sessions, replayed as graphs of calls and waits")
    prefix: Prefix | None = optional("A shared beginning of the prompts")
    retrieval: Retrieval | None = optional("Documents of a pool in front of the prompts")
    session: Session | None = optional("Conversations instead of single requests")
    leave: LeaveSpec | None = optional("Clients that disconnect before the end of their answer")
    stream: Flag = optional("Stream answers; without streaming there is no TTFT and no TPOT", default=True)
    documents: Whole = optional(
        "Documents that a rerank request ranks, each `input` tokens long, against a query of 16 tokens",
        default=8,
        ge=1,
        le=1000,
    )
    images: Images | None = optional("Images beside the text, as content parts; endpoints `chat` and `messages`")
    audio: Audio | None = optional(
        "Audio beside the text, as content parts of `chat`, or transcribed. Default: none; for the endpoint "
        "`transcriptions` one clip of 5 s"
    )
    videos: Videos | None = optional("Videos beside the text, as content parts; endpoint `chat`")
    tools: Tools | None = optional(
        "Tools that the model may call, in OpenAI's format; endpoints `chat` and `messages`. "
        "`validity` is the share of right calls; an answer in words counts only where `tool_choice` requires a call"
    )
    answer_schema: JsonSchema | None = optional(
        "JSON schema of the answers; the share that satisfies it is the metric `validity`", alias="schema"
    )
    constrained: Flag = optional(
        "Send the `schema` to the engine too (`response_format`), instead of only judging by it", default=True
    )
    adapter: Adapter | None = optional("LoRA adapter: sent as the model, or as the engine has it")
    priority: Annotated[int, Strict()] | None = optional(
        "Sent as `priority` to vLLM (lower is earlier) and SGLang (as it was started)", ge=-1000, le=1000
    )
    body: BodyFields = optional(
        "Further fields of every request body; they override what benchgate sends itself. `parameters` of `generate` "
        "and `triton-generate` are merged. The text goes into the tensor of `inputs` that has no `data` (`infer`, "
        "and `grpc-infer`, which else has those of Triton's backend of vLLM), and into the field that is null "
        "(`predictions`)",
        default={},
    )

    @property
    def generates(self) -> bool:
        """True if answers are text, and so have a length."""
        return ENDPOINTS[self.endpoint].generates

    @property
    def streams(self) -> bool:
        """True if answers are streamed."""
        return self.stream and ENDPOINTS[self.endpoint].streams

    @property
    def media(self) -> dict[MediaKind, Media]:
        """Media of each request by their kind; what is transcribed too."""
        audio = Audio() if self.audio is None and ENDPOINTS[self.endpoint].transcribes else self.audio
        given: dict[MediaKind, Media | None] = {"images": self.images, "audio": audio, "videos": self.videos}
        return {kind: media for kind, media in given.items() if media is not None}

    @property
    def files(self) -> tuple[str, ...]:
        """Files of lengths."""
        lengths = (self.input_tokens, self.output_tokens)
        return tuple(length.file for length in lengths if isinstance(length, Lengths) and length.file is not None)

    @property
    def prompt_set(self) -> PromptSet | None:
        """Recorded requests; None for synthetic ones."""
        return PromptSet(source=self.prompts) if isinstance(self.prompts, str) else self.prompts

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of all adapters that requests are for."""
        if isinstance(self.adapter, AdapterMix):
            return self.adapter.names
        return () if self.adapter is None else (self.adapter,)

    @property
    def shared_tokens(self) -> int | None:
        """Tokens of a shared prefix and of documents; None without them, and for a share alone."""
        documents = 0 if self.retrieval is None else self.retrieval.each * self.retrieval.document_tokens
        prefix = (self.prefix.prefix_tokens if self.prefix is not None else None) or 0
        if documents and self.prefix is not None and self.prefix.share_ratio is not None:
            prefix = math.ceil(self.prefix.share_ratio * (self.most_input_tokens or 0))
        return prefix + documents or None

    @property
    def most_input_tokens(self) -> int | None:
        """Length of the longest synthetic prompt; None for files."""
        return most_tokens(self.input_tokens)

    @property
    def most_output_tokens(self) -> int | None:
        """Length of the longest answer; None for files, and without generated text."""
        return most_tokens(self.output_tokens)
