"""A run on a terminal: its live block, and what stays of it after Ctrl-C."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
from pathlib import Path

import pytest

from tests.e2e.command import benchgate, command_line, here

pytestmark = pytest.mark.beside  # no time decides

SUITE = """
suite: live
deployments:
  f16: {sim: {ttft: 20ms, itl: 2ms}, price: $4/h}
  q8: {sim: {ttft: 20ms, itl: 2ms}, price: $2/h}
baseline: f16
candidate: q8
load:
  blocks: 200
  warmup: 0
  workload: {input: 8 tokens, output: 20 tokens}
  sweep: [{stage: c2, concurrency: 2, requests: 60}]
gate:
  client: {send_lag_p99: 1s, send_lag_max: 1s, read_delay_p99: 1s, read_delay_max: 1s, cpu: 100%, achieved: 1%}
  allow_underpowered: true
  checks: [{metric: error_rate, max: 5%}]
"""


@pytest.mark.parametrize("columns", [80, pytest.param(120, marks=pytest.mark.slow)])
def test_run_on_a_terminal_is_a_block_and_the_hint_after_an_interrupt_is_whole(tmp_path: Path, columns: int) -> None:
    (tmp_path / "suite.yaml").write_text(SUITE)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color"}
    words = command_line("run", "suite.yaml")
    read = b""
    with subprocess.Popen(words, cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        interrupted = False
        with contextlib.suppress(OSError):  # the terminal's other end was closed
            while some := os.read(ours, 65_536):
                read += some
                if not interrupted and re.search(rb"baseline +[0-9.]+ ms.*candidate +[0-9.]+ ms", read, re.DOTALL):
                    interrupted = True
                    process.send_signal(signal.SIGINT)
    os.close(ours)
    assert process.returncode == 130
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", read.decode()).replace("\r", "\n")
    shown = [line for line in text.split("\n") if line]
    place = re.compile(r"━*─* load \d+/400, block \d+ of 200, stage c2 on (baseline|candidate)")
    assert any(place.fullmatch(line) for line in shown)
    assert any(re.match(r"\d+:\d\d elapsed", line) for line in shown)
    assert max(map(len, shown[:-1])) <= columns
    hint, command = shown[-2:]
    assert hint == "benchgate: the run was interrupted; resume it with:"
    assert re.fullmatch(r"  benchgate run suite\.yaml --resume --run [0-9a-f-]{36}", command)


@pytest.mark.slow
def test_quiet_prints_the_verdict_alone_and_verbose_every_stage_with_its_failures(tmp_path: Path) -> None:
    suite = SUITE.replace("blocks: 200", "blocks: 2").replace("requests: 60", "requests: 6")
    suite = suite.replace("2ms}, price: $2/h", "2ms, faults: ['error-after:3@50%']}, price: $2/h")
    (tmp_path / "suite.yaml").write_text(suite)
    quiet = benchgate(tmp_path, "run", "suite.yaml", "-q")
    assert quiet.stderr == ""
    assert quiet.stdout.startswith(("■ BLOCK", "◆ INCONCLUSIVE"))
    verbose = benchgate(tmp_path, "run", "suite.yaml", "--verbose")
    figures = r"\d+ requests in .*, TTFT .*, TPOT .*, .*/s"
    assert re.search(rf"^f16 vs q8: block 1 of 2, stage c2 on baseline: {figures}$", verbose.stderr, re.MULTILINE)
    assert re.search(
        rf"^f16 vs q8: block 1 of 2, stage c2 on candidate: {figures}, .* failed: .*\(\d+ times\)$",
        verbose.stderr,
        re.MULTILINE,
    )
    assert re.search(r"^f16 vs q8: load took [0-9.]+ m?s$", verbose.stderr, re.MULTILINE)


@pytest.mark.parametrize("before", [True, False], ids=["before the command", "after it"])
@pytest.mark.parametrize(
    ("words", "variables", "coloured"),
    [
        ((), {}, False),
        (("--color", "always"), {"NO_COLOR": "1"}, True),
        ((), {"FORCE_COLOR": "1"}, True),
        ((), {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        (("--color", "never"), {"FORCE_COLOR": "1"}, False),
    ],
)
def test_colours_are_chosen_by_option_then_by_variable(
    tmp_path: Path, words: tuple[str, ...], variables: dict[str, str], coloured: bool, before: bool
) -> None:
    command = (*words, "doctor") if before else ("doctor", *words)
    result = here(tmp_path, *command, environment={"NO_COLOR": "", "FORCE_COLOR": "", **variables})
    assert ("\x1b[" in result.stdout) is coloured
    assert result.stdout
