"""Raw records outside of the database: Parquet files in a folder or an object store, named by their SHA-256.

With `BENCHGATE_RAW_RECORDS` (a path or URL) the records of new observations are written there, and their row holds the
name and size of the file alone. Whoever reads them needs the same variable. A row never names a place, so that a store
which somebody else filled cannot make benchgate read another file.

A file has a column for each of the record's. Arrivals of chunks (`chunk_start`, `chunk_ns`) are one column of lists.
Records of any other shape stay in the database.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import BigInteger, ColumnElement, Connection, LargeBinary, Text, case, cast, func, select, type_coerce
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

from benchgate.errors import EvidenceError, StoreError, UsageError
from benchgate.model import codec
from benchgate.model.records import ColumnMap, TextColumn
from benchgate.system import OWNER_ONLY, atomic_file, lacking

VARIABLE = "BENCHGATE_RAW_RECORDS"
PARQUET = "parquet/1"
_MARK, _MAGIC = b"benchgate-raw-records:", b"PAR1"
_NAME_CHARS = 64
_STARTS, _LISTS = "chunk_start", "chunk_ns"
_USERS_TEXT = "prompt_text"  # of a shadow comparison


def encode(columns: ColumnMap) -> tuple[str, bytes]:
    """Return the codec of the columns and their bytes. Raises UsageError where a library is missing."""
    table = _parquet_table(columns) if os.environ.get(VARIABLE) else None
    if table is None:
        return codec.CODEC, codec.encode(columns)
    import pyarrow.parquet as pq

    file = BytesIO()
    pq.write_table(table, file, compression="zstd")
    return PARQUET, file.getvalue()


def decode(row: Mapping[str, Any]) -> ColumnMap:
    """Return the columns of a row. Raises EvidenceError when its bytes are not those that were written."""
    data: bytes = row["data"]
    if row["codec"] != PARQUET:
        return codec.decode(data, codec=row["codec"], sha256=row["sha256"])
    if codec.digest(data) != row["sha256"]:
        raise EvidenceError(f"its bytes hash to {codec.digest(data)}, not to {row['sha256']} as written")
    _require("pyarrow", "parquet")
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(BytesIO(data))
        found: dict[str, Any] = {}
        for name in table.column_names:
            column = table.column(name).combine_chunks()
            if isinstance(column, pa.ChunkedArray):  # of no rows
                column = pa.concat_arrays(column.chunks)
            if pa.types.is_large_list(column.type):
                found[_STARTS], found[name] = column.offsets.to_numpy(), column.values.to_numpy()
            elif pa.types.is_dictionary(column.type):
                words = [None if one is None else one.decode("utf-8", "surrogatepass")
                         for one in column.dictionary.to_pylist()]  # fmt: skip
                codes = column.indices.fill_null(len(words)).to_numpy().astype(np.int32)
                found[name] = TextColumn((*words, None), codes)
            else:
                found[name] = column.to_numpy(zero_copy_only=False)
        return found
    except (pa.ArrowException, ValueError, KeyError, TypeError) as exc:
        raise EvidenceError(f"its bytes are not {PARQUET}: {exc}") from exc


def require_size(data: bytes, most: int) -> None:
    """Raise EvidenceError for bytes that are no Parquet, or unpack to more than `most` by its own account."""
    _require("pyarrow", "parquet")
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_metadata(BytesIO(data))
    except (pa.ArrowException, OSError) as exc:
        raise EvidenceError(f"its data cannot be unpacked: {exc}") from exc
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    values = sum(group.column(place).num_values for group in groups for place in range(metadata.num_columns))
    size = sum(group.total_byte_size for group in groups) + 8 * values
    if size > most:
        raise EvidenceError(f"its data cannot be unpacked: it holds {size:,} bytes, more than {most:,}")


def _parquet_table(columns: ColumnMap) -> Any | None:
    """Return the columns as one table; None where they are not of one length."""
    _require("pyarrow", "parquet")
    import pyarrow as pa

    found: dict[str, Any] = {}
    for name, column in columns.items():
        if name == _STARTS and _LISTS in columns:
            continue
        if name == _LISTS and _STARTS in columns:
            found[name] = pa.LargeListArray.from_arrays(pa.array(columns[_STARTS]), pa.array(column))
        elif isinstance(column, np.ndarray):
            found[name] = pa.array(column)
        else:
            texts = TextColumn.of(column)
            words = [b"" if word is None else word.encode("utf-8", "surrogatepass") for word in texts.words]
            codes = pa.array(texts.codes, mask=texts.are((None,)) if len(texts) else None)
            found[name] = pa.DictionaryArray.from_arrays(codes, pa.array(words, type=pa.binary()))
    same = len({len(column) for column in found.values()}) == 1
    return pa.table(found) if same else None


class RawBytes(TypeDecorator[bytes]):
    """Bytes of raw records: Parquet goes to the place of `BENCHGATE_RAW_RECORDS`, anything else into the row."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: bytes | None, dialect: Dialect) -> bytes | None:
        """Write a file and return its name and size. Raises StoreError."""
        if value is None or not value.startswith(_MAGIC) or not os.environ.get(VARIABLE):
            return value
        name = codec.digest(value)
        try:
            store, place = _place(name)
            if not store.exists(place) or store.size(place) != len(value):
                _write(store, place, value)
        except Exception as error:  # each store has errors of its own
            raise _unreachable(error) from error
        return _MARK + f"{name}:{len(value)}".encode()

    def process_result_value(self, value: Any | None, dialect: Dialect) -> bytes | None:
        """Read the file of a row. Raises StoreError."""
        if value is None or not bytes(value).startswith(_MARK):
            return value
        name = bytes(value)[len(_MARK) :].decode("ascii", "replace").partition(":")[0]
        if not os.environ.get(VARIABLE):
            raise StoreError(f"raw records of this store are files; set {VARIABLE} to the place where they are")
        try:
            store, place = _place(name)
            return bytes(store.cat_file(place))
        except Exception as error:
            raise _unreachable(error) from error


