"""A report says how many blocks the load could have had, how many it had, and why no more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchgate.model.run import LoadEnd
from benchgate.model.verdict import Outcome, policy_sha256
from benchgate.report.sections.load import load_end_lines
from benchgate.report.text import render_text
from tests.fakes import evidence as fake
from tests.fakes.rendered import render_html

pytestmark = pytest.mark.usefixtures("no_figures")

ENDED = LoadEnd(4, 12, "time")


def test_text_and_page_say_where_the_load_ended_and_why() -> None:
    stored = fake.suite().to_stored()
    stored["load"] |= {"looks": [4, 8, 12], "blocks": 12}
    run = replace(fake.run(), suite=stored)
    ended = replace(fake.evidence(), run=run, ended=ENDED)
    line = "ended after 4 of at most 12 blocks: the next interim analysis would exceed the suite's time limit"
    assert load_end_lines(ended, fake.verdict()) == (line,)
    assert f"  load: {line}\n" in render_text(fake.verdict(), run, load=load_end_lines(ended, fake.verdict()))
    page = render_html(ended, fake.verdict())
    assert "at most 12 (interim analyses after 4, 8 and 12), both arms in each" in page
    assert line.replace("'", "&#39;") in page


def test_a_load_that_a_check_ended_by_blocking_names_it_and_calls_nothing_settled() -> None:
    stored = fake.suite().to_stored()
    ended = replace(fake.evidence(), ended=LoadEnd(4, 12, "decided"))
    settled = ("ended after 4 of at most 12 blocks: every required check was decided",)
    (first, *_) = fake.verdict().checks
    blocking = replace(first, id="ttft-p50@c4", family="load", metric="ttft", required=True, outcome=Outcome.BLOCK)
    own = replace(fake.verdict(), checks=(blocking,), policy_sha256=policy_sha256(stored["gate"]))
    assert load_end_lines(ended, own) == (
        "ended after 4 of at most 12 blocks: ttft-p50@c4 blocked, which more blocks do not change",
    )
    for changes in ({"required": False}, {"outcome": Outcome.WARN}, {"family": "quality"}, {"metric": "capacity"}):
        other = replace(own, checks=(replace(blocking, **changes),))
        assert load_end_lines(ended, other) == settled
    assert load_end_lines(ended, replace(own, policy_sha256="another")) == settled
    time = replace(ended, ended=LoadEnd(4, 12, "time"))
    assert "time limit" in load_end_lines(time, own)[0]


def test_a_fixed_number_of_blocks_is_told_as_ever() -> None:
    assert load_end_lines(fake.evidence(), fake.verdict()) == ()
    assert "4, both arms in each" in render_html(fake.evidence(), fake.verdict())
