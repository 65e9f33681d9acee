"""Atomic writes: the old file or the new one, whole, and nothing outside of its folder; the command for an extra."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from benchgate.errors import StoreError
from benchgate.pipeline.judge import write_whole
from benchgate.site import folder
from benchgate.store.export import output_file
from benchgate.system import atomic_file, lacking, write_atomic


def export(path: Path, data: bytes) -> None:
    with output_file(path) as file:
        file.write(data)


WRITERS: dict[str, Callable[[Path, bytes], None]] = {
    "system": write_atomic,
    "report": lambda path, data: write_whole(path, data, "the report"),
    "site": folder.write_whole,
    "export": export,
}


@pytest.mark.parametrize("writer", WRITERS)
def test_no_writer_follows_a_planted_link(writer: str, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / ".report.html.part").symlink_to(precious)
    (folder / "report.html").symlink_to(precious)
    WRITERS[writer](folder / "report.html", b"written")
    assert precious.read_text() == "mine"
    assert (folder / "report.html").read_bytes() == b"written"
    assert not (folder / "report.html").is_symlink()
    assert {file.name for file in folder.iterdir()} == {"report.html", ".report.html.part"}


def test_a_new_file_follows_the_umask_and_an_old_one_keeps_its_mode(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomic(tmp_path / "new", b"")
        write_atomic(tmp_path / "secret", b"", mode=0o600)
        (tmp_path / "old").touch()
        (tmp_path / "old").chmod(0o664)
        write_atomic(tmp_path / "old", b"")
    finally:
        os.umask(before)
    modes = {file.name: oct(file.stat().st_mode & 0o777) for file in tmp_path.iterdir()}
    assert modes == {"new": "0o640", "secret": "0o600", "old": "0o664"}


def test_a_write_that_fails_leaves_the_old_file_alone(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text("old")
    with pytest.raises(KeyboardInterrupt), atomic_file(file) as out:
        out.write(b"half")
        raise KeyboardInterrupt
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("report.html", "old")]


def test_file_and_folder_are_synced_before_the_write_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def record(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    write_atomic(tmp_path / "out" / "report.html", b"whole")
    assert [name.endswith(".part") for name in synced] == [True, False]
    assert synced[1] == "out"


def test_a_device_is_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="no regular file") as refused:
        write_atomic(pipe, b"")
    assert refused.value.errno == errno.EINVAL
    with pytest.raises(StoreError, match="no regular file"):
        export(pipe, b"")
    assert pipe.is_fifo()


@pytest.mark.parametrize(
    ("recorded", "command"),
    [
        (None, "pip install 'benchgate[demo]'"),
        ({"url": "file:///a%20b/bg.whl", "archive_info": {}}, "pip install '/a b/bg.whl[demo]'"),
        ({"url": "file:///src", "dir_info": {"editable": True}}, "pip install -e '/src[demo]'"),
        ({"url": "https://h/bg.whl", "archive_info": {}}, "pip install 'benchgate[demo] @ https://h/bg.whl'"),
        (
            {"url": "https://h/bg", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}},
            "pip install 'benchgate[demo] @ git+https://h/bg@c0ffee'",
        ),
    ],
)
def test_a_missing_extra_is_installed_from_where_benchgate_came_from(
    recorded: object, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "benchgate-0.1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.4\nName: benchgate\nVersion: 0.1.0\n")
    if recorded is not None:
        (folder / "direct_url.json").write_text(json.dumps(recorded))
    monkeypatch.syspath_prepend(tmp_path)
    assert lacking("no engine", "demo") == f"no engine; install the extra `demo` of benchgate: {command}"


def test_a_tool_of_uv_gets_an_extra_from_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "uv-receipt.toml").write_text("[tool]\n")
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    assert ": uv tool install " in lacking("no engine", "demo")
