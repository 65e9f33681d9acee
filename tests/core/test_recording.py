"""The recording of a terminal in the README: it plays alone, is small, and ends with the verdict of the tutorial."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from scripts.recording import PICTURE, Terminal, draw

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"


def text_of(terminal: Terminal) -> list[str]:
    return ["".join(cell.character for cell in line) for line in terminal.screen()]


def test_a_line_that_is_written_again_replaces_the_old_one() -> None:
    terminal = Terminal()
    terminal.write("one\r\ntwo")
    terminal.write("\r\x1b[2K\x1b[1A\x1b[2K\x1b[1;31mthree\x1b[0m\r\nfour")
    assert text_of(terminal) == ["three", "four"]
    assert terminal.screen()[0][0].classes == ("b", "r")


@pytest.mark.parametrize("unknown", ["\x1b[3J", "\x1b]0;title\x07", "\x1b[2Jx", "\x1b[95m"])
def test_an_unknown_sequence_is_an_error_and_no_wrong_picture(unknown: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        Terminal().write(unknown)


def test_the_film_stands_still_at_its_last_frame() -> None:
    terminal = Terminal()
    frames = []
    for at_s, text in ((0.0, "$ run"), (1.0, "\r\nlive"), (2.0, "\r\x1b[2KPASS")):
        terminal.write(text)
        frames.append((at_s, terminal.screen()))
    picture = draw(frames, "a run")
    width = int(re.findall(r'viewBox="0 0 (\d+)', picture)[0])
    assert f"#film{{transform:translateX(-{2 * width}px);animation:film 2.0s step-end}}" in picture
    assert f"50.00%{{transform:translateX(-{width}px)}}" in picture
    assert "infinite" not in picture


def test_the_picture_of_the_readme_ends_with_the_verdict_of_the_tutorial() -> None:
    text = PICTURE.read_text(encoding="utf-8")
    assert PICTURE.stat().st_size <= 150_000
    assert PICTURE.relative_to(ROOT).as_posix() in (ROOT / "README.md").read_text(encoding="utf-8")
    assert not re.search(r"<script|<image|<foreignObject|@import|url\(|https?://(?!www\.w3\.org/2000/svg)", text)
    root = ElementTree.fromstring(text)
    lines = {f"#{one.get('id')}": "".join(one.itertext()) for one in root.iter(f"{SVG}text")}
    uses = [
        (int(one.get("x", "")), int(one.get("y", "")), lines[one.get("href", "")]) for one in root.iter(f"{SVG}use")
    ]
    last = max(x for x, _, _ in uses)
    shown = "\n".join(line for x, _, line in sorted(uses, key=lambda use: use[1]) if x == last)
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    (verdict,) = re.findall(r"^■ (BLOCK: q2_k must not be promoted: .*?),", page, re.MULTILINE)[:1]
    assert verdict in shown and "next: benchgate gate" in shown
    assert max(map(len, lines.values())) <= 100
