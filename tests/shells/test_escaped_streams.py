"""What libraries write to the standard streams, and what a progress bar draws: escaped like all the rest."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest

from benchgate.cli import saying
from benchgate.cli.progress import make_progress
from benchgate.escaped_streams import escape_streams, raw_stream
from benchgate.pipeline.progress import Phase
from tests.fakes.ci_commands import ALL, ATTACKS, is_harmless

COLOURS_AND_MOVES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Terminal(io.StringIO):
    """A stream that says that somebody looks at it."""

    def isatty(self) -> bool:
        return True


@contextlib.contextmanager
def streams(err: io.StringIO | None = None) -> Iterator[tuple[io.StringIO, io.StringIO]]:
    """Standard output and standard error, escaped, and where they end. No fixture: pytest sets its own between two."""
    out, err = io.StringIO(), err or io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        escape_streams()
        yield out, err


def test_every_piece_of_a_line_is_escaped_where_it_stands() -> None:
    with streams() as (out, err):
        for text in ("a", "::b\n", "::c\n", "  ", "::d", "::e\n", "x ##vso[y]\n", "\x1b[31m\r"):
            assert sys.stderr.write(text) == len(text)
        sys.stdout.writelines(["::a\n", "b\n"])
    assert err.getvalue() == "a::b\n:\\:c\n  :\\:d::e\nx #\\#vso[y]\n\\x1b[31m\\r"
    assert out.getvalue() == ":\\:a\nb\n"


def test_escaping_twice_is_once_and_no_bytes_go_past_it() -> None:
    with streams() as (out, _):
        once = sys.stdout
        escape_streams()
        assert sys.stdout is once
        assert raw_stream("stdout") is out
        assert not hasattr(sys.stdout, "buffer")
        with pytest.raises(TypeError, match="must be str, not bytes"):
            sys.stdout.write(b"::error::x")  # type: ignore[arg-type]  # what a library may try


def test_a_closed_stream_stays_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    escape_streams()
    assert raw_stream("stdout") is None
    saying.log("nobody reads this")


@pytest.mark.parametrize(
    "program",
    [
        "raise ValueError(ALL)",
        "print(ALL); print(ALL, file=sys.stderr)",
        "import warnings; warnings.warn(ALL)",
        "import logging; logging.getLogger('library').warning(ALL)",
        "import threading; threading.Thread(target=lambda: 1 / 0, name=ALL).start()",
        "class Bad:\n    def __del__(self): raise ValueError(ALL)\nBad()",
        "import asyncio\nasync def bad(): raise ValueError(ALL)\n"
        "async def main(): asyncio.ensure_future(bad()); await asyncio.sleep(0)\nasyncio.run(main())",
    ],
)
def test_what_python_and_its_libraries_write_is_escaped(program: str) -> None:
    begun = (
        "import sys\nfrom benchgate.escaped_streams import escape_streams\nfrom tests.fakes.ci_commands import ALL\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", f"{begun}escape_streams()\n{textwrap.dedent(program)}\n"],
        capture_output=True,
        text=True,
        errors="surrogateescape",
    )
    assert "vso[" in ended.stdout + ended.stderr
    assert is_harmless(ended.stdout) and is_harmless(ended.stderr)


@pytest.mark.parametrize("attack", ATTACKS, ids=range(len(ATTACKS)))
def test_what_is_printed_is_escaped_by_its_kind(attack: str) -> None:
    with streams() as (out, err):
        saying.say(f"{attack}\n")
        saying.log(attack, f"benchgate: {attack}")
        saying.log_text(f"{attack}\n{attack}")
    assert is_harmless(out.getvalue()) and is_harmless(err.getvalue())
    assert err.getvalue().count("\n") == 4 + 2 * attack.count("\n")
    with streams() as (out, _):
        saying.say_json({"said": attack}, ensure_ascii=False)
    assert is_harmless(out.getvalue())
    assert json.loads(out.getvalue()) == {"said": attack}


def test_commands_of_our_own_are_printed_as_they_are() -> None:
    with streams() as (out, _):
        saying.say_escaped("::error title=benchgate::x\n")
        saying.say_markdown("@\u200boctocat ##[group]\n")
    assert out.getvalue() == "::error title=benchgate::x\n@\u200boctocat #\\#[group]\n"


@pytest.mark.parametrize("looked_at", [False, True])
def test_progress_shows_no_word_of_a_suite_or_a_server_raw(looked_at: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    with streams(Terminal() if looked_at else None) as (_, err):
        for attack in (ALL, "[bold]no markup[/bold] [link=https://evil.example]x[/link]", "[/]"):
            with make_progress(attack) as progress:
                progress.begin(Phase(attack, 2))
                progress.status(attack)
                progress.look(attack)
                progress.step(attack)
                progress.note(attack)
                sys.stderr.write(f"a library: {attack}\n")
    text = COLOURS_AND_MOVES.sub("", err.getvalue())  # those of rich
    assert ("\x1b[" in err.getvalue()) is looked_at
    assert "[bold]no markup" in text
    assert is_harmless(text.replace("\r", "\n"))
