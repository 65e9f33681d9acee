"""Commands over what is stored: gate, report, trend. No server is asked anything."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from benchgate.cli import options
from benchgate.cli.conclude import conclude
from benchgate.cli.options import Format
from benchgate.cli.places import find_suite
from benchgate.errors import ExitCode, PublishError, UsageError


class TrendFormat(StrEnum):
    """How the points of a trend are printed."""

    TEXT = "text"
    JSON = "json"


RunArgument = Annotated[str, typer.Argument(help="Stored run: id, unique prefix, label, @latest or @previous.")]


def gate(
    run: RunArgument = "@latest",
    policy: Annotated[
        str | None, typer.Option("--policy", help="Judge by this suite's gate section instead of the stored one.")
    ] = None,
    store: options.StoreOption = options.STORE,
    strict: options.StrictOption = False,
    report: options.ReportOption = None,
    output: options.FormatOption = Format.TEXT,
) -> None:
    """Judge a stored run again; exits with the verdict's code."""
    from benchgate import pipeline
    from benchgate.cli.measure_commands import load_suite
    from benchgate.store.repository import Store

    suite = load_suite(find_suite(policy)) if policy is not None else None
    with Store.open(store, create=False) as opened:
        decision = pipeline.decide_stored(opened, opened.resolve(run), policy=suite)
    conclude(decision, output, strict=strict, report=report)


def report(
    run: RunArgument = "@latest",
    against: Annotated[str | None, typer.Option("--against", help="Stored run to compare with.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write the HTML file.")] = Path("report.html"),
    store: options.StoreOption = options.STORE,
) -> None:
    """Write the HTML report of a stored run or comparison."""
    from benchgate import pipeline
    from benchgate.store.repository import Store

    with Store.open(store, create=False) as opened:
        reference = opened.resolve(against) if against is not None else None
        decision = pipeline.decide_stored(opened, opened.resolve(run), reference)
    try:
        pipeline.write_report(decision, out)
    except PublishError as error:
        sys.stderr.write(f"benchgate: {error}\n")
        raise typer.Exit(int(ExitCode.PUBLISH_FAILED)) from error
    typer.echo(str(out))


def trend(
    metric: Annotated[
        str, typer.Argument(help="What to follow over the stored runs.")
    ] = "usd_per_million_output_tokens",
    suite: Annotated[str | None, typer.Option("--suite", help="Only runs of the suite of this name.")] = None,
    stage: Annotated[str | None, typer.Option("--stage", help="Only this load stage.")] = None,
    task: Annotated[str | None, typer.Option("--task", help="Only this eval task.")] = None,
    statistic: Annotated[str | None, typer.Option("--statistic", help="p50, p90, p95 or p99 of a latency.")] = None,
    store: options.StoreOption = options.STORE,
    output: Annotated[TrendFormat, typer.Option("--format", help="How to print the points.")] = TrendFormat.TEXT,
) -> None:
    """Follow one metric of the candidates over the stored runs."""
    import difflib
    from dataclasses import asdict

    from benchgate.gate.metric_rows import TREND_METRICS
    from benchgate.model.deployment import Arm
    from benchgate.store.repository import Store

    if metric not in TREND_METRICS:
        near = difflib.get_close_matches(metric, TREND_METRICS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(TREND_METRICS)}"
        raise UsageError(f"no metric {metric!r} is kept for trends; {hint}")
    with Store.open(store, create=False) as opened:
        points = opened.trend(metric, suite=suite, statistic=statistic, stage=stage, task=task, arm=Arm.CANDIDATE)
    if output is TrendFormat.JSON:
        sys.stdout.write(json.dumps([asdict(point) for point in points], indent=2, sort_keys=True) + "\n")
        return
    if not points:
        sys.stderr.write(f"no stored run has {metric}; a price in the suite's deployments gives the cost metrics\n")
    for point in points:
        where = point.stage or point.task or "-"
        name = point.label or point.run_id[:13]
        sys.stdout.write(f"{point.started_at}  {name:20} {point.outcome or '-':12} {where:14} {point.value:.6g}\n")
