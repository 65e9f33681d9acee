"""The folder of a site: its files, their names, and how they are written and removed.

A manifest lists the inputs of each file. A file is written under a temporary name and renamed. Every file is in the
manifest before it is written, so a build that was killed leaves nothing that the next one does not know. Names are made
from ids alone, never from a label or a name that somebody chose.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from pathlib import Path

from benchgate.errors import PublishError, UsageError
from benchgate.escape import one_line
from benchgate.report.html import hashed_name
from benchgate.store.queries import RunSummary
from benchgate.system import OWNER_ONLY, temporary_for, write_atomic

SCHEMA = "benchgate.site/1"
_NO_CONTENT = {".git"}  # a branch that has no files yet


@dataclass(frozen=True, slots=True)
class Entry:
    """A file: the SHA-256 of its inputs (None before it is made), its size, and the outcome in a report.

    `fault` is why a run has no report; then its page is made of numbers.
    """

    inputs: str | None = None
    n_bytes: int = 0
    outcome: str | None = None
    fault: str | None = None


@dataclass(slots=True)
class Changes:
    """Numbers of files that were written, kept and removed."""

    written: int = 0
    kept: int = 0
    removed: int = 0


@dataclass(slots=True)
class OutputFolder:
    """An open site with the entries of its files by their relative paths."""

    folder: Path
    entries: dict[str, Entry]
    changes: Changes = field(default_factory=Changes)
    _seen: set[str] = field(default_factory=set)

    def entry(self, path: str, inputs: str) -> Entry | None:
        """Return the file's entry if the file exists as it was made from these inputs; else None."""
        known = self.entries.get(path)
        if known is None or known.inputs != inputs:
            return None
        file = self.place(path)
        there = file.is_file() and not file.is_symlink() and file.stat().st_size == known.n_bytes
        return known if there else None

    def claim(self, paths: Iterable[str]) -> None:
        """Add files to the manifest before any of them is written. Raises UsageError if another file is in the way."""
        for path in paths:
            file = self.place(path)
            if path not in self.entries and (file.exists() or file.is_symlink()):
                raise UsageError(f"{file} is not a file of this site, and in the way of one; move it")
            self.entries.setdefault(path, Entry())
        self.save()

    def place(self, path: str) -> Path:
        """Return the path of a file. Raises UsageError for a link on the way, which may lead elsewhere."""
        file = self.folder / path
        for parent in takewhile(lambda one: one != self.folder, file.parents):
            if parent.is_symlink():
                raise UsageError(f"{parent} is a link; a site is written into folders of its own")
        return file

    def keep(self, path: str) -> None:
        """Keep a file as it is."""
        self._seen.add(path)
        self.changes.kept += 1

    def put(self, path: str, content: bytes, inputs: str | None = None, fault: str | None = None) -> None:
        """Write a file unless it is up to date. Without `inputs` its own hash takes their place."""
        inputs = inputs or hashlib.sha256(content).hexdigest()
        if self.entry(path, inputs) is not None:
            self.keep(path)
            return
        write_whole(self.place(path), content)
        self.written(path, Entry(inputs, len(content), fault=fault))

    def written(self, path: str, entry: Entry) -> None:
        """Record a written file."""
        self.entries[path] = entry
        self._seen.add(path)
        self.changes.written += 1

    def tidy(self) -> None:
        """Remove files that no longer belong to the site, and folders that are empty then."""
        for path in sorted(self.entries.keys() - self._seen):
            file = self.place(path)
            with _os_errors(file, "removed"):
                if file.is_file() or file.is_symlink():
                    file.unlink()
                    self.changes.removed += 1
                if file.parent != self.folder and file.parent.is_dir() and not any(file.parent.iterdir()):
                    file.parent.rmdir()
            del self.entries[path]
        for file in self.folder.rglob(".*.part"):  # a build that was killed while it wrote left them
            target = temporary_for(file)
            if target is not None and is_ours(target.relative_to(self.folder).as_posix()):
                with _os_errors(file, "removed"):
                    file.unlink()

    def save(self) -> None:
        """Write the manifest."""
        entries = {path: {k: v for k, v in asdict(one).items() if v is not None} for path, one in self.entries.items()}
        document = {"schema": SCHEMA, "files": entries}
        write_whole(self.folder / MANIFEST, (json.dumps(document, indent=1, sort_keys=True) + "\n").encode())


@contextmanager
def opened(folder: Path) -> Iterator[OutputFolder]:
    """Open a site; its manifest is saved even if the build fails.

    Raises UsageError for a folder that is neither empty nor a site.
    """
    output = OutputFolder(folder, _read_manifest(folder))
    output.save()
    try:
        yield output
    finally:
        output.save()


def write_whole(file: Path, content: bytes, *, private: bool = False) -> None:
    """Write a file of a site atomically, `private` for its owner alone. Raises PublishError where that fails."""
    with _os_errors(file, "written"):
        write_atomic(file, content, mode=OWNER_ONLY if private else 0o666)


def _read_manifest(folder: Path) -> dict[str, Entry]:
    """Return the manifest's entries. It is not trusted: it can only name files that a site has."""
    manifest = folder / MANIFEST
    with _os_errors(folder, "read"):
        if not manifest.is_file():
            if folder.exists() and (not folder.is_dir() or {one.name for one in folder.iterdir()} - _NO_CONTENT):
                raise UsageError(
                    f"{folder} is not empty and no site of benchgate's ({MANIFEST} is missing); name an empty folder"
                )
            return {}
        text = manifest.read_bytes()
    try:
        document = json.loads(text)
        if document["schema"] != SCHEMA:
            raise ValueError(f"its schema is {document['schema']!r}, not {SCHEMA}")
        entries = {str(path): Entry(**entry) for path, entry in document["files"].items()}
        if strange := [path for path in entries if not is_ours(path)]:
            raise ValueError(f"it names {strange[0]!r}, which no site has")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{manifest} is no manifest of a site: {error}; build into an empty folder") from error
    return entries


@contextmanager
def _os_errors(file: Path, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PublishError(f"{file} could not be {what}: {error.strerror or error}") from error


INDEX = "index.html"
NO_JEKYLL = ".nojekyll"  # makes GitHub Pages serve files as they are
BADGES = ("badge.svg", "badge.json", "badge-cost.svg")  # of every suite
NO_VERDICT = "no verdict"
ID_SHOWN = 13
LONGEST_NAME = 80
MANIFEST = "benchgate-site.json"

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_OURS = re.compile(
    r"index\.html|\.nojekyll|runs/(?:[0-9a-f-]{36}|_[0-9a-f]{32})\.html"
    r"|suites/[0-9a-f]{32}/(?:index\.html|badge\.svg|badge\.json|badge-cost\.svg)"
)


def run_file(run_id: str) -> str:
    """Return the page of a run. An id that is no UUID, as a foreign file may have, is hashed."""
    return f"runs/{run_id if _UUID.fullmatch(run_id) else '_' + hashed_name(run_id)}.html"


def is_ours(path: str) -> bool:
    """Return True if a site can have this file: nothing else is written or removed, whatever the manifest says."""
    return _OURS.fullmatch(path) is not None


def name_of(summary: RunSummary) -> str:
    """Return a run's name for readers: its label, else the first part of its id."""
    return one_line(summary.run.label or summary.run.id[:ID_SHOWN], LONGEST_NAME)
