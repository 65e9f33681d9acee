"""Model values to table rows and back. Pure: knows no connection, only what each column holds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchgate.errors import EvidenceError, StoreError
from benchgate.model.columns import concatenate_columns, split_by_use
from benchgate.model.deployment import Arm, Deployment
from benchgate.model.records import (
    ColumnMap,
    DivergenceObservation,
    RequestColumns,
    divergence_from_json,
    divergence_to_json,
    pack_rows,
    unpack_divergence_items,
    unpack_eval_items,
    unpack_shadow_items,
)
from benchgate.model.run import (
    REPLICAS,
    RESUMED,
    BudgetReading,
    ClientUse,
    DeploymentFault,
    LoadObservation,
    QualityObservation,
    Run,
    RunStatus,
    ServerStart,
    ShadowObservation,
)
from benchgate.store import codec

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


def to_json(value: object, what: str) -> str:
    """The one JSON text of a value: sorted keys, ASCII, so that NUL and lone surrogates fit any database.

    Raises StoreError when the value holds NaN, infinity or something that is not JSON; `what` names it.
    """
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (ValueError, TypeError) as exc:
        raise StoreError(f"{what} cannot be stored: {exc}; only finite JSON values can") from exc


def text_sha256(text: str) -> str:
    """SHA-256 of a stored text, as hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def evidence_sha256(
    run: Mapping[str, Any],
    arms: Iterable[Mapping[str, Any]],
    observations: Iterable[Mapping[str, Any]],
    telemetry: Sequence[Sequence[object]] = (),
    events: Sequence[Mapping[str, Any]] = (),
) -> str:
    """One hash over a finished run: its row, its arms, all its observations and its telemetry in order.

    It changes when anything is altered, removed, added or moved. `telemetry` are the sealed columns of its rows; of its
    `events` those are covered that tell how it went on after it was cut short, for they say what counts no more, and
    counts of replicas. A run without telemetry, or without such events, has the hash it had before there was such a
    thing.
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
    """A new run's row; its arms have a table of their own."""
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
    """Raises StoreError for a text that Postgres would refuse and SQLite would cut: with a NUL or a lone surrogate."""
    if isinstance(value, str) and ("\0" in value or any("\ud800" <= char <= "\udfff" for char in value)):
        raise StoreError(f"{what} {value!r} cannot be stored: it is not plain text (NUL or half a character in it)")


def arm_row(run_id: str, arm: Arm, deployment: Deployment) -> Row:
    """One arm's row."""
    return {
        "run_id": run_id,
        "role": arm.value,
        "deployment": to_json(_told(deployment), f"the deployment of the {arm} arm"),
        "fingerprint": deployment.fingerprint,
    }


def _told(deployment: Deployment) -> dict[str, object]:
    """As JSON; what is said of no price is not written, as before there was any of it."""
    return {key: value for key, value in asdict(deployment).items() if value or key not in _LATER}


_LATER = ("price_terms", "token_prices", "price_entry")


def read_run(row: Mapping[str, Any], arms: Sequence[Mapping[str, Any]]) -> Run:
    """The run of a row and its arms' rows, baseline first."""
    deployments = {Arm(arm["role"]): Deployment(**json.loads(arm["deployment"])) for arm in arms}
    return Run(
        id=row["id"],
        suite_name=row["suite_name"],
        suite=json.loads(row["suite"]),
        suite_sha256=row["suite_sha256"],
        measurement_sha256=row["measurement_sha256"],
        plan_sha256=row["plan_sha256"],
        seed=row["seed"],
        tool_version=row["tool_version"],
        label=row["label"],
        status=RunStatus(row["status"]),
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        environment=json.loads(row["environment"]),
        arms={arm: deployments[arm] for arm in Arm if arm in deployments},
    )


def load_row(seen: LoadObservation) -> Row:
    """One load stage as a row, without its place in the run."""
    meta = {"window_s": seen.window_s, "client": asdict(seen.client)}
    place = {"arm": seen.arm.value, "stage": seen.stage, "block": seen.block, "position": seen.position}
    parts = [part for part in seen.parts if len(part)]
    rows = concatenate_columns(parts) if len(parts) > 1 else next(iter(parts), seen.requests)
    return _observation_row("load", meta, rows.to_columns(), seen.recorded, **place)


