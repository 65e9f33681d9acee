"""A store on a network file system is refused before it is opened, by what the kernel says is mounted where."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchgate.errors import StoreError
from benchgate.store.database import network_file_system
from benchgate.store.migrate import upgrade
from benchgate.store.repository import Store

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
