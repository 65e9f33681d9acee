"""Conversion of model values to table rows and back. Pure: no database connection, only the contents of columns."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeVar

import numpy as np

from benchgate.errors import EvidenceError, StoreError
from benchgate.model import codec
from benchgate.model.columns import concatenate_columns, split_by_use
from benchgate.model.deployment import TOKEN_KINDS, Arm, Deployment, from_json
from benchgate.model.records import (
    ColumnMap,
    DivergenceItem,
    DivergenceObservation,
    EvalItem,
    RequestColumns,
    ShadowItem,
    divergence_to_json,
    finite_score,
    pack_rows,
    unpack_rows,
)
from benchgate.model.run import (
    ALL_STORED,
    REPLICAS,
    RESUMED,
    SESSION_BEGUN,
    BudgetReading,
    ClientUse,
    DeploymentFault,
    LoadObservation,
    QualityObservation,
    Resumption,
    Run,
    RunStatus,
    ServerStart,
    ShadowObservation,
)
from benchgate.model.telemetry import (
    Counter,
    Gauge,
    TelemetryMetric,
    TelemetrySample,
    TelemetryWindow,
)
from benchgate.store import raw_records

UNREADABLE = (ValueError, KeyError, TypeError, AttributeError)
"""Errors of reading a document that is not the one that was written."""

Row = dict[str, Any]
Observation = (
    LoadObservation
    | QualityObservation
    | DivergenceObservation
    | ShadowObservation
    | DeploymentFault
    | ServerStart
    | BudgetReading
)

OBSERVATION_SEALED = ("seq", "kind", "arm", "stage", "task", "block", "position", "meta", "codec", "sha256", "n_rows")
"""The columns of an observation that the evidence hash covers; its `sha256` stands for its data."""

_LATER = ("price_terms", "token_prices", "price_entry")
TELEMETRY_SEALED = ("seq", "arm", "stage", "block", "position", "meta", "codec", "sha256", "n_rows")
"""The columns that the evidence hash covers; `sha256` stands for the data."""
_AT_S = "at_s"
_MARKER = "marker"
_TELEMETRY_METRICS: Mapping[str, TelemetryMetric] = {one.value: one for kind in (Gauge, Counter) for one in kind}
_CHECK_POLICY = (
    "family", "metric", "statistic", "stage", "over", "task", "unit", "scale", "margin", "at_least", "two_sided",
    "waiver",
)  # fmt: skip
_CHECK_NUMBERS = ("baseline", "candidate", "harm", "lower", "upper")


def to_json(value: object, what: str) -> str:
    """Return the canonical JSON of a value: sorted keys, ASCII, so that NUL and lone surrogates fit any database.

    Raises StoreError, which names `what`, for NaN, infinity and values that are not JSON.
    """
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except UNREADABLE as exc:
        raise StoreError(f"{what} cannot be stored: {exc}; only finite JSON values can") from exc


def text_sha256(text: str) -> str:
    """Return the SHA-256 of a stored text, as hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def evidence_sha256(
    run: Mapping[str, Any],
    arms: Iterable[Mapping[str, Any]],
    observations: Iterable[Mapping[str, Any]],
    telemetry: Sequence[Sequence[object]] = (),
    events: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Compute the hash over a finished run: its row, its arms, all observations and telemetry in order.

    Any alteration, removal, addition or move changes it. `telemetry` are the sealed columns of its rows. Of `events`,
    resumptions are covered, which exclude records, and replica counts. A run without telemetry or such events hashes
    as it did before they existed.
    """
    sealed: dict[str, object] = {
        "run": {name: value for name, value in run.items() if name != "evidence_sha256"},
        "arms": [dict(arm) for arm in arms],
        "observations": [[row[name] for name in OBSERVATION_SEALED] for row in observations],
    }
    if telemetry:
        sealed["telemetry"] = [list(row) for row in telemetry]
    if resumed := [[event["seq"], event["data"]] for event in events if event["kind"] == RESUMED]:
        sealed["resumed"] = resumed
    if counted := [[event["seq"], event["data"]] for event in events if event["kind"] == REPLICAS]:
        sealed["replicas"] = counted
    return text_sha256(to_json(sealed, "the evidence"))


def run_row(run: Run) -> Row:
    """Return a new run's row; its arms have a table of their own."""
    row = {
        "id": run.id,
        "suite_name": run.suite_name,
        "suite": to_json(dict(run.suite), "the suite"),
        "suite_sha256": run.suite_sha256,
        "measurement_sha256": run.measurement_sha256,
        "plan_sha256": run.plan_sha256,
        "seed": run.seed,
        "tool_version": run.tool_version,
        "label": run.label,
        "status": run.status.value,
        "started_at": run.started_at,
        "finished_at": run.finished_at,
        "environment": to_json(dict(run.environment), "the run's environment"),
    }
    for name, value in row.items():
        check_text(value, f"the run's {name}")
    return row


def check_text(value: object, what: str) -> None:
    """Raise StoreError for a text with a NUL or a lone surrogate, which Postgres refuses and SQLite would cut."""
    if isinstance(value, str) and ("\0" in value or any("\ud800" <= char <= "\udfff" for char in value)):
        raise StoreError(f"{what} {value!r} cannot be stored: it is not plain text (NUL or half a character in it)")


def arm_row(run_id: str, arm: Arm, deployment: Deployment) -> Row:
    """Return one arm's row. Its JSON lacks empty price fields, which older rows do not have."""
    document = {key: value for key, value in asdict(deployment).items() if value or key not in _LATER}
    return {
        "run_id": run_id,
        "role": arm.value,
        "deployment": to_json(document, f"the deployment of the {arm} arm"),
        "fingerprint": deployment.fingerprint,
    }


def read_run(row: Mapping[str, Any], arms: Sequence[Mapping[str, Any]]) -> Run:
    """Return the run of a row and its arms' rows, baseline first. Raises EvidenceError for damaged ones."""
    try:
        suite, environment = json.loads(row["suite"]), json.loads(row["environment"])
        if not isinstance(suite, dict) or not isinstance(environment, dict):
            raise ValueError("its suite or environment is no JSON object")
        deployments = {Arm(arm["role"]): read_deployment(arm["deployment"]) for arm in arms}
        status = RunStatus(row["status"])
    except UNREADABLE as exc:
        raise EvidenceError(f"run {row['id']}: its row or that of an arm cannot be read: {exc}") from exc
    return Run(
        id=row["id"],
        suite_name=row["suite_name"],
        suite=suite,
        suite_sha256=row["suite_sha256"],
        measurement_sha256=row["measurement_sha256"],
        plan_sha256=row["plan_sha256"],
        seed=row["seed"],
        tool_version=row["tool_version"],
        label=row["label"],
        status=status,
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        environment=environment,
        arms={arm: deployments[arm] for arm in Arm if arm in deployments},
    )


def read_deployment(text: str) -> Deployment:
    """Return the deployment of an arm's row. Raises ValueError for a damaged one."""
    found = from_json(Deployment, json.loads(text))
    prices = [found.price_usd_per_hour or 0.0, *found.token_prices.values()]
    if found.accelerators < 1 or not all(0 <= price < math.inf for price in prices):
        raise ValueError("a deployment has fewer than 1 accelerator, or a negative or infinite price")
    if found.token_prices.keys() not in (set(), set(TOKEN_KINDS)):
        raise ValueError(f"a deployment has token prices of {sorted(found.token_prices)}, not of {list(TOKEN_KINDS)}")
    return found


def observation_row(seen: Observation) -> Row:
    """Return an observation as a row, without its place in the run."""
    meta: dict[str, object]
    match seen:
        case LoadObservation():
            meta = {"window_s": seen.window_s, "client": seen.client.to_document()}
            parts = [part for part in seen.parts if len(part)]
            requests = concatenate_columns(parts) if len(parts) > 1 else next(iter(parts), seen.requests)
            place = {"arm": seen.arm.value, "stage": seen.stage, "block": seen.block, "position": seen.position}
            return _packed_row("load", meta, requests.to_columns(), seen.recorded, **place)
        case QualityObservation():
            meta = {"expected_n": seen.expected_n, "fault": seen.fault, "harness": dict(seen.harness)}
            if seen.repeat:
                meta["repeat"] = seen.repeat
            items = pack_rows(seen.items)
            return _packed_row("quality", meta, items, len(seen.items), arm=seen.arm.value, task=seen.task)
        case DivergenceObservation():
            return _packed_row("divergence", divergence_to_json(seen), pack_rows(seen.items), len(seen.items))
        case ShadowObservation():
            meta = {"expected_n": seen.expected_n, "fault": seen.fault}
            return _packed_row("shadow", meta, pack_rows(seen.items), len(seen.items))
        case DeploymentFault():
            return _packed_row("target_fault", {"when": seen.when, "reason": seen.reason}, arm=seen.arm.value)
        case ServerStart():
            meta = {"number": seen.number, "to_answer_s": seen.to_answer_s}
            return _packed_row("start", meta, arm=seen.arm.value)
        case BudgetReading():
            return _packed_row("error_budget", asdict(seen))


def _packed_row(kind: str, meta: object, columns: ColumnMap | None = None, n_rows: int = 0, **place: str | int) -> Row:
    for name, value in place.items():
        check_text(value, f"the observation's {name}")
    return {
        "kind": kind,
        **dict.fromkeys(("arm", "stage", "task", "block", "position")),
        **place,
        "meta": to_json(meta, f"what is known of the {kind} observation"),
        "n_rows": n_rows,
        **_encoded(columns or {}),
    }


def _encoded(columns: ColumnMap) -> Row:
    name, data = raw_records.encode(columns)
    return {"codec": name, "sha256": codec.digest(data), "data": data}


_Type = TypeVar("_Type", str, int)


def _typed(row: Mapping[str, Any], name: str, kind: type[_Type]) -> _Type:
    """Return a value of a row or document. Raises EvidenceError where it is of another type."""
    value = row[name]
    if not isinstance(value, kind):
        raise EvidenceError(f"its {name} is {value!r}")
    return value


def read_observation(row: Mapping[str, Any]) -> Observation:
    """Return the observation of a row. Raises EvidenceError when its bytes are not those that were written."""
    columns: ColumnMap = raw_records.decode(row)
    meta = json.loads(row["meta"])
    seen: Observation
    match row["kind"]:
        case "load":
            parts = split_by_use(RequestColumns.from_columns(columns))
            if (window_s := finite_score(meta["window_s"])) is None:
                raise EvidenceError(f"its window_s is {str(meta['window_s'])[:40]!r}; expected a finite number")
            seen = LoadObservation(
                stage=_typed(row, "stage", str),
                arm=Arm(row["arm"]),
                block=_typed(row, "block", int),
                position=_typed(row, "position", int),
                requests=parts.measured,
                window_s=window_s,
                client=ClientUse.from_document(meta["client"]),
                left=parts.left,
                ramp=parts.ramp,
            )
            rows = seen.recorded
        case "quality":
            own = {"task": row["task"], "arm": row["arm"], "items": (), "harness": meta["harness"]}
            known = from_json(QualityObservation, {**meta, **own})
            seen, rows = replace(known, items=(answers := unpack_rows(EvalItem, columns))), len(answers)
        case "divergence":
            texts = from_json(DivergenceObservation, {**meta, "items": (), "passed_over": meta["passed_over"]})
            seen, rows = replace(texts, items=(read := unpack_rows(DivergenceItem, columns))), len(read)
        case "shadow":
            prompts = from_json(ShadowObservation, {**meta, "items": ()})
            seen, rows = replace(prompts, items=(pairs := unpack_rows(ShadowItem, columns))), len(pairs)
        case "target_fault":
            seen, rows = from_json(DeploymentFault, {**meta, "arm": row["arm"]}), 0
        case "start":
            seen, rows = from_json(ServerStart, {**meta, "arm": row["arm"]}), 0
        case "error_budget":
            seen, rows = from_json(BudgetReading, meta), 0
        case kind:
            raise EvidenceError(f"it is of the unknown kind {kind!r}; install a newer benchgate")
    if rows != row["n_rows"]:
        raise EvidenceError(f"it holds {rows} rows, not the {row['n_rows']} that were written")
    return seen


def telemetry_row(window: TelemetryWindow) -> Row:
    """Return one window as a row, without its place in the run: a column per metric, NaN where absent."""
    check_text(window.stage, "the stage of the telemetry")
    meta: dict[str, object] = {
        "engine": window.engine,
        "ended_s": window.ended_s,
        "drained": window.drained,
        "problems": list(window.problems),
    }
    columns = _sample_columns(window.readings)
    columns[_AT_S] = np.array([reading.at_s for reading in window.readings], dtype=np.float64)
    if window.replicas:
        meta["replicas"] = [{"name": replica.name, "role": replica.role} for replica in window.replicas]
        for number, replica in enumerate(window.replicas):
            columns |= {f"{number}/{name}": column for name, column in _sample_columns(replica.readings).items()}
    return {
        "arm": window.arm.value,
        "stage": window.stage,
        "block": window.block,
        "position": window.position,
        "meta": to_json(meta, "what is known of the telemetry"),
        "n_rows": len(window.readings),
        **_encoded(columns),
    }


def _sample_columns(readings: Sequence[TelemetrySample]) -> dict[str, Any]:
    columns: dict[str, Any] = {
        metric.value: np.array([reading.values.get(metric, np.nan) for reading in readings], dtype=np.float64)
        for metric in sorted({metric for reading in readings for metric in reading.values})
    }
    columns[_MARKER] = tuple(reading.marker for reading in readings)
    return columns


def _read_samples(columns: Mapping[str, Any], instants: Sequence[float], prefix: str) -> tuple[TelemetrySample, ...]:
    own = {name.removeprefix(prefix): column for name, column in columns.items() if name.startswith(prefix)}
    values: dict[TelemetryMetric, list[float]] = {
        _TELEMETRY_METRICS[name]: np.asarray(column, dtype=np.float64).tolist()
        for name, column in own.items()
        if "/" not in name and name not in (_AT_S, _MARKER)
    }
    markers = [None if marker is None else str(marker) for marker in own[_MARKER]]
    return tuple(
        TelemetrySample(at_s, {one: column[i] for one, column in values.items() if not math.isnan(column[i])}, marker)
        for i, (at_s, marker) in enumerate(zip(instants, markers, strict=True))
    )


def read_telemetry(row: Mapping[str, Any]) -> TelemetryWindow:
    """Return the window of a row. Raises EvidenceError when its bytes are not those that were written."""
    columns = raw_records.decode(row)
    instants: list[float] = np.asarray(columns[_AT_S], dtype=np.float64).tolist()
    readings = _read_samples(columns, instants, "")
    if len(readings) != row["n_rows"]:
        raise EvidenceError(f"it holds {len(readings)} readings, not the {row['n_rows']} that were written")
    place = {name: row[name] for name in ("stage", "arm", "block", "position")}
    meta = json.loads(row["meta"])
    meta["replicas"] = [{**known, "readings": ()} for known in meta.get("replicas", ())]
    window = from_json(TelemetryWindow, {**meta, **place, "readings": (), "problems": meta["problems"]})
    replicas = tuple(
        replace(replica, readings=_read_samples(columns, instants, f"{number}/"))
        for number, replica in enumerate(window.replicas)
    )
    return replace(window, readings=readings, replicas=replicas)


def is_plain_text(value: object) -> bool:
    """Return True for a text that every database takes: without NUL and halves of surrogate pairs."""
    return isinstance(value, str) and "\0" not in value and not any("\ud800" <= char <= "\udfff" for char in value)


def check_rows(run_id: str, verdict_seq: int, document: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the checks of a verdict document as rows, in its order. Infinite and unmeasured numbers are NULL.

    Raises EvidenceError for values of other types, on which a database would fail.
    """
    for seq, check in enumerate(document.get("checks", ())):
        n, texts = check.get("n"), (check["id"], check["outcome"])
        is_count = n is None or (isinstance(n, int) and abs(n) < 2**63)
        if not (is_count and isinstance(check["required"], bool) and all(map(is_plain_text, texts))):
            raise EvidenceError(f"check {seq} of its document has an id, outcome, `required` or `n` of another type")
        policy = {name: check[name] for name in _CHECK_POLICY if check.get(name) is not None}
        numbers = {name: check.get(name) for name in _CHECK_NUMBERS}
        yield {
            "run_id": run_id,
            "verdict_seq": verdict_seq,
            "seq": seq,
            "check_id": check["id"],
            "outcome": check["outcome"],
            "required": int(check["required"]),
            **{name: float(value) if isinstance(value, int | float) else None for name, value in numbers.items()},
            "n": check.get("n"),
            "policy": to_json(policy, f"the policy of check {check['id']}"),
        }


def read_resumptions(run_id: str, events: Sequence[Row]) -> tuple[Resumption, ...]:
    """Return the resumptions in a run's events, oldest first. Raises EvidenceError for a damaged one."""
    found = []
    for event in events:
        if event["kind"] != RESUMED:
            continue
        try:
            data = json.loads(event["data"])
            lists = {name: tuple(data[name]) for name in ("again", "set_aside")}
            lists["same_process"] = tuple(data.get("same_process", ()))
            found.append(Resumption(**{**data, **lists, "at": _typed(data, "at", str)}))
        except (EvidenceError, *UNREADABLE) as exc:
            raise EvidenceError(f"run {run_id}: its journal does not tell how it went on: {exc}") from exc
    return tuple(found)


def excluded_seqs(found: Sequence[Resumption]) -> frozenset[int]:
    """Return the places of the records that resumptions excluded from the evidence."""
    return frozenset(seq for one in found for seq in one.set_aside)


def pending_spool(events: Iterable[tuple[str, Mapping[str, object]]]) -> str | None:
    """Return the spool that may hold more of a run than its store, by kind and data of its events.

    None where the store has everything, and for a run without a spool. The path is on the machine that measured it.
    """
    left: str | None = None
    for kind, data in events:
        if kind == SESSION_BEGUN:
            left = str(data.get("spool", "a place that its journal does not name"))
        elif kind == ALL_STORED:
            left = None
    return left


BY_SPOOL: Mapping[str, object] = {"by_spool": True}
"""Data of the event ALL_STORED where a spool was recovered; it is empty where the run's own process wrote it."""


def ended_by_spool(events: Iterable[tuple[str, Mapping[str, object]]]) -> bool:
    """Return True if the end of a run's last session is known from its spool alone, which may be incomplete."""
    last = [data for kind, data in events if kind in (SESSION_BEGUN, ALL_STORED)][-1:]
    return last == [BY_SPOOL]
