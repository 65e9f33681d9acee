"""`benchgate frontier`: quality against cost of several candidates, and the cheapest that passes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchgate.cli import options
from benchgate.cli.places import find_suite
from benchgate.cli.trend_output import TrendFormat, emit, require_place
from benchgate.cli.waiver_files import today
from benchgate.errors import UsageError

if TYPE_CHECKING:
    from benchgate.model.run import Run
    from benchgate.sizing.candidates import CandidateTable
    from benchgate.store.repository import Store
    from benchgate.suite.schema import Suite


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
    policy: Annotated[
        str | None, typer.Option("--policy", help="Judge all of them by this suite's gate section, each anew.")
    ] = None,
    store: options.StoreOption = options.STORE,
    output: Annotated[TrendFormat, typer.Option("--format", help="How to print the table.")] = TrendFormat.TEXT,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write it to this file instead.")] = None,
) -> None:
    """Compare candidates by quality and cost; name the cheapest that passes."""
    from benchgate.cli.suite_files import read_suite
    from benchgate.pipeline.compare_runs import chosen, read_stored
    from benchgate.sizing.candidates import compare_candidates
    from benchgate.store.repository import Store

    require_place(output, out)
    suite = read_suite(find_suite(policy)) if policy is not None else None
    with Store.open(store, create=False) as opened:
        picked = chosen(opened, names or [])
        anew = {run.id: None if suite is None else _judged(opened, run, suite) for run in picked.runs}
        stored = [
            replace(read_stored(opened, run, newer=picked.newer.get(run.id), verdict=anew[run.id]), policy=suite)
            for run in picked.runs
        ]
    found = compare_candidates(stored, in_use=in_use, as_of=today())
    by = () if policy is None else (f"judged anew by the policy of {policy}, without waivers; no run keeps that",)
    emit(_document(replace(found, notes=(*by, *picked.notes, *found.notes)), output), output, out)


def _judged(store: Store, run: Run, policy: Suite) -> Mapping[str, Any] | None:
    """Its verdict by another policy, which is not kept; None of one that is not whole, whose own may stand.

    UsageError for a policy with another SLO: the numbers that the store keeps count good tokens by the run's own.
    """
    from benchgate.model.run import RunStatus
    from benchgate.pipeline.judge import decide_stored
    from benchgate.suite.schema import Suite

    if policy.slo is not None and policy.slo != Suite.from_stored(run.suite).slo:
        raise UsageError(
            f"the policy's `slo` is not that of run {run.id}, by which its good tokens are counted; leave it out of"
            " the policy, or measure again"
        )
    if run.status is not RunStatus.COMPLETE:
        return None
    return decide_stored(store, run.id, policy=policy, keep=False).document


def _document(found: CandidateTable, output: TrendFormat) -> str | bytes:
    from benchgate.report.frontier import COLUMNS, frontier_document, frontier_rows, frontier_text

    if output is TrendFormat.TEXT:
        return frontier_text(found)
    if output is TrendFormat.JSON:
        return json.dumps(frontier_document(found), indent=2, sort_keys=True) + "\n"
    if output is TrendFormat.CSV:
        from benchgate.store.export import to_csv

        return to_csv(COLUMNS, frontier_rows(found))
    from benchgate.report.frontier import frontier_file, frontier_png

    return frontier_png(found) if output is TrendFormat.PNG else frontier_file(found)
