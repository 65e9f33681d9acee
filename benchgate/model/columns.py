"""Request columns: built record by record, split, selected and concatenated, in little memory."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np

from benchgate.model.records import (
    NARROW_TYPES,
    TEXT_COLUMNS,
    BoolArray,
    IntArray,
    NarrowArray,
    RequestColumns,
    RequestRecord,
    TextBuilder,
    TextColumn,
)

_BLOCK_ROWS = 65536
_MOST_HELD = 1 << 15  # numbers in records not yet packed, one or two megabytes
_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_NUMBERS = tuple(f.name for f in fields(RequestColumns) if f.name not in (*TEXT_COLUMNS, "chunk_start"))


class ColumnBuilder:
    """Builder of request columns from records in any order; it needs about as much memory as the columns."""

    def __init__(self) -> None:
        self._records: list[RequestRecord] = []  # not packed yet
        self._held = 0  # approximate count of their numbers
        self._chunk_lengths = _GrowingArray(np.int64)
        self._numbers = {name: _GrowingArray(NARROW_TYPES.get(name, np.int64)) for name in _NUMBERS}
        self._texts = {name: TextBuilder() for name in TEXT_COLUMNS}

    def add(self, record: RequestRecord) -> None:
        """Add one row."""
        self._records.append(record)
        self._held += len(_NUMBERS) + len(record.chunk_ns)
        if self._held >= _MOST_HELD:
            self._pack()

    def columns(self) -> RequestColumns:
        """Return the rows in order of index. The builder cannot be used again: the columns take over its memory."""
        self._pack()
        columns: dict[str, object] = {name: self._numbers.pop(name).whole() for name in _NUMBERS}
        columns["chunk_start"] = _starts(self._chunk_lengths.whole())
        columns |= {name: builder.column() for name, builder in self._texts.items()}
        return sort_by_index(RequestColumns(**columns))  # type: ignore[arg-type]  # typed by name

    def _pack(self) -> None:
        packed = RequestColumns.pack(self._records)
        self._records, self._held = [], 0
        self._chunk_lengths.extend(np.diff(packed.chunk_start))
        for name, numbers in self._numbers.items():
            numbers.extend(getattr(packed, name))
        for name, texts in self._texts.items():
            texts.extend(getattr(packed, name))


class _GrowingArray:
    """Numbers that are appended and finally become one array.

    They are kept in memory-mapped blocks that return to the system one by one. On the heap, columns that grow side by
    side would be moved again and again, and each move leaves a gap.
    """

    def __init__(self, dtype: type[np.signedinteger[Any]]) -> None:
        self._dtype = np.dtype(dtype)
        self._blocks: list[NarrowArray] = []
        self._room = 0  # free entries of the last block

    def extend(self, numbers: NarrowArray) -> None:
        """Append numbers."""
        while len(numbers):
            if not self._room:
                memory = mmap.mmap(-1, self._dtype.itemsize * _BLOCK_ROWS, flags=_PRIVATE)
                self._blocks.append(np.frombuffer(memory, dtype=self._dtype))
                self._room = _BLOCK_ROWS
            now, numbers = numbers[: self._room], numbers[self._room :]
            self._blocks[-1][_BLOCK_ROWS - self._room :][: len(now)] = now
            self._room -= len(now)

    def whole(self) -> Any:
        """Return all numbers as one array and empty this one."""
        whole = np.empty(len(self._blocks) * _BLOCK_ROWS - self._room, dtype=self._dtype)
        for first in range(0, len(whole), _BLOCK_ROWS):
            part = whole[first : first + _BLOCK_ROWS]
            part[:] = self._blocks.pop(0)[: len(part)]
        return whole


def sort_by_index(columns: RequestColumns) -> RequestColumns:
    """Sort the rows by index, so that rows of baseline and candidate correspond."""
    if (np.diff(columns.index) >= 0).all():
        return columns
    return _rows(columns, np.argsort(columns.index, kind="stable"))


class RowsByUse(NamedTuple):
    """Rows of one execution by their use."""

    measured: RequestColumns
    ramp: RequestColumns  # sent while the stage filled up or drained
    left: RequestColumns  # cancelled by the client on purpose


def split_by_use(columns: RequestColumns) -> RowsByUse:
    """Split the rows of one execution by their use."""
    left: BoolArray = columns.left == 1
    ramp: BoolArray = (columns.ramp == 1) & ~left
    return RowsByUse(select_rows(columns, ~left & ~ramp), select_rows(columns, ramp), select_rows(columns, left))


def select_rows(columns: RequestColumns, which: BoolArray) -> RequestColumns:
    """Return the marked rows in order; the columns themselves if all are marked."""
    return columns if which.all() else _rows(columns, np.flatnonzero(which))


def with_region(columns: RequestColumns, region: str | None) -> RequestColumns:
    """Return the rows as sent from one region."""
    codes = np.zeros(len(columns), dtype=np.int32)
    return replace(columns, region=TextColumn((region,) if len(columns) else (), codes))


def concatenate_columns(parts: Sequence[RequestColumns]) -> RequestColumns:
    """Concatenate rows in order of index; no parts give no rows."""
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
    return sort_by_index(RequestColumns(**whole))  # type: ignore[arg-type]  # typed by name


def _rows(columns: RequestColumns, rows: IntArray) -> RequestColumns:
    moved: dict[str, object] = {}
    for column in fields(RequestColumns):
        values = getattr(columns, column.name)
        if column.name not in ("chunk_start", "chunk_ns"):
            moved[column.name] = values[rows] if isinstance(values, np.ndarray) else values.take(rows)
    lengths = np.diff(columns.chunk_start)[rows]
    starts = _starts(lengths)
    chunks = np.empty(starts[-1], dtype=np.int64)
    for first in range(0, len(rows), _BLOCK_ROWS):  # block by block to save memory
        block = slice(first, first + _BLOCK_ROWS)
        begin, end = starts[first], starts[min(first + _BLOCK_ROWS, len(rows))]
        shift = np.repeat(columns.chunk_start[rows[block]] - starts[:-1][block], lengths[block])
        chunks[begin:end] = columns.chunk_ns[np.arange(begin, end) + shift]
    moved["chunk_start"], moved["chunk_ns"] = starts, chunks
    return RequestColumns(**moved)  # type: ignore[arg-type]  # typed by name


def _starts(lengths: IntArray) -> IntArray:
    starts = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts
