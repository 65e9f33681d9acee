"""Stores on network file systems are refused before they are opened; stores on read-only ones are read and judged."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchgate.errors import StoreError
from benchgate.store.database import network_file_system
from benchgate.store.migrate import upgrade
from benchgate.store.repository import Store
from tests.e2e.command import command_line, document, here
from tests.fakes.promotable import BLOCKED, begun

MOUNTS = r"""
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:25 / /mnt/team rw,relatime shared:1 - nfs4 server:/team rw,vers=4.2
31 30 254:1 / /mnt/team/local\040disk rw - ext4 /dev/vdb rw
32 22 0:26 / /mnt/share rw master:3 - cifs //server/share rw
33 22 0:27 / /mnt/covered rw - nfs server:/old rw
34 22 0:28 / /mnt/covered rw - tmpfs tmpfs rw
35 22 0:29 / /mnt/remote rw,nosuid - fuse.sshfs me@server: rw
a line of another kind
"""


@pytest.fixture
def mounts(tmp_path: Path) -> Path:
    table = tmp_path / "mountinfo"
    table.write_text(MOUNTS, encoding="utf-8")
    return table


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("/mnt/team/me/benchgate.db", "nfs4"),
        ("/mnt/teams/me/benchgate.db", None),
        ("/mnt/team/local disk/benchgate.db", None),
        ("/mnt/share/a/b/benchgate.db", "cifs"),
        ("/mnt/covered/benchgate.db", None),
        ("/mnt/remote/benchgate.db", "fuse.sshfs"),
        ("/var/lib/benchgate.db", None),
    ],
)
def test_a_file_is_on_what_is_mounted_deepest_and_last(mounts: Path, file: str, kind: str | None) -> None:
    assert network_file_system(Path(file), mounts) == kind


def test_where_nobody_says_what_is_mounted_nothing_is_refused(tmp_path: Path) -> None:
    assert network_file_system(Path("/mnt/benchgate.db"), tmp_path / "nothing") is None


def test_a_store_on_a_network_file_system_is_neither_made_nor_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = str(tmp_path / "here.db")
    Store.open(here).close()
    table = tmp_path / "mountinfo"
    table.write_text(f"22 1 0:1 / / rw - ext4 /dev/vda rw\n30 22 0:25 / {tmp_path} rw - nfs server:/x rw\n")
    monkeypatch.setattr("benchgate.store.database._MOUNTS", table)
    for address in (here, str(tmp_path / "new.db")):
        with pytest.raises(StoreError, match=r"network file system \(nfs\).*local disk.*Postgres"):
            Store.open(address)
    with pytest.raises(StoreError, match="network file system"):
        upgrade(here)
    assert not (tmp_path / "new.db").exists()


READ_ONLY = """
set -e
mount --bind "$1" "$1.read-only"
mount -o remount,bind,ro "$1.read-only"
shift
exec "$@"
"""
CHANGED_BESIDE = """
import sys
from benchgate.store.repository import Store
written, read = sys.argv[1:]
with Store.open_as_is(read) as frozen:
    run = frozen.resolve("@latest")
    assert frozen.evidence(run).load
    with Store.open(written) as store:
        store.save_verdict(run, {"outcome": "PASS"}, decided_at="2026-01-02T00:00:00Z")
    frozen.evidence(run)
"""


def on_read_only(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a mount namespace in which `FOLDER.read-only` is that folder on a read-only file system."""
    folder.with_name(f"{folder.name}.read-only").mkdir(exist_ok=True)
    script = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", READ_ONLY, "sh", str(folder), *command]
    try:
        done = subprocess.run(script, cwd=folder.parent, env=dict(os.environ), capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no unshare here")
    if "unshare:" in done.stderr or "mount:" in done.stderr:
        pytest.skip("mounting is not allowed here")
    return done


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "a store's folder?"
    folder.mkdir()
    with Store.open(str(folder / "runs.db")) as store:
        begun(store, BLOCKED)
    return folder


def test_run_on_a_read_only_file_system_is_judged_as_elsewhere_and_its_verdict_is_not_kept(folder: Path) -> None:
    gate = ("gate", "@latest", "--format", "json", "--store")
    done = on_read_only(folder, *command_line(*gate, f"{folder}.read-only/runs.db"))
    assert done.returncode == 13, done.stderr
    assert "readonly database" in done.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["runs.db", "runs.db.lock"]
    kept = here(folder, *gate, "runs.db")
    assert kept.returncode == 10
    assert {**document(done), "exit_code": 10} == document(kept)


def test_store_that_is_changed_beside_its_read_only_mount_is_not_read_on(folder: Path) -> None:
    files = (str(folder / "runs.db"), f"{folder}.read-only/runs.db")
    done = on_read_only(folder, sys.executable, "-c", CHANGED_BESIDE, *files)
    assert done.returncode == 1
    assert "StoreError" in done.stderr and "was changed while it was read" in done.stderr
