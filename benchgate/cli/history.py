"""The history of a store: `benchgate trend`, `frontier` and `site`."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchgate.cli import options
from benchgate.cli.completion import complete_stages, complete_suites
from benchgate.cli.options import find_suite, today
from benchgate.cli.runs import short_time
from benchgate.cli.saying import inform, log, say, say_escaped, say_json_text, stdout_screen
from benchgate.errors import ExitCode, UsageError
from benchgate.report.screen import PLAIN, Screen, fitting_table

if TYPE_CHECKING:
    from benchgate.model.run import Run, TrendPoint
    from benchgate.report.trend import Place
    from benchgate.sizing.candidates import CandidateTable
    from benchgate.store.repository import Store
    from benchgate.suite.schema import Suite

_BREAK = "begins_anew"  # column with the reason why a point is not comparable with the one before it
_ENDS_OF_WORDS = ("@", " ", ": ")
_SITE_PROGRESS = 50  # reports between two lines of progress


class TrendFormat(StrEnum):
    """Output format of a trend or a frontier."""

    TEXT = "text"
    JSON = "json"
    CSV = "csv"
    SVG = "svg"
    PNG = "png"


class TrendBy(StrEnum):
    """Property that separates the series of a trend."""

    SUITE = "suite"
    MODEL = "model"
    HARDWARE = "hardware"
    ENGINE = "engine"
    DEPLOYMENT = "deployment"


def require_place(output: TrendFormat, out: Path | None, **inputs: str | Path | None) -> None:
    """Raise UsageError for a PNG without a file, and for a file that cannot be written or is one of the `inputs`."""
    if output is TrendFormat.PNG and out is None:
        raise UsageError("--format png is written to a file: name it with -o FILE")
    options.refuse_unwritable(out, **inputs)


def trend_document(
    points: Sequence[TrendPoint],
    output: TrendFormat,
    metric: str,
    statistic: str | None,
    by: TrendBy | None = None,
    measurements: Mapping[str, str] | None = None,
    screen: Screen = PLAIN,
    slos: Mapping[str, object] | None = None,
) -> str | bytes:
    """Return the output; points of one series stand together.

    `measurements` identifies what each run measured, and `slos` which requests were good: points after a change are not
    comparable with those before, and every format says so. Raises UsageError for a chart with too many lines.
    """
    from benchgate.report.trend import breaks_of, chart_of, place_of

    breaks = breaks_of(points, measurements or {}, by, slos or {})
    if by is not None and output in (TrendFormat.TEXT, TrendFormat.JSON, TrendFormat.CSV):
        series: dict[str, list[TrendPoint]] = {}  # that of the oldest point first
        for point in points:
            series.setdefault(point.series(by), []).append(point)
        points = [point for some in series.values() for point in some]
    if output is TrendFormat.TEXT:
        return _text(points, metric, statistic, by, breaks, screen)
    if output in (TrendFormat.JSON, TrendFormat.CSV):
        from benchgate.model.metric import TREND_UNITS
        from benchgate.model.run import TrendPoint
        from benchgate.store.export import to_csv

        common = {"metric": metric, "statistic": statistic, "unit": TREND_UNITS.get(metric)}
        rows = [{**common, **point._asdict(), _BREAK: breaks.get(place_of(point))} for point in points]
        if output is TrendFormat.JSON:
            return json.dumps(rows, indent=2, sort_keys=True) + "\n"
        columns = (*common, *TrendPoint._fields, _BREAK)
        return to_csv(columns, (tuple(row[column] for column in columns) for row in rows))
    from benchgate.report.charts import png_file, svg_file
    from benchgate.report.trend import trend_spec

    chart = chart_of(points, metric, statistic, by, breaks)
    if output is TrendFormat.PNG:
        return png_file(trend_spec(chart))
    candidates = list(dict.fromkeys(point.deployment for point in points))
    whose = f"candidate{'s' if len(candidates) > 1 else ''} {', '.join(candidates)}"
    if by is not None:
        whose += f" by {by}"
    return svg_file(trend_spec(chart), f"{chart.title} of the {whose}, oldest run first")


def emit(document: str | bytes, output: TrendFormat, out: Path | None) -> None:
    """Write the output to a file atomically and log its name, or print it."""
    if out is None:
        text = document if isinstance(document, str) else document.decode()
        {TrendFormat.JSON: say_json_text, TrendFormat.TEXT: say_escaped}.get(output, say)(text)
        return
    from benchgate.site.folder import write_whole

    write_whole(out, document if isinstance(document, bytes) else document.encode("utf-8", "backslashreplace"))
    inform(f"benchgate: {out}")


def _text(
    points: Sequence[TrendPoint],
    metric: str,
    statistic: str | None,
    by: TrendBy | None,
    breaks: Mapping[Place, str],
    screen: Screen,
) -> str:
    """Return the table of the points, escaped."""
    from benchgate.report.display import in_its_unit, value_with_limits
    from benchgate.report.trend import place_of

    with_limits = by is not None or metric.startswith("usd_")  # a cost without its interval looks like a price
    heading = metric if statistic is None else f"{metric} {statistic}"
    headings = ("started", "run", "suite", "candidate", "verdict", "stage or task", heading)
    rows: list[list[str]] = []
    for point in points:
        value = in_its_unit(metric, point.value)
        if with_limits:
            value = value_with_limits(metric, point.value, point.lower, point.upper)
        notes = [f"({word})" for word in (point.promoted, point.doubt) if word is not None]
        if (why := breaks.get(place_of(point))) is not None:
            notes.append(f"({why} than before)")
        run, place = point.label or point.run_id[:13], point.stage or point.task or "-"
        cell = "  ".join((value, *notes))
        started = point.started_at if screen.columns is None else short_time(point.started_at)
        rows.append([started, run, point.suite, point.deployment, point.outcome or "-", place, cell])
    if by is None:
        return "".join(f"{line}\n" for line in fitting_table(screen, headings, rows, shrink=(1, 2, 3)))
    lines = list[str]()
    for series, of_series in groupby(zip(points, rows, strict=True), key=lambda one: one[0].series(by)):
        some = [*of_series]
        runs = len({point.run_id for point, _ in some})
        lines += ["", *screen.folded([f"{by} {series}, {runs:,} {'run' if runs == 1 else 'runs'}:"])]
        lines += fitting_table(screen, headings, [row for _, row in some], shrink=(1, 2, 3))
    return "".join(f"{line}\n" for line in lines[1:])


def trend(
    metric: Annotated[str, typer.Argument(metavar="METRIC", help="Metric, like ttft.")],
    suite: Annotated[str | None, typer.Option(help="Only runs of this suite.", autocompletion=complete_suites)] = None,
    stage: Annotated[str | None, typer.Option(help="Only this load stage.", autocompletion=complete_stages)] = None,
    task: Annotated[str | None, typer.Option(help="Only this eval task.")] = None,
    statistic: Annotated[
        str | None, typer.Option(help="Statistic of a latency: p50 (default), p90, p95, p99 or mean.")
    ] = None,
    by: Annotated[TrendBy | None, typer.Option(help="Property that separates the series.")] = None,
    deployment: Annotated[str | None, typer.Option(help="Only this candidate.")] = None,
    model: Annotated[str | None, typer.Option(help="Only this model, or revision of it.")] = None,
    engine: Annotated[str | None, typer.Option(help="Only this engine, or version of it.")] = None,
    hardware: Annotated[str | None, typer.Option(help="Only on this hardware.")] = None,
    store: options.StoreOption = options.STORE,
    output: Annotated[TrendFormat, typer.Option("--format", help="Output format.")] = TrendFormat.TEXT,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Output file.")] = None,
) -> None:
    """Plot a metric over past runs

    Example: benchgate trend ttft --stage c8 --format svg -o ttft.svg
    """
    from benchgate.model.deployment import Arm
    from benchgate.model.metric import TREND_UNITS, depends_on_slo

    require_place(output, out, store=store)
    served = {"deployment": deployment, "model": model, "engine": engine, "hardware": hardware}
    _require_known("metric", metric, tuple(TREND_UNITS))
    statistic = _statistic(metric, statistic)
    with options.open_store(store) as opened:
        points = opened.trend(metric, suite=suite, statistic=statistic, stage=stage, task=task, arm=Arm.CANDIDATE)
        kept = points or opened.trend(metric, suite=suite, statistic=statistic, arm=Arm.CANDIDATE)
        everywhere = kept or opened.trend(metric, statistic=statistic, arm=Arm.CANDIDATE)
        _require_kept("suite", suite, metric, [point.suite for point in everywhere])
        _require_kept("stage", stage, metric, [point.stage for point in kept])
        _require_kept("task", task, metric, [point.task for point in kept])
        points = _narrowed(points, metric, served)
        ids = {point.run_id for point in points}
        measured, slos = opened.measurements(ids), opened.slos(ids) if depends_on_slo(metric) else {}
    if points or output in (TrendFormat.JSON, TrendFormat.CSV):
        screen = PLAIN if out is not None else stdout_screen()
        emit(trend_document(points, output, metric, statistic, by, measured, screen, slos), output, out)
        return
    nothing = _none_has(metric, suite, stage if kept else None, task if kept else None)
    if out is not None or output is not TrendFormat.TEXT:
        raise UsageError(nothing)
    log(nothing)


def _statistic(metric: str, requested: str | None) -> str | None:
    """Return the statistic to follow: of a latency the median by default."""
    from benchgate.model.metric import LATENCY_TRENDS, MEAN, MEAN_METRICS, QUANTILES

    if metric not in LATENCY_TRENDS:
        if requested is not None:
            raise UsageError(f"--statistic applies to latencies, and {metric} is none; leave it out")
        return None
    if requested is not None:
        paired = metric in MEAN_METRICS
        _require_known("statistic", requested, (*QUANTILES, MEAN) if paired else tuple(QUANTILES))
    return requested or "p50"


def _require_kept(what: str, name: str | None, metric: str, known: Sequence[str | None]) -> None:
    """Raise UsageError for a suite, stage or task without this metric, where others have it."""
    names = list(dict.fromkeys(one for one in known if one is not None))
    if name is None or name in names or not known:
        return
    if not names:
        raise UsageError(f"{metric} has no {what}; leave --{what} out")
    raise UsageError(f"no stored run has {metric} of a {what} {name!r}; {nearest_of(name, names)}")


def _none_has(metric: str, suite: str | None, stage: str | None, task: str | None) -> str:
    """Return why there is nothing to show, and a remedy."""
    runs = "no stored run" + (f" of the suite {suite!r}" if suite is not None else "")
    place = " ".join(f"of {what} {name}" for what, name in (("stage", stage), ("task", task)) if name is not None)
    remedy = ""
    if metric.startswith("usd_"):
        with_terms = " with `price_terms`" if metric.endswith("_in_use") else ""
        remedy = f"; a `price`{with_terms} in the suite's deployments adds it; other metrics need none: "
        remedy += "benchgate trend request_throughput"
    return f"{runs} has {' '.join(filter(None, (metric, place)))}{remedy}"


def _require_known(what: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
        raise UsageError(f"no {what} {name!r} is kept for trends; {hint}")


def _narrowed(points: Sequence[TrendPoint], metric: str, names: Mapping[str, str | None]) -> list[TrendPoint]:
    """Return the points with these properties; None is any.

    A name matches whole or by its first words: `vllm` is every version of it, `org/name` every revision. Raises
    UsageError for a name without a point, with the nearest one or all.
    """
    kept = list(points)
    for what, name in names.items():
        if name is None or not kept:
            continue
        there = dict.fromkeys(point.series(what) for point in kept)
        starts = tuple(f"{name}{end}" for end in _ENDS_OF_WORDS) if name else ()
        kept = [point for point in kept if point.series(what) == name or point.series(what).startswith(starts)]
        if not kept:
            raise UsageError(f"no stored run has {metric} of {what} {name!r}; {nearest_of(name, list(there))}")
    return kept


def nearest_of(name: str, there: Sequence[str]) -> str:
    """Return `did you mean …?` with the most similar name, whole or by its first words, or all names."""
    beginnings = (one for whole in there for one in (whole, *(whole.rpartition(end)[0] for end in _ENDS_OF_WORDS)))
    words = {one.casefold(): one for one in beginnings if one}
    near = [words[one] for one in difflib.get_close_matches(name.casefold(), words, n=1)]
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(there)}"


def frontier(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SUITE|RUN",
            help="Suite whose candidates to compare, or stored runs [default: suite of @latest].",
            show_default=False,
        ),
    ] = None,
    in_use: Annotated[
        bool, typer.Option("--in-use", help="Cost in use, by `price_terms`, instead of at full use.")
    ] = False,
    policy: Annotated[str | None, typer.Option(help="Judge all of them by this suite's gate section.")] = None,
    store: options.StoreOption = options.STORE,
    output: Annotated[TrendFormat, typer.Option("--format", help="Output format.")] = TrendFormat.TEXT,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Output file.")] = None,
) -> None:
    """Compare candidates by quality and cost

    Names the cheapest candidate that passes.

    Example: benchgate frontier chat-suite --format svg -o frontier.svg
    """
    policy_file = None if policy is None else find_suite(policy)
    require_place(output, out, store=store, policy=policy_file)
    runs = names if names is not None and len(names) > 1 else ()  # one name may also be a suite
    with options.open_store(store, *runs) as opened:
        from benchgate.pipeline.compare_runs import read_stored, select_runs
        from benchgate.pipeline.suite_file import read_suite

        suite = read_suite(policy_file).suite if policy_file is not None else None
        picked = select_runs(opened, names or [])
        anew = {run.id: None if suite is None else _judged(opened, run, suite) for run in picked.runs}
        stored = [
            replace(read_stored(opened, run, newer=picked.newer.get(run.id), verdict=anew[run.id]), policy=suite)
            for run in picked.runs
        ]
    from benchgate.sizing.candidates import compare_candidates  # slow to import, and not needed to refuse an argument

    found = compare_candidates(stored, in_use=in_use, as_of=today())
    by = () if policy is None else (f"judged by the policy of {policy}, without waivers; not stored",)
    screen = PLAIN if out is not None else stdout_screen()
    emit(_document(replace(found, notes=(*by, *picked.notes, *found.notes)), output, screen), output, out)


def _judged(store: Store, run: Run, policy: Suite) -> Mapping[str, Any] | None:
    """Return a run's verdict by another policy, without storing it; None for an incomplete run.

    Raises UsageError for a policy with another SLO: the stored metrics count good tokens by the run's own.
    """
    from benchgate.model.run import RunStatus
    from benchgate.pipeline.judge import decide_stored, with_slos_of
    from benchgate.suite.schema import Suite

    own = Suite.from_stored(run.suite)
    if with_slos_of(policy, own) != own:
        raise UsageError(
            f"the policy's `slo` differs from that of run {run.id}, which counts its good tokens; remove it from the"
            " policy, or measure again"
        )
    if run.status is not RunStatus.COMPLETE:
        return None
    return decide_stored(store, run.id, policy=policy, keep=False).document


def _document(found: CandidateTable, output: TrendFormat, screen: Screen) -> str | bytes:
    from benchgate.report import frontier
    from benchgate.store.export import to_csv

    if output is TrendFormat.TEXT:
        return frontier.frontier_text(found, screen)
    if output is TrendFormat.JSON:
        return json.dumps(frontier.frontier_document(found), indent=2, sort_keys=True) + "\n"
    if output is TrendFormat.CSV:
        return to_csv(frontier.COLUMNS, frontier.frontier_rows(found))
    return frontier.frontier_png(found) if output is TrendFormat.PNG else frontier.frontier_file(found)


def site(
    out: Annotated[Path, typer.Argument(metavar="FOLDER", help="Output folder: empty, or made by this command.")],
    store: options.StoreOption = options.STORE,
) -> None:
    """Build a static site of the store's history

    Running it again updates the site.

    Example: benchgate site public/
    """
    from benchgate.site.build import build

    def progress(done: int, of: int) -> None:
        if done % _SITE_PROGRESS == 0 or done == of:
            inform(f"benchgate: {done:,} of {of:,} reports")

    built = build(store, out, progress)
    of = built.changes
    say(f"{out / 'index.html'}: {of.written:,} files written, {of.kept:,} unchanged, {of.removed:,} removed\n")
    for run_id, why in built.faults.items():
        log(f"benchgate: run {run_id} has no report: {why}")
    if built.faults:
        raise typer.Exit(int(ExitCode.PUBLISH_FAILED))
