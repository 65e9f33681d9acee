"""Comparison of two answers to one prompt: text, JSON, tool calls, refusals. Pure.

A text counts as JSON if it is an object or array with one meaning. A repeated key or NaN makes it plain text. JSON is
compared by rules: ignored paths, a tolerance for numbers, any order of keys.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal

import numpy as np

from benchgate.model.records import AnswerAgreement, PairFacts
from benchgate.suite.formats import Step, load_json, parse_path
from benchgate.targets.answers import Answer, ToolCall

Path = tuple[Step, ...]

_MAX_DEPTH = 100  # levels of nesting; deeper ones could exhaust the stack
_WIDTHS_AND_LIGATURES = (*range(0xFF01, 0xFFEF), *range(0xFB00, 0xFB07))
_SPACES = (0xA0, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000)
_FOLDED = dict.fromkeys(_SPACES, " ") | {
    code: "".join(chr(int(part, 16)) for part in parts[1:])  # the first names the kind, like <wide>
    for code in _WIDTHS_AND_LIGATURES
    if (parts := unicodedata.decomposition(chr(code)).split())
}
_BLANK_LINES = re.compile(r"\n{3,}")


@dataclass(frozen=True, slots=True)
class JsonRules:
    """Rules of JSON equality. `tolerance` is the largest difference of two numbers as a share of the larger one."""

    ignored: tuple[Path, ...] = ()
    tolerance: float = 0.0
    case: bool = True

    @classmethod
    def of(cls, ignore_paths: Iterable[str], tolerance: float, *, case: bool) -> JsonRules:
        """Build the rules from the validated paths of a suite."""
        return cls(tuple(map(parse_path, ignore_paths)), tolerance, case)


class NotJson(Exception):
    """A text that is not a JSON object or array with one meaning."""


def normalise_text(text: str, *, case: bool = True) -> str:
    """Normalise Unicode, inner and trailing white space, blank lines; indentation stays. Fold without `case`.

    Unicode is normalised to NFC, with widths, spaces and ligatures folded. NFKC would also make `10⁸` and `108` equal.
    """
    lines = []
    for line in unicodedata.normalize("NFC", text.translate(_FOLDED)).splitlines():
        words = line.split()
        lines.append(line[: line.index(words[0])] + " ".join(words) if words else "")
    tidy = _BLANK_LINES.sub("\n\n", "\n".join(lines)).strip()
    return tidy if case else tidy.casefold()


def parse_structure(text: str) -> object:
    """Parse a JSON object or array. Raises NotJson."""
    try:
        value = load_json(text)
    except (ValueError, RecursionError):
        raise NotJson from None
    if not isinstance(value, dict | list) or _is_too_deep(value):
        raise NotJson
    return value


def equal_values(one: object, other: object, rules: JsonRules) -> bool:
    """Return True if two JSON values are equal by the rules."""
    return _equal(_without(one, rules.ignored), _without(other, rules.ignored), rules)


def shape_of(value: object, rules: JsonRules) -> object:
    """Return keys and types for `==`. Lists of elements of the same shapes are equal; an empty one has its own."""
    return _shape(_without(value, rules.ignored))


def _equal(one: object, other: object, rules: JsonRules) -> bool:
    if isinstance(one, bool) or isinstance(other, bool) or one is None or other is None:
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        if one == other or not rules.tolerance:  # exact, where `isclose` rounds both to floats
            return one == other
        try:
            return math.isclose(one, other, rel_tol=rules.tolerance)
        except OverflowError:  # an integer too large for a float
            return False
    if isinstance(one, str) and isinstance(other, str):
        return one == other or normalise_text(one, case=rules.case) == normalise_text(other, case=rules.case)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(_equal(a, b, rules) for a, b in zip(one, other, strict=True))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(inner, other[key], rules) for key, inner in one.items())
    return False


def _shape(value: object) -> object:
    if isinstance(value, dict):
        return frozenset((key, _shape(inner)) for key, inner in value.items())
    if isinstance(value, list):
        return ("list", frozenset(map(_shape, value)))
    if isinstance(value, bool):
        return "boolean"
    return "number" if isinstance(value, int | float) else "text" if isinstance(value, str) else "null"


def _without(value: object, paths: tuple[Path, ...]) -> object:
    if not paths or not isinstance(value, dict | list):
        return value
    kept = []
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        below: list[Path] = []  # the rest of each path that leads through this key or index
        for path in paths:
            step = path[0]
            if step.deep:
                below.append(path)  # it may match again further down
            if step.of is None or (type(step.of) is type(key) and step.of == key):
                below.append(path[1:])
        if () not in below:
            kept.append((key, _without(inner, tuple(below))))
    return dict(kept) if isinstance(value, dict) else [inner for _, inner in kept]


def _is_too_deep(value: object) -> bool:
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return True


By = Literal["normalised", "exact", "json", "tool_calls", "structure", "auto"]

CONTENT_FILTER = "content_filter"  # the finish reason of an answer that the server's own filter removed
REFUSAL_PHRASES = (
    "i'm sorry", "i am sorry", "i apologize", "i apologise", "my apologies", "as an ai", "as a language model",
    "as an assistant", "i cannot", "i can't", "i can not", "i'm unable", "i am unable", "i'm not able", "i am not able",
    "i won't", "i will not", "i must decline", "i have to decline", "it is not appropriate", "it's not appropriate",
    "i'm not programmed", "i do not feel comfortable", "i don't feel comfortable", "sorry, but", "sorry, i",
)  # fmt: skip
"""Heuristic after the prefixes of Zou et al. (arXiv 2307.15043, 2023). All answers to a prompt are held to the same."""

# Whole words: "the API cannot" and "as an aid" refuse nothing.
_REFUSAL = re.compile(rf"(?<![^\W_])(?:{'|'.join(map(re.escape, REFUSAL_PHRASES))})(?![^\W_])")
_REFUSAL_WITHIN = 120  # characters from the start; further on, the words are part of an answer


@dataclass(frozen=True, slots=True)
class AnswerContent:
    """The text of an answer, empty if it only calls tools, and its tool calls."""

    text: str
    calls: tuple[ToolCall, ...] = ()

    def __str__(self) -> str:
        """Format for a person or a judge: the text, then a line for each call."""
        calls = (f"{call.name}({call.arguments})" for call in self.calls)
        return "\n".join([*([self.text] if self.text else []), *calls])

    @property
    def digest(self) -> str:
        """SHA-256 of the normalised content, in hex."""
        spelled = normalise_answer(self.text)
        if self.calls:
            calls = []
            for call in self.calls:
                arguments = call.arguments.strip()
                with suppress(NotJson):
                    value = parse_structure(call.arguments)
                    arguments = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
                calls.append([call.name, arguments])
            spelled = f"{spelled}\n{json.dumps(calls, ensure_ascii=False)}"
        return hashlib.sha256(spelled.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class ComparisonRules:
    """Rules that decide if two answers differ. From a cosine of `same_above` on, texts count as the same."""

    by: By = "auto"
    json: JsonRules = field(default_factory=JsonRules)
    same_above: float | None = None


@lru_cache(maxsize=8)  # each of three answers is compared twice
def normalise_answer(text: str) -> str:
    """Return the form in which answers are compared.

    A text is normalised by `normalise_text`. A JSON object or array gets one spelling: sorted keys, no layout, 1.0 and
    1e0 as 1, normalised texts. JSON never equals plain text, so each side is normalised without knowing the other.
    """
    value = _json(text)
    if value is None:
        return normalise_text(text)
    return json.dumps(_canonical(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def compare_answers(
    one: AnswerContent,
    other: AnswerContent,
    rules: ComparisonRules,
    *,
    in_any_order: bool,
    similarity: float | None = None,
) -> PairFacts:
    """Compare two answers to one prompt. The order of tool calls matters unless they may come `in_any_order`."""
    values = (_json(one.text), _json(other.text))
    is_json, has_calls = any(value is not None for value in values), bool(one.calls or other.calls)
    at_character = _first_difference(one.text, other.text)
    at_word = None
    if at_character is not None:  # the whole words before the one in which the texts first differ
        before, after = one.text[:at_character], (one.text[at_character:], other.text[at_character:])
        is_inside = bool(before) and not before[-1].isspace() and any(rest and not rest[0].isspace() for rest in after)
        at_word = len(before.split()) - is_inside
    structure = None
    if is_json or has_calls:  # the same for JSON of one shape, and for calls of the same tools with such arguments
        outlines = [Counter(_outline(call, rules.json) for call in content.calls) for content in (one, other)]
        shapes = [None if value is None else shape_of(value, rules.json) for value in values]
        structure = shapes[0] == shapes[1] and outlines[0] == outlines[1]
    facts = PairFacts(
        label=AnswerAgreement.DIFFERENT,
        differs=True,
        exact=one == other,
        normalised=_is_normalised_equal(one, other, case=rules.json.case, in_any_order=in_any_order),
        json=equal_values(*values, rules.json) if is_json else None,
        calls=_equal_calls(one.calls, other.calls, rules.json, in_any_order=in_any_order) if has_calls else None,
        structure=structure,
        at_character=at_character,
        at_word=at_word,
        similarity=similarity,
    )
    label = _label(facts, rules.same_above)
    return replace(facts, label=label, differs=not _counts_as_same(facts, label, rules.by))


def are_plain_text(one: AnswerContent, other: AnswerContent) -> bool:
    """Return True if neither answer calls a tool or is JSON, so that only their wording can make them equal."""
    return not one.calls and not other.calls and _json(one.text) is None and _json(other.text) is None


def make_transitive(*pairs: PairFacts) -> tuple[PairFacts, ...]:
    """Make equality transitive, as a tolerance is not: if two of three pairs are equal, so is the third."""
    if len(pairs) == 3 and sum(not pair.differs for pair in pairs) == 2:
        return tuple(replace(pair, differs=False) for pair in pairs)
    return pairs


def is_refusal(answer: Answer, more_phrases: Iterable[str] = ()) -> bool:
    """Return True for a reported refusal, or an answer that begins with a phrase of one (or of `more_phrases`)."""
    if answer.finish_reason == CONTENT_FILTER or answer.refusal is not None:
        return True
    if answer.calls:
        return False
    beginning = _folded((answer.text or "").lstrip()[:_REFUSAL_WITHIN])
    if _REFUSAL.search(beginning) is not None:
        return True
    return any(_folded(phrase) in beginning for phrase in more_phrases)  # not every script has spaces between words


def _folded(text: str) -> str:
    return normalise_text(text, case=False).replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")


def _counts_as_same(facts: PairFacts, label: AnswerAgreement, by: By) -> bool:
    if by == "exact":
        return facts.exact
    if by == "normalised":
        return facts.normalised or label is AnswerAgreement.SEMANTIC
    if by == "structure" and facts.structure is not None:
        return facts.structure
    if by == "json" and facts.json is not None:
        return facts.json and facts.calls is not False
    if facts.calls is not None:  # the receiver of a call does not get the text beside it
        return facts.calls
    return (facts.normalised if facts.json is None else facts.json) or label is AnswerAgreement.SEMANTIC


def _label(facts: PairFacts, same_above: float | None) -> AnswerAgreement:
    if facts.exact:
        return AnswerAgreement.EXACT
    values = [value for value in (facts.json, facts.calls) if value is not None]
    if facts.normalised or (values and all(values)):
        return AnswerAgreement.NORMALISED
    if facts.structure:
        return AnswerAgreement.STRUCTURE
    is_near = same_above is not None and facts.similarity is not None and facts.similarity >= same_above
    return AnswerAgreement.SEMANTIC if is_near and facts.structure is None else AnswerAgreement.DIFFERENT


def _is_normalised_equal(one: AnswerContent, other: AnswerContent, *, case: bool, in_any_order: bool) -> bool:
    """Compare ignoring layout alone: no ignored paths, no tolerance."""
    if not _equal_calls(one.calls, other.calls, JsonRules(case=case), in_any_order=in_any_order):
        return False
    first, second = normalise_answer(one.text), normalise_answer(other.text)
    return first == second or (not case and first.casefold() == second.casefold())


def _first_difference(one: str, other: str) -> int | None:
    if one == other:
        return None
    shorter = min(len(one), len(other))
    return next((at for at in range(shorter) if one[at] != other[at]), shorter)


@lru_cache(maxsize=8)
def _json(text: str) -> object | None:
    """Parse a JSON object or array, as it is or normalised. None for anything else. Do not change the value."""
    for form in (text, normalise_text(text)):
        try:
            return parse_structure(form)
        except NotJson:
            continue
    return None


def _canonical(value: object) -> object:
    if isinstance(value, dict):
        return {key: _canonical(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_canonical(inner) for inner in value]
    if isinstance(value, str):
        return normalise_text(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _equal_calls(one: Sequence[ToolCall], other: Sequence[ToolCall], rules: JsonRules, *, in_any_order: bool) -> bool:
    if len(one) != len(other):
        return False
    if not in_any_order:
        return all(_is_equal_call(a, b, rules) for a, b in zip(one, other, strict=True))
    unmatched = list(other)
    for call in one:
        match = next((at for at, candidate in enumerate(unmatched) if _is_equal_call(call, candidate, rules)), None)
        if match is None:
            return bool(rules.tolerance) and _can_be_paired(one, other, rules)
        del unmatched[match]
    return True


def _can_be_paired(one: Sequence[ToolCall], other: Sequence[ToolCall], rules: JsonRules) -> bool:
    """Return True if each call has an equal one of its own. With a tolerance the first equal one may be another's."""
    from scipy.sparse import csr_array  # slow to import, and few answers need it
    from scipy.sparse.csgraph import maximum_bipartite_matching

    equal = np.array([[_is_equal_call(call, candidate, rules) for candidate in other] for call in one])
    return bool((maximum_bipartite_matching(csr_array(equal), perm_type="column") >= 0).all())


def _is_equal_call(one: ToolCall, other: ToolCall, rules: JsonRules) -> bool:
    """Compare name and arguments. Arguments that are not JSON equal only their own spelling."""
    if one.name != other.name:
        return False
    first, second = _arguments(one), _arguments(other)
    if first is None or second is None:
        return one.arguments.strip() == other.arguments.strip()
    return equal_values(first, second, rules)


def _outline(call: ToolCall, rules: JsonRules) -> tuple[str, object]:
    arguments = _arguments(call)
    return call.name, call.arguments.strip() if arguments is None else shape_of(arguments, rules)


def _arguments(call: ToolCall) -> object | None:
    try:
        return parse_structure(call.arguments if call.arguments.strip() else "{}")  # both mean no arguments
    except NotJson:
        return None
