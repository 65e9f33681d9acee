"""The rows of a task as lm-eval reads them, in plain JSON, and those that examples are drawn from.

Used only in the process of `resolve`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from benchgate.quality.ignoring import exact_match_of, nothing_left
from benchgate.quality.taskfile import IGNORED


class Unusable(Exception):
    """The data is there, and is not what a gate can pair by."""


def task_data(config: dict[str, Any], name: str, *, is_file: bool) -> dict[str, Any]:
    """The rows of a task as it reads them, and those that few-shot examples are drawn from."""
    from lm_eval.api.task import ConfigurableTask

    from benchgate.quality.lm_task import resolved

    task = ConfigurableTask(config=resolved(config))
    rows = [_plain(row, name) for row in task.eval_docs]
    found: dict[str, Any] = {"rows": rows, "ids": _ids(rows, name, is_file=is_file)}
    if config.get("num_fewshot"):
        judged = config.get("test_split") or config.get("validation_split")
        split = task.fewshot_cfg.split or (None if task.fewshot_cfg.samples else _usual_split(config))
        found["drawn_from_itself"] = split == judged
        found["shots"] = [] if split == judged else [_plain(row, name) for row in task.fewshot_docs()]
    if config.get("output_type") == "multiple_choice":
        found["chance"] = sum(1 / len(task.doc_to_choice(row)) for row in rows) / len(rows)
    metrics = {one.get("metric") for one in config.get("metric_list") or [{}] if isinstance(one.get("metric", ""), str)}
    if (
        "exact_match" in metrics
        and config.get("output_type") != "multiple_choice"
        and not config.get("process_results")
    ):
        _check_targets(task, rows, exact_match_of(config.get("metric_list") or ()))
    return found


def _ids(rows: list[dict[str, Any]], name: str, *, is_file: bool) -> list[str] | None:
    """None where rows carry ids of their own, as those of a task file must."""
    own = [row.get("id") for row in rows]
    if is_file:
        if not all(isinstance(one, str) and one for one in own) or len(set(own)) != len(own):
            raise Unusable("its rows have no `id` of their own, a text that no other row has; answers are paired by it")
        return None
    return [f"{name}-{number}-{_doc_hash(row)}" for number, row in enumerate(rows)]


def _usual_split(config: Mapping[str, Any]) -> str | None:
    """Where lm-eval takes examples from when a task does not say."""
    return config.get("training_split") or config.get("validation_split") or config.get("test_split")


def _check_targets(task: Any, rows: list[dict[str, Any]], metric: Mapping[str, Any]) -> None:
    for number, row in enumerate(rows):
        target = task.doc_to_target(row)
        targets = [str(one) for one in (target if isinstance(target, list) else [target])]
        if not targets or not all(one.strip() for one in targets):
            raise Unusable(f"row {number} has an empty target, for which an empty answer would be right")
        if (ignored := nothing_left(targets, metric)) is not None:
            raise Unusable(f"row {number}: {IGNORED.format(ignored[:60])}")


def _plain(row: Any, name: str) -> dict[str, Any]:
    """A row as JSON has it; Unusable for what JSON has not, like pictures."""
    made: dict[str, Any] = dict(row)
    for key, value in made.items():
        if not _is_json(value):
            what = f"its column {key!r} holds {type(value).__name__}, which is neither text nor number"
            raise Unusable(f"{what}; benchgate asks {name} in text alone")
    return made


def _is_json(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(inner) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_json, value))
    return value is None or isinstance(value, str | int | bool)


def _doc_hash(row: Mapping[str, Any]) -> str:
    """The beginning of the hash that lm-eval gives a row."""
    from lm_eval.utils import handle_non_serializable, hash_string

    text = json.dumps(row, indent=2, default=handle_non_serializable, ensure_ascii=False)
    return str(hash_string(text))[:8]
