"""What is compiled of the load engine says what the Python in its place says, and nothing else is taken for it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchgate.load.decode.answer import ParsedAnswer
from benchgate.load.decode.body import RawBody
from benchgate.load.decode.chat import read_stream
from benchgate.load.http import library as native
from benchgate.load.http.exchange import may_end

ROOT = Path(__file__).parents[2]
HAS_COMPILER = any(shutil.which(name) for name in ("cc", "gcc", "clang"))
compiled = pytest.mark.skipif(
    sys.platform != "linux" or not HAS_COMPILER, reason="there is nothing to compile with, or nothing to compile for"
)


@compiled
def test_where_there_is_a_compiler_the_installation_has_used_it() -> None:
    assert native.library() is not None


# ---- the same bodies, read both ways


def chunk(event: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(event), event)


BEFORE, AFTER = b'data: {"id":"1","choices":[{"delta":{"content":"', b'"},"finish_reason":null}]}\n\n'
# fmt: off
TEXTS = (
    b"", b" a", b"word", b'\\"', b"\\\\", b"\\n", b"\\x", b"\\", b'"', b"\t", b"\0", b"\x1f", b"\x7f", b"\xff",
    b"\xf0\x9f\x99\x82", b"\\u00e9", b"\\u00E9", b"\\u12", b"\\u12g4", b"\\ud83d\\ude42", b"\\ud83d", b"\\ude42",
    b"\\ud83d\\n", b"\\ud83d\\ud83d", b"\\/", b"\\b\\f\\r\\t", b'a"},"finish_reason":"stop","x":{"y":"',
    b"x" * 300, b"\r\n",
)
# fmt: on
TEXT = st.sampled_from(TEXTS) | st.binary(max_size=6)
WHOLE = chunk(BEFORE + b"a" + AFTER)


@st.composite
def bodies(draw: st.DrawFn) -> tuple[bytes, list[int]]:
    """A body in chunks, of events that are alike but for a few, perhaps damaged; and where each of its reads ends."""
    events = draw(st.lists(TEXT, max_size=14))
    raw = bytearray(WHOLE * 2)
    for text in events:
        raw += chunk(BEFORE + text + AFTER)
    raw += draw(st.sampled_from([b"", chunk(b"data: [DONE]\n\n"), chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"]))
    if draw(st.booleans()):
        at = draw(st.integers(0, len(raw)))
        raw[at : at + draw(st.integers(0, 4))] = draw(
            st.binary(max_size=4) | st.sampled_from([b"\r\n", b"0", b"A", b"00", b"fffffffff", b"+", b";x", b" "])
        )
    ends = draw(st.lists(st.integers(1, max(1, len(raw))), max_size=20))
    return bytes(raw), sorted({*ends, len(raw)})


def both_ways(body: RawBody) -> tuple[ParsedAnswer, ParsedAnswer]:
    said = []
    for aside in ("1", "0"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(native.DISABLED_BY, aside)
            said.append(read_stream(body))
    return said[0], said[1]


def marks_of(ends: list[int]) -> array[int]:
    marks, begin = array("q"), 0
    for number, end in enumerate(ends):
        marks.extend((1_000 + number, end - begin))
        begin = end
    return marks


@pytest.mark.slow
@compiled
@given(bodies())
@settings(max_examples=15 * settings().max_examples)
@example((WHOLE * 6, [len(WHOLE) * 6]))
@example((WHOLE * 6, list(range(1, len(WHOLE) * 6 + 1))))
@example((WHOLE * 3 + chunk(BEFORE + b"\\" + AFTER), [len(WHOLE), len(WHOLE) * 4]))
def test_any_body_in_chunks_says_the_same_either_way(made: tuple[bytes, list[int]]) -> None:
    raw, ends = made
    compiled_said, python_said = both_ways(RawBody(raw, marks_of(ends), chunked=True))
    assert compiled_said == python_said


@compiled
@given(bodies(), st.integers(0, 40))
@settings(max_examples=5 * settings().max_examples)
def test_a_body_that_begins_later_says_the_same_either_way(made: tuple[bytes, list[int]], before: int) -> None:
    raw, ends = made
    marks = marks_of([end + before for end in ends])
    compiled_said, python_said = both_ways(RawBody(b"h" * before + raw, marks, before, None, True))
    assert compiled_said == python_said


@compiled
def test_like_events_are_passed_over_in_one_go() -> None:
    """Else it would say the same, at the cost of the long way."""
    library = native.library()
    assert library is not None
    raw = WHOLE * 50 + chunk(b"data: [DONE]\n\n")
    marks = marks_of([len(WHOLE) * (number + 1) for number in range(50)] + [len(raw)])
    place, output_ns, outputs = array("q", (0, 0, 0)), array("q", bytes(8 * 51)), array("q", (0,))
    texts, texts_size = array("b", bytes(len(raw))), array("q", (0,))
    events = library.skip_run(
        raw, len(raw), True, BEFORE, len(BEFORE), AFTER, len(AFTER), native.address_of(marks), 51,
        native.address_of(place), native.address_of(output_ns), native.address_of(outputs),
        native.address_of(texts), native.address_of(texts_size),
    )  # fmt: skip
    assert (events, outputs[0], place[0]) == (50, 50, 50 * len(WHOLE))
    assert output_ns[:50].tolist() == [1_000 + number for number in range(50)]
    assert texts[: texts_size[0]].tobytes() == b"a\n" * 50


ENDS = (
    b"}\n\n\r\n",
    b"\r\n\r\n",
    b"[DONE]\n\n\r\n",
    b"[DONE]\n\n",
    b"\r\n0\r\n\r\n",
    b"0\r\n\r\n",
    b"\r\n",
    b"0",
    b"\n\n",
    b"x" * 16,
)
PIECES = st.sampled_from(ENDS) | st.binary(max_size=3)


@compiled
@given(st.lists(PIECES, max_size=6).map(b"".join))
@settings(max_examples=10 * settings().max_examples)
def test_the_same_reads_may_be_the_end(data: bytes) -> None:
    library = native.library()
    assert library is not None
    assert bool(library.may_end(data, len(data))) == may_end(data)


# ---- what is taken for it


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the source, where what is compiled is looked for."""
    monkeypatch.delenv(native.DISABLED_BY, raising=False)
    monkeypatch.setattr(native, "SOURCE", tmp_path / "reader.c")
    monkeypatch.setattr(native, "COMPILED", tmp_path / "reader.lib")
    (tmp_path / "reader.c").write_bytes((ROOT / "benchgate/load/http/reader.c").read_bytes())
    native._library.cache_clear()
    yield tmp_path
    native._library.cache_clear()


