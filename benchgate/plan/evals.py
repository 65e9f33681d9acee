"""Planned evals: which items of which task, and how an item is asked and judged."""

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
"""lm-eval's name for the filter of a task that has none of its own."""


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """One lm-eval task: its configuration without the data path, the rows it will read, and what of it is judged.

    Rows of task files carry a unique `id`; those of lm-eval's own tasks are as their data set has them, and `ids` has
    one for each. A task of a group is called `group/task`, and `leaves` says how many tasks the group has. `shots` are
    what few-shot examples are drawn from; where that is the judged split itself, those of it beside `rows`. A function
    in `config` is a mapping with `function`, the `folder` its module lies in and the `sha256` of that module.
    """

    name: str
    config: dict[str, object]
    rows: tuple[dict[str, object], ...]
    metric: str = "exact_match"
    filter: str = NO_FILTER
    scale: Scale = "binary"  # continuous: the score is not simply 0 or 1
    chance: float | None = None  # mean score of guessing among the options of multiple choice
    cluster_key: str | None = None  # the column that says which items are not independent
    output_type: OutputType = "generate_until"
    ids: tuple[str, ...] | None = None
    shots: tuple[dict[str, object], ...] = ()
    leaves: int | None = None
    system: str | None = None  # system prompt
    fewshot_as_turns: bool = True
    unsafe: bool = False  # it runs what the model writes
    needs: str | None = None  # data that was not read, where only looking was asked for; then there are no rows

    @property
    def item_ids(self) -> tuple[str, ...]:
        """The unique ids of the rows, in their order."""
        return self.ids if self.ids is not None else tuple(str(row["id"]) for row in self.rows)

    def cut(self, limit: int | None) -> PlannedTask:
        """The task with its first rows only; those cut off stay what examples may be drawn from, where they were."""
        if limit is None or limit >= len(self.rows):
            return self
        shots = self.rows[limit:] + self.shots if draws_from_itself(self.config) else self.shots
        return replace(self, rows=self.rows[:limit], ids=self.ids[:limit] if self.ids else self.ids, shots=shots)

    def shuffled(self, generator: np.random.Generator) -> PlannedTask:
        """The same rows in an order drawn by `generator`."""
        order = generator.permutation(len(self.rows))
        ids = tuple(self.ids[place] for place in order) if self.ids is not None else None
        return replace(self, rows=tuple(self.rows[place] for place in order), ids=ids)


def draws_from_itself(config: Mapping[str, object]) -> bool:
    """Whether few-shot examples come from the very split that is judged."""
    return bool(config.get("num_fewshot")) and config.get("fewshot_split") == config.get("test_split")


def first_metric(config: Mapping[str, Any]) -> str:
    """The metric that is judged unless another is said."""
    metrics = config.get("metric_list") or [{}]
    default = "exact_match" if config.get("output_type", "generate_until") == "generate_until" else "acc"
    found = metrics[0].get("metric", default)
    return str(found["function"].rpartition(".")[2] if isinstance(found, dict) else found)


def first_filter(config: Mapping[str, Any]) -> str:
    """The filter that is judged unless another is said."""
    filters = config.get("filter_list") or [{}]
    return str(filters[0].get("name", NO_FILTER))


def spelled_task(task: PlannedTask) -> dict[str, object]:
    """A task as plain JSON values, for the plan's hash and the store.

    What follows from its configuration, or says nothing, is not written: tasks without it keep their bytes. Rows of
    data sets that are not the suite's own stand here by id and digest.
    """
    rows: object = task.rows
    if task.ids is not None:
        named = zip(task.ids, task.rows, strict=True)
        rows = [{"id": item, "doc_sha256": _digest(row)} for item, row in named]
    implied = PlannedTask("", {}, (), first_metric(task.config), first_filter(task.config))
    told = {
        name: getattr(task, name)
        for name in (
            "metric", "filter", "scale", "chance", "cluster_key", "output_type", "leaves", "system", "fewshot_as_turns",
            "unsafe", "needs",
        )
        if getattr(task, name) != getattr(implied, name)
    }  # fmt: skip
    if task.shots:
        told["shots_sha256"] = _digest(list(task.shots))
    return {"name": task.name, "config": _without_folders(task.config), "rows": rows, **told}


def _digest(value: object) -> str:
    return hashlib.sha256(canonical_json(value)).hexdigest()


def _without_folders(value: object) -> object:
    """Where a function's module lies says nothing of what it does; its digest does."""
    if isinstance(value, dict):
        said = value.keys() - {"folder"} if "function" in value and "sha256" in value else value.keys()
        return {key: _without_folders(inner) for key, inner in value.items() if key in said}
    return [_without_folders(inner) for inner in value] if isinstance(value, list) else value
