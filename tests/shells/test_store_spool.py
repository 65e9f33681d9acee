"""A run's spool: every row before the database has it, nothing damaged taken for whole, and brought in without loss."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from sqlalchemy import text

from benchgate.errors import EvidenceError, StoreError
from benchgate.model.deployment import Arm
from benchgate.model.run import LOAD_ENDED, LoadEnd, Run, RunStatus, ServerStart
from benchgate.store.database import Address, Database
from benchgate.store.repository import RunWriter, Store
from benchgate.store.spool import read_spool
from tests.fakes.full_disk import files_no_larger_than
from tests.shells.store_samples import (
    DONE_AT,
    NASTY,
    PLAN,
    assert_same_requests,
    make_deployment,
    make_divergence,
    make_fault,
    make_load,
    make_quality,
    make_requests,
    make_run,
    make_shadow,
    make_telemetry,
)

pytest_plugins = ["tests.shells.store_databases"]

PROBED = dataclasses.replace(make_deployment("q8_0"), facts={"build": 1234})
END = LoadEnd(2, 4, "decided")
ROWS = 9  # that `fill` adds, without the arm


def fill(writer: RunWriter) -> None:
    """One row of each kind that a run can have."""
    writer.set_arm(Arm.CANDIDATE, PROBED)
    writer.add(ServerStart(Arm.CANDIDATE, 0, 1.25))
    writer.add(make_load())
    writer.add(make_telemetry())
    writer.add(make_load(Arm.CANDIDATE, position=1))
    writer.event(LOAD_ENDED, dataclasses.asdict(END))
    writer.add(make_quality())
    writer.add(make_divergence())
    writer.add(make_shadow())
    writer.add(make_fault())


def evidence_hash(address: str, run_id: str) -> str | None:
    database = Database.connect(Address.parse(address))
    with database.reading() as connection:
        found = connection.scalar(text("SELECT evidence_sha256 FROM run WHERE id = :id"), {"id": run_id})
    database.close()
    return None if found is None else str(found)


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "spool.jsonl"


def spooled(store: Store, spool: Path, run: Run) -> Path:
    """The spool of a run that was filled and then left as a killed process leaves it; the copy outlives the writer."""
    writer = store.begin_run(run, PLAN, spool=spool)
    fill(writer)
    kept = spool.with_name("kept.jsonl")
    kept.write_bytes(spool.read_bytes())
    writer.suspend()
    writer.close()
    return kept


def test_spool_alone_gives_a_run_that_hashes_as_the_one_in_the_database(
    store: Store, store_address: str, spool: Path
) -> None:
    writer = store.begin_run(run := make_run(), PLAN, spool=spool)
    fill(writer)
    found = read_spool(spool).run_rows({"status": "complete", "finished_at": DONE_AT})
    writer.finish(RunStatus.COMPLETE, DONE_AT)
    assert found.run["evidence_sha256"] == evidence_hash(store_address, run.id) is not None


def test_spool_of_a_run_that_ended_well_is_removed_with_its_empty_folder(local: Store, spool: Path) -> None:
    writer = local.begin_run(make_run(), PLAN, spool=spool)
    assert spool.is_file()
    writer.finish(RunStatus.COMPLETE, DONE_AT)
    assert (writer.fault, spool.is_file()) == (None, True)  # until the verdict is there
    writer.close()
    assert not spool.parent.exists()


def test_spool_that_cannot_be_made_is_an_error_before_there_is_a_run(local: Store, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"file/spool\.jsonl cannot be written: .*--work-dir"):
        local.begin_run(make_run(), PLAN, spool=tmp_path / "file" / "spool.jsonl")
    assert local.runs() == []


def test_spool_without_room_is_an_error_before_there_is_a_run(local: Store, spool: Path) -> None:
    with files_no_larger_than(100), pytest.raises(StoreError, match=r"spool\.jsonl cannot be written: File too large"):
        local.begin_run(make_run(), PLAN, spool=spool)
    assert local.runs() == []
    assert not spool.parent.exists()


def test_run_that_the_database_refuses_leaves_no_spool(local: Store, spool: Path) -> None:
    run = make_run()
    local.begin_run(run, PLAN)
    with pytest.raises(StoreError):
        local.begin_run(run, PLAN, spool=spool)
    assert not spool.parent.exists()


def _die_before_the_database(address: str, run: Run, spool: Path) -> None:
    """kill -9 when the row is in the spool and not yet in the database."""
    writer = Store.open(address).begin_run(run, PLAN, spool=spool)
    writer.add(make_load())

    def killed(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    pytest.MonkeyPatch().setattr(RunWriter, "_to_database", killed)  # of this process alone
    writer.add(make_load(Arm.CANDIDATE, position=1))


def test_row_that_a_killed_process_had_only_spooled_is_brought_in_and_the_run_is_partial(
    store: Store, store_address: str, spool: Path
) -> None:
    run = make_run()
    arguments = (store_address, run, spool)
    process = multiprocessing.get_context("spawn").Process(target=_die_before_the_database, args=arguments)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert len(store.evidence(run.id).load) == 1
    found = store.recover(spool)
    assert (found.run_id, found.added, found.present, found.torn_bytes) == (run.id, 1, 1, 0)
    evidence = store.evidence(run.id)
    assert (evidence.run.status, evidence.run.finished_at) == (RunStatus.PARTIAL, None)
    assert [(seen.arm, seen.position) for seen in evidence.load] == [(Arm.BASELINE, 0), (Arm.CANDIDATE, 1)]
    assert_same_requests(evidence.load[1].requests, make_requests())
    assert evidence_hash(store_address, run.id) is None


def test_run_that_goes_on_begins_with_what_its_spool_had_and_counts_on(
    store: Store, store_address: str, spool: Path, local: Store
) -> None:
    run = make_run()
    kept = spooled(local, spool, run)
    store.begin_run(run, PLAN).suspend()
    writer = store.reopen_run(run.id, spool=kept)
    assert store.run(run.id).status is RunStatus.RUNNING
    writer.event("later", {})
    again = read_spool(kept)  # all of the run, so that the spool alone is enough
    writer.finish(RunStatus.COMPLETE, DONE_AT)
    writer.close()
    assert [row["seq"] for _, row in again.kept] == list(range(ROWS + 1))
    ended = again.run_rows({"status": "complete", "finished_at": DONE_AT})
    assert ended.run["evidence_sha256"] == evidence_hash(store_address, run.id) is not None
    assert (len(store.evidence(run.id).load), kept.exists()) == (2, False)


def test_run_that_has_its_shadow_comparison_has_it_also_when_it_goes_on(local: Store, spool: Path) -> None:
    run = make_run()
    spooled(local, spool, run)
    writer = local.reopen_run(run.id, spool=spool)
    with pytest.raises(StoreError, match="shadow comparison already"):
        writer.add(make_shadow())
    assert local.evidence(run.id).run.arms[Arm.CANDIDATE] == PROBED


def test_run_that_is_over_does_not_go_on(store: Store, spool: Path) -> None:
    writer = store.begin_run(run := make_run(), PLAN)
    writer.finish(RunStatus.PARTIAL, DONE_AT)
    with pytest.raises(StoreError, match="cannot go on: it is partial"):
        store.reopen_run(run.id, spool=spool)
    with pytest.raises(StoreError, match="cannot go on: it is not in this store"):
        store.reopen_run("nobody", spool=spool)
    assert not spool.exists()


def test_spool_of_another_run_is_not_taken_for_this_one(local: Store, spool: Path) -> None:
    other, run = make_run(), make_run()
    kept = spooled(local, spool, other)
    local.begin_run(run, PLAN).suspend()
    with pytest.raises(StoreError, match=f"is of run {other.id}"):
        local.reopen_run(run.id, spool=kept)


def test_whole_run_comes_into_another_store_and_twice_changes_nothing(
    store: Store, store_address: str, spool: Path, tmp_path: Path
) -> None:
    run = make_run()
    kept = spooled(store, spool, run)
    with Store.open(str(tmp_path / "other.db")) as other:
        first, second = other.recover(kept), other.recover(kept)
        assert (first.added, first.present, first.status) == (ROWS, 0, RunStatus.PARTIAL)
        assert (second.added, second.present, second.status) == (0, ROWS, RunStatus.PARTIAL)
        found, expected = other.evidence(run.id), store.evidence(run.id)
        assert other.plan(run.id) == PLAN
    assert found.run == expected.run
    assert found.run.arms[Arm.CANDIDATE] == PROBED
    assert (found.quality, found.shadow, found.divergence) == (expected.quality, expected.shadow, expected.divergence)
    assert (found.starts, found.ended, found.target_faults) == (expected.starts, END, expected.target_faults)
    assert found.telemetry == expected.telemetry == (make_telemetry(),)
    for left, right in zip(found.load, expected.load, strict=True):
        assert_same_requests(left.requests, right.requests)


@pytest.mark.parametrize(("store_text", "mode"), [(True, 0o600), (False, 0o644)])
def test_store_that_takes_texts_of_users_from_a_spool_is_its_owners_alone(
    local: Store, spool: Path, tmp_path: Path, store_text: bool, mode: int
) -> None:
    kept = spooled(local, spool, make_run(suite={"shadow": {"store_text": store_text}}))
    with Store.open(str(tmp_path / "other.db")) as other:
        (tmp_path / "other.db").chmod(0o644)
        assert other.recover(kept).added == ROWS
    assert (tmp_path / "other.db").stat().st_mode & 0o777 == mode


def test_run_that_is_still_measured_is_left_alone(local: Store, spool: Path) -> None:
    writer = local.begin_run(run := make_run(), PLAN, spool=spool)
    for bring in (local.recover, lambda path: local.reopen_run(run.id, spool=path)):
        with pytest.raises(StoreError, match="still being measured"):
            bring(spool)
    writer.add(make_load())
    assert local.run(run.id).status is RunStatus.RUNNING


def test_record_that_the_store_has_otherwise_is_refused_and_nothing_is_changed(
    store: Store, spool: Path, tmp_path: Path
) -> None:
    run = make_run()
    kept = spooled(store, spool, run)
    with Store.open(str(tmp_path / "other.db")) as other:
        writer = other.begin_run(run, PLAN)
        writer.add(ServerStart(Arm.CANDIDATE, 0, 0.25))  # faster than it was
        with pytest.raises(EvidenceError, match="observation 0 of the store is not the one of the spool"):
            other.recover(kept)
        assert (other.run(run.id).status, len(other.evidence(run.id).starts)) == (RunStatus.RUNNING, 1)


def test_run_that_the_store_has_with_another_suite_is_refused(local: Store, spool: Path, tmp_path: Path) -> None:
    run = make_run()
    kept = spooled(local, spool, run)
    with Store.open(str(tmp_path / "other.db")) as other:
        other.begin_run(dataclasses.replace(run, seed=1), PLAN)
        with pytest.raises(EvidenceError, match="its seed in the store is not the one of the spool"):
            other.recover(kept)


def test_run_that_is_over_with_fewer_records_stays_as_it_is(store: Store, spool: Path, tmp_path: Path) -> None:
    run = make_run()
    kept = spooled(store, spool, run)
    with Store.open(str(tmp_path / "other.db")) as other:
        other.begin_run(run, PLAN).finish(RunStatus.COMPLETE, DONE_AT)
        with pytest.raises(StoreError, match=f"is over in this store without {ROWS} records"):
            other.recover(kept)
        assert other.evidence(run.id).load == ()


def lines_of(store: Store, spool: Path) -> tuple[Path, list[bytes]]:
    kept = spooled(store, spool, make_run())
    return kept, kept.read_bytes().splitlines(keepends=True)


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Store]:
    with Store.open(str(tmp_path / "local.db")) as opened:
        yield opened


def test_last_line_cut_short_anywhere_is_left_out_and_told(local: Store, spool: Path) -> None:
    kept, lines = lines_of(local, spool)
    whole = read_spool(kept)
    head = b"".join(lines[:-1])
    for left in (*range(1, 90), len(lines[-1]) - 1):
        kept.write_bytes(head + lines[-1][:left])
        found = read_spool(kept)
        assert (len(found.kept), found.torn_bytes) == (len(whole.kept) - 1, left)
    kept.write_bytes(head + b"\0" * 4096)  # what a lost write leaves in a file that had grown already
    assert read_spool(kept).torn_bytes == 4096


def test_damage_before_the_last_line_is_an_error_with_its_line(local: Store, spool: Path) -> None:
    kept, lines = lines_of(local, spool)
    spoilt = [(3, [*lines[:2], lines[3], lines[2], *lines[4:]]), (3, [*lines[:2], *lines[3:]])]  # exchanged, and gone
    for number in range(1, len(lines)):
        line = lines[number - 1]
        at = len(line) // 2
        changed = line[:at] + bytes([line[at] ^ 1]) + line[at + 1 :]
        spoilt.append((number, [*lines[: number - 1], changed, *lines[number:]]))
        spoilt.append((number, [*lines[: number - 1], line[:at], b"\n", *lines[number:]]))
    for number, said in spoilt:
        kept.write_bytes(b"".join(said))
        with pytest.raises(EvidenceError, match=rf"kept\.jsonl:{number}: .*(the spool|its first line) is damaged"):
            read_spool(kept)


@pytest.mark.parametrize("content", [b"", b"\n", b"{}\n", b"not a spool at all\n" * 50])
def test_file_that_is_no_spool_is_an_error_and_makes_no_run(local: Store, spool: Path, content: bytes) -> None:
    spool.parent.mkdir()
    spool.write_bytes(content)
    with pytest.raises(EvidenceError, match=r"spool\.jsonl:1: "):
        local.recover(spool)
    assert local.runs() == []


def chained(*texts: bytes) -> bytes:
    """Lines that hash as they must, whatever they say."""
    last, lines = "", []
    for said in texts:
        last = sha256(last.encode() + said).hexdigest()
        lines.append(last.encode() + b" " + said + b"\n")
    return b"".join(lines)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda line: line.replace(b'"table":"', b'"table":"un'), "unknown table"),
        (lambda line: line.replace(b'"kind"', b'"kinds"'), "its columns are"),
        (lambda line: line.replace(b'"run_id":"', b'"run_id":"x'), "it is of run 'x"),
        (lambda line: line.replace(b'"sha256":"', b'"sha256":"0'), "do not hash to"),
        (lambda line: line.replace(b'"seq":0', b'"seq":NaN'), "NaN, which is no number"),
        (lambda line: b"[" * 100_000, "no line of a benchgate-spool/1"),
        (lambda line: b"[]", "no line of a benchgate-spool/1"),
        (lambda line: line.replace(b'"data":"', b'"data":"!'), "no line of a benchgate-spool/1"),
    ],
)
def test_line_that_says_what_no_run_says_is_an_error_with_its_line(
    local: Store, spool: Path, change: Callable[[bytes], bytes], says: str
) -> None:
    kept, lines = lines_of(local, spool)
    head, _arm, first = (line[65:-1] for line in lines[:3])
    changed = change(first)
    assert changed != first
    kept.write_bytes(chained(head, changed))
    with pytest.raises(EvidenceError, match=rf"kept\.jsonl:2: .*{says}"):
        local.recover(kept)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (b'"suite_name":"smoke"', b'"suite_name":"\\u001b[2J"', "its suite_name is .* expected no control character"),
        (b'"environment":"{', b'"environment":"[', "its row or that of an arm cannot be read"),
        (b'"started_at":"2026-', b'"started_at":"20-', "expected an instant in UTC"),
        (b'"seed":9223372036854775807', b'"seed":9223372036854775808', "its seed has more than 64 bits"),
        (b'"id":"', b'"id":"../', "not a UUID in small letters"),
        (b'"finished_at":"2026-', b'"finished_at":"2099-', "its end is of 2099-.* set the clock"),
        (b'"finished_at":"2026-11-20T13:00:00Z"', b'"finished_at":null', "does not say when it ended"),
        (b'"status":"complete"', b'"status":"finished"', "its status is 'finished'"),
        (b'"data":"{\\"blocks', b'"data":"[\\"blocks', "it cannot be read"),
    ],
)
def test_run_that_breaks_the_rules_of_a_store_is_refused_and_nothing_is_kept(
    local: Store, spool: Path, old: bytes, new: bytes, says: str
) -> None:
    """Rows are never removed: one that cannot be read would keep every run of the store from its readers."""
    run = make_run()
    kept = spooled(local, spool, run)
    lines = [line[65:-1] for line in kept.read_bytes().splitlines(keepends=True)]
    ended = {"run_id": run.id, "status": "complete", "finished_at": DONE_AT}
    lines.append(json.dumps({"table": "run", "row": ended}, sort_keys=True, separators=(",", ":")).encode())
    if says == "not a UUID in small letters":
        old, new = (text + run.id.encode() for text in (old, new))
    changed = [line.replace(old, new) for line in lines]
    assert changed != lines
    kept.write_bytes(chained(*changed))
    with Store.open(str(spool.with_name("other.db"))) as other:
        with pytest.raises(EvidenceError, match=says):
            other.recover(kept)
        assert other.runs() == []


def test_spool_of_a_later_kind_is_refused_with_what_to_do(local: Store, spool: Path) -> None:
    kept, lines = lines_of(local, spool)
    kept.write_bytes(chained(lines[0][65:-1].replace(b"benchgate-spool/1", b"benchgate-spool/2")))
    with pytest.raises(EvidenceError, match="written as 'benchgate-spool/2'; install a newer benchgate"):
        read_spool(kept)


def test_spool_that_is_not_there_is_an_error(local: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"none\.jsonl cannot be read: No such file"):
        local.recover(tmp_path / "none.jsonl")


def test_half_a_line_that_could_not_be_finished_is_not_behind_the_next_one(
    local: Store, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt between two writes of one line: the run's last events are still written."""
    writer = local.begin_run(make_run(), PLAN, spool=spool)
    real = os.pwrite

    def interrupted(descriptor: int, data: bytes, at: int) -> int:
        real(descriptor, data[:40], at)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", interrupted)
        with pytest.raises(KeyboardInterrupt):
            writer.event("first", {"text": NASTY})
    writer.event("second", {})
    assert [row["kind"] for row in read_spool(spool).of_table("event")] == ["second"]
    assert read_spool(spool).torn_bytes == 0
