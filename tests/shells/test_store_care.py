"""Care for a store, on SQLite and on a real Postgres: what is wrong is found and told, and what goes, goes for good."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import text

from benchgate.errors import EvidenceError, StoreError
from benchgate.model.deployment import Arm
from benchgate.model.run import MetricRow, Run, RunStatus
from benchgate.model.verdict import Outcome
from benchgate.store.database import Address, Database
from benchgate.store.repository import Store
from benchgate.store.retention import Policy
from tests.e2e.command import here
from tests.fakes.promotable import write_record
from tests.shells.store_samples import (
    DONE_AT,
    PLAN,
    make_load,
    make_noise,
    make_requests,
    make_run,
    make_telemetry,
    write_run,
)

pytest_plugins = ["tests.shells.store_databases"]

NOW = "2027-01-01T00:00:00Z"  # 41 days and a half after the samples ended
REASON = "benchgate store gc --raw-older-than 30d"


def altered(address: str, *statements: str) -> None:
    """What somebody who may alter the database does: guards off, links unwatched, change, guards on."""
    database = Database.connect(Address.parse(address))
    with database.engine.connect() as connection:
        guards: Sequence[tuple[str, str]] = ()
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("COMMIT")
            connection.exec_driver_sql("PRAGMA foreign_keys=OFF")
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            listed = connection.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
            guards = [(name, created) for name, created in listed]
            for name, _ in guards:
                connection.exec_driver_sql(f"DROP TRIGGER {name}")
        else:
            connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        for statement in statements:
            connection.execute(text(statement))
        for _, created in guards:
            connection.exec_driver_sql(created)
        connection.commit()
    database.close()


def full_run(store: Store, **changes: Any) -> Run:
    """A finished run with telemetry, a verdict of its own with a check, and numbers."""
    run = make_run(**changes)
    writer = store.begin_run(run, PLAN)
    writer.add(make_load())
    writer.add(make_telemetry())
    writer.add(make_load(Arm.CANDIDATE, position=1))
    writer.event("ended", {"why": "decided"})
    writer.finish(RunStatus.COMPLETE, DONE_AT)
    check = {"id": "ttft", "outcome": "BLOCK", "required": True, "harm": 0.1, "lower": 0.05, "upper": "inf", "n": 5}
    store.save_verdict(run.id, {"outcome": "BLOCK", "checks": [check]}, decided_at=DONE_AT)
    store.save_metrics(
        run.id,
        [
            MetricRow(Arm.CANDIDATE, "ttft", "p50", "c4", None, 0.2, 5, 0.15, 0.25),
            MetricRow(Arm.BASELINE, "ttft", "p50", "c4", None, 0.1, 5),
            MetricRow(Arm.CANDIDATE, "recovery", None, None, "t", 1.01, 5, 0.9, 1.1),
        ],
    )
    return run


def removed(store: Store, policy: Policy = Policy()) -> list[str]:  # noqa: B008 - a frozen value
    done = store.remove_raw(store.expendable(policy, NOW), now=NOW, reason=REASON)
    assert done.stayed == ()
    return [run.run_id for run in done.runs]


def test_a_store_that_was_left_alone_is_sound_and_its_rows_are_counted(store: Store) -> None:
    full_run(store)
    write_run(store)
    store.begin_run(make_run(), PLAN).add(make_load())
    store.save_noise_profile(make_noise(full_run(store)))
    checked = store.check()
    assert checked.findings == ()
    expected = {"runs": 4, "plans": 1, "observation rows": 11, "telemetry rows": 2, "verdicts": 2, "checks": 2}
    assert {name: checked.rows[name] for name in expected} == expected
    assert (checked.rows["metrics"], checked.rows["noise profiles"]) == (6, 1)


ALTERED: Sequence[tuple[str, str, str]] = (
    ("UPDATE observation SET data = plan.data FROM plan WHERE {} AND seq = 0", "observation 0", "its bytes hash to"),
    ("UPDATE telemetry SET data = plan.data FROM plan WHERE {} AND seq = 1", "telemetry 1", "its bytes hash to"),
    ("UPDATE observation SET codec = 'columns/9' WHERE {} AND seq = 0", "observation 0", "columns/9"),
    ("UPDATE observation SET block = 7 WHERE {} AND seq = 0", "run", "its evidence hashes to"),
    ("DELETE FROM telemetry WHERE {}", "run", "its evidence hashes to"),
    ("UPDATE run SET label = 'other' WHERE {}", "run", "its evidence hashes to"),
    ("UPDATE run SET evidence_sha256 = NULL WHERE {}", "run", "no hash covers its evidence"),
    ("UPDATE run SET status = 'running' WHERE {}", "run", "it is running, and has the hash"),
    ("UPDATE run SET status = 'great' WHERE {}", "run", "its status is 'great'"),
    ("UPDATE run SET finished_at = NULL WHERE {}", "run", "does not say when it ended"),
    ("UPDATE verdict SET document = '{{}}' WHERE {}", "verdict 0", "does not hash"),
    ("UPDATE verdict SET outcome = 'PASS' WHERE {}", "verdict 0", "is listed as PASS"),
    ("UPDATE verdict SET own = 0 WHERE {}", "verdict 0", "it judges the run itself, and is listed"),
    ("UPDATE check_result SET outcome = 'PASS' WHERE {}", "verdict 0", "rows of its checks"),
    ("UPDATE metric SET value = -1 WHERE {} AND seq = 0", "metric 0", "candidate ttft p50 c4 cannot be -1"),
    ("UPDATE metric SET name = 'error_rate', value = 1.5 WHERE {} AND seq = 1", "metric 1", "cannot be 1.5"),
    ("UPDATE metric SET lower = 0.3 WHERE {} AND seq = 0", "metric 0", "limits 0.3 and 0.25"),
    ("UPDATE metric SET upper = NULL WHERE {} AND seq = 0", "metric 0", "limits 0.15 and None"),
    ("UPDATE metric SET value = 9e999 WHERE {} AND seq = 0", "metric 0", "cannot be inf"),
    ("UPDATE metric SET arm = 'third' WHERE {} AND seq = 0", "metric 0", "'third', which the run does not have"),
    ("DELETE FROM arm WHERE {} AND role = 'baseline'", "run", "its evidence hashes to"),
    ("DELETE FROM run WHERE {}", "table observation", "which is not there"),
    ("UPDATE run SET plan_sha256 = 'nobody' WHERE {}", "table run", "it has rows of plan nobody"),
)  # fmt: skip


def test_whatever_was_altered_is_found_in_its_run_and_at_its_place(store: Store, store_address: str) -> None:
    runs = [full_run(store) for _ in ALTERED]
    changes = []
    for run, (change, _, _) in zip(runs, ALTERED, strict=True):
        key = "id" if change.startswith(("UPDATE run", "DELETE FROM run")) else "run_id"
        value = "CAST('Infinity' AS double precision)" if "postgres" in store_address else "9e999"
        changes.append(change.format(f"{key} = '{run.id}'").replace("9e999", value))
    altered(store_address, *changes)
    findings = store.check().findings
    for run, (change, place, problem) in zip(runs, ALTERED, strict=True):
        of_run = [one for one in findings if one.run_id == run.id]
        assert any(one.place == place and problem in one.problem for one in of_run), (change, of_run)


def test_a_damaged_plan_profile_and_missing_guard_are_found(store: Store, store_address: str) -> None:
    run = full_run(store)
    store.save_noise_profile(make_noise(run))
    altered(
        store_address,
        "UPDATE plan SET data = (SELECT data FROM observation WHERE seq = 0)",
        "UPDATE noise_profile SET document = '{}'",
    )
    database = Database.connect(Address.parse(store_address))
    with database.writing() as connection:
        of_sqlite = connection.dialect.name == "sqlite"
        connection.execute(
            text("DROP TRIGGER plan_no_update" if of_sqlite else "ALTER TABLE plan DISABLE TRIGGER USER")
        )
        if of_sqlite:
            connection.execute(text("DROP TRIGGER plan_no_delete"))
    database.close()
    found = {(one.run_id, one.place.split()[0]) for one in store.check().findings}
    assert found == {(run.id, "plan"), (run.id, "noise_profile"), (None, "table")}


def test_a_file_that_is_damaged_is_the_one_finding_there_is(tmp_path: Path) -> None:
    path = tmp_path / "benchgate.db"
    with Store.open(str(path)) as store:
        full_run(store)
        store.vacuum()
        size = path.stat().st_size
        with path.open("r+b") as file:  # the last page: of no index that opening needs
            file.seek(size - 4096)
            file.write(b"\xff" * 4096)
        try:
            findings = store.check().findings
        except StoreError as error:
            assert "malformed" in str(error)
        else:
            assert {one.place for one in findings} == {"the file"}


def test_raw_records_go_and_all_that_was_concluded_stays(store: Store, store_address: str) -> None:
    old = full_run(store, label="old")
    new = full_run(store, label="new")
    before = store.trend("ttft"), store.verdicts(old.id), store.metrics(old.id), store.run(old.id)
    assert removed(store) == [old.id]
    assert (store.trend("ttft"), store.verdicts(old.id), store.metrics(old.id), store.run(old.id)) == before
    assert (gone := store.removal(old.id)) is not None
    assert (gone.removed_at, gone.reason, gone.n_rows) == (NOW, REASON, 3)
    assert store.removal(new.id) is None
    assert len(store.evidence(new.id).load) == 2
    with pytest.raises(EvidenceError, match=f"run {old.id}: .* removed on 2027-01-01 by `{REASON}`.*BLOCK, stands"):
        store.evidence(old.id)
    assert store.check().findings == ()
    assert store.expendable(Policy(), NOW) == []
    assert store.own_outcome(old.id) is Outcome.BLOCK


def test_what_is_left_of_a_run_still_shows_any_change(store: Store, store_address: str) -> None:
    runs = [full_run(store) for _ in range(6)]
    assert len(removed(store)) == 5
    changes = (
        "UPDATE tombstone SET sealed = replace(sealed, 'c4', 'c5') WHERE {}",
        "UPDATE tombstone SET sha256 = 'x' WHERE {} AND seq = 0",
        "DELETE FROM tombstone WHERE {} AND seq = 1",
        "UPDATE tombstone SET sealed = '[1]' WHERE {} AND seq = 0",
        "UPDATE tombstone SET of_table = 'dream' WHERE {} AND seq = 0",
    )
    pairs = list(zip(runs, changes, strict=False))
    altered(store_address, *(change.format(f"run_id = '{run.id}'") for run, change in pairs))
    found = [one.run_id for one in store.check().findings]
    assert sorted(map(str, found)) == sorted(run.id for run, _ in pairs)


def test_no_record_goes_without_its_tombstone_and_no_tombstone_ever_goes(store: Store, store_address: str) -> None:
    full_run(store)
    full_run(store)
    removed(store)
    database = Database.connect(Address.parse(store_address))
    changes = (
        "DELETE FROM observation",
        "DELETE FROM telemetry",
        "DELETE FROM tombstone",
        "UPDATE tombstone SET seq = 9",
    )
    for statement in changes:
        with pytest.raises(StoreError), database.writing() as connection:
            connection.execute(text(statement))
    database.close()


def test_a_policy_keeps_new_promoted_open_and_newest_runs(store: Store, store_address: str) -> None:
    old, promoted, middle, other, newest = (
        full_run(store, suite_name="other" if name == "other" else "smoke", label=name)
        for name in ("old", "promoted", "middle", "other", "newest")
    )
    running = store.begin_run(make_run(), PLAN)
    running.add(make_load())
    write_record(store_address, promoted.id, DONE_AT, "smoke")

    def may_go(policy: Policy) -> list[str]:
        return sorted(run.label or "" for run in store.expendable(policy, NOW))

    assert may_go(Policy()) == ["middle", "old"]
    assert may_go(Policy(keep_last=0)) == ["middle", "old"]
    assert may_go(Policy(keep_last=2)) == ["old"]
    assert may_go(Policy(older_than_s=41 * 86_400.0)) == ["middle", "old"]
    assert may_go(Policy(older_than_s=42 * 86_400.0)) == []
    assert may_go(Policy(suite="other")) == []
    assert may_go(Policy(suite="smoke", keep_last=3)) == ["old"]
    assert {old.id, middle.id, other.id, newest.id} >= set(removed(store))


@pytest.mark.parametrize("part", ["load", "quick"])
def test_a_run_of_one_part_takes_no_complete_runs_place(store: Store, part: str) -> None:
    full_run(store, label="whole")
    environment = make_run().environment
    for label in ("older part", "part"):
        full_run(store, label=label, environment={**environment, "only": part})
    assert [run.label for run in store.expendable(Policy(), NOW)] == ["older part"]


def test_a_run_that_does_not_hash_stays_and_is_named(store: Store, store_address: str) -> None:
    damaged, sound, _ = (full_run(store) for _ in range(3))
    altered(store_address, f"UPDATE observation SET block = 7 WHERE run_id = '{damaged.id}' AND seq = 0")
    done = store.remove_raw(store.expendable(Policy(), NOW), now=NOW, reason=REASON)
    assert [run.run_id for run in done.runs] == [sound.id]
    ((stayed, why),) = done.stayed
    assert stayed == damaged.id
    assert "its evidence hashes to" in why
    assert store.removal(damaged.id) is None


def test_sizes_tell_tables_runs_and_what_could_go(store: Store, store_address: str) -> None:
    full_run(store)
    full_run(store, suite_name="other")
    full_run(store)
    store.begin_run(make_run(), PLAN)
    sizes = store.sizes(NOW)
    assert sizes.runs == {("other", "complete"): 1, ("smoke", "complete"): 2, ("smoke", "running"): 1}
    rows = {table.name: table.n_rows for table in sizes.tables}
    assert (rows["run"], rows["observation"], rows["metric"], rows["check_result"]) == (4, 6, 9, 3)
    assert sizes.n_bytes > 10_000
    n_bytes = {table.name: table.n_bytes for table in sizes.tables}
    assert 1_000 < n_bytes["observation"] < sizes.n_bytes
    assert n_bytes["run"] > 100
    (spare,) = sizes.expendable
    assert (spare.n_rows, spare.n_records) == (3, 16)
    assert removed(store) == [spare.run_id]
    assert store.sizes(NOW).removed == 1
    assert store.sizes(NOW).expendable == ()


def test_sizes_are_those_of_the_contents_where_sqlite_tells_of_no_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchgate.store.retention._bytes_by_table", lambda *_: {})
    with Store.open(str(tmp_path / "benchgate.db")) as store:
        run = full_run(store)
        n_bytes = {table.name: table.n_bytes for table in store.sizes(NOW).tables}
        raw = store.remove_raw(store.expendable(Policy(), NOW), now=NOW, reason=REASON)
    assert raw.runs == ()
    assert 1_000 < n_bytes["observation"] < 10_000
    assert len(run.id) < n_bytes["run"] < 10_000
    assert n_bytes["event"] == len(run.id) + 8 + len("ended") + len('{"why":"decided"}')


def test_vacuum_gives_the_room_of_an_sqlite_store_back(tmp_path: Path) -> None:
    path = tmp_path / "benchgate.db"
    with Store.open(str(path)) as store:
        noise = np.random.default_rng(1).integers(0, 2**62, 100_000)
        requests = make_requests()
        starts = np.append(requests.chunk_start[:-1], len(noise))  # the last request has all the rest
        noisy = dataclasses.replace(requests, chunk_ns=noise, chunk_start=starts)
        for _ in range(2):
            writer = store.begin_run(make_run(), PLAN)
            writer.add(dataclasses.replace(make_load(), requests=noisy))
            writer.finish(RunStatus.COMPLETE, DONE_AT)
        store.vacuum()
        before = path.stat().st_size
        removed(store)
        assert path.stat().st_size == before
        store.vacuum()
        assert path.stat().st_size < 0.7 * before
        assert store.check().findings == ()


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A folder with a store of three runs, of which `gc` has bared the first."""
    with Store.open(str(tmp_path / "benchgate.db")) as store:
        runs = [full_run(store, label=label) for label in ("first", "second", "third")]
        store.save_verdict(runs[1].id, {"outcome": "PASS", "checks": []}, decided_at=NOW)
    result = here(tmp_path, "store", "gc", "--keep-last", "2", "--store", "benchgate.db")
    assert result.returncode == 0, result.stderr
    assert "raw records of 1 run, " in result.stdout
    return tmp_path


