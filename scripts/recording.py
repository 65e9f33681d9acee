"""Record the run of the tutorial in a terminal and write it as an animated SVG: .venv/bin/python -m scripts.recording

The picture plays once and stands still at the verdict. It holds no scripts and no fonts: a page can show it as <img>.
"""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import shutil
import struct
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "images" / "terminal.svg"
COLUMNS = 100
SAMPLE_S = 0.7  # the screen is kept this often
FASTER = 3.0  # the picture plays this many times as fast as the recording
FIRST_S = 1.5  # for which the bare command stands

_CELL, _LINE, _LEFT, _TOP = 8.0, 18, 14, 24  # pixels
_CODES = re.compile(r"\x1b\[(\??[0-9;]*)([A-Za-z])|(\r|\n)|([^\x1b\r\n]+)")
_UNFINISHED = re.compile(r"\x1b(\[[0-9;?]*)?\Z")
_CLASSES = {"1": "b", "2": "d", "31": "r", "32": "g", "33": "y", "35": "m", "36": "c"}  # SGR codes
_STYLE = (
    "text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#e6edf3;white-space:pre}"
    ".b{font-weight:700}.d{fill:#9198a1}.r{fill:#ff7b72}.g{fill:#7ee787}.y{fill:#e3b341}.m{fill:#d2a8ff}.c{fill:#79c0ff}"
)


@dataclass(frozen=True, slots=True)
class Cell:
    """A character of the screen and the classes of its style."""

    character: str
    classes: tuple[str, ...]


Screen = tuple[tuple[Cell, ...], ...]


class Terminal:
    """The screen of a terminal, which grows downwards. It knows the sequences that benchgate writes and no others."""

    def __init__(self) -> None:
        self._lines: list[list[Cell]] = [[]]
        self._row = self._column = 0
        self._classes: tuple[str, ...] = ()

    def screen(self) -> Screen:
        """Return the lines, without empty ones at the end."""
        lines = [tuple(line) for line in self._lines]
        while lines and not lines[-1]:
            lines.pop()
        return tuple(lines)

    def write(self, text: str) -> None:
        """Take the output of a program. Raises ValueError for an unknown sequence."""
        at = 0
        while at < len(text):
            found = _CODES.match(text, at)
            if found is None:
                raise ValueError(f"unknown terminal sequence {text[at : at + 12]!r}")
            at = found.end()
            code, letter, move, characters = found.groups()
            if characters is not None:
                for character in characters:
                    self._put(Cell(character, self._classes))
            elif move == "\r":
                self._column = 0
            elif move == "\n":
                self._row += 1
                if self._row == len(self._lines):
                    self._lines.append([])
            elif letter == "m":
                self._classes = () if code in ("", "0") else tuple(_CLASSES[one] for one in code.split(";"))
            elif letter == "A":
                self._row = max(0, self._row - int(code or 1))
            elif (code, letter) == ("2", "K"):
                self._lines[self._row] = []
            elif (code, letter) not in (("?25", "l"), ("?25", "h")):  # hide and show the cursor
                raise ValueError(f"unknown terminal sequence {found.group()!r}")

    def _put(self, cell: Cell) -> None:
        line = self._lines[self._row]
        line.extend([Cell(" ", ())] * (self._column + 1 - len(line)))
        line[self._column] = cell
        self._column += 1


def record(command: list[str], folder: Path) -> Iterator[tuple[float, str]]:
    """Run a command in a pseudo-terminal; yield what it writes, and when, in seconds from its start."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        os.execve(command[0], command, {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color"})
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    began_s, decoder, held = time.monotonic(), codecs.getincrementaldecoder("utf-8")(), ""
    while True:
        try:
            data = os.read(terminal, 2**16)
        except OSError:  # Linux: the other end was closed
            data = b""
        if not data:
            break
        text = held + decoder.decode(data)
        held = text[len(_UNFINISHED.sub("", text)) :]
        yield time.monotonic() - began_s, text.removesuffix(held)
    os.waitpid(child, 0)


def frames_of(events: Iterator[tuple[float, str]], command: str) -> list[tuple[float, Screen]]:
    """Return the screens and when in the picture each begins, the first with the command alone."""
    terminal = Terminal()
    terminal.write(f"\x1b[36m$ {command}\x1b[0m\r\n")
    frames = [(0.0, terminal.screen())]
    kept_s = 0.0
    for at_s, text in events:
        if at_s - kept_s >= SAMPLE_S and terminal.screen() != frames[-1][1]:
            frames.append((FIRST_S + kept_s / FASTER, terminal.screen()))
            kept_s = at_s
        terminal.write(text)
    return [*frames, (FIRST_S + kept_s / FASTER + SAMPLE_S, terminal.screen())]


def draw(frames: Sequence[tuple[float, Screen]], title: str) -> str:
    """Draw the screens side by side, each line once, and let the film of them step past the window."""
    width = round(2 * _LEFT + COLUMNS * _CELL)
    height = _TOP + _LINE * len(frames[-1][1]) + 8
    names: dict[tuple[Cell, ...], str] = {}
    film = []
    for number, (_, screen) in enumerate(frames):
        for row, line in enumerate(screen):
            if line:
                name = names.setdefault(line, f"l{len(names)}")
                film.append(f'<use href="#{name}" x="{number * width}" y="{_TOP + row * _LINE}"/>')
    whole_s = frames[-1][0]
    last = -(len(frames) - 1) * width
    steps = "".join(
        f"{100 * at_s / whole_s:.2f}%{{transform:translateX({-number * width}px)}}"
        for number, (at_s, _) in enumerate(frames)
    )
    moving = (
        f"#film{{transform:translateX({last}px);animation:film {whole_s:.1f}s step-end}}@keyframes film{{{steps}}}"
        "@media(prefers-reduced-motion:reduce){#film{animation:none}}"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{title}">',
            f"<title>{title}</title>",
            f"<style>{_STYLE}{moving}</style>",
            '<rect x=".5" y=".5" width="99.9%" height="99.8%" rx="6" fill="#0d1117" stroke="#3d444d"/>',
            "<defs>",
            *(f'<text id="{name}">{_spans(line)}</text>' for line, name in names.items()),
            "</defs>",
            '<g id="film">',
            *film,
            "</g>",
            "</svg>",
            "",
        ]
    )


def _spans(line: Sequence[Cell]) -> str:
    """Return the parts of a line by style, each at its own column and as wide as its cells."""
    parts, column = [], 0
    for classes, run in groupby(line, key=lambda cell: cell.classes):
        text = "".join(cell.character for cell in run)
        if text.strip():
            style = f' class="{" ".join(classes)}"' if classes else ""
            at, long = _LEFT + column * _CELL, len(text) * _CELL
            parts.append(f'<tspan x="{at:g}" textLength="{long:g}"{style}>{escape(text)}</tspan>')
        column += len(text)
    return "".join(parts)


def main() -> None:
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    suite, command = (
        re.search(r"```yaml\n(.*?)```", page, re.DOTALL),
        re.search(r"^benchgate run .*$", page, re.MULTILINE),
    )
    assert suite is not None and command is not None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(ROOT / "suites", folder / "suites")
        (folder / "tutorial.yaml").write_text(suite[1], encoding="utf-8")
        words = [sys.executable, "-m", *command[0].split()]
        frames = frames_of(record(words, folder), command[0])
    PICTURE.write_text(draw(frames, "Terminal: the run of the tutorial ends with BLOCK"), encoding="utf-8")
    print(f"{PICTURE.relative_to(ROOT)}: {len(frames)} frames, {frames[-1][0]:.0f} s, {PICTURE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
