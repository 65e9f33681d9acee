"""The compiled reader under AddressSanitizer and UBSan, with the bodies and sockets of its other tests: no report."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import hatch_build
from benchgate.load.http.library import SOURCE

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SANITIZERS = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer")
REPORTS = ("AddressSanitizer", "UndefinedBehaviorSanitizer", "runtime error:")
TESTS = ("test_load_native.py", "test_load_alike.py", "test_load_sockets.py", "test_load_answer_content.py")
# Read one byte too many of a body, where the source takes care to have two more.
SOUND, BROKEN = "end - here < size + 2", "end - here < size - 9"


def runtime() -> str | None:
    """Return the library that a process must load first; None where the compiler has none."""
    try:
        found = subprocess.run(["cc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    path = found.stdout.strip()
    return path if Path(path).is_absolute() else None


needs_sanitizers = pytest.mark.skipif(
    sys.platform != "linux" or runtime() is None, reason="the compiler has no AddressSanitizer"
)


def sanitized(arguments: list[str], folder: Path, source: Path = SOURCE) -> subprocess.CompletedProcess[str]:
    """Run Python with the reader compiled with sanitizers. Python leaks on purpose, so leaks are no reports."""
    compiled = folder / "reader.lib"
    assert hatch_build.compile_native(source, compiled, SANITIZERS)
    environment = {
        **os.environ,
        "LD_PRELOAD": runtime() or "",
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONMALLOC": "malloc",  # so that each object of Python has borders that are watched
        "SANITIZED_READER": str(compiled),
    }
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@needs_sanitizers
def test_bodies_and_sockets_give_no_report(tmp_path: Path) -> None:
    tests = [f"tests/shells/{name}" for name in TESTS]
    options = ["-q", "-p", "tests.fakes.sanitized_reader", "-p", "no:cacheprovider", "-m", "not slow", *tests]
    ended = sanitized(["-m", "pytest", *options], tmp_path)
    said = ended.stdout + ended.stderr
    assert ended.returncode == 0 and " passed" in said, said
    assert not any(report in said for report in REPORTS), said


@needs_sanitizers
def test_a_read_behind_the_end_is_reported(tmp_path: Path) -> None:
    """Else a clean run would prove nothing."""
    text = SOURCE.read_text()
    assert text.count(SOUND) == 1
    broken = tmp_path / "reader.c"
    broken.write_text(text.replace(SOUND, BROKEN))
    code = (
        "import ctypes, os; from array import array; numbers = [array('q', bytes(800)) for _ in range(5)];"
        "reader = ctypes.CDLL(os.environ['SANITIZED_READER']); at = [one.buffer_info()[0] for one in numbers];"
        "raw = ctypes.create_string_buffer(b'8\\r\\n'.rjust(64), 64); text = [ctypes.c_char_p, ctypes.c_int64];"
        "kinds = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, *text, *text, ctypes.c_void_p, ctypes.c_int64];"
        "reader.skip_run.argtypes = kinds + [ctypes.c_void_p] * 5;"
        "reader.skip_run(ctypes.addressof(raw) + 61, 3, 1, b'', 0, b'', 0, at[0], 1, *at)"
    )
    ended = sanitized(["-c", code], tmp_path, broken)
    assert ended.returncode != 0 and "AddressSanitizer" in ended.stderr, ended.stderr
