"""Records into columns one at a time, so that a million of them never stand in memory as a million objects."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from benchgate.model.records import ABSENT, IntArray, RequestColumns, RequestRecord
from benchgate.model.text_column import TextBuilder, TextColumn

_BLOCK_ROWS = 65536


class ColumnBuilder:
    """Takes records in any order; memory is about that of the columns it makes."""

    def __init__(self) -> None:
        self._index, self._intended_ns, self._sent_ns, self._end_ns = _column(), _column(), _column(), _column()
        self._input_tokens, self._output_tokens = _column(), _column()
        self._http_status, self._reconnects = _column(), _column()
        self._chunk_start, self._chunk_ns = array("q", [0]), _column()
        self._first_answer_ns, self._reasoning_tokens, self._cached_tokens = _column(), _column(), _column()
        self._valid, self._left, self._tokenless = _column(), _column(), _column()
        self._token_source, self._finish_reason = TextBuilder(), TextBuilder()
        self._error, self._error_detail = TextBuilder(), TextBuilder()

    def add(self, record: RequestRecord) -> None:
        """Add one row."""
        self._index.append(record.index)
        self._intended_ns.append(record.intended_ns)
        self._sent_ns.append(_or_absent(record.sent_ns))
        self._end_ns.append(_or_absent(record.end_ns))
        self._input_tokens.append(_or_absent(record.input_tokens))
        self._output_tokens.append(_or_absent(record.output_tokens))
        self._http_status.append(_or_absent(record.http_status))
        self._reconnects.append(record.reconnects)
        self._chunk_ns.extend(record.chunk_ns)
        self._chunk_start.append(len(self._chunk_ns))
        self._first_answer_ns.append(_or_absent(record.first_answer_ns))
        self._reasoning_tokens.append(_or_absent(record.reasoning_tokens))
        self._cached_tokens.append(_or_absent(record.cached_tokens))
        self._valid.append(_or_absent(record.valid))
        self._left.append(record.left)
        self._tokenless.append(record.tokenless)
        self._token_source.add(record.token_source)
        self._error.add(record.error)
        self._finish_reason.add(record.finish_reason)
        self._error_detail.add(record.error_detail)

    def columns(self) -> RequestColumns:
        """The rows in order of their index. The builder is spent: its memory is theirs."""
        return in_order(
            RequestColumns(
                index=_array(self._index),
                intended_ns=_array(self._intended_ns),
                sent_ns=_array(self._sent_ns),
                end_ns=_array(self._end_ns),
                input_tokens=_array(self._input_tokens),
                output_tokens=_array(self._output_tokens),
                http_status=_array(self._http_status),
                reconnects=_array(self._reconnects),
                chunk_start=_array(self._chunk_start),
                chunk_ns=_array(self._chunk_ns),
                first_answer_ns=_array(self._first_answer_ns),
                reasoning_tokens=_array(self._reasoning_tokens),
                cached_tokens=_array(self._cached_tokens),
                valid=_array(self._valid),
                left=_array(self._left),
                tokenless=_array(self._tokenless),
                token_source=self._token_source.column(),
                finish_reason=self._finish_reason.column(),
                error=self._error.column(),
                error_detail=self._error_detail.column(),
            )
        )


def in_order(columns: RequestColumns) -> RequestColumns:
    """The same rows in order of their index, so that two arms' rows meet."""
    if (np.diff(columns.index) >= 0).all():
        return columns
    return _rows(columns, np.argsort(columns.index, kind="stable"))


def parted(columns: RequestColumns) -> tuple[RequestColumns, RequestColumns]:
    """The rows that tell how requests went, and those that the client broke off on purpose."""
    left = columns.left == 1
    if not left.any():
        return columns, RequestColumns.pack([])
    return _rows(columns, np.flatnonzero(~left)), _rows(columns, np.flatnonzero(left))


def joined(parts: Sequence[RequestColumns]) -> RequestColumns:
    """The rows of all parts, in order of their index. Of no parts, no rows."""
    if not parts:
        return RequestColumns.pack([])
    whole: dict[str, object] = {}
    for column in fields(RequestColumns):
        values = [getattr(part, column.name) for part in parts]
        if column.name == "chunk_start":
            lengths = np.concatenate([np.diff(starts) for starts in values])
            whole[column.name] = _starts(lengths)
        elif isinstance(values[0], np.ndarray):
            whole[column.name] = np.concatenate(values)
        else:
            whole[column.name] = TextColumn.joined(values)
    return in_order(RequestColumns(**whole))  # type: ignore[arg-type]  # typed by name


def _rows(columns: RequestColumns, rows: IntArray) -> RequestColumns:
    """These rows, in this order."""
    moved: dict[str, object] = {}
    for column in fields(RequestColumns):
        values = getattr(columns, column.name)
        if column.name not in ("chunk_start", "chunk_ns"):
            moved[column.name] = values[rows] if isinstance(values, np.ndarray) else values.take(rows)
    moved["chunk_start"], moved["chunk_ns"] = _chunks_in(columns, rows)
    return RequestColumns(**moved)  # type: ignore[arg-type]  # typed by name


def _chunks_in(columns: RequestColumns, order: IntArray) -> tuple[IntArray, IntArray]:
    """`chunk_start` and `chunk_ns` of these rows in this order; a block of rows at a time, for little extra memory."""
    lengths = np.diff(columns.chunk_start)[order]
    starts = _starts(lengths)
    chunks = np.empty(starts[-1], dtype=np.int64)
    for first in range(0, len(order), _BLOCK_ROWS):
        rows = slice(first, first + _BLOCK_ROWS)
        begin, end = starts[first], starts[min(first + _BLOCK_ROWS, len(order))]
        shift = np.repeat(columns.chunk_start[order[rows]] - starts[:-1][rows], lengths[rows])
        chunks[begin:end] = columns.chunk_ns[np.arange(begin, end) + shift]
    return starts, chunks


def _starts(lengths: IntArray) -> IntArray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _column() -> array[int]:
    return array("q")


def _or_absent(value: int | None) -> int:
    return ABSENT if value is None else value


def _array(values: array[int]) -> IntArray:
    return np.frombuffer(values, dtype=np.int64) if values else np.empty(0, dtype=np.int64)
