"""Load over gRPC: answers, streams and their failures become the same records as those over HTTP."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import grpc
import numpy as np
import pytest

from benchgate.errors import LimitError, TargetError, UsageError
from benchgate.load.operator_limits import VARIABLE, require_allowed
from benchgate.load.shards import stage_shard
from benchgate.load.standalone.options import LoadOptions
from benchgate.load.workers import run_stage
from benchgate.model import request_metrics
from benchgate.model.deployment import Arm
from benchgate.model.records import ErrorClass, RequestColumns
from benchgate.model.request import ModelRequest, text_request
from benchgate.plan.model import ClientCancellation, PlannedRequest, PlannedStage
from benchgate.suite.deployment import DeploymentSpec
from benchgate.targets.dialect import DIALECTS, Target, target_of
from benchgate.targets.discovery import Trouble, try_completion
from benchgate.targets.endpoints import ask_body
from benchgate.targets.grpc_messages import decode, encode
from benchgate.targets.probe import liveness_problem, wait_ready
from tests.fakes.certificates import CA, TLS
from tests.fakes.grpc_server import GrpcSim, serving_grpc
from tests.shells.load_helpers import limits

KEY_AND_CHAIN = ((TLS / "server.key").read_bytes(), (TLS / "server.pem").read_bytes())
STREAMED = text_request("grpc-infer", "hi there", 8)
WHOLE = replace(STREAMED, stream=False)


def target(address: str) -> Target:
    return Target(
        Arm.CANDIDATE,
        "http://127.0.0.1:9",
        "m",
        DIALECTS["triton"],
        "secret",
        open_headers={"x-team": "a"},
        grpc=address,
    )


def columns(sim: GrpcSim, ask: ModelRequest = STREAMED, count: int = 3, **bounds: float) -> RequestColumns:
    requests = tuple(PlannedRequest(index, None, ask, index) for index in range(count))
    held = limits(**{"first_token_s": 5, "stall_s": 5, "total_s": 10, "connect_s": 1, **bounds})
    return run_stage(target(sim.url), PlannedStage.of("s", 2, None, requests), limits=held).requests


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("states_final", [True, False])
def test_streamed_answer_has_the_instants_of_its_messages(raw: bool, states_final: bool) -> None:
    with serving_grpc(GrpcSim(tokens=6, ttft_s=0.03, itl_s=0.01, raw=raw, states_final=states_final)) as sim:
        found = columns(sim)
    assert set(found.error_detail) == {None}
    assert np.diff(found.chunk_start).tolist() == [6, 6, 6]
    assert set(found.finish_reason) == {"stop"}
    assert (set(found.token_source), found.output_tokens.tolist()) == ({"chunks"}, [6, 6, 6])
    assert set(found.answer_model) == {"m"}
    ttft_s, e2e_s = request_metrics.ttft_s(found), request_metrics.e2e_s(found)
    assert (ttft_s >= 0.03).all()
    assert (e2e_s >= 0.08).all()  # a late read of the first message brings it nearer to the last
    sent = sim.requests[0]
    assert [tensor.name for tensor in sent.inputs] == [
        "text_input",
        "stream",
        "sampling_parameters",
        "exclude_input_in_output",
    ]
    assert list(sent.inputs[0].contents.bytes_contents) == [b"hi there"]
    assert {entry.key for entry in sent.parameters} == {"triton_enable_empty_final_response"}
    assert (sim.metadata[0]["authorization"], sim.metadata[0]["x-team"]) == ("Bearer secret", "a")


def test_open_loop_opens_more_connections_before_the_streams_of_one_are_used_up() -> None:
    with serving_grpc(GrpcSim(tokens=2, ttft_s=1.5)) as sim:
        requests = tuple(PlannedRequest(index, index * 4_000_000, STREAMED, index) for index in range(180))
        held = limits(first_token_s=20, stall_s=20, total_s=30, connect_s=5)
        found = run_stage(target(sim.url), PlannedStage.of("s", None, 250.0, requests), limits=held).requests
    assert set(found.error_detail) == {None}
    assert 2 <= len(set(sim.peers)) <= 6  # one for every 64 streams, or 48 where it takes time to connect


def test_answer_in_one_piece_is_one_chunk() -> None:
    with serving_grpc() as sim:
        found = columns(sim, WHOLE)
        assert set(found.error_detail) == {None}
        assert np.diff(found.chunk_start).tolist() == [1, 1, 1]
        assert (request_metrics.ttft_s(found) == request_metrics.e2e_s(found)).all()
        assert wait_ready(target(sim.url), endpoint="grpc-infer", ready_s=5, connect_s=1) == {}


def test_a_model_that_answers_streams_alone_is_ready_by_its_stream() -> None:
    with serving_grpc(GrpcSim(decoupled=True)) as sim:
        assert wait_ready(target(sim.url), endpoint="grpc-infer", ready_s=5, connect_s=1) == {}
        assert try_completion(target(sim.url), "grpc-infer", stream=True, within_s=5).fault is None
        assert set(columns(sim).error_detail) == {None}


@pytest.mark.parametrize(
    ("fault", "said"),
    [("status:UNIMPLEMENTED", "decoupled"), ("error-after:0", "as it was told to"), ("empty", "without an output")],
)
def test_a_stream_that_gives_nothing_is_not_ready(fault: str, said: str) -> None:
    with serving_grpc(GrpcSim(decoupled=True, fault=fault)) as sim:
        problem = liveness_problem(target(sim.url), endpoint="grpc-infer", within_s=5)
    assert said in str(problem)


@pytest.mark.parametrize(
    ("fault", "ask", "error", "said"),
    [
        (
            "status:RESOURCE_EXHAUSTED",
            STREAMED,
            ErrorClass.HTTP_429,
            "HTTP 429: gRPC RESOURCE_EXHAUSTED: as it was told",
        ),
        ("status:INVALID_ARGUMENT", WHOLE, ErrorClass.HTTP_4XX, "HTTP 400: gRPC INVALID_ARGUMENT"),
        ("status:INTERNAL", WHOLE, ErrorClass.HTTP_5XX, "HTTP 500: gRPC INTERNAL"),
        ("status:UNAVAILABLE", STREAMED, ErrorClass.HTTP_5XX, "HTTP 503: gRPC UNAVAILABLE"),
        ("status-after:3", STREAMED, ErrorClass.STREAM_BROKEN, "the stream ended with gRPC INTERNAL"),
        ("error-after:3", STREAMED, ErrorClass.STREAM_BROKEN, "error inside the stream: as it was told to"),
        ("cut-after:3", STREAMED, ErrorClass.STREAM_BROKEN, "without a finish reason"),
        ("empty", STREAMED, ErrorClass.EMPTY, "without any output"),
        ("empty", WHOLE, ErrorClass.EMPTY, "without any output"),
        ("hang-after:3", STREAMED, ErrorClass.TIMEOUT, "no further output came for 0.3 s"),
        ("hang-after:0", STREAMED, ErrorClass.TIMEOUT, "no output within 0.3 s"),
    ],
)
def test_broken_answer_is_a_failure(fault: str, ask: ModelRequest, error: ErrorClass, said: str) -> None:
    with serving_grpc(GrpcSim(fault=fault)) as sim:
        found = columns(sim, ask, 1, first_token_s=0.3, stall_s=0.3)
    assert found.error == (error,), found.error_detail
    assert said in str(found.error_detail[0])


def test_answer_without_a_text_is_another_protocol() -> None:
    with serving_grpc(GrpcSim(fault="no-text", states_final=False)) as sim:
        found = columns(sim, WHOLE, 1)
    assert found.error == (ErrorClass.PROTOCOL,)
    assert decode(b"\xff\xff", streamed=True) is None


def test_server_that_is_not_there_is_a_failed_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"grpc://127.0.0.1:{free.getsockname()[1]}"
    found = columns(GrpcSim(url=address), STREAMED, 2)
    assert set(found.error) == {ErrorClass.CONNECT}
    with pytest.raises(TargetError, match="UNAVAILABLE"):
        wait_ready(target(address), endpoint="grpc-infer", ready_s=1, connect_s=1)


def test_address_of_grpc_that_nobody_serves_is_an_error_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"grpc://127.0.0.1:{free.getsockname()[1]}"
    waits = list[str]()
    with pytest.raises(TargetError, match="cannot be reached: gRPC UNAVAILABLE"):
        wait_ready(
            target(address), endpoint="grpc-infer", ready_s=6, connect_s=1, may_start=False, waiting=waits.append
        )
    assert len(waits) <= 1  # one each half second


@pytest.mark.parametrize(
    ("code", "is_sure_at_once"),
    [("UNAUTHENTICATED", True), ("PERMISSION_DENIED", True), ("NOT_FOUND", False), ("INVALID_ARGUMENT", False)],
)
def test_refusal_over_grpc_ends_the_wait_as_it_does_over_http(
    monkeypatch: pytest.MonkeyPatch, code: str, is_sure_at_once: bool
) -> None:
    monkeypatch.setattr("benchgate.targets.probe._SURE_AFTER_S", 0.1)
    with serving_grpc(GrpcSim(fault=f"status:{code}")) as sim:
        with pytest.raises(TargetError, match=f"refuses requests: gRPC {code}: as it was told"):
            wait_ready(target(sim.url), endpoint="grpc-infer", ready_s=6, connect_s=1)
        assert (len(sim.requests) == 1) is is_sure_at_once


@pytest.mark.parametrize("refusal", ["NOT_FOUND:the model is loading", "UNAVAILABLE", "RESOURCE_EXHAUSTED"])
def test_refusal_over_grpc_that_may_pass_is_waited_for(monkeypatch: pytest.MonkeyPatch, refusal: str) -> None:
    monkeypatch.setattr("benchgate.targets.probe._SURE_AFTER_S", 0.0)
    with (
        serving_grpc(GrpcSim(fault=f"status:{refusal}")) as sim,
        pytest.raises(TargetError, match=r"was not ready within 0.6 s"),
    ):
        wait_ready(target(sim.url), endpoint="grpc-infer", ready_s=0.6, connect_s=1, may_start=False)


def test_check_over_grpc_ends_with_the_time_of_its_caller() -> None:
    with serving_grpc(GrpcSim(ttft_s=4)) as sim:
        problem = liveness_problem(target(sim.url), endpoint="grpc-infer", within_s=0.2)
    assert "DEADLINE_EXCEEDED" in str(problem)


@pytest.mark.parametrize(
    ("code", "trouble"),
    [
        ("UNAUTHENTICATED", Trouble.AUTH),
        ("NOT_FOUND", Trouble.MODEL),
        ("INVALID_ARGUMENT", Trouble.REFUSED),
        ("DEADLINE_EXCEEDED", Trouble.AWAY),
    ],
)
def test_trial_over_grpc_names_the_kind_of_refusal(code: str, trouble: Trouble) -> None:
    with serving_grpc(GrpcSim(fault=f"status:{code}")) as sim:
        trial = try_completion(target(sim.url), "grpc-infer", stream=False, within_s=5)
    assert trial.fault is not None
    assert trial.fault.trouble is trouble


def test_client_that_leaves_has_what_came_until_then() -> None:
    with serving_grpc(GrpcSim(tokens=50, itl_s=0.02)) as sim:
        request = PlannedRequest(0, None, STREAMED, 0, leave=ClientCancellation(4, None))
        found = run_stage(target(sim.url), PlannedStage.of("s", 1, None, (request,)), limits=limits()).only.left
    assert found.error == (None,)
    assert 4 <= np.diff(found.chunk_start)[0] < 50


def test_certificates_may_be_for_the_address_of_grpc_alone() -> None:
    spec = DeploymentSpec.model_validate(
        {"url": "http://h:8000", "grpc": "grpcs://h:8001", "model": "m", "tls": {"ca": str(CA)}, "engine": "triton"}
    )
    assert target_of(Arm.CANDIDATE, spec, {}, Path()).route.ca == str(CA)
    load = {
        "url": "http://h:8000",
        "model": "m",
        "engine": "triton",
        "endpoint": "grpc-infer",
        "grpc": "grpcs://h:8001",
    }
    assert LoadOptions.parse(**load, ca=str(CA), concurrency=1, requests=1, workers="1").route.ca == str(CA)  # type: ignore[arg-type]  # by name


def test_channel_with_tls_verifies_the_server() -> None:
    with serving_grpc(credentials=grpc.ssl_server_credentials([KEY_AND_CHAIN])) as sim:
        trusted = replace(target(sim.url), route=replace(target(sim.url).route, ca=CA))
        stage = PlannedStage.of("s", 1, None, (PlannedRequest(0, None, STREAMED, 0),))
        held = limits(first_token_s=5, stall_s=5, total_s=10, connect_s=1)
        assert run_stage(trusted, stage, limits=held).requests.error == (None,)
        (detail,) = run_stage(target(sim.url), stage, limits=held).requests.error_detail
        assert "UNAVAILABLE" in str(detail)


def test_tensors_are_those_of_the_suite_with_the_text_where_data_is_missing() -> None:
    inputs = [
        {"name": "text_input", "shape": [1, 1], "datatype": "BYTES"},
        {"name": "max_tokens", "shape": [1, 1], "datatype": "INT32", "data": [[8]]},
        {"name": "scale", "shape": [1], "datatype": "FP32", "data": [0.5]},
    ]
    ask = replace(STREAMED, fields={"inputs": inputs, "parameters": {"priority": 1}, "id": "r1"}, model="lora")
    body = ask_body(target("grpc://h:1"), ask, seed=3)
    assert body["inputs"] == [inputs[0] | {"data": ["hi there"]}, *inputs[1:]]
    assert (body["model_name"], body["id"]) == ("lora", "r1")
    assert body["parameters"] == {"triton_enable_empty_final_response": True, "priority": 1}
    sent = encode(body | {"parameters": {"a": False, "priority": 1, "x": "y", "d": 0.5}})
    assert sent.hex() == (  # the stubs of tritonclient 2.73.0 read this as it is written above
        "0a046c6f726112001a02723122070a016112020800220e0a087072696f726974791202100122080a017812031a0179220e0a0164120921"
        "000000000000e03f2a230a0a746578745f696e70757412054259544553180118012a0a4208686920746865726"
        "52a1b0a0a6d61785f746f6b656e731205494e543332180118012a0210082a160a057363616c6512044650333218012a05350000003f"
    )
    with pytest.raises(ValueError, match="write each with name, shape, datatype and data"):
        encode({"model_name": "m", "inputs": [{"name": "x", "shape": [1], "datatype": "TEXT", "data": ["a"]}]})


def test_operator_limits_hold_for_the_address_of_grpc(tmp_path: Path) -> None:
    limited = tmp_path / "limits.yaml"
    limited.write_text('hosts: ["127.0.0.1"]\n')
    stage = PlannedStage.of("s", 1, None, (PlannedRequest(0, None, STREAMED, 0),))
    allowed, refused = (
        stage_shard(target(f"grpc://{host}:8001"), stage, limits=limits()) for host in ("127.0.0.1", "gpu.example")
    )
    assert require_allowed(allowed, {VARIABLE: str(limited)}) is None
    with pytest.raises(LimitError, match=r"this is http://gpu\.example:8001"):
        require_allowed(refused, {VARIABLE: str(limited)})


@pytest.mark.parametrize(
    ("url", "address", "sent"),
    [
        ("https://gw.example", "grpcs://gw.example:8001", True),
        ("http://localhost:8000", "[::1]:8001", True),
        ("https://gw.example", "10.0.0.7:8001", True),
        ("https://gw.example", "gw.example:8001", False),
        ("http://localhost:8000", "8.8.8.8:8001", False),
        ("http://8.8.8.8:8000", "grpcs://gw.example:8001", False),
    ],
)
def test_the_customary_key_goes_only_where_both_addresses_are_confidential(
    monkeypatch: pytest.MonkeyPatch, url: str, address: str, sent: bool
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-customary-key")
    load = {"url": url, "model": "m", "engine": "triton", "endpoint": "grpc-infer", "grpc": address}
    options = LoadOptions.parse(**load, concurrency=1, requests=1, workers="1")  # type: ignore[arg-type]  # by name
    assert options.api_key == ("sk-customary-key" if sent else None)


def test_missing_extra_is_named_with_the_command_that_installs_it() -> None:
    with (
        patch("benchgate.targets.grpc_messages.find_spec", lambda name: None),
        pytest.raises(UsageError, match=r"install the extra `grpc` of benchgate: .*pip install .*\[grpc\]"),
    ):
        columns(GrpcSim(url="grpc://127.0.0.1:1"))
