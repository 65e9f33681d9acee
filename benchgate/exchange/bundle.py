"""One run as one JSON document, to be kept in a git branch, as an artifact or in a bucket, and taken in elsewhere.

    {"format": "benchgate-bundle/1", "schema": "0006", "tool_version": ..., "run": {...}, "plan": ...,
     "observation": [...], ..., "sha256": ...}

A table is a list of its rows, with every column but the run's id, which stands once; bytes are base64. What is read
off something else (`check_result`, a verdict's `own` and `seq`) is left out and made again. The text is canonical
(sorted keys, ASCII), so one run has one spelling, and `sha256` is over the canonical text of all the rest. Pure.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import BigInteger, Column, Double, LargeBinary, Table

from benchgate import __version__
from benchgate.errors import EvidenceError
from benchgate.store import rows, tables
from benchgate.store.results import is_own
from benchgate.store.whole_run import PARTS, WholeRun

FORMAT = "benchgate-bundle/1"
SCHEMAS = ("0006",)
"""The schemas whose bundles are read: the last is what is written. One that adds a column says what older ones lack."""

MOST_BYTES = 2**30
"""A bundle is in memory as a whole; a larger run goes from store to store by `benchgate store copy`."""

_EXPECTED = "what `benchgate store export` wrote"
_LARGEST = sys.float_info.max
_SHOWN = 40
_LEFT_OUT = frozenset({("verdict", "own"), ("verdict", "seq")})
_KEYS = {"format", "schema", "tool_version", "sha256", "plan", "run", *(table.name for table in PARTS)}


def write_bundle(whole: WholeRun) -> bytes:
    """The bundle of a run. EvidenceError where it would be larger than is ever read."""
    document: dict[str, Any] = {
        "format": FORMAT,
        "schema": SCHEMAS[-1],
        "tool_version": __version__,
        "run": _said(tables.run, whole.run),
        "plan": _base64(whole.plan),
        **{table.name: [_said(table, row) for row in whole.of(table)] for table in PARTS},
    }
    document["sha256"] = hashlib.sha256(_canonical(document)).hexdigest()
    data = _canonical(document) + b"\n"
    if len(data) > MOST_BYTES:
        raise EvidenceError(
            f"run {whole.id}: its bundle would have {len(data):,} bytes, and at most {MOST_BYTES:,} are read; "
            "bring it into another store with `benchgate store copy`"
        )
    return data


def read_bundle(data: bytes, source: str) -> WholeRun:
    """The run that a bundle says it is: its form, its types and its hash are checked, not yet what it tells.

    EvidenceError begins with `source` and says what was found where.
    """
    if len(data) > MOST_BYTES:
        raise EvidenceError(f"{source}: {len(data):,} bytes; a bundle has at most {MOST_BYTES:,}")
    document = _require_keys(_opened(data, source), _KEYS, source, "the bundle")
    said = document.pop("sha256")
    if _sha256(document, source) != said:
        raise EvidenceError(f"{source}: it does not hash to {_show(said)}: it was changed or cut; fetch it again")
    run = _row(tables.run, document["run"], f"{source}: run")
    parts = {table.name: _rows(table, document[table.name], run["id"], source) for table in PARTS}
    for seq, verdict in enumerate(parts["verdict"]):
        told = _object(verdict["document"], f"{source}: verdict {seq}")
        verdict |= {"seq": seq, "own": int(is_own(verdict["compared_run_id"], told))}
    return WholeRun(run, _bytes(document["plan"], f"{source}: plan"), parts)


def _opened(data: bytes, source: str) -> dict[str, Any]:
    """The document of a bundle of this format."""
    try:
        document = json.loads(data.decode("ascii"))
    except (ValueError, RecursionError) as exc:
        raise EvidenceError(f"{source}: this is not a bundle: {exc}; expected {_EXPECTED}") from exc
    if not isinstance(document, dict) or not isinstance(document.get("format"), str):
        raise EvidenceError(f"{source}: this is not a bundle; expected {_EXPECTED}")
    if document["format"] != FORMAT or document.get("schema") not in SCHEMAS:
        found = f"{_show(document['format'])} of schema {_show(document.get('schema'))}"
        raise EvidenceError(
            f"{source}: it is {found}, made by benchgate {_show(document.get('tool_version'))}, and this is benchgate "
            f"{__version__}, which reads {FORMAT} of schema {', '.join(SCHEMAS)}; use one that is as new"
        )
    return document


def _sha256(document: Mapping[str, Any], source: str) -> str:
    """Of the document's canonical text, which has no NaN, no infinity and no depth without end."""
    try:
        return hashlib.sha256(_canonical(document)).hexdigest()
    except (ValueError, RecursionError) as exc:
        raise EvidenceError(f"{source}: this is not a bundle: {exc}; expected {_EXPECTED}") from exc


