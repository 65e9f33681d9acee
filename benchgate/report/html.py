"""The report as one self-contained HTML file: no request to anywhere, style and script allowed by their own hashes."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from benchgate.escape import quoted, visible
from benchgate.report.display import GLOSSARY
from benchgate.report.view import ReportView

SITE_INDEX = "../index.html"
"""The way from a report in a site to the site's first page."""
_PACKAGE = Path(__file__).parent.parent
TEMPLATES = (_PACKAGE / "_templates", _PACKAGE.parent / "reports" / "templates")
"""The folders of the templates: in an installed package, else in a checkout."""


def page_of(view: ReportView, *, in_site: bool = False) -> str:
    """Render a report as a page; `in_site` adds links to the site's first page and to the suite's.

    The same inputs give the same bytes.
    """
    environment = page_environment()
    return environment.get_template("report.html.j2").render(
        view=view,
        home=SITE_INDEX if in_site else "",
        trends=suite_page(view.banner.suite) if in_site else "",
        glossary=GLOSSARY,
        style_hash=csp_hash(environment.get_template("report.css").render()),
        script_hash=csp_hash(environment.get_template("report.js").render()),
    )


def hashed_name(text: str) -> str:
    """Return 32 hex digits that stand for a name, which may be any text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def suite_folder(name: str) -> str:
    """Return the folder of a suite in a site."""
    return f"suites/{hashed_name(name)}"


def suite_page(name: str) -> str:
    """Return the way from a report in a site to the page of its suite."""
    return f"../{suite_folder(name)}/index.html"


@functools.cache
def page_environment() -> Environment:
    """Return the environment of all pages: it escapes everything printed and shows invisible characters."""
    environment = Environment(
        loader=FileSystemLoader([path for path in TEMPLATES if path.is_dir()]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) or not isinstance(value, str) else visible(value),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["unbroken"] = _unbroken
    environment.filters["worded"] = lambda sentence: quoted(_unbroken(sentence))
    return environment


def _unbroken(sentence: str) -> str:
    """Keep numbers and their units on one line."""
    return re.sub(
        r"(?<=\d) (?=%|(?:[mµn]?s|points?|tok/s|req/s|tokens/s|requests/s)\b)", "\N{NO-BREAK SPACE}", sentence
    )


def csp_hash(source: str) -> str:
    """Return the name of a style or script in a Content-Security-Policy."""
    digest = hashlib.sha256(source.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
