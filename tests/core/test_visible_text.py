"""Visible characters and redundancy of texts, held against the Unicode database and against zlib's own format."""

import random
import string
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchgate.model.request_metrics import redundancy_percent, visible_characters

ENGLISH = (
    "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a "
    "wife. However little known the feelings or views of such a man may be on his first entering a neighbourhood, "
    "this truth is so well fixed in the minds of the surrounding families, that he is considered the rightful property "
    "of some one or other of their daughters."
)
CHINESE = "北京大学是中国第一所国立综合性大学\uff0c也是当时中国最高教育行政机关。辛亥革命后\uff0c于一九一二年改为现名。"
# A sign before Arabic, Syriac or Kaithi digits that is drawn (Prepended_Concatenation_Mark), though its category is Cf.
DRAWN_FORMATS = {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}


@pytest.mark.parametrize(
    ("text", "visible"),
    [
        ("", 0),
        ("Hello, world.", 12),
        (" \t\r\n\x0b\x0c\x1c\x1f\x00\x07\x7f", 0),
        ("\u00a0\u2003\u3000\u2028\u0085", 0),
        ("\u200b\u200c\u200d\u2060\ufeff\u00ad\u034f", 0),
        ("\u115f\u1160\u17b4\u17b5\u180b\u180e\u3164\uffa0\u2800", 0),
        ("\ufe0f\U000e0100\U000e01ef\U000e0001\U000e007f", 0),
        ("\u202eabc\u202c", 3),
        (CHINESE, 50),
        ("é", 1),
        ("\u2764\ufe0f", 1),
        ("👩\u200d💻", 2),
        ("\ud83d\ude42", 1),
        ("\ud83d \ud83d\ud83d\ude42 \ude42", 4),
    ],
    ids=ascii,
)
def test_visible_characters_are_those_that_leave_a_mark(text: str, visible: int) -> None:
    assert visible_characters(text) == visible
    assert visible_characters(f"{text}x") == visible + 1


def test_every_blank_control_and_format_character_of_unicode_is_invisible() -> None:
    for code in range(sys.maxunicode + 1):
        char = chr(code)
        category = unicodedata.category(char)
        if char.isspace() or category == "Cc" or (category == "Cf" and code not in DRAWN_FORMATS):
            assert visible_characters(char) == 0, hex(code)
        elif category in ("Lu", "Ll", "Lt", "Nd", "Nl", "Pc", "Pd", "Pe", "Ps", "Sc", "Sm"):
            assert visible_characters(char) == 1, hex(code)


@given(st.lists(st.text(max_size=8), max_size=8))
def test_characters_of_pieces_add_up(pieces: list[str]) -> None:
    assert visible_characters("".join(pieces)) == sum(map(visible_characters, pieces))


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        ("!" * 512, 95, 100),
        ("!" * 24, 70, 90),
        ("I am sorry, I cannot do that. " * 20, 85, 100),
        (ENGLISH + " the the the" * 60, 85, 100),
        ("你好" * 100, 90, 100),
        ("ab\u200b" * 200, 90, 100),
        (ENGLISH, 25, 45),
        (CHINESE, 0, 40),
        ("The capital of France is Paris.", 0, 10),
        ("def f(x):\n    if x > 3:\n        return x * 2\n    return [f(y) for y in range(x)]\n", 0, 40),
        ('{"name": "get_weather", "arguments": {"city": "Paris", "unit": "celsius", "days": 3}}', 0, 40),
        ("", 0, 0),
    ],
)
def test_loops_are_redundant_and_sentences_are_not(text: str, least: int, most: int) -> None:
    assert least <= redundancy_percent(text) <= most


def test_only_the_end_of_a_text_is_compressed() -> None:
    draw = random.Random(7)
    noise = "".join(draw.choices(string.ascii_letters + string.digits, k=2_000))
    assert redundancy_percent("!" * 2_000 + noise) <= 25
    assert redundancy_percent(noise + "!" * 512) == redundancy_percent("!" * 512)


@given(st.text(st.characters()) | st.text(st.characters(categories=["Cs", "Lu"])))
def test_redundancy_is_a_percentage_of_any_text(text: str) -> None:
    assert 0 <= redundancy_percent(text) <= 100
