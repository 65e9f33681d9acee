"""`store check` finds whatever would keep a run from being exported, and says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchgate.errors import EvidenceError
from benchgate.store.export import export_bundle
from benchgate.store.migrate import opened
from benchgate.store.repository import Store
from tests.e2e.command import here
from tests.shells.exchange_samples import write_everything
from tests.shells.test_store_care import altered


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("UPDATE metric SET name = 'NOT A NAME' WHERE seq = 0", "its name is 'NOT A NAME'"),
        ("UPDATE imported SET imported_at = 'soon'", "imported.imported_at is 'soon'; expected an instant"),
        ("UPDATE noise_profile SET measured_at = '2026-01-01T00:00:00Z'", "it is listed as another"),
    ],
)
def test_what_export_refuses_of_a_run_is_a_finding_of_check(change: str, problem: str, tmp_path: Path) -> None:
    address = str(tmp_path / "a.db")
    run = write_everything(address)
    with Store.open(address) as store:
        assert store.check().findings == ()
    altered(address, change)
    with opened(address, create=False) as database, pytest.raises(EvidenceError) as refused:
        export_bundle(database, run.id, tmp_path / "x.json")
    assert problem in str(refused.value)
    with Store.open(address) as store:
        (finding,) = store.check().findings
    assert (finding.run_id, problem in finding.problem) == (run.id, True)


def test_check_says_what_to_do_and_what_it_names_does_that(tmp_path: Path) -> None:
    good, bad = (write_everything(str(tmp_path / "a b.db"), label=None) for _ in range(2))
    altered(str(tmp_path / "a b.db"), f"UPDATE metric SET name = 'NOT A NAME' WHERE seq = 0 AND run_id = '{bad.id}'")
    told = here(tmp_path, "store", "check", "--store", "a b.db")
    assert told.returncode == 13
    assert f"run {bad.id}, metric 0: its name is" in told.stdout
    assert "`benchgate store import 'a b.db' --store NEW.db`" in told.stdout
    copied = here(tmp_path, "store", "import", "a b.db", "--store", "NEW.db")
    assert (copied.returncode, copied.stdout.splitlines()[-1]) == (13, "1 new, 1 refused")
    assert good.id in copied.stdout and bad.id in copied.stderr
    assert here(tmp_path, "store", "check", "--store", "NEW.db").returncode == 0


def test_a_store_that_is_not_there_is_told_as_a_file_that_is_not_there(tmp_path: Path) -> None:
    for command in ("info", "check"):
        told = here(tmp_path, "store", command, "--store", "nowhere.db")
        assert (told.returncode, "there is no file nowhere.db; check the address" in told.stderr) == (2, True)
    assert not (tmp_path / "nowhere.db").exists()
