"""A run's verdict and derived numbers as OpenMetrics text: no label changes from run to run, and no time is in it."""

from __future__ import annotations

from dataclasses import replace

from benchgate.gate.summary.metric_rows import metric_rows
from benchgate.model.run import MetricRow
from benchgate.report.openmetrics import DIGITS, exposition, metric_families, verdict_family
from benchgate.report.results import Told, plain


def render_metrics(told: Told, *, digits: int = DIGITS) -> str:
    """The text. Of a verdict that lets through what its process does not, no outcome holds."""
    suite = _label(told.run.suite_name)
    verdicts = verdict_family({suite: None if told.doubtful else told.verdict.outcome})
    rows = [(suite, _readable(row)) for row in metric_rows(told.evidence)]
    return exposition([verdicts, *metric_families(rows, digits=digits)])


def _readable(row: MetricRow) -> MetricRow:
    stage, task = (None if name is None else _label(name) for name in (row.stage, row.task))
    return replace(row, stage=stage, task=task)


def _label(name: str) -> str:
    """A name without `#`, from which on GitLab reads a comment, even in quotation marks."""
    return plain(name).replace("#", "\N{FULLWIDTH NUMBER SIGN}")
