"""Reports rendered in one step from evidence and verdict."""

from __future__ import annotations

from benchgate.model.run import Evidence
from benchgate.model.verdict import Verdict
from benchgate.report.document import OWN, Terms
from benchgate.report.html import page_of
from benchgate.report.markdown import COMMENT_BYTES, markdown_of
from benchgate.report.view import report_view


def render_html(
    evidence: Evidence, verdict: Verdict, *, against: Evidence | None = None, terms: Terms = OWN, in_site: bool = False
) -> str:
    """Render the HTML report."""
    return page_of(report_view(evidence, verdict, against=against, terms=terms), in_site=in_site)


def render_markdown(
    evidence: Evidence,
    verdict: Verdict,
    *,
    against: Evidence | None = None,
    terms: Terms = OWN,
    budget_bytes: int = COMMENT_BYTES,
) -> str:
    """Render the summary in Markdown."""
    return markdown_of(report_view(evidence, verdict, against=against, terms=terms), budget_bytes)
