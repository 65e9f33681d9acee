"""Redaction: what must not be kept of a request is replaced as soon as the request is read.

`<EMAIL_1>` stands for the first address in a request wherever it stands in it, so that what the request says of its
parts stays true. Which value a placeholder stood for is forgotten with the request.
"""

from __future__ import annotations

import difflib
import json
import re
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType

from benchgate.errors import UsageError
from benchgate.shadow.asked import Asked
from benchgate.shadow.rules import RULES, USUAL, Spans, pattern_spans

_LONGEST_S = 2.0
"""Of processor time, to redact one request of 100,000 characters; of longer ones as much more. Our own rules take less
than a tenth of it."""

_LONG = 100_000  # characters

_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,31}")
_WORDS = re.compile(r"(?:[a-z]{1,16}|[A-Z][a-z]{1,15})(?:[_-][a-z]{1,16}){0,3}")
"""A part of a path that names what is asked for: `chat`, `customer-support`. Keys are longer, or mix their letters."""


class TooSlowError(Exception):
    """A rule did not come to an end in time; the message is its name."""


class Redactor:
    """Replaces what its rules find. Rules are applied in order; the first that finds something replaces it."""

    def __init__(self, rules: Mapping[str, Spans]) -> None:
        self.rules = rules
        self._at = ""  # the rule that is being applied

    def redact(self, asked: Asked) -> tuple[Asked, Counter[str]]:
        """The request without what must not be kept, and how often each rule replaced something.

        Raises TooSlowError when that takes longer than two seconds of processor time, or than as much more as it is
        longer than 100,000 characters. (Only the main thread can be stopped.)
        """
        known = _Placeholders()
        with _bounded(self, _LONGEST_S * max(1.0, len(asked.text) / _LONG)):
            messages = tuple(self._mapping(message, known) for message in asked.messages)
            prompt = None if asked.prompt is None else self._text(asked.prompt, known)
            fields = self._mapping(asked.fields, known)
            label = self._label(asked.label)
        return replace(asked, label=label, messages=messages, prompt=prompt, fields=fields), known.replaced

    def _label(self, label: str) -> str:
        """Where a request was asked, `*` for each part that is no plain word or holds what a rule looks for.

        It is stored, unlike what is asked, and a path may hold a key or a name: of a tenant, of a person.
        """
        parts = [part if _WORDS.fullmatch(part) and self._keeps(part) else "*" for part in label.split("/")]
        kept = "/".join(parts)
        return kept if self._keeps(kept) else "*"

    def _keeps(self, text: str) -> bool:
        return self._text(text, _Placeholders()) == text

    def _mapping(self, values: Mapping[str, object], known: _Placeholders) -> dict[str, object]:
        return {self._text(key, known): self._value(value, known, key) for key, value in values.items()}

    def _value(self, value: object, known: _Placeholders, key: str = "") -> object:
        if isinstance(value, str):
            return self._arguments(value, known) if key == "arguments" else self._text(value, known)
        if isinstance(value, list):
            return [self._value(element, known) for element in value]
        if isinstance(value, dict):
            return self._mapping(value, known)
        if isinstance(value, int | float) and not isinstance(value, bool):
            shown = json.dumps(value)
            redacted = self._text(shown, known)
            return value if redacted == shown else redacted
        return value

    def _arguments(self, text: str, known: _Placeholders) -> str:
        """The arguments of a call are JSON, and servers want them to stay so: their values are redacted one by one."""
        try:
            values = json.loads(text)
        except (ValueError, RecursionError):
            return self._text(text, known)
        redacted = self._value(values, known)
        return text if redacted == values else json.dumps(redacted, ensure_ascii=False)

    def _text(self, text: str, known: _Placeholders) -> str:
        for rule, spans in self.rules.items():
            self._at, done = rule, 0
            pieces: list[str] = []
            for begin, end in spans(text):
                pieces += [text[done:begin], known.of(rule, text[begin:end])]
                done = end
            if pieces:
                text = "".join([*pieces, text[done:]])
        return text

    def stop(self, number: int, frame: FrameType | None) -> None:
        """Raised in a callback of the collector, which may be what runs just then, it would be lost and printed."""
        if frame is not None and frame.f_globals.get("__package__") == __package__:
            raise TooSlowError(self._at)


class _Placeholders:
    """What stands for what within one request."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, str], str] = {}
        self._values: Counter[str] = Counter()
        self.replaced: Counter[str] = Counter()

    def of(self, rule: str, value: str) -> str:
        self.replaced[rule] += 1
        if (rule, value) not in self._names:
            self._values[rule] += 1
            self._names[rule, value] = f"<{rule.upper()}_{self._values[rule]}>"
        return self._names[rule, value]


@contextmanager
def _bounded(redactor: Redactor, longest_s: float) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGVTALRM, redactor.stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, longest_s, longest_s / 10)  # again and again, until it meets a rule
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


def redactor_of(rules: str | None, own: Sequence[str]) -> Redactor:
    """From what was typed: `rules` are names like `email,phone` (None: the usual ones; `none`: none of ours), `own`
    holds `NAME=REGEX`, which are applied first. Raises UsageError.
    """
    chosen: dict[str, Spans] = {}
    for written in own:
        name, pattern = _own(written)
        if name in chosen:
            raise UsageError(f"--redact: {name} is given twice; give each rule a name of its own")
        chosen[name] = pattern_spans(pattern)
    wanted = USUAL if rules is None else () if rules.strip() == "none" else tuple(_known(rules))
    return Redactor(chosen | {name: spans for name, spans in RULES.items() if name in wanted})


def _known(rules: str) -> Iterator[str]:
    names = [part.strip() for part in rules.split(",")]
    if "none" in names:
        raise UsageError(
            f"--rules: `none` stands alone, and {rules!r} names rules beside it; leave out one or the other"
        )
    for name in names:
        if name not in RULES:
            near = difflib.get_close_matches(name, RULES, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(RULES)}, and none"
            raise UsageError(f"--rules: there is no rule {name!r}; {hint}")
        yield name


def _own(written: str) -> tuple[str, re.Pattern[str]]:
    name, equals, expression = written.partition("=")
    if not equals or not _NAME.fullmatch(name):
        example = "write NAME=REGEX, like CUSTOMER=C-[0-9]{8}, the name in capitals"
        raise UsageError(f"--redact: found {written[:40]!r}; {example}")
    if name.lower() in RULES:
        raise UsageError(f"--redact: {name} is the placeholder of a rule of benchgate's own; choose another name")
    try:
        pattern = re.compile(expression)
    except re.error as error:
        raise UsageError(f"--redact {name}: not a regular expression: {error}") from error
    if pattern.search("") is not None:
        raise UsageError(f"--redact {name}: it matches where nothing is; every match must have a character")
    return name, pattern
