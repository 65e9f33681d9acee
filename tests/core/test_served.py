"""What a deployment is known by from run to run, whatever it is called and wherever it is."""

from __future__ import annotations

from typing import Any

import pytest

from benchgate.model.deployment import Deployment, engine_label, hardware_label, model_label

COMMIT, OTHER = "a" * 40, "b" * 40
MACHINE = {"cpu": "a processor", "cpus": 8, "os": "Linux"}


def deployment(url: str | None = "http://a", model: str = "org/name", **said: Any) -> Deployment:
    return Deployment(name="new", model=model, engine="vllm", url=url, **said)


@pytest.mark.parametrize(
    ("known", "model"),
    [
        (deployment(), "org/name"),
        (deployment(settings={"revision": COMMIT}), f"org/name@{COMMIT}"),
        (deployment(settings={"revision": "main"}), "org/name@main"),
        (deployment(model="org/name@v2"), "org/name@v2"),
        (deployment(settings={"revision": "main"}, facts={"model_sha": OTHER}), f"org/name@{OTHER}"),
        (deployment(model="org/name@main", facts={"model_sha": OTHER}), f"org/name@{OTHER}"),
        (deployment(settings={"revision": COMMIT}, facts={"model_sha": 7}), f"org/name@{COMMIT}"),
        (deployment(url=None, model="tiny", settings={"weights": "q4_0"}), "tiny q4_0"),
        (deployment(url=None, model="practice"), "practice"),
        (deployment(settings={"weights": "q4_0"}), "org/name"),  # what anybody may write of a server that is not ours
    ],
)
def test_a_model_is_known_by_its_revision_as_its_server_told_it_first(known: Deployment, model: str) -> None:
    assert model_label(known) == model


@pytest.mark.parametrize(
    ("known", "hardware"),
    [
        (deployment(facts={"accelerator_names": ["H200", "H200", "A100"]}), "1 x A100, 2 x H200"),
        (deployment(url="http://b", facts={"accelerator_names": ["H200"]}), "1 x H200"),
        (deployment(), "not reported (accelerators: 1)"),
        (deployment(url="http://b", accelerators=4), "not reported (accelerators: 4)"),
        (deployment(facts={"accelerator_names": []}), "not reported (accelerators: 1)"),
        (deployment(facts={"accelerator_names": "H200"}), "not reported (accelerators: 1)"),
        (deployment(url=None), "this machine: a processor, 8 processors"),
    ],
)
def test_hardware_is_what_was_told_and_no_address(known: Deployment, hardware: str) -> None:
    assert hardware_label(known, MACHINE) == hardware


def test_an_engine_has_its_version_where_it_is_told() -> None:
    assert engine_label(deployment()) == "vllm"
    assert engine_label(deployment(facts={"engine_version": "0.11.0"})) == "vllm 0.11.0"
