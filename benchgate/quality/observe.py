"""From the lines of a spool to the observation of one task: pure, and strict about what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from benchgate.model.deployment import Arm
from benchgate.model.records import EvalItem
from benchgate.model.run import QualityObservation
from benchgate.plan.schedule import PlannedTask
from benchgate.quality.spool import Answered, Scored, TaskDone


@dataclass(slots=True)
class TaskRecord:
    """What has come of one task so far. Items are kept by their own id, so the order of completion is of no matter."""

    task: PlannedTask
    answered: dict[str, Answered] = field(default_factory=dict)
    scored: dict[str, Scored] = field(default_factory=dict)

    @property
    def ids(self) -> list[str]:
        """The ids of the planned rows, in their order."""
        return [str(row["id"]) for row in self.task.rows]

    def fault(self, done: TaskDone) -> str | None:
        """Why the finished task cannot be trusted; None when every row was answered, scored and counted."""
        expected = set(self.ids)
        if done.effective_n != len(expected) or self.answered.keys() != expected or self.scored.keys() != expected:
            found = f"asked {len(self.answered)}, scored {len(self.scored)}, counted {done.effective_n}"
            return f"lm-eval did not use exactly the {len(expected)} rows of the task: {found}"
        failed = [line for line in self.answered.values() if line.error is not None]
        if failed:
            return f"{len(failed)} of {len(expected)} items failed, the first with: {failed[0].error}"
        return None

    def observation(self, arm: Arm, fault: str | None, harness: Mapping[str, object]) -> QualityObservation:
        """The observation with the items that came, in the order of the rows."""
        answered = self.answered.values()
        counts = {
            "null_answers": sum(line.was_null for line in answered),
            "retries": sum(line.retries for line in answered),
        }
        return QualityObservation(
            task=self.task.name,
            arm=arm,
            items=tuple(_item(self.answered[i], self.scored.get(i)) for i in self.ids if i in self.answered),
            expected_n=len(self.ids),
            fault=fault,
            harness={**harness, **counts},
        )


def _item(answered: Answered, scored: Scored | None) -> EvalItem:
    """A failed item has no score, though lm-eval gave its stand-in one; one that was never scored has no hashes."""
    error = answered.error
    if error is None and scored is None:
        error = "answered, but the eval ended before it was scored"
    return EvalItem(
        item_id=answered.item_id,
        doc_hash=scored.doc_hash if scored else "",
        prompt_hash=scored.prompt_hash if scored else "",
        target_hash=scored.target_hash if scored else "",
        score=scored.score if scored is not None and error is None else None,
        answer=answered.answer,
        finish_reason=answered.finish_reason,
        output_tokens=answered.output_tokens,
        latency_ns=answered.latency_ns,
        error=error,
    )
