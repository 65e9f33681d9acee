"""Commands over what is stored: gate, report, trend. No server is asked anything."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from benchgate.cli import options
from benchgate.cli.conclude import conclude
from benchgate.cli.options import Format
from benchgate.cli.outputs import asked_outputs, clear_old_results, require_link, suite_of, told_of
from benchgate.cli.places import find_suite
from benchgate.cli.saying import log, say
from benchgate.cli.statements import statement_place
from benchgate.cli.stored_numbers import end_with_numbers
from benchgate.cli.trend_narrowing import narrowed, nearest_of
from benchgate.cli.trend_output import TrendBy, TrendFormat, emit, require_place, trend_document
from benchgate.cli.waiver_files import waivers_for_stored
from benchgate.errors import ExitCode, PublishError, UsageError
from benchgate.report.formats import Output, rendered

RunArgument = Annotated[
    str, typer.Argument(help="Stored run: id, unique prefix, label, @latest, @previous or @promoted.")
]


def gate(
    run: RunArgument = "@latest",
    policy: Annotated[
        str | None, typer.Option("--policy", help="Judge by this suite's gate section instead of the stored one.")
    ] = None,
    against: Annotated[
        str | None, typer.Option("--against", help="Stored run whose candidate it is held against, as in `compare`.")
    ] = None,
    waivers: options.WaiversOption = None,
    as_of: options.AsOfOption = None,
    explain: options.ExplainOption = None,
    store: options.StoreOption = options.STORE,
    strict: options.StrictOption = False,
    report: options.ReportOption = None,
    statement: options.StatementOption = None,
    write: options.WriteOption = None,
    report_url: options.ReportUrlOption = None,
    output: options.FormatOption = Format.TEXT,
) -> None:
    """Judge a stored run again; exits with the verdict's code."""
    from benchgate.cli.suite_files import read_suite
    from benchgate.pipeline.judge import decide_stored
    from benchgate.store.repository import Store

    policy_file = find_suite(policy) if policy is not None else None
    suite = read_suite(policy_file) if policy_file is not None else None
    place = statement_place(statement, report)
    outputs = asked_outputs(write, report_url, report, policy_file)
    with clear_old_results(report, place, outputs), Store.open(store, create=False) as opened:
        run_id = opened.resolve(run)
        reference = opened.resolve_beside(against, run_id) if against is not None else None
        if reference is not None:
            of_decisions: dict[str, object] = {"--report": report, "--statement": statement, "--write": write}
            of_decisions |= {"--policy": policy, "--explain": explain, "--waivers": waivers, "--as-of": as_of}
            end_with_numbers(opened, run_id, reference, output, of_decisions)
        tolerated = waivers_for_stored(waivers, as_of, opened.run(run_id))
        decision = decide_stored(opened, run_id, reference, policy=suite, waivers=tolerated)
    conclude(decision, output, strict=strict, report=report, explain=explain, statement=place, outputs=outputs)


def report(
    run: RunArgument = "@latest",
    against: Annotated[str | None, typer.Option("--against", help="Stored run to compare with.")] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Where to write it; report.html unless said.", show_default=False),
    ] = None,
    form: Annotated[Output, typer.Option("--format", help="In which form (docs/outputs.md).")] = Output.HTML,
    report_url: options.ReportUrlOption = None,
    suite: Annotated[
        Path | None, typer.Option("--suite", help="The suite's file, for forms that point at its lines.")
    ] = None,
    waivers: options.WaiversOption = None,
    as_of: options.AsOfOption = None,
    strict: options.StrictOption = False,
    store: options.StoreOption = options.STORE,
) -> None:
    """Write the HTML report of a stored run or comparison, or its verdict in another form."""
    from benchgate.pipeline.judge import decide_stored, write_report, write_whole
    from benchgate.store.repository import Store

    require_link([form], report_url, None)
    path = out or Path(form.file_name)
    with Store.open(store, create=False) as opened:
        run_id = opened.resolve(run)
        reference = opened.resolve_beside(against, run_id) if against is not None else None
        tolerated = waivers_for_stored(waivers, as_of, opened.run(run_id))
        decision = decide_stored(opened, run_id, reference, waivers=tolerated, keep=False)
    decision = decision.asked(strict=strict)
    pointed_at = None if suite is None else suite_of(suite, decision)
    try:
        if form is Output.HTML:
            write_report(decision, path)
        else:
            told = told_of(decision, decision.exit_code, report_url=report_url, report=None, suite=pointed_at)
            write_whole(path, rendered(form, told, decision.report).encode(), f"the verdict as {form}")
    except PublishError as error:
        log(f"benchgate: {error}")
        raise typer.Exit(int(ExitCode.PUBLISH_FAILED)) from error
    say(f"{path}\n")


