"""When two answers count as the same, and what they have in common where they do not. Pure."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal

from benchgate.model.records import AnswerAgreement, PairFacts
from benchgate.shadow.json_rules import JsonRules, NotJson, parsed, same, shape
from benchgate.shadow.plain_text import plain
from benchgate.shadow.tool_calls import same_calls, same_tools, spelled_calls
from benchgate.targets.answers import ToolCall

By = Literal["normalised", "exact", "json", "tool_calls", "structure", "auto"]


@dataclass(frozen=True, slots=True)
class Said:
    """What an answer comes to: its text, which is empty where it only calls tools, and the calls."""

    text: str
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Rules:
    """What decides whether two answers differ. Texts whose embeddings are `same_above` near count as the same."""

    by: By = "auto"
    json: JsonRules = field(default_factory=JsonRules)
    same_above: float | None = None


@lru_cache(maxsize=8)  # each of three answers is looked at in two pairs
def normalise(text: str) -> str:
    """The form of an answer that is compared: what differs here, a reader would call different.

    A text in its plain form (`plain_text.plain`). An answer that is a JSON object or array: one spelling for the same
    value (sorted keys, no layout, 1.0 and 1e0 as 1), with its texts in their plain form. A JSON answer never equals
    one that is not, so each side can be normalised without knowing the other.
    """
    value = _json(text)
    if value is None:
        return plain(text)
    return json.dumps(_canonical(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def answer_digest(text: str) -> str:
    """SHA-256 of the normalised answer, in hex."""
    return _sha256(normalise(text))


def digest(said: Said) -> str:
    """The same for an answer that may call tools."""
    if not said.calls:
        return answer_digest(said.text)
    return _sha256(f"{normalise(said.text)}\n{spelled_calls(said.calls)}")


def compared(one: Said, other: Said, rules: Rules, *, in_any_order: bool, similarity: float | None = None) -> PairFacts:
    """What two answers to one prompt have in common. Of calls the order counts unless they may come `in_any_order`."""
    texts, values = (one.text, other.text), (_json(one.text), _json(other.text))
    is_json, has_calls = any(value is not None for value in values), bool(one.calls or other.calls)
    json_same = same(*values, rules.json) if is_json else None
    calls_same = same_calls(one.calls, other.calls, rules.json, in_any_order=in_any_order) if has_calls else None
    facts = PairFacts(
        label=AnswerAgreement.DIFFERENT,
        differs=True,
        exact=one == other,
        normalised=_normalised(one, other, case=rules.json.case, in_any_order=in_any_order),
        json=json_same,
        calls=calls_same,
        structure=_structure(one, other, values, rules.json) if is_json or has_calls else None,
        at_character=_first_difference(*texts),
        at_word=_word_at(texts, _first_difference(*texts)),
        similarity=similarity,
    )
    label = _label(facts, rules.same_above)
    return replace(facts, label=label, differs=not _counts_as_same(facts, label, rules.by))


def are_plain_texts(one: Said, other: Said) -> bool:
    """Whether nothing but the words of two answers could make them one: neither calls anything nor is JSON."""
    return not one.calls and not other.calls and _json(one.text) is None and _json(other.text) is None


def settled(*pairs: PairFacts) -> tuple[PairFacts, ...]:
    """The three pairs of three answers, so that being the same is passed on: A like B and B like C is A like C.

    Within a tolerance it would not be by itself, and the estimator counts on three answers that fall into groups.
    """
    if len(pairs) == 3 and sum(not pair.differs for pair in pairs) == 2:
        return tuple(replace(pair, differs=False) for pair in pairs)
    return pairs


def _counts_as_same(facts: PairFacts, label: AnswerAgreement, by: By) -> bool:
    if by == "exact":
        return facts.exact
    if by == "normalised":
        return facts.normalised or label is AnswerAgreement.SEMANTIC
    if by == "structure" and facts.structure is not None:
        return facts.structure
    if by == "json" and facts.json is not None:
        return facts.json and facts.calls is not False
    if facts.calls is not None:  # what it says beside a call is not what the call's receiver gets
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
    near = same_above is not None and facts.similarity is not None and facts.similarity >= same_above
    return AnswerAgreement.SEMANTIC if near and facts.structure is None else AnswerAgreement.DIFFERENT


def _normalised(one: Said, other: Said, *, case: bool, in_any_order: bool) -> bool:
    """The same but for layout, by no other rule: nothing ignored, no tolerance."""
    strict = JsonRules(case=case)
    if not same_calls(one.calls, other.calls, strict, in_any_order=in_any_order):
        return False
    first, second = normalise(one.text), normalise(other.text)
    return first == second or (not case and first.casefold() == second.casefold())


def _structure(one: Said, other: Said, values: tuple[object, object], rules: JsonRules) -> bool:
    """Both are JSON of one shape, or both call the same tools with arguments of one shape."""
    if None not in values and shape(values[0], rules) != shape(values[1], rules):
        return False
    return (values[0] is None) == (values[1] is None) and same_tools(one.calls, other.calls, rules)


def _first_difference(one: str, other: str) -> int | None:
    if one == other:
        return None
    shorter = min(len(one), len(other))
    return next((at for at in range(shorter) if one[at] != other[at]), shorter)


def _word_at(texts: tuple[str, str], at: int | None) -> int | None:
    """How many whole words come before the one in which two texts first differ."""
    if at is None:
        return None
    before = texts[0][:at]
    begun = any(before and not before[-1].isspace() and at < len(text) and not text[at].isspace() for text in texts)
    return len(before.split()) - begun


@lru_cache(maxsize=8)
def _json(text: str) -> object | None:
    """The object or array that a text is, as it stands or in its plain form; None when it is none. Never changed."""
    for form in (text, plain(text)):
        try:
            return parsed(form)
        except NotJson:
            continue
    return None


def _canonical(value: object) -> object:
    if isinstance(value, dict):
        return {key: _canonical(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_canonical(inner) for inner in value]
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
