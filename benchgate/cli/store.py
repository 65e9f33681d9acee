"""The `benchgate store` commands: import, export, check, info, gc and upgrade."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import cache
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from benchgate.cli import options
from benchgate.cli.commands import command_line, run_command, spelled
from benchgate.cli.completion import complete_runs
from benchgate.cli.options import ResultFormat, suites_called
from benchgate.cli.saying import inform, log, log_text, say, say_escaped, say_json, stdout_screen
from benchgate.errors import Command, ExitCode, StoreError, SuiteError, UsageError
from benchgate.escape import one_line, terminal_line
from benchgate.report.screen import Screen, fitting_table
from benchgate.units import parse_duration_s, show_size

if TYPE_CHECKING:
    from benchgate.pipeline.import_load import ImportMetadata
    from benchgate.store.merge import ImportResult
    from benchgate.store.retention import Removed, Sizes

# The values of `FileFormat`, whose module is slow to import.
ExportFormat = Literal["bundle", "jsonl", "csv", "parquet", "openmetrics"]
_MAX_FIELDS_NAMED = 3  # that were left out of an import for one reason
_AGES_DAYS = (0, 30, 90, 365)
_SQLITE_START = b"SQLite format 3\0"
_START_BYTES = 66
_SPOOL_START = re.compile(rb"[0-9a-f]{64} \{")


def upgrade(store: options.StoreOption = options.STORE) -> None:
    """Upgrade a store to this version's schema

    An SQLite file is backed up beside it first.

    Example: benchgate store upgrade --store runs.db
    """
    from benchgate.store.migrate import upgrade as upgrade_store

    done = upgrade_store(store, create=False)
    kept = f"; the old one is kept at {done.backup}" if done.backup else ""
    say(f"schema {done.before or 'none'} → {done.after}{kept}\n")


def export(
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN", help="Runs: ids, labels, @latest.", autocompletion=complete_runs),
    ] = None,
    to: Annotated[Path | None, typer.Option(help="Output folder, or file for a single run.")] = None,
    output: Annotated[ExportFormat, typer.Option("--format", help="File format.")] = "bundle",
    every: Annotated[bool, typer.Option("--all", help="Export every run, or every run of --suite.")] = False,
    suite: Annotated[str | None, typer.Option(help="Only runs of this suite.")] = None,
    raw_csv: Annotated[
        bool, typer.Option("--raw-csv", help="Do not escape text that a spreadsheet would run.")
    ] = False,
    store: options.StoreOption = options.STORE,
) -> None:
    """Write runs to files

    A bundle holds a run whole, for `store import` elsewhere; the other formats are for other programs.

    Example: benchgate store export --all --to runs/
    """
    from benchgate.report.openmetrics import newest_runs_text
    from benchgate.store.export import FileFormat, all_runs
    from benchgate.store.export import export as export_files
    from benchgate.store.migrate import opened as opened_database
    from benchgate.store.run_reference import resolve

    if to is None:
        raise UsageError("where to? Give --to FOLDER, or --to FILE for one file")
    if raw_csv and output != "csv":
        raise UsageError(f"--raw-csv needs --format csv, not {output}")
    if every and runs:
        raise UsageError("--all is every run; name runs or say --all")
    if not every and not runs:
        raise UsageError("which runs? Name them (an id, a label, @latest), or say --all")
    with opened_database(store, create=False) as database:
        if every:
            chosen = all_runs(database, suite)
        else:
            with database.reading() as connection:
                chosen = list(dict.fromkeys(resolve(connection, run, suite=suite) for run in runs or ()))
        if not chosen:
            raise UsageError(f"the store has no run{f' of suite {suite!r}' if suite is not None else ''} yet")
        for file in export_files(database, chosen, to, FileFormat(output), newest_runs_text, raw_csv=raw_csv):
            say(terminal_line(str(file)) + "\n")


def import_runs(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="SOURCE", help="Bundles, spools, stores, result files of other tools, folders."),
    ],
    tool: Annotated[str | None, typer.Option("--from", help="Tool that wrote the result files.")] = None,
    suite: Annotated[str | None, typer.Option(help="Suite name for result files.")] = None,
    deployment: Annotated[str | None, typer.Option(help="Name of the measured deployment.")] = None,
    model: Annotated[str | None, typer.Option(help="Its model, if the file does not state it.")] = None,
    label: options.LabelOption = None,
    price: Annotated[float | None, typer.Option(help="Dollars per hour of one accelerator.")] = None,
    accelerators: Annotated[int | None, typer.Option(min=1, help="Number of accelerators [default: 1].")] = None,
    measured_at: Annotated[str | None, typer.Option(help="Time of measurement, if the file does not state it.")] = None,
    store: options.StoreOption = options.STORE,
) -> None:
    """Import bundles, spools, stores, result files

    Known runs stay as they are. A source that is refused does not keep others out.

    Example: benchgate store import runs/ --store central.db
    """
    from benchgate.importers.formats import require_known
    from benchgate.pipeline.import_load import ImportMetadata, require_sane
    from benchgate.store.bundle import bundle_files

    metadata = ImportMetadata(suite, deployment, model, label, price, accelerators, measured_at)
    require_sane(metadata)
    if tool is not None:
        require_known(tool)
    refused: Counter[ExitCode] = Counter()
    found: dict[str, list[str]] = {"result file": [], "spool": [], "store": [], "bundle": []}
    for source in sources:
        with _tried(refused):
            for file in [source] if "://" in source else map(str, bundle_files(Path(source))):
                found["result file" if tool is not None else _kind(file)].append(file)
    given = {"--suite": suite, "--deployment": deployment, "--model": model, "--label": label, "--price": price}
    given |= {"--accelerators": accelerators, "--measured-at": measured_at}
    option = next((option for option, value in given.items() if value is not None), None)
    if option is not None and not found["result file"] and any(found.values()):
        raise UsageError(f"{option} is for result files of other tools; the other sources state it themselves")
    for file in found["result file"]:
        with _tried(refused):
            _import_result_file(store, Path(file), metadata, tool)
    for file in found["spool"]:
        with _tried(refused):
            _import_spool(store, Path(file))
    if found["store"] or found["bundle"]:
        _import_stores_and_bundles(found["store"], found["bundle"], store, refused)
    if not refused.total():
        return
    if sum(map(len, found.values())) + refused.total() > 1:
        log(f"benchgate: {refused.total()} refused; nothing of {'it' if refused.total() == 1 else 'them'} was imported")
    raise typer.Exit(int(ExitCode.PUBLISH_FAILED if refused[ExitCode.PUBLISH_FAILED] else ExitCode.USAGE))


def _kind(source: str) -> str:
    """Return the kind of a source by how it begins."""
    from benchgate.store.bundle import looks_like_bundle
    from benchgate.store.spool import FILE_NAME

    file = Path(source)
    if "://" in source:
        return "store"
    try:
        with file.open("rb") as begun:
            start = begun.read(_START_BYTES)
    except OSError:
        start = b""
    if start.startswith(_SQLITE_START):
        return "store"
    if file.name == FILE_NAME or _SPOOL_START.match(start):
        return "spool"
    return "bundle" if looks_like_bundle(file) else "result file"


@contextmanager
def _tried(refused: Counter[ExitCode]) -> Iterator[None]:
    """Log and count what a source is refused for, so that the others are tried too."""
    try:
        yield
    except (UsageError, SuiteError, StoreError) as error:
        log_text(f"benchgate: {spelled(error) if error.remedies else error}")
        refused[error.exit_code] += 1


def _import_result_file(store: str, file: Path, metadata: ImportMetadata, tool: str | None) -> None:
    """Import a file of another tool; print its run, and log the first fields that were not imported by reason."""
    from benchgate.pipeline.import_load import import_file

    imported = import_file(store, file, metadata, tool)
    reading, measured = imported.reading, imported.measured
    if imported.is_known:
        say(terminal_line(f"{imported.run_id} known") + "\n")
        return
    when = "time of measurement unknown" if measured is None else f"measured {measured.at} by {measured.by}"
    numbers = f"{len(reading.rows)} numbers of {reading.tool}, {len(reading.unmapped)} fields not imported"
    say(terminal_line(f"{imported.run_id} new: {numbers}; {when}") + "\n")
    reasons: dict[str, list[str]] = {}
    for field, why in reading.unmapped.items():
        reasons.setdefault(why, []).append(field)
    for why, fields in reasons.items():
        more = f" and {len(fields) - _MAX_FIELDS_NAMED} more" if len(fields) > _MAX_FIELDS_NAMED else ""
        inform(f"  not imported: {', '.join(fields[:_MAX_FIELDS_NAMED])}{more}: {why}")
    if measured is None:
        inform("  `benchgate trend` shows it at the time of its import; --measured-at sets the time of measurement")


def _import_stores_and_bundles(
    stores: Sequence[str], bundles: Sequence[str], store: str, refused: Counter[ExitCode]
) -> None:
    """Import runs. The target store is created only once there is a run to import."""
    from benchgate.store import merge
    from benchgate.store.bundle import bundle_sources
    from benchgate.store.migrate import opened as opened_database

    with ExitStack() as stack:
        target = cache(lambda: stack.enter_context(opened_database(store, create=True)))

        def results() -> Iterator[ImportResult]:
            for origin in stores:
                with _tried(refused), opened_database(origin, create=False) as source:
                    yield from merge.copy_store(source, target())
            yield from merge.import_runs(target, bundle_sources(map(Path, bundles)))

        fates = print_results(results())  # which may count sources as refused by itself
        refused[ExitCode.PUBLISH_FAILED] += fates["refused"]


def print_results(results: Iterable[ImportResult]) -> Counter[str]:
    """Print a line per run as it is imported, then the sum; log problems. Return the number of runs by fate."""
    fates: Counter[str] = Counter()
    for one in results:
        if one.merged is None:
            fates["refused"] += 1
            log(f"benchgate: {one.problem}")
            continue
        fates[one.merged.fate] += 1
        more = f", {one.merged.added} added to it" if one.merged.added else ""
        say(f"{one.merged.run_id} {one.merged.fate}{more}\n")
        if one.merged.bared:
            removed = f"the raw records of run {one.merged.run_id} were removed from this store and stay so"
            log(f"benchgate: {removed}: keep {one.source}, which has them")
        for missing in one.merged.waiting_for:
            compared = f"run {one.merged.run_id} was compared with run {missing}, which this store does not have"
            log(f"benchgate: {compared}: that verdict was left out; import both")
    if fates:
        known = ("new", "continued", "known", "refused")
        say(", ".join(f"{fates[fate]} {fate}" for fate in known if fates[fate]) + "\n")
    return fates


def _import_spool(store: str, spool: Path) -> None:
    """Insert the rows of a spool that the store lacks, and print how to resume or judge the run."""
    from benchgate.store.database import Address
    from benchgate.store.repository import Store
    from benchgate.store.spool import read_spool

    existing = Store.open_as_is(store)
    if existing is None:
        read_spool(spool)  # no store is created for a spool that cannot be read
    else:
        existing.close()
    with Store.open(store) as opened:
        found = opened.recover(spool)
        run = opened.run(found.run_id)
    shown = Address.parse(store).shown
    state = f"it is {found.status}" if found.is_over else "it was interrupted"
    added = f"run {found.run_id}: {found.added} records added to {shown}, which had {found.present}; {state}"
    commands = f"`{command_line(Command.GATE, found.run_id, store)}` judges it"
    if not found.is_over:
        files = suites_called(run.suite_name)  # no store knows the file of a suite
        arms = [(f"--{arm}", deployment.name) for arm, deployment in run.arms.items()]
        file = files[0] if len(files) == 1 else Path("SUITE")
        resume = run_command(file, store=store, options=[*arms, ("--run", run.id)], flags=[("--resume", True)])
        which = "" if len(files) == 1 else f", with the file of the suite {run.suite_name} as SUITE,"
        commands += f", and `{resume}`{which} resumes it"
    say(f"{added}: {commands}\n")
    if found.torn_bytes:
        say(f"the last line of {spool} was truncated ({found.torn_bytes} bytes) and is left out\n")
    say(f"the store has all of {spool} now; you may remove the file\n")


def check(
    store: options.StoreOption = options.STORE,
    figures: Annotated[bool, typer.Option("--figures", help="Also recompute every metric; takes longer.")] = False,
    output: options.ResultFormatOption = ResultFormat.TEXT,
) -> None:
    """Verify every hash and link of a store

    Changes nothing. Exits with 13 for a finding.

    Example: benchgate store check --store runs.db
    """
    from benchgate.store.database import Address

    with options.open_store_as_is(store) as opened:
        checked = opened.check(figures=figures)
    number = len(checked.findings)
    if output is ResultFormat.JSON:
        document = {
            "rows": dict(checked.rows),
            "findings": [asdict(finding) for finding in checked.findings],
            "sound": not checked.findings,
            "figures": "recomputed" if figures else "not recomputed",
        }
        say_json(document, sort_keys=True)
    else:
        lines = []
        for finding in checked.findings:
            run = f"run {finding.run_id}, " if finding.run_id is not None else ""
            lines.append(terminal_line(f"{run}{finding.place}: {finding.problem}"))
        counts = ", ".join(f"{n:,} {kind}" for kind, n in checked.rows.items())
        lines.append(f"checked {counts or 'the file alone'}")
        if not figures:
            lines.append("metrics were checked for plausible values only; `--figures` recomputes them from the records")
        lines.append(f"{number:,} {'finding' if number == 1 else 'findings'}" if number else "no findings")
        if number:
            lines.append("what to do: keep the store as it is, and judge nothing by the named runs;")
        if number and checked.rows:
            source = quote(Address.parse(store).shown)
            lines.append(
                f"  `benchgate store import {source} --store NEW.db` copies the sound runs and names the others;"
            )
            lines.append("  import those from a bundle or a backup of the store, if there is one")
        elif number:
            lines.append("  go back to a backup: a damaged file cannot be checked further")
        say("".join(f"{line}\n" for line in lines))
    if number:
        raise typer.Exit(int(ExitCode.PUBLISH_FAILED))


def info(store: options.StoreOption = options.STORE, output: options.ResultFormatOption = ResultFormat.TEXT) -> None:
    """Print a store's schema, size and runs

    Also prints how much `store gc` could free.

    Example: benchgate store info --store runs.db
    """
    from benchgate.pipeline.environment import utc_now

    now = utc_now()
    with options.open_store_as_is(store) as opened:
        sizes = opened.sizes(now)
    if output is ResultFormat.JSON:
        runs = [{"suite": suite, "status": status, "n": n} for (suite, status), n in sizes.runs.items()]
        say_json({**asdict(sizes), "runs": runs}, sort_keys=True)
    else:
        say_escaped("".join(f"{line}\n" for line in _info_lines(sizes, now, stdout_screen())))


def _info_lines(sizes: Sizes, now: str, screen: Screen) -> Iterator[str]:
    from benchgate.store.retention import older_than

    facts = {
        "store": sizes.address,
        "schema": f"{sizes.schema}, last upgraded by benchgate {sizes.tool_version or '?'}; {sizes.server}",
        "size": show_size(sizes.n_bytes),
    }
    for name, text in facts.items():
        yield from screen.wrapped(text, " " * 9, first=name.ljust(9))
    yield ""
    tables = [(table.name, f"{table.n_rows:,}", show_size(table.n_bytes)) for table in sizes.tables]
    yield from fitting_table(screen, ("table", "rows", "size"), tables, right=(1, 2))
    yield ""
    runs = [(one_line(suite), status, f"{n:,}") for (suite, status), n in sizes.runs.items()]
    yield from fitting_table(screen, ("suite", "status", "runs"), runs, right=(2,))
    yield ""
    gone = f"raw records were removed from {sizes.removed:,} runs; {sizes.unused_plans:,} plans belong to no run"
    yield from screen.folded([gone])
    yield "raw records that `benchgate store gc` may remove, by age of the run:"
    ages = []
    for days in _AGES_DAYS:
        old = older_than(sizes.expendable, days * 86_400.0, now)
        age = f"more than {days} days" if days else "any age"
        ages.append((age, f"{len(old):,}", show_size(sum(run.n_bytes for run in old))))
    yield from fitting_table(screen, ("age", "runs", "size"), ages, right=(1, 2), indent="  ")


def gc(
    raw_older_than: Annotated[
        str | None, typer.Option(help="Only runs that ended longer ago than this, like 90d.")
    ] = None,
    keep_last: Annotated[int | None, typer.Option(min=1, help="Keep the newest N runs of each suite.")] = None,
    suite: Annotated[str | None, typer.Option(help="Only runs of this suite.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be removed, and remove nothing.")
    ] = False,
    vacuum: Annotated[bool, typer.Option("--vacuum", help="Return the space to the operating system.")] = False,
    store: options.StoreOption = options.STORE,
    output: options.ResultFormatOption = ResultFormat.TEXT,
) -> None:
    """Remove raw records of old runs

    Verdicts and metrics stay. Promoted runs and the newest run of each suite keep their records.

    Example: benchgate store gc --raw-older-than 90d --dry-run
    """
    from benchgate.pipeline.environment import utc_now
    from benchgate.store.repository import Store
    from benchgate.store.retention import Policy, Removed

    if raw_older_than is None and keep_last is None:  # nothing is removed by default
        raise UsageError("say what may go: --raw-older-than 90d, --keep-last 20, or both; --dry-run shows it first")
    try:
        older_than_s = parse_duration_s(raw_older_than) if raw_older_than is not None else 0.0
    except ValueError as error:
        raise UsageError(f"--raw-older-than: {error}; 90d is 90 days") from error
    policy = Policy(older_than_s, keep_last or 1, suite)
    now = utc_now()
    with Store.open(store, create=False) as opened:
        if suite is not None and not opened.runs(suite, limit=1):  # a typo must not look like an empty result
            raise UsageError(f"the store has no run of a suite {suite!r}; `benchgate store info` lists those it has")
        runs, kept = opened.expendable(policy, now), opened.kept_raw(policy, now)
        removed = Removed(tuple(runs), ())
        if not dry_run:
            given = {"--raw-older-than": raw_older_than, "--keep-last": keep_last, "--suite": suite}
            words = ["benchgate store gc", *(f"{name} {value}" for name, value in given.items() if value is not None)]
            removed = opened.remove_raw(runs, now=now, reason=" ".join(words))
            if vacuum:
                opened.vacuum()
    if output is ResultFormat.JSON:
        document = {"removed": [asdict(run) for run in removed.runs], "stayed": dict(removed.stayed)}
        say_json({"dry_run": dry_run, "kept": dict(kept), **document}, sort_keys=True)
    else:
        lines = _removal_lines(removed, kept, stdout_screen(), dry_run=dry_run)
        say_escaped("".join(f"{line}\n" for line in lines))
    if removed.stayed:
        raise typer.Exit(int(ExitCode.PUBLISH_FAILED))


def _removal_lines(removed: Removed, kept: Mapping[str, int], screen: Screen, *, dry_run: bool) -> Iterator[str]:
    rows = [
        (
            run.run_id,
            run.finished_at[:10],
            one_line(run.suite),
            one_line(run.label or ""),
            f"{run.n_rows:,}",
            f"{run.n_records:,}",
            show_size(run.n_bytes),
        )
        for run in removed.runs
    ]
    if rows:
        headings = ("run", "ended", "suite", "label", "rows", "records", "size")
        yield from fitting_table(screen, headings, rows, right=(4, 5, 6))
    gone = {run.run_id for run in removed.runs}
    for run_id, why in removed.stayed:
        yield from screen.folded([f"{run_id}  stays{' in part' if run_id in gone else ''}: {why}"])
    size = show_size(sum(run.n_bytes for run in removed.runs))
    number, what = len(removed.runs), "run" if len(removed.runs) == 1 else "runs"
    yield f"raw records of {number:,} {what}, {size}, {'would be removed' if dry_run else 'removed'}"
    others = ", ".join(f"{n:,} {why}" for why, n in sorted(kept.items()))
    yield from screen.folded([f"kept: {others}" if others else "no other run has raw records"])


store_app = typer.Typer(help="Manage the result store", no_args_is_help=True)
store_app.command("import")(import_runs)
for _command in (export, check, info, gc, upgrade):
    store_app.command()(_command)
