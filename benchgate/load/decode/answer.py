"""A decoded answer: its content, instants, usage and finish reason. Filled by the decoder of its format."""

from __future__ import annotations

from dataclasses import dataclass, field

from pydantic_core import from_json

from benchgate.model.records import ACCEPTED_FINISH
from benchgate.model.request_metrics import visible_characters
from benchgate.targets.answers import (
    arguments_text,
    cached_count,
    calls_in,
    calls_something,
    finish_reason,
    input_count,
    output_count,
    part_count,
    reasoning_count,
    text_in,
    thinking_in,
)
from benchgate.targets.error_messages import Secret, one_line

_ANSWER_FIELDS = ("content", "text", "refusal")  # of a chat message, or a piece of one; `text` of completions
_REASONING_FIELDS = ("reasoning_content", "reasoning")  # two names of one thing: some servers send both

Key = tuple[int, str]  # identity of a tool call within an answer: its place, and its id if it has one


@dataclass(slots=True, eq=False)
class AnswerContent:
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
        """Return the text of the answer, without refusals, reasoning and calls."""
        return "".join(self.texts)

    @property
    def reasoning(self) -> str:
        """Return the text of the reasoning."""
        return "".join(self.thoughts)

    @property
    def arguments(self) -> dict[Key, str]:
        """The arguments of each tool call as they were written, in the order of the calls."""
        return {key: "".join(pieces) for key, pieces in self._arguments.items()}

    @property
    def called(self) -> list[tuple[str | None, str]]:
        """Return name and arguments of each tool call, in their order."""
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
        """Return the number of tool calls; calls without a name and without arguments do not count."""
        if not (self._arguments or self.function):
            return 0
        called = {key for key, pieces in self._arguments.items() if any(pieces)} | set(self.names)
        return len(called) + any(self.function)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnswerContent) and self._joined() == other._joined()

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
            pieces = called.get("name"), arguments_text(called.get("arguments"))
            self.function += [piece for piece in pieces if isinstance(piece, str)]
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

    def take_whole_call(self, key: Key, item: dict[str, object]) -> bool:
        """Add a call that is there as a whole. Return False if its arguments repeat those of its pieces."""
        has_arguments = any(self._arguments.get(key, ()))
        self.take_call(key, item.get("name"), None if has_arguments else item.get("arguments"))
        return not has_arguments

    def take_same(self, name: str, texts: bytes) -> None:
        """Add texts of events that differ in `name` alone: JSON without quotes, each ended by LF, decoded by itself."""
        text = texts.decode("utf-8", "replace").replace("\n", "")
        if "\\" in text:
            text = from_json(f'"{text}"')
        (self.thoughts if name in _REASONING_FIELDS else self.texts).append(text)

    def _take_calls(self, tool_calls: object) -> bool:
        says = False
        for place, call in enumerate(calls_in(tool_calls) or ()):
            if isinstance(call, dict) and isinstance(function := call.get("function"), dict):
                index = place_of(call.get("index"), place)
                call_id, name = call.get("id"), function.get("name")
                # Some servers count every call as the first, and others give each delta of one call an id of its own.
                if index not in self._ids or (name and call_id):
                    self._ids[index] = call_id if isinstance(call_id, str) else ""
                key = index, self._ids[index]
                called = calls_something(function)
                self.take_call(key, name, arguments_text(function.get("arguments")) if called else None)
                says = says or called
        return says

    def _joined(self) -> tuple[object, ...]:
        refusals, function = "".join(self.refusals), "".join(self.function)
        return self.text, refusals, self.reasoning, self.arguments, self.names, function


def place_of(index: object, otherwise: int) -> int:
    """Return the index that an answer gives if it is a number, else `otherwise`."""
    return index if isinstance(index, int) else otherwise


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


_LONGEST_REASON = 40


