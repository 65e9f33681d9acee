"""What was seen: one record per request, eval item and shadow prompt, and their packing into columns.

Times are integer nanoseconds since the start of the stage on a monotonic clock. In a record, None means "it never
happened" or "not known"; in a packed integer column the same is -1 (`ABSENT`). Columns are what the store keeps and
what statistics read; a record is what the load engine makes, one at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

ABSENT = -1
"""How a packed integer column spells "never happened" or "not known"."""

ColumnMap = Mapping[str, "npt.NDArray[Any] | Sequence[str | None]"]
"""Named columns of one observation: numeric arrays, or texts of which some may be absent."""

LATER = ("first_answer_ns", "reasoning_tokens", "cached_tokens", "valid", "left", "tokenless")
"""Columns of requests that were not kept from the beginning."""

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
    neither output tokens nor a finish reason.
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


@dataclass(frozen=True, slots=True, eq=False)
class RequestColumns:
    """The records of one stage of one arm in one block, packed; row i is planned request `index[i]`.

    Integer columns are int64 with ABSENT (-1) for None. `chunk_ns[chunk_start[i]:chunk_start[i+1]]` are the output
    chunks of row i, so `chunk_start` has one element more than there are rows. `valid`, `left` and `tokenless` are 1
    for yes and 0 for no. The columns of `LATER` are missing from what older versions stored, and ABSENT then.
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
    valid: IntArray
    left: IntArray
    tokenless: IntArray
    token_source: tuple[str | None, ...]
    finish_reason: tuple[str | None, ...]
    error: tuple[str | None, ...]
    error_detail: tuple[str | None, ...]

    def __len__(self) -> int:
        return len(self.index)

    @classmethod
    def pack(cls, records: Sequence[RequestRecord]) -> RequestColumns:
        """Pack records in order of their index, so that two arms' rows meet."""
        rows = sorted(records, key=lambda r: r.index)
        lengths = [len(r.chunk_ns) for r in rows]
        return cls(
            index=_ints([r.index for r in rows]),
            intended_ns=_ints([r.intended_ns for r in rows]),
            sent_ns=_ints([r.sent_ns for r in rows]),
            end_ns=_ints([r.end_ns for r in rows]),
            input_tokens=_ints([r.input_tokens for r in rows]),
            output_tokens=_ints([r.output_tokens for r in rows]),
            http_status=_ints([r.http_status for r in rows]),
            reconnects=_ints([r.reconnects for r in rows]),
            chunk_start=np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64),
            chunk_ns=_ints([ns for r in rows for ns in r.chunk_ns]),
            first_answer_ns=_ints([r.first_answer_ns for r in rows]),
            reasoning_tokens=_ints([r.reasoning_tokens for r in rows]),
            cached_tokens=_ints([r.cached_tokens for r in rows]),
            valid=_ints([r.valid for r in rows]),
            left=_ints([r.left for r in rows]),
            tokenless=_ints([r.tokenless for r in rows]),
            token_source=tuple(r.token_source for r in rows),
            finish_reason=tuple(r.finish_reason for r in rows),
            error=tuple(r.error for r in rows),
            error_detail=tuple(r.error_detail for r in rows),
        )

    def to_columns(self) -> ColumnMap:
        """The columns by name, for the store."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def from_columns(cls, columns: ColumnMap) -> RequestColumns:
        """The inverse of `to_columns`; raises KeyError when a column is missing that was always there."""
        rows = len(columns["index"])
        unknown = {name: _ints([None] * rows) for name in LATER if name not in columns}
        there = {f.name: columns[f.name] for f in fields(cls) if f.name not in unknown}
        return cls(**there, **unknown)  # type: ignore[arg-type]  # typed by name


@dataclass(frozen=True, slots=True)
class EvalItem:
    """One item of one eval task as one arm answered it. `item_id` is the row's own unique id and the pairing key."""

    item_id: str
    doc_hash: str
    prompt_hash: str
    target_hash: str
    score: float | None  # 1.0 right, 0.0 wrong, None when it could not be scored
    answer: str | None
    finish_reason: str | None
    output_tokens: int | None
    latency_ns: int | None
    error: str | None

    @property
    def correct(self) -> bool | None:
        """Whether the item was answered right; None when it could not be scored."""
        return None if self.score is None else self.score >= 1.0


@dataclass(frozen=True, slots=True)
class ShadowItem:
    """One prompt answered by the baseline twice (primary, secondary) and by the candidate once.

    `primary`, `secondary` and `candidate` are SHA-256 digests of the *normalised* answers, None when that call failed
    (then `error` says which and why). The answers themselves are kept only when the suite asks for it.
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


def pack_rows(rows: Sequence[EvalItem] | Sequence[ShadowItem]) -> ColumnMap:
    """Columns of a sequence of eval or shadow rows, for the store. Scores become float64 with NaN for None."""
    if not rows:
        return {}
    columns: dict[str, Any] = {}
    for f in fields(rows[0]):
        values = [getattr(row, f.name) for row in rows]
        if f.name == "score":
            columns[f.name] = np.array([np.nan if v is None else v for v in values], dtype=np.float64)
        elif f.name in ("output_tokens", "latency_ns"):
            columns[f.name] = _ints(values)
        else:
            columns[f.name] = tuple(values)
    return columns


def unpack_eval_items(columns: ColumnMap) -> tuple[EvalItem, ...]:
    """The inverse of `pack_rows` for eval items."""
    return tuple(EvalItem(**row) for row in _rows(columns))


def unpack_shadow_items(columns: ColumnMap) -> tuple[ShadowItem, ...]:
    """The inverse of `pack_rows` for shadow items."""
    return tuple(ShadowItem(**row) for row in _rows(columns))


def _rows(columns: ColumnMap) -> list[dict[str, Any]]:
    plain: dict[str, list[Any]] = {}
    for name, column in columns.items():
        if not isinstance(column, np.ndarray):
            plain[name] = list(column)
        elif column.dtype.kind == "f":
            plain[name] = [None if np.isnan(v) else float(v) for v in column]
        else:
            plain[name] = [None if v == ABSENT else int(v) for v in column]
    names = list(plain)
    return [dict(zip(names, values, strict=True)) for values in zip(*plain.values(), strict=True)]


def _ints(values: Sequence[int | None]) -> IntArray:
    return np.array([ABSENT if v is None else v for v in values], dtype=np.int64)
