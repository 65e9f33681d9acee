"""A run as the story it was: its observations, its telemetry and its events, one after the other."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, select

from benchgate.model.telemetry import TelemetryWindow
from benchgate.store import rows, tables
from benchgate.store.engine import fetch
from benchgate.store.evidence import read_observations, read_window, rows_of
from benchgate.store.resumed import resumptions, set_aside


@dataclass(frozen=True, slots=True)
class Event:
    """A line of the run's journal."""

    kind: str
    data: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Entry:
    """What stands at one `seq` of a run. `aside`: it was only begun when the run was cut short, and counts no more."""

    seq: int
    what: rows.Observation | TelemetryWindow | Event
    aside: bool = False


def read_journal(connection: Connection, run: rows.Row) -> tuple[Entry, ...]:
    """Everything of the run with this row, in order. Raises EvidenceError where something of it is damaged."""
    run_id, event = run["id"], tables.event
    found = rows_of(connection, run)
    events = fetch(connection, select(event).where(event.c.run_id == run_id))
    aside = set_aside(resumptions(run_id, found.events))
    seen = zip(found.observations, read_observations(run_id, found.observations), strict=True)
    what: dict[int, rows.Observation | TelemetryWindow | Event] = {
        **{row["seq"]: observation for row, observation in seen},
        **{row["seq"]: read_window(run_id, row) for row in found.telemetry},
        **{row["seq"]: Event(row["kind"], json.loads(row["data"])) for row in events},
    }
    return tuple(Entry(seq, what[seq], seq in aside) for seq in sorted(what))
