"""k6 summaries: recognised, and refused, for none of their numbers is one of benchgate's."""

from __future__ import annotations

from typing import NoReturn

from benchgate.errors import UsageError
from benchgate.importers.fields import Field, with_keys

NAME = "k6"
MARKED_BY = with_keys("metrics.http_req_duration", "metrics.http_reqs")


def is_it(document: Field) -> bool:
    """By the metrics that every k6 summary of HTTP requests has."""
    found = document.value.get("metrics") if isinstance(document.value, dict) else None
    return isinstance(found, dict) and found.keys() >= {"http_req_duration", "http_reqs"}


def read(document: Field) -> NoReturn:
    """Always UsageError, which says why."""
    raise UsageError(
        f"{document.source} is a summary of k6, and none of its numbers is one of benchgate's: http_reqs counts "
        "requests that failed, http_req_failed goes by the status code, which proves nothing of a stream, "
        "http_req_duration leaves out the wait for a connection and the time since the request was due, its "
        "percentiles are interpolated, and k6 counts no tokens; measure with `benchgate run` or `benchgate load`"
    )
