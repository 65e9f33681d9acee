"""What a report in a site leads back to: called by hashes alone, never by a name that somebody chose."""

from __future__ import annotations

import hashlib

SITE_INDEX = "../index.html"
"""The way from a report of a site to the site's first page."""


def hashed_name(text: str) -> str:
    """32 hex digits that stand for a name, which may be anything."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def suite_folder(name: str) -> str:
    """The folder of a suite in a site."""
    return f"suites/{hashed_name(name)}"


def suite_page(name: str) -> str:
    """The way from a report of a site to the page of its suite: trends, promotions and the other runs."""
    return f"../{suite_folder(name)}/index.html"
