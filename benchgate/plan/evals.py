"""Planned eval tasks: their rows, and the metric that is gated."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from benchgate.model.deployment import canonical_json

Scale = Literal["binary", "continuous"]
OutputType = Literal["generate_until", "multiple_choice", "loglikelihood"]

NO_FILTER = "none"
"""lm-eval's filter name of a task without filters."""


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """One lm-eval task: its configuration without the data path, its rows, and its gated metric.

    Rows of task files have a unique `id`; those of lm-eval's own tasks are as in their data set, with one of `ids`
    each. A task of a group is named `group/task`, and `leaves` is the number of tasks in the group. `shots` are the
    source of few-shot examples; if that is the judged split itself, the rows of it outside `rows`. A function in
    `config` is a mapping with `function`, the `folder` of its module and the `sha256` of that module.
    """

    name: str
    config: dict[str, object]
    rows: tuple[dict[str, object], ...]
    metric: str = "exact_match"
    filter: str = NO_FILTER
    scale: Scale = "binary"  # continuous: the score is not simply 0 or 1
    chance: float | None = None  # mean score of guessing among the options of multiple choice
    cluster_key: str | None = None  # column whose equal values mark dependent items
    output_type: OutputType = "generate_until"
    ids: tuple[str, ...] | None = None
    shots: tuple[dict[str, object], ...] = ()
    leaves: int | None = None
    system: str | None = None  # system prompt
    fewshot_as_turns: bool = True
    unsafe: bool = False  # it executes the model's output
    needs: str | None = None  # data set not read by a preview, which then has no rows

    @property
    def item_ids(self) -> tuple[str, ...]:
        """Return the unique ids of the rows, in order."""
        return self.ids if self.ids is not None else tuple(str(row["id"]) for row in self.rows)

    def cut(self, limit: int | None) -> PlannedTask:
        """Keep the first `limit` rows; the others remain a source of examples if they were one."""
        if limit is None or limit >= len(self.rows):
            return self
        shots = self.rows[limit:] + self.shots if draws_shots_from_judged_split(self.config) else self.shots
        return replace(self, rows=self.rows[:limit], ids=self.ids[:limit] if self.ids else self.ids, shots=shots)

    def shuffled(self, generator: np.random.Generator) -> PlannedTask:
        """Return the task with its rows in random order."""
        order = generator.permutation(len(self.rows))
        ids = tuple(self.ids[place] for place in order) if self.ids is not None else None
        return replace(self, rows=tuple(self.rows[place] for place in order), ids=ids)


def draws_shots_from_judged_split(config: Mapping[str, object]) -> bool:
    """Return True if few-shot examples come from the judged split itself."""
    return bool(config.get("num_fewshot")) and config.get("fewshot_split") == config.get("test_split")


def first_metric(config: Mapping[str, Any]) -> str:
    """Return the default gated metric: the task's first one."""
    metrics = config.get("metric_list") or [{}]
    default = "exact_match" if config.get("output_type", "generate_until") == "generate_until" else "acc"
    found = metrics[0].get("metric", default)
    return str(found["function"].rpartition(".")[2] if isinstance(found, dict) else found)


def first_filter(config: Mapping[str, Any]) -> str:
    """Return the default gated filter: the task's first one."""
    filters = config.get("filter_list") or [{}]
    return str(filters[0].get("name", NO_FILTER))


def task_to_json(task: PlannedTask) -> dict[str, object]:
    """Serialise a task as plain JSON values, for the plan's hash and the store.

    Values implied by the configuration and empty ones are omitted, so that tasks without them keep their bytes. Rows of
    external data sets appear by id and digest.
    """
    rows: object = task.rows
    if task.ids is not None:
        rows = [{"id": item, "doc_sha256": _digest(row)} for item, row in zip(task.ids, task.rows, strict=True)]
    implied = PlannedTask("", {}, (), first_metric(task.config), first_filter(task.config))
    stated = {
        name: getattr(task, name)
        for name in (
            "metric", "filter", "scale", "chance", "cluster_key", "output_type", "leaves", "system", "fewshot_as_turns",
            "unsafe", "needs",
        )
        if getattr(task, name) != getattr(implied, name)
    }  # fmt: skip
    if task.shots:
        stated["shots_sha256"] = _digest(list(task.shots))
    return {"name": task.name, "config": _without_folders(task.config), "rows": rows, **stated}


def _digest(value: object) -> str:
    return hashlib.sha256(canonical_json(value)).hexdigest()


def _without_folders(value: object) -> object:
    """Drop the folders of function modules: the digest of a module identifies it."""
    if isinstance(value, dict):
        keys = value.keys() - {"folder"} if "function" in value and "sha256" in value else value.keys()
        return {key: _without_folders(inner) for key, inner in value.items() if key in keys}
    return [_without_folders(inner) for inner in value] if isinstance(value, list) else value
