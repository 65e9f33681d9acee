"""Care for the store: `benchgate store upgrade`, and its exchange with others: `export` and `copy`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchgate.cli import options
from benchgate.cli.saying import log, say
from benchgate.errors import StoreError, UsageError
from benchgate.escape import terminal_line

if TYPE_CHECKING:
    from benchgate.store.database import Database
    from benchgate.store.merge import ImportResult


class ExportFormat(StrEnum):
    """What the files of an export are; the words of `store.export.FileFormat`, which is slow to load."""

    BUNDLE = "bundle"
    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"
    OPENMETRICS = "openmetrics"


def upgrade(store: options.StoreOption = options.STORE) -> None:
    """Bring a store to this version's schema; an SQLite file is backed up beside it first."""
    from benchgate.store.migrate import upgrade as upgrade_store

    done = upgrade_store(store, create=False)
    kept = f"; the old one is kept at {done.backup}" if done.backup else ""
    say(f"schema {done.before or 'none'} → {done.after}{kept}\n")


def export(
    runs: Annotated[list[str] | None, typer.Argument(metavar="[RUN]...", help="Runs: ids, labels, @latest.")] = None,
    to: Annotated[Path | None, typer.Option("--to", help="Folder, or the file where one is written.")] = None,
    output: Annotated[ExportFormat, typer.Option("--format", help="What to write.")] = ExportFormat.BUNDLE,
    every: Annotated[bool, typer.Option("--all", help="Every run, of --suite where it is given.")] = False,
    suite: Annotated[str | None, typer.Option("--suite", help="Only runs of the suite of this name.")] = None,
    raw_csv: Annotated[bool, typer.Option("--raw-csv", help="Leave texts that a spreadsheet would run.")] = False,
    store: options.StoreOption = options.STORE,
) -> None:
    """Write runs as files: whole, to be taken in elsewhere, or as other programs read them."""
    from benchgate.report.openmetrics import newest_runs_text
    from benchgate.store import export as exports
    from benchgate.store.migrate import opened

    if to is None:
        raise UsageError("where to? Give --to FOLDER, or --to FILE for one file")
    if raw_csv and output is not ExportFormat.CSV:
        raise UsageError(f"--raw-csv is of --format csv, and {output} is to be written")
    with opened(store, create=False) as database:
        chosen = _chosen(database, runs or [], every=every, suite=suite)
        chosen_format = exports.FileFormat(output)
        for file in exports.export(database, chosen, to, chosen_format, newest_runs_text, raw_csv=raw_csv):
            say(terminal_line(str(file)) + "\n")


def copy(
    origin: Annotated[str, typer.Argument(metavar="FROM", help="SQLite file or database URL to read.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="SQLite file or database URL to add to.")],
) -> None:
    """Take every run of one store into another, SQLite or Postgres; what is there already stays."""
    from benchgate.store.merge import copy_store
    from benchgate.store.migrate import opened

    with opened(origin, create=False) as source, opened(target, create=True) as database:
        fates = tell(copy_store(source, database))
    if fates["refused"]:
        raise StoreError(f"{fates['refused']} of {fates.total()} were refused, with nothing of them taken in")


def _chosen(database: Database, runs: list[str], *, every: bool, suite: str | None) -> list[str]:
    """The ids of the runs that are meant, each once."""
    from benchgate.store.export import all_runs
    from benchgate.store.run_reference import resolve

    if every and runs:
        raise UsageError("--all is every run; name runs or say --all")
    if every:
        if chosen := all_runs(database, suite):
            return chosen
        raise UsageError(f"the store has no run{f' of suite {suite!r}' if suite is not None else ''} yet")
    if not runs:
        raise UsageError("which runs? Name them (an id, a label, @latest), or say --all")
    with database.reading() as connection:
        return list(dict.fromkeys(resolve(connection, run, suite=suite) for run in runs))


def tell(taken: Iterable[ImportResult]) -> Counter[str]:
    """One line a run as it is taken in, what is missing or refused on stderr, then the sum: how many of each fate."""
    fates: Counter[str] = Counter()
    for one in taken:
        if one.merged is None:
            fates["refused"] += 1
            log(f"benchgate: {one.problem}")
            continue
        fates[one.merged.fate] += 1
        more = f", {one.merged.added} added to it" if one.merged.added else ""
        say(f"{one.merged.run_id} {one.merged.fate}{more}\n")
        if one.merged.bared:
            said = f"the raw records of run {one.merged.run_id} were removed from this store and stay so"
            log(f"benchgate: {said}: keep {one.source}, which has them")
        for missing in one.merged.waiting_for:
            said = f"run {one.merged.run_id} was compared with run {missing}, which this store does not have"
            log(f"benchgate: {said}: that verdict was left out; import both")
    say(", ".join(f"{fates[fate]} {fate}" for fate in ("new", "continued", "known", "refused") if fates[fate]) + "\n")
    return fates
