"""Is this comparison fair? What differs between the two sides, and what the guards say of the evidence itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchgate.model.deployment import Deployment, flatten_json
from benchgate.model.verdict import Difference, GuardResult, Outcome, Verdict
from benchgate.report import show
from benchgate.report.sides import Sides

_UNUSABLE = "The evidence cannot be used as it stands"
_HARM_STANDS = "Nothing can be promoted by this evidence as it stands, but harm that it shows counts all the same"


@dataclass(frozen=True, slots=True)
class Row:
    """One declared setting, or one thing the servers said of themselves, that is not the same on both sides.

    `status` says whether it is part of the change; empty where nobody looked at that.
    """

    name: str
    baseline: str
    candidate: str
    status: str = ""


@dataclass(frozen=True, slots=True)
class Fairness:
    """`equal` counts what was compared and found the same. `faults` name a side that was not there.

    `unsound` says what guards that object come to, as a sentence without its end. `change` is what the suite says in
    words that the candidate is.
    """

    tripped: tuple[GuardResult, ...]
    warned: tuple[GuardResult, ...]
    held: tuple[GuardResult, ...]
    unknown: tuple[GuardResult, ...]  # had nothing to look at
    faults: tuple[str, ...]
    cautions: tuple[str, ...]
    differences: tuple[Row, ...]
    equal: int
    unsound: str
    change: str = ""

    @property
    def fair(self) -> bool:
        """Whether nothing speaks against reading the checks as they stand."""
        return not (self.tripped or self.warned or self.faults or self.cautions)


def fairness(sides: Sides, verdict: Verdict, notices: Sequence[str] = ()) -> Fairness:
    """The comparability box: guards of the verdict, faults of the targets, differences between the deployments.

    `notices` are further cautions, which trip no guard.
    """
    ours, theirs = _described(sides.baseline.deployment), _described(sides.candidate.deployment)
    names = sorted(ours.keys() | theirs.keys())
    differing = [name for name in names if ours.get(name) != theirs.get(name)]
    rows = [Row(one.what, one.baseline, one.candidate, status_of(one)) for one in verdict.differences]
    rows = rows or [Row(n, ours.get(n, show.NOT_APPLICABLE), theirs.get(n, show.NOT_APPLICABLE)) for n in differing]
    return Fairness(
        tripped=tuple(g for g in verdict.guards if g.tripped),
        warned=tuple(g for g in verdict.guards if g.warns),
        held=tuple(g for g in verdict.guards if g.known and not (g.tripped or g.warns)),
        unknown=tuple(g for g in verdict.guards if not g.known and not g.tripped),
        faults=tuple(_faults(sides, verdict)),
        cautions=(*_cautions(sides), *notices),
        differences=tuple(rows),
        equal=len(names) - len(differing),
        unsound=_HARM_STANDS if verdict.outcome is Outcome.BLOCK else _UNUSABLE,
        change=str(sides.candidate.run.suite.get("change") or ""),
    )


def status_of(difference: Difference) -> str:
    """Whether a difference is part of the change that is judged, and by which word it is, or would be."""
    if difference.field is None:
        return "the change itself" if difference.declared else "seen"
    return f"declared: {difference.field}" if difference.declared else f"not declared: {difference.field}"


def _described(deployment: Deployment) -> dict[str, str]:
    fixed = {"engine": deployment.engine, "model": deployment.model, "accelerators": str(deployment.accelerators)}
    if deployment.url is not None:
        fixed["url"] = deployment.url
    declared = {f"declared: {name}": text for name, text in flatten_json(deployment.settings)}
    probed = {f"server says: {name}": text for name, text in flatten_json(deployment.facts)}
    return fixed | declared | probed


def _faults(sides: Sides, verdict: Verdict) -> Iterator[str]:
    """Times a deployment was not there, where no tripped guard says the same already."""
    told = " ".join(guard.reason for guard in verdict.guards if guard.tripped)
    for side in sides:
        for fault in side.faults:
            if f"{fault.when}: {fault.reason}" not in told:
                yield f"{side.role.value} {side.deployment.name} was not there {fault.when}: {fault.reason}"


def _cautions(sides: Sides) -> Iterator[str]:
    baseline, candidate = sides.baseline, sides.candidate
    if baseline.run.imported or candidate.run.imported:
        yield (
            "the evals were made elsewhere, by lm-eval, and imported from its files: what served them, where and "
            "how well, was not measured here"
        )
    if baseline.run.id != candidate.run.id:
        yield (
            "the two sides come from different runs and were not interleaved; speed is compared through the baseline "
            "that each run measured beside its candidate"
        )
    elif baseline.deployment.fingerprint == candidate.deployment.fingerprint and not sides.alone:
        yield "both sides are the same deployment: any difference is noise"
