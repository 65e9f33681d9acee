"""What one answer says, in whichever shape it came: filled by the readers of the shapes, judged in `decode`."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchgate.load.answer_text import Words, place_of
from benchgate.model.records import ACCEPTED_FINISH
from benchgate.targets.answers import (
    cached_count,
    finish_reason,
    input_count,
    output_count,
    part_count,
    reasoning_count,
)
from benchgate.targets.error_messages import Secret, one_line

_LONGEST_REASON = 40


@dataclass(slots=True)
class Stream:
    """What one answer says, event by event or as one document; instants in monotonic ns, in order."""

    events: int = 0
    chunk_ns: list[int] = field(default_factory=list)  # of the chunks that carry output
    finish_reason: str | None = None
    finish_ns: int | None = None
    finish_at: int | None = None  # how many chunks with output there were when the finish reason had come
    reasoned: int = 0  # how many chunks with output came with a finish reason
    done_ns: int | None = None  # of `[DONE]`
    input_tokens: int | None = None
    usage_tokens: int | None = None
    error: str | None = None  # what the server called an error
    malformed: str | None = None  # the first event that is not what it must be
    is_over: bool = False  # nothing after this counts
    ended: bool = field(default=False, compare=False)  # and nothing came after it
    secret: Secret = field(default=None, repr=False)  # never kept of what it says
    answer_ns: int | None = None  # of the first chunk that is not reasoning alone
    reasoning_tokens: int | None = None
    cached_tokens: int | None = None
    answer_id: str | None = None  # what the server calls this one answer
    tokenless: bool = False  # an answer in numbers, which has no finish reason
    words: Words = field(default_factory=Words)  # of the first choice
    others: Words | None = None  # of all other choices, where one of them says anything
    other_choice: int | None = None  # the first choice with output that is not the first one, by its index
    model: str | None = None  # the name of the model, where the answer gives one

    @property
    def end_ns(self) -> int | None:
        """The finish event, else `[DONE]`."""
        return self.finish_ns if self.finish_ns is not None else self.done_ns

    @property
    def goes_on(self) -> bool:
        """Whether output came after the finish reason, which then ended nothing.

        Some servers give a reason with every chunk (Gemini behind gateways): there only the last one is one.
        """
        return self.finish_at is not None and len(self.chunk_ns) > self.finish_at

    @property
    def reasons_throughout(self) -> bool:
        """Whether every chunk so far came with a reason: the last of them is known by what follows it alone."""
        return 0 < self.reasoned == len(self.chunk_ns)

    def take_chunk(self, at_ns: int, *, answers: bool) -> None:
        """A chunk with output came; one of reasoning alone is no answer yet."""
        self.chunk_ns.append(at_ns)
        if answers and self.answer_ns is None:
            self.answer_ns = at_ns

    def take_output(
        self, at_ns: int, choice: dict[str, object], holder: dict[str, object], place: int, *, reasons: bool = True
    ) -> bool:
        """Note the output in a choice, which its `holder` carries. Return False if there is none.

        A choice without an index has that of its `place` in the list.
        """
        index = place_of(choice.get("index"), place)
        words = self.words
        if index:
            words = self.others = self.others or Words()
        answers = words.take(holder, reasons=reasons)
        if answers is None:
            return False
        if index and self.other_choice is None:
            self.other_choice = index
        self.take_chunk(at_ns, answers=answers)
        return True

    def take_finish(self, at_ns: int, told: object, *, with_output: bool = False) -> None:
        """The server said why it stopped. It stopped when it first did; a reason that is no success stays."""
        reason = finish_reason(told)
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
        """Note what an event or a document says of token counts; the last one that says anything holds.

        llama.cpp tells the part of a prompt it had cached in `timings`.
        """
        usage = data.get("usage")
        if isinstance(usage, dict):
            self.input_tokens, self.usage_tokens = input_count(usage), output_count(usage)
            cached, reasoned = cached_count(usage), reasoning_count(usage)
            self.cached_tokens = self.cached_tokens if cached is None else cached
            self.reasoning_tokens = self.reasoning_tokens if reasoned is None else reasoned
        timings = data.get("timings")
        if isinstance(timings, dict) and self.cached_tokens is None:
            self.cached_tokens = part_count(timings.get("cache_n"))


def is_text(value: object) -> bool:
    """Whether this is a text that is not empty."""
    return isinstance(value, str) and value != ""
