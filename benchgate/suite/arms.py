"""Which arms a suite measures: both, or the candidate alone where nothing is compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from benchgate.model.deployment import Arm

if TYPE_CHECKING:
    from benchgate.suite.schema import Suite


_COMPARING = ("quality", "divergence", "shadow")  # sections that are about both arms


def measured_arms(suite: Suite) -> tuple[Arm, ...]:
    """Both; the candidate alone where one deployment is both of them and every check bounds its own values.

    To measure it twice would cost twice as much and show nothing that any check looks at.
    """
    return arms_of_stored(suite.to_stored())


def arms_of_stored(stored: Mapping[str, Any]) -> tuple[Arm, ...]:
    """The same of a suite as a run keeps it."""
    checks = (stored.get("gate") or {}).get("checks") or ()
    compares = any(check.get("margin") is not None for check in checks)
    compares = compares or not checks or any(stored.get(name) is not None for name in _COMPARING)
    same = stored.get("baseline") is not None and stored.get("baseline") == stored.get("candidate")
    return (Arm.CANDIDATE,) if same and not compares else (Arm.BASELINE, Arm.CANDIDATE)
