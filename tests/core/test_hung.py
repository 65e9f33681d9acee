"""Which requests in the background a server had stopped answering when the stage was over."""

from __future__ import annotations

import pytest

from benchgate.load.results import unanswered_requests
from benchgate.model.records import RequestColumns, RequestRecord, TokenSource

S = 1_000_000_000


def record(index: int, *, end_s: float | None, finish: str = "length") -> RequestRecord:
    """Sent at once, answered in one piece with 100 tokens; broken off where it has no end."""
    end_ns = None if end_s is None else int(end_s * S)
    return RequestRecord(
        index=index,
        intended_ns=0,
        sent_ns=0,
        chunk_ns=() if end_ns is None else (end_ns,),
        end_ns=end_ns,
        input_tokens=5,
        output_tokens=None if end_ns is None else 100,
        token_source=None if end_ns is None else TokenSource.USAGE,
        finish_reason=None if end_ns is None else finish,
        http_status=200,
        error=None,
        error_detail=None,
        left=end_ns is None,
    )


@pytest.mark.parametrize(
    ("asked", "over_s", "found"),
    [
        ({}, 2.0, set()),
        ({}, 2.1, {2}),  # a stream: twice the longest silence
        ({2: 100}, 2.1, {2}),
        ({2: 10}, 2.1, {2}),
        ({2: 400}, 8.0, set()),
        ({2: 400}, 8.1, {2}),
    ],
)
def test_answer_in_one_piece_may_be_silent_for_longer_the_more_tokens_it_was_to_have(
    asked: dict[int, int], over_s: float, found: set[int]
) -> None:
    columns = RequestColumns.pack([record(0, end_s=0.8), record(1, end_s=1.0), record(2, end_s=None)])
    assert unanswered_requests(columns, {2: int(over_s * S)}, asked) == found


def test_answers_that_end_by_themselves_tell_nothing_of_how_long_one_up_to_its_limit_may_take() -> None:
    whole = [record(0, end_s=0.8), record(1, end_s=1.0, finish="stop")]
    columns = RequestColumns.pack([*whole, record(2, end_s=None)])
    assert unanswered_requests(columns, {2: int(2.1 * S)}, {2: 4096}) == {2}
