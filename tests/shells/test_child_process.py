"""Children that report once: what a parent learns of those that do not, and that none outlives its parent."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from benchgate import child_process

CHILD = """
import os, sys, time
from benchgate import child_process

def serve(argument, report):
    print("log of", argument, flush=True)
    if argument == "exits":
        sys.exit(3)
    if argument == "reports":
        report("http://here")
    time.sleep(60)

child_process.run(serve)
"""


@pytest.fixture(autouse=True)
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_child.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))


def test_report_of_a_child_reaches_its_parent() -> None:
    with tempfile.TemporaryFile() as log:
        process, report = child_process.start("some_child", "reports", log, 20)
        assert (report, process.poll()) == ("http://here", None)
        child_process.stop(process)
        assert process.returncode is not None
        log.seek(0)
        assert child_process.last_lines(log.read()) == "  log of reports"


@pytest.mark.parametrize(
    ("argument", "timeout_s", "says"),
    [("exits", 20, "exited with status 3"), ("is silent", 0.5, "reported nothing for 0.5 s")],
)
def test_child_without_a_report_is_named_with_its_end(argument: str, timeout_s: float, says: str) -> None:
    with tempfile.TemporaryFile() as log, pytest.raises(child_process.NoReportError, match=says):
        child_process.start("some_child", argument, log, timeout_s)


def test_child_exits_when_its_lifeline_ends() -> None:
    script = "import sys; from benchgate import child_process; child_process.exit_with_parent(int(sys.argv[1]))"
    command = [sys.executable, "-c", script, str(os.getpid())]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.5)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(20) == 0
