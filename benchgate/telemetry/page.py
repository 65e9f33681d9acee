"""The text format of Prometheus: a page to its samples. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of a page."""

    name: str
    labels: Mapping[str, str]
    value: float


class BadPageError(ValueError):
    """What came is no page of metrics."""


def samples_of(page: str) -> list[Sample]:
    """The samples of a page, in order. A value that is not finite is no value, and its sample is left out.

    Raises BadPageError for a page that the format does not allow; its text is not repeated.
    """
    from prometheus_client.parser import text_string_to_metric_families  # takes its time to load

    try:
        told = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    except (ValueError, IndexError, KeyError) as exc:  # as its parser meets what it did not expect
        raise BadPageError("it is no page of metrics in the text format of Prometheus") from exc
    return [Sample(name, labels, value) for name, labels, value, *_ in told if math.isfinite(value)]
