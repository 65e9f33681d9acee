"""Observation of one task, from the events of an eval process. Pure, and strict about anything missing."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from benchgate.model.deployment import Arm
from benchgate.model.records import EvalItem
from benchgate.model.run import QualityObservation
from benchgate.plan.items import PlannedTask
from benchgate.quality.protocol import ItemAnswered, ItemScored, TaskDone


def task_metadata(task: PlannedTask) -> dict[str, object]:
    """Return how a task is prompted and scored: stored with a run, and compared between the arms."""
    metadata = task.config.get("metadata")
    found: dict[str, object] = {
        "metric": task.metric,
        "filter": task.filter,
        "scale": task.scale,
        "output_type": task.output_type,
        "num_fewshot": task.config.get("num_fewshot") or 0,
        "fewshot_as_multiturn": task.fewshot_as_turns,
        "repeats": _repeats(task),
        "system_sha256": hashlib.sha256(task.system.encode()).hexdigest() if task.system else None,
        "task_version": metadata.get("version") if isinstance(metadata, dict) else None,
        "chance": task.chance,
        "leaves": task.leaves,
    }
    return {name: value for name, value in found.items() if value is not None}


def _repeats(task: PlannedTask) -> int:
    return int(str(task.config.get("repeats") or 1))


@dataclass(slots=True)
class TaskRecord:
    """Events of one task so far, by item id: the order of completion does not matter."""

    task: PlannedTask
    answered: dict[str, ItemAnswered] = field(default_factory=dict)
    scored: dict[str, ItemScored] = field(default_factory=dict)
    _empty: Counter[str] = field(default_factory=Counter)
    _cut: Counter[str] = field(default_factory=Counter)

    def take_answer(self, line: ItemAnswered) -> None:
        """Add an answer. Of several repetitions the first is shown, and a failure of any counts."""
        self._empty[line.item_id] += not (line.answer or "").strip()
        self._cut[line.item_id] += line.finish_reason == "length"
        first = self.answered.get(line.item_id)
        if first is None or line.repetition == 0:
            self.answered[line.item_id] = line
        else:
            self.answered[line.item_id] = replace(
                first,
                error=first.error or line.error,
                was_null=first.was_null or line.was_null,
                retries=first.retries + line.retries,
            )

    def fault(self, done: TaskDone) -> str | None:
        """Return why the finished task cannot be used, or None if every row was answered, scored and counted."""
        expected = set(self.task.item_ids)
        if done.effective_n != len(expected) or self.answered.keys() != expected or self.scored.keys() != expected:
            found = f"answered {len(self.answered)}, scored {len(self.scored)}, counted {done.effective_n}"
            return f"lm-eval did not use exactly the {len(expected)} rows of the task: {found}"
        failed = [line for line in self.answered.values() if line.error is not None]
        if failed:
            return f"{len(failed)} of {len(expected)} items failed, the first with: {failed[0].error}"
        for scored in self.scored.values():
            if not math.isfinite(scored.score):
                return f"the score of {scored.item_id} is {scored.score}"
            if self.task.scale == "binary" and scored.score not in (0.0, 1.0):
                found = f"the score of {scored.item_id} is {scored.score:g}, neither 0 nor 1"
                return f"{found}; write `scale: continuous` for the task, and judge it by `score`"
        # A server that gives all options of an item one log-probability did not read them.
        tied = sum(line.tied for line in self.answered.values())
        if tied * 2 > len(self.answered):
            what = f"{tied} of {len(self.answered)} items got the same log-probability for all their options"
            return f"{what}: the server does not score the texts it is given"
        return None

    def observation(
        self, arm: Arm, fault: str | None, harness: Mapping[str, object], repeat: int = 0
    ) -> QualityObservation:
        """Return the observation with the items so far, in the order of the rows."""
        answered = self.answered.values()
        counts = {
            "null_answers": sum(line.was_null for line in answered),
            "retries": sum(line.retries for line in answered),
        }
        if tied := sum(line.tied for line in answered):
            counts["tied_count"] = tied
        if (times := _repeats(self.task)) > 1:
            complete = [item for item in self.items() if item.error is None]
            unclear = [
                min(times, max(self._cut[item.item_id], self.scored[item.item_id].unreadable))
                for item in complete
                if not item.correct
            ]
            counts |= {
                "askings_count": times * len(complete),
                "empty_count": sum(self._empty[item.item_id] for item in complete),
                "unclear_count": sum(unclear),
            }
        return QualityObservation(
            task=self.task.name,
            arm=arm,
            items=self.items(),
            expected_n=len(self.task.rows),
            fault=fault,
            harness={**harness, **counts},
            repeat=repeat,
        )

    def items(self) -> tuple[EvalItem, ...]:
        """Return the items so far, in the order of the rows."""
        ids, key, clusters = self.task.item_ids, self.task.cluster_key, dict[str, str]()
        if key is not None:
            clusters = {item: str(row[key]) for item, row in zip(ids, self.task.rows, strict=True)}
        return tuple(_item(self.answered[i], self.scored.get(i), clusters.get(i)) for i in ids if i in self.answered)


def _item(answered: ItemAnswered, scored: ItemScored | None, cluster: str | None) -> EvalItem:
    # A failed item has no score, although lm-eval scored its placeholder; an item never scored has no hashes.
    error = answered.error
    if error is None and scored is None:
        error = "answered, but the eval ended before it was scored"
    valid = scored if error is None else None
    return EvalItem(
        item_id=answered.item_id,
        doc_hash=scored.doc_hash if scored else "",
        prompt_hash=scored.prompt_hash if scored else "",
        target_hash=scored.target_hash if scored else "",
        score=valid.score if valid else None,
        answer=answered.answer,
        finish_reason=answered.finish_reason,
        output_tokens=answered.output_tokens,
        latency_ns=answered.latency_ns,
        error=error,
        choice=valid.choice if valid else None,
        cluster=cluster,
        input_tokens=answered.input_tokens,
    )
