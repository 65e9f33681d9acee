"""`store check --figures`: the numbers kept of runs against what their records make."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from benchgate.store.repository import Store
from benchgate.store.retention import Policy
from tests.e2e.command import here
from tests.fakes.sized import DONE_AT, write_sized
from tests.shells.store_samples import make_run
from tests.shells.test_store_care import full_run

HELD = "metrics held against their records"


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    with Store.open(str(tmp_path / "b.db")) as store:
        write_sized(store, make_run())
    return tmp_path


def altered(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "b.db")) as database:
        database.execute("UPDATE metric SET value = 2 * value WHERE name = 'request_throughput' AND arm = 'candidate'")
        database.commit()


def test_number_that_was_altered_is_found_where_it_is_asked_for(kept: Path) -> None:
    with Store.open(str(kept / "b.db")) as store:
        checked = store.check(figures=True)
        assert checked.findings == ()
        assert checked.rows[HELD] == checked.rows["metrics"] > 50
    altered(kept)
    with Store.open(str(kept / "b.db")) as store:
        assert store.check().findings == ()
        found = store.check(figures=True).findings
    assert [one.place for one in found] == [
        f"metric candidate request_throughput {stage}" for stage in ("c4", "c8", "c16")
    ]
    assert "it was altered, or another benchgate made it; judging the run again keeps it anew" in found[0].problem


def removed(folder: Path, which: str) -> None:
    with closing(sqlite3.connect(folder / "b.db")) as database:
        database.execute(f"DELETE FROM metric WHERE {which}")
        database.commit()


@pytest.mark.parametrize(
    ("which", "lacks"),
    [
        ("name = 'error_rate' AND stage = 'c4'", "lacks baseline error_rate c4, candidate error_rate c4, which its"),
        ("TRUE", " more, which its records make: removed, or another benchgate made none; judging the run"),
    ],
    ids=["two of them", "all"],
)
def test_numbers_that_were_removed_are_found_in_one_line(kept: Path, which: str, lacks: str) -> None:
    removed(kept, which)
    with Store.open(str(kept / "b.db")) as store:
        (found,) = store.check(figures=True).findings
    assert found.place == "its numbers"
    assert lacks in found.problem


def test_check_says_whether_it_held_them(kept: Path) -> None:
    plain = here(kept, "store", "check", "--store", "b.db")
    assert "`--figures` recomputes them from the records" in plain.stdout
    altered(kept)
    deep = here(kept, "store", "check", "--figures", "--format", "json", "--store", "b.db")
    document = json.loads(deep.stdout)
    assert (deep.returncode, document["figures"], len(document["findings"])) == (13, "recomputed", 3)
    assert "--figures" not in here(kept, "store", "check", "--figures", "--store", "b.db").stdout


def test_run_without_records_is_held_against_nothing_and_one_that_cannot_be_read_is_told(kept: Path) -> None:
    with Store.open(str(kept / "b.db")) as store:
        write_sized(store, make_run())
        store.remove_raw(store.expendable(Policy(), "2028-01-01T00:00:00Z"), now=DONE_AT, reason="store gc")
        full_run(store)  # whose suite is none
    altered(kept)
    with Store.open(str(kept / "b.db")) as store:
        checked = store.check(figures=True)
    assert checked.rows[HELD] < checked.rows["metrics"]
    places = [one.place for one in checked.findings]
    assert places.count("its numbers") == 1
    assert len(places) == 4  # three of the run that has its records, and none of the other