def _canonical(document: Mapping[str, Any]) -> bytes:
    """The one spelling of a document. ValueError for NaN and infinity."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.encode("ascii")


def _columns(table: Table) -> list[Column[Any]]:
    out = {"run_id"} if table is not tables.run else set()
    return [c for c in table.columns if c.name not in out and (table.name, c.name) not in _LEFT_OUT]


def _said(table: Table, row: rows.Row) -> dict[str, Any]:
    return {column.name: _plain(row[column.name]) for column in _columns(table)}


def _plain(value: Any) -> Any:
    """A column's value as JSON has it. SQLite keeps no sign of zero, so that no bundle does."""
    if isinstance(value, bytes):
        return _base64(value)
    return value + 0.0 if isinstance(value, float) else value


def _rows(table: Table, said: object, run_id: str, source: str) -> Sequence[rows.Row]:
    if not isinstance(said, list):
        raise EvidenceError(f"{source}: {table.name} is {_show(said)}; expected a list of rows")
    return [{"run_id": run_id} | _row(table, row, f"{source}: {table.name} {at}") for at, row in enumerate(said)]


def _row(table: Table, said: object, place: str) -> rows.Row:
    columns = _columns(table)
    row = _require_keys(said, {column.name for column in columns}, place, "a row")
    return {column.name: _value(column, row[column.name], f"{place}, {column.name}") for column in columns}


def _value(column: Column[Any], said: object, place: str) -> object:
    """A column's value of exactly its type: no bool for a number, no number that either database would round."""
    if said is None and column.nullable:
        return None
    if isinstance(column.type, LargeBinary):
        return _bytes(said, place)
    if isinstance(column.type, BigInteger):
        if isinstance(said, int) and not isinstance(said, bool) and -(2**63) <= said < 2**63:
            return said
        raise EvidenceError(f"{place} is {_show(said)}; expected an integer of 64 bits")
    if isinstance(column.type, Double):
        if isinstance(said, int | float) and not isinstance(said, bool) and -_LARGEST <= said <= _LARGEST:
            return _plain(float(said))
        raise EvidenceError(f"{place} is {_show(said)}; expected a finite number")
    if not isinstance(said, str):
        raise EvidenceError(f"{place} is {_show(said)}; expected text")
    if "\0" in said or any("\ud800" <= char <= "\udfff" for char in said):
        raise EvidenceError(f"{place} is {_show(said)}; expected plain text (NUL or half a character is in it)")
    return said


def _require_keys(said: object, expected: set[str], place: str, what: str) -> dict[str, Any]:
    if not isinstance(said, dict):
        raise EvidenceError(f"{place} is {_show(said)}; expected {what} as an object")
    if set(said) != expected:
        lacks, extra = sorted(expected - set(said)), sorted(set(said) - expected)
        wrong = f"lacks {', '.join(lacks)}" if lacks else f"has an unknown {_show(extra[0])}"
        raise EvidenceError(f"{place}: {what} {wrong}")
    return said


def _object(text: str, place: str) -> Mapping[str, object]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise EvidenceError(f"{place} is not JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise EvidenceError(f"{place} is {_show(value)}; expected an object")
    return value


def _bytes(said: object, place: str) -> bytes:
    try:
        return base64.b64decode(said if isinstance(said, str) else "?", validate=True)
    except (binascii.Error, ValueError) as exc:
        raise EvidenceError(f"{place} is {_show(said)}; expected base64") from exc


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _show(value: object) -> str:
    """Enough of a stranger's value to find it by, and no control character of it."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, int) and abs(value) >= 2**63:
        return "a number of more than 64 bits"
    text = ascii(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
