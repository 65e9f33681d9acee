"""Prometheus pages to values of the telemetry metrics. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchgate.model.telemetry import TelemetryMetric
from benchgate.telemetry.engine_metrics import DCGM, GPU_LABEL, MODEL_LABELS, PAGES, MetricNames, MetricSource


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample of a metrics page."""

    name: str
    labels: Mapping[str, str]
    value: float


class BadPageError(ValueError):
    """A response that is no metrics page."""


@dataclass(frozen=True, slots=True)
class Page:
    """The values on one metrics page. `marker` changes when the server restarts; None where nothing on it does."""

    engine: str
    values: Mapping[TelemetryMetric, float]
    marker: str | None


def parse_samples(page: str) -> list[Sample]:
    """Parse the Prometheus text format. Samples whose value is not finite are left out.

    Raises BadPageError, which does not repeat the text.
    """
    from prometheus_client.parser import text_string_to_metric_families  # takes its time to load

    try:
        found = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    except (ValueError, IndexError, KeyError) as exc:  # as its parser meets what it did not expect
        raise BadPageError("it is no page of metrics in the text format of Prometheus") from exc
    return [Sample(name, labels, value) for name, labels, value, *_ in found if math.isfinite(value)]


def read_page(text: str, model: str, start_time: str | None = None) -> Page:
    """Read the values for a model; `start_time` is the server's, where a header reports it.

    Raises BadPageError when it is no metrics page of a known engine.
    """
    samples = parse_samples(text)
    names = {sample.name for sample in samples}
    engine = next((e for e, page in PAGES.items() if any(name.startswith(page.prefix) for name in names)), None)
    if engine is None:
        raise BadPageError("it has no name that a known engine uses")
    page = PAGES[engine]
    marker = [str(sample.value) for sample in samples if sample.name in page.start_times]
    if start_time is not None:
        marker.append(start_time)
    return Page(engine, _values(samples, page.names, model), ",".join(sorted(marker)) or None)


def read_dcgm(text: str, devices: Collection[int] | None) -> Mapping[TelemetryMetric, float]:
    """Read a DCGM exporter's values for these accelerators, None for all. Raises BadPageError."""
    names = set(_sample_names(DCGM))
    samples = [sample for sample in parse_samples(text) if sample.name in names]
    if devices is not None:
        numbers = {str(device) for device in devices}
        samples = [sample for sample in samples if sample.labels.get(GPU_LABEL) in numbers]
    if not samples:
        raise BadPageError("it names none of these accelerators" if devices is not None else "it names no accelerator")
    return _values(samples, DCGM, None)


def _sample_names(names: MetricNames) -> Iterator[str]:
    for alternatives in names.values():
        for source in alternatives:
            yield from source.names
            if source.divisor is not None:
                yield from source.divisor.names


def _values(samples: Sequence[Sample], names: MetricNames, model: str | None) -> dict[TelemetryMetric, float]:
    by_name: dict[str, list[Sample]] = {}
    for sample in samples:
        by_name.setdefault(sample.name, []).append(sample)
    values = {}
    for metric, alternatives in names.items():
        found = (_value(by_name, source, model) for source in alternatives)
        value = next((value for value in found if value is not None), None)
        if value is not None:
            values[metric] = value
    return values


def _value(by_name: Mapping[str, list[Sample]], source: MetricSource, model: str | None) -> float | None:
    """Return None if a name is missing or the divisor is 0."""
    parts = []
    for name in source.names:
        series = _of_model([s for s in by_name.get(name, ()) if source.labels.items() <= s.labels.items()], model)
        if not series:
            return None
        values = [sample.value for sample in series]
        parts.append({"sum": sum(values), "max": max(values), "mean": sum(values) / len(values)}[source.combine])
    value = sum(parts) * source.scale
    if source.divisor is None:
        return value
    divisor = _value(by_name, source.divisor, model)
    return value / divisor if divisor else None


def _of_model(series: Sequence[Sample], model: str | None) -> Sequence[Sample]:
    """Select the series of one model. If none has its name, those of the only model there is; of several, none."""
    if model is None:
        return series
    labels = [next((s.labels[key] for key in MODEL_LABELS if key in s.labels), None) for s in series]
    own = [sample for sample, label in zip(series, labels, strict=True) if label == model]
    if own:
        return own
    return series if len(set(labels)) <= 1 else []