def test_the_command_removes_nothing_that_nobody_named(kept: Path) -> None:
    nothing = here(kept, "store", "gc", "--store", "benchgate.db")
    assert (nothing.returncode, "--raw-older-than 90d" in nothing.stderr) == (2, True)
    for wrong, says in (
        (("--raw-older-than", "90"), "90d is 90 days"),
        (("--keep-last", "1", "--suite", "smokey"), "no run of a suite 'smokey'"),
        (("--keep-last", "0"), "keep-last"),
    ):
        result = here(kept, "store", "gc", *wrong, "--store", "benchgate.db")
        assert (result.returncode, says in result.stderr) == (2, True), result.stderr
    dry = here(kept, "store", "gc", "--keep-last", "1", "--dry-run", "--format", "json", "--store", "benchgate.db")
    document = json.loads(dry.stdout)
    assert (document["dry_run"], [run["label"] for run in document["removed"]]) == (True, ["second"])
    assert document["kept"] == {"among the newest of its suite": 1}
    young = here(kept, "store", "gc", "--raw-older-than", "90000d", "--store", "benchgate.db")
    assert "raw records of 0 runs" in young.stdout
    assert young.stdout.splitlines()[-1] == "kept: 1 among the newest of its suite, 1 not old enough"
    told = here(kept, "store", "info", "--store", "benchgate.db").stdout
    assert "removed from 1 runs" in told
    assert "smoke" in told


