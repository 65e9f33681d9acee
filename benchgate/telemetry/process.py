"""Which process serves a deployment: asked once in every sitting of a run, before anything is measured in it."""

from __future__ import annotations

from benchgate.targets.dialect import Target
from benchgate.telemetry.page import BadPageError
from benchgate.telemetry.sources import PageSource, Sources, UnreadError
from benchgate.telemetry.words import read_page


def process_of(sources: Sources, target: Target) -> str | None:
    """The marker of its page of metrics, which another process does not have; None where nobody tells one."""
    if sources.page is None:
        return None
    try:
        with PageSource(sources.page, target) as source:
            page = source.fetch()
        return read_page(page.text, target.model, page.born).marker
    except (UnreadError, BadPageError):
        return None
