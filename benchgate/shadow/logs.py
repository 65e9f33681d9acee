"""Logs of requests: files, packed with gzip or not, → the requests in them, with a count of every line that is none.

JSON Lines of OpenAI's requests (bare, of a batch, or in a log beside the answer), of plain prompts, and the log of a
vLLM server, each line by what it is. A line is read and forgotten; what it says stands in no message.
"""

from __future__ import annotations

import gzip
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from benchgate.errors import UsageError
from benchgate.shadow.asked import Asked
from benchgate.shadow.logged import (
    BadLineError,
    LeftOutError,
    WithoutPromptError,
    read_json_line,
    read_server_line,
    wrapped_line,
)

MOST_PLACES = 5
"""That are named for each reason why lines were left out."""

_LONGEST_LINE = 64 * 2**20  # bytes
_SEVERAL = 5
_OTHER = "is neither a JSON object nor a request of a server's log"


@dataclass(slots=True)
class Reading:
    """What was found in the logs so far: `bad` and `left_out` by reason, `places` the first lines of each reason."""

    lines: int = 0
    requests: int = 0
    other: int = 0  # lines of a server's log that tell of something else
    longest: int = 0  # characters, of the prompts in servers' logs
    at_longest: set[int] = field(default_factory=set)  # hashes of those that are so long
    bad: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    places: dict[str, list[str]] = field(default_factory=dict)

    @property
    def cut_at(self) -> int | None:
        """How long the prompts of a server's log are at most, where several end there; None where none seem cut."""
        return self.longest if len(self.at_longest) >= _SEVERAL else None

    def of_server(self, prompt: str) -> None:
        """Take into account how long a prompt in a server's log is: several different ones end where a log was cut."""
        if len(prompt) > self.longest:
            self.longest, self.at_longest = len(prompt), set()
        if len(prompt) == self.longest and len(self.at_longest) < _SEVERAL:
            self.at_longest.add(hash(prompt))

    def note(self, reasons: Counter[str], reason: str, place: str) -> None:
        """Count a line that is no request to draw, and remember where it stands."""
        reasons[reason] += 1
        known = self.places.setdefault(reason, [])
        if len(known) < MOST_PLACES:
            known.append(place)


def read_logs(
    paths: Sequence[Path], reading: Reading, told: Callable[[str], None] = lambda line: None
) -> Iterator[tuple[str, Asked]]:
    """Every request with its place (`file:line`), file after file; what was left out stands in `reading`.

    Raises UsageError for a file that cannot be read or unpacked, and for one that holds no request at all.
    """
    for path in dict.fromkeys(paths):
        told(f"reading {path}")
        one = _OneFile(path, reading)
        yield from one.requests()
        one.finish()


class _OneFile:
    def __init__(self, path: Path, reading: Reading) -> None:
        self._path, self._all = path, reading
        self._lines = self._found = self._left_out = self._server_lines = self._without_prompt = 0
        self._strange: list[int] = []  # lines that are fine in a server's log, and nowhere else
        self._strange_n = 0

    def requests(self) -> Iterator[tuple[str, Asked]]:
        with _opened(self._path) as file:
            while raw := file.readline(_LONGEST_LINE + 1):
                self._lines += 1
                if len(raw) > _LONGEST_LINE:
                    _skip_line(file)
                asked = self._asked(raw)
                if asked is not None:
                    self._found += 1
                    yield self._place(self._lines), asked

    def finish(self) -> None:
        """Count what the whole file says of its lines."""
        self._all.lines += self._lines
        self._all.requests += self._found
        if self._server_lines:
            self._all.other += self._strange_n
        elif self._strange_n:
            for number in self._strange:
                self._all.note(self._all.bad, _OTHER, self._place(number))
            self._all.bad[_OTHER] += self._strange_n - len(self._strange)
        if self._found == 0:
            raise UsageError(f"{self._path}: {self._why_empty()}")

    def _asked(self, raw: bytes) -> Asked | None:
        try:
            return self._read(raw)
        except BadLineError as error:
            self._all.note(self._all.bad, str(error), self._place(self._lines))
        except LeftOutError as error:
            self._left_out += 1
            self._all.note(self._all.left_out, str(error), self._place(self._lines))
        except WithoutPromptError:
            self._server_lines += 1
            self._without_prompt += 1
            self._strange_n += 1
        return None

    def _read(self, raw: bytes) -> Asked | None:
        if len(raw) > _LONGEST_LINE:
            raise BadLineError(f"is longer than {_LONGEST_LINE // 2**20} MiB")
        try:
            line = raw.decode("utf-8-sig" if self._lines == 1 else "utf-8").strip()
        except UnicodeDecodeError:
            raise BadLineError("is not UTF-8") from None
        if not line:
            return None
        if line.startswith("{"):
            wrapped = wrapped_line(line)
            if wrapped is None:
                return read_json_line(line)
            line = wrapped
        asked = read_server_line(line)
        if asked is None:
            self._strange_n += 1
            if len(self._strange) < MOST_PLACES:
                self._strange.append(self._lines)
        else:
            self._server_lines += 1
            self._all.of_server(asked.text)
        return asked

    def _why_empty(self) -> str:
        if self._without_prompt:
            return (
                f"{self._without_prompt:,} requests are logged without what they asked; vLLM writes prompts only with "
                "VLLM_LOGGING_LEVEL=DEBUG beside --enable-log-requests"
            )
        expected = "expected JSON Lines of OpenAI's requests or of prompts, or vLLM's log with --enable-log-requests"
        if not self._lines:
            return f"the file is empty; {expected}"
        if self._left_out:
            return f"of its {self._lines:,} lines none is a request that can be drawn: {self._first_reason()}"
        return f"of its {self._lines:,} lines none is a request ({self._first_reason()}); {expected}"

    def _first_reason(self) -> str:
        for reason, places in self._all.places.items():
            for place in places:
                if place.rpartition(":")[0] == str(self._path):
                    return f"line {place.rpartition(':')[2]} {reason}"
        return "all are empty"

    def _place(self, line: int) -> str:
        return f"{self._path}:{line}"


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes] | gzip.GzipFile]:
    """The file, unpacked when it is gzip by its first bytes."""
    try:
        with path.open("rb") as raw:
            magic = raw.read(4)
            raw.seek(0)
            if magic == b"\x28\xb5\x2f\xfd":
                raise UsageError(f"{path} is packed with zstd; unpack it first")
            if magic[:2] != b"\x1f\x8b":
                yield raw
                return
            with gzip.open(raw, "rb") as unpacked:
                yield unpacked
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UsageError(f"{path} is gzip, but broken or cut off") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}; name a file of logged requests") from error


def _skip_line(file: IO[bytes] | gzip.GzipFile) -> None:
    while (rest := file.readline(2**20)) and not rest.endswith(b"\n"):
        pass
