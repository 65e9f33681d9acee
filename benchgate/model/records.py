"""What is kept of a shadow comparison's answers beside their digests: facts about each, and about each pair of them.

None of it is text that a model or a user wrote, so all of it may be stored wherever it goes.

What was seen: one record per request, eval item and shadow prompt, and their packing into columns.

Times are integer nanoseconds since the start of the stage on a monotonic clock. In a record, None means "it never
happened" or "not known"; in a packed integer column the same is -1 (`ABSENT`). Columns are what the store keeps and
what statistics read; a record is what the load engine makes, one at a time.

What was seen of two models reading the same fixed texts: one record per position, and their packing into columns.

What each arm listed is not kept, only what it comes to: the lists are large, and they would tell the texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from itertools import chain
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from benchgate.model.text_column import TextColumn

NO_VERDICT = "the judge did not reply with a verdict in the form it was asked for"
UNFIT_JUDGE = "the judge does not find nonsense worse than an answer"
"""Why a verdict is missing although the judge replied; any other reason is that it did not."""


class Label(StrEnum):
    """How much two answers have in common, most first."""

    EXACT = "exact"  # character by character
    NORMALISED = "normalised"  # by the rules of the comparison: layout, order of keys, tolerances
    STRUCTURE = "same-structure"  # JSON of one shape, or calls of the same tools: other values
    SEMANTIC = "semantic"  # texts whose embeddings are near enough
    DIFFERENT = "different"


class Judged(StrEnum):
    """What a judge says of an answer beside the primary's, asked in both positions."""

    WIN = "win"  # better, both times
    LOSS = "loss"  # worse, both times
    TIE = "tie"  # as good, at least once
    INCONSISTENT = "inconsistent"  # whichever stood first (or second) was called better
    MISSING = "missing"  # the judge did not answer, or not in the form it was asked for


@dataclass(frozen=True, slots=True)
class AnswerFacts:
    """One answer. `valid`: it has the form that was asked for; None where no form was, or a call was only offered.

    `characters` counts its text alone: 0 for an answer that only calls tools, and for one that says nothing.
    """

    characters: int
    latency_ns: int  # from the send to the last byte
    refusal: bool
    tokens: int | None = None  # by the server's own count
    valid: bool | None = None


@dataclass(frozen=True, slots=True)
class PairFacts:
    """Two answers to one prompt. `differs` is what counts, by the rule that the suite chose; the rest tells why.

    `at_character` and `at_word` are where their texts first differ, counted from 0; None where they do not.
    `similarity` is the cosine of their embeddings; None where nobody asked for it, or it could not be had (then the
    item's `similarity_error` says why).
    """

    label: Label
    differs: bool
    exact: bool
    normalised: bool
    json: bool | None = None  # the same JSON value by the rules; None where neither is JSON
    calls: bool | None = None  # the same calls of tools; None where neither calls any
    structure: bool | None = None  # None where neither is JSON nor calls anything
    at_character: int | None = None
    at_word: int | None = None
    similarity: float | None = None


IntArray = npt.NDArray[np.int64]
NarrowArray = npt.NDArray[np.signedinteger[Any]]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

ABSENT = -1
"""How a packed integer column spells "never happened" or "not known"."""

ColumnMap = Mapping[str, "npt.NDArray[Any] | Sequence[str | None]"]
"""Named columns of one observation: numeric arrays, or texts of which some may be absent."""

LATER = (
    "first_answer_ns", "reasoning_tokens", "cached_tokens", "valid", "left", "tokenless", "connecting_ns",
    "answer_chars", "reasoning_chars", "redundancy_percent", "tool_calls", "ramp", "answer_model",
)  # fmt: skip
"""Columns of requests that runs of earlier versions do not have."""

NARROW: Mapping[str, type[np.signedinteger[Any]]] = MappingProxyType(
    {
        "valid": np.int8,
        "left": np.int8,
        "tokenless": np.int8,
        "ramp": np.int8,
        "redundancy_percent": np.int8,
        "tool_calls": np.int16,
        "answer_chars": np.int32,
        "reasoning_chars": np.int32,
    }
)
"""Integer columns that need fewer than 64 bits, and their type: a million rows of each stay small in memory."""

TEXT_COLUMNS = ("token_source", "finish_reason", "error", "error_detail", "answer_model")
"""Columns of requests that hold texts, of which few differ."""

UNREADABLE = "[invalid]"
"""What lm-eval's extraction gives where it found no answer: the `choice` of an eval item then."""

