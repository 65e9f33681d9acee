"""What a run's journal says of how it went on after it was cut short."""

from __future__ import annotations

import json
from collections.abc import Sequence

from benchgate.errors import EvidenceError
from benchgate.model.run import RESUMED, Resumption
from benchgate.store import rows


def resumptions(run_id: str, events: Sequence[rows.Row]) -> tuple[Resumption, ...]:
    """How often a run went on after it had been cut short, oldest first. EvidenceError where its journal is damaged."""
    return tuple(_resumption(run_id, event["data"]) for event in events if event["kind"] == RESUMED)


def set_aside(found: Sequence[Resumption]) -> frozenset[int]:
    """Every `seq` that counts no more."""
    return frozenset(seq for one in found for seq in one.set_aside)


def _resumption(run_id: str, text: str) -> Resumption:
    try:
        data = json.loads(text)
        lists = {name: tuple(data[name]) for name in ("again", "set_aside")}
        return Resumption(**{**data, **lists})
    except (ValueError, TypeError, KeyError) as exc:
        raise EvidenceError(f"run {run_id}: its journal does not tell how it went on: {exc}") from exc
