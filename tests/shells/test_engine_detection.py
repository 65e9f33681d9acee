"""Each engine is recognised by what its own source says that it answers; docs/engines.yaml names the files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from benchgate.model.deployment import Arm
from benchgate.model.request import text_request
from benchgate.targets.dialect import DIALECTS, Target
from benchgate.targets.discovery import list_models
from benchgate.targets.endpoints import ask_body
from benchgate.targets.probe import detect_engine, server_facts
from tests.fakes.scripted_server import Received, ScriptedServer, Step, json_response

Pages = dict[str, object]


def models(owner: str | None, **more: object) -> object:
    entry = {"id": "m", "object": "model", "created": 1, **({} if owner is None else {"owned_by": owner}), **more}
    return {"object": "list", "data": [entry]}


TGI_INFO = {"model_id": "m", "router": "text-generation-router", "version": "3.3.6", "sha": None, "docker_label": None}
LORAX_INFO = {"model_id": "m", "model_dtype": "torch.float16", "eager_prefill": False, "version": "0.1.0",
              "docker_label": None}  # fmt: skip
ANTHROPIC_MODEL = {"id": "m", "type": "model", "display_name": "M", "created_at": "2026-01-01T00:00:00Z"}
LITELLM_HEALTH: Pages = {
    "/health/readiness": {"status": "healthy", "db": "Not connected"},
    "/health/readiness/details": {"status": "healthy", "db": "Not connected", "litellm_version": "1.106.2"},
}
DYNAMO_HEALTH = {"status": "healthy", "endpoints": [], "instances": []}

# Engine: the path after the host, its pages, and the version that it reports.
SERVERS: dict[str, tuple[str, Pages, str | None]] = {
    "vllm": ("", {"/v1/models": models("vllm"), "/version": {"version": "0.32.0"}}, "0.32.0"),
    "sglang": ("", {"/v1/models": models("sglang"), "/server_info": {"version": "0.5.6"}}, "0.5.6"),
    "trtllm": ("", {"/v1/models": models("tensorrt_llm"), "/version": {"version": "1.3"}}, "1.3"),
    "triton": ("", {"/v1/models": models("Triton Inference Server")}, None),
    "llamacpp": ("", {"/v1/models": models("llamacpp"), "/props": {"build_info": "b7000"}}, "b7000"),
    "ollama": ("", {"/v1/models": models("library"), "/api/version": {"version": "0.13.0"}}, "0.13.0"),
    "tgi": ("", {"/v1/models": models("m"), "/info": TGI_INFO}, "3.3.6"),
    "mlc": ("", {"/v1/models": models("MLC-LLM")}, None),
    "mlx": ("", {"/v1/models": models(None), "/health": {"status": "ok"}}, None),
    "lorax": ("", {"/info": LORAX_INFO}, "0.1.0"),
    "kserve": ("/openai/v1", {"/openai/v1/models": models(""), "/v2": {"name": "kserve", "version": "0.20"}}, "0.20"),
    "rayserve": ("", {"/v1/models": models("organization-owner", permission=[], metadata={})}, None),
    "litellm": ("", {"/v1/models": models("openai"), **LITELLM_HEALTH}, "1.106.2"),
    "dynamo": ("", {"/v1/models": models("nvidia"), "/health": DYNAMO_HEALTH}, None),
    "torchserve": ("/predictions/llm/1.0/v1", {"/predictions/llm/1.0/v1/models": models("vllm")}, None),
    "anthropic": ("", {"/v1/models": {"data": [ANTHROPIC_MODEL], "has_more": False}}, None),
    "openai": ("", {"/v1/models": models("openai"), "/health": {"status": "ok"}}, None),
}


def serving(pages: Pages, header: bytes = b"") -> ScriptedServer:
    def respond(received: Received) -> Iterator[Step]:
        found = received.path in pages
        reply = json_response(pages[received.path] if found else {"detail": "Not Found"}, 200 if found else 404)
        yield reply.replace(b"\r\n", b"\r\n" + header, 1)

    return ScriptedServer(respond)


@pytest.mark.parametrize("engine", SERVERS)
def test_engine_is_recognised_by_its_pages_and_reports_its_version(engine: str) -> None:
    base, pages, version = SERVERS[engine]
    with serving(pages, b"server: BaseHTTP/0.6 Python/3.12.0\r\n" if engine == "mlx" else b"") as server:
        target = Target(Arm.CANDIDATE, f"{server.url}{base.removesuffix('/v1')}", "m", DIALECTS["openai"])
        assert detect_engine(target) == list_models(target).engine == engine
        target = Target(Arm.CANDIDATE, target.url, "m", DIALECTS[engine])
        assert server_facts(target).get("engine_version") == version


def test_litellm_is_recognised_without_a_call_of_the_models_behind_it() -> None:
    _, pages, _ = SERVERS["litellm"]
    with serving(pages) as server:
        assert detect_engine(Target(Arm.CANDIDATE, server.url, "m", DIALECTS["openai"])) == "litellm"
        assert "/health" not in [received.path for received in server.requests]


def test_every_dialect_is_recognised() -> None:
    assert SERVERS.keys() == DIALECTS.keys()


def test_server_that_does_not_answer_gets_no_further_request() -> None:
    def respond(received: Received) -> Iterator[Step]:
        if received.path == "/v1/models":
            yield json_response(models("somebody"))
        else:
            yield 20.0

    with ScriptedServer(respond) as server:
        assert detect_engine(Target(Arm.CANDIDATE, server.url, "m", DIALECTS["openai"]), within_s=0.3) == "openai"
        assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("engine", "fields"),
    [
        ("mlc", {"debug_config": {"ignore_eos": True}}),
        ("lorax", {"ignore_eos_token": True}),
        ("dynamo", {"ignore_eos": True}),
        ("litellm", {"cache": {"no-cache": True}}),
        ("mlx", {}),
        ("tgi", {}),
    ],
)
def test_body_has_the_engine_s_own_fields_and_no_others(engine: str, fields: dict[str, object]) -> None:
    target = Target(Arm.CANDIDATE, "http://h", "m", DIALECTS[engine])
    body = ask_body(target, text_request("chat", "hello", 4, ignore_eos=True), seed=1)
    usual = {"model", "messages", "max_tokens", "temperature", "seed", "stream", "stream_options"}
    assert {name: value for name, value in body.items() if name not in usual} == fields


def test_schema_for_mlc_is_a_text_of_json() -> None:
    schema = {"type": "object", "properties": {}}
    fields = {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}
    ask = replace(text_request("chat", "hello", 4), fields=fields)
    body = ask_body(Target(Arm.CANDIDATE, "http://h", "m", DIALECTS["mlc"]), ask)
    assert body["response_format"] == {"type": "json_object", "schema": json.dumps(schema)}
