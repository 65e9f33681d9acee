"""`benchgate store recover`: what a run measured while its store was away, brought into the store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchgate.cli import options

if TYPE_CHECKING:
    from benchgate.store.recovering import Recovered


def recover(
    spool: Annotated[Path, typer.Argument(help="The spool of a run: spool.jsonl in its folder of the work directory.")],
    store: options.StoreOption = options.STORE,
) -> None:
    """Bring into the store what of a run is only in its spool; a run that was killed can go on or be judged then."""
    from benchgate.store.engine import Address
    from benchgate.store.repository import Store

    with Store.open(store) as opened:
        found = opened.recover(spool)
    typer.echo(_told(found, Address.parse(store).shown))
    if found.torn_bytes:
        typer.echo(f"the last line of {spool} was cut short ({found.torn_bytes} bytes) and is left out")


def _told(found: Recovered, where: str) -> str:
    brought = f"run {found.run_id}: {found.added} records brought into {where}, which had {found.present}"
    judged = f"`benchgate gate {found.run_id}` judges it"
    if found.is_over:
        return f"{brought}; it is {found.status}: {judged}"
    then = f"`benchgate run SUITE --resume --run {found.run_id}` goes on with it"
    return f"{brought}; it was cut short: {judged}, and {then}"
