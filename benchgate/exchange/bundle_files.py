"""Bundles as files: a folder has one file per run, named by its id, so that no two jobs ever write the same one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from benchgate.errors import EvidenceError, UsageError
from benchgate.exchange.bundle import MOST_BYTES, read_bundle, write_bundle
from benchgate.exchange.in_the_way import not_ours
from benchgate.exchange.taking_in import Source
from benchgate.exchange.whole_file import whole_file
from benchgate.store import tables
from benchgate.store.engine import Database
from benchgate.store.soundness import require_sound
from benchgate.store.whole_run import WholeRun, read_whole

SUFFIX = ".json"
_BEGINNING = re.compile(rb'\s*\{\s*"(?:arm|format)"\s*:')  # "arm" is the first key in the order of bundles
_BEGINNING_BYTES = 256


def export_bundle(database: Database, run_id: str, file: Path) -> None:
    """Writes the bundle of a run, in place of an older one. A file that says more than the store does is not touched.

    Raises EvidenceError for a run that is damaged, or a file that holds what the store lacks; UsageError for a file
    that is something else; StoreError where it cannot be written.
    """
    with database.reading() as connection:
        whole = read_whole(connection, run_id)
    require_sound(whole, database.address.shown)
    data = write_bundle(whole)
    if file.exists():
        found = _bytes_of(file)
        if found == data:
            return
        _require_nothing_lost(_bundle_in_the_way(found, whole, file), whole, file)
    with whole_file(file) as out:
        out.write(data)


def files_at(path: Path) -> list[Path]:
    """The file, or those of a folder that may be bundles in order of their names, which is that of time.

    Raises UsageError for what is not there, and for a folder without any.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise UsageError(f"there is no file or folder {path}")
    found = sorted(inside for inside in path.glob(f"*{SUFFIX}") if inside.is_file())
    if not found:
        raise UsageError(f"{path} has no file *{SUFFIX} in it; name files of other kinds themselves")
    return found


def looks_like_a_bundle(file: Path) -> bool:
    """Whether a file begins as bundles do, so that whatever is wrong with it is said of a bundle; not if unreadable."""
    try:
        with file.open("rb") as begun:
            return _BEGINNING.match(begun.read(_BEGINNING_BYTES)) is not None
    except OSError:
        return False


def bundle_sources(given: Iterable[Path]) -> Iterator[Source]:
    """The bundles that files and folders name. Raises UsageError as `files_at` does."""
    for path in given:
        yield from (Source(str(file), partial(_read, file)) for file in files_at(path))


def _read(file: Path) -> WholeRun:
    return read_bundle(_bytes_of(file), str(file))


def _bytes_of(file: Path) -> bytes:
    try:
        if file.stat().st_size > MOST_BYTES:
            raise EvidenceError(f"{file}: {file.stat().st_size:,} bytes; a bundle has at most {MOST_BYTES:,}")
        return file.read_bytes()
    except OSError as exc:
        raise EvidenceError(f"{file}: it cannot be read: {exc.strerror}") from exc


def _bundle_in_the_way(found: bytes, whole: WholeRun, file: Path) -> WholeRun:
    """What the file has of the same run. UsageError where it is no bundle, a damaged one, or one of another run."""
    try:
        old = read_bundle(found, "what it holds")
    except EvidenceError as exc:
        raise not_ours(file, str(exc)) from exc
    if old.id != whole.id:
        raise not_ours(file, f"it is the bundle of run {old.id}, not of {whole.id}")
    return old


def _require_nothing_lost(old: WholeRun, new: WholeRun, file: Path) -> None:
    """A file can have been merged in from elsewhere since; what only it holds would be gone."""
    lost = [f"records at {seq}" for seq, told in old.story.items() if new.story.get(seq) != told][:1]
    for table in (tables.verdict, tables.promotion, tables.imported, tables.noise_profile):
        there = [row | {"seq": None} for row in new.of(table)]
        lost += [f"a {table.name}" for row in old.of(table) if row | {"seq": None} not in there][:1]
    raw = (tables.observation, tables.telemetry)
    bared = any(len(old.of(table)) > len(new.of(table)) for table in raw)
    if bared and not lost:
        raise EvidenceError(
            f"{file}: it holds the raw records, which were removed from the store and cannot come back there: keep it, "
            "and export to another place"
        )
    if lost:
        raise EvidenceError(
            f"{file}: it holds {lost[0]} that the store lacks; take it in first (`benchgate store import {file}`)"
        )
