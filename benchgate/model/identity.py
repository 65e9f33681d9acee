"""Which weights a deployment serves: a commit that nobody can move, or a name under which others may be tomorrow.

A model hub's `main` is a name like that, and so is a tag. What is promoted must be what was measured.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from benchgate.model.deployment import Deployment

_COMMIT = re.compile(r"[0-9a-f]{40}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_NAMED = re.compile(r"(?P<model>[^\s@]+/[^\s@]+)@(?P<ref>\S+)")
HOW_TO_PIN = "write `revision` at the deployment in the suite (a commit of 40 hex digits, or sha256:… of a file)"


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


def identity_of(deployment: Deployment) -> Identity:
    """By what the suite says of its `revision` (or the name of its model, `org/name@ref`), and by what its server told.

    A revision that the suite declares is its author's word, unless the server tells one: then they must agree.
    """
    if deployment.url is None:
        return Identity(Pin.OURS, "served by benchgate itself")
    model, declared = _declared(deployment)
    seen = _commit(deployment.facts.get("model_sha"))
    if declared is None:
        if seen is None:
            return Identity(Pin.UNKNOWN, f"{model} at no stated revision: its identity is not pinned")
        return Identity(Pin.PINNED, f"{model} at {seen}, as its server told", seen)
    if _COMMIT.fullmatch(declared) is None and _DIGEST.fullmatch(declared) is None:
        return Identity(Pin.MOVING, f"{model} at {declared}, which is no commit of 40 hex digits: it may move")
    if seen is not None and _DIGEST.fullmatch(declared) is None and seen != declared:
        return Identity(Pin.CONTRADICTED, f"{model} at {declared} by the suite, and at {seen} by its server")
    by = "the suite" if seen != declared else "the suite and its server"
    return Identity(Pin.PINNED, f"{model} at {declared}, by {by}", declared)


def _declared(deployment: Deployment) -> tuple[str, str | None]:
    """The model's name, and the revision that the suite declares of it; None where it declares none."""
    named = _NAMED.fullmatch(deployment.model)
    model, ref = (named["model"], named["ref"]) if named is not None else (deployment.model, None)
    declared = deployment.settings.get("revision", ref)
    return model, None if declared is None else str(declared)


def _commit(said: object) -> str | None:
    return said if isinstance(said, str) and _COMMIT.fullmatch(said) else None
