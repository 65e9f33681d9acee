"""Are the two sides served alike, but for what is declared as the change? What is compared: `differences`.

What differs speaks against holding one side to the other, and against nothing that is the candidate's alone.

Are there two deployments at all? A candidate that is the baseline under another name would pass whatever it is.

Is the model that answers the one that was asked for, by the name that every answer gives?
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from benchgate.gate.comparison import Comparison, arms_of
from benchgate.gate.evidence.deployments import Declared, between, declared, declared_sides, keys_declaring
from benchgate.gate.guards.base import COMPARED_SPEED, SPEED, held, tripped, unknown, warned
from benchgate.model.deployment import Arm, Deployment
from benchgate.model.metric import METRICS
from benchgate.model.run import AT_THE_START, Evidence
from benchgate.model.verdict import Difference, GuardResult
from benchgate.suite.schema import Suite

_SHAPES_ANSWERS = ("vocabulary", "chat_template", "request_fields")


def arms_alike(evidence: Evidence, suite: Suite) -> GuardResult:
    """Every field that both arms must share and nobody declares to differ; known of one arm only differs."""
    if len(evidence.run.arms) < len(Arm):
        return tripped("arms-alike", "the run does not know both deployments", "run the suite again", (SPEED,))
    if any(fault.when == AT_THE_START for fault in evidence.target_faults):
        return unknown("arms-alike", "a deployment was not there, so what it is was not asked")
    baseline, candidate = (declared(evidence.run, arm) for arm in (Arm.BASELINE, Arm.CANDIDATE))
    assert baseline is not None and candidate is not None, "the run knows both arms"
    return _alike("arms-alike", "arms", (baseline, candidate), suite)


def sides_alike(comparison: Comparison, suite: Suite) -> GuardResult:
    """The same of the two candidates that a comparison of stored runs holds against each other."""
    sides = declared_sides(comparison)
    if sides is None:
        return tripped("sides-alike", "a run does not know its candidate", "run the suite again", (SPEED,))
    return _alike("sides-alike", "deployments of the two runs", sides, suite)


def bounds_load_alone(suite: Suite) -> bool:
    """Return True where the policy judges load or starts, and every such check has a bound of its own, no margin."""
    of_load = [check for check in suite.gate.checks if METRICS[check.metric].family in ("load", "start")]
    return bool(of_load) and all(check.margin is None for check in of_load)


def _alike(name: str, who: str, sides: tuple[Declared, Declared], suite: Suite) -> GuardResult:
    allowed = suite.gate.allow_different
    differing = [one for one in between(*sides, allowed) if one.field is not None]
    undeclared = [one for one in differing if not one.declared]
    compared = _compared(undeclared, suite)
    wrong = list(_other_versions(sides))
    reasons, remedies = [said for said, _ in wrong], [write for _, write in wrong]
    if compared:
        fields = list(dict.fromkeys(str(one.field) for one in compared))
        keys = {key: field for key, field in keys_declaring(*sides, allowed).items() if field in fields}
        reasons.append(f"the {who} differ in {_told(compared)}")
        remedies.append(_remedy(keys, fields))
    if reasons:
        spoils = () if bounds_load_alone(suite) else COMPARED_SPEED
        return tripped(name, "; ".join(reasons), "; ".join(remedies), spoils)
    if undeclared:
        told = f"the {who} differ in {_told(undeclared)}, which nobody declares"
        return held(name, f"{told}; no check of the load holds one against the other, so none rests on that")
    if differing:
        return held(name, f"the {who} differ only in what is declared as the change: {_told(differing)}")
    return held(name, f"{'both arms' if who == 'arms' else 'both'} are served alike, as far as the servers say")


def _other_versions(sides: tuple[Declared, Declared]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong, and what to do, of each server that says another version than its suite declares."""
    for side in sides:
        version, name = side.other_version, side.deployment.name
        if version is not None:
            said = f"the server of {name} says that its engine's version is {version}"
            correct = f'`deployments.{name}.engine_version: "{version}"`'
            yield (
                f"{said}, where the suite declares {side.engine_version}",
                f"serve {name} by version {side.engine_version}, or write {correct}",
            )


def _compared(undeclared: list[Difference], suite: Suite) -> list[Difference]:
    """Return the differences on which a comparison rests.

    Where the load is held to bounds alone, answers may still be compared: on what shapes a prompt and its answer.
    """
    if not bounds_load_alone(suite):
        return undeclared
    others = [check for check in suite.gate.checks if METRICS[check.metric].family not in ("load", "start")]
    answers = any(check.margin is not None or METRICS[check.metric].family == "divergence" for check in others)
    return [one for one in undeclared if answers and one.field in _SHAPES_ANSWERS]


def _remedy(keys: Mapping[str, str], fields: Sequence[str]) -> str:
    """The keys of the deployments come first: every report shows what they say, where a permission shows nothing.

    `keys` are what to write, each with the field that it declares.
    """
    permit = f"`gate.allow_different: [{', '.join(fields)}]`"
    if not keys:
        return f"serve both alike; or, when that is the change to judge, write {permit}"
    rest = [field for field in fields if field not in keys.values()]
    written = ", ".join(keys) + (f" and `gate.allow_different: [{', '.join(rest)}]`" if rest else "")
    return (
        f"serve both alike; or, when that is the change to judge, write {written} and run the suite again (the stored "
        f"run is judged again with {permit})"
    )


def _told(differing: Iterable[Difference]) -> str:
    return ", ".join(f"{d.what} ({d.baseline} for the baseline, {d.candidate} for the candidate)" for d in differing)


