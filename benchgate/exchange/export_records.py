"""What was observed in a run as plain records: one for each request, item, prompt and reading, for other programs.

Names are those of docs/metrics.md and carry their units. JSON has no infinity: a latency that is infinite because the
request failed is null, and `success` is false beside it. Count those: leaving them out flatters a server that fails.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from itertools import pairwise
from typing import Any

import numpy as np

from benchgate.model import request_metrics
from benchgate.model.records import ABSENT, FloatArray, RequestColumns
from benchgate.model.run import Evidence, LoadObservation

Record = dict[str, Any]

_TRUTHS = ("valid", "left", "tokenless", "ramp")
_LATENCIES = {
    **{f"{name}_s": of for name, of in request_metrics.LATENCIES.items() if name != "itl"},  # many values a request
    "ttft_sent_s": request_metrics.ttft_sent_s,
    "send_lag_s": request_metrics.send_lag_s,
}


def records(evidence: Evidence) -> Iterator[Record]:
    """Every record of a run, the run itself first; `kind` says what it is, `run_id` whose."""
    for kind, of in (
        ("run", _run(evidence)),
        ("request", requests(evidence)),
        ("item", items(evidence)),
        ("prompt", prompts(evidence)),
        ("position", positions(evidence)),
        ("reading", readings(evidence)),
        ("start", (asdict(start) for start in evidence.starts)),
        ("target_fault", (asdict(fault) for fault in evidence.target_faults)),
        ("error_budget", [] if evidence.budget_spent is None else [asdict(evidence.budget_spent)]),
    ):
        yield from ({"kind": kind, "run_id": evidence.run.id, **record} for record in of)


def without_infinities(value: Any) -> Any:
    """The same value with null where a number is not finite, and plain texts for words."""
    if isinstance(value, dict):
        return {str(name): without_infinities(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_infinities(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value) if isinstance(value, str) else value


def requests(evidence: Evidence) -> Iterator[Record]:
    """Yield one record for each request, with those of the ramp (`ramp`) and those cancelled on purpose (`left`)."""
    for seen in evidence.load:
        for columns in request_columns(seen):
            for values in zip(*columns.values(), strict=True):
                yield dict(zip(columns, values, strict=True))


def request_columns(seen: LoadObservation) -> Iterator[Mapping[str, list[Any]]]:
    """The same of one observation by columns of one length: the measured ones, the ramp, then those that were left."""
    for requests in seen.parts:
        n = len(requests)
        if n == 0:
            continue
        place = {"arm": seen.arm.value, "stage": seen.stage, "block": seen.block, "position": seen.position}
        columns: dict[str, list[Any]] = {name: [value] * n for name, value in place.items()}
        columns |= _seen(requests)
        asked_to_leave = requests is seen.left
        columns["success"] = [None] * n if asked_to_leave else request_metrics.succeeded(requests).tolist()
        yield columns | {name: _finite(of(requests)) for name, of in _LATENCIES.items()}


def items(evidence: Evidence) -> Iterator[Record]:
    """One record an eval item of one arm; `repeat` above 0 is the same arm asked once more."""
    for seen in evidence.quality:
        place = {"arm": seen.arm.value, "task": seen.task, "repeat": seen.repeat}
        yield from (without_infinities(place | asdict(item)) for item in seen.items)


def prompts(evidence: Evidence) -> Iterator[Record]:
    """One record a recorded prompt; texts only where the suite kept them."""
    yield from (without_infinities(asdict(item)) for item in (evidence.shadow.items if evidence.shadow else ()))


def positions(evidence: Evidence) -> Iterator[Record]:
    """One record a position of the fixed texts, in nats."""
    yield from (without_infinities(asdict(item)) for item in (evidence.divergence.items if evidence.divergence else ()))


def readings(evidence: Evidence) -> Iterator[Record]:
    """One record a look at a server's own metrics; what it does not say is not there."""
    for window in evidence.telemetry:
        place = {"arm": window.arm.value, "stage": window.stage, "block": window.block, "position": window.position}
        for reading in window.readings:
            values = {word.value: value for word, value in reading.values.items()}
            yield place | without_infinities({"at_s": reading.at_s, "marker": reading.marker, "values": values})


def _run(evidence: Evidence) -> Iterator[Record]:
    run = evidence.run
    yield {
        "suite": run.suite_name,
        "label": run.label,
        "status": run.status.value,
        "started_at": run.started_at,
        "finished_at": run.finished_at,
        "tool_version": run.tool_version,
        "seed": run.seed,
        "plan_sha256": run.plan_sha256,
        "measurement_sha256": run.measurement_sha256,
        "arms": {arm.value: asdict(deployment) for arm, deployment in run.arms.items()},
    }


def _seen(requests: RequestColumns) -> dict[str, list[Any]]:
    starts = requests.chunk_start.tolist()
    chunks = requests.chunk_ns.tolist()
    columns: dict[str, list[Any]] = {}
    for field in fields(requests):
        column = getattr(requests, field.name)
        if field.name == "chunk_ns":
            columns["chunk_ns"] = [chunks[first:last] for first, last in pairwise(starts)]
        elif not isinstance(column, np.ndarray):
            columns[field.name] = [None if word is None else str(word) for word in column]
        elif field.name != "chunk_start":
            known = [None if value == ABSENT else value for value in column.tolist()]
            columns[field.name] = [None if v is None else v == 1 for v in known] if field.name in _TRUTHS else known
    return columns


def _finite(values: FloatArray) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values.tolist()]
