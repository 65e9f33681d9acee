"""Bundle of a run: one JSON document for a git branch, an artifact or a bucket, imported into other stores.

    {"format": "benchgate-bundle/1", "schema": "0006", "tool_version": ..., "run": {...}, "plan": ...,
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
from benchgate.store.database import Database
from benchgate.store.integrity import validate_run
from benchgate.store.merge import RunSource
from benchgate.store.output_file import in_the_way, output_file
from benchgate.store.results import is_own
from benchgate.store.whole_run import PARTS, WholeRun, read_whole

FORMAT = "benchgate-bundle/1"
SCHEMAS = ("0006",)
"""Schemas whose bundles are read; the last is written. A schema that adds a column defines its value in older ones."""

MAX_BYTES = 2**30
"""A bundle is in memory as a whole; a larger run is copied from store to store."""

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
    parts = {table.name: _read_rows(table, document[table.name], run["id"], source) for table in PARTS}
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


def _read_rows(table: Table, value: object, run_id: str, source: str) -> Sequence[rows.Row]:
    if not isinstance(value, list):
        raise EvidenceError(f"{source}: {table.name} is {_quote(value)}; expected a list of rows")
    return [{"run_id": run_id} | _read_row(table, row, f"{source}: {table.name} {at}") for at, row in enumerate(value)]


def _read_row(table: Table, value: object, place: str) -> rows.Row:
    columns = _columns(table)
    row = _require_keys(value, {column.name for column in columns}, place, "a row")
    return {column.name: _read_value(column, row[column.name], f"{place}, {column.name}") for column in columns}


def _read_value(column: Column[Any], value: object, place: str) -> object:
    """Return a value of exactly its column's type: no bool for a number, nothing that a database would round."""
    if value is None and column.nullable:
        return None
    if isinstance(column.type, LargeBinary):
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
    if "\0" in value or any("\ud800" <= char <= "\udfff" for char in value):
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


def export_bundle(database: Database, run_id: str, file: Path) -> None:
    """Write the bundle of a run, replacing an older one. A file with more than the store has is not touched.

    Raises EvidenceError for a damaged run, or a file with what the store lacks; UsageError for any other file;
    StoreError where it cannot be written.
    """
    with database.reading() as connection:
        whole = read_whole(connection, run_id)
    validate_run(whole, database.address.shown)
    data = write_bundle(whole)
    if file.exists():
        found = _read_file(file)
        if found == data:
            return
        _require_nothing_lost(_existing_bundle(found, whole, file), whole, file)
    with output_file(file) as out:
        out.write(data)


def bundle_files(path: Path) -> list[Path]:
    """Return the file, or the `*.json` files of a folder in order of their names, which is that of time.

    Raises UsageError where there is none.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise UsageError(f"there is no file or folder {path}")
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
    return read_bundle(_read_file(file), str(file))


def _read_file(file: Path) -> bytes:
    try:
        if file.stat().st_size > MAX_BYTES:
            raise EvidenceError(f"{file}: {file.stat().st_size:,} bytes; a bundle has at most {MAX_BYTES:,}")
        return file.read_bytes()
    except OSError as exc:
        raise EvidenceError(f"{file}: it cannot be read: {exc.strerror}") from exc


def _existing_bundle(found: bytes, whole: WholeRun, file: Path) -> WholeRun:
    """Read an existing file's bundle. Raises UsageError unless it is an intact bundle of the same run."""
    try:
        old = read_bundle(found, "what it holds")
    except EvidenceError as exc:
        raise in_the_way(file, str(exc)) from exc
    if old.id != whole.id:
        raise in_the_way(file, f"it is the bundle of run {old.id}, not of {whole.id}")
    return old


def _require_nothing_lost(old: WholeRun, new: WholeRun, file: Path) -> None:
    """Raise EvidenceError where the old bundle, perhaps of several stores, has what this store lacks."""
    lost = [f"records at {seq}" for seq, record in old.story.items() if new.story.get(seq) != record][:1]
    for table in (tables.verdict, tables.promotion, tables.imported, tables.noise_profile):
        there = [row | {"seq": None} for row in new.of(table)]
        lost += [f"a {table.name}" for row in old.of(table) if row | {"seq": None} not in there][:1]
    raw = (tables.observation, tables.telemetry)
    bared = any(len(old.of(table)) > len(new.of(table)) for table in raw)
    if bared and not lost:
        raise EvidenceError(
            f"{file}: it holds the raw records, which were removed from the store and cannot come back there: keep it, "
            "and export to another place"
        )
    if lost:
        raise EvidenceError(
            f"{file}: it holds {lost[0]} that the store lacks",
            remedies=(Remedy("import it first", Command.IMPORT, str(file)),),
        )
