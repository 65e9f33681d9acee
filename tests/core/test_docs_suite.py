"""docs/suites.md and the schema say the same: every key, every word, every example."""

import re
from pathlib import Path

import pytest
from annotated_types import Ge, Le
from pydantic import TypeAdapter

from benchgate.suite.loader import parse_suite
from benchgate.suite.messages import key_of, sections, slots_of
from benchgate.suite.schema import Suite
from benchgate.suite.yaml import read_text

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "suites.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
SECTIONS = list(sections())


def keys_documented(place: str) -> dict[str, str]:
    """The rows of a section's first table: key → its whole row."""
    heading = f"## `{place}`" if place else "## The top level"
    assert f"\n{heading}\n" in PAGE, f"docs/suites.md has no section {heading}"
    body = PAGE.split(f"\n{heading}\n")[1].split("\n## ")[0].split("<!-- metrics -->")[0]
    rows = [row for row in body.split("\n") if row.startswith("| `")]
    return {row.split("`")[1]: row for row in rows}


@pytest.mark.parametrize(("place", "model"), SECTIONS, ids=[place or "top" for place, _ in SECTIONS])
def test_every_key_of_a_section_is_documented_and_no_other(place: str, model: type[Suite]) -> None:
    assert list(keys_documented(place)) == list(slots_of(model))


@pytest.mark.parametrize(("place", "model"), SECTIONS, ids=[place or "top" for place, _ in SECTIONS])
def test_row_of_a_key_says_whether_it_is_required_its_words_and_its_limits(place: str, model: type[Suite]) -> None:
    rows = keys_documented(place)
    for name, field in model.model_fields.items():
        key = key_of(name, field)
        slot = slots_of(model)[key]
        assert (rows[key].split("|")[3].strip() == "required") == field.is_required(), rows[key]
        assert [word for word in slot.choices if key != "metric" and f"`{word}`" not in rows[key]] == []
        limits = [mark.ge if isinstance(mark, Ge) else mark.le for mark in slot.metadata if isinstance(mark, Ge | Le)]
        assert slot.kind is not int or [limit for limit in limits if f"{limit:,}" not in rows[key]] == [], rows[key]


@pytest.mark.parametrize(("place", "model"), SECTIONS, ids=[place or "top" for place, _ in SECTIONS])
def test_documented_default_is_the_one_of_the_schema(place: str, model: type[Suite]) -> None:
    rows = keys_documented(place)
    for name, field in model.model_fields.items():
        if isinstance(field.default, str | int | float):
            cell = rows[key_of(name, field)].split("|")[3].strip(" `")
            written = read_text(f"default: {cell}", "docs/suites.md").data["default"]
            assert TypeAdapter(field.rebuild_annotation()).validate_python(written) == field.default, rows[name]


@pytest.mark.parametrize(("place", "model"), SECTIONS, ids=[place or "top" for place, _ in SECTIONS])
def test_the_page_explains_a_key_in_the_words_of_its_field(place: str, model: type[Suite]) -> None:
    rows = keys_documented(place)
    for name, field in model.model_fields.items():
        meaning = rows[key_of(name, field)].rstrip(" |").split(" | ")[-1]
        assert re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", meaning) == field.description


@pytest.mark.parametrize("text", EXAMPLES)
def test_example_of_the_page_loads(text: str) -> None:
    parse_suite(text, "docs/suites.md")


def test_page_starts_with_a_suite_of_fifteen_lines_and_has_one_with_every_key() -> None:
    assert len(EXAMPLES[0].splitlines()) == 15
    whole = EXAMPLES[1]
    missing = [key for _, model in SECTIONS for key in slots_of(model) if not re.search(rf"\b{key}:", whole)]
    assert missing == []


@pytest.mark.parametrize("path", sorted((ROOT / "suites").glob("*.yaml")), ids=lambda path: path.name)
def test_suite_that_ships_loads(path: Path) -> None:
    parse_suite(path.read_text(encoding="utf-8"), path.name)
