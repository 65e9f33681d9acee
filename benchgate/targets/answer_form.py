"""What an answer is held to that was asked to have a form: JSON after a schema, calls of tools that were offered."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from benchgate.suite.formats import validator_of

_LONGEST_S = 0.2  # of processor time, to judge one answer; the slowest sound ones take a hundredth of it
_CHOICE_OF_ONE = ("function", "custom")

NOTHING = object()
"""What a text that is no JSON stands for; null is a value."""


def json_value(text: str) -> object:
    """The JSON value that a text is; `NOTHING` when it is none. NaN and Infinity are no JSON."""
    try:
        return json.loads(text, parse_constant=_refused)
    except (ValueError, RecursionError):
        return NOTHING


def accepts(schema: Mapping[str, object], text: str) -> bool:
    """Whether all of a text is JSON that the schema accepts; a text that takes an age to judge is not."""
    found = json_value(text)
    if found is NOTHING:
        return False
    validator = validator_of(json.dumps(schema))
    try:
        with _bounded():
            return validator.is_valid(found)
    except (RecursionError, OverflowError, _TooLongError):  # nested deeper or larger than anybody means
        return False


def callable_tools(tools: object, choice: object) -> dict[str, Mapping[str, object]]:
    """The tools that a request lets an answer call, by name, each with what is said of it.

    Spelled as chat does (inside `function`) or as responses do. Of a `choice` of one tool only its name is said.
    """
    if choice == "none":
        return {}
    chosen = [choice] if isinstance(choice, dict) and choice.get("type", "function") in _CHOICE_OF_ONE else tools
    found = {}
    for tool in chosen if isinstance(chosen, list | tuple) else ():
        if isinstance(tool, Mapping):
            inner = tool.get("function")
            said = inner if isinstance(inner, Mapping) else tool
            name = said.get("name")
            if isinstance(name, str):
                found[name] = said
    return found


class _TooLongError(Exception):
    """An answer could not be judged in the time that one may take."""


@contextmanager
def _bounded() -> Iterator[None]:
    """Raise `_TooLongError` in what runs longer: some patterns, and schemas that branch into themselves, take an age.

    Only the main thread can be stopped; that is where every client that judges answers reads them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGVTALRM, _stop)
    # again and again, until it meets the judging itself
    signal.setitimer(signal.ITIMER_VIRTUAL, _LONGEST_S, _LONGEST_S / 10)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


def _stop(number: int, frame: FrameType | None) -> None:
    """Raised in a callback of the collector, which may be what runs just then, it would be lost and printed."""
    if frame is not None and Path(frame.f_code.co_filename).parent.name in ("jsonschema", "re"):
        raise _TooLongError


def _refused(constant: str) -> object:
    raise ValueError(f"{constant} is no JSON")
