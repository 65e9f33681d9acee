"""Telemetry of replicas from a Prometheus that scrapes them, by its HTTP API (`/api/v1/query`).

A scrape is some seconds old. A sample therefore has the time of the oldest scrape it rests on, by the clock of
Prometheus itself, and a stage's last sample is one that was scraped after its end.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

from benchgate.errors import UsageError
from benchgate.model.telemetry import Role
from benchgate.suite.deployment import DeploymentSpec, Metrics
from benchgate.targets.address import show_address
from benchgate.targets.client import BodyTooLargeError, JsonClient
from benchgate.targets.dialect import Target, target_of
from benchgate.targets.error_messages import RequestError, error_text, one_line
from benchgate.telemetry.engine_metrics import SERIES, BadPageError, Sample, UnreadError, engine_of, split_replicas

_QUERY = "/api/v1/query"
_SCRAPES_S = 90  # in which every series is scraped: intervals are up to a minute
_CONNECT_S = 2.0
_LONGEST_S = 5.0
_LARGEST_BYTES = 8 * 2**20


_NO_ENGINE = "Prometheus has no series of this `selector` that a known engine writes"
_NAMES = "|".join(map(re.escape, sorted(frozenset().union(*SERIES.values()))))


@dataclass(frozen=True, slots=True)
class PrometheusQuery:
    """A Prometheus as a target, and the series of a deployment's replicas in it."""

    target: Target = field(repr=False)
    selector: str
    replica_label: str | None
    role_label: str | None

    def label_of(self, samples: Sequence[Sample]) -> str:
        """Return the label that tells replicas apart."""
        return self.replica_label or ("pod" if all("pod" in sample.labels for sample in samples) else "instance")

    def replicas(self, samples: Sequence[Sample]) -> list[tuple[str, Role | None, list[Sample]]]:
        """Return each replica's name, role and samples. Raises BadPageError for none.

        A target without series of an engine is no replica: exporters have a start time as well.
        """
        targets = split_replicas(samples, self.label_of(samples), self.role_label)
        if found := [one for one in targets if engine_of(one[2]) is not None]:
            return found
        raise BadPageError(_NO_ENGINE)

    @property
    def series(self) -> str:
        """Return the selector of every series that is read."""
        inside = self.selector.strip()[1:-1].strip().rstrip(",")
        return "{" + (f"{inside}," if inside else "") + f'__name__=~"{_NAMES}"' + "}"


def prometheus_query(metrics: Metrics, target: Target, environment: Mapping[str, str]) -> PrometheusQuery:
    """Resolve the references of a source. Raises UsageError for one that is not set or holds no address."""
    assert metrics.selector is not None, "the suite was validated"
    known = DeploymentSpec(url=metrics.prometheus, model=target.model, api_key=metrics.api_key)
    try:
        own = target_of(target.arm, known, environment, Path())
    except UsageError as exc:
        exc.message = f"`metrics.prometheus`: {exc.message}"
        raise
    return PrometheusQuery(own, metrics.selector, metrics.replica_label, metrics.role_label)


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Compressed responses of Prometheus: values of the series, and their scrapes of the last `_SCRAPES_S`."""

    values: bytes
    scrapes: bytes

    def read(self) -> tuple[list[Sample], float, float]:
        """Return the finite samples, the age of the oldest scrape in seconds, and its time. Raises BadPageError."""
        try:
            series = _series(self.values, "vector")
            samples = [
                Sample(labels["__name__"], labels, float(one["value"][1]))
                for one in series
                for labels in [_labels(one)]
            ]
            times = {
                frozenset(_labels(one).items()): float(one["values"][-1][0]) for one in _series(self.scrapes, "matrix")
            }
            now_s = max((float(one["value"][0]) for one in series), default=0.0)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as exc:
            raise BadPageError("Prometheus answers with something else than the series that were requested") from exc
        if not samples:
            raise BadPageError(_NO_ENGINE)
        scraped = [times.get(frozenset(sample.labels.items())) for sample in samples]
        known = [one for one in scraped if one is not None]
        if len(known) < len(scraped):
            raise BadPageError(
                f"Prometheus has no scrape of the last {_SCRAPES_S} s of some series of this `selector`; let it scrape "
                "every minute or more often"
            )
        return [one for one in samples if math.isfinite(one.value)], now_s - min(known), min(known)


def _series(compressed: bytes, kind: str) -> list[Any]:
    """Return the series of a result of this kind. Raises ValueError for an error or an incomplete answer."""
    document = json.loads(zlib.decompress(compressed))
    if document["status"] != "success" or document["data"]["resultType"] != kind or document.get("warnings"):
        raise ValueError(f"no complete {kind}")
    found: list[Any] = document["data"]["result"]
    return found


def _labels(series: Any) -> dict[str, str]:
    return {name: str(value) for name, value in series["metric"].items()}


class PrometheusSource:
    """The series of a deployment's replicas in Prometheus. Use as a context manager."""

    def __init__(self, query: PrometheusQuery) -> None:
        self._query = query
        self._client = JsonClient(query.target, connect_s=_CONNECT_S, total_s=_LONGEST_S, max_body_bytes=_LARGEST_BYTES)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def fetch(self) -> QueryResult:
        """Query values and scrapes. Raises UnreadError.

        The scrapes come first: one between the two queries then makes values look older than they are, never newer.
        `timestamp(…)` drops the names of series, and Prometheus refuses a result with the same labels twice. The
        scrapes alone do not do: they hold series of a replica that has gone.
        """
        series = self._query.series
        scrapes = self._send(f"{series}[{_SCRAPES_S}s]")
        return QueryResult(self._send(series), scrapes)

    def _send(self, query: str) -> bytes:
        target = self._query.target
        where = f"Prometheus at {show_address(target.url)}"
        try:
            response = self._client.send("GET", f"{_QUERY}?{urlencode({'query': query})}")
        except BodyTooLargeError as exc:
            raise UnreadError(f"{where} has too many series of this `selector`", hopeless=True) from exc
        except RequestError as exc:
            raise UnreadError(f"{where} could not be read: {exc.summary}") from exc
        if response.status != 200:
            words = one_line(error_text(response.body), secret=target.secrets)
            is_final = 300 <= response.status < 500 and response.status not in (408, 425, 429)
            raise UnreadError(f"{where} answers HTTP {response.status}: {words}", hopeless=is_final)
        return zlib.compress(response.body, 1)
