"""Bundles as files: a folder has one file per run, named by its id, so that no two jobs ever write the same one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from benchgate.errors import EvidenceError, UsageError
from benchgate.store import tables
from benchgate.store.bundle import MOST_BYTES, read_bundle, write_bundle
from benchgate.store.engine import Database
from benchgate.store.soundness import require_sound
from benchgate.store.taking_in import Source
from benchgate.store.whole_file import whole_file
from benchgate.store.whole_run import WholeRun, read_whole

SUFFIX = ".json"


def export_bundle(database: Database, run_id: str, file: Path) -> None:
    """Writes the bundle of a run, in place of an older one. A file that says more than the store does is not touched.

    Raises EvidenceError for a run that is damaged, or a file that holds what the store lacks; StoreError where it
    cannot be written.
    """
    with database.reading() as connection:
        whole = read_whole(connection, run_id)
    require_sound(whole, database.address.shown)
    data = write_bundle(whole)
    if file.exists():
        found = _bytes_of(file)
        if found == data:
            return
        _require_nothing_lost(read_bundle(found, str(file)), whole, file)
    with whole_file(file) as part:
        part.write_bytes(data)


def bundle_sources(given: Sequence[Path]) -> Iterator[Source]:
    """The bundles that files and folders name, those of a folder in order of their names, which is that of time.

    Raises UsageError for what is not there, and for a folder without any.
    """
    for path in given:
        found = [path]
        if path.is_dir():
            found = sorted(inside for inside in path.glob(f"*{SUFFIX}") if inside.is_file())
            if not found:
                raise UsageError(f"{path} has no bundle in it: a bundle is a file RUN{SUFFIX}")
        elif not path.is_file():
            raise UsageError(f"there is no file or folder {path}")
        yield from (Source(str(file), partial(_read, file)) for file in found)


def _read(file: Path) -> WholeRun:
    return read_bundle(_bytes_of(file), str(file))


def _bytes_of(file: Path) -> bytes:
    try:
        if file.stat().st_size > MOST_BYTES:
            raise EvidenceError(f"{file}: {file.stat().st_size:,} bytes; a bundle has at most {MOST_BYTES:,}")
        return file.read_bytes()
    except OSError as exc:
        raise EvidenceError(f"{file}: it cannot be read: {exc.strerror}") from exc


def _require_nothing_lost(old: WholeRun, new: WholeRun, file: Path) -> None:
    """A file can have been merged in from elsewhere since; what only it holds would be gone."""
    lost = [f"records at {seq}" for seq, told in old.story.items() if new.story.get(seq) != told][:1]
    for table in (tables.verdict, tables.promotion, tables.imported, tables.noise_profile):
        there = [row | {"seq": None} for row in new.of(table)]
        lost += [f"a {table.name}" for row in old.of(table) if row | {"seq": None} not in there][:1]
    raw = (tables.observation, tables.telemetry)
    lost += ["raw records"] * any(len(old.of(table)) > len(new.of(table)) for table in raw)
    if lost:
        raise EvidenceError(
            f"{file}: it holds {lost[0]} that the store lacks; take it in first (`benchgate store import {file}`)"
        )
