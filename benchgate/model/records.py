"""Observed records, and the columns that they are packed into for the store.

There is one record per request, eval item, shadow prompt and position of a fixed text. Times are integer nanoseconds
since the start of the stage on a monotonic clock. In a record, None means "it never happened" or "not known"; a packed
integer column has -1 (`ABSENT`) for it. Statistics read columns; the load engine makes records one at a time. Facts
about answers, shadow pairs and token probabilities are kept without any text that a model or a user wrote. A text
column has few distinct values: each text once, and an index per row.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from itertools import chain
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Literal, TypeVar, overload

import numpy as np
import numpy.typing as npt

from benchgate.model.text_anomalies import TextAnomalies

IntArray = npt.NDArray[np.int64]
NarrowArray = npt.NDArray[np.signedinteger[Any]]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
ABSENT = -1  # value of a packed integer column for "never happened" or "not known"
ColumnMap = Mapping[str, "npt.NDArray[Any] | Sequence[str | None]"]
"""Named columns of one observation: numeric arrays, or texts that may be None."""
OPTIONAL_COLUMNS = (
    "first_answer_ns", "reasoning_tokens", "cached_tokens", "valid", "left", "tokenless", "connecting_ns",
    "answer_chars", "reasoning_chars", "redundancy_percent", "tool_calls", "ramp", "answer_model",
    "session", "region", "first_visible",
)  # fmt: skip
"""Columns of requests missing in runs of earlier versions."""
NARROW_TYPES: Mapping[str, type[np.signedinteger[Any]]] = MappingProxyType(
    {
        "valid": np.int8,
        "left": np.int8,
        "tokenless": np.int8,
        "ramp": np.int8,
        "first_visible": np.int8,
        "redundancy_percent": np.int8,
        "tool_calls": np.int16,
        "answer_chars": np.int32,
        "reasoning_chars": np.int32,
    }
)
"""Types of integer columns with fewer than 64 bits, to save memory."""
TEXT_COLUMNS = ("token_source", "finish_reason", "error", "error_detail", "answer_model", "region")
"""Text columns of requests, with few distinct values."""
INVALID_CHOICE = "[invalid]"  # `choice` of an eval item out of which extraction read no answer
ACCEPTED_FINISH = frozenset({"stop", "length", "tool_calls"})
"""Finish reasons of a success (docs/reference/metrics.md). `abort` and unknown ones are failures: the text was cut."""
NO_VERDICT = "the judge did not reply with a verdict in the form it was asked for"
UNFIT_JUDGE = "the judge does not find nonsense worse than an answer"
"""Reasons for a missing verdict although the judge replied; any other reason is that it did not reply."""


class TextColumn(Sequence[str | None]):
    """Sequence of texts or None: `words` are the distinct ones in order of first row, `codes` the index of each row.

    It equals any sequence of the same texts. A million rows of an error class take 4 MB and no Python object each.
    """

    __slots__ = ("codes", "words")

    def __init__(self, words: tuple[str | None, ...], codes: npt.NDArray[np.int32]) -> None:
        self.words = words
        self.codes = codes

    @classmethod
    def of(cls, texts: Iterable[str | None]) -> TextColumn:
        """Build the column of these texts."""
        if isinstance(texts, TextColumn):
            return texts
        places: dict[str | None, int] = {}
        codes = np.fromiter((places.setdefault(text, len(places)) for text in texts), dtype=np.int32)
        return cls(tuple(places), codes)

    @classmethod
    def joined(cls, parts: Sequence[TextColumn]) -> TextColumn:
        """Concatenate columns."""
        builder = TextBuilder()
        for part in parts:
            builder.extend(part)
        return builder.column()

    def __len__(self) -> int:
        return len(self.codes)

    @overload
    def __getitem__(self, row: int) -> str | None: ...
    @overload
    def __getitem__(self, row: slice) -> TextColumn: ...
    def __getitem__(self, row: int | slice) -> str | TextColumn | None:
        if isinstance(row, slice):
            return TextColumn(self.words, self.codes[row])
        return self.words[int(self.codes[row])]

    def __iter__(self) -> Iterator[str | None]:
        return map(self.words.__getitem__, self.codes.tolist())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str) or not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(one == two for one, two in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # equal to tuples and lists, which hash differently or not at all

    def __repr__(self) -> str:
        return f"TextColumn.of({list(self)!r})"

    def take(self, rows: npt.NDArray[np.int64]) -> TextColumn:
        """Return these rows, in this order."""
        return TextColumn(self.words, self.codes[rows])

    def but(self, rows: npt.NDArray[np.bool_], text: str | None) -> TextColumn:
        """Return a copy with another text in these rows."""
        words = self.words if text in self.words else (*self.words, text)
        return TextColumn(words, np.where(rows, np.int32(words.index(text)), self.codes))

    def are(self, texts: Collection[str | None]) -> npt.NDArray[np.bool_]:
        """Return which rows have one of these texts."""
        hits = np.array([word in texts for word in self.words], dtype=np.bool_)
        return hits[self.codes] if len(self.codes) else np.empty(0, dtype=np.bool_)

    def counts(self) -> dict[str | None, int]:
        """Return the number of rows of each text, for texts that have any."""
        found = np.bincount(self.codes, minlength=len(self.words))
        return {word: int(n) for word, n in zip(self.words, found.tolist(), strict=True) if n}


class TextBuilder:
    """Builder of a column from parts; it needs about as much memory as the column."""

    __slots__ = ("_codes", "_places")

    def __init__(self) -> None:
        self._codes = array("i")
        self._places: dict[str | None, int] = {}

    def extend(self, texts: TextColumn) -> None:
        """Append rows."""
        codes = np.array([self._places.setdefault(word, len(self._places)) for word in texts.words], dtype=np.int32)
        self._codes.frombytes(codes[texts.codes].tobytes())

    def column(self) -> TextColumn:
        """Return the rows. The builder cannot be used again: the column takes over its memory."""
        codes = np.frombuffer(self._codes, dtype=np.int32) if self._codes else np.empty(0, dtype=np.int32)
        return TextColumn(tuple(self._places), codes)


def _ints(values: Sequence[int | None], dtype: npt.DTypeLike = np.int64) -> Any:
    return np.array([ABSENT if v is None else v for v in values], dtype=dtype)


class ErrorClass(StrEnum):
    """Cause of a failed request. `client` is the load generator's fault and never counts against a server."""

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
    """Source of the output token count, best first. Events are not tokens: `chunks` is only an estimate."""

    USAGE = "usage"
    CHUNKS = "chunks"


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """Timeline of one request; times in ns since the start of its stage. A failed one keeps everything seen before."""

    index: int
    intended_ns: int
    sent_ns: int | None
    chunk_ns: tuple[int, ...]  # arrivals of chunks with output (content, reasoning, tool call), ascending
    end_ns: int | None  # finish event or `[DONE]`, not the end of the connection
    input_tokens: int | None
    output_tokens: int | None
    token_source: TokenSource | None
    finish_reason: str | None
    http_status: int | None
    error: ErrorClass | None
    error_detail: str | None
    reconnects: int = 0
    first_answer_ns: int | None = None  # first chunk that is not reasoning alone
    reasoning_tokens: int | None = None  # part of `output_tokens`, as far as reported
    cached_tokens: int | None = None  # part of `input_tokens`, as far as reported
    valid: bool | None = None  # matches its JSON schema or tools; None if neither was given
    left: bool = False  # the client was to cancel it, so it says nothing of success
    tokenless: bool = False  # an embedding or a ranking, without output tokens and finish reason
    connecting_ns: int | None = None  # wait for a new connection before sending; None if one was open
    answer_chars: int | None = None  # visible ones, with names and arguments of tool calls; after the stage
    reasoning_chars: int | None = None  # visible ones; after the stage
    redundancy_percent: int | None = None  # saving of compressing the end; None if too short
    tool_calls: int | None = None
    ramp: bool = False  # sent while the stage filled or drained: in the error rate, but no latency, rate, SLO
    answer_model: str | None = None  # model named in the answer
    session: int | None = None  # number of the first request of its conversation or agent session
    region: str | None = None  # where it was sent from; None for a load without regions
    first_visible: bool | None = None  # its first output chunk has a visible character; None if it has no text


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class RequestColumns:
    """Packed records of one stage of one side in one block; row i is planned request `index[i]`.

    Integer columns are int64, or the type in `NARROW_TYPES`, with ABSENT (-1) for None.
    `chunk_ns[chunk_start[i]:chunk_start[i+1]]` are the output chunks of row i, so `chunk_start` has one element more
    than there are rows. `valid`, `left`, `tokenless`, `ramp` and `first_visible` are 1 for yes and 0 for no. Columns of
    `OPTIONAL_COLUMNS` missing in runs of earlier versions are ABSENT, `ramp` is 0.
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
    first_visible: NarrowArray
    session: IntArray
    token_source: TextColumn
    finish_reason: TextColumn
    error: TextColumn
    error_detail: TextColumn
    answer_model: TextColumn
    region: TextColumn

    def __post_init__(self) -> None:
        for name in TEXT_COLUMNS:
            object.__setattr__(self, name, TextColumn.of(getattr(self, name)))

    def __len__(self) -> int:
        return len(self.index)

    @classmethod
    def pack(cls, records: Sequence[RequestRecord]) -> RequestColumns:
        """Pack records in order of index, so that rows of baseline and candidate correspond."""
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
                columns[name] = _ints(list(map(attrgetter(name), rows)), NARROW_TYPES.get(name, np.int64))
        return cls(**columns)

    def to_columns(self) -> ColumnMap:
        """Return the columns by name, for the store; `region` only where a request has one."""
        columns = {f.name: getattr(self, f.name) for f in fields(self)}
        if self.region.words in ((), (None,)):
            del columns["region"]
        return columns

    @classmethod
    def from_columns(cls, columns: ColumnMap) -> RequestColumns:
        """Read what `to_columns` wrote.

        Raises KeyError when a column that always existed is missing, ValueError for columns that do not fit together.
        """
        rows = len(columns["index"])
        found: dict[str, Any] = {}
        for name in (f.name for f in fields(cls)):
            if name in OPTIONAL_COLUMNS and name not in columns:
                unknown = 0 if name == "ramp" else ABSENT
                found[name] = np.full(rows, unknown, dtype=NARROW_TYPES.get(name, np.int64))
                if name in TEXT_COLUMNS:
                    found[name] = TextColumn((None,) if rows else (), np.zeros(rows, dtype=np.int32))
            elif name in NARROW_TYPES:
                found[name] = np.asarray(columns[name]).astype(NARROW_TYPES[name], copy=False)
            else:
                found[name] = columns[name]
        starts, chunks = found["chunk_start"], found["chunk_ns"]
        lengths = {len(column) for name, column in found.items() if name not in ("chunk_start", "chunk_ns")}
        if lengths != {rows} or len(starts) != rows + 1 or starts[0] != 0 or starts[-1] != len(chunks):
            raise ValueError("the columns of its requests have different lengths")
        if (np.diff(starts) < 0).any():
            raise ValueError("the chunks of its requests overlap")
        return cls(**found)


_LARGEST_SCORE = 1e50  # the fourth power of a difference of two must be finite


def finite_score(value: object) -> float | None:
    """Return a number up to 1e50 or a truth value as a score; None for anything else."""
    try:
        number = float(value) if isinstance(value, bool | int | float) else math.nan
    except OverflowError:  # a whole number with more digits than any float has
        return None
    return number if abs(number) <= _LARGEST_SCORE else None


@dataclass(frozen=True, slots=True)
class EvalItem:
    """Answer of one side to one item of an eval task."""

    item_id: str  # the row's unique id and the pairing key
    doc_hash: str
    prompt_hash: str
    target_hash: str
    score: float | None  # None when it could not be scored
    answer: str | None
    finish_reason: str | None
    output_tokens: int | None
    latency_ns: int | None
    error: str | None
    choice: str | None = None  # extracted answer or chosen option
    cluster: str | None = None  # items of one passage, template or person: their scores are not independent
    input_tokens: int | None = None
    valid: bool | None = None  # the answer has the required form, if one was

    @property
    def correct(self) -> bool | None:
        """Return True if the answer is right; None when it could not be scored or the score is not 0 or 1."""
        return bool(self.score) if self.score in (0.0, 1.0) else None


@dataclass(frozen=True, slots=True)
class VerifiedAnswer:
    """Answer of one side to an eval item that was sent among the requests of a stage, not yet scored."""

    task: str
    item_id: str
    answer: str | None = None  # None with an `error`
    finish_reason: str | None = None
    output_tokens: int | None = None
    input_tokens: int | None = None
    latency_ns: int | None = None
    error: str | None = None


class AnswerAgreement(StrEnum):
    """Agreement of two answers, closest first."""

    EXACT = "exact"  # character by character
    NORMALISED = "normalised"  # by the rules of the comparison: layout, order of keys, tolerances
    STRUCTURE = "same-structure"  # JSON of one shape, or calls of the same tools, with other values
    SEMANTIC = "semantic"  # texts with similar embeddings
    DIFFERENT = "different"


class JudgeVerdict(StrEnum):
    """Judge's verdict on an answer compared with the primary's, from both positions."""

    WIN = "win"  # better, both times
    LOSS = "loss"  # worse, both times
    TIE = "tie"  # as good, at least once
    INCONSISTENT = "inconsistent"  # always the first, or always the second one, was better
    MISSING = "missing"  # no reply, or one in another form


@dataclass(frozen=True, slots=True)
class AnswerFacts:
    """Facts about one answer."""

    characters: int  # of its text alone: 0 for tool calls only
    latency_ns: int  # from the send to the last byte
    refusal: bool
    tokens: int | None = None  # by the server's own count
    valid: bool | None = None  # has the requested form; None if none was required, or a call only offered
    looped: bool | None = None  # this and the next three: `TextAnomalies`; None without text, and in older runs
    replaced: bool | None = None
    script: str | None = None
    language: str | None = None

    @property
    def anomalies(self) -> TextAnomalies | None:
        """Return the anomalies of its text; None if they were not looked for."""
        if self.looped is None or self.replaced is None:
            return None
        return TextAnomalies(self.looped, self.replaced, self.script, self.language)


@dataclass(frozen=True, slots=True)
class PairFacts:
    """Comparison of two answers to one prompt. `differs` counts, by the suite's rule; the other fields explain it."""

    label: AnswerAgreement
    differs: bool
    exact: bool
    normalised: bool
    json: bool | None = None  # the same JSON value by the rules; None if neither is JSON
    calls: bool | None = None  # the same tool calls; None if neither has any
    structure: bool | None = None  # None if neither is JSON nor has tool calls
    at_character: int | None = None  # first difference of their texts, from 0; None if there is none
    at_word: int | None = None  # likewise
    similarity: float | None = None  # cosine of their embeddings; None if not requested or not available


