"""The load engine against the practice server, which breaks and bends its answers by name."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from benchgate.model import request_metrics
from benchgate.model.metric import Slo
from benchgate.model.records import ErrorClass, RequestColumns
from benchgate.sim.process import serve_sim
from benchgate.sim.settings import sim_settings
from benchgate.suite.simulator import FAULTS
from tests.shells.load_helpers import closed, limits, run

TOKENS = 8  # asked for by `closed`
REQUESTS = 160

# What a fault makes of a request: its class of error, or where the tokens of a success were counted.
EXPECTED: dict[str, ErrorClass | str] = {
    # a sound answer, and the broken streams that load generators in use take for one
    "": "usage",
    "error-after:3": ErrorClass.STREAM_BROKEN,
    "cut-after:3": ErrorClass.STREAM_BROKEN,
    "reset-after:3": ErrorClass.STREAM_BROKEN,
    "error-first": ErrorClass.STREAM_BROKEN,
    "empty-answer": ErrorClass.EMPTY,
    "empty-body": ErrorClass.EMPTY,
    # other ends
    "abort-after:3": ErrorClass.STREAM_BROKEN,
    "stall-after:3:20ms": "usage",
    "http-error:500:text": ErrorClass.HTTP_5XX,
    "http-error:404:detail-list": ErrorClass.HTTP_4XX,
    "rate-limited": ErrorClass.HTTP_429,
    # what it says of itself
    "no-usage": "chunks",
    "zero-usage": "chunks",
    "late-usage": "chunks",
    "no-done": "usage",
    # how it is cut and written
    "multi-token:4": "usage",
    "merged:4": "usage",
    # silence, which only a limit ends
    "hang-after:3": ErrorClass.TIMEOUT,
    "no-answer": ErrorClass.TIMEOUT,
    "endless": ErrorClass.TIMEOUT,
}
SILENT = ("hang-after:3", "no-answer", "endless")
OF_CONTENT = {  # well-formed answers, in which only guards over a whole stage see what is wrong
    "usage-times", "other-model", "half-text", "reasoning-only", "blank-text", "zero-width-text", "repeated-text",
    "unasked-call", "second-choice", "fast-when-seen", "other-script", "wrong-answer",
}  # fmt: skip


@dataclass(frozen=True)
class Stage:
    """One stage over a server with every fault there is: the records, and which fault each request met."""

    columns: RequestColumns
    met: tuple[str, ...]

    def rows(self, fault: str) -> Sequence[int]:
        return [row for row, met in enumerate(self.met) if met == fault]


@pytest.fixture(scope="module")
def stage() -> Stage:
    usual = [fault for fault in EXPECTED if fault and fault not in SILENT]
    shares = dict.fromkeys(usual, 94 / len(usual)) | dict.fromkeys(SILENT, 0.7)  # each of these costs a limit
    faults = tuple(f"{fault}@{share:.2f}%" for fault, share in shares.items())
    settings = sim_settings(ttft_s=0.002, itl_s=0.001, model="scripted", faults=faults, seed=5)  # meets every one
    within = limits(first_token_s=1, stall_s=1, total_s=2)
    with serve_sim(settings) as sim:
        columns = run(sim.url, closed(REQUESTS), within).requests
        asked = sorted(sim.truth(with_requests=True)["rows"], key=lambda row: row["received_ns"])
    # One request at a time, so the server received them in the order of the records.
    return Stage(columns, tuple((row["fault"] or "").partition("@")[0] for row in asked))


def test_every_kind_of_fault_is_expected_to_be_something() -> None:
    named = {name.partition(":")[0].partition("+")[0] for name in EXPECTED if name}
    assert {kind.name for kind in FAULTS} - OF_CONTENT == named


def test_every_request_has_one_record_and_every_fault_was_met(stage: Stage) -> None:
    assert len(stage.columns) == len(stage.met) == REQUESTS
    assert set(stage.met) == set(EXPECTED)


@pytest.mark.parametrize("fault", EXPECTED)
def test_answer_counts_for_what_it_is(stage: Stage, fault: str) -> None:
    expected = EXPECTED[fault]
    rows = stage.rows(fault)
    assert rows
    for row in rows:
        found = stage.columns.error[row] or stage.columns.token_source[row]
        assert found == expected, stage.columns.error_detail[row]


def test_tokens_and_chunks_of_a_success_are_those_that_were_sent(stage: Stage) -> None:
    rows = [row for row in range(REQUESTS) if stage.columns.error[row] is None]
    told = [row for row in rows if stage.columns.token_source[row] == "usage"]
    assert set(stage.columns.output_tokens[told].tolist()) == {TOKENS}
    assert set(stage.columns.output_tokens[rows].tolist()) == {TOKENS}
    chunks = dict(zip(range(REQUESTS), np.diff(stage.columns.chunk_start).tolist(), strict=True))
    merged = {row for row in rows if stage.met[row] == "multi-token:4"}
    assert {chunks[row] for row in rows if row not in merged} == {TOKENS}
    assert max(chunks[row] for row in merged) < TOKENS


def test_goodput_counts_every_request_that_was_due(stage: Stage) -> None:
    sound = sum(EXPECTED[fault] in ("usage", "chunks") for fault in stage.met)
    assert request_metrics.goodput_ratio(stage.columns, Slo(e2e_s=1000)) == sound / REQUESTS
    failed = [row for row in range(REQUESTS) if stage.columns.error[row] is not None]
    assert len(failed) == REQUESTS - sound
    assert np.isposinf(request_metrics.ttft_s(stage.columns)[failed]).all()