def _write(store: Any, place: str, data: bytes) -> None:
    """Write a whole file or none: object stores do so by themselves, a folder needs a file that takes its place."""
    if "file" in (store.protocol if isinstance(store.protocol, tuple) else (store.protocol,)):
        with atomic_file(Path(place), mode=OWNER_ONLY if _may_hold_texts(data) else 0o666) as file:
            file.write(data)
    else:
        store.makedirs(place.rpartition("/")[0], exist_ok=True)
        store.pipe_file(place, data)


def _may_hold_texts(data: bytes) -> bool:
    import pyarrow.parquet as pq

    return _USERS_TEXT in pq.read_schema(BytesIO(data)).names


def n_bytes(connection: Connection, data: ColumnElement[bytes]) -> ColumnElement[int]:
    """Return the size of a row's raw records, in the row or in its file, as an expression of this database."""
    size = func.substr(type_coerce(data, LargeBinary), len(_MARK) + _NAME_CHARS + len(":") + 1)
    if connection.dialect.name == "sqlite":
        number = cast(cast(size, Text), BigInteger)  # of anything else than a number 0
    else:
        number = cast(func.substring(func.encode(size, "escape"), "^[0-9]{1,18}$"), BigInteger)
    return case((_is_file(data), func.coalesce(number, 0)), else_=func.length(data))


def _is_file(data: ColumnElement[bytes]) -> ColumnElement[bool]:
    return func.substr(type_coerce(data, LargeBinary), 1, len(_MARK)) == _MARK


def names_of(connection: Connection, tables: Iterable[Any], run_id: str) -> list[str]:
    """Return the names of the files that hold records of this run and of no other."""
    names: set[str] = set()
    kept: set[str] = set()
    for table in tables:  # imported rows hold their bytes: a file of such a name is another store's
        of_files = select(table.c.sha256).where(table.c.codec == PARQUET, _is_file(table.c.data))
        names |= set(connection.scalars(of_files.where(table.c.run_id == run_id)))
    for table in tables:
        others = select(table.c.sha256).where(table.c.run_id != run_id, table.c.sha256.in_(names))
        kept |= set(connection.scalars(others))
    return sorted(names - kept)


def remove(names: Iterable[str]) -> None:
    """Remove files that no row names any more, all that can be. Raises StoreError with the names of the others."""
    stayed: dict[str, Exception] = {}
    for name in names if os.environ.get(VARIABLE) else ():
        try:
            store, place = _place(name)
            if store.exists(place):
                store.rm_file(place)
        except Exception as error:  # noqa: BLE001 - each store has errors of its own
            stayed[name] = error
    if stayed:
        files = ", ".join(_path_of(name) for name in stayed)
        where, first = os.environ[VARIABLE], next(iter(stayed.values()))
        reason = f"{type(first).__name__}: {first}"
        raise StoreError(f"files at {where} cannot be removed: {reason}; remove them yourself: {files}") from first


def _place(name: str) -> tuple[Any, str]:
    if len(name) != _NAME_CHARS or set(name) - set("0123456789abcdef"):
        raise ValueError(f"{name[:80]!r} is no SHA-256")
    _require("fsspec", "object-storage")
    import fsspec  # type: ignore[import-untyped]  # it has no types

    store, root = fsspec.core.url_to_fs(os.environ[VARIABLE])
    return store, f"{root.rstrip('/')}/{_path_of(name)}"


def _path_of(name: str) -> str:
    return f"{name[:2]}/{name}.parquet"


def _require(library: str, extra: str) -> None:
    if find_spec(library) is None:
        raise UsageError(lacking(f"{VARIABLE} needs {library}, which is not installed", extra))


def _unreachable(error: Exception) -> StoreError:
    reason = f"{type(error).__name__}: {error}"
    return StoreError(f"raw records at {os.environ[VARIABLE]} cannot be used: {reason}; see that they are there")