@dataclass(frozen=True, slots=True)
class ShadowItem:
    """Prompt answered by the baseline twice (primary, secondary) and by the candidate once."""

    prompt_id: str
    prompt_sha256: str
    primary: str | None  # SHA-256 of the *normalised* answer; None when the call failed: see `error`
    secondary: str | None  # likewise
    candidate: str | None  # likewise
    primary_finish: str | None
    secondary_finish: str | None
    candidate_finish: str | None
    error: str | None
    prompt_text: str | None = None  # texts are kept only if the suite wants them
    primary_text: str | None = None
    secondary_text: str | None = None
    candidate_text: str | None = None
    stratum: str | None = None
    once: bool | None = None  # the baseline got it only once on purpose
    primary_facts: AnswerFacts | None = None  # None without an answer, and in older runs: digests decide
    secondary_facts: AnswerFacts | None = None
    candidate_facts: AnswerFacts | None = None
    with_primary: PairFacts | None = None  # the candidate's answer and the primary's
    with_secondary: PairFacts | None = None  # the candidate's answer and the secondary's
    own: PairFacts | None = None  # the secondary's answer and the primary's
    judged: JudgeVerdict | None = None  # the candidate's answer compared with the primary's
    judged_itself: JudgeVerdict | None = None  # the secondary's answer compared with the primary's
    judge_error: str | None = None
    similarity_error: str | None = None  # why embeddings are missing: `differs` is then too high

    @property
    def differs_from_primary(self) -> bool:
        """Return True if the candidate's answer differs from the primary's or one is missing."""
        return _differs(self.with_primary, self.candidate, self.primary)

    @property
    def differs_from_secondary(self) -> bool:
        """Return True if the candidate's answer differs from the secondary's or one is missing."""
        return _differs(self.with_secondary, self.candidate, self.secondary)

    @property
    def differs_itself(self) -> bool:
        """Return True if the baseline's two answers differ or one is missing."""
        return _differs(self.own, self.secondary, self.primary)


