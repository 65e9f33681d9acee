"""`benchgate frontier`: quality against cost of several candidates, and the cheapest that passes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchgate.cli import options
from benchgate.cli.trend_output import TrendFormat, emit, require_place

if TYPE_CHECKING:
    from benchgate.gate.right_sizing import RightSizing


def frontier(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SUITE or RUN...]",
            help="The suite whose candidates to compare, or stored runs; the suite of @latest unless said.",
            show_default=False,
        ),
    ] = None,
    in_use: Annotated[
        bool, typer.Option("--in-use", help="Count dollars as each deployment is used, by its `price_terms`.")
    ] = False,
    store: options.StoreOption = options.STORE,
    output: Annotated[TrendFormat, typer.Option("--format", help="How to print the table.")] = TrendFormat.TEXT,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write it to this file instead.")] = None,
) -> None:
    """Compare candidates by quality and cost; name the cheapest that passes."""
    from benchgate.gate.right_sizing import right_sizing
    from benchgate.lining_up import chosen, read_stored
    from benchgate.store.repository import Store

    require_place(output, out)
    with Store.open(store, create=False) as opened:
        picked = chosen(opened, names or [])
        stored = [read_stored(opened, run) for run in picked.runs]
    found = right_sizing(stored, in_use=in_use)
    emit(_document(replace(found, notes=(*picked.notes, *found.notes)), output), out)


def _document(found: RightSizing, output: TrendFormat) -> str | bytes:
    from benchgate.report.frontier import COLUMNS, frontier_document, frontier_rows, frontier_text

    if output is TrendFormat.TEXT:
        return frontier_text(found)
    if output is TrendFormat.JSON:
        return json.dumps(frontier_document(found), indent=2, sort_keys=True) + "\n"
    if output is TrendFormat.CSV:
        from benchgate.exchange.export_tables import to_csv

        return to_csv(COLUMNS, frontier_rows(found))
    from benchgate.report.frontier_chart import frontier_file, frontier_png

    return frontier_png(found) if output is TrendFormat.PNG else frontier_file(found)
