"""The pages on verdicts: the worked example is what benchgate computes, links have targets."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from benchgate.gate.guards import GUARDS, UNTIED_GUARDS
from benchgate.model.verdict import Outcome
from scripts.reference import DOCS
from scripts.worked_example import EXAMPLES, WORKED, check_of, paired_t, verdict_of

OWN_PAGES = ("concepts.md", "reference/metrics.md", "reference/verdict.md", "background/error-rates.md", "adr/index.md")
DECISIONS = sorted(f"adr/{path.name}" for path in (DOCS / "adr").glob("[0-9]*.md"))


def test_worked_example_by_hand_is_what_the_gate_computes() -> None:
    check, by_hand = check_of(WORKED), paired_t(WORKED)
    assert (check.harm, check.lower, check.upper) == pytest.approx((by_hand.mean, by_hand.lower, by_hand.upper))
    assert check.margin == pytest.approx(math.log(1.1))


def test_worked_example_has_every_outcome() -> None:
    assert {verdict_of(example).outcome for example in EXAMPLES} == set(Outcome)


def test_every_guard_is_listed_once_and_named_as_its_function() -> None:
    ids = [one.id for one in GUARDS]
    assert len(set(ids)) == len(ids)
    assert {one.id for one in UNTIED_GUARDS} <= set(ids)
    assert [getattr(one.check, "__name__", "").replace("_", "-") for one in GUARDS] == ids
    assert [one.id for one in GUARDS if not (one.check.__doc__ or "").startswith("Flag ")] == []


@pytest.mark.parametrize(
    "page", [*OWN_PAGES, *(f"adr/{path.name}" for path in sorted((DOCS / "adr").glob("[0-9]*.md")))]
)
def test_links_of_a_page_lead_somewhere(page: str) -> None:
    path = DOCS / page
    for link, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(#[^)]*)?\)", path.read_text(encoding="utf-8")):
        target = (path.parent / link).resolve() if link else path
        assert target.exists(), link
        if anchor:
            assert anchor[1:] in _anchors(target), f"{link}{anchor}"


def _anchors(path: Path) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
