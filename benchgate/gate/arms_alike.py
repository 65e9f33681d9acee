"""Do the two deployments differ in anything but the change that is judged?

What a candidate is (its weights, its model's name and size, its address, its price) may differ: that is the change.
What serves it must be the same, or be declared as part of the change by the policy's `allow_different`: a newer engine
that is faster hides weights that are slower. Why these fields: docs/decisions.md, "Arms that differ".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from benchgate.gate.guard import SPEED, held, tripped, unknown
from benchgate.model.deployment import Arm, Deployment, canonical_json
from benchgate.model.run import AT_THE_START, Evidence
from benchgate.model.verdict import GuardResult
from benchgate.suite.schema import Suite


def _first_of(deployment: Deployment, *names: str) -> object:
    """The first of these that the server said of itself, or that the suite declared."""
    told = {**deployment.settings, **deployment.facts}
    return next((told[name] for name in names if name in told), None)


def _request_fields(deployment: Deployment) -> object:
    """Headers that are written out count too: a gateway may route by them, and a server may act on them."""
    said = {name: value for name in ("extra", "leave_out", "headers") if (value := deployment.settings.get(name))}
    return canonical_json(said).decode("utf-8", "replace") if said else "none"


_FIELDS: Mapping[str, tuple[str, Callable[[Deployment], object]]] = MappingProxyType(
    {
        "engine": ("the engine", lambda d: d.engine),
        "engine_version": ("the engine's version", lambda d: _first_of(d, "engine_version")),
        "context": ("the longest context", lambda d: _first_of(d, "max_model_len", "context_tokens")),
        "slots": ("the slots", lambda d: _first_of(d, "slots")),
        "threads": ("the threads", lambda d: _first_of(d, "threads")),
        "vocabulary": ("the size of the vocabulary", lambda d: _first_of(d, "n_vocab")),
        "accelerators": ("the number of accelerators", lambda d: d.accelerators),
        "request_fields": ("the extra fields or headers of requests", _request_fields),
        "proxy": ("the way there", lambda d: "by a proxy" if d.settings.get("proxy") else "direct"),
    }
)


def arms_alike(evidence: Evidence, suite: Suite) -> GuardResult:
    """Every field that both arms must share and the policy does not allow to differ; known of one arm only differs."""
    arms = evidence.run.arms
    if len(arms) < len(Arm):
        return tripped("arms-alike", "the run does not know both deployments", "run the suite again", (SPEED,))
    if any(fault.when == AT_THE_START for fault in evidence.target_faults):
        return unknown("arms-alike", "a deployment was not there, so what it is was not asked")
    baseline, candidate = arms[Arm.BASELINE], arms[Arm.CANDIDATE]
    differing = {
        name: f"{title} ({_show(one)} for the baseline, {_show(other)} for the candidate)"
        for name, (title, value_of) in _FIELDS.items()
        if (one := value_of(baseline)) != (other := value_of(candidate))
    }
    if "engine" in differing and "engine" in suite.gate.allow_different:
        differing.pop("engine_version", None)  # the version of another engine is another one
    undeclared = [name for name in differing if name not in suite.gate.allow_different]
    if undeclared:
        what = f"the arms differ in {_joined(differing[name] for name in undeclared)}"
        declare = f"`gate.allow_different: [{', '.join(undeclared)}]`"
        remedy = f"serve both alike; or, when that is the change to judge, write {declare}"
        return tripped("arms-alike", what, remedy, (SPEED,))
    if differing:
        return held("arms-alike", f"the arms differ only in what the policy allows: {_joined(differing.values())}")
    return held("arms-alike", "both arms are served alike, as far as the servers say")


def _show(value: object) -> str:
    return "not told" if value is None else str(value)


def _joined(parts: Iterable[str]) -> str:
    return ", ".join(parts)