def _differs(pair: PairFacts | None, one: str | None, other: str | None) -> bool:
    """Compare by the suite's rule, else by digests."""
    if one is None or other is None:
        return True
    return pair.differs if pair is not None else one != other


ProbabilitySource = Literal["echo", "n_probs", "cut"]
"""Source of token probabilities: those of the echoed text (`echo`), llama.cpp's own endpoint (`n_probs`), or a
one-token completion of the text cut off at a position (`cut`)."""


@dataclass(frozen=True, slots=True)
class DivergenceItem:
    """Position in one piece of a fixed text, read by both sides; the text before it was given, not generated."""

    text_id: str
    piece: int
    position: int  # number of the token in the piece; for `cut` the number of characters before it
    kld: float  # KL(baseline || candidate) of the next token in nats, or a lower bound if `bound`
    same_top1: bool  # both have the same most probable token
    bound: bool
    shared: int  # tokens listed by both
    baseline_ln: float | None  # ln p of the token in the text; None if the source does not give it
    candidate_ln: float | None
    floor_kld: float | None = None  # `floor_*`: the baseline with itself in a repeated request
    floor_same_top1: bool | None = None

    @property
    def place(self) -> tuple[str, int, int]:
        """Return the key that pairs items of two runs."""
        return self.text_id, self.piece, self.position


