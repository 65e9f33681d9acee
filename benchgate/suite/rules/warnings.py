"""Warnings about a valid suite that will measure less well than it looks."""

from __future__ import annotations

from dataclasses import replace

from benchgate.errors import Problem
from benchgate.suite.rules.base import written_positions
from benchgate.suite.rules.load import written_classes
from benchgate.suite.schema import Suite
from benchgate.suite.yaml import Fault, Path, read_text, show_path
from benchgate.units import as_written, show_number

_LEAST_PER_SLOT = 10  # requests that each slot of a closed loop sends in a block


def suite_warnings(suite: Suite, text: str, source: str) -> list[Problem]:
    """Return each warning with its place in `text`, the YAML that `suite` was read from; `source` is its name.

    They are about closed loops whose slots send fewer than ten requests per block. One slot has no batch to fill.
    """
    document = read_text(text, source)
    written_at = written_positions(document.data)  # a stage that varies a value is several in the sweep
    warnings: list[tuple[Path, str]] = []
    for path, _, traffic in written_classes(suite):
        concurrency, requests = traffic.schedule.concurrency or 1, traffic.schedule.requests
        if traffic.is_background or concurrency == 1 or requests >= _LEAST_PER_SLOT * concurrency:
            continue
        each = as_written(show_number(requests / concurrency))
        at: Path = ("load", "sweep", written_at[int(path[2])], *path[3:], "requests")
        message = (
            f"concurrency {concurrency:,} with {requests:,} requests: each slot sends "
            f"{'one request' if each == '1' else f'{each} requests'} per block; "
            f"write `requests`: {_LEAST_PER_SLOT * concurrency:,} or more"
        )
        warnings.append((at, message))
    return [
        replace(document.problem(Fault(path, "")), path="", message=f"warning: {show_path(path)}: {message}")
        for path, message in dict.fromkeys(warnings)
    ]
