"""The `benchgate store` commands: upgrade, export, import, copy, recover, check, info and gc."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from enum import StrEnum
from functools import cache
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from benchgate.cli import options
from benchgate.cli.commands import gate_command, run_command
from benchgate.cli.options import CareFormat, suites_called
from benchgate.cli.saying import log, log_text, say, say_json
from benchgate.errors import ExitCode, StoreError, SuiteError, UsageError
from benchgate.escape import terminal_line
from benchgate.units import parse_duration_s, show_size

if TYPE_CHECKING:
    from benchgate.model.run import Run
    from benchgate.pipeline.import_load import Adopted, Told
    from benchgate.store.database import Database
    from benchgate.store.integrity import CheckReport
    from benchgate.store.merge import ImportResult
    from benchgate.store.repository import Store
    from benchgate.store.retention import Policy, Removed, Sizes
    from benchgate.store.spool import Recovered


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


_MOST_NAMED = 3  # of the fields that were left out for one reason


def import_files(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE|FOLDER...", help="Bundles, files of other tools, folders of them.")
    ],
    tool: Annotated[str | None, typer.Option("--from", help="Whose files they are, where they do not tell.")] = None,
    suite: Annotated[str | None, typer.Option("--suite", help="Suite to keep a tool's numbers under.")] = None,
    deployment: Annotated[str | None, typer.Option("--deployment", help="What a tool measured, by name.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Its model, where the file does not tell.")] = None,
    label: options.LabelOption = None,
    price: Annotated[float | None, typer.Option("--price", help="Dollars per hour of one accelerator.")] = None,
    accelerators: Annotated[
        int | None, typer.Option("--accelerators", min=1, help="How many it is served by; 1 unless said.")
    ] = None,
    measured_at: Annotated[
        str | None, typer.Option("--measured-at", help="When a tool measured, where its file does not tell.")
    ] = None,
    store: options.StoreOption = options.STORE,
) -> None:
    """Take in runs that `store export` wrote, or numbers from files of other tools; what is known stays."""
    from benchgate.importers.formats import require_known
    from benchgate.pipeline.import_load import Told, require_sane
    from benchgate.store.bundle import bundle_files, looks_like_bundle

    told = Told(suite, deployment, model, label, price, accelerators, measured_at)
    require_sane(told)
    if tool is not None:
        require_known(tool)
    refused: Counter[ExitCode] = Counter()
    found: list[Path] = []
    for path in files:
        with _tried(refused):
            found += bundle_files(path)
    bundles = [file for file in found if tool is None and looks_like_bundle(file)]
    foreign = [file for file in found if file not in bundles]
    if bundles and not foreign and told != Told():
        raise UsageError(f"{_given(told)} is of files of other tools, and these are bundles, which say it themselves")
    asked = len(found) + refused.total()
    for file in foreign:
        with _tried(refused):
            _import_of_tool(store, file, told, tool)
    if bundles:
        refused[ExitCode.PUBLISH_FAILED] += _import_bundles(bundles, store)
    _end(asked, refused)


def _given(told: Told) -> str:
    """The first option that says something of a tool's file."""
    named = {"--suite": told.suite, "--deployment": told.deployment, "--model": told.model, "--label": told.label}
    others = {
        "--price": told.price_usd_per_hour,
        "--accelerators": told.accelerators,
        "--measured-at": told.measured_at,
    }
    return next(option for option, said in {**named, **others}.items() if said is not None)


@contextmanager
def _tried(refused: Counter[ExitCode]) -> Iterator[None]:
    """What a file is refused for is told, and keeps no other from being tried."""
    try:
        yield
    except (UsageError, SuiteError) as error:
        log_text(f"benchgate: {error}")
        refused[error.exit_code] += 1


def _import_of_tool(store: str, file: Path, told: Told, tool: str | None) -> None:
    """Takes a file in and prints its run and what was taken; what was not, and why, on stderr."""
    from benchgate.pipeline.import_load import adopt

    adopted = adopt(store, file, told, tool)
    say(terminal_line(_became(adopted)) + "\n")
    if not adopted.known:
        log(*(f"  {line}" for line in _left_out(adopted)))


def _became(adopted: Adopted) -> str:
    if adopted.known:
        return f"{adopted.run_id} known"
    reading, measured = adopted.reading, adopted.measured
    when = "it does not say when it was measured" if measured is None else f"measured {measured.at} by {measured.by}"
    taken = f"{len(reading.rows)} numbers of {reading.tool}, {len(reading.unmapped)} fields not taken"
    return f"{adopted.run_id} new: {taken}; {when}"


