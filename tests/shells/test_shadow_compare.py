from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchgate.shadow.compare import AnswerContent, normalise_answer


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a  b\n", " a b"),
        ("a \t\nb", "a\r\nb"),
        ("a\n\n\n\nb", "a\n\nb"),
        ("def f():\n    return  1\n", "def f():\n    return 1"),
        ("ﬁne", "fine"),  # the ligature
        ("caf\u00e9", "cafe\u0301"),
        ('{"a": 1, "b": [1, 2]}', '{"b":[1.0,2e0],"a":1}'),
        ('{"a": "x  y"}', '{"a": "x y"}'),
        ('[{"b": 1, "a": null}]', '[ {"a": null, "b": 1} ]'),
        ('  {"a": 1}\n', '{"a": 1}'),
        ("\uff3b1, 2\uff3d", "[1,2]"),  # full-width brackets
        ("\uff21\uff11\uff01", "A1!"),
        ("\uff76\uff9e", "\u30ac"),  # half-width katakana with a mark of its own
        ("10\u202f000\u00a0km\u3000or\u2009so", "10 000 km or so"),
        ("a\n\u00a0b", "a\n b"),
    ],
)
def test_answers_that_say_the_same_are_the_same(one: str, other: str) -> None:
    assert AnswerContent(one).digest == AnswerContent(other).digest


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("yes", "Yes"),
        ("def f():\n    return 1", "def f(): return 1"),  # line breaks and indentation are code
        ("if a:\n    b\nc", "if a:\n    b\n    c"),
        ("one\n\ntwo", "one\ntwo"),
        ("42", "42.0"),  # a bare number is a text: models are asked for its spelling
        ("3x10\u2078 m/s", "3x108 m/s"),
        ("H\u2082O", "H2O"),
        ("x\u00b2", "x2"),
        ("1\u00bd", "11\u20442"),
        ("\u2460", "1"),
        ('{"area": "5 m\u00b2"}', '{"area": "5 m2"}'),
        ('{"a": 1}', '{"a": 2}'),
        ('{"a": 1}', '{"a": "1"}'),
        ('{"a": 1}', '{"a": true}'),
        ("[1, 2]", "[2, 1]"),
        ('{"a": 1, "a": 2}', '{"a": 2}'),  # a repeated key has no single meaning
        ('{"a": 1}', '{"a": 1'),
        ("", "none"),
    ],
)
def test_answers_that_differ_stay_different(one: str, other: str) -> None:
    assert AnswerContent(one).digest != AnswerContent(other).digest


def test_what_only_looks_like_json_is_compared_as_text() -> None:
    assert normalise_answer("[1,  2") == "[1, 2"
    assert normalise_answer('{"a": NaN}') == '{"a": NaN}'
    assert normalise_answer('{"a": 1e999}') == '{"a": 1e999}'
    assert normalise_answer("[" * 5000) == "[" * 5000


@given(st.text())
def test_every_text_has_a_digest_and_normalising_twice_changes_nothing(text: str) -> None:
    once = normalise_answer(text)
    assert normalise_answer(once) == once
    assert len(AnswerContent(text).digest) == 64
