"""JSON Lines text → rows that each carry a unique `id`, with every problem and its line. Pure: it gets text."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass

from benchgate.errors import Problem


@dataclass(frozen=True, slots=True)
class Row:
    """One JSON object of a file and the line it stands on, counted from 1."""

    line: int
    values: dict[str, object]


def parse_rows(text: str, source: str, *, quote: bool = True) -> tuple[list[Row], list[Problem]]:
    """The rows that are sound, in order, and a problem for each that is not. Empty lines are skipped.

    A row is a JSON object with a non-empty text `id` that no earlier row has: answers are paired by it. Without
    `quote` no problem repeats what stands in a row, but for ids.
    """
    rows: list[Row] = []
    problems: list[Problem] = []
    first_line: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            values = parse_object(line, quote=quote)
            _check_id(values, first_line, number)
        except ValueError as exc:
            problems.append(Problem(source, number, None, "", str(exc)))
        else:
            rows.append(Row(number, values))
    if not rows and not problems:
        problems.append(Problem(source, None, None, "", "the file has no rows; write one JSON object per line"))
    return rows, problems


def parse_object(line: str, *, quote: bool = True) -> dict[str, object]:
    """One JSON object; ValueError, with what to write, for anything else, a key written twice and what is no text.

    Without `quote` the error repeats nothing of the line.
    """
    try:
        values = parse_json(line)
    except json.JSONDecodeError as exc:
        raise ValueError(f"not JSON: {exc.msg} at column {exc.colno}; write one JSON object per line") from None
    except ValueError as exc:
        raise exc if quote else ValueError("holds what JSON cannot carry, or a key twice; take the row out") from None
    if not isinstance(values, dict):
        found = line.strip()[:40] if quote else "the line"
        raise ValueError(f'{found} is not a JSON object; write {{"id": "…", …}}')
    return values


def parse_json(text: str) -> object:
    """A value that can be sent on as JSON. JSONDecodeError where it is no JSON, ValueError for a key written twice, a
    number that is not finite and what is no text.
    """
    try:
        value: object = json.loads(
            text, parse_constant=_refuse_number, parse_float=_finite, object_pairs_hook=_unique_keys
        )
        written = json.dumps(value, ensure_ascii=False)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if holds_half_a_pair(written):
        raise ValueError(HALF_A_PAIR)
    return value


HALF_A_PAIR = "holds half of a surrogate pair (\\ud800 to \\udfff), which is no text; write the character itself"


def holds_half_a_pair(text: str) -> bool:
    """Whether a text has what no request could carry and no store keep."""
    return re.search("[\ud800-\udfff]", text) is not None


def _check_id(values: dict[str, object], first_line: dict[str, int], number: int) -> None:
    row_id = values.get("id")
    if not isinstance(row_id, str) or not row_id:
        found = f"`id` is {json.dumps(row_id)}" if "id" in values else "the row has no `id`"
        raise ValueError(f"{found}; give every row its own text `id`, because answers are paired by it")
    if row_id in first_line:
        raise ValueError(f"`id` {row_id!r} is already used on line {first_line[row_id]}; ids must be unique")
    first_line[row_id] = number


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values = dict(pairs)
    if len(values) != len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {repeated!r} stands twice in one object")
    return values


def _finite(digits: str) -> float:
    value = float(digits)
    return value if math.isfinite(value) else _refuse_number(digits)


def _refuse_number(found: str) -> float:
    raise ValueError(f"{found} is not a number that JSON can carry; write a finite one or null")
