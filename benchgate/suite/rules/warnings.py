"""Warnings about a valid suite that will measure less well than it looks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchgate.errors import Problem
from benchgate.suite.load import Load
from benchgate.suite.rules.base import written_positions
from benchgate.suite.schema import Suite
from benchgate.suite.yaml import Fault, Path, read_text, show_path
from benchgate.units import as_written, show_number

_LEAST_PER_SLOT = 10  # requests that each slot of a closed loop sends in a block


def suite_warnings(suite: Suite, text: str, source: str) -> list[Problem]:
    """Return each warning with its place in `text`, the YAML that `suite` was read from; `source` is its name."""
    if suite.load is None:
        return []
    document = read_text(text, source)
    written_at = written_positions(document.data)  # a stage that varies a value is several in the sweep
    found = dict.fromkeys(_few_per_slot(suite.load, written_at))
    return [
        replace(document.problem(Fault(path, "")), path="", message=f"warning: {show_path(path)}: {message}")
        for path, message in found
    ]


def _few_per_slot(load: Load, written_at: list[int]) -> Iterator[tuple[Path, str]]:
    """Yield closed loops whose slots send fewer than ten requests per block. One slot has no batch to fill."""
    for stage, at in zip(load.sweep, written_at, strict=True):
        place: Path = ("load", "sweep", at)
        loops = [((*place, "requests"), stage.concurrency, stage.requests)] if stage.classes is None else [
            ((*place, "classes", name, "requests"), spec.concurrency, spec.requests or 0)
            for name, spec in stage.classes.items()
            if not spec.background
        ]  # fmt: skip
        for path, concurrency, requests in loops:
            if concurrency is not None and concurrency > 1 and requests < _LEAST_PER_SLOT * concurrency:
                each = as_written(show_number(requests / concurrency))
                yield (
                    path,
                    (
                        f"concurrency {concurrency:,} with {requests:,} requests: each slot sends "
                        f"{'one request' if each == '1' else f'{each} requests'} per block; "
                        f"write `requests`: {_LEAST_PER_SLOT * concurrency:,} or more"
                    ),
                )
