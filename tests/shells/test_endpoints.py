"""Every endpoint against the practice server: sound answers, broken ones, foreign ones, and any cut into reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchgate.load.decode.answer import ParsedAnswer
from benchgate.load.decode.body import RawBody
from benchgate.load.decode.endpoints import DECODERS, read_body
from benchgate.load.http.exchange import Response
from benchgate.load.http.parser import Head
from benchgate.load.workers import run_stage
from benchgate.model import request_metrics
from benchgate.model.records import ErrorClass, RequestColumns
from benchgate.model.request import ENDPOINTS, Endpoint, ModelRequest
from benchgate.plan.media import data_url, speech_wav
from benchgate.plan.model import PlannedRequest, PlannedStage
from benchgate.sim.encoders import Usage
from benchgate.sim.endpoints import SERVED
from benchgate.sim.http_server import LAST_CHUNK, chunk
from benchgate.sim.process import SimControl, serve_sim
from benchgate.sim.settings import sim_settings
from benchgate.targets.endpoints import APIS, request_content, request_path
from benchgate.targets.multipart import FormBody
from benchgate.targets.probe import probe_request, wait_ready
from tests.fakes.streams import reads_of
from tests.shells.load_helpers import decode, limits, target_at

TTFT_S, TOKENS = 0.02, 8
RECORDING = data_url(speech_wav(20.0, np.random.default_rng(1)), "audio/wav")  # of 50 words
UNENDED = ("triton-generate", "predictions", "infer")  # endpoints whose answers state neither an end nor a usage
BY_HTTP = [endpoint for endpoint, spec in ENDPOINTS.items() if not spec.by_grpc]
GENERATING = [endpoint for endpoint in BY_HTTP if ENDPOINTS[endpoint].generates]
STREAMING = [endpoint for endpoint in BY_HTTP if ENDPOINTS[endpoint].streams]
EVERY_WAY = [
    (endpoint, stream) for endpoint in BY_HTTP for stream in (True, False) if stream <= (endpoint in STREAMING)
]


@pytest.fixture(scope="module")
def sim() -> Iterator[SimControl]:
    with serve_sim(sim_settings(ttft_s=TTFT_S, itl_s=0.001, model="scripted")) as control:
        yield control


def asked(endpoint: Endpoint, *, stream: bool = True) -> ModelRequest:
    ask = probe_request(endpoint)
    if endpoint == "transcriptions":  # whose length only vLLM lets a request limit
        ask = replace(ask, content={"file": RECORDING}, fields={"max_completion_tokens": TOKENS})
        return replace(ask, stream=stream)
    limit = TOKENS if endpoint in GENERATING else None
    return replace(ask, output_tokens=limit, stream=stream and endpoint in STREAMING)


def columns(url: str, ask: ModelRequest, count: int = 3, fault: str | None = None) -> RequestColumns:
    target = target_at(url)
    if fault is not None:
        target = replace(target, open_headers={"x-sim-fault": fault})
    requests = tuple(PlannedRequest(index, None, ask, index) for index in range(count))
    stage = PlannedStage.of("s", 1, None, requests)
    return run_stage(target, stage, limits=limits(first_token_s=5, stall_s=5, total_s=10)).requests


def test_every_endpoint_is_one_row_of_each_table() -> None:
    assert set(ENDPOINTS) == set(APIS) == set(DECODERS) == set(SERVED)
    streaming = {endpoint for endpoint, spec in ENDPOINTS.items() if spec.streams}
    assert {endpoint for endpoint, decoder in DECODERS.items() if decoder.stream} == streaming


@pytest.mark.parametrize(("endpoint", "stream"), EVERY_WAY)
def test_load_agrees_with_the_servers_own_truth(sim: SimControl, endpoint: Endpoint, stream: bool) -> None:
    sim.reset()
    found = columns(sim.url, asked(endpoint, stream=stream))
    truth = sim.truth(with_requests=True)
    rows = sorted(truth["rows"], key=lambda row: row["received_ns"])
    assert set(found.error_detail) == {None}
    assert request_metrics.succeeded(found).all()
    assert (truth["finished"], set(truth["by_endpoint"])) == (3, {endpoint})
    chunks = np.diff(found.chunk_start).tolist()
    counted = endpoint not in UNENDED and (endpoint, stream) != ("transcriptions", False)
    numbers = endpoint not in GENERATING
    sent = [row["output_tokens"] for row in rows]
    assert found.output_tokens.tolist() == ([0] * 3 if numbers else sent if counted else chunks)
    if counted and (endpoint, stream) != ("generate", False):  # TGI counts the prompt in its stream alone
        assert found.input_tokens.tolist() == [row["input_tokens"] for row in rows]
    assert set(found.finish_reason) == ({"stop"} if not counted else {None} if numbers else {"length"})
    assert set(found.token_source) == ({None} if numbers else {"usage"} if counted else {"chunks"})
    assert set(chunks) == {TOKENS if stream else 1}
    ttft_s, e2e_s = request_metrics.ttft_s(found), request_metrics.e2e_s(found)
    assert (ttft_s >= TTFT_S).all()
    assert (ttft_s <= e2e_s).all() if stream else (ttft_s == e2e_s).all()


@pytest.mark.parametrize("endpoint", BY_HTTP)
def test_probe_completes_a_request_of_every_endpoint(sim: SimControl, endpoint: Endpoint) -> None:
    assert wait_ready(target_at(sim.url), endpoint=endpoint, ready_s=5, connect_s=5)["max_model_len"]


BROKEN = {
    "error-after:3": ErrorClass.STREAM_BROKEN,
    "error-first": ErrorClass.STREAM_BROKEN,
    "cut-after:3": ErrorClass.STREAM_BROKEN,
    "reset-after:3": ErrorClass.STREAM_BROKEN,
    "abort-after:3": ErrorClass.STREAM_BROKEN,
    "empty-answer": ErrorClass.EMPTY,
    "empty-body": ErrorClass.EMPTY,
    "http-error:500:text": ErrorClass.HTTP_5XX,
    "rate-limited": ErrorClass.HTTP_429,
}


@pytest.mark.parametrize("fault", BROKEN)
@pytest.mark.parametrize("endpoint", STREAMING)
def test_broken_stream_is_a_failure(sim: SimControl, endpoint: Endpoint, fault: str) -> None:
    found = columns(sim.url, asked(endpoint), 1, fault)
    if fault == "cut-after:3" and endpoint in UNENDED:  # a stream cut in good order looks like a whole one
        assert (list(found.error), found.output_tokens.tolist()) == ([None], [3])
    else:
        assert found.error == (BROKEN[fault],), found.error_detail


@pytest.mark.parametrize("fault", ["error-first", "cut-after:3", "reset-after:3", "empty-answer", "empty-body"])
@pytest.mark.parametrize("endpoint", BY_HTTP)
def test_broken_document_is_a_failure(sim: SimControl, endpoint: Endpoint, fault: str) -> None:
    found = columns(sim.url, asked(endpoint, stream=False), 1, fault)
    if (endpoint, fault) == ("predictions", "cut-after:3"):  # half a text is a text
        return
    assert not request_metrics.succeeded(found).any()
    assert found.error[0] is not None


def wire(endpoint: Endpoint, *, stream: bool, tokens: int = TOKENS) -> bytes:
    """Return the body of a sound answer, as the practice server sends it."""
    ask = asked(endpoint, stream=stream)
    path = request_path(target_at("http://a"), ask)
    if endpoint == "transcriptions":
        ask = replace(ask, fields={"max_completion_tokens": tokens})
    content = request_content(target_at("http://a"), replace(ask, output_tokens=tokens))
    body = content.content if isinstance(content, FormBody) else json.dumps(content).encode()
    request = SERVED[endpoint].request(path, body, sim_settings(model="scripted", reasoning_tokens=(2, 2)))
    script = SERVED[endpoint].script(request, 7, 1)
    usage = Usage(request.input_tokens, request.output_tokens)
    if not stream:
        return script.document(request.finish_reason, usage)
    last = request.output_tokens - 1
    events = [*script.opening(), *(event for at in range(last) for event in script.tokens(at, 1))]
    events += script.tokens(last, 1, request.finish_reason)
    return b"".join(map(chunk, [*events, *script.closing(request.finish_reason, usage), *script.done()])) + LAST_CHUNK


@pytest.mark.parametrize(("endpoint", "stream"), EVERY_WAY)
def test_answer_of_another_api_is_a_failure(endpoint: Endpoint, stream: bool) -> None:
    ask = asked(endpoint, stream=stream)
    for other, other_stream in EVERY_WAY:
        alike = {endpoint, other} == {"chat", "completions"} and stream == other_stream
        # Chunks of vLLM's transcriptions are those of a chat but for their name.
        alike |= endpoint in ("chat", "completions") and (other, stream, other_stream) == ("transcriptions", True, True)
        is_text = endpoint == "predictions" and not (other_stream and other != "predictions")  # which may be any JSON
        if (other, other_stream) == (endpoint, stream) or alike or is_text:
            continue
        raw = wire(other, stream=other_stream)
        framing = {"transfer-encoding": "chunked"} if other_stream else {"content-length": str(len(raw))}
        body = replace(RawBody.of([(5, raw)]), chunked=other_stream)
        record = decode(0, 0, 0, Response(1, 9, Head("HTTP/1.1", 200, framing), body, whole=True), ask=ask)
        assert record.error is not None, other


WIRES = {endpoint: wire(endpoint, stream=True, tokens=6) for endpoint in STREAMING}


def parsed(endpoint: Endpoint, reads: list[bytes]) -> ParsedAnswer:
    body = replace(RawBody.of([(5, data) for data in reads]), chunked=True)
    return read_body(body, asked(endpoint))


@settings(deadline=None)
@given(st.sampled_from(STREAMING).flatmap(lambda endpoint: st.tuples(st.just(endpoint), reads_of(WIRES[endpoint]))))
def test_any_cut_of_a_stream_gives_the_same_answer_in_c_and_in_python(made: tuple[Endpoint, list[bytes]]) -> None:
    endpoint, reads = made
    whole = parsed(endpoint, [WIRES[endpoint]])
    assert (whole.error, whole.malformed, len(whole.chunk_ns)) == (None, None, 6)
    assert parsed(endpoint, reads) == whole
    with patch("benchgate.load.decode.body.library", lambda: None):
        assert parsed(endpoint, reads) == whole


@pytest.mark.parametrize("endpoint", STREAMING)
def test_events_skipped_in_one_go_have_the_instants_of_events_read_one_by_one(endpoint: Endpoint) -> None:
    chunks = wire(endpoint, stream=True, tokens=30).split(b"\r\n")
    pairs = [b"\r\n".join(pair) + b"\r\n" for pair in zip(chunks[::2], chunks[1::2], strict=False)]
    together = [(at, data) for at, data in enumerate(pairs)]
    halved = [(at, part) for at, data in together for part in (data[: len(data) // 2], data[len(data) // 2 :])]
    whole, parts = (
        read_body(replace(RawBody.of(reads), chunked=True), asked(endpoint)) for reads in (together, halved)
    )
    assert whole == parts
    assert len(set(whole.chunk_ns)) == 30
    with patch("benchgate.load.decode.body.library", lambda: None):
        assert read_body(replace(RawBody.of(together), chunked=True), asked(endpoint)) == whole
