"""The history of a store: `benchgate trend`, `frontier` and `site`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchgate.cli import options
from benchgate.cli.inputs import today
from benchgate.cli.options import find_suite
from benchgate.cli.saying import log, say, say_json_text
from benchgate.errors import ExitCode, UsageError
from benchgate.escape import terminal_line

if TYPE_CHECKING:
    from benchgate.model.run import Run, TrendPoint
    from benchgate.report.trend import Place
    from benchgate.sizing.candidates import CandidateTable
    from benchgate.store.repository import Store
    from benchgate.suite.schema import Suite

_ANEW = "begins_anew"
"""The column that says why a point does not go on from the one before it."""


class TrendFormat(StrEnum):
    """How the points of a trend are printed."""

    TEXT = "text"
    JSON = "json"
    CSV = "csv"
    SVG = "svg"
    PNG = "png"


class TrendBy(StrEnum):
    """What tells the series of a trend apart: texts that every point has."""

    SUITE = "suite"
    MODEL = "model"
    HARDWARE = "hardware"
    ENGINE = "engine"
    DEPLOYMENT = "deployment"


def require_place(output: TrendFormat, out: Path | None) -> None:
    """Raises UsageError for pixels that no file was named for: a terminal shows none."""
    if output is TrendFormat.PNG and out is None:
        raise UsageError("--format png is written to a file: name it with -o FILE")


def trend_document(
    points: Sequence[TrendPoint],
    output: TrendFormat,
    metric: str,
    statistic: str | None,
    by: TrendBy | None = None,
    asked: Mapping[str, str] | None = None,
) -> str | bytes:
    """What is printed or written; points of one series stand together, which JSON and CSV name in a column.

    `asked` is what each run asked, by which points do not go on from those before them: every form says so. Raises
    UsageError for a picture of more lines than can be told apart.
    """
    from benchgate.report.trend import breaks_of, chart_of, place_of

    breaks = breaks_of(points, asked or {}, by)
    if by is not None and output in (TrendFormat.TEXT, TrendFormat.JSON, TrendFormat.CSV):
        points = [point for some in _series(points, by).values() for point in some]
    if output is TrendFormat.TEXT:
        return _text(points, metric, statistic, by, breaks)
    if output in (TrendFormat.JSON, TrendFormat.CSV):
        of_all = _of_all(metric, statistic)
        rows = [{**of_all, **point._asdict(), _ANEW: breaks.get(place_of(point))} for point in points]
        return _csv(rows, of_all) if output is TrendFormat.CSV else _json(rows)
    from benchgate.report.charts import png_file, svg_file
    from benchgate.report.trend import trend_spec

    chart = chart_of(points, metric, statistic, by, breaks)
    if output is TrendFormat.PNG:
        return png_file(trend_spec(chart))
    told_apart = "" if by is None else f" by {by}"
    candidates = list(dict.fromkeys(point.deployment for point in points))
    whose = f"candidate{'s' if len(candidates) > 1 else ''} {', '.join(candidates)}{told_apart}"
    return svg_file(trend_spec(chart), f"{chart.title} of the {whose}, oldest run first")


def emit(document: str | bytes, output: TrendFormat, out: Path | None) -> None:
    """Writes it to a file, whole or not at all, and says where; or prints it."""
    if out is None:
        text = document if isinstance(document, str) else document.decode()
        (say_json_text if output is TrendFormat.JSON else say)(text)
        return
    from benchgate.site.shelf import write_whole

    write_whole(out, document if isinstance(document, bytes) else document.encode("utf-8", "backslashreplace"))
    log(f"benchgate: {out}")


def _series(points: Sequence[TrendPoint], by: TrendBy) -> dict[str, list[TrendPoint]]:
    """By series, that of the oldest point first."""
    found: dict[str, list[TrendPoint]] = {}
    for point in points:
        found.setdefault(point.series(by), []).append(point)
    return found


def _text(
    points: Sequence[TrendPoint],
    metric: str,
    statistic: str | None,
    by: TrendBy | None,
    breaks: Mapping[Place, str],
) -> str:
    titles = f"{'started':24}  {'run':20} {'suite':18} {'candidate':14} {'verdict':12} {'stage or task':14}"
    lines = [f"{titles} {metric if statistic is None else f'{metric} {statistic}'}"]
    if by is None:
        with_limits = metric.startswith("usd_")  # a cost without them is taken for a price
        lines += [_line(point, metric, breaks, with_limits=with_limits) for point in points]
    else:
        for name, some in _series(points, by).items():
            runs = len({point.run_id for point in some})
            lines += ["", f"{by} {name}, {runs:,} {'run' if runs == 1 else 'runs'}:"]
            lines += [_line(point, metric, breaks, with_limits=True) for point in some]
    return "".join(f"{terminal_line(line)}\n" for line in lines)


def _line(point: TrendPoint, metric: str, breaks: Mapping[Place, str], *, with_limits: bool) -> str:
    from benchgate.report.display import in_its_unit, value_with_limits
    from benchgate.report.trend import place_of

    where, name = point.stage or point.task or "-", point.label or point.run_id[:13]
    value = in_its_unit(metric, point.value)
    if with_limits:
        value = value_with_limits(metric, point.value, point.lower, point.upper)
    told = [f"({word})" for word in (point.promoted, point.doubt) if word is not None]
    if (why := breaks.get(place_of(point))) is not None:
        told.append(f"({why} than before)")
    of = f"{point.suite:18} {point.deployment:14} {point.outcome or '-':12} {where:14}"
    return "  ".join((f"{point.started_at}  {name:20} {of} {value}", *told))


def _of_all(metric: str, statistic: str | None) -> dict[str, str | None]:
    """What is the same of every point, so that a table needs no command line beside it."""
    from benchgate.report.display import unit_of

    return {"metric": metric, "statistic": statistic, "unit": unit_of(metric)}


def _json(rows: Sequence[Mapping[str, object]]) -> str:
    return json.dumps(rows, indent=2, sort_keys=True) + "\n"


def _csv(rows: Sequence[Mapping[str, object]], of_all: Mapping[str, str | None]) -> str:
    from benchgate.model.run import TrendPoint
    from benchgate.store.export import to_csv

    columns = (*of_all, *TrendPoint._fields, _ANEW)
    return to_csv(columns, (tuple(row[column] for column in columns) for row in rows))


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


_ENDS_OF_WORDS = ("@", " ", ": ")


def narrowed(points: Sequence[TrendPoint], metric: str, asked: Mapping[str, str | None]) -> list[TrendPoint]:
    """The points of what is asked for by `model`, `engine` and `hardware`; None is any.

    A text is asked for whole or by its first words: `vllm` is every version of it, `org/name` every revision, `this
    machine` each that is one. Raises UsageError for one that no point is of, with those that there are.
    """
    kept = list(points)
    for what, name in asked.items():
        if name is None or not kept:
            continue
        there = dict.fromkeys(point.series(what) for point in kept)
        kept = [point for point in kept if _is(point.series(what), name)]
        if not kept:
            raise UsageError(f"no stored run has {metric} of {what} {name!r}; {nearest_of(name, list(there))}")
    return kept


def _is(told: str, name: str) -> bool:
    return told == name or (bool(name) and told.startswith(tuple(f"{name}{end}" for end in _ENDS_OF_WORDS)))


def nearest_of(name: str, there: Sequence[str]) -> str:
    """The one that is most like what was asked for, whole or by its first words, or all that there are."""
    import difflib

    beginnings = (one for whole in there for one in (whole, *(whole.rpartition(end)[0] for end in _ENDS_OF_WORDS)))
    words = {one.casefold(): one for one in beginnings if one}
    near = [words[one] for one in difflib.get_close_matches(name.casefold(), words, n=1)]
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(there)}"


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
    from benchgate.pipeline.compare_runs import chosen, read_stored
    from benchgate.pipeline.suite_file import read_suite
    from benchgate.sizing.candidates import compare_candidates
    from benchgate.store.repository import Store

    require_place(output, out)
    suite = read_suite(find_suite(policy)).suite if policy is not None else None
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
