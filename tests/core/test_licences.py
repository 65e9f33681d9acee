"""Every locked package has a licence that a product under the Apache License may depend on."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PERMISSIVE = frozenset({
    "0BSD", "Apache-2.0", "BSD", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "CNRI-Python", "ISC", "MIT", "MIT-0",
    "PSF-2.0", "Unlicense", "Zlib",
})  # fmt: skip
# Files under these stay under them when they are changed; a program that imports them does not.
WEAK_COPYLEFT = {
    "certifi": "MPL-2.0",
    "chardet": "LGPL-2.1-or-later",  # of lm-eval
    "hypothesis": "MPL-2.0",  # tests alone
    "pathspec": "MPL-2.0",  # builds alone
    "psycopg": "LGPL-3.0-only",  # the extra `postgres`
    "psycopg-binary": "LGPL-3.0-only",
    "tqdm": "MPL-2.0",
}
UNSTATED = {"axe-playwright-python": "MIT", "sigstore-models": "MIT"}  # by the file LICENSE alone
SPELLED = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",
    "GNU Lesser General Public License v2 or later (LGPLv2+)": "LGPL-2.1-or-later",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "The MIT License (MIT)": "MIT",
    "The Unlicense (Unlicense)": "Unlicense",
}
LOCKS = ("base", "demo", "action", "dev")


def licences(name: str, package: metadata.PackageMetadata) -> set[str]:
    """Return the licences that a package states: an expression, classifiers, or a text of one line."""
    classifiers = [one.split(" :: ")[-1] for one in package.get_all("Classifier") or () if one.startswith("License ::")]
    [expression] = package.get_all("License-Expression") or [""]
    [text] = package.get_all("License") or [""]
    stated = expression or text
    if not expression and classifiers:
        return {SPELLED.get(one, one) for one in classifiers}
    first, *rest = stated.strip().splitlines() or [""]
    if first in SPELLED:  # of a whole text, its title
        return {SPELLED[first]}
    parts = [] if rest else re.split(r"\s+(?:AND|OR)\s+|[()]", first)
    found = {part.strip() for part in parts if part.strip()}
    return found or ({UNSTATED[name]} if name in UNSTATED else set())


def refused(name: str, found: set[str]) -> set[str]:
    """Return the licences that are not allowed for a package; `unknown` if it states none."""
    return (found or {"unknown"}) - PERMISSIVE - {WEAK_COPYLEFT.get(name, "")}


def locked(lock: str) -> list[str]:
    text = (ROOT / f"requirements/{lock}.txt").read_text(encoding="utf-8")
    pins = map(Requirement, re.findall(r"^([a-zA-Z0-9].*?)\s*\\?$", text, re.MULTILINE))
    return [canonicalize_name(pin.name) for pin in pins if pin.marker is None or pin.marker.evaluate()]


@pytest.mark.parametrize("lock", LOCKS)
def test_every_locked_package_has_an_allowed_licence(lock: str) -> None:
    names = locked(lock)
    assert len(names) > 20
    found = {name: refused(name, licences(name, metadata.metadata(name))) for name in names}
    assert {name: words for name, words in found.items() if words} == {}


def test_other_licences_and_none_are_refused() -> None:
    assert refused("x", {"GPL-3.0-only", "MIT"}) == {"GPL-3.0-only"}
    assert refused("certifi", {"LGPL-3.0-only"}) == {"LGPL-3.0-only"}
    assert refused("x", {"MPL-2.0"}) == {"MPL-2.0"}
    assert refused("x", set()) == {"unknown"}


def test_exceptions_are_of_packages_that_are_locked() -> None:
    assert {*WEAK_COPYLEFT, *UNSTATED} <= set(locked("dev"))