_NAME = "two-deployments"
_EVERYTHING = ("load", "quality", "divergence", "shadow")


def two_deployments(evidence: Evidence) -> GuardResult:
    """Two names of one set of weights at one address, or one process that answers for both.

    A suite that names one deployment for both arms means it so. Two equal addresses are refused before a run begins;
    here is what only the servers can tell.
    """
    if len(arms_of(evidence)) < len(Arm) or len(evidence.run.arms) < len(Arm):
        return unknown(_NAME, "one deployment was measured")
    baseline, candidate = evidence.run.arms[Arm.BASELINE], evidence.run.arms[Arm.CANDIDATE]
    if baseline.name == candidate.name:
        return held(_NAME, "the suite means one deployment to be both arms")
    told = _one_set_of_weights(baseline, candidate) or _one_process(evidence, baseline, candidate)
    if told is not None:
        remedy = "correct the url, the model or the `metrics` of one of them, so that the candidate itself is asked"
        return tripped(_NAME, told, remedy, _EVERYTHING)
    return held(_NAME, "nothing says that one deployment answers for both arms")


def _one_set_of_weights(baseline: Deployment, candidate: Deployment) -> str | None:
    """A server that serves one model under several names tells for each of them where its weights are."""
    weights = baseline.facts.get("weights_at")
    if baseline.url is None or baseline.url != candidate.url or baseline.model == candidate.model:
        return None
    if any(deployment.facts.get("adapter_of") is not None for deployment in (baseline, candidate)):
        return None  # the same weights, and more
    if weights is None or weights != candidate.facts.get("weights_at"):
        return None
    return f"{baseline.model} and {candidate.model} are two names of one server for the same weights, {weights}"


def _one_process(evidence: Evidence, baseline: Deployment, candidate: Deployment) -> str | None:
    """By what tells one process from another on its page of metrics; one process may well serve two models."""
    if baseline.model != candidate.model:
        return None
    markers = {
        arm: {marker for window in evidence.telemetry if window.arm is arm for marker in window.markers} for arm in Arm
    }
    if markers[Arm.BASELINE] & markers[Arm.CANDIDATE]:
        return f"one server process answers for both arms, as {baseline.model}"
    return None


_SNAPSHOT = re.compile(
    r"[-@](\d{4}-\d{2}-\d{2}|\d{8}|[01]\d[0-3]\d)"
)  # gpt-4o -> gpt-4o-2024-08-06, gpt-4 -> gpt-4-0613
_MOST_SHOWN = 3
_LONGEST_SHOWN = 100


def model_names(evidence: Evidence, suite: Suite) -> GuardResult:
    """Warn where answers to the load name a model that was neither asked for nor declared by `answers_as`.

    Ramp and cancelled requests count too. Unknown where no answer names its model.
    """
    levels = suite.load.levels() if suite.load is not None else ()
    adapters = {level.name: level.workload.adapter for level in levels}
    answered: dict[tuple[Arm, str], set[str]] = {}
    for execution in evidence.load:
        deployment = evidence.run.arms.get(execution.arm)
        if deployment is None or execution.stage not in adapters:
            continue
        asked = adapters[execution.stage] or deployment.model
        names = {name for part in execution.parts for name in part.answer_model.counts() if name is not None}
        answered.setdefault((execution.arm, asked), set()).update(names)
    if not any(answered.values()):
        return unknown("model-names", "no answer says which model wrote it")
    told, declare = [], []
    for (arm, asked), names in answered.items():
        deployment_name = evidence.run.arms[arm].name
        spec = suite.deployments.get(deployment_name)
        other = unexpected_names(names, asked, () if spec is None else spec.answers_as)
        if other:
            told.append(
                f"the {arm.value} {deployment_name} was asked for {_shown([asked])} and answered as {_shown(other)}"
            )
            declare.append(f"`answers_as: [{_shown(other)}]` to `deployments.{deployment_name}`")
    if told:
        remedy = f"see which model it really serves; if it is the right one, add {' and '.join(declare)}"
        return warned("model-names", "; ".join(told), remedy)
    return held("model-names", "every answer names the model that was asked for, or one that the suite declares")


def unexpected_names(names: Collection[str], asked: str, declared: Collection[str] = ()) -> list[str]:
    """Return the names in answers that are not the model asked for, sorted.

    A name is expected where it is declared, or equals the one asked for apart from case, an organisation or path before
    it, a `.gguf` behind it and a dated snapshot. Two different snapshots are not one model: both are returned.
    """
    undeclared = [name for name in sorted(set(names)) if name not in declared]
    other = [name for name in undeclared if not _is_name_of(_bare(name), _bare(asked))]
    if len({_bare(name) for name in undeclared if name not in other}) > 1:
        return [name for name in undeclared if _bare(name) != _bare(asked)]
    return other


def _is_name_of(name: str, asked: str) -> bool:
    return name == asked or (name.startswith(asked) and _SNAPSHOT.fullmatch(name[len(asked) :]) is not None)


def _bare(name: str) -> str:
    return re.split(r"[/\\]", name)[-1].lower().removesuffix(".gguf")


def _shown(names: Sequence[str]) -> str:
    """Names as JSON strings, which YAML reads too."""
    shown = [json.dumps(name[:_LONGEST_SHOWN], ensure_ascii=False) for name in names[:_MOST_SHOWN]]
    return ", ".join([*shown, *(["…"] if len(names) > _MOST_SHOWN else [])])
