"""Numbers of the quality tables: what became of the items of a task that both arms had scored, paired by their own id.

Nothing here decides anything: a task that a check judges is shown with that check's own limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchgate.gate.evidence.items import is_continuous
from benchgate.model.records import EvalItem
from benchgate.model.run import QualityObservation


@dataclass(frozen=True, slots=True)
class TaskSummary:
    """Items of a task that both arms had scored, paired by id.

    `lost`: the baseline was right and the candidate wrong; `gained`: the reverse; None for a task whose scores are not
    simply right or wrong. `other_wrong`: both were wrong with different answers; None where answers are not known.
    `expected` items were planned; whatever is missing between `paired` and `expected` was unscored or unanswered.
    A task is `continuous` whose scores are of some scale.
    """

    task: str
    expected: int
    paired: int
    baseline_ratio: float | None
    candidate_ratio: float | None
    lost: int | None
    gained: int | None
    other_wrong: int | None
    faults: tuple[str, ...]
    continuous: bool = False

    @property
    def flips(self) -> int | None:
        """How many answers changed sides."""
        return None if self.lost is None or self.gained is None else self.lost + self.gained

    @property
    def discordance_ratio(self) -> float | None:
        """(lost + gained) / paired."""
        return self.flips / self.paired if self.flips is not None and self.paired else None

    @property
    def recovery_ratio(self) -> float | None:
        """Candidate's score over the baseline's; None when the baseline has none, or one below 0."""
        if self.candidate_ratio is None or self.baseline_ratio is None or self.baseline_ratio <= 0:
            return None
        return self.candidate_ratio / self.baseline_ratio


def summarise_task(task: str, baseline: QualityObservation | None, candidate: QualityObservation | None) -> TaskSummary:
    """One task; an arm without an observation leaves nothing paired and is named in the faults."""
    observed = [("baseline", baseline), ("candidate", candidate)]
    faults = tuple(
        f"{name}: {'not measured' if o is None else o.fault}"
        for name, o in observed
        if o is None or o.fault is not None
    )
    pairs = paired_items(baseline, candidate)
    continuous = is_continuous(baseline) or is_continuous(candidate)
    binary = not continuous and all(b.correct is not None and c.correct is not None for b, c in pairs)
    return TaskSummary(
        task=task,
        expected=max((o.expected_n for o in (baseline, candidate) if o is not None), default=0),
        paired=len(pairs),
        baseline_ratio=_mean([b.score for b, _ in pairs]),
        candidate_ratio=_mean([c.score for _, c in pairs]),
        lost=sum(bool(b.correct) and not c.correct for b, c in pairs) if binary else None,
        gained=sum(bool(c.correct) and not b.correct for b, c in pairs) if binary else None,
        other_wrong=_other_wrong(pairs) if binary else None,
        faults=faults,
        continuous=continuous,
    )


def pooled_tasks(tasks: Sequence[TaskSummary], name: str) -> TaskSummary:
    """Several tasks as one, each of the same weight, however many items it has."""
    return TaskSummary(
        task=name,
        expected=sum(t.expected for t in tasks),
        paired=sum(t.paired for t in tasks),
        baseline_ratio=_mean([t.baseline_ratio for t in tasks]),
        candidate_ratio=_mean([t.candidate_ratio for t in tasks]),
        lost=_sum(t.lost for t in tasks),
        gained=_sum(t.gained for t in tasks),
        other_wrong=_sum(t.other_wrong for t in tasks),
        faults=tuple(f"{t.task}, {fault}" for t in tasks for fault in t.faults),
        continuous=any(t.continuous for t in tasks),
    )


def paired_items(
    baseline: QualityObservation | None, candidate: QualityObservation | None
) -> list[tuple[EvalItem, EvalItem]]:
    """(baseline's, candidate's) of every item that both had scored, in the baseline's order."""
    ours = {item.item_id: item for item in candidate.items if item.score is not None} if candidate else {}
    theirs = [item for item in baseline.items if item.score is not None] if baseline else []
    return [(item, ours[item.item_id]) for item in theirs if item.item_id in ours]


@dataclass(frozen=True, slots=True)
class AnswerCounts:
    """What one arm's answers to one task were like. `unread`: nothing could be read out of the answer.

    `cut` by the token limit is not known of answers that lm-eval wrote down elsewhere: None.
    """

    answered: int
    failed: int
    empty: int
    cut: int | None
    unread: int | None
    output_tokens: float | None


def count_answers(observation: QualityObservation) -> AnswerCounts:
    """Counts over the items that came; tokens are the mean over those whose number the server told."""
    answered = [item for item in observation.items if item.error is None]
    tokens = [item.output_tokens for item in answered if item.output_tokens is not None]
    read = [item.choice for item in answered if item.choice is not None]
    return AnswerCounts(
        answered=len(answered),
        failed=len(observation.items) - len(answered),
        empty=sum(not (item.answer or "").strip() for item in answered),
        cut=None if observation.harness.get("imported") else sum(i.finish_reason == "length" for i in answered),
        unread=sum(choice in NOT_READ for choice in read) if read else None,
        output_tokens=sum(tokens) / len(tokens) if tokens else None,
    )


NOT_READ = ("[invalid]", "")
"""What lm-eval's filters leave of an answer in which they find nothing."""


def _other_wrong(pairs: Sequence[tuple[EvalItem, EvalItem]]) -> int | None:
    wrong = [(b.choice, c.choice) for b, c in pairs if b.correct is False and c.correct is False]
    if any(one is None or other is None for one, other in wrong):
        return None
    return sum(one != other for one, other in wrong)


def _mean(values: Iterable[float | None]) -> float | None:
    """None when one of them has none."""
    known = list(values)
    return sum(v for v in known if v is not None) / len(known) if known and None not in known else None


def _sum(values: Iterable[int | None]) -> int | None:
    known = list(values)
    return None if None in known else sum(v for v in known if v is not None)
