"""What a run's journal says of how it went on after it was cut short, and of where more of it may be."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from benchgate.errors import EvidenceError
from benchgate.model.run import ALL_STORED, RESUMED, SESSION_BEGUN, Resumption
from benchgate.store import rows


def resumptions(run_id: str, events: Sequence[rows.Row]) -> tuple[Resumption, ...]:
    """How often a run went on after it had been cut short, oldest first. EvidenceError where its journal is damaged."""
    return tuple(_resumption(run_id, event["data"]) for event in events if event["kind"] == RESUMED)


def set_aside(found: Sequence[Resumption]) -> frozenset[int]:
    """Every `seq` that counts no more."""
    return frozenset(seq for one in found for seq in one.set_aside)


def spool_left(events: Iterable[tuple[str, Mapping[str, object]]]) -> str | None:
    """The spool that may have more of a run than its store, by its journal (kind and data of each event, in order).

    None where the store has all of it, and of a run without a spool. A path on the machine that measured it.
    """
    left: str | None = None
    for kind, data in events:
        if kind == SESSION_BEGUN:
            left = str(data.get("spool", "a place that its journal does not name"))
        elif kind == ALL_STORED:
            left = None
    return left


def _resumption(run_id: str, text: str) -> Resumption:
    try:
        data = json.loads(text)
        lists = {name: tuple(data[name]) for name in ("again", "set_aside")}
        lists["same_process"] = tuple(data.get("same_process", ()))
        return Resumption(**{**data, **lists})
    except (ValueError, TypeError, KeyError) as exc:
        raise EvidenceError(f"run {run_id}: its journal does not tell how it went on: {exc}") from exc