ACCEPTED_FINISH = frozenset({"stop", "length", "tool_calls"})
"""Finish reasons of a success (docs/metrics.md). `abort` and unknown ones are failures: the text was cut."""


class ErrorClass(StrEnum):
    """Why a request failed. `client` is our own fault and never counts against a server."""

    CONNECT = "connect"
    TLS = "tls"
    TIMEOUT = "timeout"
    HTTP_4XX = "http_4xx"
    HTTP_429 = "http_429"
    HTTP_5XX = "http_5xx"
    STREAM_BROKEN = "stream_broken"
    PROTOCOL = "protocol"
    EMPTY = "empty"
    CLIENT = "client"


class TokenSource(StrEnum):
    """Where a count of output tokens comes from, best first. Events are not tokens: `chunks` is only an estimate."""

    USAGE = "usage"
    CHUNKS = "chunks"


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """Timeline of one request; times in ns since the start of its stage.

    `chunk_ns` are the arrivals of the chunks that carry output (content, reasoning or tool-call text), ascending;
    `first_answer_ns` is the first of them that is not reasoning alone. `end_ns` is the finish event or `[DONE]`, not
    the end of the connection. A failed request has an `error`; it keeps whatever was seen before it failed.

    `reasoning_tokens` are part of `output_tokens`, `cached_tokens` of `input_tokens`, as far as the server tells.
    `valid`: the answer is what its JSON schema or its tools ask for; None when nothing was asked. `left`: the client
    was to break it off, or did, so it says nothing of success. `tokenless`: an embedding or a ranking, which has
    neither output tokens nor a finish reason. `connecting_ns`: how long it waited, before it was sent, for a connection
    of its own to be opened; None when there was one.

    What was said, counted after the stage: `answer_chars` and `reasoning_chars` are the visible characters (no white
    space, no zero-width character) of the answer (with names and arguments of its tool calls) and of its reasoning;
    `redundancy_percent` is how much smaller the end of the text becomes by compression, None for a text too short to
    tell; `tool_calls` is the number of calls; `answer_model` is the name of the model that the answer gives.
    `ramp`: sent while the stage filled up or drained, so it is in no latency, rate or SLO, but in the error rate.
    """

    index: int
    intended_ns: int
    sent_ns: int | None
    chunk_ns: tuple[int, ...]
    end_ns: int | None
    input_tokens: int | None
    output_tokens: int | None
    token_source: TokenSource | None
    finish_reason: str | None
    http_status: int | None
    error: ErrorClass | None
    error_detail: str | None
    reconnects: int = 0
    first_answer_ns: int | None = None
    reasoning_tokens: int | None = None
    cached_tokens: int | None = None
    valid: bool | None = None
    left: bool = False
    tokenless: bool = False
    connecting_ns: int | None = None
    answer_chars: int | None = None
    reasoning_chars: int | None = None
    redundancy_percent: int | None = None
    tool_calls: int | None = None
    ramp: bool = False
    answer_model: str | None = None


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class RequestColumns:
    """The records of one stage of one arm in one block, packed; row i is planned request `index[i]`.

    Integer columns are int64, or the type in `NARROW`, with ABSENT (-1) for None.
    `chunk_ns[chunk_start[i]:chunk_start[i+1]]` are the output chunks of row i, so `chunk_start` has one element more
    than there are rows. `valid`, `left`, `tokenless` and `ramp` are 1 for yes and 0 for no. Stored runs of earlier
    versions lack the columns of `LATER`: those are ABSENT then, and `ramp` is 0.
    """

    index: IntArray
    intended_ns: IntArray
    sent_ns: IntArray
    end_ns: IntArray
    input_tokens: IntArray
    output_tokens: IntArray
    http_status: IntArray
    reconnects: IntArray
    chunk_start: IntArray
    chunk_ns: IntArray
    first_answer_ns: IntArray
    reasoning_tokens: IntArray
    cached_tokens: IntArray
    valid: NarrowArray
    left: NarrowArray
    tokenless: NarrowArray
    connecting_ns: IntArray
    answer_chars: NarrowArray
    reasoning_chars: NarrowArray
    redundancy_percent: NarrowArray
    tool_calls: NarrowArray
    ramp: NarrowArray
    token_source: TextColumn
    finish_reason: TextColumn
    error: TextColumn
    error_detail: TextColumn
    answer_model: TextColumn

    def __post_init__(self) -> None:
        for name in TEXT_COLUMNS:  # from whatever sequence of texts
            object.__setattr__(self, name, TextColumn.of(getattr(self, name)))

    def __len__(self) -> int:
        return len(self.index)

    @classmethod
    def pack(cls, records: Sequence[RequestRecord]) -> RequestColumns:
        """Pack records in order of their index, so that two arms' rows meet."""
        rows = sorted(records, key=lambda r: r.index)
        lengths = [len(r.chunk_ns) for r in rows]
        columns: dict[str, Any] = {}
        for name in (f.name for f in fields(cls)):
            if name == "chunk_start":
                columns[name] = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
            elif name == "chunk_ns":
                columns[name] = np.fromiter(chain.from_iterable([r.chunk_ns for r in rows]), np.int64, sum(lengths))
            elif name in TEXT_COLUMNS:
                columns[name] = TextColumn.of(map(attrgetter(name), rows))
            else:
                columns[name] = _ints(list(map(attrgetter(name), rows)), NARROW.get(name, np.int64))
        return cls(**columns)

    def to_columns(self) -> ColumnMap:
        """The columns by name, for the store."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def from_columns(cls, columns: ColumnMap) -> RequestColumns:
        """The inverse of `to_columns`; raises KeyError when a column is missing that was always there."""
        rows = len(columns["index"])
        found: dict[str, Any] = {}
        for name in (f.name for f in fields(cls)):
            if name in LATER and name not in columns:
                found[name] = _unknown(name, rows)
            elif name in NARROW:
                found[name] = np.asarray(columns[name]).astype(NARROW[name], copy=False)
            else:
                found[name] = columns[name]
        return cls(**found)


@dataclass(frozen=True, slots=True)
class EvalItem:
    """One item of one eval task as one arm answered it. `item_id` is the row's own unique id and the pairing key.

    `score` is 1 or 0 for right or wrong, else the task's own score, of which more is better. `choice` is what the
    answer amounts to: what was read out of it, or the option that was chosen. Items of one `cluster` share a passage, a
    template or a person, so their scores are not independent. `valid` says whether the answer has the form that was
    asked for, where one was.
    """

    item_id: str
    doc_hash: str
    prompt_hash: str
    target_hash: str
    score: float | None  # None when it could not be scored
    answer: str | None
    finish_reason: str | None
    output_tokens: int | None
    latency_ns: int | None
    error: str | None
    choice: str | None = None
    cluster: str | None = None
    input_tokens: int | None = None
    valid: bool | None = None

    @property
    def correct(self) -> bool | None:
        """Whether the item was answered right; None when it could not be scored, or is not simply right or wrong."""
        return bool(self.score) if self.score in (0.0, 1.0) else None


@dataclass(frozen=True, slots=True)
class ShadowItem:
    """One prompt answered by the baseline twice (primary, secondary) and by the candidate once.

    `primary`, `secondary` and `candidate` are SHA-256 digests of the *normalised* answers, None when that call failed
    (then `error` says which and why). The answers themselves are kept only when the suite asks for it.

    The facts and pairs are None where an answer they are about is missing, and all of them in what older versions
    stored; then the digests alone tell what differs. `once`: the baseline was to be asked only once. `judged` is what
    a judge says of the candidate's answer beside the primary's, `judged_itself` of the secondary's. `similarity_error`
    tells why texts that their embeddings could have made one have none; then `differs` says too much of them.
    """

    prompt_id: str
    prompt_sha256: str
    primary: str | None
    secondary: str | None
    candidate: str | None
    primary_finish: str | None
    secondary_finish: str | None
    candidate_finish: str | None
    error: str | None
    prompt_text: str | None = None
    primary_text: str | None = None
    secondary_text: str | None = None
    candidate_text: str | None = None
    stratum: str | None = None
    once: bool | None = None
    primary_facts: AnswerFacts | None = None
    secondary_facts: AnswerFacts | None = None
    candidate_facts: AnswerFacts | None = None
    with_primary: PairFacts | None = None  # the candidate's answer and the primary's
    with_secondary: PairFacts | None = None  # the candidate's answer and the secondary's
    own: PairFacts | None = None  # the secondary's answer and the primary's
    judged: Judged | None = None
    judged_itself: Judged | None = None
    judge_error: str | None = None
    similarity_error: str | None = None

    @property
    def differs_from_primary(self) -> bool:
        """Whether the candidate's answer counts as another; one that is missing does."""
        return _differs(self.with_primary, self.candidate, self.primary)

    @property
    def differs_from_secondary(self) -> bool:
        """The same beside the baseline's second answer."""
        return _differs(self.with_secondary, self.candidate, self.secondary)

    @property
    def differs_itself(self) -> bool:
        """Whether the baseline's two answers count as different."""
        return _differs(self.own, self.secondary, self.primary)


def _differs(pair: PairFacts | None, one: str | None, other: str | None) -> bool:
    """By the rule of the comparison; where nothing was kept of it, by the digests."""
    if one is None or other is None:
        return True
    return pair.differs if pair is not None else one != other


_LATER_FIELDS = frozenset(
    {
        "choice", "cluster", "input_tokens", "valid", "stratum", "once", "judged", "judged_itself", "judge_error",
        "similarity_error",
    }
)  # fmt: skip
_PARTS: Mapping[str, type[AnswerFacts] | type[PairFacts]] = MappingProxyType(
    {
        "primary_facts": AnswerFacts,
        "secondary_facts": AnswerFacts,
        "candidate_facts": AnswerFacts,
        "with_primary": PairFacts,
        "with_secondary": PairFacts,
        "own": PairFacts,
    }
)
_NUMBERS = ("input_tokens", "output_tokens", "latency_ns", "characters", "tokens", "at_character", "at_word")
_TRUTHS = ("valid", "once", "refusal", "differs", "exact", "normalised", "json", "calls", "structure")
_FRACTIONS = ("score", "similarity")
_WORDS: Mapping[str, type[StrEnum]] = MappingProxyType({"label": Label, "judged": Judged, "judged_itself": Judged})


def pack_rows(rows: Sequence[EvalItem] | Sequence[ShadowItem]) -> ColumnMap:
    """Columns of a sequence of eval or shadow rows, for the store. Fractions become float64 with NaN for None.

    What a row says of one answer or pair becomes columns like `own.differs`. A field that came later has no column
    where it says nothing, so that rows without it keep their bytes.
    """
    if not rows:
        return {}
    columns: dict[str, Any] = {}
    for f in fields(rows[0]):
        values = [getattr(row, f.name) for row in rows]
        for part in fields(_PARTS[f.name]) if f.name in _PARTS else ():
            inner = [None if value is None else getattr(value, part.name) for value in values]
            if any(value is not None for value in inner):
                columns[f"{f.name}.{part.name}"] = _column(part.name, inner)
        if f.name not in _PARTS and (f.name not in _LATER_FIELDS or any(value is not None for value in values)):
            columns[f.name] = _column(f.name, values)
    return columns


