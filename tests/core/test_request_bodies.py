"""Bodies written by what is common to many requests are those that each would have by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchgate.load.requests import RequestBodies, whole_body
from benchgate.model.deployment import Arm
from benchgate.model.request import Endpoint, ModelRequest, text_request
from benchgate.targets.dialect import DIALECTS, Target

ENDPOINTS: tuple[Endpoint, ...] = ("chat", "completions", "responses", "embeddings")
TEXTS = st.text() | st.sampled_from(
    ["", '"', "\\", "%", "%(text)b", "%d", "\ud800", "the text of no request", "naïve 漢字"]
)
NUMBERS = st.integers(1, 2**40) | st.sampled_from([3, 5, 7_130_519_204, 8_240_613_957])


def target(engine: str = "vllm", **dialect: Any) -> Target:
    return Target(Arm.CANDIDATE, "http://127.0.0.1:1", "a 100 % model", replace(DIALECTS[engine], **dialect))


@st.composite
def asks(draw: st.DrawFn) -> ModelRequest:
    ask = text_request(draw(st.sampled_from(ENDPOINTS)), draw(TEXTS), draw(NUMBERS), ignore_eos=draw(st.booleans()))
    if draw(st.booleans()):
        ask = replace(ask, model=draw(st.sampled_from([None, "", "adapter", "%(seed)d"])))
    if draw(st.booleans()):
        ask = replace(ask, stream=ask.stream and draw(st.booleans()))
    if draw(st.integers(0, 4)) == 0:
        ask = replace(ask, fields={"priority": draw(st.integers(0, 3))})
    return ask


@given(st.lists(st.tuples(asks(), NUMBERS), max_size=12), st.sampled_from(sorted(DIALECTS)))
def test_each_body_is_what_it_would_be_by_itself(requests: list[tuple[ModelRequest, int]], engine: str) -> None:
    to = target(engine)
    bodies = RequestBodies(to)
    assert [bodies.write(ask, seed) for ask, seed in requests] == [whole_body(to, ask, seed) for ask, seed in requests]


@pytest.mark.parametrize(
    "dialect",
    [
        {"extra": {"seed": 7}},
        {"extra": {"seed": 8_240_613_957}},
        {"extra": {"max_tokens": 9, "note": "the text of no request"}},
        {"extra": {"note": ["the text of no request", 7_130_519_204, 8_240_613_957, "100 %"]}},
        {"leave_out": ("messages", "seed")},
        {"leave_out": ("messages",), "extra": {"note": "the text of no request"}},
        {"max_tokens_field": "max_completion_tokens"},
        {"extra": {"messages": [{"role": "user", "content": "always this"}]}},
    ],
)
def test_what_a_suite_says_of_a_server_stands_above_all_else(dialect: dict[str, Any]) -> None:
    to = target(**dialect)
    bodies = RequestBodies(to)
    for number, text in enumerate(("one", "two", "the text of no request")):
        ask = text_request("chat", text, 100 + number)
        assert bodies.write(ask, number) == whole_body(to, ask, number)


def test_a_request_of_more_than_one_text_is_written_by_itself() -> None:
    plain = text_request("chat", "hello", 5)
    messages = [{"role": "user", "content": "hello", "name": "Ann"}]
    others = [
        replace(plain, content={"messages": messages}),
        replace(plain, content={"messages": [{"role": "system", "content": "be brief"}, *messages]}),
        replace(plain, content={**plain.content, "tools": []}),
        replace(plain, content={"messages": [{"content": "hello", "role": "user"}]}),
    ]
    bodies = RequestBodies(target())
    for ask in (plain, *others, plain):
        assert bodies.write(ask, 1) == whole_body(target(), ask, 1)
