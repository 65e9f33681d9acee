"""What YAML may and may not be, before it is read as a suite."""

import pytest

from benchgate.errors import SuiteError
from benchgate.suite.yaml import MAX_CHARACTERS, MAX_DEPTH, MAX_NODES, Fault, Place, read_text

LAUGHS = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{name}: &{name} [{', '.join(['*' + before] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)

REFUSED = [
    ("", "s.yaml: the suite is empty"),
    ("# nothing but a comment\n", "s.yaml: the suite is empty"),
    ("---\n", "s.yaml: the suite is empty"),
    ("- a\n- b\n", "s.yaml:1:1: the suite is a list; expected keys and values like `suite: my-model`"),
    ("hello", "s.yaml:1:1: the suite is a single value"),
    ("a: 1\n---\nb: 2\n", "s.yaml:2:1: a second document starts here"),
    ("%YAML 1.1\n---\na: no\n", "s.yaml:2:1: %YAML and %TAG directives are not allowed"),
    ("%TAG ! tag:x,2000:\n---\na: 1\n", "s.yaml:2:1: %YAML and %TAG directives are not allowed"),
    ("a: !!python/object/apply:os.system [ls]\n", "s.yaml:1:4: a YAML tag is not allowed"),
    ("a: !!str 5\n", "s.yaml:1:4: a YAML tag is not allowed"),
    ("a: ! 5\n", "s.yaml:1:4: a YAML tag is not allowed"),
    ("a:\n\t- b\n", "s.yaml:2:1: this is not YAML"),
    ("a: [1, 2\n", "s.yaml:2:1: this is not YAML"),
    ("a: 'x\n", "s.yaml:2:1: this is not YAML"),
    ("a: b: c\n", "s.yaml:1:5: this is not YAML"),
    ("a: @b\n", "s.yaml:1:4: this is not YAML"),
    ("a: {b: ${env:C}}\n", "s.yaml:1:9: this is not YAML"),
    ("a: b\x00\n", r"s.yaml:1:5: the character '\x00' is not allowed in YAML"),
    ("a: 1\nb: \x07\n", r"s.yaml:2:4: the character '\x07' is not allowed in YAML"),
    ('a: "\\ud800"\n', "s.yaml:1:4: holds half of a surrogate pair"),
    ('a: 1\n"x\\udc00": 2\n', "s.yaml:2:1: holds half of a surrogate pair"),
    ("a: *b\n", "s.yaml:1:4: this alias names no anchor above it"),
    ("a: &x 1\nb: &x 2\n", "s.yaml:2:4: the anchor &x is defined twice"),
    ("a: 1\na: 2\n", "s.yaml:2:1: a: written twice, first in line 1"),
    ("a: {b: 1, b: 2}\n", "s.yaml:1:11: a.b: written twice, first in line 1"),
    ("1: a\n'1': b\n", "s.yaml:2:1: 1: written twice, first in line 1"),
    ("a: {<<: {b: 1}}\n", "s.yaml:1:5: a.<<: merge keys are not allowed"),
    ("? [a]\n: b\n", "s.yaml:1:3: a list cannot be a key"),
    ("a:\nb: ~\nc: null\n", "s.yaml:1:1: a: has no value\ns.yaml:2:1: b: has no value\ns.yaml:3:1: c: has no value"),
    ("a: &x {b: *x}\n", f"{MAX_DEPTH + 1} levels of nesting; a suite has at most {MAX_DEPTH}"),
    (LAUGHS, "10,001 keys and values, aliases expanded; a suite has at most 10,000"),
    ("[" * 100_000, f"s.yaml:1:{MAX_DEPTH + 1}: {MAX_DEPTH + 1} levels of nesting"),
    ("a: [" + "1, " * MAX_NODES + "1]\n", "10,001 keys and values; a suite has at most 10,000"),
    ("a: " + "x" * MAX_CHARACTERS, "131,075 characters; a suite has at most 131,072"),
]


@pytest.mark.parametrize(("text", "said"), REFUSED, ids=range(len(REFUSED)))
def test_what_a_suite_does_not_need_of_yaml_is_refused_with_its_place(text: str, said: str) -> None:
    with pytest.raises(SuiteError) as caught:
        document = read_text(text, "s.yaml")
        raise SuiteError(document.problems)
    for line in said.split("\n"):
        assert line in str(caught.value)


def test_tab_is_answered_with_spaces() -> None:
    with pytest.raises(SuiteError, match="indent with spaces, not with tabs"):
        read_text("a:\n\tb: 1\n", "s.yaml")


def test_scalars_mean_what_yaml_1_2_says_and_only_plain_decimals_are_numbers() -> None:
    text = """
{int: 12, negative: -3, padded: 010, float: 1.5, exponent: 1e3, quoted: "12", single: '1.5',
 yes: yes, no: no, true: true, upper: FALSE, octal: 0o7, hex: 0x1F, grouped: 1_000, endless: .inf, missing: .nan,
 time: 12:30, date: 2026-01-01, percent: 5%, rate: 8/s, huge: 99999999999999999999, huger: 1e999}
"""
    endless = f"{'9' * 400}.5"
    assert read_text(f"a: {endless}", "s.yaml").data == {"a": endless}  # no number is infinite
    assert read_text(text, "s.yaml").data == {
        "int": 12,
        "negative": -3,
        "padded": 10,
        "float": 1.5,
        "exponent": 1000.0,
        "quoted": "12",
        "single": "1.5",
        "yes": "yes",
        "no": "no",
        "true": True,
        "upper": False,
        "octal": "0o7",
        "hex": "0x1F",
        "grouped": "1_000",
        "endless": ".inf",
        "missing": ".nan",
        "time": "12:30",
        "date": "2026-01-01",
        "percent": "5%",
        "rate": "8/s",
        "huge": "99999999999999999999",
        "huger": "1e999",
    }


def test_byte_order_mark_and_dos_line_ends_change_nothing() -> None:
    document = read_text("\ufeffa: 1\r\nb:\r\n  - x\r\n", "s.yaml")
    assert document.data == {"a": 1, "b": ["x"]}
    assert document.keys["a",] == Place(1, 1)
    assert document.values["b", 0] == Place(3, 5)


def test_alias_is_the_same_value_at_the_place_of_its_anchor() -> None:
    document = read_text("a: &x {b: 1}\nc: *x\n", "s.yaml")
    assert document.data == {"a": {"b": 1}, "c": {"b": 1}}
    assert document.data["a"] is not document.data["c"]


def test_fault_at_a_missing_path_stands_at_the_mapping_around_it() -> None:
    document = read_text("a:\n  b: {c: 1}\n", "s.yaml")
    problem = document.problem(Fault(("a", "b", "d"), "is missing"))
    assert str(problem) == "s.yaml:2:6: a.b.d: is missing"
