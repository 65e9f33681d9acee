"""`benchgate store recover`: what a run measured while its store was away, brought into the store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchgate.cli import options
from benchgate.cli.commands import gate_command, run_command
from benchgate.cli.places import suites_called
from benchgate.cli.saying import say

if TYPE_CHECKING:
    from benchgate.model.run import Run
    from benchgate.store.spool import Recovered


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
