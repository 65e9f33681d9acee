"""The same tables and records as Parquet. The one user of pyarrow, which the extra `parquet` brings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from benchgate.errors import UsageError, lacking
from benchgate.exchange import export_records
from benchgate.exchange.in_the_way import begins, require_ours
from benchgate.exchange.whole_file import whole_file
from benchgate.model.run import Evidence

_TEXTS = ("arm", "stage", "token_source", "finish_reason", "error", "error_detail", "answer_model")
_TRUTHS = ("valid", "left", "tokenless", "ramp", "success")


def pyarrow() -> ModuleType:
    """The library, with its writer loaded. UsageError where it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as exc:
        raise UsageError(lacking("Parquet needs pyarrow, which is not installed", "parquet")) from exc
    module: ModuleType = pyarrow
    return module


def write_table(file: Path, columns: Mapping[str, type], found: Iterable[Sequence[Any]]) -> None:
    """Writes rows of these columns."""
    arrow = pyarrow()
    types = {str: arrow.string(), int: arrow.int64(), float: arrow.float64()}
    schema = arrow.schema([(name, types[kind]) for name, kind in columns.items()])
    listed = list(zip(*found, strict=True)) or [()] * len(columns)
    arrays = [
        arrow.array(_whole_characters(list(column)), type=field.type)
        for column, field in zip(listed, schema, strict=True)
    ]
    _write(file, arrow.Table.from_arrays(arrays, schema=schema))


def write_records(folder: Path, evidence: Evidence) -> list[Path]:
    """Writes a file for each kind of record that a run has: `RUN.requests.parquet` and so on."""
    arrow = pyarrow()
    written = []
    columns = [part for seen in evidence.load for part in export_records.request_columns(seen)]
    parts = [
        arrow.table(
            {name: _whole_characters(column) if name in _TEXTS else column for name, column in part.items()},
            schema=_request_schema(part),
        )
        for part in columns
    ]
    if parts:
        written.append(_place(folder, evidence, "requests"))
        _write(written[-1], arrow.concat_tables(parts))
    for kind, found in (
        ("items", export_records.items(evidence)),
        ("prompts", export_records.prompts(evidence)),
        ("positions", export_records.positions(evidence)),
    ):
        if listed := list(found):
            written.append(_place(folder, evidence, kind))
            _write(written[-1], arrow.Table.from_pylist(_whole_characters(listed)))
    return written


def _whole_characters(value: Any) -> Any:
    """The same with `\\ud800` spelled out for half a character, which a server can send and Parquet cannot hold."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, list):
        return [_whole_characters(inner) for inner in value]
    if isinstance(value, dict):
        return {name: _whole_characters(inner) for name, inner in value.items()}
    return value


def _place(folder: Path, evidence: Evidence, kind: str) -> Path:
    return folder / f"{evidence.run.id}.{kind}.parquet"


def _request_schema(columns: Iterable[str]) -> Any:
    """Stated, because a column that is missing throughout one observation tells no type."""
    arrow = pyarrow()

    def kind(name: str) -> Any:
        if name in _TEXTS:
            return arrow.string()
        if name in _TRUTHS:
            return arrow.bool_()
        if name == "chunk_ns":
            return arrow.list_(arrow.int64())
        return arrow.float64() if name.endswith("_s") else arrow.int64()

    return arrow.schema([(name, kind(name)) for name in columns])


def _write(file: Path, table: Any) -> None:
    require_ours(file, "a file of Parquet", begins("PAR1"))
    with whole_file(file) as out:
        pyarrow().parquet.write_table(table, out)