def unpack_eval_items(columns: ColumnMap) -> tuple[EvalItem, ...]:
    """The inverse of `pack_rows` for eval items."""
    return tuple(EvalItem(**row) for row in _rows(columns))


def unpack_shadow_items(columns: ColumnMap) -> tuple[ShadowItem, ...]:
    """The inverse of `pack_rows` for shadow items."""
    return tuple(ShadowItem(**_with_parts(row)) for row in _rows(columns))


def _with_parts(row: dict[str, Any]) -> dict[str, Any]:
    """A row whose columns like `own.differs` are gathered into what they are about; without values it was None."""
    gathered: dict[str, Any] = {}
    for name, value in row.items():
        whole, dot, part = name.partition(".")
        if not dot:
            gathered[name] = value
        elif value is not None:
            gathered.setdefault(whole, {})[part] = value
    return {name: _PARTS[name](**value) if name in _PARTS else value for name, value in gathered.items()}


def _column(name: str, values: list[Any]) -> Any:
    if name in _FRACTIONS:
        return np.array([np.nan if v is None else v for v in values], dtype=np.float64)
    return _ints(values) if name in _NUMBERS or name in _TRUTHS else tuple(values)


def _rows(columns: ColumnMap) -> list[dict[str, Any]]:
    plain: dict[str, list[Any]] = {}
    for name, column in columns.items():
        kind = name.rpartition(".")[2]
        if not isinstance(column, np.ndarray):
            word = _WORDS.get(kind)
            plain[name] = [v if v is None or word is None else word(v) for v in column]
        elif column.dtype.kind == "f":
            plain[name] = [None if np.isnan(v) else float(v) for v in column]
        elif kind in _TRUTHS:
            plain[name] = [None if v == ABSENT else bool(v) for v in column]
        else:
            plain[name] = [None if v == ABSENT else int(v) for v in column]
    names = list(plain)
    return [dict(zip(names, values, strict=True)) for values in zip(*plain.values(), strict=True)]


def _unknown(name: str, rows: int) -> Any:
    """A column of rows of which nothing is known; nothing was marked as a ramp before there was such a mark."""
    if name in TEXT_COLUMNS:
        return TextColumn.of([None] * rows)
    return np.full(rows, 0 if name == "ramp" else ABSENT, dtype=NARROW.get(name, np.int64))


def _ints(values: Sequence[int | None], dtype: npt.DTypeLike = np.int64) -> Any:
    return np.array([ABSENT if v is None else v for v in values], dtype=dtype)


Way = Literal["echo", "n_probs", "cut"]
"""How a server is brought to tell: the probabilities of the text itself (`echo`), llama.cpp's own endpoint
(`n_probs`), or a completion of one token after the text cut off at a position (`cut`)."""


@dataclass(frozen=True, slots=True)
class DivergenceItem:
    """One position of one piece of a fixed text, as both arms saw it: everything before it was given, not generated.

    `position` is the number of the token in the piece; where a text was cut (`cut`) the number of characters before it.
    `kld` is KL(baseline || candidate) of the next token in nats, or, where `bound`, a lower bound of it. `same_top1`:
    both hold the same token for the most probable. `shared` is how many of the tokens that one listed the other listed
    too. `baseline_ln` and `candidate_ln` are ln p of the token that stands in the text; None where the way cannot tell
    it. `floor_*` are the same of the baseline against itself, asked once more; None where it was not.
    """

    text_id: str
    piece: int
    position: int
    kld: float
    same_top1: bool
    bound: bool
    shared: int
    baseline_ln: float | None
    candidate_ln: float | None
    floor_kld: float | None = None
    floor_same_top1: bool | None = None

    @property
    def place(self) -> tuple[str, int, int]:
        """What it is paired by between two runs."""
        return self.text_id, self.piece, self.position


@dataclass(frozen=True, slots=True)
class DivergenceObservation:
    """The reading of the fixed texts by both arms. `fault` is set when a part of it failed; the rest is kept.

    `way` is None when no way was found. `top` is how many tokens were asked for at each position, and all of the
    vocabulary where that is known to be no more (`whole`). `passed_over` says why a stronger way was not taken.
    """

    items: tuple[DivergenceItem, ...]
    expected_n: int
    fault: str | None
    way: Way | None
    top: int
    whole: bool
    passed_over: tuple[str, ...] = ()


_FLOATS = ("kld", "baseline_ln", "candidate_ln", "floor_kld")
_TEXTS = ("text_id",)
_LATER = ("floor_kld", "floor_same_top1")  # no column where the baseline was asked once


def pack_divergence(items: Sequence[DivergenceItem]) -> ColumnMap:
    """Columns by name, for the store: None is NaN in a column of floats and ABSENT in one of integers."""
    columns: dict[str, Any] = {}
    for field in fields(DivergenceItem) if items else ():
        values = [getattr(item, field.name) for item in items]
        if field.name in _LATER and all(value is None for value in values):
            continue
        if field.name in _TEXTS:
            columns[field.name] = tuple(values)
        elif field.name in _FLOATS:
            columns[field.name] = np.array([np.nan if v is None else v for v in values], dtype=np.float64)
        else:
            columns[field.name] = np.array([ABSENT if v is None else int(v) for v in values], dtype=np.int64)
    return columns


def unpack_divergence(columns: ColumnMap) -> tuple[DivergenceItem, ...]:
    """The inverse of `pack_divergence`."""
    plain = {name: _values(name, column) for name, column in columns.items()}
    rows = zip(*plain.values(), strict=True)
    return tuple(DivergenceItem(**dict(zip(plain, row, strict=True))) for row in rows)


def _values(name: str, column: Any) -> list[Any]:
    if name in _TEXTS:
        return list(column)
    if name in _FLOATS:
        return [None if np.isnan(value) else float(value) for value in column]
    known = [None if value == ABSENT else int(value) for value in column]
    return [None if v is None else bool(v) for v in known] if name in _DIVERGENCE_TRUTHS else known


_DIVERGENCE_TRUTHS = ("same_top1", "bound", "floor_same_top1")


def divergence_meta(seen: DivergenceObservation) -> dict[str, object]:
    """Everything of an observation but its items, as plain JSON."""
    return {
        "expected_n": seen.expected_n,
        "fault": seen.fault,
        "way": seen.way,
        "top": seen.top,
        "whole": seen.whole,
        "passed_over": list(seen.passed_over),
    }


def divergence_of(items: tuple[DivergenceItem, ...], meta: Mapping[str, Any]) -> DivergenceObservation:
    """The inverse of `divergence_meta`, with the items put back."""
    return DivergenceObservation(items, **{**meta, "passed_over": tuple(meta["passed_over"])})
