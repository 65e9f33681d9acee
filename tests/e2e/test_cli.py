"""The command line itself: whole in a terminal, quick to load, and its mistakes answered with exit code 2."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest
import typer.main

from benchgate.cli.app import COMMANDS, app
from benchgate.suite.loader import parse_suite
from tests.e2e.command import benchgate, command_line, here

pytestmark = pytest.mark.beside


ROOT = Path(__file__).parents[2]
HEAVY = ("scipy", "sqlalchemy", "alembic", "pydantic", "jinja2", "vl_convert", "lm_eval", "rich", "numpy", "httpx2")


def all_commands() -> dict[str, Any]:
    """Every command and group by its words."""
    found: dict[str, Any] = {}

    def walk(words: str, command: Any) -> None:
        if not command.hidden:
            found[words] = command
        for name, sub in getattr(command, "commands", {}).items():
            walk(f"{words} {name}", sub)

    walk("benchgate", typer.main.get_command(app))
    return found


ALL = all_commands()
LEAVES = {words: command for words, command in ALL.items() if not hasattr(command, "commands")}
SPELLINGS = {
    words: [option for p in command.params for option in (*p.opts, *p.secondary_opts) if option.startswith("-")]
    for words, command in LEAVES.items()
}


@pytest.mark.parametrize("words", [words for words in ALL if words != "benchgate"])
def test_the_summary_of_every_command_is_whole_in_a_narrow_terminal(words: str) -> None:
    summary = ALL[words].get_short_help_str(1_000)
    assert 0 < len(summary) <= 45
    assert not summary.endswith((".", "…"))


@pytest.mark.parametrize("words", LEAVES)
def test_the_help_of_every_command_has_an_example_with_its_own_options(words: str) -> None:
    example = LEAVES[words].help.partition("Example: ")[2]
    assert example.startswith(f"{words} ")
    assert set(re.findall(r"(?<=\s)--?[a-z-]+", example)) <= set(SPELLINGS[words])


def test_help_is_plain_text_where_there_is_no_terminal(tmp_path: Path) -> None:
    told = here(tmp_path, "--help").stdout
    assert told.isascii() and max(map(len, told.splitlines())) <= 80
    assert [section for section in COMMANDS if f"\n{section}:\n" not in told] == []
    assert "..." not in told.partition("Start:")[2]


@pytest.mark.parametrize("columns", [80, pytest.param(120, marks=pytest.mark.slow)])
def test_help_is_in_panels_on_a_terminal_and_nothing_is_cut(columns: int) -> None:
    for words in ([], ["run"], ["publish"]):
        told = on_terminal(columns, *words, "--help")
        assert "╭─ Options ─" in told and "…" not in told
        assert max(map(len, told.splitlines())) <= columns


@pytest.mark.parametrize("columns", [50, 70, 90])
def test_a_message_on_a_terminal_is_wrapped_and_its_command_is_whole(columns: int) -> None:
    lines = on_terminal(columns, "gate", "--store", "none.db").splitlines()
    assert len(lines) > 1 and max(map(len, lines)) <= columns
    assert "make one with `benchgate run`" in " ".join(lines)
    assert any("`benchgate run`" in line for line in lines)


def test_a_default_in_a_help_text_is_no_markup() -> None:
    assert "Settings, YAML [default: all defaults]." in on_terminal(80, "sim", "--help")


def on_terminal(columns: int, *words: str) -> str:
    """What the command prints on a terminal of this width, without colours."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color"}
    with subprocess.Popen(command_line(*words), stdin=theirs, stdout=theirs, stderr=theirs, env=environment):
        os.close(theirs)
        read = b""
        with contextlib.suppress(OSError):  # the terminal's other end was closed
            while some := os.read(ours, 65_536):
                read += some
    os.close(ours)
    return re.sub(r"\x1b\[[0-9;]*m", "", read.decode()).replace("\r\n", "\n")


def test_help_loads_nothing_heavy() -> None:
    code = f"import sys, benchgate.cli.app; print([m for m in {HEAVY!r} if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"


def test_a_verdict_from_the_store_loads_nothing_that_measures() -> None:
    """scipy's statistics take longer to load than all the rest, and every command that judges would wait for them."""
    unwanted = ("scipy.stats", "scipy.optimize", "httpx2", "uvloop", "benchgate.pipeline.measure", "benchgate.load")
    code = f"import sys, benchgate.pipeline.judge; print([m for m in {unwanted!r} if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"


