"""What the files of a site are called: from ids alone, never from a label or a name that somebody chose."""

from __future__ import annotations

import re

from benchgate.report.html import hashed_name

INDEX = "index.html"
NO_JEKYLL = ".nojekyll"  # GitHub Pages serves files as they are where it stands
BADGES = ("badge.svg", "badge.json", "badge-cost.svg")  # of every suite
MANIFEST = "benchgate-site.json"

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_OURS = re.compile(
    r"index\.html|\.nojekyll|runs/(?:[0-9a-f-]{36}|_[0-9a-f]{32})\.html"
    r"|suites/[0-9a-f]{32}/(?:index\.html|badge\.svg|badge\.json|badge-cost\.svg)"
)


def run_file(run_id: str) -> str:
    """The page of a run. An id that is no UUID, which a file from elsewhere may have, becomes its hash."""
    return f"runs/{run_id if _UUID.fullmatch(run_id) else '_' + hashed_name(run_id)}.html"


def is_ours(path: str) -> bool:
    """Whether a file can be one of a site: nothing else is ever written or removed, whatever a manifest says."""
    return _OURS.fullmatch(path) is not None
