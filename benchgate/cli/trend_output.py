"""The points of a trend as a table for other programs or as a picture, on standard output or in a file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from benchgate.cli.saying import log, say, say_json_text
from benchgate.errors import UsageError
from benchgate.escape import terminal_line

if TYPE_CHECKING:
    from benchgate.model.run import TrendPoint
    from benchgate.report.trend import Place


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
    from benchgate.site.folder import write_whole

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
