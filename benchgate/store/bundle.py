"""Bundle of a run: one JSON document for a git branch, an artifact or a bucket, imported into other stores.

    {"format": "benchgate-bundle/1", "schema": "0008", "tool_version": ..., "run": {...}, "plan": ...,
     "observation": [...], ..., "sha256": ...}

A table is a list of its rows, with every column but the run's id; bytes are base64. Derived values (`check_result`, a
verdict's `own` and `seq`) are left out and computed again. The text is canonical (sorted keys, ASCII), so a run has one
spelling, and `sha256` covers the canonical text of everything else. In a folder, each run has its own file named by its
id, so that no two jobs write the same one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import BigInteger, Column, Double, LargeBinary, Table

from benchgate import __version__
from benchgate.errors import Command, EvidenceError, Remedy, UsageError
from benchgate.store import rows, tables
from benchgate.store.merge import RunSource
from benchgate.store.raw_records import RawBytes
from benchgate.store.results import is_own
from benchgate.store.stored_run import PARTS, WholeRun

FORMAT = "benchgate-bundle/1"
SCHEMAS = ("0008",)
"""Schemas whose bundles are read; the last is written. Older ones have other names of metrics."""

MAX_BYTES = 2**30  # a bundle is in memory as a whole; a larger run is copied from store to store

_EXPECTED = "an exported bundle"
_LARGEST = sys.float_info.max
_SHOWN = 40
_LEFT_OUT = frozenset({("verdict", "own"), ("verdict", "seq")})
_DOCUMENT_KEYS = {"format", "schema", "tool_version", "sha256", "plan", "run", *(table.name for table in PARTS)}

SUFFIX = ".json"
_START = re.compile(rb'\s*\{\s*"(?:arm|format)"\s*:')  # "arm" is the first key in the order of bundles
_START_BYTES = 256


def write_bundle(whole: WholeRun) -> bytes:
    """Return the bundle of a run. Raises EvidenceError where it would exceed `MAX_BYTES`."""
    document: dict[str, Any] = {
        "format": FORMAT,
        "schema": SCHEMAS[-1],
        "tool_version": __version__,
        "run": _document_row(tables.run, whole.run),
        "plan": _base64(whole.plan),
        **{table.name: [_document_row(table, row) for row in whole.of(table)] for table in PARTS},
    }
    document["sha256"] = hashlib.sha256(_canonical(document)).hexdigest()
    data = _canonical(document) + b"\n"
    if len(data) > MAX_BYTES:
        raise EvidenceError(
            f"run {whole.id}: its bundle would have {len(data):,} bytes, and at most {MAX_BYTES:,} are read",
            remedies=(Remedy("bring it into another store", Command.IMPORT),),
        )
    return data


def read_bundle(data: bytes, source: str) -> WholeRun:
    """Return the run of a bundle, after checking format, types and hash; `validate_run` checks the contents.

    An EvidenceError begins with `source` and says what was found where.
    """
    if len(data) > MAX_BYTES:
        raise EvidenceError(f"{source}: {len(data):,} bytes; a bundle has at most {MAX_BYTES:,}")
    document = _require_keys(_open_document(data, source), _DOCUMENT_KEYS, source, "the bundle")
    sha256 = document.pop("sha256")
    try:
        found = hashlib.sha256(_canonical(document)).hexdigest()
    except (ValueError, RecursionError) as exc:  # NaN, infinity, or nested without end
        raise EvidenceError(f"{source}: this is not a bundle: {exc}; expected {_EXPECTED}") from exc
    if found != sha256:
        raise EvidenceError(f"{source}: it does not hash to {_quote(sha256)}: it was changed or cut; fetch it again")
    run = _read_row(tables.run, document["run"], f"{source}: run")
    parts: dict[str, Sequence[rows.Row]] = {}
    for table in PARTS:
        if not isinstance(listed := document[table.name], list):
            raise EvidenceError(f"{source}: {table.name} is {_quote(listed)}; expected a list of rows")
        places = (f"{source}: {table.name} {at}" for at in range(len(listed)))
        parts[table.name] = [
            {"run_id": run["id"]} | _read_row(table, row, place) for row, place in zip(listed, places, strict=True)
        ]
    for seq, verdict in enumerate(parts["verdict"]):
        judged = _read_object(verdict["document"], f"{source}: verdict {seq}")
        verdict |= {"seq": seq, "own": int(is_own(verdict["compared_run_id"], judged))}
    return WholeRun(run, _read_bytes(document["plan"], f"{source}: plan"), parts)


def _open_document(data: bytes, source: str) -> dict[str, Any]:
    try:
        document = json.loads(data.decode("ascii"))
    except (ValueError, RecursionError) as exc:
        raise EvidenceError(f"{source}: this is not a bundle: {exc}; expected {_EXPECTED}") from exc
    if not isinstance(document, dict) or not isinstance(document.get("format"), str):
        raise EvidenceError(f"{source}: this is not a bundle; expected {_EXPECTED}")
    if document["format"] != FORMAT or document.get("schema") not in SCHEMAS:
        found = f"{_quote(document['format'])} of schema {_quote(document.get('schema'))}"
        raise EvidenceError(
            f"{source}: it is {found}, made by benchgate {_quote(document.get('tool_version'))}, and this is benchgate "
            f"{__version__}, which reads {FORMAT} of schema {', '.join(SCHEMAS)}; use one that is as new"
        )
    return document


def _canonical(document: Mapping[str, Any]) -> bytes:
    """Return the canonical text. Raises ValueError for NaN and infinity."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.encode("ascii")


