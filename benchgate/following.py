"""What follows a recorded promotion: a version in a model registry gets its alias, and a command of the reader's runs.

What can be found wrong beforehand is found before anything is recorded. Afterwards the promotion stands whatever fails,
everything that was asked for is tried, and the error says all that failed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

from benchgate.errors import PublishError, UsageError
from benchgate.model.deployment import Deployment
from benchgate.model.promotion import Promotion
from benchgate.publish.hook import hook_command, run_hook


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to follow, as the command line says it; `hook_limit_s` is how long the hook may take."""

    hook: str | None = None
    hook_limit_s: float = 600.0
    mlflow: str | None = None
    alias: str | None = None

    def __bool__(self) -> bool:
        return self.hook is not None or self.mlflow is not None


class Following:
    """What is to follow, ready to. Use it as a context manager.

    Entering it raises UsageError where it cannot be, and PublishError where the registry does not have the version.
    """

    def __init__(self, wanted: Wanted, environment: Mapping[str, str]) -> None:
        if (wanted.mlflow is None) != (wanted.alias is None):
            raise UsageError(
                "--mlflow names a version and --alias what it is called from now on: give both, or neither"
            )
        self._wanted, self._environment, self._stack = wanted, environment, ExitStack()
        self._steps: list[Callable[[Promotion, Deployment], None]] = []

    def __enter__(self) -> Self:
        with self._stack:
            if self._wanted.mlflow is not None and self._wanted.alias is not None:
                self._steps.append(self._in_registry(self._wanted.mlflow, self._wanted.alias))
            if self._wanted.hook is not None:
                command = hook_command(self._wanted.hook)
                self._steps.append(lambda promotion, candidate: self._hook(command, promotion, candidate))
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def follow(self, promotion: Promotion, candidate: Deployment) -> None:
        """Do all of it. PublishError, which says that the promotion stands, where any of it fails."""
        failed = []
        for step in self._steps:
            try:
                step(promotion, candidate)
            except PublishError as error:
                failed.append(str(error))
        if failed:
            raise PublishError(
                f"the promotion of run {promotion.run_id} is recorded and stands, but {'; and '.join(failed)}; what "
                "follows a promotion is done once more by the same command with --again"
            )

    def _in_registry(self, model: str, alias: str) -> Callable[[Promotion, Deployment], None]:
        from benchgate.publish.mlflow import Registry, asked_model, checked_alias  # not loaded for a hook alone

        asked, called = asked_model(model), checked_alias(alias)
        registry = self._stack.enter_context(Registry(self._environment))
        version = registry.find(asked)
        return lambda promotion, candidate: registry.promote(version, called, dict(_tags(promotion)))

    def _hook(self, command: tuple[str, ...], promotion: Promotion, candidate: Deployment) -> None:
        run_hook(
            command,
            variables(promotion, candidate),
            json.dumps(document(promotion, candidate), indent=2, sort_keys=True) + "\n",
            self._environment,
            self._wanted.hook_limit_s,
        )


def variables(promotion: Promotion, candidate: Deployment) -> dict[str, str]:
    """What the hook finds in its environment. What is not known is there, and empty."""
    grounds = promotion.grounds
    told = {
        "RUN_ID": promotion.run_id,
        "SUITE": promotion.suite,
        "DEED": promotion.deed.value,
        "IN_SERIES": "true" if promotion.in_series else "false",
        "PROMOTED_AT": promotion.promoted_at,
        "PROMOTED_BY": promotion.origin.by,
        "REF": promotion.origin.ref or "",
        "COMMIT": promotion.origin.commit or "",
        "CANDIDATE": candidate.name,
        "CANDIDATE_MODEL": candidate.model,
        "CANDIDATE_REVISION": grounds.revision or "" if grounds is not None else "",
        "VERDICT": grounds.outcome.value if grounds is not None else "",
        "VERDICT_SHA256": grounds.verdict_sha256 if grounds is not None else "",
        "EVIDENCE_SHA256": grounds.evidence_sha256 if grounds is not None else "",
        "SUITE_SHA256": grounds.suite_sha256 if grounds is not None else "",
        "REPORT_SHA256": grounds.report_sha256 if grounds is not None else "",
    }
    return {f"BENCHGATE_{name}": value for name, value in told.items()}


def document(promotion: Promotion, candidate: Deployment) -> dict[str, object]:
    """What the hook reads: the record, and the candidate that it is about."""
    served = {"name": candidate.name, "model": candidate.model, "engine": candidate.engine}
    return {**promotion.to_json(), "in_series": promotion.in_series, "candidate": served}


def _tags(promotion: Promotion) -> Iterator[tuple[str, str]]:
    """What a version in the registry is told of the run that it rests on."""
    yield "benchgate.run_id", promotion.run_id
    yield "benchgate.suite", promotion.suite
    yield "benchgate.deed", promotion.deed.value
    yield "benchgate.promoted_at", promotion.promoted_at
    if promotion.grounds is not None:
        yield "benchgate.verdict", promotion.grounds.outcome.value
        yield "benchgate.report_sha256", promotion.grounds.report_sha256
        yield "benchgate.revision", promotion.grounds.revision or "not pinned"
