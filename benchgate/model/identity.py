"""Identity of the served model: its pinned revision, its engine and its hardware.

A pinned revision is a commit or digest. A branch such as a hub's `main`, or a tag, can move to other weights. The
weights that are promoted must be those that were measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from benchgate.model.deployment import Deployment
from benchgate.model.noise import describe_hardware, engine_version_of

_COMMIT = re.compile(r"[0-9a-f]{40}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_NAMED = re.compile(r"(?P<model>[^\s@]+/[^\s@]+)@(?P<ref>\S+)")
_ADAPTER = re.compile(r"[^\s@]+@(?P<ref>\S+)")
HOW_TO_PIN = (
    "write `revision` at the deployment in the suite (a commit of 40 hex digits, or sha256:… of a file; an adapter has "
    "it in its name, NAME@COMMIT)"
)


class PinStatus(StrEnum):
    """Degree to which the served weights are known."""

    OURS = "ours"  # benchgate made and served them
    PINNED = "pinned"
    UNKNOWN = "unknown"
    MOVING = "moving"
    CONTRADICTED = "contradicted"


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """Pinned state of a model; `told` is the end of a sentence about it, `revision` the commit or digest if PINNED."""

    pin: PinStatus
    told: str
    revision: str | None = None

    @property
    def may_move(self) -> bool:
        """Return True if the weights under this name can differ from those measured."""
        return self.pin in (PinStatus.MOVING, PinStatus.CONTRADICTED)

    @property
    def is_fixed(self) -> bool:
        """Return True if the weights under this name cannot change."""
        return self.pin in (PinStatus.OURS, PinStatus.PINNED)


def identity_of(deployment: Deployment, adapters: Iterable[str] = ()) -> ModelIdentity:
    """Determine the identity from the suite's `revision` (or the model name, `org/name@ref`) and the server's report.

    A declared revision is the author's claim. If the server reports one too, they must agree. Weights of `adapters`
    requested by name are pinned if their names are, as `name@commit`.
    """
    if deployment.url is None:
        return ModelIdentity(PinStatus.OURS, "served by benchgate itself")
    known = _model_identity(deployment)
    for name in adapters if not known.may_move else ():
        named = _ADAPTER.fullmatch(name)
        if named is None:
            known = ModelIdentity(PinStatus.UNKNOWN, f"{known.told}; and its adapter {name} is not pinned")
        elif not _is_pinned(named["ref"]):
            return ModelIdentity(
                PinStatus.MOVING, f"{known.told}; and its adapter {name} is at no whole commit: it may move"
            )
    return known


def model_with_revision(deployment: Deployment) -> str:
    """Return `org/name@REVISION`, by the server's report or else the suite; the name alone if neither has one."""
    model, ref = _split_revision(deployment)
    said = _commit(deployment.facts.get("model_sha")) or deployment.settings.get("revision", ref)
    return model if said is None else f"{model}@{said}"


def adapter_names(asked: object) -> Iterator[str]:
    """Yield the adapter names in a suite's `load` as plain JSON: of every workload, stage and class."""
    for key, value in asked.items() if isinstance(asked, dict) else ():
        if key == "adapter" and isinstance(value, str):
            yield value
        else:
            yield from adapter_names(value)
    for value in asked if isinstance(asked, list | tuple) else ():
        yield from adapter_names(value)


def _model_identity(deployment: Deployment) -> ModelIdentity:
    model, ref = _split_revision(deployment)
    said = deployment.settings.get("revision", ref)
    declared, seen = None if said is None else str(said), _commit(deployment.facts.get("model_sha"))
    if ref is not None and declared != ref:
        return ModelIdentity(PinStatus.CONTRADICTED, f"{model} at {ref} by its name, and at {declared} by the suite")
    if declared is None:
        if seen is None:
            return ModelIdentity(PinStatus.UNKNOWN, f"{model} at no stated revision: its identity is not pinned")
        return ModelIdentity(PinStatus.PINNED, f"{model} at {seen}, as its server told", seen)
    if not _is_pinned(declared):
        return ModelIdentity(
            PinStatus.MOVING, f"{model} at {declared}, which is no commit of 40 hex digits: it may move"
        )
    if seen is not None and _DIGEST.fullmatch(declared) is None and seen != declared:
        return ModelIdentity(PinStatus.CONTRADICTED, f"{model} at {declared} by the suite, and at {seen} by its server")
    by = "the suite" if seen != declared else "the suite and its server"
    return ModelIdentity(PinStatus.PINNED, f"{model} at {declared}, by {by}", declared)


def _split_revision(deployment: Deployment) -> tuple[str, str | None]:
    """Split the model's name from the revision in it; None if there is none."""
    named = _NAMED.fullmatch(deployment.model)
    return (named["model"], named["ref"]) if named is not None else (deployment.model, None)


def _is_pinned(ref: str) -> bool:
    return _COMMIT.fullmatch(ref) is not None or _DIGEST.fullmatch(ref) is not None


def _commit(said: object) -> str | None:
    return said if isinstance(said, str) and _COMMIT.fullmatch(said) else None


def model_label(deployment: Deployment) -> str:
    """Return `org/name@REVISION` as far as known; an embedded deployment has its weights next to its name."""
    weights = deployment.settings.get("weights") if deployment.url is None else None
    return model_with_revision(deployment) if weights is None else f"{deployment.model} {weights}"


def engine_label(deployment: Deployment) -> str:
    """Return engine and version, such as `vllm 0.11.0`."""
    return " ".join(filter(None, (deployment.engine, engine_version_of(deployment))))


def reports_hardware(deployment: Deployment) -> bool:
    """Return True if the server reported its accelerators' names."""
    names = deployment.facts.get("accelerator_names")
    return isinstance(names, list) and bool(names)


def hardware_label(deployment: Deployment, environment: Mapping[str, object]) -> str:
    """Describe the hardware, in equal words for equal hardware; an address is not hardware.

    `environment` is the run's. Candidates of pull requests may each have an address of their own.
    """
    if reports_hardware(deployment) or deployment.url is None:
        return describe_hardware(deployment, environment)
    return f"not told (accelerators: {deployment.accelerators})"