@dataclass(frozen=True, slots=True)
class DivergenceObservation:
    """Reading of the fixed texts by both sides."""

    items: tuple[DivergenceItem, ...]
    expected_n: int
    fault: str | None  # a part failed; the other items are kept
    way: ProbabilitySource | None  # None when no source was found
    top: int  # tokens requested at each position
    whole: bool  # `top` is known to be the whole vocabulary
    passed_over: tuple[str, ...] = ()  # why better sources were not used


def divergence_to_json(seen: DivergenceObservation) -> dict[str, object]:
    """Return everything of an observation but its items, as plain JSON."""
    meta = {field.name: getattr(seen, field.name) for field in fields(seen) if field.name != "items"}
    return {**meta, "passed_over": list(seen.passed_over)}


_LATER_FIELDS = frozenset(
    {
        "choice", "cluster", "input_tokens", "valid", "stratum", "once", "judged", "judged_itself", "judge_error",
        "similarity_error", "floor_kld", "floor_same_top1",
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
_NUMBERS = (
    "input_tokens", "output_tokens", "latency_ns", "characters", "tokens", "at_character", "at_word", "piece",
    "position", "shared",
)  # fmt: skip
_TRUTHS = (
    "valid", "once", "refusal", "differs", "exact", "normalised", "json", "calls", "structure", "same_top1", "bound",
    "floor_same_top1", "looped", "replaced",
)  # fmt: skip
_FRACTIONS = ("score", "similarity", "kld", "baseline_ln", "candidate_ln", "floor_kld")
_WORDS: Mapping[str, type[StrEnum]] = MappingProxyType(
    {"label": AnswerAgreement, "judged": JudgeVerdict, "judged_itself": JudgeVerdict}
)
_Item = TypeVar("_Item", EvalItem, ShadowItem, DivergenceItem)


def pack_rows(rows: Sequence[EvalItem] | Sequence[ShadowItem] | Sequence[DivergenceItem]) -> ColumnMap:
    """Pack eval, shadow or divergence rows into columns; fractions become float64 with NaN for None.

    Facts about an answer or a pair become columns like `own.differs`. A field of a later version has no column if no
    row has a value, so that rows without it keep their bytes.
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


def unpack_rows(kind: type[_Item], columns: ColumnMap) -> tuple[_Item, ...]:
    """Unpack rows of `pack_rows`. Columns like `own.differs` become objects, None where they have no values."""
    plain = {name: _values(name.rpartition(".")[2], column) for name, column in columns.items()}
    for whole, part in _PARTS.items():
        if whole in plain:
            raise ValueError(f"found a column {whole}; expected one for each of its parts")
        inner = {name.partition(".")[2]: plain.pop(name) for name in columns if name.startswith(f"{whole}.")}
        if inner:
            plain[whole] = [_part(part, inner, values) for values in zip(*inner.values(), strict=True)]
    return tuple(kind(**dict(zip(plain, values, strict=True))) for values in zip(*plain.values(), strict=True))


def _part(kind: type[Any], names: Iterable[str], values: Iterable[Any]) -> Any:
    known = {name: value for name, value in zip(names, values, strict=True) if value is not None}
    return kind(**known) if known else None


def _column(name: str, values: list[Any]) -> Any:
    if name in _FRACTIONS:
        return np.array([np.nan if v is None else v for v in values], dtype=np.float64)
    return _ints(values) if name in _NUMBERS or name in _TRUTHS else tuple(values)


def _values(kind: str, column: Any) -> list[Any]:
    if not isinstance(column, np.ndarray):
        word = _WORDS.get(kind)
        return list(column) if word is None else [v if v is None else word(v) for v in column]
    if column.ndim != 1 or column.dtype.kind not in "if":
        raise ValueError(f"the column {kind} has {column.dtype} of {column.ndim} dimensions, not a row of numbers")
    values = column.tolist()
    if column.dtype.kind == "f":
        return [None if v != v else v for v in values]
    if kind in _TRUTHS:
        return [None if v == ABSENT else bool(v) for v in values]
    return [None if v == ABSENT else v for v in values]
