"""Any rows at all of one run, of the right types: what a bundle and a database must give back as it was."""

from __future__ import annotations

import json
import uuid
from typing import Any

from hypothesis import strategies as st
from sqlalchemy import BigInteger, Column, Double, LargeBinary, Table

from benchgate.model.run import RunStatus
from benchgate.store import rows, tables
from benchgate.store.raw_records import RawBytes
from benchgate.store.results import is_own
from benchgate.store.stored_run import PARTS, WholeRun

_PLAIN = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
_FLOATS = st.floats(allow_nan=False, allow_infinity=False).map(
    lambda value: value + 0.0
)  # SQLite keeps no sign of zero
_LEAVES = st.none() | st.booleans() | st.integers() | _FLOATS | st.text(max_size=5)
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
_NAMES = st.sampled_from(["outcome", "policy_replaced"]) | st.text(max_size=3)
_DOCUMENTS = st.dictionaries(_NAMES, _VALUES, max_size=3).map(lambda value: rows.to_json(value, "a document"))


@st.composite
def whole_runs(draw: st.DrawFn) -> WholeRun:
    """A finished run with up to two rows in each of its tables, in the order in which a store gives them."""
    run_id = str(uuid.uuid4())  # not drawn: every example is a run of its own, in one database
    run = draw(_columns_of(tables.run)) | {"id": run_id, "plan_sha256": run_id, "status": RunStatus.COMPLETE.value}
    parts = {table.name: _keyed(draw, table, run_id) for table in PARTS}
    raw = [row for name in ("observation", "telemetry", "event") for row in parts[name]]
    for seq, row in enumerate(raw):
        row["seq"] = seq
    for seq, row in enumerate(parts["tombstone"], len(raw)):
        row |= {"seq": seq, "of_table": "telemetry", "sha256": "", "sealed": json.dumps([seq, *[""] * 6, "", 0])}
    parts["verdict"].sort(key=lambda row: row["decided_at"] or "")
    for seq, row in enumerate(parts["verdict"]):
        row |= {"seq": seq, "compared_run_id": draw(st.sampled_from([None, run_id]))}
        row["own"] = int(is_own(row["compared_run_id"], json.loads(row["document"])))
    return WholeRun(run, draw(st.binary(max_size=20)), parts)


def _keyed(draw: st.DrawFn, table: Table, run_id: str) -> list[rows.Row]:
    """Rows of one table, each with a key of its own, in the order of their keys."""
    keys = [column for column in table.primary_key.columns if column.name != "run_id"]
    found = draw(st.lists(_columns_of(table), max_size=2 if keys else 1))
    for number, row in enumerate(found):
        for key in keys:
            row[key.name] = number if isinstance(key.type, BigInteger) else f"{run_id} {number}"
    return [
        {column.name: run_id if column.name == "run_id" else row[column.name] for column in table.columns}
        for row in found
    ]


def _columns_of(table: Table) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({c.name: _values_of(c) for c in table.columns if c.name != "run_id"})


def _values_of(column: Column[Any]) -> st.SearchStrategy[Any]:
    of_type: st.SearchStrategy[Any] = _PLAIN
    if column.name == "document":
        of_type = _DOCUMENTS
    elif column.name == "promoted_at":
        of_type = _PLAIN.map(lambda text: f"2020 {text}")  # one that is still to come is refused
    elif isinstance(column.type, BigInteger):
        of_type = st.integers(-(2**63), 2**63 - 1)
    elif isinstance(column.type, Double):
        of_type = _FLOATS
    elif isinstance(column.type, LargeBinary | RawBytes):
        of_type = st.binary(max_size=20)
    return st.none() | of_type if column.nullable else of_type
