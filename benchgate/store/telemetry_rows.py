"""Telemetry windows to table rows and back. Pure: a column for each word, a row for each reading, NaN where absent."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchgate.errors import EvidenceError
from benchgate.model.deployment import Arm
from benchgate.model.records import ColumnMap
from benchgate.model.telemetry import Counter, Gauge, TelemetryMetric, TelemetrySample, TelemetryWindow
from benchgate.store import codec
from benchgate.store.rows import Row, check_text, to_json

TELEMETRY_SEALED = ("seq", "arm", "stage", "block", "position", "meta", "codec", "sha256", "n_rows")
"""The columns that the evidence hash covers; `sha256` stands for the data."""

_AT = "at_s"
_MARKER = "marker"
_WORDS: Mapping[str, TelemetryMetric] = {word.value: word for kind in (Gauge, Counter) for word in kind}


def telemetry_row(window: TelemetryWindow) -> Row:
    """One window as a row, without its place in the run."""
    check_text(window.stage, "the stage of the telemetry")
    meta = {
        "engine": window.engine,
        "ended_s": window.ended_s,
        "drained": window.drained,
        "problems": list(window.problems),
    }
    data = codec.encode(_columns(window.readings))
    return {
        "arm": window.arm.value,
        "stage": window.stage,
        "block": window.block,
        "position": window.position,
        "meta": to_json(meta, "what is known of the telemetry"),
        "codec": codec.CODEC,
        "sha256": codec.digest(data),
        "n_rows": len(window.readings),
        "data": data,
    }


def read_telemetry(row: Mapping[str, Any]) -> TelemetryWindow:
    """The window of a row. Raises EvidenceError when its bytes are not those that were written."""
    readings = _readings(codec.decode(row["data"], codec=row["codec"], sha256=row["sha256"]))
    if len(readings) != row["n_rows"]:
        raise EvidenceError(f"it holds {len(readings)} readings, not the {row['n_rows']} that were written")
    meta = json.loads(row["meta"])
    return TelemetryWindow(
        stage=row["stage"],
        arm=Arm(row["arm"]),
        block=row["block"],
        position=row["position"],
        engine=meta["engine"],
        ended_s=meta["ended_s"],
        drained=meta["drained"],
        readings=readings,
        problems=tuple(meta["problems"]),
    )


def _columns(readings: Sequence[TelemetrySample]) -> ColumnMap:
    told = {word for reading in readings for word in reading.values}
    columns: dict[str, Any] = {
        word.value: np.array([reading.values.get(word, np.nan) for reading in readings], dtype=np.float64)
        for word in sorted(told)
    }
    columns[_AT] = np.array([reading.at_s for reading in readings], dtype=np.float64)
    columns[_MARKER] = tuple(reading.marker for reading in readings)
    return columns


def _readings(columns: ColumnMap) -> tuple[TelemetrySample, ...]:
    told: dict[TelemetryMetric, list[float]] = {
        _WORDS[name]: np.asarray(column, dtype=np.float64).tolist()
        for name, column in columns.items()
        if name not in (_AT, _MARKER)
    }
    instants: list[float] = np.asarray(columns[_AT], dtype=np.float64).tolist()
    markers = [None if marker is None else str(marker) for marker in columns[_MARKER]]
    return tuple(
        TelemetrySample(at_s, {word: column[i] for word, column in told.items() if not math.isnan(column[i])}, marker)
        for i, (at_s, marker) in enumerate(zip(instants, markers, strict=True))
    )
