"""Is the model that answers the one that was asked for, by the name that every answer gives?"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence

from benchgate.gate.guard import held, unknown, warned
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence
from benchgate.model.verdict import GuardResult
from benchgate.suite.schema import Suite

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
