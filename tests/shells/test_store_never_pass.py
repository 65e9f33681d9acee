"""Whatever is removed, changed, swapped or cut in the rows of a run that must not pass, `gate` never promotes it.

What is damaged is the run's own: its row, its arms, its observations, telemetry and journal, and the plan. Earlier runs
of the store, whose promotions add up, are runs of their own, which somebody may remove. Whoever also computes the
run's hash anew has forged it: `test_what_holds_a_stored_run_is_its_hash` shows that nothing else stands in the way.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

import pytest

from benchgate.errors import BenchgateError
from benchgate.model.deployment import Arm
from benchgate.model.run import AT_THE_END, RESUMED, DeploymentFault, Evidence, Resumption, RunStatus
from benchgate.model.telemetry import Counter, TelemetrySample, TelemetryWindow
from benchgate.model.verdict import Outcome
from benchgate.pipeline.judge import decide_stored
from benchgate.store.evidence import rows_of
from benchgate.store.migrate import opened
from benchgate.store.repository import Store
from benchgate.store.stored_run import run_row
from tests.e2e.command import here
from tests.fakes.measured import Effect, SuiteText, measured

PLAN = b'{"blocks":[]}'
DONE_AT = "2026-11-20T13:00:00Z"
RUN = "0190b2c4-7d1e-7a3b-9c5f-2e8d6a4b1f03"
CHECKS: list[dict[str, object]] = [
    {"metric": "ttft", "margin": "10%"},
    {"metric": "error_rate", "margin": "5 points"},
    {"metric": "accuracy", "margin": "5 points"},
]
TABLES = ("run", "arm", "observation", "telemetry", "event", "plan")
QUICK = 40  # one damage of so many is tried in the quick tier


def found_by(candidate: Effect) -> Evidence:
    suite = SuiteText(CHECKS, blocks=6, requests=30).suite()
    return measured(suite, candidate, items=60, prompts=40, run_id=RUN)


FAULT = DeploymentFault(Arm.CANDIDATE, AT_THE_END, "no answer")
MUST_NOT_PASS = ("fault", "interrupted", "slow", "wrong", "partial")


def written(folder: Path, kind: str, *, spool: Path | None = None) -> Path:
    """A store with one run: sound, or refused for what `kind` says of it."""
    effects = {"slow": Effect(slowdown=1.5), "wrong": Effect(wrong=tuple(range(0, 60, 3)))}
    evidence = found_by(effects.get(kind, Effect()))
    run = replace(
        evidence.run, status=RunStatus.RUNNING, finished_at=None, plan_sha256=hashlib.sha256(PLAN).hexdigest()
    )
    address = folder / "runs.db"
    with Store.open(str(address)) as store:
        writer = store.begin_run(run, PLAN, spool=spool)
        for seen in (*evidence.load, *evidence.quality, evidence.shadow, *((FAULT,) if kind == "fault" else ())):
            assert seen is not None
            writer.add(seen)
        for arm in Arm:
            readings = tuple(TelemetrySample(float(at), {Counter.REQUESTS: 30.0 * at}) for at in range(2))
            writer.add(TelemetryWindow("c4", arm, 0, 0, "vllm", 3.0, True, readings))
        if kind == "interrupted":
            for hour in (1, 2):
                writer.event(RESUMED, asdict(Resumption(f"2026-11-20T0{hour}:00:00Z", hour, (), ())))
        if kind == "partial":
            writer.suspend()
        else:
            writer.finish(RunStatus.COMPLETE, DONE_AT)
    return address


def outcome_of(address: Path) -> Outcome | None:
    """Return what `gate` says; None where it refuses the run."""
    try:
        with Store.open(str(address)) as store:
            return decide_stored(store, RUN, keep=False).verdict.outcome
    except BenchgateError:
        return None


# Damage


class Damage(NamedTuple):
    """One change of one row, and what it is called."""

    name: str
    statement: str
    values: tuple[object, ...]


def damages(address: Path) -> Iterator[Damage]:
    """Yield every damage of its rows: each row removed or there twice, each of its values changed in several ways."""
    with closing(sqlite3.connect(address)) as connection:
        connection.row_factory = sqlite3.Row
        for table in TABLES:
            keys = [row["name"] for row in connection.execute(f"PRAGMA table_info({table})") if row["pk"]]
            rows = [dict(row) for row in connection.execute(f"SELECT * FROM {table}")]
            for row, other in zip(rows, [*rows[1:], *rows[:1]], strict=True):
                where = " AND ".join(f"{key} = ?" for key in keys)
                place = tuple(row[key] for key in keys)
                name = f"{table} {' '.join(map(str, place))[-24:]}"
                yield Damage(f"{name}: removed", f"DELETE FROM {table} WHERE {where}", place)
                if "seq" in row:
                    again = {**row, "seq": row["seq"] + 1000}
                    into = f"INSERT INTO {table} ({', '.join(again)}) VALUES ({', '.join('?' * len(again))})"
                    yield Damage(f"{name}: there twice", into, tuple(again.values()))
                for column, value in row.items():
                    for number, changed in enumerate(changed_values(value, other[column])):
                        update = f"UPDATE {table} SET {column} = ? WHERE {where}"
                        yield Damage(f"{name}: {column} changed ({number})", update, (changed, *place))
                        if column == "data" and isinstance(changed, bytes):
                            update = f"UPDATE {table} SET data = ?, sha256 = ? WHERE {where}"
                            digest = hashlib.sha256(changed).hexdigest()
                            if "sha256" not in keys:
                                yield Damage(
                                    f"{name}: data changed with its hash ({number})", update, (changed, digest, *place)
                                )


def changed_values(value: object, other: object) -> Iterator[object]:
    """Yield other values in place of one: nothing, the next row's, a part of it, and its own with one thing changed."""
    found: list[object] = [None, other]
    if isinstance(value, int):
        found += [0, -1, value + 1]
    elif isinstance(value, bytes):
        middle = len(value) // 2
        found += [
            b"",
            value[:middle],
            value[:middle] + bytes([value[middle] ^ 1]) + value[middle + 1 :] if value else b"x",
        ]
    elif isinstance(value, str):
        found += ["", value[: len(value) // 2], "complete", *changed_json(value)]
    yield from (one for one in found if one != value)


def changed_json(text: str) -> Iterator[str]:
    """Yield a document with a key less, and with one value changed, for each of its keys."""
    try:
        document = json.loads(text)
    except ValueError:
        return
    for key in document if isinstance(document, dict) else ():
        yield json.dumps({name: one for name, one in document.items() if name != key}, sort_keys=True)
        value = document[key]
        changed = not value if isinstance(value, bool) else value + 1 if isinstance(value, int | float) else None
        yield json.dumps({**document, key: changed}, sort_keys=True)


def damaged(address: Path, damage: Damage, folder: Path) -> Path | None:
    """Return a copy of the store with this damage; None where the database itself refuses it."""
    copy = folder / "damaged.db"
    shutil.copy(address, copy)
    with closing(sqlite3.connect(copy)) as connection:
        connection.execute("PRAGMA foreign_keys=OFF")
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        try:
            connection.execute(damage.statement, damage.values)
        except sqlite3.IntegrityError:
            return None
        connection.commit()
    return copy


def promoting(address: Path, folder: Path, chosen: list[Damage]) -> list[str]:
    """Return the damages after which the run is promoted."""
    found = []
    for damage in chosen:
        copy = damaged(address, damage, folder)
        outcome = None if copy is None else outcome_of(copy)
        found += [f"{damage.name}: {outcome}"] if outcome is not None and outcome.promotes else []
    return found


@pytest.mark.parametrize("kind", MUST_NOT_PASS)
def test_no_damage_of_its_rows_promotes_a_stored_run(kind: str, tmp_path: Path) -> None:
    address = written(tmp_path, kind)
    undamaged = outcome_of(address)
    assert undamaged is not None and not undamaged.promotes
    chosen = list(damages(address))[MUST_NOT_PASS.index(kind) :: QUICK * len(MUST_NOT_PASS)]
    assert promoting(address, tmp_path, chosen) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", MUST_NOT_PASS)
def test_none_of_all_damages_of_its_rows_promotes_a_stored_run(kind: str, tmp_path: Path) -> None:
    address = written(tmp_path, kind)
    assert promoting(address, tmp_path, list(damages(address))) == []


def test_what_holds_a_stored_run_is_its_hash(tmp_path: Path) -> None:
    """Without the fault the run passes, and so it does when the fault is removed and the hash is made anew."""
    address = written(tmp_path, "fault")
    removed = Damage("", "DELETE FROM observation WHERE kind = ?", ("target_fault",))
    copy = damaged(address, removed, tmp_path)
    assert copy is not None and outcome_of(copy) is None
    with opened(str(copy), create=False) as database, database.reading() as connection:
        sha256 = rows_of(connection, run_row(connection, RUN)).sha256()
    with closing(sqlite3.connect(copy)) as connection:
        connection.execute("UPDATE run SET evidence_sha256 = ?", (sha256,))
        connection.commit()
    assert outcome_of(copy) is Outcome.PASS


def test_gate_itself_refuses_a_run_whose_fault_was_removed(tmp_path: Path) -> None:
    address = written(tmp_path, "fault")
    assert here(tmp_path, "gate", RUN, "--store", str(address)).returncode == 12
    copy = damaged(address, Damage("", "DELETE FROM observation WHERE kind = ?", ("target_fault",)), tmp_path)
    told = here(tmp_path, "gate", RUN, "--store", str(copy))
    assert (told.returncode, "it is not what it was when it finished" in told.stderr) == (13, True)


@pytest.mark.parametrize(
    "how", ["line removed", "line twice", "lines swapped", "cut", "byte changed", "header changed"]
)
def test_no_damage_of_its_spool_promotes_a_run_that_its_store_has_lost(how: str, tmp_path: Path) -> None:
    spool = tmp_path / "spool.jsonl"
    written(tmp_path, "fault", spool=spool)
    lines = spool.read_bytes().splitlines(keepends=True)
    for at in range(0 if how == "header changed" else 1, 1 if how == "header changed" else len(lines), 3):
        changed = list(lines)
        if how == "line removed":
            del changed[at]
        elif how == "line twice":
            changed.insert(at, lines[at])
        elif how == "lines swapped":
            changed[at], changed[at - 1] = changed[at - 1], changed[at]
        elif how == "cut":
            changed[at:] = [lines[at][: len(lines[at]) // 2]]
        else:
            changed[at] = lines[at].replace(b'"candidate"', b'"baseline" ', 1).replace(b"0", b"1", 3)
        place = tmp_path / f"damaged-{at}.jsonl"
        place.write_bytes(b"".join(changed))
        address = tmp_path / f"recovered-{at}.db"
        try:
            with Store.open(str(address)) as store:
                store.recover(place)
        except BenchgateError:
            continue
        outcome = outcome_of(address)
        assert outcome is None or not outcome.promotes, (at, outcome)


def test_a_verdict_that_its_store_does_not_keep_promotes_nothing(tmp_path: Path) -> None:
    address = written(tmp_path, "sound")
    assert outcome_of(address) is Outcome.PASS
    with closing(sqlite3.connect(address)) as database, database:
        database.execute("CREATE TRIGGER full BEFORE INSERT ON verdict BEGIN SELECT RAISE(ABORT, 'disk full'); END")
    ended = here(tmp_path, "gate", RUN, "--store", str(address))
    assert (ended.returncode, "disk full" in ended.stderr) == (13, True), ended.stdout + ended.stderr
