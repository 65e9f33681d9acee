"""The points of a trend as a table for other programs or as a picture, on standard output or in a file."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from benchgate.cli.saying import say
from benchgate.errors import UsageError

if TYPE_CHECKING:
    from benchgate.model.run import TrendPoint


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
    points: Sequence[TrendPoint], output: TrendFormat, metric: str, statistic: str | None, by: TrendBy | None = None
) -> str | bytes:
    """What is printed or written; points of one series stand together, which JSON and CSV name in a column.

    Raises UsageError for a picture of more lines than can be told apart.
    """
    if by is not None and output in (TrendFormat.TEXT, TrendFormat.JSON, TrendFormat.CSV):
        points = [point for some in _series(points, by).values() for point in some]
    if output is TrendFormat.TEXT:
        return _text(points, metric, statistic, by)
    if output is TrendFormat.JSON:
        of_all = _of_all(metric, statistic)
        return json.dumps([{**of_all, **point._asdict()} for point in points], indent=2, sort_keys=True) + "\n"
    if output is TrendFormat.CSV:
        return _csv(points, _of_all(metric, statistic))
    from benchgate.report.trend_chart import whole_png, whole_svg
    from benchgate.report.trend_points import chart_of

    chart = chart_of(points, metric, statistic, by)
    if output is TrendFormat.PNG:
        return whole_png(chart)
    told_apart = "" if by is None else f" by {by}"
    return whole_svg(chart, f"{chart.title} of the candidates{told_apart}, oldest run first")


def emit(document: str | bytes, out: Path | None) -> None:
    """Writes it to a file, whole or not at all, and says where; or prints it."""
    if out is None:
        say(document if isinstance(document, str) else document.decode())
        return
    from benchgate.site.shelf import write_whole

    write_whole(out, document if isinstance(document, bytes) else document.encode("utf-8", "backslashreplace"))
    sys.stderr.write(f"benchgate: {out}\n")


def _series(points: Sequence[TrendPoint], by: TrendBy) -> dict[str, list[TrendPoint]]:
    """By series, that of the oldest point first."""
    found: dict[str, list[TrendPoint]] = {}
    for point in points:
        found.setdefault(point.series(by), []).append(point)
    return found


def _text(points: Sequence[TrendPoint], metric: str, statistic: str | None, by: TrendBy | None) -> str:
    from benchgate.report.untrusted import terminal_line

    titles = f"{'started':24}  {'run':20} {'suite':18} {'candidate':14} {'verdict':12} {'stage or task':14}"
    lines = [f"{titles} {metric if statistic is None else f'{metric} {statistic}'}"]
    if by is None:
        lines += [_line(point, metric, with_limits=False) for point in points]
    else:
        for name, some in _series(points, by).items():
            runs = len({point.run_id for point in some})
            lines += ["", f"{by} {name}, {runs:,} {'run' if runs == 1 else 'runs'}:"]
            lines += [_line(point, metric, with_limits=True) for point in some]
    return "".join(f"{terminal_line(line)}\n" for line in lines)


def _line(point: TrendPoint, metric: str, *, with_limits: bool) -> str:
    from benchgate.report.metric_values import in_its_unit, value_with_limits

    where, name = point.stage or point.task or "-", point.label or point.run_id[:13]
    value = in_its_unit(metric, point.value)
    if with_limits:
        value = value_with_limits(metric, point.value, point.lower, point.upper)
    promoted = f"  ({point.promoted})" if point.promoted is not None else ""
    of = f"{point.suite:18} {point.deployment:14} {point.outcome or '-':12} {where:14}"
    return f"{point.started_at}  {name:20} {of} {value}{promoted}"


def _of_all(metric: str, statistic: str | None) -> dict[str, str | None]:
    """What is the same of every point, so that a table needs no command line beside it."""
    from benchgate.report.metric_values import unit_of

    return {"metric": metric, "statistic": statistic, "unit": unit_of(metric)}


def _csv(points: Sequence[TrendPoint], of_all: Mapping[str, str | None]) -> str:
    from benchgate.exchange.export_tables import to_csv
    from benchgate.model.run import TrendPoint

    return to_csv((*of_all, *TrendPoint._fields), ((*of_all.values(), *point) for point in points))
