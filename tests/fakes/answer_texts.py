"""Evidence of what answers said, for tests of the gate: columns of the text put into measured requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from benchgate.model.deployment import Arm
from benchgate.model.records import RequestColumns
from benchgate.model.run import Evidence, LoadObservation

CHARS = 5
"""Visible characters of a token, unless a test says otherwise."""


def columns_of(execution: LoadObservation, **changed: Any) -> LoadObservation:
    columns = {**execution.requests.to_columns(), **changed}
    return replace(execution, requests=RequestColumns.from_columns(columns))


def saying(evidence: Evidence, arm: Arm, change: Callable[[RequestColumns], dict[str, Any]]) -> Evidence:
    return replace(
        evidence, load=tuple(columns_of(o, **change(o.requests)) if o.arm is arm else o for o in evidence.load)
    )


def plain(columns: RequestColumns, chars: int = CHARS) -> dict[str, Any]:
    """Each piece of the stream holds as many characters, and there is no reasoning."""
    pieces = np.diff(columns.chunk_start)
    return {"answer_chars": pieces * chars, "reasoning_chars": np.zeros(len(columns), dtype=np.int32)}
