"""The table of guards in docs/decisions.md is generated from the guards themselves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchgate.gate.guards import GUARDS, UNTIED_GUARDS
from benchgate.gate.guards.base import EVERYTHING, Guard
from tests.golden import assert_section

PAGE = Path(__file__).parents[2] / "docs" / "decisions.md"


def manual(guard: Guard[Any]) -> str:
    """What the guard's docstring says that it flags, in one line."""
    text = " ".join((guard.check.__doc__ or "").split())
    assert text.startswith("Flag "), f"the docstring of {guard.id} says first what it flags"
    return text.removeprefix("Flag ").replace("|", "\\|")


def invalidates(guard: Guard[Any]) -> str:
    kinds = "everything" if guard.invalidates == EVERYTHING else ", ".join(guard.invalidates).replace("-", " ")
    return f"{kinds}; of the baseline alone compared {kinds}" if guard.by_arm else kinds


def table() -> Iterator[str]:
    yield "| guard | passes when | trips on | invalidates | needs |"
    yield "|---|---|---|---|---|"
    for one in GUARDS:
        needs = one.needs.name if one.needs is not None else ""
        yield f"| `{one.id}` | {one.passes} | {manual(one)} | {invalidates(one)} | {needs} |"


def test_the_table_of_guards_is_that_of_the_code() -> None:
    assert_section(PAGE, "guards", "\n".join(table()))


def test_every_guard_is_listed_once_and_named_as_its_function() -> None:
    ids = [one.id for one in GUARDS]
    assert len(set(ids)) == len(ids)
    assert {one.id for one in UNTIED_GUARDS} <= set(ids)
    assert [getattr(one.check, "__name__", "").replace("_", "-") for one in GUARDS] == ids


def test_every_guard_has_its_place_in_the_list_of_faults() -> None:
    faults = PAGE.read_text(encoding="utf-8").partition("| what is wrong |")[2].partition("\n\n")[0]
    of_bookkeeping = {"few-interruptions", "no-calibration", "same-measurement", "same-client", "same-baseline"}
    assert [one.id for one in GUARDS if f"`{one.id}`" not in faults and one.id not in of_bookkeeping] == []
