"""Who is asked about the answers: an embeddings endpoint, a judge. Their references are resolved here, before a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchgate.errors import TargetError, UsageError
from benchgate.model.deployment import Arm
from benchgate.shadow.judge_prompt import BUILT_IN
from benchgate.suite.deployment import DeploymentSpec
from benchgate.suite.shadow import Judge, Shadow, Similarity
from benchgate.targets.address import ServerAddress
from benchgate.targets.dialect import Target, target_of


@dataclass(frozen=True, slots=True)
class Helpers:
    """What is asked beside the two arms; None where the suite has no such thing."""

    similarity: Target | None = None
    judge: Target | None = None
    judge_prompt: str = BUILT_IN
    judge_tokens: int = 64


NOBODY = Helpers()


def helpers_of(
    settings: Shadow | None, environment: Mapping[str, str], folder: Path, judge_prompt: str | None
) -> Helpers:
    """The helpers of a shadow comparison. UsageError for a variable that is not set, or no address."""
    if settings is None:
        return NOBODY
    judge = settings.judge
    return Helpers(
        None if settings.similarity is None else _target(settings.similarity, environment, folder),
        None if judge is None else _target(judge, environment, folder),
        judge_prompt or BUILT_IN,
        NOBODY.judge_tokens if judge is None else judge.max_tokens,
    )


def _target(spec: Similarity | Judge, environment: Mapping[str, str], folder: Path) -> Target:
    """As if it were a deployment; of which arm means nothing."""
    deployment = DeploymentSpec(url=spec.url, model=spec.model, api_key=spec.api_key, headers=spec.headers)
    target = target_of(Arm.BASELINE, deployment, environment, folder)
    try:
        ServerAddress.of(target.url)
    except TargetError as exc:
        raise UsageError(f"shadow.{type(spec).__name__.lower()}.url: {exc}") from None
    return target
