"""The report as one self-contained HTML file: no script, no request to anywhere, the style allowed by its own hash."""

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
from benchgate.report.charts import capacity_figure, figures, timeline_figure
from benchgate.report.forest import forest_figure
from benchgate.report.provenance import DEFINITIONS
from benchgate.report.terms import OWN, Terms
from benchgate.report.untrusted import quoted, visible
from benchgate.report.view import report_view

_PACKAGE = Path(__file__).parent.parent
_TEMPLATES = (_PACKAGE / "_templates", _PACKAGE.parent / "reports" / "templates")
"""Where the templates lie: in an installed package, else in a checkout."""


def render_html(evidence: Evidence, verdict: Verdict, *, against: Evidence | None = None, terms: Terms = OWN) -> str:
    """The whole report; the same inputs give the same bytes."""
    view = report_view(evidence, verdict, against=against, terms=terms)
    environment = _environment()
    return environment.get_template("report.html.j2").render(
        view=view,
        figures=figures(view.load),
        capacity_figure=capacity_figure(view.capacity),
        timeline=timeline_figure(view.telemetry),
        forest=forest_figure(view.quality),
        definitions=DEFINITIONS,
        style_hash=_csp_hash(environment.get_template("report.css").render()),
    )


@functools.cache
def _environment() -> Environment:
    """Everything printed is escaped; what cannot be seen is shown first."""
    environment = Environment(
        loader=FileSystemLoader([path for path in _TEMPLATES if path.is_dir()]),
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


def _csp_hash(style: str) -> str:
    digest = hashlib.sha256(style.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
