"""The reader's own command after a promotion: what it is told, and what becomes of it when it fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchgate.errors import PublishError, UsageError
from benchgate.release.promote import hook_command, run_hook
from tests.fakes.waiting import eventually

PATHS = {"PATH": "/usr/bin:/bin"}


def script(folder: Path, text: str) -> tuple[str, ...]:
    path = folder / "hook.sh"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return (str(path),)


def is_over(process: int) -> bool:
    """Whether it is gone, or waits for nobody to ask how it ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_hook_finds_what_it_is_told_in_its_environment_and_on_its_standard_input(tmp_path: Path) -> None:
    hook = script(tmp_path, f'cat > "{tmp_path}/told"; printf "%s|%s" "$BENCHGATE_RUN_ID" "$OWN" >> "{tmp_path}/told"')
    run_hook(hook, {"BENCHGATE_RUN_ID": "r1"}, '{"a": 1}\n', {**PATHS, "OWN": "x", "BENCHGATE_RUN_ID": "old"}, 30)
    assert (tmp_path / "told").read_text() == '{"a": 1}\nr1|x'


def test_what_a_model_is_called_is_a_value_and_never_a_command(tmp_path: Path) -> None:
    hook = script(tmp_path, f'printf "%s" "$BENCHGATE_CANDIDATE_MODEL" > "{tmp_path}/told"')
    name, rest = f"$(touch {tmp_path}/owned); `x`\n::add-mask::\0\x1b[2J", "m" * 500
    run_hook(hook, {"BENCHGATE_CANDIDATE_MODEL": name + rest}, "", PATHS, 30)
    assert (tmp_path / "told").read_text() == f"$(touch {tmp_path}/owned); `x` ::add-mask:: [2J{rest}"
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(("text", "says"), [("exit 3", "status 3"), ("kill -9 $$", "signal 9")])
def test_hook_that_fails_is_told_with_how_it_ended(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(PublishError, match=says):
        run_hook(script(tmp_path, text), {}, "x" * 1_000_000, PATHS, 30)  # which it does not read


def test_hook_that_takes_too_long_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    hook = script(tmp_path, f'(sleep 9; touch "{tmp_path}/late") & echo $! > "{tmp_path}/child"; sleep 60')
    with pytest.raises(PublishError, match=r"took longer than 0\.6 s"):
        run_hook(hook, {}, "", PATHS, 0.6)
    child = int((tmp_path / "child").read_text())
    assert eventually(lambda: is_over(child))
    assert not (tmp_path / "late").exists()  # nor did it end by itself


@pytest.mark.parametrize(
    ("text", "says"),
    [("", "expected a command"), ("'deploy", "invalid command"), ("no-such-program-here x", "not found")],
)
def test_what_cannot_be_run_is_refused_before_anything_is_recorded(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        hook_command(text)


def test_a_command_is_split_as_a_shell_would_and_nothing_in_it_is_expanded() -> None:
    assert hook_command("sh -c 'echo a' $HOME *") == ("sh", "-c", "echo a", "$HOME", "*")
