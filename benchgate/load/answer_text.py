"""What an answer says in words: its text, and the tools it calls. Read only where somebody needs it.

A conversation that is carried on does, and so does the question whether an answer is valid. Reasoning is no part of
either: it is not sent back, and nobody asked for it in a format.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from benchgate.load.decode_document import whole_document
from benchgate.load.raw_body import Read
from benchgate.load.sse import EventParser, OverlongEvent
from benchgate.model.ask import Ask
from benchgate.targets.content import arguments_text, calls_in, text_in
from benchgate.targets.refusals import json_object

_TEXT_DELTA = "response.output_text.delta"
_ARGUMENTS_DELTA = "response.function_call_arguments.delta"
_ITEMS = ("response.output_item.added", "response.output_item.done")

Key = tuple[int, str]
"""What tells one call of an answer from another: its place, and its id where it has one."""


@dataclass(slots=True)
class Words:
    """The text of an answer, and for each tool it calls, in order, its name and the arguments as they were written."""

    text: str = ""
    arguments: dict[Key, str] = field(default_factory=dict)
    names: dict[Key, str] = field(default_factory=dict)  # of the calls that said one
    _ids: dict[int, str] = field(default_factory=dict)  # of the call that each place stands for now

    def take(self, holder: dict[str, object]) -> None:
        """Add a message, or a piece of one, as chat and completions have them."""
        for name in ("content", "text"):
            self.text += text_in(holder.get(name)) or ""
        for place, call in enumerate(calls_in(holder.get("tool_calls")) or ()):
            if isinstance(call, dict) and isinstance(function := call.get("function"), dict):
                index = _place(call.get("index"), place)
                call_id = call.get("id")
                if isinstance(call_id, str) and call_id:
                    self._ids[index] = call_id
                key = index, self._ids.get(index, "")  # some count every call as the first
                self.take_call(key, function.get("name"), arguments_text(function.get("arguments")))

    def take_call(self, key: Key, name: object, piece: object) -> None:
        """Add to the arguments of one call, and note its name where it comes with one."""
        self.arguments[key] = self.arguments.get(key, "") + (piece if isinstance(piece, str) else "")
        if isinstance(name, str) and name:
            self.names[key] = name


def words_of(body: Iterable[Read], ask: Ask) -> Words:
    """What an answer to this says; as far as it can be read, whatever became of it."""
    words = Words()
    if ask.stream:
        for event in _events(body):
            _take_response_event(words, event) if ask.endpoint == "responses" else _take_choices(words, event, "delta")
        return words
    document = whole_document(body)[1] or {}
    if ask.endpoint == "responses":
        _take_output(words, document)
    else:
        _take_choices(words, document, "message")
    return words


def _events(body: Iterable[Read]) -> Iterator[dict[str, object]]:
    parser = EventParser()
    for at_ns, data in body:
        try:
            events = parser.feed(at_ns, data)
        except OverlongEvent:
            return
        for event in events:
            found = json_object(event.data)
            if found is not None:
                yield found


def _take_choices(words: Words, document: dict[str, object], holder_name: str) -> None:
    """The first choice: nobody asks for more than one."""
    choices = document.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if isinstance(choice, dict):
        holder = choice.get(holder_name)
        words.take(holder if isinstance(holder, dict) else choice)


def _take_response_event(words: Words, event: dict[str, object]) -> None:
    piece, kind, key = event.get("delta"), event.get("type"), (_place(event.get("output_index"), 0), "")
    if kind == _TEXT_DELTA and isinstance(piece, str):
        words.text += piece
    elif kind == _ARGUMENTS_DELTA:
        words.take_call(key, event.get("name"), piece)
    elif kind in _ITEMS and isinstance(item := event.get("item"), dict) and item.get("type") == "function_call":
        # The whole item repeats what the deltas said; without any, it says all of it.
        words.take_call(key, item.get("name"), None if words.arguments.get(key) else item.get("arguments"))


def _place(told: object, otherwise: int) -> int:
    """Where a call stands among the others, where an answer says so in a number."""
    return told if isinstance(told, int) else otherwise


def _take_output(words: Words, document: dict[str, object]) -> None:
    output = document.get("output")
    for place, item in enumerate(output if isinstance(output, list) else ()):
        if not isinstance(item, dict):
            continue
        if item.get("type") == "function_call":
            words.take_call((place, ""), item.get("name"), item.get("arguments"))
        parts = item.get("content")
        for part in parts if isinstance(parts, list) and item.get("type") == "message" else ():
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                words.text += part["text"]
