"""Fixed texts: a JSONL file → the texts that both arms read, or every problem in it at once."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from benchgate.errors import Problem, SuiteError
from benchgate.plan.items import FixedText, positions_available
from benchgate.suite.formats import Row, parse_rows
from benchgate.suite.schema import Divergence
from benchgate.text_files import RECORDED_BYTES, text_of

_KEYS = ("id", "text")


def load_texts(path: Path, settings: Divergence) -> tuple[FixedText, ...]:
    """The texts of a JSONL file of `{"id": …, "text": …}` rows, in file order.

    Raises SuiteError with every problem and its line: a file that cannot be read, a row that is not such an object, an
    `id` used twice, an empty text, an unknown key; and when there is no room in all of them for the positions wanted.
    """
    source = str(path)
    try:
        text = text_of(path, RECORDED_BYTES)
    except (OSError, UnicodeDecodeError) as exc:
        reason = f"the texts cannot be read ({exc}); `divergence.texts` names a JSONL file beside the suite"
        raise SuiteError([Problem(source, None, None, "", reason)]) from exc
    rows, problems = parse_rows(text, source)
    problems += [Problem(source, row.line, None, "", message) for row in rows for message in _faults(row)]
    if problems:
        raise SuiteError(problems)
    texts = tuple(FixedText(id=str(row.values["id"]), text=str(row.values["text"])) for row in rows)
    room = positions_available(texts, settings.window)
    if room < settings.positions:
        reason = (
            f"there is room for {room} positions in these texts, one for every 16 characters, and "
            f"`divergence.positions` is {settings.positions}; give more texts or ask for fewer positions"
        )
        raise SuiteError([Problem(source, None, None, "", reason)])
    return texts


def _faults(row: Row) -> list[str]:
    faults = []
    text = row.values.get("text")
    if not isinstance(text, str) or not text.strip():
        faults.append("`text` is missing or empty; it must be the text to read")
    for key in row.values:
        if key not in _KEYS:
            near = get_close_matches(key, _KEYS, n=1)
            faults.append(f"unknown key {key!r}; " + (f"did you mean {near[0]!r}?" if near else "a row has id, text"))
    return faults