def quality_row(seen: QualityObservation) -> Row:
    """One eval task of one arm as a row."""
    meta: dict[str, object] = {"expected_n": seen.expected_n, "fault": seen.fault, "harness": dict(seen.harness)}
    if seen.repeat:
        meta["repeat"] = seen.repeat
    return _observation_row("quality", meta, pack_rows(seen.items), len(seen.items), arm=seen.arm.value, task=seen.task)


def divergence_row(seen: DivergenceObservation) -> Row:
    """The reading of the fixed texts as a row."""
    return _observation_row("divergence", divergence_to_json(seen), pack_rows(seen.items), len(seen.items))


def shadow_row(seen: ShadowObservation) -> Row:
    """The shadow comparison as a row."""
    meta = {"expected_n": seen.expected_n, "fault": seen.fault}
    return _observation_row("shadow", meta, pack_rows(seen.items), len(seen.items))


def target_fault_row(fault: DeploymentFault) -> Row:
    """A deployment that was not there, as a row without columns."""
    return _observation_row("target_fault", {"when": fault.when, "reason": fault.reason}, {}, 0, arm=fault.arm.value)


def start_row(start: ServerStart) -> Row:
    """One start of a deployment's server, as a row without columns."""
    return _observation_row(
        "start", {"number": start.number, "to_answer_s": start.to_answer_s}, {}, 0, arm=start.arm.value
    )


def budget_row(spent: BudgetReading) -> Row:
    """What production had spent of its error budget, as a row without columns."""
    return _observation_row("error_budget", asdict(spent), {}, 0)


def read_observation(row: Mapping[str, Any]) -> Observation:
    """The observation of a row. Raises EvidenceError when its bytes are not those that were written."""
    columns: ColumnMap = codec.decode(row["data"], codec=row["codec"], sha256=row["sha256"])
    meta = json.loads(row["meta"])
    seen: Observation
    match row["kind"]:
        case "load":
            seen = _read_load(row, meta, columns)
            rows = seen.recorded
        case "quality":
            items = unpack_eval_items(columns)
            seen, rows = QualityObservation(row["task"], Arm(row["arm"]), items, **meta), len(items)
        case "divergence":
            seen = divergence_from_json(unpack_divergence_items(columns), meta)
            rows = len(seen.items)
        case "shadow":
            prompts = unpack_shadow_items(columns)
            seen, rows = ShadowObservation(prompts, **meta), len(prompts)
        case "target_fault":
            seen, rows = DeploymentFault(Arm(row["arm"]), **meta), 0
        case "start":
            seen, rows = ServerStart(Arm(row["arm"]), **meta), 0
        case "error_budget":
            seen, rows = BudgetReading(**meta), 0
        case kind:
            raise EvidenceError(f"it is of the unknown kind {kind!r}; install a newer benchgate")
    if rows != row["n_rows"]:
        raise EvidenceError(f"it holds {rows} rows, not the {row['n_rows']} that were written")
    return seen


def _read_load(row: Mapping[str, Any], meta: Mapping[str, Any], columns: ColumnMap) -> LoadObservation:
    parts = split_by_use(RequestColumns.from_columns(columns))
    return LoadObservation(
        stage=row["stage"],
        arm=Arm(row["arm"]),
        block=row["block"],
        position=row["position"],
        requests=parts.measured,
        window_s=meta["window_s"],
        client=ClientUse(**{**meta["client"], "faults": tuple(meta["client"].get("faults", ()))}),
        left=parts.left,
        ramp=parts.ramp,
    )


def _observation_row(kind: str, meta: object, columns: ColumnMap, n_rows: int, **place: str | int) -> Row:
    for name, value in place.items():
        check_text(value, f"the observation's {name}")
    data = codec.encode(columns)
    return {
        "kind": kind,
        "arm": None,
        "stage": None,
        "task": None,
        "block": None,
        "position": None,
        **place,
        "meta": to_json(meta, f"what is known of the {kind} observation"),
        "codec": codec.CODEC,
        "sha256": codec.digest(data),
        "n_rows": n_rows,
        "data": data,
    }