def _left_out(adopted: Adopted) -> Iterator[str]:
    """A line a reason, with the first fields that it is of; the store keeps them all."""
    reasons: dict[str, list[str]] = {}
    for field, why in adopted.reading.unmapped.items():
        reasons.setdefault(why, []).append(field)
    for why, fields in reasons.items():
        more = f" and {len(fields) - _MOST_NAMED} more" if len(fields) > _MOST_NAMED else ""
        yield f"not taken: {', '.join(fields[:_MOST_NAMED])}{more}: {why}"
    if adopted.measured is None:
        yield "in `benchgate trend` it stands where it was imported; --measured-at says when it was measured"


def _import_bundles(bundles: Sequence[Path], store: str) -> int:
    """How many were refused. A store is made only once there is something to take in."""
    from benchgate.store.bundle import bundle_sources
    from benchgate.store.merge import import_runs
    from benchgate.store.migrate import opened

    with ExitStack() as stack:
        database = cache(lambda: stack.enter_context(opened(store, create=True)))
        return tell(import_runs(database, bundle_sources(bundles)))["refused"]


def _end(asked: int, refused: Counter[ExitCode]) -> None:
    """Ends with 13 where a bundle was refused, with 2 where only files of other tools were."""
    number = refused.total()
    if not number:
        return
    if asked > 1:
        log(f"benchgate: {number} of {asked} were refused, with nothing of them taken in")
    raise typer.Exit(int(ExitCode.PUBLISH_FAILED if refused[ExitCode.PUBLISH_FAILED] else ExitCode.USAGE))


def recover(
    spool: Annotated[Path, typer.Argument(help="The spool of a run: spool.jsonl in its folder of the work directory.")],
    store: options.StoreOption = options.STORE,
) -> None:
    """Bring into the store what of a run is only in its spool; a run that was killed can go on or be judged then."""
    from benchgate.store.database import Address
    from benchgate.store.repository import Store
    from benchgate.store.spool import read_spool

    if not _is_there(store):
        read_spool(spool)  # no store is made for one that cannot be read
    with Store.open(store) as opened:
        found = opened.recover(spool)
        run = opened.run(found.run_id)
    say(_told(found, Address.parse(store).shown, store, _going_on(run, store)) + "\n")
    if found.torn_bytes:
        say(f"the last line of {spool} was cut short ({found.torn_bytes} bytes) and is left out\n")
    say(f"the store has all of {spool} now: it stays where it is, and may be removed\n")


def _is_there(store: str) -> bool:
    from benchgate.store.repository import Store

    found = Store.open_as_is(store)
    if found is not None:
        found.close()
    return found is not None


def _going_on(run: Run, store: str) -> str:
    """The command that goes on with a run, as it was begun. Which file its suite stood in no store knows."""
    files = suites_called(run.suite_name)
    suite = files[0] if len(files) == 1 else Path("SUITE")
    said = [
        ("--baseline", str(run.suite["baseline"])),
        ("--candidate", str(run.suite["candidate"])),
        ("--run", run.id),
    ]
    command = run_command(suite, store=store, said=said, flags=[("--resume", True)])
    return f"`{command}`" + ("" if len(files) == 1 else f", with the file of the suite {run.suite_name} as SUITE,")


def _told(found: Recovered, where: str, store: str, going_on: str) -> str:
    brought = f"run {found.run_id}: {found.added} records brought into {where}, which had {found.present}"
    judged = f"`{gate_command(found.run_id, store=store)}` judges it"
    if found.is_over:
        return f"{brought}; it is {found.status}: {judged}"
    return f"{brought}; it was cut short: {judged}, and {going_on} goes on with it"


_AGES_DAYS = (0, 30, 90, 365)
CareFormatOption = Annotated[CareFormat, typer.Option("--format", help="How to print what was found.")]


FiguresOption = Annotated[
    bool, typer.Option("--figures", help="Also make every number kept of a run of its records again; takes longer.")
]


