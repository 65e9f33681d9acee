"""A server whose API stands beneath a path of its own is reached from every place that takes an address."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchgate.doctor.machine import State
from benchgate.doctor.suite import examine_deployments
from benchgate.init.probe import EndpointOption, probe_endpoints
from benchgate.load.standalone.options import LoadOptions
from benchgate.load.standalone.run import run_load_test
from benchgate.model.deployment import Arm
from benchgate.model.request import ENDPOINTS
from benchgate.shadow.assessors import assessors_of
from benchgate.suite.deployment import DeploymentSpec, Metrics
from benchgate.suite.loader import parse_suite
from benchgate.suite.quality import Shadow
from benchgate.targets.client import AsyncJsonClient
from benchgate.targets.dialect import Target, target_of
from benchgate.targets.probe import liveness_problem
from benchgate.telemetry.replicas import replica_counter
from benchgate.telemetry.sources import PageSource, sources_of
from tests.fakes.scripted_server import Received, Respond, ScriptedServer, Step, answering, json_response

# What follows the host in an address, and where its API then is.
BASES = {
    "/v1": "/v1",
    "/openai/v1": "/openai/v1",
    "/api/openai": "/api/openai/v1",
    "/v1beta/openai": "/v1beta/openai",
    "/v2/tenant/v1": "/v2/tenant/v1",
}
PAGE = b'vllm:num_requests_running{model_name="scripted"} 2\n'
ANSWERS = answering(lambda received: "one two three four")


def beneath(root: str) -> Respond:
    """Answer beneath this path, and its page of metrics and its workers beside the API."""
    beside = root.removesuffix("/v1")

    def respond(received: Received) -> Iterator[Step]:
        if received.path == f"{beside}/metrics":
            yield b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(PAGE), PAGE)
        elif received.path == f"{beside}/workers":
            yield json_response({"workers": [{"is_healthy": True}, {"is_healthy": True}]})
        elif received.path == f"{root}/embeddings":
            yield json_response({"data": [{"index": 0, "embedding": [1.0]}]})
        elif received.path.startswith(f"{root}/"):
            yield from ANSWERS(replace(received, path=f"/v1{received.path.removeprefix(root)}"))
        else:
            yield json_response({"detail": "Not Found"}, status=404)

    return respond


def target_at(url: str) -> Target:
    return target_of(Arm.CANDIDATE, DeploymentSpec(url=url, model="scripted"), {}, Path())


def load(url: str) -> None:
    for address in (url, f"{target_at(url).page('/v1/completions')}"):
        options = LoadOptions.parse(
            url=address, model="scripted", engine="auto", concurrency=1, requests=2, workers="1", warmup="0"
        )
        document: dict[str, Any] = dict(run_load_test(options))
        assert document["requests"]["ok"] == 2, document["failures"]


def readiness(url: str) -> None:
    assert liveness_problem(target_at(url)) is None


def helpers(url: str) -> None:
    helper = {"url": url, "model": "scripted", "send_text": True}
    assessors = assessors_of(
        Shadow.model_validate({"prompts": "unused", "similarity": helper, "judge": helper}), {}, Path(), None
    )

    async def post(target: Target | None, path: str) -> dict[str, object]:
        async with AsyncJsonClient(target, connect_s=5, total_s=5) as client:
            return await client.post(path, {"messages": []})

    assert "data" in asyncio.run(post(assessors.similarity, ENDPOINTS["embeddings"].path))
    assert "choices" in asyncio.run(post(assessors.judge, ENDPOINTS["chat"].path))


def telemetry(url: str) -> None:
    spec, target = DeploymentSpec(url=url, model="scripted"), target_at(url)
    page = sources_of(spec, target, {}).page
    assert page is not None
    with PageSource(page, target) as source:
        assert source.fetch().text == PAGE.decode()
    named = DeploymentSpec(url=url, model="scripted", metrics=Metrics(page=page))
    assert sources_of(named, target, {}).page == page


def replicas(url: str) -> None:
    target = target_at(url)
    for ready in ({"replicas": 2}, {"replicas": 2, "metrics": [target.page("/metrics"), target.page("/workers")]}):
        spec = DeploymentSpec.model_validate({"url": url, "model": "scripted", "ready": ready})
        counter = replica_counter(spec, target, {}, Path("unused"))
        assert counter is not None and counter.count().count == 2


def first_suite(url: str) -> None:
    named = [EndpointOption(arm, url, model, None) for arm, model in zip(Arm, ("scripted", "other"), strict=True)]
    probed = probe_endpoints((named[0], named[1]), {}, within_s=5)
    assert [one.trial.output_tokens for one in probed] == [4, 4]
    assert probed[0].spec.url is not None


def doctor(url: str) -> None:
    suite = parse_suite(
        f"""\
suite: based
deployments:
  old: {{url: "{url}", model: scripted, metrics: auto}}
  new: {{sim: {{}}}}
baseline: old
candidate: new
load:
  workload: {{input: 8 tokens, output: 4 tokens}}
  sweep: [{{stage: c1, concurrency: 1, requests: 60}}]
gate: {{checks: [{{metric: error_rate, max: 10%}}]}}
""",
        "suite.yaml",
    )
    failed = [s for s in examine_deployments(suite, Path(), {}, within_s=5) if s.state is State.FAIL]
    assert failed == []


PLACES: dict[str, Callable[[str], None]] = {
    "load": load,
    "readiness": readiness,
    "embeddings and judge": helpers,
    "metrics": telemetry,
    "replicas": replicas,
    "init": first_suite,
    "doctor": doctor,
}


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("place", PLACES)
def test_base_path_is_accepted_wherever_an_address_is(base: str, place: str) -> None:
    with ScriptedServer(beneath(BASES[base])) as server:
        PLACES[place](f"{server.url}{base}")
        paths = {received.path for received in server.requests}
    root = BASES[base]
    assert paths and all(path.startswith(root) for path in paths if path.endswith(("/models", "completions")))
