"""Which weights a deployment serves: a commit that nobody can move, or a name under which others may be tomorrow.

A model hub's `main` is a name like that, and so is a tag. What is promoted must be what was measured.

What a deployment is known by in a history that outlives its name: its model, its engine and what it runs on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from benchgate.model.deployment import Deployment
from benchgate.model.noise import hardware_of, version_of

_COMMIT = re.compile(r"[0-9a-f]{40}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_NAMED = re.compile(r"(?P<model>[^\s@]+/[^\s@]+)@(?P<ref>\S+)")
_ADAPTER = re.compile(r"[^\s@]+@(?P<ref>\S+)")
HOW_TO_PIN = (
    "write `revision` at the deployment in the suite (a commit of 40 hex digits, or sha256:… of a file; an adapter has "
    "it in its name, NAME@COMMIT)"
)


class Pin(StrEnum):
    """How far it is known which weights a deployment serves."""

    OURS = "ours"  # benchgate made and served them
    PINNED = "pinned"
    UNKNOWN = "unknown"
    MOVING = "moving"
    CONTRADICTED = "contradicted"


@dataclass(frozen=True, slots=True)
class Identity:
    """`told` is a sentence's end about the model; `revision` the commit or digest, of PINNED alone, else None."""

    pin: Pin
    told: str
    revision: str | None = None

    @property
    def may_move(self) -> bool:
        """Whether it is known that what was measured need not be what is served under this name."""
        return self.pin in (Pin.MOVING, Pin.CONTRADICTED)

    @property
    def is_fixed(self) -> bool:
        """Whether nobody can put other weights under it."""
        return self.pin in (Pin.OURS, Pin.PINNED)


def identity_of(deployment: Deployment, adapters: Iterable[str] = ()) -> Identity:
    """By what the suite says of its `revision` (or the name of its model, `org/name@ref`), and by what its server told.

    A revision that the suite declares is its author's word, unless the server tells one: then they must agree. Weights
    of `adapters` that are asked by name are weights too: they are as fixed as their names, `name@commit`, say.
    """
    if deployment.url is None:
        return Identity(Pin.OURS, "served by benchgate itself")
    known = _of_model(deployment)
    for name in adapters if not known.may_move else ():
        named = _ADAPTER.fullmatch(name)
        if named is None:
            known = Identity(Pin.UNKNOWN, f"{known.told}; and its adapter {name} is not pinned")
        elif not _is_whole(named["ref"]):
            return Identity(Pin.MOVING, f"{known.told}; and its adapter {name} is at no whole commit: it may move")
    return known


def model_at(deployment: Deployment) -> str:
    """`org/name@REVISION`: by what its server told, else by what the suite says; the name alone where nobody said."""
    model, ref = _named(deployment)
    said = _commit(deployment.facts.get("model_sha")) or deployment.settings.get("revision", ref)
    return model if said is None else f"{model}@{said}"


def adapters_in(asked: object) -> Iterator[str]:
    """The adapters that a load asks for, from a suite's `load` as plain JSON: of every workload, stage and class."""
    for key, value in asked.items() if isinstance(asked, dict) else ():
        if key == "adapter" and isinstance(value, str):
            yield value
        else:
            yield from adapters_in(value)
    for value in asked if isinstance(asked, list | tuple) else ():
        yield from adapters_in(value)


def _of_model(deployment: Deployment) -> Identity:
    model, ref = _named(deployment)
    said = deployment.settings.get("revision", ref)
    declared, seen = None if said is None else str(said), _commit(deployment.facts.get("model_sha"))
    if ref is not None and declared != ref:
        return Identity(Pin.CONTRADICTED, f"{model} at {ref} by its name, and at {declared} by the suite")
    if declared is None:
        if seen is None:
            return Identity(Pin.UNKNOWN, f"{model} at no stated revision: its identity is not pinned")
        return Identity(Pin.PINNED, f"{model} at {seen}, as its server told", seen)
    if not _is_whole(declared):
        return Identity(Pin.MOVING, f"{model} at {declared}, which is no commit of 40 hex digits: it may move")
    if seen is not None and _DIGEST.fullmatch(declared) is None and seen != declared:
        return Identity(Pin.CONTRADICTED, f"{model} at {declared} by the suite, and at {seen} by its server")
    by = "the suite" if seen != declared else "the suite and its server"
    return Identity(Pin.PINNED, f"{model} at {declared}, by {by}", declared)


def _named(deployment: Deployment) -> tuple[str, str | None]:
    """The model's name, and the revision that is a part of it; None where none is."""
    named = _NAMED.fullmatch(deployment.model)
    return (named["model"], named["ref"]) if named is not None else (deployment.model, None)


def _is_whole(ref: str) -> bool:
    return _COMMIT.fullmatch(ref) is not None or _DIGEST.fullmatch(ref) is not None


def _commit(said: object) -> str | None:
    return said if isinstance(said, str) and _COMMIT.fullmatch(said) else None


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