def check(
    store: options.StoreOption = options.STORE,
    figures: FiguresOption = False,
    output: CareFormatOption = CareFormat.TEXT,
) -> None:
    """Hold everything in a store against its hashes and links; changes nothing, exits with 13 for a finding."""
    with _opened(store) as opened:
        checked = opened.check(figures=figures)
    if output is CareFormat.JSON:
        document = {**_checked_document(checked), "figures": "held" if figures else "not held"}
        say_json(document, sort_keys=True)
    else:
        say("".join(f"{line}\n" for line in _checked_lines(checked, _shown(store), figures=figures)))
    if checked.findings:
        raise typer.Exit(int(ExitCode.PUBLISH_FAILED))


def info(store: options.StoreOption = options.STORE, output: CareFormatOption = CareFormat.TEXT) -> None:
    """Tell a store's schema, its sizes by table, its runs, and how much `gc` could free."""
    from dataclasses import asdict

    from benchgate.pipeline.environment import utc_now

    now = utc_now()
    with _opened(store) as opened:
        sizes = opened.sizes(now)
    if output is CareFormat.JSON:
        runs = [{"suite": suite, "status": status, "n": n} for (suite, status), n in sizes.runs.items()]
        say_json({**asdict(sizes), "runs": runs}, sort_keys=True)
    else:
        say("".join(f"{line}\n" for line in _info_lines(sizes, now)))


def _opened(address: str) -> Store:
    """The store as it is: looking at one upgrades nothing."""
    from benchgate.store.database import Address
    from benchgate.store.repository import Store

    found = Store.open_as_is(address)
    if found is not None:
        return found
    where = Address.parse(address)
    if where.path is not None and not where.path.exists():
        raise UsageError(f"there is no file {where.shown}; check the address (--store, BENCHGATE_STORE)")
    raise UsageError(
        f"there is no store of this benchgate's schema at {where.shown}; check the address, or bring an older one to "
        f"it with `benchgate store upgrade --store {quote(where.shown)}`"
    )


def _shown(address: str) -> str:
    from benchgate.store.database import Address

    return Address.parse(address).shown


def _checked_document(checked: CheckReport) -> dict[str, object]:
    from dataclasses import asdict

    return {
        "looked_at": dict(checked.looked_at),
        "findings": [asdict(finding) for finding in checked.findings],
        "sound": not checked.findings,
    }


def _checked_lines(checked: CheckReport, store: str, *, figures: bool) -> Iterator[str]:
    for finding in checked.findings:
        run = f"run {finding.run_id}, " if finding.run_id is not None else ""
        yield terminal_line(f"{run}{finding.place}: {finding.problem}")
    yield "looked at " + (", ".join(f"{n:,} {what}" for what, n in checked.looked_at.items()) or "the file alone")
    if not figures:
        yield "metrics were held against what they can be, not against the records: `--figures` does that"
    number = len(checked.findings)
    yield f"{number:,} {'finding' if number == 1 else 'findings'}" if number else "everything is as it was written"
    if not number:
        return
    yield "what to do: keep the store as it is, and judge nothing by the runs that are named;"
    if checked.looked_at:
        copied = f"`benchgate store copy {quote(store)} NEW.db`"
        yield f"  {copied} takes the sound runs into a new store and names the others;"
        yield "  bring those in from a bundle (`benchgate store import`) or from a copy of the store, if there is one"
    else:
        yield "  go back to a copy of it; nothing more can be said of a damaged file"


def _info_lines(sizes: Sizes, now: str) -> Iterator[str]:
    from benchgate.escape import one_line
    from benchgate.store.retention import older_than

    yield f"store    {sizes.address}"
    yield f"schema   {sizes.schema}, last upgraded by benchgate {sizes.tool_version or '?'}; {sizes.server}"
    yield f"size     {show_size(sizes.n_bytes)}"
    yield ""
    yield f"{'table':16} {'rows':>12} {'size':>12}"
    for table in sizes.tables:
        yield f"{table.name:16} {table.n_rows:12,} {show_size(table.n_bytes):>12}"
    yield ""
    yield f"{'suite':24} {'status':10} {'runs':>8}"
    for (suite, status), n in sizes.runs.items():
        yield f"{one_line(suite, 24):24} {status:10} {n:8,}"
    yield ""
    yield f"raw records were removed from {sizes.removed:,} runs; {sizes.unused_plans:,} plans are of no run"
    yield "raw records that `benchgate store gc` may remove, by when their run ended:"
    for days in _AGES_DAYS:
        runs = older_than(sizes.expendable, days * 86_400.0, now)
        told = f"more than {days} days ago" if days else "at any time"
        yield f"  {told:24} {len(runs):6,} runs {show_size(sum(run.n_bytes for run in runs)):>12}"


