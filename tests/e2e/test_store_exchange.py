"""`store export` and `store import` of bundles and stores: output and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchgate.store.repository import Store
from tests.e2e.command import here
from tests.shells.exchange_samples import bundle_of, ids_in, verdict, write_everything
from tests.shells.store_samples import PLAN, make_run, write_run

pytestmark = pytest.mark.beside


def test_runs_go_through_a_folder_into_another_store_and_twice_is_harmless(tmp_path: Path) -> None:
    run = write_everything(str(tmp_path / "a.db"))
    with Store.open(str(tmp_path / "a.db")) as store:
        other = write_run(store, suite_name="other")
    out = here(tmp_path, "store", "export", "--all", "--to", "runs", "--store", "a.db")
    assert (out.returncode, out.stdout.splitlines()) == (0, [f"runs/{run.id}.json", f"runs/{other.id}.json"]), (
        out.stderr
    )
    first = here(tmp_path, "store", "import", "runs", "--store", "b.db")
    assert (first.returncode, first.stdout.splitlines()[-1]) == (0, "2 new"), first.stderr
    assert bundle_of(str(tmp_path / "b.db"), run.id) == (tmp_path / "runs" / f"{run.id}.json").read_bytes()

    with Store.open(str(tmp_path / "a.db")) as store:
        store.save_verdict(run.id, verdict("BLOCK", run), decided_at="2026-11-21T12:00:00.000Z")
    assert here(tmp_path, "store", "export", "nightly", "--to", "runs", "--store", "a.db").returncode == 0
    again = here(tmp_path, "store", "import", "runs", f"runs/{run.id}.json", "--store", "b.db")
    assert again.stdout.splitlines() == [
        *sorted([f"{run.id} known, 1 added to it", f"{other.id} known"]),
        f"{run.id} known",
        "3 known",
    ]
    copied = here(tmp_path, "store", "import", "b.db", "--store", "sqlite:///c.db")
    assert (copied.returncode, copied.stdout.splitlines()[-1]) == (0, "2 new"), copied.stderr
    assert ids_in(str(tmp_path / "c.db")) == sorted([run.id, other.id])
    shown = here(tmp_path, "store", "export", "--all", "--suite", "other", "--to", "x.json", "--store", "c.db")
    assert shown.stdout == "x.json\n" and json.loads((tmp_path / "x.json").read_text())["run"]["id"] == other.id


def test_what_is_refused_is_told_and_the_rest_is_taken_in(tmp_path: Path) -> None:
    run = write_everything(str(tmp_path / "a.db"))
    assert here(tmp_path, "store", "export", "@latest", "--to", "runs", "--store", "a.db").returncode == 0
    (tmp_path / "runs" / "a\x1b[31m.json").write_text('{"format": "other/1"}')
    result = here(tmp_path, "store", "import", "runs", "--store", "b.db")
    assert result.returncode == 13
    assert (
        "which reads benchgate-bundle/1" in result.stderr and "1 refused; nothing of it was imported" in result.stderr
    )
    assert "\x1b" not in result.stderr + result.stdout
    assert result.stdout.splitlines()[-1] == "1 new, 1 refused"
    assert ids_in(str(tmp_path / "b.db")) == [run.id]


def test_a_store_that_cannot_be_read_and_a_run_that_is_measured_keep_nothing_else_out(tmp_path: Path) -> None:
    run = write_everything(str(tmp_path / "a.db"))
    (tmp_path / "broken.db").write_bytes(b"SQLite format 3\0" + bytes(5000))
    result = here(tmp_path, "store", "import", "broken.db", "a.db", "--store", "b.db")
    assert (result.returncode, "broken.db: file is not a database" in result.stderr) == (13, True), result.stderr
    assert ids_in(str(tmp_path / "b.db")) == [run.id]
    spools = [tmp_path / name / "spool.jsonl" for name in ("measured", "live", "ended")]
    measured, ended = make_run(), make_run()
    with Store.open(str(tmp_path / "c.db")) as store:
        writers = [
            store.begin_run(one, PLAN, spool=spool) for one, spool in ((ended, spools[0]), (measured, spools[1]))
        ]
        spools[2].parent.mkdir()
        spools[2].write_bytes(spools[0].read_bytes())
        result = here(tmp_path, "store", "import", "live/spool.jsonl", "ended/spool.jsonl", "--store", "d.db")
        assert (result.returncode, "live/spool.jsonl is still being measured" in result.stderr) == (13, True)
        assert ids_in(str(tmp_path / "d.db")) == [ended.id], result.stderr
        for writer in writers:
            writer.discard()


def test_verdict_that_waits_for_another_run_is_told(tmp_path: Path) -> None:
    address = str(tmp_path / "a.db")
    run, other = write_everything(address), write_everything(address, label=None)
    with Store.open(address) as store:
        store.save_verdict(run.id, {"outcome": "PASS", "against": {"id": other.id}}, compared_run_id=other.id)
    assert here(tmp_path, "store", "export", run.id, "--to", "x.json", "--store", "a.db").returncode == 0
    result = here(tmp_path, "store", "import", "x.json", "--store", "b.db")
    assert result.returncode == 0
    assert f"compared with run {other.id}, which this store does not have" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["export", "@latest"], "where to?"),
        (["export", "--to", "x"], "which runs?"),
        (["export", "@latest", "--all", "--to", "x"], "name runs or say --all"),
        (["export", "--all", "--suite", "smok", "--to", "x"], "no run of suite 'smok'"),
        (["export", "nightyl", "--to", "x"], "did you mean nightly?"),
        (["export", "--all", "--to", "x", "--raw-csv"], "--raw-csv needs --format csv"),
        (["export", "--all", "--to", "x.csv", "--format", "csv"], "name a folder"),
        (["import", "nowhere"], "there is no file or folder nowhere"),
        (["import", "a.db"], "both the store to copy"),
        (["import", "sqlite:///mistyped.db"], "there is no benchgate store at"),
        (["import", "a.db", "--suite", "s"], "--suite is for result files of other tools"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_named_and_exits_with_2(folder: Path, arguments: list[str], says: str) -> None:
    result = here(folder, "store", *arguments, "--store", "a.db")
    assert result.returncode == 2, result.stderr
    assert says in result.stderr
    assert sorted(path.name for path in folder.iterdir() if not path.name.startswith("a.db")) == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mistakes")
    write_everything(str(folder / "a.db"))
    return folder


def test_bundles_spools_and_stores_are_imported_at_once(folder: Path, tmp_path: Path) -> None:
    run = write_everything(str(tmp_path / "other.db"), label=None)
    assert here(tmp_path, "store", "export", run.id, "--to", "x.json", "--store", "other.db").returncode == 0
    (tmp_path / "spool.jsonl").write_text("not a spool\n")
    result = here(tmp_path, "store", "import", "x.json", "spool.jsonl", str(folder / "a.db"), "--store", "b.db")
    assert (result.returncode, result.stdout.splitlines()[-1]) == (13, "2 new"), result.stderr
    assert "spool.jsonl:1: this is no benchgate-spool/1" in result.stderr
    assert ids_in(str(tmp_path / "b.db")) == sorted([run.id, *ids_in(str(folder / "a.db"))])
