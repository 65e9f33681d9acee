"""Telemetry in the store: kept to the bit, sealed with the rest of the evidence, never changed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import text

from benchgate.errors import EvidenceError, StoreError
from benchgate.model.deployment import Arm
from benchgate.model.run import RunStatus
from benchgate.model.telemetry import Counter, Gauge, Replica, Role, TelemetrySample, TelemetryWindow
from benchgate.store.database import Address, Database
from benchgate.store.repository import Store
from tests.shells.store_samples import DONE_AT, NASTY, PLAN, make_load, make_run

pytest_plugins = ["tests.shells.store_databases"]

WINDOW = TelemetryWindow(
    stage="c4",
    arm=Arm.CANDIDATE,
    block=3,
    position=7,
    engine="vllm",
    ended_s=0.1 + 0.2,
    drained=True,
    readings=(
        TelemetrySample(0.0, {Counter.REQUESTS: 5.0, Gauge.KV_USAGE: 0.0}, "1795181646.56"),
        TelemetrySample(1.0, {}),
        TelemetrySample(2.5, {Counter.REQUESTS: 5.0 + 2**-40, Gauge.GPU_POWER: 301.25}, NASTY),
    ),
    problems=(NASTY, "could not be read"),
)
FLEET = replace(
    WINDOW,
    replicas=tuple(
        Replica(name, role, tuple(TelemetrySample(r.at_s, values, r.marker) for r in WINDOW.readings))
        for name, role, values in (
            ("host:8000", Role.PREFILL, WINDOW.readings[0].values),
            (NASTY, None, {}),
        )
    ),
)
SILENT = TelemetryWindow("c4", Arm.BASELINE, 0, 1, None, 3.0, False, (), ("HTTP 404",))


def write(store: Store, *windows: TelemetryWindow) -> str:
    run = make_run()
    writer = store.begin_run(run, PLAN)
    writer.add(make_load())
    for window in windows:
        writer.add(window)
    writer.finish(RunStatus.COMPLETE, DONE_AT)
    return run.id


def execute(address: str, statement: str) -> None:
    database = Database.connect(Address.parse(address))
    try:
        with database.writing() as connection:
            connection.execute(text(statement))
    finally:
        database.close()


def test_windows_come_back_as_they_were_written_and_in_order(store: Store) -> None:
    run_id = write(store, WINDOW, SILENT, FLEET)
    assert store.evidence(run_id).telemetry == (WINDOW, SILENT, FLEET)


def test_a_run_without_telemetry_has_none(store: Store) -> None:
    assert store.evidence(write(store)).telemetry == ()


def test_telemetry_never_changes_and_a_finished_run_takes_no_more(store: Store, store_address: str) -> None:
    write(store, WINDOW)
    for statement, message in (
        ("UPDATE telemetry SET meta = '{}'", "never change"),
        ("DELETE FROM telemetry", "only after their tombstone"),
        (
            "INSERT INTO telemetry SELECT run_id, seq + 9, arm, stage, block, position, meta, codec, sha256, n_rows, "
            "data FROM telemetry",
            "takes no more evidence",
        ),
    ):
        with pytest.raises(StoreError, match=message):
            execute(store_address, statement)


def _unguarded(address: str, statement: str) -> None:
    """What somebody who may alter the database could do."""
    sqlite = "postgres" not in address
    if sqlite:
        execute(address, "DROP TRIGGER telemetry_no_update")
        execute(address, "DROP TRIGGER telemetry_no_delete")
    else:
        execute(address, "ALTER TABLE telemetry DISABLE TRIGGER USER")
    execute(address, statement)


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("UPDATE telemetry SET sha256 = 'x'", "telemetry 1 .candidate c4.: its bytes hash to"),
        ("UPDATE telemetry SET block = 1", "not what it was"),
        ("DELETE FROM telemetry", "not what it was"),
    ],
)
def test_telemetry_that_was_altered_or_taken_away_is_noticed(
    store: Store, store_address: str, statement: str, says: str
) -> None:
    run_id = write(store, WINDOW)
    _unguarded(store_address, statement)
    with pytest.raises(EvidenceError, match=says):
        store.evidence(run_id)
