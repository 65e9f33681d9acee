"""Which score of a task is judged, and whether a gate can vouch for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchgate.plan.items import NO_FILTER, PlannedTask, first_filter, first_metric
from benchgate.quality.metrics import metric_fault, metric_name, said_scale_fault, scale_of
from benchgate.suite.quality import Quality, TaskEntry

_TOGETHER = frozenset({"majority_vote", "take_first_k"})
_OUTPUTS = ("generate_until", "multiple_choice", "loglikelihood")


def judged_task(
    name: str, config: dict[str, Any], rows: tuple[dict[str, object], ...], entry: TaskEntry, quality: Quality
) -> PlannedTask | str:
    """The task with what is judged of it, or what speaks against judging it."""
    fault = config_fault(config, entry)
    if fault is not None:
        return fault
    if entry.cluster is not None and any(entry.cluster not in row for row in rows):
        return f"its rows have no column {entry.cluster!r}; they have {', '.join(rows[0])}"
    metric = entry.metric or first_metric(config)
    return PlannedTask(
        name,
        config,
        rows,
        metric,
        entry.filter or first_filter(config),
        scale_of(metric, config.get("repeats") or 1, entry.scale) or "continuous",
        cluster_key=entry.cluster,
        output_type=config.get("output_type", "generate_until"),
        system=quality.system,
        fewshot_as_turns=quality.fewshot_as_turns,
    )


def config_fault(config: Mapping[str, Any], entry: TaskEntry) -> str | None:
    """What speaks against judging a task, whatever its rows are."""
    output = config.get("output_type", "generate_until")
    if output not in _OUTPUTS:
        return f"its output_type {output} has no score of an item; perplexity is measured by `divergence`"
    if config.get("doc_to_image") or config.get("doc_to_audio"):
        return "it shows pictures or sounds, and evals ask in text alone"
    filters = [str(one.get("name")) for one in config.get("filter_list") or []] or [NO_FILTER]
    if entry.filter is not None and entry.filter not in filters:
        return f"it has no filter {entry.filter!r}; it has {', '.join(filters)}"
    metrics = [metric_name(one) for one in config.get("metric_list") or []]
    if entry.metric is not None and metrics and entry.metric not in metrics:
        return f"it has no metric {entry.metric!r}; it has {', '.join(metrics)}"
    metric, repeats = entry.metric or first_metric(config), config.get("repeats") or 1
    if scale_of(metric, repeats, entry.scale) is None:
        what = f"benchgate does not know whether {metric} is right or wrong or a score in between"
        return f"{what}; write `scale: binary` or `scale: continuous` for the task"
    if (fault := said_scale_fault(metric, repeats, entry.scale)) is not None:
        return fault
    return metric_fault(config, metric) or _sampling(config, entry.filter or first_filter(config), repeats)


def _sampling(config: Mapping[str, Any], judged: str, repeats: int) -> str | None:
    settings = config.get("generation_kwargs") or {}
    if repeats == 1 and (settings.get("temperature") or 0) > 0:
        what = f"it draws its answers at temperature {settings['temperature']:g}, and asks only once"
        return f"{what}; ask at temperature 0, or several times (`repeats`)"
    steps = [step for one in config.get("filter_list") or [] if one.get("name") == judged for step in one["filter"]]
    if repeats > 1 and (taken := [step["function"] for step in steps if step["function"] in _TOGETHER]):
        what = f"its filter {judged} takes {repeats} answers together ({', '.join(taken)})"
        return f"{what}; benchgate scores each and takes their mean, so judge another filter"
    return None
