"""When two answers are one, by each rule a suite can choose."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchgate.model.records import AnswerAgreement, PairFacts
from benchgate.shadow.compare import (
    AnswerContent,
    By,
    ComparisonRules,
    JsonRules,
    NotJson,
    compare_answers,
    is_refusal,
    make_transitive,
    parse_structure,
)
from benchgate.suite.formats import parse_path
from benchgate.targets.answers import Answer, ToolCall


def pair(
    one: str | AnswerContent,
    other: str | AnswerContent,
    by: By = "auto",
    *,
    ignore: tuple[str, ...] = (),
    tolerance: float = 0.0,
    case: bool = True,
    at_once: bool = True,
    similarity: float | None = None,
    same_above: float | None = None,
) -> PairFacts:
    first, second = (AnswerContent(said) if isinstance(said, str) else said for said in (one, other))
    rules = ComparisonRules(by, JsonRules.of(ignore, tolerance, case=case), same_above)
    facts = compare_answers(first, second, rules, in_any_order=at_once, similarity=similarity)
    turned = compare_answers(second, first, rules, in_any_order=at_once, similarity=similarity)
    assert (turned.label, turned.differs) == (facts.label, facts.differs)  # whichever is called the first
    return facts


def calling(*calls: tuple[str, str], text: str = "") -> AnswerContent:
    return AnswerContent(text, tuple(ToolCall(name, arguments) for name, arguments in calls))


@pytest.mark.parametrize(
    ("one", "other", "label"),
    [
        ("It rains.", "It rains.", AnswerAgreement.EXACT),
        ("It  rains. ", "It rains.", AnswerAgreement.NORMALISED),
        ('{"a": 1, "b": "x"}', '{"b": "x",\n "a": 1.0}', AnswerAgreement.NORMALISED),
        ('{"a": 1, "b": "x"}', '{"b": "y", "a": 2}', AnswerAgreement.STRUCTURE),
        ('{"rows": [{"n": 1}, {"n": 2}]}', '{"rows": [{"n": 5}]}', AnswerAgreement.STRUCTURE),
        ('{"a": 1}', '{"a": "1"}', AnswerAgreement.DIFFERENT),
        ('{"a": 1}', '{"a": 1, "b": 2}', AnswerAgreement.DIFFERENT),
        ('{"a": [1]}', '{"a": []}', AnswerAgreement.DIFFERENT),
        ('{"a": 1}', '{"a": true}', AnswerAgreement.DIFFERENT),
        ('{"a": 1}', "a is 1", AnswerAgreement.DIFFERENT),
        ("It rains.", "it rains.", AnswerAgreement.DIFFERENT),
    ],
)
def test_label_says_how_much_two_answers_have_in_common(one: str, other: str, label: AnswerAgreement) -> None:
    assert pair(one, other).label is label


@pytest.mark.parametrize("path", ["$.id", '$["id"]', "$..id"])
def test_what_a_path_leads_to_is_not_compared(path: str) -> None:
    assert not pair('{"id": "a1"}', '{"id": "b2"}', ignore=(path,)).differs
    assert pair('{"id": "a1", "sum": [1]}', '{"id": "b2", "sum": [2]}', ignore=("$.id",)).differs


def test_paths_reach_into_lists_and_to_any_depth() -> None:
    one = '{"items": [{"ts": 1, "n": 5}, {"ts": 2, "n": 6}], "meta": {"trace": {"created": 9}}}'
    other = '{"items": [{"ts": 3, "n": 5}, {"ts": 4, "n": 6}], "meta": {"trace": {"created": 8}}}'
    assert pair(one, other, ignore=("$.items[*].ts",)).differs
    assert not pair(one, other, ignore=("$.items[*].ts", "$..created")).differs
    assert not pair(one, other, ignore=("$.items[0].ts", "$.items[1].ts", "$.meta.trace")).differs
    assert pair('[{"ts": 1}, {"n": 1}]', '[{"ts": 1}, {"n": 2}]', ignore=("$[*].ts",)).differs


def test_a_path_that_ends_on_the_way_cuts_nothing_else() -> None:
    assert pair('{"a": 1, "b": {"a": 2}}', '{"a": 1, "b": {"a": 3}}', ignore=("$.a.x", "$.c")).differs


@pytest.mark.parametrize("text", ["id", "$", "$.*", "$[*]", "$[*].*", "$.", "$.a..", "$[a]", "$.a[", "$.a b", "$[-1]"])
def test_a_path_that_is_none_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"write it like \$\.id"):
        parse_path(text)


@pytest.mark.parametrize(
    ("one", "other", "tolerance", "differs"),
    [
        ('{"x": 100}', '{"x": 101}', 0.01, False),
        ('{"x": 100}', '{"x": 102}', 0.01, True),
        ('{"x": -100}', '{"x": -100.5}', 0.01, False),
        ('{"x": 100}', '{"x": 100.0000001}', 0.0, True),
        ('{"x": 0}', '{"x": 0.0000001}', 0.5, True),  # a share of nothing is nothing
        ('{"x": 1' + "0" * 400 + "}", '{"x": 2' + "0" * 400 + "}", 0.9, True),  # more than a float holds
        ('{"x": "100"}', '{"x": "101"}', 0.5, True),  # texts
        ('{"x": true}', '{"x": 1}', 0.5, True),
    ],
)
def test_numbers_within_the_tolerance_are_one(one: str, other: str, tolerance: float, differs: bool) -> None:
    assert pair(one, other, tolerance=tolerance).differs is differs


@pytest.mark.parametrize(
    ("one", "other", "differs"),
    [
        ("9007199254740993", "9007199254740992", True),  # one float for both
        ("9007199254740993", "9007199254740992.0", True),
        ("9007199254740992", "9007199254740992.0", False),
        ("1", "1.0", False),
        ("1" + "0" * 400, "1" + "0" * 400, False),
    ],
)
@pytest.mark.parametrize("by", ["auto", "json", "tool_calls", "normalised"])
def test_integers_are_compared_exactly(one: str, other: str, differs: bool, by: By) -> None:
    one, other = f'{{"id": [{one}]}}', f'{{"id": [{other}]}}'
    assert pair(one, other, by).differs is differs
    assert pair(calling(("pay", one)), calling(("pay", other)), by).differs is differs


def test_case_matters_unless_the_suite_says_otherwise() -> None:
    assert pair("Yes", "YES").differs
    assert not pair("Yes", "YES", case=False).differs
    assert not pair('{"a": "Yes"}', '{"a": "YES"}', case=False).differs
    assert not pair("Straße", "STRASSE", case=False).differs


def test_each_rule_decides_by_what_it_is_named_after() -> None:
    layout, values = ('{"a":1}', '{ "a": 1 }'), ('{"a":1}', '{"a":2}')
    differs = {by: (pair(*layout, by).differs, pair(*values, by).differs) for by in BYS}
    assert differs["exact"] == (True, True)
    assert differs["normalised"] == differs["json"] == differs["auto"] == differs["tool_calls"] == (False, True)
    assert differs["structure"] == (False, False)


BYS: tuple[By, ...] = ("exact", "normalised", "json", "tool_calls", "structure", "auto")


@pytest.mark.parametrize("by", BYS)
def test_no_rule_finds_another_text_the_same(by: By) -> None:
    assert pair("It rains.", "The sun shines.", by).differs


def test_calls_are_the_same_by_name_and_arguments_as_json() -> None:
    one = calling(("weather", '{"city": "Oslo", "days": 3}'))
    assert not pair(one, calling(("weather", '{"days":3,"city":"Oslo"}'))).differs
    for other in (
        calling(("weather", '{"city": "Oslo", "days": 4}')),
        calling(("forecast", '{"city": "Oslo", "days": 3}')),
        calling(("weather", '{"city": "Oslo", "days": 3}'), ("weather", '{"city": "Oslo", "days": 3}')),
        calling(("weather", '{"city": "Oslo", "days": 3')),
        AnswerContent("It will rain in Oslo."),
        calling(),
    ):
        assert pair(one, other).differs
        assert pair(one, other, "tool_calls").differs
        assert pair(one, other, "normalised").differs
        assert pair(one, other, "json").differs


def test_calls_of_the_same_tools_with_other_values_have_one_structure() -> None:
    facts = pair(calling(("weather", '{"city": "Oslo"}')), calling(("weather", '{"city": "Rome"}')))
    assert (facts.label, facts.calls, facts.differs) == (AnswerAgreement.STRUCTURE, False, True)


def test_order_of_calls_counts_unless_they_are_made_at_once() -> None:
    one, other = (calling((a, "{}"), (b, "{}")) for a, b in (("first", "second"), ("second", "first")))
    assert not pair(one, other, at_once=True).differs
    assert pair(one, other, at_once=False).differs


def test_no_arguments_are_spelled_in_several_ways() -> None:
    assert not pair(calling(("now", "")), calling(("now", "{}"))).differs


def test_what_is_said_beside_a_call_decides_only_where_texts_do() -> None:
    one, other = (calling(("now", "{}"), text=text) for text in ("Let me look.", "One moment."))
    assert not pair(one, other).differs
    assert not pair(one, other, "tool_calls").differs
    assert pair(one, other, "normalised").differs
    assert pair(one, other, "exact").differs


def test_two_answers_that_call_differently_have_different_digests() -> None:
    calls = [calling(("now", "{}")), calling(("later", "{}")), calling(("now", '{"zone": 1}')), AnswerContent("")]
    assert len({said.digest for said in calls}) == len(calls)


@pytest.mark.parametrize(
    ("one", "other", "character", "word"),
    [
        ("the cat sat", "the cat lay", 8, 2),
        ("the cat", "the cat sat", 7, 2),
        ("the cat", "the cats", 7, 1),
        ("a", "b", 0, 0),
        ("", "b", 0, 0),
        ("same", "same", None, None),
    ],
)
def test_first_divergence_is_told_in_characters_and_in_words(
    one: str, other: str, character: int | None, word: int | None
) -> None:
    facts = pair(one, other)
    assert (facts.at_character, facts.at_word) == (character, word)


def test_texts_that_are_near_enough_are_one_and_json_never_is() -> None:
    near = pair("It is raining.", "It rains.", similarity=0.97, same_above=0.95)
    assert (near.label, near.differs, near.similarity) == (AnswerAgreement.SEMANTIC, False, 0.97)
    assert pair("It is raining.", "It rains.", similarity=0.94, same_above=0.95).differs
    assert pair("It is raining.", "It rains.", similarity=None, same_above=0.95).differs
    assert pair("It is raining.", "It rains.", "exact", similarity=0.99, same_above=0.95).differs
    assert pair('{"sum": 5}', '{"sum": 50}', similarity=0.999, same_above=0.95).differs


def test_what_is_the_same_as_the_same_is_the_same() -> None:
    near, far = pair('{"x": 100}', '{"x": 101}', tolerance=0.01), pair('{"x": 100}', '{"x": 102}', tolerance=0.01)
    assert [one.differs for one in make_transitive(near, near, far)] == [False, False, False]
    assert [one.differs for one in make_transitive(near, far, far)] == [False, True, True]
    assert [one.differs for one in make_transitive(far, far, far)] == [True, True, True]


def test_calls_that_are_near_several_others_are_paired_so_that_each_has_its_own() -> None:
    def asking(*amounts: int) -> AnswerContent:
        return calling(*(("pay", f'{{"amount": {amount}}}') for amount in amounts))

    # 100 is near both 96 and 104, and 92 is near 96 alone.
    for first, second in (((100, 92), (96, 104)), ((92, 100), (96, 104)), ((100, 92), (104, 96))):
        assert not pair(asking(*first), asking(*second), tolerance=0.05).differs
        assert pair(asking(*first), asking(*second)).differs
    assert pair(asking(100, 92), asking(104, 105), tolerance=0.05).differs


@pytest.mark.parametrize("text", ["[" * 150 + "]" * 150, '{"a": 1, "a": 2}', "1", '"text"', "[1e999]", "[NaN]", ""])
def test_what_has_no_single_meaning_as_json_is_text(text: str) -> None:
    with pytest.raises(NotJson):
        parse_structure(text)


def answer(text: str | None, finish: str = "stop", **more: object) -> Answer:
    return Answer(text, finish, None, **more)  # type: ignore[arg-type]  # by the keyword


def test_a_refusal_is_known_by_its_beginning_its_finish_or_its_own_field() -> None:
    assert is_refusal(answer("I'm sorry, but I can't help with that."))
    assert is_refusal(answer("I\u2019m  SORRY, but no."))
    assert is_refusal(answer("", "content_filter"))
    assert is_refusal(answer(None, refusal="no"))
    assert (
        is_refusal(
            answer("Dabei kann ich leider nicht helfen."),
        )
        is False
    )
    assert is_refusal(answer("Dabei kann ich leider nicht helfen."), ["kann ich leider nicht"])
    assert not is_refusal(answer("The refund policy: " + "word " * 40 + "I'm sorry, he said."))
    assert not is_refusal(answer("I'm sorry", calls=(ToolCall("now", "{}"),)))


@pytest.mark.parametrize(
    "text",
    [
        "The API cannot be reached: the key has expired.",
        "The Wi-Fi can\u2019t connect. Restart the router.",
        "This list serves as an aid for drivers.",
        "Sorry, it is out of stock until May.",
    ],
)
def test_a_phrase_of_a_refusal_is_not_found_within_other_words(text: str) -> None:
    assert not is_refusal(answer(text))
    assert is_refusal(answer(f"_As an AI_ I say nothing. {text}"))


def test_a_phrase_that_the_suite_adds_needs_no_spaces_around_it() -> None:
    assert is_refusal(answer("\u5f88\u62b1\u6b49\uff0c\u6211\u4e0d\u80fd"), ["\u62b1\u6b49"])


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
ANSWERS = st.text(max_size=20) | VALUES.map(json.dumps)


@given(ANSWERS, ANSWERS)
def test_without_rules_answers_are_one_exactly_where_their_digests_are(one: str, other: str) -> None:
    assert pair(one, other).differs == (AnswerContent(one).digest != AnswerContent(other).digest)
    assert not pair(one, one).differs


@given(VALUES, VALUES)
def test_values_are_one_with_themselves_by_every_rule_and_of_one_structure(one: object, other: object) -> None:
    first, second = json.dumps({"a": one}), json.dumps({"a": other}, indent=1)
    for by in BYS:
        assert not pair(first, first, by).differs
    if not pair(first, second, "json").differs:
        assert not pair(first, second, "structure").differs
        assert not pair(first, second, "json", tolerance=0.5).differs
        assert not pair(first, second, "json", ignore=("$.a",)).differs
