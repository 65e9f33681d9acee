"""What stands between `${{` and `}}`, read as GitHub's runner reads it: operators, literals, names, status functions.

Only what the workflows of this repository use is understood. Anything else is an error, so that a test cannot pass by
reading an expression differently from the runner.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

Value = str | bool | float | None
"""What an expression comes to. A name that is not there is None, which reads as an empty text."""

_WHOLE = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)
_TOKEN = re.compile(r"\s*(?:(&&|\|\||==|!=|[!()])|('(?:[^']|'')*')|(\d+(?:\.\d+)?)|([A-Za-z_][\w.-]*))")
_WORDS: Mapping[str, Value] = {"true": True, "false": False, "null": None}
_STATUS = ("always", "success", "failure", "cancelled")


def evaluate(text: str, context: Mapping[str, Value]) -> str:
    """`text` with every `${{ }}` replaced by what it comes to."""
    return _WHOLE.sub(lambda match: shown(_Reader(match[1], context, {}).whole()), text)


def holds(condition: str | None, context: Mapping[str, Value], status: Mapping[str, bool]) -> bool:
    """Whether a job or step runs. `status` is what the status functions say; without one of them success() is meant."""
    text = "success()" if condition is None else str(condition)
    inside = _WHOLE.fullmatch(text.strip())
    text = inside[1] if inside else text
    found = is_true(_Reader(text, context, status).whole())
    asks = any(re.search(rf"\b{name}\(", text) for name in _STATUS)
    return found and (asks or status["success"])


def is_true(value: Value) -> bool:
    """The runner's truth: false, 0, nothing and an empty text are false, and the text 'false' is true."""
    return value not in ("", None) and value is not False and value != 0


def shown(value: Value) -> str:
    """A value where a text is wanted."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _equal(left: Value, right: Value) -> bool:
    """Texts without regard to case; values of two kinds as numbers, and what is no number equals nothing."""
    if isinstance(left, str) and isinstance(right, str):
        return left.lower() == right.lower()
    if type(left) is type(right):
        return left == right
    return _number(left) == _number(right)


def _number(value: Value) -> float:
    try:
        return float(value or 0)
    except ValueError:
        return float("nan")


class _Reader:
    """One expression, from its first sign to its last."""

    def __init__(self, text: str, context: Mapping[str, Value], status: Mapping[str, bool]) -> None:
        self.text, self.context, self.status = text, context, status
        self.tokens: list[tuple[str, str]] = []
        at = 0
        while text[at:].strip():
            match = _TOKEN.match(text, at)
            if match is None:
                raise ValueError(f"an expression this runner does not know: {text!r}")
            kind = ("sign", "text", "number", "name")[next(i for i, part in enumerate(match.groups()) if part)]
            self.tokens.append((kind, match[0].strip()))
            at = match.end()

    def whole(self) -> Value:
        value = self._alternatives()
        if self.tokens:
            raise ValueError(f"an expression this runner does not know: {self.text!r}")
        return value

    def _next_is(self, sign: str) -> bool:
        if self.tokens and self.tokens[0] == ("sign", sign):
            self.tokens.pop(0)
            return True
        return False

    def _alternatives(self) -> Value:
        return self._joined("||", self._all_of, stop_at=True)

    def _all_of(self) -> Value:
        return self._joined("&&", self._compared, stop_at=False)

    def _joined(self, sign: str, part: Callable[[], Value], *, stop_at: bool) -> Value:
        """The first operand that decides, as it is: `||` and `&&` give values, not only truth."""
        value = part()
        while self._next_is(sign):
            other = part()
            value = value if is_true(value) is stop_at else other
        return value

    def _compared(self) -> Value:
        value = self._single()
        while True:
            if self._next_is("=="):
                value = _equal(value, self._single())
            elif self._next_is("!="):
                value = not _equal(value, self._single())
            else:
                return value

    def _single(self) -> Value:
        if self._next_is("!"):
            return not is_true(self._single())
        if self._next_is("("):
            value = self._alternatives()
            self._expect(")")
            return value
        if not self.tokens or self.tokens[0][0] == "sign":
            raise ValueError(f"an expression this runner does not know: {self.text!r}")
        kind, token = self.tokens.pop(0)
        if kind == "text":
            return token[1:-1].replace("''", "'")
        if kind == "number":
            return float(token)
        if self._next_is("("):
            self._expect(")")
            return self.status[token]
        if token in _WORDS:
            return _WORDS[token]
        if "." not in token:
            raise ValueError(f"a name this runner does not know: {token!r}")
        return self.context.get(token)

    def _expect(self, sign: str) -> None:
        if not self._next_is(sign):
            raise ValueError(f"expected {sign!r} in {self.text!r}")
