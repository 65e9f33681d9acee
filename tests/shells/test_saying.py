"""Standard output that is full, closed or cannot show a mark: a verdict is never lost in a traceback."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from benchgate.cli.commands import command_line, run_command, spelled
from benchgate.cli.saying import say
from benchgate.errors import Command, PublishError, Remedy, StoreError


def test_what_an_encoding_lacks_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    say("■ BLOCK: \u22125 %\n")
    assert raw.getvalue() == b"\\u25a0 BLOCK: \\u22125 %\n"


def test_closed_output_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(PublishError, match="standard output is closed"):
        say("PASS\n")
    gone = io.StringIO()
    gone.close()
    monkeypatch.setattr(sys, "stdout", gone)
    with pytest.raises(PublishError, match="standard output could not be written: I/O operation on closed file"):
        say("PASS\n")


COMMANDS = (["init", "--list"], ["sim", "--list-faults"], ["--help"], ["run", "--help"])


def process(words: list[str], stdout: IO[str] | int, stderr: IO[str] | int = subprocess.PIPE) -> tuple[int, str]:
    program = f"import sys\nsys.argv = ['benchgate', *{words}]\nfrom benchgate.cli.app import main\nmain()\n"
    ended = subprocess.run([sys.executable, "-c", program], stdout=stdout, stderr=stderr, text=True)
    return ended.returncode, ended.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full is Linux's")
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_process_whose_output_is_full_ends_with_13_and_no_traceback(words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        code, told = process(words, full)
    assert (code, told) == (13, "benchgate: standard output could not be written: No space left on device\n")


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_process_whose_reader_has_gone_ends_with_13_and_no_word(words: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        assert process(words, write) == (13, "")
    finally:
        os.close(write)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full is Linux's")
def test_standard_error_that_is_full_changes_no_exit_code() -> None:
    with Path("/dev/full").open("w") as full:
        assert process(["gate", "--store", "nowhere.db"], subprocess.PIPE, full)[0] == 2


def test_printed_commands_name_suite_and_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BENCHGATE_STORE", raising=False)
    suite = Path("my suites/a.yaml")
    options = [("--candidate", "fp8"), ("--cluster", None)]
    told = run_command(suite, store="postgresql://me:hunter2@db/runs", options=options, flags=[("--allow-code", True)])
    assert told == ("benchgate run 'my suites/a.yaml' --store postgresql://me@db/runs --candidate fp8 --allow-code")
    assert command_line(Command.CALIBRATE, "a.yaml", "runs.db") == "benchgate calibrate a.yaml --store runs.db"
    monkeypatch.setenv("BENCHGATE_STORE", "runs.db")
    assert command_line(Command.DOCTOR_CLIENT, store="runs.db") == "benchgate doctor --client"


def test_errors_name_the_commands_that_mend_them() -> None:
    recover = Remedy("bring it into the store", Command.IMPORT, "work/my spool.jsonl", "other.db")
    resume = Remedy("resume it", Command.RESUME, "the-run")
    error = StoreError("the store is full", remedies=(recover, resume))
    assert str(error) == (
        "the store is full; bring it into the store with `benchgate store import`; "
        "resume it with `benchgate run --resume`"
    )
    assert spelled(error, begun_by="benchgate run a.yaml") == (
        "the store is full; bring it into the store with "
        "`benchgate store import 'work/my spool.jsonl' --store other.db`; resume it with "
        "`benchgate run a.yaml --resume --run the-run`"
    )
    unshown = StoreError("it is full", remedies=(Remedy("bring it in", Command.IMPORT, "spool.jsonl", ""),))
    assert spelled(unshown).endswith("`benchgate store import spool.jsonl` and its --store, or BENCHGATE_STORE")