def _columns(table: Table) -> list[Column[Any]]:
    out = {"run_id"} if table is not tables.run else set()
    return [c for c in table.columns if c.name not in out and (table.name, c.name) not in _LEFT_OUT]


def _document_row(table: Table, row: rows.Row) -> dict[str, Any]:
    return {column.name: _plain_value(row[column.name]) for column in _columns(table)}


def _plain_value(value: Any) -> Any:
    """Return a column's value as JSON. SQLite drops the sign of zero, so bundles do too."""
    if isinstance(value, bytes):
        return _base64(value)
    return value + 0.0 if isinstance(value, float) else value


def _read_row(table: Table, value: object, place: str) -> rows.Row:
    columns = _columns(table)
    row = _require_keys(value, {column.name for column in columns}, place, "a row")
    return {column.name: _read_value(column, row[column.name], f"{place}, {column.name}") for column in columns}


def _read_value(column: Column[Any], value: object, place: str) -> object:
    """Return a value of exactly its column's type: no bool for a number, nothing that a database would round."""
    if value is None and column.nullable:
        return None
    if isinstance(column.type, LargeBinary | RawBytes):
        return _read_bytes(value, place)
    if isinstance(column.type, BigInteger):
        if isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63:
            return value
        raise EvidenceError(f"{place} is {_quote(value)}; expected an integer of 64 bits")
    if isinstance(column.type, Double):
        if isinstance(value, int | float) and not isinstance(value, bool) and -_LARGEST <= value <= _LARGEST:
            return _plain_value(float(value))
        raise EvidenceError(f"{place} is {_quote(value)}; expected a finite number")
    if not isinstance(value, str):
        raise EvidenceError(f"{place} is {_quote(value)}; expected text")
    if not rows.is_plain_text(value):
        raise EvidenceError(f"{place} is {_quote(value)}; expected plain text (NUL or half a character is in it)")
    return value


def _require_keys(value: object, expected: set[str], place: str, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise EvidenceError(f"{place} is {_quote(value)}; expected {what} as an object")
    if set(value) != expected:
        lacks, extra = sorted(expected - set(value)), sorted(set(value) - expected)
        wrong = f"lacks {', '.join(lacks)}" if lacks else f"has an unknown {_quote(extra[0])}"
        raise EvidenceError(f"{place}: {what} {wrong}")
    return value


def _read_object(text: str, place: str) -> Mapping[str, object]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise EvidenceError(f"{place} is not JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise EvidenceError(f"{place} is {_quote(value)}; expected an object")
    return value


def _read_bytes(value: object, place: str) -> bytes:
    try:
        return base64.b64decode(value if isinstance(value, str) else "?", validate=True)
    except (binascii.Error, ValueError) as exc:
        raise EvidenceError(f"{place} is {_quote(value)}; expected base64") from exc


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _quote(value: object) -> str:
    """Return a short, escaped form of an untrusted value."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, int) and abs(value) >= 2**63:
        return "a number of more than 64 bits"
    text = ascii(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def bundle_files(path: Path) -> list[Path]:
    """Return the file, or the `*.json` files of a folder in order of their names, which is that of time.

    Raises UsageError where there is none.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise UsageError(f"there is no file or folder {path}; name a bundle of `benchgate store export` or results")
    found = sorted(inside for inside in path.glob(f"*{SUFFIX}") if inside.is_file())
    if not found:
        raise UsageError(f"{path} has no file *{SUFFIX} in it; name files of other kinds themselves")
    return found


def looks_like_bundle(file: Path) -> bool:
    """Return True for a file that begins as bundles do; False where it cannot be read."""
    try:
        with file.open("rb") as begun:
            return _START.match(begun.read(_START_BYTES)) is not None
    except OSError:
        return False


def bundle_sources(given: Iterable[Path]) -> Iterator[RunSource]:
    """Yield the bundles that files and folders name. Raises UsageError as `bundle_files` does."""
    for path in given:
        yield from (RunSource(str(file), partial(_read_bundle_file, file)) for file in bundle_files(path))


def _read_bundle_file(file: Path) -> WholeRun:
    return read_bundle(read_file(file), str(file))


def read_file(file: Path) -> bytes:
    """Return the bytes of a bundle's file. Raises EvidenceError where it cannot be read or is too large."""
    try:
        if file.stat().st_size > MAX_BYTES:
            raise EvidenceError(f"{file}: {file.stat().st_size:,} bytes; a bundle has at most {MAX_BYTES:,}")
        return file.read_bytes()
    except OSError as exc:
        raise EvidenceError(f"{file}: it cannot be read: {exc.strerror}") from exc
