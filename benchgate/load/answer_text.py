"""Text, reasoning and tool calls of an answer, put together from the pieces in which it came."""

from __future__ import annotations

from dataclasses import dataclass, field

from pydantic_core import from_json

from benchgate.targets.answers import arguments_text, calls_in, calls_something, text_in, thinking_in

_ANSWER_FIELDS = ("content", "text", "refusal")  # of a chat message, or a piece of one; `text` of completions
_REASONING_FIELDS = ("reasoning_content", "reasoning")  # two names of one thing: some servers send both

Key = tuple[int, str]
"""What tells one call of an answer from another: its place, and its id where it has one."""


@dataclass(slots=True, eq=False)
class Words:
    """Everything that one choice of an answer says, as lists of pieces. Equal where the joined pieces are equal."""

    texts: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)  # and output of a server's own tools
    thoughts: list[str] = field(default_factory=list)
    names: dict[Key, str] = field(default_factory=dict)  # of the calls that gave one
    function: list[str] = field(default_factory=list)  # name and arguments of a `function_call`, the older form
    _arguments: dict[Key, list[str]] = field(default_factory=dict)
    _ids: dict[int, str] = field(default_factory=dict)  # of the call that each place stands for now

    @property
    def text(self) -> str:
        """The text of the answer, without refusals, reasoning and calls."""
        return "".join(self.texts)

    @property
    def reasoning(self) -> str:
        """The text of the reasoning."""
        return "".join(self.thoughts)

    @property
    def arguments(self) -> dict[Key, str]:
        """The arguments of each tool call as they were written, in the order of the calls."""
        return {key: "".join(pieces) for key, pieces in self._arguments.items()}

    @property
    def called(self) -> list[tuple[str | None, str]]:
        """Name and arguments of each tool call, in their order."""
        return [(self.names.get(key), arguments) for key, arguments in self.arguments.items()]

    @property
    def output(self) -> str:
        """All output but the reasoning: text, refusals, and the names and arguments of calls."""
        if not (self.refusals or self._arguments or self.function):
            return "".join(self.texts)
        calls = [*self.names.values(), *self.arguments.values(), *self.function]
        return "".join([*self.texts, *self.refusals, *calls])

    @property
    def calls(self) -> int:
        """How many tools the answer calls; calls without a name and without arguments do not count."""
        if not (self._arguments or self.function):
            return 0
        called = {key for key, pieces in self._arguments.items() if any(pieces)} | set(self.names)
        return len(called) + any(self.function)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Words) and self._joined() == other._joined()

    __hash__ = None  # type: ignore[assignment]  # it changes

    def take(self, holder: dict[str, object], *, reasons: bool = True) -> bool | None:
        """Add a message, or a piece of one, as chat and completions have them.

        Return True if it holds output other than reasoning, False if it holds reasoning alone, None if it holds
        nothing. Without `reasons` its reasoning is ignored.
        """
        answers = False
        for name in _ANSWER_FIELDS:  # a plain loop: this may run for every chunk
            value = holder.get(name)
            if value and (text := value if isinstance(value, str) else text_in(value)):
                (self.refusals if name == "refusal" else self.texts).append(text)
                answers = True
        if holder.get("tool_calls") and self._take_calls(holder["tool_calls"]):
            answers = True
        called = holder.get("function_call")
        if isinstance(called, dict) and calls_something(called):
            said = called.get("name"), arguments_text(called.get("arguments"))
            self.function += [piece for piece in said if isinstance(piece, str)]
            answers = True
        thought = _reasoning_in(holder) if reasons else None
        if thought:
            self.thoughts.append(thought)
        return True if answers else False if thought else None

    def take_call(self, key: Key, name: object, piece: object) -> None:
        """Add to the arguments of one call, and note its name where it comes with one."""
        pieces = self._arguments.setdefault(key, [])
        if isinstance(piece, str):
            pieces.append(piece)
        if isinstance(name, str) and name:
            self.names[key] = name

    def has_arguments(self, key: Key) -> bool:
        """Return True if arguments of this call came already."""
        return any(self._arguments.get(key, ()))

    def take_same(self, name: str, texts: bytes) -> None:
        """Add the texts of events that differ in their field `name` alone: JSON without quotes, each ended by LF.

        Each text is decoded by itself where its bytes are no whole characters, as if it had come alone.
        """
        text = texts.decode("utf-8", "replace").replace("\n", "")
        if "\\" in text:
            text = from_json(f'"{text}"')
        (self.thoughts if name in _REASONING_FIELDS else self.texts).append(text)

    def _take_calls(self, told: object) -> bool:
        says = False
        for place, call in enumerate(calls_in(told) or ()):
            if isinstance(call, dict) and isinstance(function := call.get("function"), dict):
                index = place_of(call.get("index"), place)
                call_id = call.get("id")
                if isinstance(call_id, str) and call_id:
                    self._ids[index] = call_id
                key = index, self._ids.get(index, "")  # some count every call as the first
                called = calls_something(function)
                self.take_call(key, function.get("name"), arguments_text(function.get("arguments")) if called else None)
                says = says or called
        return says

    def _joined(self) -> tuple[object, ...]:
        refusals, function = "".join(self.refusals), "".join(self.function)
        return self.text, refusals, self.reasoning, self.arguments, self.names, function


def place_of(told: object, otherwise: int) -> int:
    """Return the place that an answer gives in a number, else `otherwise`."""
    return told if isinstance(told, int) else otherwise


def _reasoning_in(holder: dict[str, object]) -> str | None:
    """Return the reasoning of a message under the first name that has any: some servers repeat it under another."""
    for name in _REASONING_FIELDS:
        value = holder.get(name)
        if value and isinstance(value, str):
            return value
    if "reasoning_details" in holder and (text := text_in(holder["reasoning_details"])):
        return text
    content = holder.get("content")
    return thinking_in(content) if isinstance(content, list) else None
