"""`benchgate site`: the store's history as static pages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchgate.cli import options
from benchgate.cli.saying import log, say
from benchgate.errors import ExitCode

_TOLD_EVERY = 50  # reports


def site(
    out: Annotated[Path, typer.Argument(help="Folder for the pages: empty, or one that this command made.")],
    store: options.StoreOption = options.STORE,
) -> None:
    """Build, or bring up to date, a static site of all runs, promotions and trends in the store."""
    from benchgate.site.build import build

    built = build(store, out, _tell)
    of = built.changes
    say(f"{out / 'index.html'}: {of.written:,} files written, {of.kept:,} as they were, {of.removed:,} removed\n")
    for run_id, why in built.faults.items():
        log(f"benchgate: no report can be made of run {run_id}: {why}")
    if built.faults:
        raise typer.Exit(int(ExitCode.PUBLISH_FAILED))


def _tell(done: int, of: int) -> None:
    if done % _TOLD_EVERY == 0 or done == of:
        log(f"benchgate: {done:,} of {of:,} reports")
