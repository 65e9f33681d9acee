"""Are the two sides served alike, but for what is declared as the change? What is compared: `differences`.

What differs speaks against holding one side to the other, and against nothing that is the candidate's alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from benchgate.gate.comparison import Comparison
from benchgate.gate.declared_change import Declared, declared
from benchgate.gate.differences import between, declared_sides, keys_declaring
from benchgate.gate.guard import COMPARED_SPEED, SPEED, held, tripped, unknown
from benchgate.model.deployment import Arm
from benchgate.model.run import AT_THE_START, Evidence
from benchgate.model.verdict import Difference, GuardResult
from benchgate.suite.metric_kinds import KINDS
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
    of_load = [check for check in suite.gate.checks if KINDS[check.metric].needs in ("load", "start")]
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
    others = [check for check in suite.gate.checks if KINDS[check.metric].needs not in ("load", "start")]
    answers = any(check.margin is not None or KINDS[check.metric].needs == "divergence" for check in others)
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
