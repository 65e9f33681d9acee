"""What deployments say of themselves is asked before and after; and which accelerators serve them."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from benchgate.model.deployment import Arm
from benchgate.model.run import CHANGED
from benchgate.pipeline.deployments import TargetDown, reported_facts, require_same_servers
from benchgate.suite.schema import Suite
from benchgate.targets.dialect import DIALECTS, Target
from benchgate.targets.probe import weights_name
from benchgate.telemetry.sources import Sources, accelerator_facts
from tests.fakes.measured import SuiteText
from tests.fakes.scripted_server import Received, ScriptedServer, Step, json_response


def suite() -> Suite:
    return SuiteText([{"metric": "ttft", "margin": "10%"}]).suite()


def target(url: str) -> Target:
    return Target(Arm.CANDIDATE, url, "m", DIALECTS["vllm"])


def test_a_deployment_that_was_replaced_meanwhile_is_named_with_what_changed() -> None:
    version = "0.32.0"

    def respond(received: Received) -> Iterable[Step]:
        if received.path == "/version":
            return [json_response({"version": version})]
        return [json_response({"data": [{"id": "m", "max_model_len": 4096}]})]

    with ScriptedServer(respond) as server:
        targets = {Arm.CANDIDATE: target(server.url)}
        said = reported_facts(suite(), targets)
        assert said == {Arm.CANDIDATE: {"engine_version": "0.32.0", "max_model_len": 4096}}
        require_same_servers(suite(), targets, said)
        version = "0.33.0"
        with pytest.raises(TargetDown) as down:
            require_same_servers(suite(), targets, said)
    (fault,) = down.value.faults
    assert fault.arm is Arm.CANDIDATE
    assert fault.when == "after the last measurement"
    assert fault.reason == f"{CHANGED}: engine_version was 0.32.0 and is 0.33.0"


def test_what_is_no_longer_told_is_not_known_to_have_changed() -> None:
    with ScriptedServer(lambda _: [json_response({"version": "1"})]) as server:
        said = reported_facts(suite(), {Arm.CANDIDATE: target(server.url)})
    require_same_servers(suite(), {Arm.CANDIDATE: target(server.url)}, said)  # nobody answers there any more
    assert said[Arm.CANDIDATE] == {"engine_version": "1"}


def test_a_deployment_that_is_ours_is_not_asked_again() -> None:
    ours = Suite.model_validate(
        {
            "suite": "s",
            "deployments": {"baseline": {"sim": {}}, "candidate": {"sim": {}}},
            "load": {
                "workload": {"input": 8, "output": 8},
                "sweep": [{"stage": "c1", "concurrency": 1, "requests": 1}],
            },
            "gate": {"checks": [{"metric": "ttft", "margin": "10%"}]},
        }
    )
    assert reported_facts(ours, {Arm.CANDIDATE: target("http://127.0.0.1:9")}) == {}


def test_accelerators_are_named_by_an_exporters_labels() -> None:
    labels = 'gpu="%d",modelName="NVIDIA L4",DCGM_FI_DRIVER_VERSION="%s"'
    lines = [f"DCGM_FI_DEV_SM_CLOCK{{{labels % (number, driver)}}} 2040" for number, driver in ((0, "550"), (1, "560"))]
    page = "\n".join([*lines, "DCGM_FI_DEV_GPU_UTIL 3", ""]).encode()

    def respond(_: Received) -> Iterable[Step]:
        return [b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(page) + page]

    with ScriptedServer(respond) as exporter:
        found = accelerator_facts(Sources(gpu=f"{exporter.url}/metrics"), target("http://h"))
    assert found == {"accelerator_names": ["NVIDIA L4", "NVIDIA L4"], "driver": "550, 560"}
    with ScriptedServer(lambda _: [json_response({"no": "page"})]) as other:
        assert accelerator_facts(Sources(gpu=f"{other.url}/metrics"), target("http://h")) == {}


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("org/model", "org/model"),
        ("/srv/customers/acme/model-7b/", "model-7b"),
        ("C:\\models\\q8.gguf", "q8.gguf"),
        ("./weights/q8.gguf", "q8.gguf"),
    ],
)
def test_of_a_path_to_weights_only_the_last_part_is_kept(path: str, shown: str) -> None:
    assert weights_name(path) == shown
