"""On what terms a verdict was asked for, and what they make of it: its exit code, and whether the policy is its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchgate.errors import ExitCode
from benchgate.gate.judge import reference_doubt
from benchgate.model.run import Run
from benchgate.model.verdict import Outcome, Verdict, policy_sha256
from benchgate.suite.schema import Suite


@dataclass(frozen=True, slots=True)
class Terms:
    """What a verdict depends on beside the evidence.

    `policy` is the run's suite with the gate, slo and error budget that replaced its own; None when nothing was.
    `reference_outcome` is the own verdict of the stored run compared with, None when there is no such run or verdict.
    """

    policy: Suite | None = None
    reference_outcome: Outcome | None = None
    strict: bool = False

    def suite(self, run: Run) -> Suite:
        """The suite that the run was judged by."""
        return self.policy or Suite.from_stored(run.suite)

    def exit_code(self, verdict: Verdict) -> ExitCode:
        """The code of the verdict itself; whoever fails to keep or publish it has another."""
        return verdict.outcome.exit_code(strict=self.strict)

    def policy_replaced(self, run: Run, verdict: Verdict) -> bool:
        """Whether the verdict was given by another gate, slo or error budget than the run was measured under."""
        # Read and spelled again: a run of an older benchgate lacks what the language has gained since, defaults all.
        own = Suite.from_stored(run.suite)
        if verdict.policy_sha256 is not None and verdict.policy_sha256 != policy_sha256(own.to_stored()["gate"]):
            return True
        if self.policy is None:
            return False
        return self.slo(run) != run.suite["slo"] or self.policy.error_budget != own.error_budget

    def slo(self, run: Run) -> Mapping[str, object] | None:
        """The slo of the suite that the run was judged by, as a stored suite spells it."""
        slo = self.suite(run).slo
        return slo.model_dump(mode="json", by_alias=False) if slo is not None else None

    def reference_doubt(self) -> str | None:
        """A sentence, without its end, on a reference run that was itself not to be promoted."""
        return reference_doubt(self.reference_outcome)


OWN = Terms()
OTHER_POLICY = (
    "it was judged by another policy than it was measured under: whoever wrote the margins could know the numbers"
)
