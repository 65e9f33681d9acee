"""Differences between two deployments that a suite declares by the deployments' own keys.

Fewer accelerators, other ones, another engine or another version of it are what many promotions change. The suite
says so beside each deployment (`accelerators`, `accelerator`, `engine`, `engine_version`). Where the servers say the
same, the difference needs no permission. Rules and reasons: docs/decisions.md, "Arms that differ".
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from benchgate.model.deployment import Arm, Deployment
from benchgate.model.run import Run

FLAGS = "flags"
"""The fact in which a server's own settings stand by name."""

_EACH_AN_ACCELERATOR = ("tp_size", "tensor_parallel_size", "pp_size", "pipeline_parallel_size", "num_shard")
_REPLICAS = ("dp_size", "data_parallel_size")
_SHARED_REPLICAS = "enable_dp_attention"  # SGLang's data parallelism over the accelerators of `tp_size`
PARALLEL_FLAGS = frozenset({*_EACH_AN_ACCELERATOR, *_REPLICAS, "ep_size"})
"""Flags that say how one model is spread over accelerators; experts are spread over those of `tp_size`."""

_MODEL = re.compile(r"(?:A|B|H|L|V|GB|GH|MI|RTX)[0-9]{2,4}[A-Z]{0,2}|[LT]4", re.IGNORECASE)
"""A word by which accelerators are sold, like A100, L40S, GB200 or MI300X; names of machines are none of them."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A deployment with what its suite says beside it; None where the suite does not say it."""

    deployment: Deployment
    accelerator: str | None = None
    engine_version: str | None = None

    @property
    def version(self) -> str | None:
        """The engine's version as the server says; where it does not, as the suite does."""
        told = self.deployment.facts.get("engine_version", self.deployment.settings.get("engine_version"))
        return self.engine_version if told is None else str(told)

    @property
    def other_version(self) -> str | None:
        """The version that the server says, where the suite declares another one; else None."""
        wrong = self.engine_version is not None and self.version != self.engine_version
        return self.version if wrong else None


def declared(run: Run, arm: Arm) -> Declared | None:
    """Return an arm with what the run's own suite says of it; None where the run does not know the arm."""
    deployment = run.arms.get(arm)
    if deployment is None:
        return None
    deployments = run.suite.get("deployments")
    spec = deployments.get(deployment.name) if isinstance(deployments, Mapping) else None
    said = spec if isinstance(spec, Mapping) else {}
    texts = (said.get(key) for key in ("accelerator", "engine_version"))
    kind, version = (text if isinstance(text, str) and text else None for text in texts)
    return Declared(deployment, kind, version)


def declaring_key(field: str, flag: str | None, one: Declared, other: Declared) -> str | None:
    """Return the key of the deployments that declares a difference; None where none does, or the servers contradict it.

    `field` is the word of the difference in `gate.allow_different`, `flag` the flag where it is one of the engine's.
    """
    sides = (one.deployment, other.deployment)
    if field in ("accelerators", "engine"):
        return field
    if field in ("engine_version", "engine_flags") and sides[0].engine != sides[1].engine:
        return "engine"
    if field == "engine_version":
        versions = (one.engine_version, other.engine_version)
        stated = None not in versions and versions[0] != versions[1]
        return "engine_version" if stated and one.other_version is other.other_version is None else None
    counts_differ = sides[0].accelerators != sides[1].accelerators
    if field == "engine_flags" and flag in PARALLEL_FLAGS:
        spread = all(accelerators_by_flags(side) == side.accelerators for side in sides)
        return "accelerators" if counts_differ and spread else None
    return _declared_hardware(one, other) if field == "hardware" else None


def _declared_hardware(one: Declared, other: Declared) -> str | None:
    """The servers' accelerators are as many as the suite says; where they are of two kinds, it names both."""
    names = [told_accelerators(side.deployment) for side in (one, other)]
    drivers = {str(side.deployment.facts.get("driver")) for side in (one, other)}
    if len(drivers) > 1:
        return None
    if any(len(told) != side.deployment.accelerators for told, side in zip(names, (one, other), strict=True)):
        return None
    if set(names[0]) == set(names[1]):
        return "accelerators"
    kinds = (one.accelerator, other.accelerator)
    if kinds[0] is None or kinds[1] is None or kinds[0].casefold() == kinds[1].casefold():
        return None
    named = all(is_kind(kind, name) for kind, told in zip(kinds, names, strict=True) if kind for name in told)
    return "accelerator" if named else None


def keys_to_write(field: str, flag: str | None, one: Declared, other: Declared) -> Iterator[str]:
    """Yield `deployments.NAME.KEY: VALUE` for whatever would declare a difference of this field, as the servers are."""
    for side, beside in ((one, other), (other, one)):
        deployment = side.deployment
        names, others = told_accelerators(deployment), told_accelerators(beside.deployment)
        key = f"deployments.{deployment.name}"
        count: int | None = None
        if field == "hardware" and names:
            count = len(names)
        elif flag in PARALLEL_FLAGS:
            count = accelerators_by_flags(deployment)
        if count is not None and count != deployment.accelerators:
            yield f"`{key}.accelerators: {count}`"
        if field == "hardware" and names and set(names) != set(others):
            kind = next(iter(sorted(models_in(names[0]))), names[0])
            if side.accelerator is None or not is_kind(side.accelerator, names[0]):
                yield f"`{key}.accelerator: {kind}`"
        if field == "engine_version":
            version = side.version
            yield f"`{key}.engine_version`" if version is None else f'`{key}.engine_version: "{version}"`'


def told_accelerators(deployment: Deployment) -> list[str]:
    """Return the names of the accelerators that serve it, as its `gpu` says; none where nobody says."""
    names = deployment.facts.get("accelerator_names")
    return [str(name) for name in names] if isinstance(names, list) else []


def accelerators_by_flags(deployment: Deployment) -> int:
    """Return over how many accelerators the engine's flags spread the model; 1 where they do not say."""
    flags = deployment.facts.get(FLAGS)
    if not isinstance(flags, Mapping):
        return 1
    return math.prod(_sizes(flags, _EACH_AN_ACCELERATOR)) * _replicas(flags)


def _replicas(flags: Mapping[str, object]) -> int:
    shared = str(flags.get(_SHARED_REPLICAS, False)).casefold() in ("true", "1")
    return 1 if shared else math.prod(_sizes(flags, _REPLICAS))


def _sizes(flags: Mapping[str, object], names: Collection[str]) -> list[int]:
    found = (flags.get(name, 1) for name in names)
    return [size for size in found if isinstance(size, int) and not isinstance(size, bool) and size >= 1]


def models_in(name: str) -> set[str]:
    """Return the words of a name by which accelerators are sold: `NVIDIA H100 80GB HBM3` gives H100."""
    return {word.upper() for word in re.split("[^A-Za-z0-9]+", name) if _MODEL.fullmatch(word)}


def is_kind(kind: str, name: str) -> bool:
    """Return True where a server's name of an accelerator is of the kind that a suite calls so."""
    models = models_in(kind)
    return bool(models & models_in(name)) if models else kind.casefold() in name.casefold()
