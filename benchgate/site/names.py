"""What the files of a site are called: from ids alone, never from a label or a name that somebody chose."""

from __future__ import annotations

import hashlib
import re

INDEX = "index.html"
NO_JEKYLL = ".nojekyll"  # GitHub Pages serves files as they are where it stands
MANIFEST = "benchgate-site.json"

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_OURS = re.compile(
    r"index\.html|\.nojekyll|runs/(?:[0-9a-f-]{36}|_[0-9a-f]{32})\.html"
    r"|suites/[0-9a-f]{32}/(?:index\.html|badge\.svg|badge\.json)"
)


def run_file(run_id: str) -> str:
    """The page of a run. An id that is no UUID, which a file from elsewhere may have, becomes its hash."""
    return f"runs/{run_id if _UUID.fullmatch(run_id) else '_' + _hashed(run_id)}.html"


def suite_folder(name: str) -> str:
    """The folder of a suite: its name's hash, for a name may be anything."""
    return f"suites/{_hashed(name)}"


def is_ours(path: str) -> bool:
    """Whether a file can be one of a site: nothing else is ever written or removed, whatever a manifest says."""
    return _OURS.fullmatch(path) is not None


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
