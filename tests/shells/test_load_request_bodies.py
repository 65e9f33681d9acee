"""A request's body on the wire is the JSON that its dialect describes, whatever its texts hold."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchgate.load.requests import prepare_requests
from benchgate.model.deployment import Arm
from benchgate.model.request import Endpoint, text_request
from benchgate.plan.model import PlannedRequest
from benchgate.targets.dialect import DIALECTS, Target
from benchgate.targets.endpoints import ask_body

TEXTS = st.text() | st.sampled_from(["", '"', "\\", "%(text)b", "naïve 漢字", "\ud800", "a\udfff\n"])


def body_of(target: Target, request: PlannedRequest) -> object:
    (ticket,) = prepare_requests(target, [request])
    head, _, body = ticket.wire.partition(b"\r\n\r\n")
    assert head.endswith(b"content-length: %d" % len(body))
    return json.loads(body)


@pytest.mark.parametrize("endpoint", ["chat", "completions", "responses", "embeddings"])
@given(TEXTS, st.integers(1, 2**40), st.sampled_from(sorted(DIALECTS)))
def test_a_body_says_what_its_dialect_does(endpoint: Endpoint, text: str, number: int, engine: str) -> None:
    target = Target(Arm.CANDIDATE, "http://127.0.0.1:1", "a 100 % model", DIALECTS[engine])
    ask = text_request(endpoint, text, number)
    assert body_of(target, PlannedRequest(0, None, ask, number)) == ask_body(target, ask, seed=number)


def test_what_a_suite_adds_to_a_body_stands_above_all_else() -> None:
    dialect = replace(DIALECTS["vllm"], extra={"seed": 7, "note": "\ud800"}, leave_out=("temperature",))
    target = Target(Arm.CANDIDATE, "http://127.0.0.1:1", "model", dialect)
    body = body_of(target, PlannedRequest(0, None, text_request("chat", "a", 8), 3))
    assert isinstance(body, dict)
    assert (body["seed"], body["note"], "temperature" in body) == (7, "\ud800", False)
