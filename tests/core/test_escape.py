"""What others wrote, harmless in a log: no CI system or terminal obeys it, a person reads it, JSON keeps its values."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchgate.escape import json_text, markdown_text, terminal_line, terminal_text
from tests.fakes import hostile
from tests.fakes.ci_commands import ALL, ATTACKS, COMMANDS, commands_in, controls_in, is_harmless

TEXTS = (*ATTACKS, ALL, *hostile.TEXTS)
PIECES = st.lists(
    st.sampled_from([*ATTACKS, "#", "##", ":", "::", "[", "vso[", " ", "\n", "\r", "\x1b", "é", "\u200b"])
)
ANYTHING = st.text() | PIECES.map("".join)


@pytest.mark.parametrize("text", ATTACKS, ids=range(len(ATTACKS)))
def test_the_readers_of_these_tests_find_every_attack(text: str) -> None:
    assert list(commands_in(text)) or controls_in(text)


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_no_attack_reaches_a_log(text: str) -> None:
    assert is_harmless(terminal_text(text))
    assert is_harmless(f"benchgate: {terminal_line(text)}\n{terminal_line(text)}")
    assert "\n" not in terminal_line(text)
    assert not list(commands_in(markdown_text(text)))
    assert controls_in(markdown_text(text)) <= {"\u200b"}


@given(ANYTHING)
def test_nothing_that_can_be_thought_of_reaches_a_log(text: str) -> None:
    assert is_harmless(terminal_text(text))
    assert terminal_text(terminal_text(text)) == terminal_text(text)


@given(ANYTHING, st.booleans())
def test_json_is_harmless_and_its_values_stay(text: str, ascii_only: bool) -> None:
    document = {text: [text, {"said": text}]}
    plain = json.dumps(document, indent=2, ensure_ascii=ascii_only)
    escaped = json_text(plain)
    assert is_harmless(escaped)
    assert json.loads(escaped) == json.loads(plain)
    assert json_text(escaped) == escaped


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_json_with_every_attack_keeps_its_values(text: str) -> None:
    escaped = json_text(json.dumps([text], ensure_ascii=False))
    assert is_harmless(escaped)
    assert json.loads(escaped) == [text]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("::error::x", ":\\:error::x"),
        ("  ::error::x", "  :\\:error::x"),
        ("a\n::error::x", "a\n:\\:error::x"),
        ("x ##vso[task.complete]", "x #\\#vso[task.complete]"),
        ("##[group]", "#\\#[group]"),
        ("###[group]", "##\\#[group]"),
        ("##TeamCity[x]", "#\\#TeamCity[x]"),
        ("SPINNAKER_PROPERTY_A=1", "SPINNAKER\\_PROPERTY_A=1"),
        ("--- section", "\\--- section"),
        ("\x1b[31m\x07\x00\x7f\x9b", "\\x1b[31m\\x07\\x00\\x7f\\x9b"),
        ("a\rb\r\nc", "a\\rb\nc"),
        ("\u202e\u200b\u2028\ud800\U000e0041", "\\u202e\\u200b\\u2028\\ud800\\U000e0041"),
    ],
)
def test_what_was_dangerous_can_still_be_read(text: str, shown: str) -> None:
    assert terminal_text(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "a::b is a name, and so is std::vector",
        "## heading\n# another\n- item\n---\n",
        "漢字 🧪 اردو नमस्ते \u200c 👩\u200d🔬 → … ■ \u22125 %",
        "C:\\path\\name \\d+ \\x1b",
        "#1 ##2 color: #aabbcc",
        "tab\tand\nline",
        "PASS: 5% of spinnaker_things",
    ],
)
def test_what_is_harmless_stays_as_it_is(text: str) -> None:
    assert terminal_text(text) == text
    assert json_text(json.dumps([text.replace("::", "")])) == json.dumps([text.replace("::", "")])


def test_a_suite_of_ours_is_printed_as_it_is() -> None:
    """`benchgate init > suite.yaml` writes the very file."""
    suites = [path.read_text(encoding="utf-8") for path in (Path(__file__).parents[2] / "suites").rglob("*.yaml")]
    assert suites and all(terminal_text(suite) == suite for suite in suites)


def test_markdown_keeps_the_zero_width_spaces_that_stop_mentions() -> None:
    assert markdown_text("@\u200boctocat `##vso[x]`\x1b") == "@\u200boctocat `#\\#vso[x]`\\x1b"


def test_a_megabyte_of_what_nearly_is_a_command_is_read_once() -> None:
    """Patterns that look back over the same characters again would not end within a test's time."""
    for near in ("\n", " ", "#", "SPINNAKER", " \n", "---"):
        many = near * (1_000_000 // len(near))
        assert re.sub(r"\\", "", terminal_text(many)) == many
    assert terminal_text(COMMANDS[0] * 10_000).count(":\\:") == 1
