"""Counts of tokens as servers tell them."""

from __future__ import annotations

import pytest

from benchgate.targets.answers import cached_count, input_count, output_count, reasoning_count

XAI = {"prompt_tokens": 32, "completion_tokens": 9, "total_tokens": 135}


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({**XAI, "completion_tokens_details": {"reasoning_tokens": 94}}, 103),
        ({**XAI, "completion_tokens": 0, "completion_tokens_details": {"reasoning_tokens": 103}}, 103),
        ({**XAI, "total_tokens": 41, "completion_tokens_details": {"reasoning_tokens": 4}}, 9),
        ({**XAI, "total_tokens": 134, "completion_tokens_details": {"reasoning_tokens": 94}}, 9),
        ({"completion_tokens": 9, "total_tokens": 103, "completion_tokens_details": {"reasoning_tokens": 94}}, 9),
        ({**XAI, "completion_tokens_details": {"reasoning_tokens": 0}}, 9),
        ({**XAI, "completion_tokens_details": None}, 9),
        ({"input_tokens": 4, "output_tokens": 8, "output_tokens_details": {"reasoning_tokens": 8}}, 8),
        ({"completion_tokens": 0}, None),
        (None, None),
    ],
)
def test_reasoning_is_counted_in_where_the_total_shows_that_it_was_counted_apart(usage: object, tokens: object) -> None:
    assert output_count(usage) == tokens


def test_counts_have_other_names_in_responses() -> None:
    chat = {"prompt_tokens": 7, "prompt_tokens_details": {"cached_tokens": 0}}
    responses = {"input_tokens": 7, "input_tokens_details": {"cached_tokens": 4}}
    assert [(input_count(one), cached_count(one)) for one in (chat, responses)] == [(7, 0), (7, 4)]
    assert reasoning_count({"output_tokens_details": {"reasoning_tokens": 3}}) == 3
    assert reasoning_count({"reasoning_tokens": 3, "completion_tokens_details": {"accepted_prediction_tokens": 1}}) == 3
    assert reasoning_count({"reasoning_tokens": 0, "completion_tokens_details": None}) is None
