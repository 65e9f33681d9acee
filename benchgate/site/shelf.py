"""The folder of a site: which files of it are ours, which are as they must be, and how they are written and removed.

A manifest beside the pages says what each was made from. A file is written under another name and renamed when it is
whole. What is to be written is in the manifest before it is written, so that a build that was killed leaves nothing
behind that the next one would not know.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from pathlib import Path

from benchgate.errors import PublishError, UsageError
from benchgate.site.names import MANIFEST, is_ours
from benchgate.system import temporary_for, write_atomic

SCHEMA = "benchgate.site/1"
_NO_CONTENT = {".git"}  # a branch that has no files yet


@dataclass(frozen=True, slots=True)
class Entry:
    """A file: the SHA-256 of what it was made from (None: not made yet), its size, and what a report says in it.

    `fault` is why a run has no report; then its page is made of numbers.
    """

    inputs: str | None = None
    n_bytes: int = 0
    outcome: str | None = None
    fault: str | None = None


@dataclass(slots=True)
class Changes:
    """How many files were written, left as they were, and removed."""

    written: int = 0
    kept: int = 0
    removed: int = 0


@dataclass(slots=True)
class Shelf:
    """An open site. `entries` are the files of it by their path from its folder."""

    folder: Path
    entries: dict[str, Entry]
    changes: Changes = field(default_factory=Changes)
    _seen: set[str] = field(default_factory=set)

    def entry(self, path: str, inputs: str) -> Entry | None:
        """The file's entry where it is there as it was made, from these inputs; else None."""
        known = self.entries.get(path)
        if known is None or known.inputs != inputs:
            return None
        file = self.place(path)
        there = file.is_file() and not file.is_symlink() and file.stat().st_size == known.n_bytes
        return known if there else None

    def claim(self, paths: Iterable[str]) -> None:
        """Says in the manifest that these files are ours, before any of them is written.

        Raises UsageError where one is there that is not.
        """
        for path in paths:
            file = self.place(path)
            if path not in self.entries and (file.exists() or file.is_symlink()):
                raise UsageError(f"{file} is not a file of this site, and stands where one must; move it away")
            self.entries.setdefault(path, Entry())
        self.save()

    def place(self, path: str) -> Path:
        """Where a file of the site is. UsageError where a link on the way leads out of it."""
        file = self.folder / path
        for parent in takewhile(lambda one: one != self.folder, file.parents):
            if parent.is_symlink():
                raise UsageError(f"{parent} is a link; a site is written into folders of its own")
        return file

    def keep(self, path: str) -> None:
        """The file stays as it is."""
        self._seen.add(path)
        self.changes.kept += 1

    def put(self, path: str, content: bytes, inputs: str | None = None, fault: str | None = None) -> None:
        """Writes a file of ours, unless that is what it holds. Without `inputs` its own hash stands for them."""
        inputs = inputs or hashlib.sha256(content).hexdigest()
        if self.entry(path, inputs) is not None:
            self.keep(path)
            return
        write_whole(self.place(path), content)
        self.written(path, Entry(inputs, len(content), fault=fault))

    def written(self, path: str, entry: Entry) -> None:
        """Takes down that a file was written."""
        self.entries[path] = entry
        self._seen.add(path)
        self.changes.written += 1

    def tidy(self) -> None:
        """Removes the files of ours that no longer belong, and folders that are empty then."""
        for path in sorted(self.entries.keys() - self._seen):
            file = self.place(path)
            with _told(file, "removed"):
                if file.is_file() or file.is_symlink():
                    file.unlink()
                    self.changes.removed += 1
                if file.parent != self.folder and file.parent.is_dir() and not any(file.parent.iterdir()):
                    file.parent.rmdir()
            del self.entries[path]
        for file in self.folder.rglob(".*.part"):  # a build that was killed while it wrote left them
            target = temporary_for(file)
            if target is not None and is_ours(target.relative_to(self.folder).as_posix()):
                with _told(file, "removed"):
                    file.unlink()

    def save(self) -> None:
        """Writes the manifest as things are now."""
        said = {path: {k: v for k, v in asdict(one).items() if v is not None} for path, one in self.entries.items()}
        document = {"schema": SCHEMA, "files": said}
        write_whole(self.folder / MANIFEST, (json.dumps(document, indent=1, sort_keys=True) + "\n").encode())


@contextmanager
def opened(folder: Path) -> Iterator[Shelf]:
    """A site to build into; its manifest tells what was done, also when that ended early.

    Raises UsageError for a folder that is neither empty nor a site.
    """
    shelf = Shelf(folder, _entries(folder))
    shelf.save()
    try:
        yield shelf
    finally:
        shelf.save()


def write_whole(file: Path, content: bytes) -> None:
    """Write a file of a site atomically. Raises PublishError where it cannot be written."""
    with _told(file, "written"):
        write_atomic(file, content)


def _entries(folder: Path) -> dict[str, Entry]:
    """What the manifest says. None of it is taken on trust: only files that a site has can be named by it."""
    manifest = folder / MANIFEST
    with _told(folder, "read"):
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
        entries = {str(path): Entry(**said) for path, said in document["files"].items()}
        if strange := [path for path in entries if not is_ours(path)]:
            raise ValueError(f"it names {strange[0]!r}, which no site has")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{manifest} is no manifest of a site: {error}; build into an empty folder") from error
    return entries


@contextmanager
def _told(file: Path, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PublishError(f"{file} could not be {what}: {error.strerror or error}") from error
