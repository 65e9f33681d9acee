"""Results of lm-eval (`results_….json`): one number per task. `benchgate run --samples` judges samples."""

from __future__ import annotations

from benchgate.importers.reading import (
    Field,
    Format,
    Reading,
    by_unix_time,
    has_keys,
    left_out,
    optional_text,
    row,
    with_keys,
)
from benchgate.model.run import MetricRow

_KEYS = ("results", "n-samples", "configs")
_REASONS = {
    "_stderr": "a standard error over items; benchgate makes intervals of the items themselves",
    "$.groups": "a mean over tasks, and benchgate's numbers are of tasks",
    ".alias": "a name",
    "$.config": "the configuration of the tasks, which `benchgate run --samples` compares with a suite",
    "acc_norm": "benchgate takes one metric of a task; give it by name in a suite and import the samples",
    "$.results": "neither `acc` nor the only `exact_match` of its task, whose items are right or wrong",
}


def read(document: Field) -> Reading:
    """Read the share of right items of every task with `acc`, or with one `exact_match`.

    Raises UsageError without one.
    """
    rows: list[MetricRow] = []
    mapped, taken = {}, ["$.date", "$.model_name", "$.lm_eval_version"]
    counts = document.need("n-samples")
    for task, found in document.need("results").entries():
        items = counts.get(task)
        name = _accuracy_field(found)
        if items is None or name is None:  # groups of tasks have no items of their own
            continue
        effective = items.need("effective")
        if effective.count() == 0:
            effective.refuse("at least one item")
        if (original := items.get("original")) is not None and original.count() < effective.count():
            original.refuse(f"at least the {effective.value} items that were evaluated")
        rows.append(row("accuracy_ratio", found.need(name).number(most=1), effective.count(), task=task))
        mapped[f"accuracy_ratio of {task}"] = f"results.{task}.{name}"
        taken += [f"$.results.{task}.{name}", f"$.n-samples.{task}.effective"]
    if not rows:
        document.need("results").refuse("a task with `acc`, or with one `exact_match`; import its samples instead")
    version = optional_text(document.get("lm_eval_version"))
    model = optional_text(document.get("model_name"))
    measured = None if (date := document.get("date")) is None else by_unix_time(date)
    return Reading("lm-eval", version, model, tuple(rows), mapped, left_out(document, taken, _REASONS), measured)


def _accuracy_field(task: Field) -> str | None:
    """Return a task's field with a share of right items: `acc`, else the only `exact_match`."""
    names = [name for name, _ in task.entries()]
    if "acc,none" in names:
        return "acc,none"
    exact = [name for name in names if name.startswith("exact_match,")]
    return exact[0] if len(exact) == 1 else None


LM_EVAL = Format("lm-eval", with_keys(*_KEYS), has_keys(*_KEYS), read)