def test_check_exits_with_13_for_a_finding(kept: Path) -> None:
    sound = here(kept, "store", "check", "--store", "benchgate.db")
    assert (sound.returncode, "no findings" in sound.stdout) == (0, True), sound.stderr
    altered(str(kept / "benchgate.db"), "UPDATE verdict SET outcome = 'PASS' WHERE outcome = 'BLOCK'")
    wrong = here(kept, "store", "check", "--format", "json", "--store", "benchgate.db")
    document = json.loads(wrong.stdout)
    assert (wrong.returncode, document["sound"], len(document["findings"])) == (13, False, 3)
    assert document["rows"]["runs"] > 0
    assert here(kept, "store", "check", "--store", "nowhere.db").returncode == 2


def test_a_bared_run_is_compared_by_its_numbers_and_never_passes(kept: Path) -> None:
    result = here(kept, "compare", "first", "second", "--format", "json", "--store", "benchgate.db")
    document = json.loads(result.stdout)
    assert (result.returncode, document["outcome"], document["promotes"]) == (11, "INCONCLUSIVE", False)
    (ttft, recovery) = document["numbers"]
    assert (ttft["baseline"]["value"], ttft["baseline_beside"]["value"], ttft["change_ratio"]) == (0.2, 0.1, 0.0)
    assert recovery["candidate"]["upper"] == 1.1
    assert document["against"]["removed_by"] == "benchgate store gc --keep-last 2"
    assert document["stored_checks"] == [
        {
            "id": "ttft",
            "baseline": dict.fromkeys(("baseline", "candidate", "margin"))
            | {"outcome": "BLOCK", "harm": 0.1, "lower": 0.05, "upper": "inf", "n": 5},
            "candidate": None,
        }
    ]
    gate = here(kept, "compare", "first", "second", "--store", "benchgate.db")
    assert (gate.returncode, gate.stdout.startswith("◆ INCONCLUSIVE")) == (11, True)
    with Store.open(str(kept / "benchgate.db")) as store:
        assert [len(store.verdicts(run.id)) for run in store.runs()] == [1, 2, 1]


