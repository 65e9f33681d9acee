"""Results of lm-eval (`results_….json`): a score of each task. `benchgate run --samples` judges whole samples."""

from __future__ import annotations

from benchgate.importers.fields import Field, optional_text, with_keys
from benchgate.importers.instants import by_unix_time
from benchgate.importers.reading import Reading, left_out, row
from benchgate.model.run import MetricRow

NAME = "lm-eval"
MARKS = ("results", "n-samples", "configs")
MARKED_BY = with_keys(*MARKS)
_REASONS = {
    "_stderr": "a standard error over items; benchgate makes intervals of the items themselves",
    "$.groups": "a mean over tasks, and benchgate's numbers are of tasks",
    ".alias": "a name",
    "$.config": "how the tasks were asked, which `benchgate run --samples` holds against a suite",
    "acc_norm": "benchgate takes one metric of a task; give it by name in a suite and import the samples",
    "$.results": "neither `acc` nor the only `exact_match` of its task, whose items are right or wrong",
}


def is_it(document: Field) -> bool:
    """By its parts."""
    return isinstance(document.value, dict) and document.value.keys() >= set(MARKS)


def read(document: Field) -> Reading:
    """The share of right items of every task that has `acc`, or one `exact_match`. UsageError where none has."""
    rows: list[MetricRow] = []
    mapped, taken = {}, ["$.date", "$.model_name", "$.lm_eval_version"]
    counts = document.need("n-samples")
    for task, found in document.need("results").entries():
        asked = counts.get(task)
        name = _of_right_items(found)
        if asked is None or name is None:  # groups of tasks have no items of their own
            continue
        effective = asked.need("effective")
        if effective.count() == 0:
            effective.refuse("at least one item")
        if (original := asked.get("original")) is not None and original.count() < effective.count():
            original.refuse(f"at least the {effective.value} items that were asked")
        rows.append(row("accuracy_ratio", found.need(name).number(most=1), effective.count(), task=task))
        mapped[f"accuracy_ratio of {task}"] = f"results.{task}.{name}"
        taken += [f"$.results.{task}.{name}", f"$.n-samples.{task}.effective"]
    if not rows:
        document.need("results").refuse("a task with `acc`, or with one `exact_match`; import its samples instead")
    version = optional_text(document.get("lm_eval_version"))
    model = optional_text(document.get("model_name"))
    measured = None if (date := document.get("date")) is None else by_unix_time(date)
    return Reading(NAME, version, model, tuple(rows), mapped, left_out(document, taken, _REASONS), measured)


def _of_right_items(task: Field) -> str | None:
    """The field of a task that is a share of items: `acc`, else `exact_match` where one filter alone was used."""
    names = [name for name, _ in task.entries()]
    if "acc,none" in names:
        return "acc,none"
    exact = [name for name in names if name.startswith("exact_match,")]
    return exact[0] if len(exact) == 1 else None
