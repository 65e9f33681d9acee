"""A page of metrics to values in the vocabulary. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchgate.model.telemetry import TelemetryMetric
from benchgate.telemetry.engines import DCGM, GPU_LABEL, MODEL_LABELS, PAGES, Told, Words
from benchgate.telemetry.page import BadPageError, Sample, samples_of


@dataclass(frozen=True, slots=True)
class Page:
    """One page as it was understood. `marker` is None where nothing on it tells one process from another."""

    engine: str
    values: Mapping[TelemetryMetric, float]
    marker: str | None


def read_page(text: str, model: str, born: str | None = None) -> Page:
    """Whose page it is and what it says of `model`; `born` is when a header says its server was started.

    Raises BadPageError when it is no page of metrics of a known engine.
    """
    samples = samples_of(text)
    engine = _engine_of(samples)
    page = PAGES[engine]
    marker = [str(sample.value) for sample in samples if sample.name in page.born]
    if born is not None:
        marker.append(born)
    return Page(engine, _values(samples, page.words, model), ",".join(sorted(marker)) or None)


def read_dcgm(text: str, devices: Collection[int] | None) -> Mapping[TelemetryMetric, float]:
    """What an exporter of DCGM says of these accelerators, or of all it knows. Raises BadPageError."""
    names = set(_names(DCGM))
    samples = [sample for sample in samples_of(text) if sample.name in names]
    if devices is not None:
        numbers = {str(device) for device in devices}
        samples = [sample for sample in samples if sample.labels.get(GPU_LABEL) in numbers]
    if not samples:
        raise BadPageError("it names none of these accelerators" if devices is not None else "it names no accelerator")
    return _values(samples, DCGM, None)


def _engine_of(samples: Sequence[Sample]) -> str:
    names = {sample.name for sample in samples}
    for engine, page in PAGES.items():
        if any(name.startswith(page.prefix) for name in names):
            return engine
    raise BadPageError("it has no name that a known engine uses")


def _names(words: Words) -> Iterator[str]:
    for alternatives in words.values():
        for told in alternatives:
            yield from told.names
            if told.over is not None:
                yield from told.over.names


def _values(samples: Sequence[Sample], words: Words, model: str | None) -> dict[TelemetryMetric, float]:
    by_name: dict[str, list[Sample]] = {}
    for sample in samples:
        by_name.setdefault(sample.name, []).append(sample)
    values = {}
    for word, alternatives in words.items():
        found = (_value(by_name, told, model) for told in alternatives)
        value = next((value for value in found if value is not None), None)
        if value is not None:
            values[word] = value
    return values


def _value(by_name: Mapping[str, list[Sample]], told: Told, model: str | None) -> float | None:
    """None unless every name is there, and the divisor is not 0."""
    parts = []
    for name in told.names:
        series = _of_model([s for s in by_name.get(name, ()) if told.where.items() <= s.labels.items()], model)
        if not series:
            return None
        values = [sample.value for sample in series]
        parts.append({"sum": sum(values), "max": max(values), "mean": sum(values) / len(values)}[told.across])
    value = sum(parts) * told.scale
    if told.over is None:
        return value
    whole = _value(by_name, told.over, model)
    return value / whole if whole else None


def _of_model(series: Sequence[Sample], model: str | None) -> Sequence[Sample]:
    """The series of one model. Where none is called so, those of the only model there is; of several, none."""
    if model is None:
        return series
    labels = [next((s.labels[key] for key in MODEL_LABELS if key in s.labels), None) for s in series]
    own = [sample for sample, label in zip(series, labels, strict=True) if label == model]
    if own:
        return own
    return series if len(set(labels)) <= 1 else []