def gc(
    raw_older_than: Annotated[
        str | None, typer.Option("--raw-older-than", help="Only of runs that ended longer ago than this, like 90d.")
    ] = None,
    keep_last: Annotated[
        int | None, typer.Option("--keep-last", min=1, help="Keep those of the newest so many runs of each suite.")
    ] = None,
    suite: Annotated[str | None, typer.Option("--suite", help="Only of runs of the suite of this name.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Tell what would go, and remove nothing.")] = False,
    vacuum: Annotated[bool, typer.Option("--vacuum", help="Give the room back to the system afterwards.")] = False,
    store: options.StoreOption = options.STORE,
    output: CareFormatOption = CareFormat.TEXT,
) -> None:
    """Remove raw records of old runs; what was concluded stays, and promoted runs and the newest keep theirs."""
    from benchgate.pipeline.environment import utc_now
    from benchgate.store.repository import Store
    from benchgate.store.retention import Removed

    policy = _policy(raw_older_than, keep_last, suite)
    now = utc_now()
    with Store.open(store, create=False) as opened:
        if suite is not None:
            _require_suite(opened, suite)
        runs, kept = opened.expendable(policy, now), opened.kept_raw(policy, now)
        removed = Removed(tuple(runs), ())
        if not dry_run:
            removed = opened.remove_raw(runs, now=now, reason=_reason(raw_older_than, keep_last, suite))
            if vacuum:
                opened.vacuum()
    if output is CareFormat.JSON:
        runs_told = [asdict(run) for run in removed.runs]
        document = {"dry_run": dry_run, "removed": runs_told, "stayed": dict(removed.stayed), "kept": dict(kept)}
        say_json(document, sort_keys=True)
    else:
        say("".join(f"{line}\n" for line in _lines(removed, kept, dry_run=dry_run)))
    if removed.stayed:
        raise typer.Exit(int(ExitCode.PUBLISH_FAILED))


def _policy(raw_older_than: str | None, keep_last: int | None, suite: str | None) -> Policy:
    """What was asked for; nothing is removed that nobody named."""
    from benchgate.store.retention import Policy

    if raw_older_than is None and keep_last is None:
        raise UsageError("say what may go: --raw-older-than 90d, --keep-last 20, or both; --dry-run shows it first")
    try:
        older_than_s = parse_duration_s(raw_older_than) if raw_older_than is not None else 0.0
    except ValueError as error:
        raise UsageError(f"--raw-older-than: {error}; 90d is 90 days") from error
    return Policy(older_than_s, keep_last or 1, suite)


def _require_suite(store: Store, suite: str) -> None:
    """A suite that no run is of is a slip, and would look as if nothing were old enough."""
    if not store.runs(suite, limit=1):
        raise UsageError(f"the store has no run of a suite {suite!r}; `benchgate store info` lists those it has")


def _reason(raw_older_than: str | None, keep_last: int | None, suite: str | None) -> str:
    """The command, as it stands with what it removed."""
    asked = {"--raw-older-than": raw_older_than, "--keep-last": keep_last, "--suite": suite}
    return " ".join(["benchgate store gc", *(f"{name} {value}" for name, value in asked.items() if value is not None)])


def _lines(removed: Removed, kept: Mapping[str, int], *, dry_run: bool) -> Iterator[str]:
    from benchgate.escape import one_line

    for run in removed.runs:
        name = one_line(run.label or "", 24)
        told = f"{run.n_rows:5,} rows {run.n_records:11,} records {show_size(run.n_bytes):>11}"
        yield terminal_line(f"{run.run_id}  ended {run.finished_at[:10]}  {told}  {one_line(run.suite, 24)} {name}")
    for run_id, why in removed.stayed:
        yield terminal_line(f"{run_id}  stays: {why}")
    size = show_size(sum(run.n_bytes for run in removed.runs))
    number, what = len(removed.runs), "run" if len(removed.runs) == 1 else "runs"
    yield f"raw records of {number:,} {what}, {size}, {'would go' if dry_run else 'are gone'}"
    others = ", ".join(f"{n:,} {why}" for why, n in sorted(kept.items()))
    yield f"kept: {others}" if others else "no other run has raw records"


store_app = typer.Typer(help="Manage the result store.", no_args_is_help=True)
for _command in (upgrade, export, copy, recover, check, info, gc):
    store_app.command()(_command)
store_app.command("import")(import_files)