def test_the_suite_in_the_readme_is_a_suite_of_fifteen_lines() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    example = re.findall(r"^```yaml\n(suite: .*?)^```", text, re.MULTILINE | re.DOTALL)[0]
    assert parse_suite(example, "README.md").candidate == "fp8"
    assert len(example.strip().splitlines()) == 15


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "nowhere.yaml"], "there is no suite file"),
        (["run", "dem"], "did you mean the shipped suite 'demo'?"),
        (["run", "demo", "--candidate", "q8"], "q8_0"),
        (["demo", "--candidate", "q8"], "q8_0, q2_k, padded"),
        (["load", "http://127.0.0.1:9", "--model", "m"], "exactly one of"),
        (
            [
                "load",
                "http://h",
                "--shard",
                "0/2",
                "--spool",
                "s",
                "--start-at",
                "2026-01-01T00:00:00Z",
                "--format",
                "json",
            ],
            "without --format",
        ),
        (["load", "gpu", "--model", "m"], '"gpu" is not the address of a server; write it like "http://gpu"'),
        (["load", "http://127.0.0.1:9", "--model", "m", "--api-key-env", "NO_SUCH_VARIABLE"], "NO_SUCH_VARIABLE"),
        (["trend", "ttft", "--format", "yaml"], "yaml"),
        (["trend", "ttft", "--statistic", "p96"], "no statistic 'p96'"),
        (["trend", "itl", "--statistic", "mean"], "no statistic 'mean'"),
        (["trend", "error_rate", "--statistic", "p95"], "--statistic applies to latencies"),
        (["store", "upgrade", "--store", "mistyped/store.db"], "there is no benchgate store at"),
        (["unknown"], "unknown"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_on_the_command_line_is_named_and_exits_with_2(
    tmp_path: Path, arguments: list[str], says: str
) -> None:
    result = here(tmp_path, *arguments)
    assert result.returncode == 2, result.stderr
    assert says in result.stderr
    assert "Traceback" not in result.stderr


def test_a_wrong_suite_shows_every_problem_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text("suite: x\nsede: 1\ndeployments: {a: {embedded: {weights: f15}}}\n")
    result = here(tmp_path, "plan", "wrong.yaml")
    assert result.returncode == 2
    for place in ("wrong.yaml:2:1", "wrong.yaml:3:", "seed", "f16"):
        assert place in result.stderr


def test_plan_reports_every_suite_also_beside_one_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("suite: x\nsede: 1\n")
    result = here(tmp_path, "plan", "bad.yaml", "nosuch.yaml", "drills/cold-start")
    assert result.returncode == 2
    assert "bad.yaml:2:1: sede" in result.stderr
    assert "there is no suite file 'nosuch.yaml'" in result.stderr
    assert "drills/cold-start.yaml: takes " in result.stdout


def test_plans_of_several_suites_are_one_json_array_with_their_names(tmp_path: Path) -> None:
    result = here(tmp_path, "plan", "drills/prefill", "drills/cold-start", "--offline", "--format", "json")
    assert result.returncode == 0, result.stderr
    names = [Path(one["suite"]).stem for one in json.loads(result.stdout)]
    assert names == ["prefill", "cold-start"]


def test_a_load_test_in_which_nothing_succeeded_is_no_success(tmp_path: Path) -> None:
    result = benchgate(tmp_path, "load", "http://127.0.0.1:9", "--model", "m", "--concurrency", "1", "--requests", "2")
    assert result.returncode == 12
    refusal = "the server at http://127.0.0.1:9 cannot be reached: Connection refused"
    assert f"{refusal}; start the server, or correct the address" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["gate", "--format", "xml"], "'xml' is not one of 'text', 'json', 'markdown', 'junit', 'github', 'gitlab'."),
        (["load", "http://h", "--model", "m", "--concurrency", "x"], "found 'x'; expected a whole number"),
        (["load", "http://h", "--model", "m", "--speed", "fast"], "found 'fast'; expected a number"),
        (["store", "gc", "--keep-last", "1.5"], "found '1.5'; expected a whole number"),
        (["shadow", "sample", "log", "-o", "out", "--size", "0"], "found '0'; expected 1 or more"),
        (["shadow", "sample", "log", "-o", "out", "--size", "100001"], "found '100001'; expected at most 100000"),
    ],
)
def test_a_wrong_argument_is_refused_in_words_of_our_own(tmp_path: Path, words: list[str], says: str) -> None:
    refused = here(tmp_path, *words)
    assert refused.returncode == 2
    assert refused.stderr.rstrip().endswith(f": {says}")


def install_completion(home: Path) -> subprocess.CompletedProcess[str]:
    """Install the completion from a shell, by which typer knows which one."""
    words = ["bash", "-c", '"$0" -m benchgate --install-completion; exit $?', sys.executable]
    return subprocess.run(words, env=os.environ | {"HOME": str(home)}, capture_output=True, text=True)


def test_the_completion_is_installed_for_the_command_however_it_was_called(tmp_path: Path) -> None:
    ended = install_completion(tmp_path)
    assert ended.returncode == 0, ended.stderr
    (script,) = (tmp_path / ".bash_completions").iterdir()
    assert script.read_text().splitlines()[-1].endswith(" benchgate")
    assert "python" not in script.read_text()


def test_a_completion_that_cannot_be_installed_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("no folder")
    ended = install_completion(home)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert ended.stderr.startswith(f"benchgate: the completion cannot be installed ({home}")
