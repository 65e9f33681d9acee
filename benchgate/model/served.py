"""What a deployment is known by in a history that outlives its name: its model, its engine and what it runs on."""

from __future__ import annotations

from collections.abc import Mapping

from benchgate.model.deployment import Deployment
from benchgate.model.identity import model_at
from benchgate.model.noise import hardware_of, version_of


def model_of(deployment: Deployment) -> str:
    """`org/name@REVISION`, as far as anybody said; of what benchgate serves itself its weights stand with its name."""
    weights = deployment.settings.get("weights") if deployment.url is None else None
    return model_at(deployment) if weights is None else f"{deployment.model} {weights}"


def engine_of(deployment: Deployment) -> str:
    """`vllm 0.11.0`: its engine, and the version where that is told."""
    return " ".join(filter(None, (deployment.engine, version_of(deployment))))


def tells_hardware(deployment: Deployment) -> bool:
    """Whether its server told its accelerators' names."""
    names = deployment.facts.get("accelerator_names")
    return isinstance(names, list) and bool(names)


def hardware_told(deployment: Deployment, environment: Mapping[str, object]) -> str:
    """What it runs on, in words that are equal where it is the same as far as anybody knows.

    `environment` is the run's. An address is no hardware: a candidate of every pull request may have one of its own.
    """
    if tells_hardware(deployment) or deployment.url is None:
        return hardware_of(deployment, environment)
    return f"not told (accelerators: {deployment.accelerators})"
