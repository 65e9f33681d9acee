"""Recorded prompts: a JSONL file → the prompts of a shadow comparison, or every problem in it at once."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from benchgate.errors import Problem, SuiteError
from benchgate.plan.schedule import ShadowPrompt
from benchgate.suite.jsonl import Row, parse_rows

_KEYS = ("id", "prompt")


def load_prompts(path: Path) -> tuple[ShadowPrompt, ...]:
    """The prompts of a JSONL file of `{"id": …, "prompt": …}` rows, in file order.

    Raises SuiteError with every problem and its line: a file that cannot be read, a row that is not such an object, an
    `id` used twice, an empty prompt, an unknown key.
    """
    source = str(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        reason = f"the prompts cannot be read ({exc}); `shadow.prompts` names a JSONL file beside the suite"
        raise SuiteError([Problem(source, None, None, "", reason)]) from exc
    rows, problems = parse_rows(text, source)
    problems += [Problem(source, row.line, None, "", message) for row in rows for message in _faults(row)]
    if problems:
        raise SuiteError(problems)
    return tuple(ShadowPrompt(id=str(row.values["id"]), prompt=str(row.values["prompt"])) for row in rows)


def _faults(row: Row) -> list[str]:
    faults = []
    prompt = row.values.get("prompt")
    if not isinstance(prompt, str) or not prompt.strip():
        faults.append("`prompt` is missing or empty; it must be the text to send")
    for key in row.values:
        if key not in _KEYS:
            near = get_close_matches(key, _KEYS, n=1)
            faults.append(f"unknown key {key!r}; " + (f"did you mean {near[0]!r}?" if near else "a row has id, prompt"))
    return faults