@pytest.mark.parametrize("command", [("gate", "first"), ("report", "first")], ids=lambda words: words[0])
def test_what_needs_raw_records_says_that_they_are_gone_and_what_stands(kept: Path, command: tuple[str, ...]) -> None:
    result = here(kept, *command, "--store", "benchgate.db")
    assert result.returncode == 13
    assert "raw records were removed on" in result.stderr
    assert "BLOCK, stands" in result.stderr
    (kept / "w.yaml").write_text("waivers: []\n")
    for words in (("--report", "r.html"), ("--waivers", "w.yaml"), ("--as-of", "2026-01-01"), ("--explain", "ttft")):
        asked = here(kept, "compare", "first", "second", *words, "--store", "benchgate.db")
        assert (asked.returncode, f"{words[0]} is of a decision" in asked.stderr) == (2, True)


def test_numbers_keep_their_intervals_in_trends(store: Store) -> None:
    run = full_run(store)
    (point,) = store.trend("ttft", arm=Arm.CANDIDATE)
    assert (point.value, point.lower, point.upper, point.outcome) == (0.2, 0.15, 0.25, Outcome.BLOCK)
    assert [dataclasses.astuple(row)[-2:] for row in store.metrics(run.id)] == [(0.15, 0.25), (None, None), (0.9, 1.1)]
