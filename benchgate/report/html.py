"""The report as one self-contained HTML file: no request to anywhere, style and script allowed by their own hashes."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from benchgate.model.run import Evidence
from benchgate.model.verdict import Verdict
from benchgate.report.figures import figures_of
from benchgate.report.glossary import GLOSSARY
from benchgate.report.load_section import TWO_NUMBERS
from benchgate.report.site_places import SITE_INDEX, suite_page
from benchgate.report.terms import OWN, Terms
from benchgate.report.untrusted import quoted, visible
from benchgate.report.view import ReportView, report_view

_PACKAGE = Path(__file__).parent.parent
TEMPLATES = (_PACKAGE / "_templates", _PACKAGE.parent / "reports" / "templates")
"""Where the templates lie: in an installed package, else in a checkout."""


def render_html(
    evidence: Evidence,
    verdict: Verdict,
    *,
    against: Evidence | None = None,
    terms: Terms = OWN,
    in_site: bool = False,
) -> str:
    """The whole report; the same inputs give the same bytes.

    `in_site`: with ways back, to the first page and to its suite's.
    """
    return page_of(report_view(evidence, verdict, against=against, terms=terms), in_site=in_site)


def page_of(view: ReportView, *, in_site: bool = False) -> str:
    """A report that is finished but for its markup and its charts, as a page."""
    environment = page_environment()
    return environment.get_template("report.html.j2").render(
        view=view,
        home=SITE_INDEX if in_site else "",
        trends=suite_page(view.banner.suite) if in_site else "",
        figures=figures_of(view),
        glossary=GLOSSARY,
        two_numbers=TWO_NUMBERS,
        style_hash=csp_hash(environment.get_template("report.css").render()),
        script_hash=csp_hash(environment.get_template("report.js").render()),
    )


@functools.cache
def page_environment() -> Environment:
    """Everything printed is escaped; what cannot be seen is shown first."""
    environment = Environment(
        loader=FileSystemLoader([path for path in TEMPLATES if path.is_dir()]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["unbroken"] = _unbroken
    environment.filters["worded"] = _worded
    return environment


def _visible(value: object) -> object:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _unbroken(sentence: str) -> str:
    """A sentence in which no line ends between a number and its unit."""
    return re.sub(
        r"(?<=\d) (?=%|(?:[mµn]?s|points?|tok/s|req/s|tokens/s|requests/s)\b)", "\N{NO-BREAK SPACE}", sentence
    )


def _worded(sentence: str) -> str:
    """A sentence of the gate's, ready to be read on a page."""
    return quoted(_unbroken(sentence))


def csp_hash(source: str) -> str:
    """What a Content-Security-Policy calls this style or script by."""
    digest = hashlib.sha256(source.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
