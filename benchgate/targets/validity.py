"""The form that a request demands of its answer: JSON, JSON after a schema, calls of the offered tools."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from benchgate.model.request import ModelRequest
from benchgate.suite.formats import validator_of

_LONGEST_S = 0.2  # of processor time, to check one answer; the slowest sound ones take a hundredth of it
_CHOICE_OF_ONE = ("function", "custom")

NOTHING = object()  # stands for a text that is no JSON; null is a value


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """A form of answers. `schema` is one that all of the text must satisfy, `is_object` demands any JSON object.

    `tools` and `tool_choice` are those of the request. With `checks_arguments` the arguments of a call must satisfy
    the schema of its tool, else they need only be a JSON object.
    """

    schema: Mapping[str, object] | None = None
    is_object: bool = False
    tools: object = None
    tool_choice: object = None
    checks_arguments: bool = False

    def is_met(self, text: str, calls: Sequence[tuple[str | None, str]]) -> bool | None:
        """Check an answer's text and calls, each with its name and arguments. None when nothing was demanded of it.

        Text around JSON makes it invalid: nobody could cut it off. Every call must be of an offered tool, and there
        must be a call where one is required; a call that nobody offered is ignored. An answer that only calls may
        leave its text empty. An answer in words to an offer of tools is neither valid nor invalid.
        """
        if self.tools and calls:
            if text.strip() and self._fits(text) is False:
                return False
            for name, arguments in calls:
                is_blank = not arguments.strip()  # a tool that needs no argument may be called with an empty text
                written = "{}" if is_blank else arguments
                if name is None or name not in callable_tools(self.tools, self.tool_choice):
                    return False
                if not isinstance(json_value(written), dict):
                    return False
                schema = tool_schemas(self.tools).get(name) if is_blank or self.checks_arguments else None
                if schema is not None and not accepts(schema, written):
                    return False
            return True
        if self.tools and _requires_call(self.tool_choice):
            return False
        return self._fits(text)

    def _fits(self, text: str) -> bool | None:
        if self.is_object:
            return isinstance(json_value(text), dict)
        return None if self.schema is None else accepts(self.schema, text)


def form_of_request(ask: ModelRequest) -> AnswerForm | None:
    """Return the form of the answers to a planned request. None if their validity is not judged."""
    if not ask.requests_form:
        return None
    return AnswerForm(ask.schema, tools=ask.fields.get("tools"), tool_choice=ask.fields.get("tool_choice"))


def form_of_fields(fields: Mapping[str, object]) -> AnswerForm:
    """Return the form that the fields of a recorded request demand; calls must satisfy the schemas of their tools."""
    requested = fields.get("response_format")
    kind = requested.get("type") if isinstance(requested, Mapping) else None
    schema = response_schema(requested) if kind == "json_schema" else None
    return AnswerForm(
        schema if isinstance(schema, Mapping) else None,
        kind == "json_object",
        fields.get("tools"),
        fields.get("tool_choice"),
        checks_arguments=True,
    )


def _requires_call(choice: object) -> bool:
    """Return True if an answer in words does not do what a `tool_choice` demands. Tools may be allowed without that."""
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        inner = choice.get("allowed_tools")
        choice = (inner if isinstance(inner, dict) else choice).get("mode")
    return choice == "required" or isinstance(choice, dict)


def response_schema(response_format: object) -> object:
    """Return the schema in a `response_format`, as it stands there."""
    inner = response_format.get("json_schema") if isinstance(response_format, Mapping) else None
    return inner.get("schema") if isinstance(inner, Mapping) else None


def tool_schemas(tools: object) -> dict[str, Mapping[str, object]]:
    """Return the schema of every tool's arguments, by the tool's name."""
    found = callable_tools(tools, None)
    return {name: schema for name, tool in found.items() if isinstance(schema := tool.get("parameters"), Mapping)}


def callable_tools(tools: object, choice: object) -> dict[str, Mapping[str, object]]:
    """Return the callable tools by name, in chat's or responses' spelling. Of a `choice` only the name is known."""
    if choice == "none":
        return {}
    chosen = [choice] if isinstance(choice, dict) and choice.get("type", "function") in _CHOICE_OF_ONE else tools
    found = {}
    for tool in chosen if isinstance(chosen, list | tuple) else ():
        if isinstance(tool, Mapping):
            inner = tool.get("function")
            described = inner if isinstance(inner, Mapping) else tool
            name = described.get("name")
            if isinstance(name, str):
                found[name] = described
    return found


def json_value(text: str) -> object:
    """Parse JSON; `NOTHING` for anything else. NaN and Infinity are no JSON."""

    def refuse(constant: str) -> object:
        raise ValueError(f"{constant} is no JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError):
        return NOTHING


def accepts(schema: Mapping[str, object], text: str) -> bool:
    """Return True if all of a text is JSON that the schema accepts, and that was found out in time."""
    found = json_value(text)
    if found is NOTHING:
        return False
    validator = validator_of(json.dumps(schema))
    try:
        with _time_limit():
            return validator.is_valid(found)
    except (RecursionError, OverflowError, _TooLongError):  # nested deeper or larger than anybody means
        return False


class _TooLongError(Exception):
    """The check of an answer took too long."""


@contextmanager
def _time_limit() -> Iterator[None]:
    """Raise `_TooLongError` in a check that runs longer: some patterns, and schemas that branch into themselves, do.

    Only the main thread can be stopped; that is where every client that checks answers reads them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGVTALRM, _stop)
    # again and again, until it meets the check itself
    signal.setitimer(signal.ITIMER_VIRTUAL, _LONGEST_S, _LONGEST_S / 10)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


def _stop(number: int, frame: FrameType | None) -> None:
    # Raised in a callback of the garbage collector, which may be what runs just then, it would be lost and printed.
    if frame is not None and Path(frame.f_code.co_filename).parent.name in ("jsonschema", "re"):
        raise _TooLongError
