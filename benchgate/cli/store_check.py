"""`benchgate store check` and `benchgate store info`: is a store what it should be, and how large is it?"""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from benchgate.cli import options
from benchgate.cli.options import CareFormat
from benchgate.cli.saying import say, say_json
from benchgate.errors import ExitCode, UsageError
from benchgate.escape import terminal_line
from benchgate.units import show_size

if TYPE_CHECKING:
    from benchgate.store.integrity import CheckReport
    from benchgate.store.repository import Store
    from benchgate.store.retention import Sizes

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
