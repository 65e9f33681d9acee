"""Whether an answer is what its request asked it to be: JSON after a schema, or calls of tools that were offered."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from benchgate.load.answer_text import Key, Words
from benchgate.model.ask import Ask
from benchgate.suite.json_schema import validator_of

_LONGEST_S = 0.2  # of processor time, to judge one answer; the slowest sound ones take a hundredth of it
_CHOICE_OF_ONE = ("function", "custom")


def is_judged(ask: Ask) -> bool:
    """Whether answers to this are valid or not; others are neither."""
    return ask.schema is not None or bool(ask.fields.get("tools"))


def is_valid(ask: Ask, words: Words) -> bool | None:
    """Whether an answer is what was asked for. None when its validity is not judged.

    With a schema, all of the text must be JSON that the schema accepts; text around it is for nobody to cut off. Where
    tools are offered, every call must be one of them, its arguments a JSON object, and there must be a call where one
    is required; then a schema leaves the text of an answer that calls only the choice to be empty. An answer in words
    to an offer is neither valid nor invalid. A call that nobody offered stands for nothing.
    """
    offered = bool(ask.fields.get("tools"))
    if offered and words.arguments:
        silent = ask.schema is None or not words.text.strip() or _accepts(ask.schema, words.text)
        return silent and all(_calls(ask, words, key) for key in words.arguments)
    choice = ask.fields.get("tool_choice")
    if offered and (choice == "required" or isinstance(choice, dict)):
        return False
    return None if ask.schema is None else _accepts(ask.schema, words.text)


def _calls(ask: Ask, words: Words, key: Key) -> bool:
    """Whether this is a call that was asked for."""
    return words.names.get(key) in _callable(ask) and isinstance(_parsed(words.arguments[key]), dict)


def _callable(ask: Ask) -> set[str]:
    """The names of the tools that a request lets an answer call."""
    tools, choice = ask.fields.get("tools"), ask.fields.get("tool_choice")
    if choice == "none":
        return set()
    chosen = [choice] if isinstance(choice, dict) and choice.get("type", "function") in _CHOICE_OF_ONE else tools
    return {name for tool in (chosen if isinstance(chosen, list | tuple) else ()) for name in _names(tool)}


def _names(tool: object) -> Iterator[str]:
    """As chat spells a tool (inside `function`) and as responses do."""
    if isinstance(tool, Mapping):
        inner = tool.get("function")
        name = (inner if isinstance(inner, Mapping) else tool).get("name")
        if isinstance(name, str):
            yield name


def _accepts(schema: Mapping[str, object], text: str) -> bool:
    found = _parsed(text)
    if found is _NOTHING:
        return False
    validator = validator_of(json.dumps(schema))
    try:
        with _bounded():
            return validator.is_valid(found)
    except (RecursionError, OverflowError, _TooLongError):  # nested deeper or larger than anybody means
        return False


class _TooLongError(Exception):
    """An answer could not be judged in the time that one may take."""


@contextmanager
def _bounded() -> Iterator[None]:
    """Raise `_TooLongError` in what runs longer: some patterns, and schemas that branch into themselves, take an age.

    Only the main thread can be stopped; that is where a load generator process reads its answers.
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


_NOTHING = object()


def _parsed(text: str) -> object:
    """The JSON value that a text is; `_NOTHING` when it is none. NaN and Infinity are no JSON."""
    try:
        return json.loads(text, parse_constant=_refused)
    except (ValueError, RecursionError):
        return _NOTHING


def _refused(constant: str) -> object:
    raise ValueError(f"{constant} is no JSON")
