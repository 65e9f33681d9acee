"""Mutations of fuzzing inputs: bytes, tokens of a text, and values inside JSON, all drawn from one `Random`."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

Mutation = Callable[[bytes, random.Random], bytes]

MOST_BYTES = 1 << 18
_DEEP: list[Any] = []
for _ in range(400):
    _DEEP = [_DEEP]
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 0.5, 2**31, 2**53 + 1, 2**63, 2**64, 10**400, -(10**400), 1e308, -1e308, 5e-324,
    float("nan"), float("inf"), float("-inf"), "", "a", " ", "0", "nan", "inf", "-1", "1e999", "\0", "\ud800", "\u202e",
    "\x1b[31m", "<script>", "x" * 5_000, "9" * 5_000, "2026-01-01T00:00:00Z", "9999-12-31T23:59:59.999Z", [], {}, [[]],
    [None], [0], ["a"], {"": None}, {"a": 1}, _DEEP,
)  # fmt: skip
"""Values that parsers mistake: borders of types, other types, and texts that mean something elsewhere."""
TOKENS = (
    b"\0", b"\n", b"\r\n", b"\r", b"\t", b" ", b":", b",", b"-", b"0", b"-0", b"1e999", b"NaN", b"nan", b"+Inf", b"\"",
    b"'", b"{", b"}", b"[", b"]", b"\\", b"\\u0000", b"\\ud800", b"\xff", b"\xf0\x9f\x92\xa9", b"\xef\xbb\xbf", b"#",
    b"&a", b"*a", b"<<", b"!!python/object:os.system", b"|", b">", b"~", b"null", b"true", b"${env:HOME}", b"9" * 400,
    b"[" * 2_000, b"{a: " * 200, b"e", b".", b"/", b"..", b"%", b";", b"data: ", b"event: ", b"[DONE]", b"id: ",
    b"ffffffffffffffff", b"transfer-encoding: chunked\r\n", b"content-length: 1\r\n", b"_total", b"_bucket", b"le=",
)  # fmt: skip
_TOKEN = re.compile(rb"[0-9.]+|[A-Za-z_]+|\s+|.", re.DOTALL)


def mutate_bytes(data: bytes, drawn: random.Random) -> bytes:
    """Cut, repeat, replace or insert some bytes."""
    made = bytearray(data)
    for _ in range(drawn.randint(1, 4)):
        at = drawn.randint(0, len(made))
        end = min(len(made), at + drawn.choice((0, 1, 1, 2, 8, 64, 1024)))
        way = drawn.randrange(4)
        if way == 0:
            del made[at:end]
        elif way == 1:
            made[at:at] = made[at:end] * drawn.choice((1, 2, 30))
        elif way == 2:
            made[at:end] = drawn.choice(TOKENS)
        elif at < len(made):
            made[at] = drawn.randrange(256)
    return bytes(made[:MOST_BYTES])


def mutate_tokens(data: bytes, drawn: random.Random) -> bytes:
    """Replace, drop, repeat or exchange words, numbers and signs of a text, or its lines."""
    if drawn.random() < 0.2:
        return mutate_bytes(data, drawn)
    parts = data.splitlines(keepends=True) if drawn.random() < 0.3 else _TOKEN.findall(data)
    for _ in range(drawn.randint(1, 4)):
        if not parts:
            return drawn.choice(TOKENS)
        at, other, way = drawn.randrange(len(parts)), drawn.randrange(len(parts)), drawn.randrange(5)
        if way == 0:
            parts[at] = drawn.choice(TOKENS)
        elif way == 1:
            del parts[at]
        elif way == 2:
            parts[at:at] = parts[at : at + drawn.choice((1, 1, 3, 20))] * drawn.choice((1, 1, 40))
        elif way == 3:
            parts[at], parts[other] = parts[other], parts[at]
        else:
            parts[at] = parts[other]
    return b"".join(parts)[:MOST_BYTES]


def change_value(document: Any, drawn: random.Random) -> Any:
    """Return the document with some of its values replaced, removed, repeated, moved or nested. It may be changed."""
    holder = [document]
    for _ in range(drawn.choice((1, 1, 1, 2, 3))):
        places = _places(holder)
        at, key = drawn.choice(places)
        way = drawn.randrange(6)
        if way <= 2:
            value = drawn.choice(VALUES)
            # A later change goes into the document's own copy, not into the list of values.
            at[key] = json.loads(_dumped(value)) if isinstance(value, list | dict) else value
        elif way == 3 and at is not holder:
            del at[key]
        elif way == 4:
            other, name = drawn.choice(places)
            at[key] = json.loads(_dumped(other[name]))
        elif isinstance(at, list):
            at[key:key] = [at[key]] * drawn.choice((1, 2, 50))
        else:
            at[drawn.choice(("", "a", "x" * 200, "\ud800", *map(str, at)))] = at[key]
        if not holder:
            holder.append(None)
    return holder[0]


def _places(holder: list[Any]) -> list[tuple[Any, Any]]:
    """Return every container with each of its keys or indexes."""
    found: list[tuple[Any, Any]] = []
    waiting: list[Any] = [holder]
    while waiting and len(found) < 20_000:
        here = waiting.pop()
        keys = here if isinstance(here, dict) else range(len(here))
        found += [(here, key) for key in keys]
        waiting += [here[key] for key in keys if isinstance(here[key], dict | list)]
    return found


def _dumped(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def mutate_json(data: bytes, drawn: random.Random) -> bytes:
    """Change values of a JSON document; of what is none, tokens."""
    if drawn.random() < 0.1:
        return mutate_tokens(data, drawn)
    try:
        return _dumped(change_value(json.loads(data), drawn)).encode("ascii")[:MOST_BYTES]
    except (ValueError, RecursionError):
        return mutate_tokens(data, drawn)


def mutate_json_lines(data: bytes, drawn: random.Random) -> bytes:
    """Change one line of JSON Lines, or the order and number of the lines."""
    lines = data.split(b"\n")
    at = drawn.randrange(len(lines))
    if drawn.random() < 0.8:
        lines[at] = mutate_json(lines[at], drawn)
        return b"\n".join(lines)[:MOST_BYTES]
    return mutate_tokens(data, drawn)


_FILE = b"=== "


def join_files(files: dict[str, bytes]) -> bytes:
    """Return several files as one input."""
    return b"\n".join(_FILE + name.encode() + b"\n" + content for name, content in files.items())


def split_files(data: bytes) -> dict[str, bytes]:
    """Return the files of an input by their names; names that are no plain file names are left out."""
    files = {}
    for part in (b"\n" + data).split(b"\n" + _FILE)[1:]:
        name, _, content = part.partition(b"\n")
        if re.fullmatch(rb"[A-Za-z0-9][A-Za-z0-9_.-]{0,100}", name):
            files[name.decode()] = content
    return files


def mutate_files(data: bytes, drawn: random.Random) -> bytes:
    """Change one file of several by what its name says it is, and seldom the names."""
    files = split_files(data)
    if not files or drawn.random() < 0.02:
        return mutate_bytes(data, drawn)
    name = drawn.choice(sorted(files))
    ways: dict[str, Mutation] = {"json": mutate_json, "jsonl": mutate_json_lines, "eval": mutate_bytes}
    files[name] = ways.get(name.rpartition(".")[2], mutate_tokens)(files[name], drawn)
    return join_files(files)[:MOST_BYTES]
