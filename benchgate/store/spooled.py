"""What a run's spool holds: the run first, then a line for each row, in the order in which they came to be.

    SHA256 {"table":"observation","row":{"run_id":"019a…","seq":0,…,"data":"eJz…"}}

The SHA-256 is over that of the line before it and the line's own text, so that lines which are damaged, missing or out
of place are noticed. The last line may be torn, by whatever ended the process: nothing relied on it, and it is left
out. Bytes are base64, a plan is under zlib as in its table.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchgate.errors import EvidenceError, StoreError
from benchgate.store import codec, rows, tables
from benchgate.store.evidence import EVENTS_READ, RunRows

FORMAT = "benchgate-spool/1"

_HASH_CHARS = 64
_END = "run"  # the table of the line that ends a run
_TABLES = {
    table.name: frozenset(table.columns.keys()) for table in (tables.observation, tables.telemetry, tables.event)
}
_COLUMNS = {
    **_TABLES,
    "arm": frozenset(tables.arm.columns.keys()),
    _END: frozenset({"run_id", "status", "finished_at"}),
}
_OF_A_RUN = frozenset(tables.run.columns.keys()) - {"evidence_sha256"}


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a run has before anything is measured: its row (without a hash), its arms' rows and its plan."""

    run: rows.Row
    arms: tuple[rows.Row, ...]
    plan: bytes


@dataclass(frozen=True, slots=True)
class Spooled:
    """What a spool holds: `kept` are the rows after the beginning, each with its table's name, in order.

    `torn_bytes` is the length of a last line that was cut short, and is left out.
    """

    beginning: Beginning
    kept: tuple[tuple[str, rows.Row], ...]
    torn_bytes: int

    @property
    def run_id(self) -> str:
        """The run that it is of."""
        return str(self.beginning.run["id"])

    @property
    def end(self) -> rows.Row | None:
        """How the run ended, as columns of its row; None where it did not end."""
        ends = self.of_table(_END)
        return {name: ends[-1][name] for name in ("status", "finished_at")} if ends else None

    def of_table(self, table: str) -> list[rows.Row]:
        """Its rows of one table, in order."""
        return [row for name, row in self.kept if name == table]

    def arms(self) -> list[rows.Row]:
        """The arms' rows as they were known last, in order of their roles."""
        latest = {row["role"]: row for row in (*self.beginning.arms, *self.of_table("arm"))}
        return [latest[role] for role in sorted(latest)]

    def run_rows(self, end: Mapping[str, Any] | None = None) -> RunRows:
        """The rows of the run as a database with all of them gives them, ended by `end` where the spool has no end."""
        ended = self.end or end
        run = {**self.beginning.run, **(ended or {}), "evidence_sha256": None}
        events = [row for row in self.of_table("event") if row["kind"] in EVENTS_READ]
        found = RunRows(run, self.arms(), self.of_table("observation"), self.of_table("telemetry"), events)
        return replace(found, run=run | {"evidence_sha256": found.sha256()}) if ended else found


def read_spool(path: Path) -> Spooled:
    """What the file holds. Raises EvidenceError, with the line, for anything damaged but a last line cut short."""
    try:
        with path.open("rb") as handle:
            return _read(path, handle)
    except OSError as exc:
        raise StoreError(f"the spool {path} cannot be read: {exc.strerror}; check its name") from exc


def chained(last: str, text: bytes) -> str:
    """The hash of a line with this text, after one with the hash `last`."""
    digest = hashlib.sha256(last.encode())
    digest.update(text)
    return digest.hexdigest()


def _read(path: Path, lines: Iterable[bytes]) -> Spooled:
    beginning: Beginning | None = None
    kept: list[tuple[str, rows.Row]] = []
    last, damaged = "", b""
    for number, line in enumerate(lines, 1):
        if damaged and beginning is None:
            break
        if damaged:
            raise EvidenceError(f"{path}:{number - 1}: the line is not as it was written: the spool is damaged")
        text = line[_HASH_CHARS + 1 : -1]
        last = chained(last, text)
        if line != b"%s %s\n" % (last.encode(), text):
            damaged = line
            continue
        try:
            if beginning is None:
                beginning = _beginning(json.loads(text, parse_constant=_refuse))
            else:
                kept.append(_row(json.loads(text, parse_constant=_refuse), beginning.run["id"]))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
            raise EvidenceError(f"{path}:{number}: this is no line of a {FORMAT}: {exc}") from exc
    if beginning is None:
        raise EvidenceError(
            f"{path}:1: this is no {FORMAT}, or its first line is damaged: it does not begin with a run; give the "
            "spool of a run: spool.jsonl in its folder of the work directory"
        )
    return Spooled(beginning, tuple(kept), len(damaged))


def _beginning(said: dict[str, Any]) -> Beginning:
    if said["format"] != FORMAT:
        raise ValueError(f"it is written as {said['format']!r}; install a newer benchgate")
    run: rows.Row = said["run"]
    plan = base64.b64decode(said["plan"], validate=True)
    _require_columns(run, _OF_A_RUN)
    for arm in said["arms"]:
        _require_columns(arm, _COLUMNS["arm"], run["id"])
    return Beginning(run, tuple(said["arms"]), plan)


def _row(said: dict[str, Any], run_id: str) -> tuple[str, rows.Row]:
    table, row = said["table"], said["row"]
    if table not in _COLUMNS:
        raise ValueError(f"it is of the unknown table {table!r}")
    _require_columns(row, _COLUMNS[table], run_id)
    if "data" in row and "codec" in row:
        row["data"] = base64.b64decode(row["data"], validate=True)
        if codec.digest(row["data"]) != row["sha256"]:
            raise ValueError(f"its bytes do not hash to {row['sha256']}")
    return table, row


def _refuse(constant: str) -> object:
    raise ValueError(f"it holds {constant}, which is no number")


def _require_columns(row: Mapping[str, object], columns: frozenset[str], run_id: str | None = None) -> None:
    if row.keys() != columns:
        raise ValueError(f"its columns are {', '.join(sorted(row))}, not {', '.join(sorted(columns))}")
    if run_id is not None and row["run_id"] != run_id:
        raise ValueError(f"it is of run {row['run_id']!r}, not of {run_id!r}")