def trend(
    metric: Annotated[
        str, typer.Argument(help="What to follow over the stored runs.")
    ] = "usd_per_million_output_tokens",
    suite: Annotated[str | None, typer.Option("--suite", help="Only runs of the suite of this name.")] = None,
    stage: Annotated[str | None, typer.Option("--stage", help="Only this load stage.")] = None,
    task: Annotated[str | None, typer.Option("--task", help="Only this eval task.")] = None,
    statistic: Annotated[
        str | None, typer.Option("--statistic", help="Of a latency: p50 (unless said), p90, p95, p99 or mean.")
    ] = None,
    by: Annotated[TrendBy | None, typer.Option("--by", help="What tells the series apart.")] = None,
    deployment: Annotated[str | None, typer.Option("--deployment", help="Only candidates of this name.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Only this model, or revision of it.")] = None,
    engine: Annotated[str | None, typer.Option("--engine", help="Only this engine, or version of it.")] = None,
    hardware: Annotated[str | None, typer.Option("--hardware", help="Only on this hardware.")] = None,
    store: options.StoreOption = options.STORE,
    output: Annotated[TrendFormat, typer.Option("--format", help="How to print the points.")] = TrendFormat.TEXT,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write it to this file instead.")] = None,
) -> None:
    """Follow one metric of the candidates over the stored runs."""
    from benchgate.gate.summary.metric_rows import IMPORTED_METRICS, TREND_METRICS
    from benchgate.model.deployment import Arm
    from benchgate.store.repository import Store

    require_place(output, out)
    served = {"deployment": deployment, "model": model, "engine": engine, "hardware": hardware}
    _require_known("metric", metric, (*TREND_METRICS, *IMPORTED_METRICS))
    statistic = _statistic(metric, statistic)
    with Store.open(store, create=False) as opened:
        points = opened.trend(metric, suite=suite, statistic=statistic, stage=stage, task=task, arm=Arm.CANDIDATE)
        kept = points or opened.trend(metric, suite=suite, statistic=statistic, arm=Arm.CANDIDATE)
        everywhere = kept or opened.trend(metric, statistic=statistic, arm=Arm.CANDIDATE)
        _require_kept("suite", suite, metric, [point.suite for point in everywhere])
        _require_kept("stage", stage, metric, [point.stage for point in kept])
        _require_kept("task", task, metric, [point.task for point in kept])
        points = narrowed(points, metric, served)
        measured = opened.measurements({point.run_id for point in points})
    if points or output in (TrendFormat.JSON, TrendFormat.CSV):
        emit(trend_document(points, output, metric, statistic, by, measured), output, out)
        return
    nothing = _none_has(metric, suite, stage if kept else None, task if kept else None)
    if out is not None or output is not TrendFormat.TEXT:
        raise UsageError(nothing)
    log(nothing)


def _statistic(metric: str, asked: str | None) -> str | None:
    """Which statistic of a metric to follow: of a latency the median, unless another is asked for."""
    from benchgate.gate.summary.metric_rows import LATENCY_TRENDS, MEAN_METRICS
    from benchgate.model.metric import MEAN, QUANTILES

    if metric not in LATENCY_TRENDS:
        if asked is not None:
            raise UsageError(f"--statistic is of a latency, and {metric} is none; leave it out")
        return None
    if asked is not None:
        paired = metric.removesuffix("_s") in MEAN_METRICS
        _require_known("statistic", asked, (*QUANTILES, MEAN) if paired else tuple(QUANTILES))
    return asked or "p50"


def _require_kept(what: str, name: str | None, metric: str, known: Sequence[str | None]) -> None:
    """A suite, stage or task that no stored run has this metric of is a slip, where others have it."""
    names = list(dict.fromkeys(one for one in known if one is not None))
    if name is None or name in names or not known:
        return
    if not names:
        raise UsageError(f"{metric} is of no {what}; leave --{what} out")
    raise UsageError(f"no stored run has {metric} of a {what} {name!r}; {nearest_of(name, names)}")


def _none_has(metric: str, suite: str | None, stage: str | None, task: str | None) -> str:
    """Why there is nothing to show, and what would give it."""
    runs = "no stored run" + (f" of the suite {suite!r}" if suite is not None else "")
    place = " ".join(f"of {what} {name}" for what, name in (("stage", stage), ("task", task)) if name is not None)
    remedy = ""
    if metric.startswith("usd_"):
        with_terms = " with `price_terms`, which say how it is used," if metric.endswith("_in_use") else ""
        remedy = f"; a `price`{with_terms} in the suite's deployments gives it, and others need none: "
        remedy += "benchgate trend requests_per_s"
    return f"{runs} has {' '.join(filter(None, (metric, place)))}{remedy}"


def _require_known(what: str, name: str, known: Sequence[str]) -> None:
    import difflib

    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
        raise UsageError(f"no {what} {name!r} is kept for trends; {hint}")