@dataclass(slots=True)
class ParsedAnswer:
    """An answer as decoded from a stream or a document. Instants are monotonic ns, in order."""

    events: int = 0
    chunk_ns: list[int] = field(default_factory=list)  # of the chunks that carry output
    finish_reason: str | None = None
    finish_ns: int | None = None
    finish_at: int | None = None  # how many chunks with output there were when the finish reason had come
    reasoned: int = 0  # how many chunks with output came with a finish reason
    done_ns: int | None = None  # of `[DONE]`
    unstated_end_ns: int | None = None  # of the last event, where the end of the body alone is the end of the answer
    input_tokens: int | None = None
    usage_tokens: int | None = None
    error: str | None = None  # what the server called an error
    malformed: str | None = None  # the first event that is not what it must be
    is_over: bool = False  # nothing after this counts
    ended: bool = field(default=False, compare=False)  # and nothing came after it
    secret: Secret = field(default=None, repr=False)  # never kept of what it says
    answer_ns: int | None = None  # of the first chunk that is not reasoning alone
    first_visible: bool | None = None  # whether the first chunk has a visible character; None if it has no text
    reasoning_tokens: int | None = None
    cached_tokens: int | None = None
    answer_id: str | None = None  # what the server calls this one answer
    tokenless: bool = False  # an answer in numbers, which has no finish reason
    words: AnswerContent = field(default_factory=AnswerContent)  # of the first choice
    other_choice: int | None = None  # the first choice with output that is not the first one, by its index
    model: str | None = None  # the name of the model, where the answer gives one

    @property
    def end_ns(self) -> int | None:
        """The finish event, else `[DONE]`."""
        return self.finish_ns if self.finish_ns is not None else self.done_ns

    @property
    def goes_on(self) -> bool:
        """Return True for output after the finish reason. Gemini sends one with every chunk; there the last counts."""
        return self.finish_at is not None and len(self.chunk_ns) > self.finish_at

    @property
    def reasons_throughout(self) -> bool:
        """Return True if every chunk so far had a finish reason: then what follows shows which is the last."""
        return 0 < self.reasoned == len(self.chunk_ns)

    def take_chunk(self, at_ns: int, *, answers: bool) -> None:
        """A chunk with output came, whose words were taken; one of reasoning alone is no answer yet."""
        if not self.chunk_ns and (first := self.words.output + self.words.reasoning):
            self.first_visible = visible_characters(first) > 0
        self.chunk_ns.append(at_ns)
        if answers and self.answer_ns is None:
            self.answer_ns = at_ns

    def take_text(self, at_ns: int, text: object) -> None:
        """Note a piece of the answer's text. Ignores anything but a text with characters."""
        if is_text(text):
            self.words.texts.append(str(text))
            self.take_chunk(at_ns, answers=True)

    def take_output(
        self, at_ns: int, choice: dict[str, object], holder: dict[str, object], place: int, *, reasons: bool = True
    ) -> bool:
        """Note the output in a choice (by default number `place`), which its `holder` carries. False without any."""
        index = place_of(choice.get("index"), place)
        words = AnswerContent() if index else self.words  # no request asks for more than one choice
        answers = words.take(holder, reasons=reasons)
        if answers is None:
            return False
        if index and self.other_choice is None:
            self.other_choice = index
        self.take_chunk(at_ns, answers=answers)
        return True

    def take_finish(self, at_ns: int, stated: object, *, with_output: bool = False) -> None:
        """Note a finish reason. The first one has the instant; a reason that is no success stays."""
        reason = finish_reason(stated)
        if reason is None:
            return
        self.reasoned += with_output
        if self.finish_reason is None or (with_output and self.reasons_throughout):
            self.finish_ns, self.finish_at = at_ns, len(self.chunk_ns)
        if self.finish_reason is None or self.finish_reason in ACCEPTED_FINISH:
            self.finish_reason = one_line(reason, _LONGEST_REASON, secret=self.secret)

    def take_id(self, data: dict[str, object]) -> None:
        """Note what the server calls this answer and the model, when it says it; the first name of each counts."""
        if self.answer_id is None and is_text(name := data.get("id")):
            self.answer_id = str(name)
        if self.model is None and is_text(name := data.get("model")):
            self.model = str(name)

    def take_usage(self, data: dict[str, object]) -> None:
        """Note the last known token counts. llama.cpp reports the cached part of a prompt in `timings`."""
        usage = data.get("usage")
        if isinstance(usage, dict):
            stated = {
                "input_tokens": input_count(usage),
                "usage_tokens": output_count(usage),
                "cached_tokens": cached_count(usage),
                "reasoning_tokens": reasoning_count(usage),
            }
            for name, count in stated.items():
                if count is not None:
                    setattr(self, name, count)
        timings = data.get("timings")
        if isinstance(timings, dict) and self.cached_tokens is None:
            self.cached_tokens = part_count(timings.get("cache_n"))


def is_text(value: object) -> bool:
    """Return True for a non-empty string."""
    return isinstance(value, str) and value != ""
