"""A report says how many blocks the load could have had, how many it had, and why no more."""

from __future__ import annotations

from dataclasses import replace

from benchgate.model.run import LoadEnd
from benchgate.report.html import render_html
from benchgate.report.load_end import load_end_lines
from benchgate.report.text import render_text
from tests.fakes import evidence as fake

ENDED = LoadEnd(4, 12, "time")


def test_text_and_page_say_where_the_load_ended_and_why() -> None:
    stored = fake.suite().to_stored()
    stored["load"] |= {"looks": [4, 8, 12], "blocks": 12}
    run = replace(fake.run(), suite=stored)
    ended = replace(fake.evidence(), run=run, ended=ENDED)
    line = "ended after 4 of at most 12 blocks: the next look would have passed the suite's limit of time"
    assert load_end_lines(ended) == (line,)
    assert f"  load: {line}\n" in render_text(fake.verdict(), run, load=load_end_lines(ended))
    page = render_html(ended, fake.verdict())
    assert "at most 12 (looked at after 4, 8 and 12), both arms in each" in page
    assert line.replace("'", "&#39;") in page


def test_a_fixed_number_of_blocks_is_told_as_ever() -> None:
    assert load_end_lines(fake.evidence()) == ()
    assert "4, both arms in each" in render_html(fake.evidence(), fake.verdict())
