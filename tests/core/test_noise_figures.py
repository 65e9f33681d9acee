"""Which numbers of a calibration have a spread: those that both arms have in every block, and that are numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchgate.gate.calibration import spreads
from benchgate.model.records import RequestColumns
from benchgate.model.run import Evidence, LoadObservation
from tests.fakes.measured import Effect, SuiteText, measured

SUITE = SuiteText([{"metric": "ttft", "margin": "10%"}], blocks=4).suite()
EVERY_BLOCK = {"ttft", "e2e", "tpot", "output_throughput", "request_throughput", "output_length", "error_rate"}


def metrics_of(evidence: Evidence) -> set[str]:
    return {one.metric for one in spreads(evidence, SUITE)}


def held_to_a_form(evidence: Evidence, *, but: int | None = None) -> Evidence:
    """Every answer was held to a form and has it, but in one execution, where none was asked for."""

    def asked(at: int, o: LoadObservation) -> LoadObservation:
        column = np.full(len(o.requests), -1 if at == but else 1, dtype=np.int64)
        return replace(o, requests=RequestColumns.from_columns({**o.requests.to_columns(), "valid": column}))

    return replace(evidence, load=tuple(asked(at, o) for at, o in enumerate(evidence.load)))


def test_every_number_that_both_arms_have_has_a_spread() -> None:
    assert EVERY_BLOCK | {"goodput", "rejected"} <= metrics_of(measured(SUITE))
    assert "validity" in metrics_of(held_to_a_form(measured(SUITE)))


@pytest.mark.parametrize("arm", ["candidate", "baseline"])
def test_a_block_in_which_nothing_was_answered_leaves_no_spread_of_times_and_rates(arm: str) -> None:
    failing = {arm: Effect(failed=60, failed_block=2)}
    found = metrics_of(measured(SUITE, **failing))  # type: ignore[arg-type]  # by name
    assert not found & {"ttft", "e2e", "output_throughput", "request_throughput"}
    assert {"error_rate", "goodput", "rejected"} <= found


@pytest.mark.parametrize("but", [0, 5])
def test_a_block_without_anything_to_count_leaves_no_spread_of_its_share(but: int) -> None:
    assert "validity" not in metrics_of(held_to_a_form(measured(SUITE), but=but))
    assert "validity" not in metrics_of(measured(SUITE))
