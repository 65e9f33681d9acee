"""From what lm-eval logs of an item to its score and to what its answer amounts to. Used only in an eval process."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchgate.model.records import INVALID_CHOICE
from benchgate.plan.items import PlannedTask
from benchgate.quality.spool import Scored

_OF_A_HUNDRED = frozenset({"bleu", "chrf", "chrf++"})
_LONGEST_CHOICE = 200


def scored(task: PlannedTask, built: Any, samples: Iterable[Mapping[str, Any]]) -> list[Scored]:
    """The scores of items; ValueError when the task gives none of one, or none that is a number."""
    ids = task.item_ids
    return [_scored(task, built, sample, ids[sample["doc_id"]]) for sample in samples]


def _scored(task: PlannedTask, built: Any, sample: Mapping[str, Any], item: str) -> Scored:
    doc, prompt, target = (str(sample[name]) for name in ("doc_hash", "prompt_hash", "target_hash"))
    return Scored(task.name, item, doc, prompt, target, _score(task, built, sample), _choice(task, built, sample))


def mean_scores(askings: Sequence[Sequence[Scored]]) -> list[Scored]:
    """One line an item: the mean of what it scored each time it was asked; hashes and choice of the first time."""
    if len(askings) == 1:
        return list(askings[0])
    by_id = [{line.item_id: line for line in asking} for asking in askings]
    return [_mean([asking[line.item_id] for asking in by_id]) for line in askings[0]]


def _mean(lines: Sequence[Scored]) -> Scored:
    unread = sum(line.choice == INVALID_CHOICE for line in lines)
    return replace(lines[0], score=sum(line.score for line in lines) / len(lines), unread=unread)


def _score(task: PlannedTask, built: Any, sample: Mapping[str, Any]) -> float:
    """Between 0 and 1 where the metric is a share; more is better.

    A metric of all items together (BLEU, or a list of instructions kept) is taken of this item alone.
    """
    names: Sequence[str] = sample["metrics"]
    name = task.metric if task.metric in names else names[0] if len(names) == 1 else None
    if name is None:
        raise ValueError(f"{task.name} gives no metric {task.metric!r}; it gives {', '.join(names)}")
    value = sample[name]
    if isinstance(value, list | tuple):
        value = built.aggregation()[name]([value])
    try:
        score = float(value) / (100 if name in _OF_A_HUNDRED else 1)
    except (TypeError, ValueError):
        raise ValueError(f"{task.name}: its metric {name} is {str(value)[:60]!r}, which is no number") from None
    if not math.isfinite(score):
        raise ValueError(f"{task.name}: its metric {name} is {score}, which is no score")
    return score


def _choice(task: PlannedTask, built: Any, sample: Mapping[str, Any]) -> str | None:
    """The option chosen, or what the filter read out of the answer; a long one by its digest."""
    filtered = sample["filtered_resps"]
    if task.output_type == "multiple_choice":
        return str(chosen(task.metric, built.doc_to_choice(sample["doc"]), [one[0] for one in filtered]))
    found = filtered[0] if filtered else None
    if isinstance(found, list | tuple) and len(found) == 1:
        found = found[0]
    if not isinstance(found, str):
        return None
    if len(found) <= _LONGEST_CHOICE:
        return found
    return f"sha256:{hashlib.sha256(found.encode('utf-8', 'surrogatepass')).hexdigest()}"


def chosen(metric: str, options: Sequence[str], logprobs: Sequence[float]) -> str:
    """The option that lm-eval takes for the answer: by its log-probability, for some metrics per character or byte."""
    if metric == "acc_norm":
        weighed = [value / max(len(option), 1) for value, option in zip(logprobs, options, strict=False)]
    elif metric == "acc_bytes":
        weighed = [value / max(len(option.encode()), 1) for value, option in zip(logprobs, options, strict=False)]
    elif metric == "acc_mutual_info":
        alone = logprobs[len(options) :]
        weighed = [value - other for value, other in zip(logprobs, alone, strict=False)]
    else:
        weighed = list(logprobs[: len(options)])
    return options[weighed.index(max(weighed))]