def compile_in(place: Path) -> bool:
    """As an installation does, by the build's own code."""
    code = "import sys, hatch_build as b; sys.exit(not b.compile_native(*map(b.Path, sys.argv[1:])))"
    command = [sys.executable, "-c", code, str(place / "reader.c"), str(place / "reader.lib")]
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def test_nothing_compiled_is_none(place: Path) -> None:
    assert native.library() is None


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"no library"])
def test_what_is_no_library_is_none(place: Path, content: bytes) -> None:
    (place / "reader.lib").write_bytes(content)
    assert native.library() is None


@compiled
def test_a_library_without_these_functions_is_none(place: Path) -> None:
    (place / "other.c").write_text("int other(void) { return 1; }")
    subprocess.run(["cc", "-shared", "-o", str(place / "reader.lib"), str(place / "other.c")], check=True)
    assert native.library() is None


@compiled
def test_what_was_compiled_of_this_source_is_taken_and_of_another_is_not(place: Path) -> None:
    assert compile_in(place)
    assert native.library() is not None
    with (place / "reader.c").open("a") as source:
        source.write("\n")
    native._library.cache_clear()
    assert native.library() is None


@compiled
def test_a_missing_and_a_stale_library_are_warned_of(place: Path) -> None:
    missing = native.missing_warning()
    (place / "reader.lib").write_bytes(b"no library")
    native._library.cache_clear()
    stale = native.missing_warning()
    assert missing is not None and "is missing" in missing
    assert stale is not None and "is not compiled from the source beside it" in stale


@compiled
def test_it_is_left_aside_where_that_is_asked_for(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compile_in(place)
    monkeypatch.setenv(native.DISABLED_BY, "0")
    assert native.library() is None


@compiled
def test_a_compiler_that_fails_leaves_what_was_compiled_before_and_no_error(place: Path) -> None:
    (place / "reader.lib").write_bytes(b"an old one")
    (place / "reader.c").write_text("this is no C")
    assert not compile_in(place)
    assert sorted(path.name for path in place.iterdir()) == ["reader.c", "reader.lib"]
    assert (place / "reader.lib").read_bytes() == b"an old one"
