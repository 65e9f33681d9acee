"""Gated metric of a task: its scale, and whether a gate can judge it item by item."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchgate.plan.items import NO_FILTER, PlannedTask, Scale, first_filter, first_metric
from benchgate.suite.quality import Quality, TaskEntry

_BINARY_METRICS = frozenset(
    {"exact_match", "acc", "acc_norm", "acc_bytes", "acc_mutual_info", "em", "pass_at_k", "pass_at_1", "pass@1"}
    | {"prompt_level_strict_acc", "prompt_level_loose_acc", "relaxed_accuracy", "math_verify"}
)
_CONTINUOUS_METRICS = frozenset(
    {"bleu", "chrf", "chrf++", "f1", "rouge1", "rouge2", "rougeL", "rougeLsum", "inst_level_strict_acc"}
    | {"inst_level_loose_acc", "qa_f1_score", "qa_f1_zh_score", "rouge_score", "rouge_zh_score", "code_sim_score"}
    | {"classification_score", "retrieval_score", "retrieval_zh_score", "count_score", "bleu_max", "bleu_acc"}
    | {"rouge1_max", "rouge2_max", "rougeL_max"}
)
_PERCENT_OF_A_CORPUS = frozenset({"bleu", "chrf", "chrf++"})  # sacrebleu's; a task's own code gives them from 0 to 1
_PERCENT = frozenset({"bleu_max", "rouge1_max", "rouge2_max", "rougeL_max"})  # truthfulqa_gen's own
_NEVER_BINARY = _CONTINUOUS_METRICS - {"bleu_acc"}
_CORPUS_METRICS = frozenset({"mcc", "f1"})  # of all items together, in multiple choice
_LOWER_IS_BETTER = frozenset(
    {"ter", "wer", "cer", "mae", "mse", "rmse", "brier_score", "perplexity", "word_perplexity", "byte_perplexity"}
    | {"bits_per_byte"}
)
_NO_SCORE = frozenset({"bypass", "likelihood"})
_MERGING_FILTERS = frozenset({"majority_vote", "take_first_k"})
_DEFAULT_METRICS = {  # lm-eval's own
    "generate_until": ["exact_match"], "multiple_choice": ["acc", "acc_norm"], "loglikelihood": ["perplexity", "acc"],
}  # fmt: skip
_OUTPUT_TYPES = ("generate_until", "multiple_choice", "loglikelihood")

# Metrics of task files without code, by output type.
LOCAL_METRICS: Mapping[str, tuple[str, ...]] = {
    "generate_until": ("exact_match", "bleu", "chrf", "chrf++"),
    "multiple_choice": ("acc", "acc_norm", "acc_bytes", "acc_mutual_info", "exact_match"),
    "loglikelihood": ("acc",),
}


def gated_task(
    name: str, config: dict[str, Any], rows: tuple[dict[str, object], ...], entry: TaskEntry, quality: Quality
) -> PlannedTask | str:
    """Return the task with its gated metric and filter, or why it cannot be gated."""
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
    """Return why a task cannot be gated, whatever its rows, or None."""
    output = config.get("output_type", "generate_until")
    if output not in _OUTPUT_TYPES:
        return f"its output_type {output} has no score of an item; perplexity is measured by `divergence`"
    if config.get("doc_to_image") or config.get("doc_to_audio"):
        return "it shows pictures or sounds, and evals send text alone"
    filters = [str(one.get("name")) for one in config.get("filter_list") or []] or [NO_FILTER]
    if entry.filter is not None and entry.filter not in filters:
        return f"it has no filter {entry.filter!r}; it has {', '.join(filters)}"
    metrics = [_metric_name(one) for one in config.get("metric_list") or []] or _DEFAULT_METRICS[output]
    if entry.metric is not None and entry.metric not in metrics:
        return f"it has no metric {entry.metric!r}; it has {', '.join(metrics)}"
    metric, repeats = entry.metric or first_metric(config), config.get("repeats") or 1
    if scale_of(metric, repeats, entry.scale) is None:
        what = f"benchgate does not know whether {metric} is right or wrong or a score in between"
        return f"{what}; write `scale: binary` or `scale: continuous` for the task"
    if entry.scale == "binary" and (metric in _NEVER_BINARY or repeats != 1):
        why = metric if repeats == 1 else f"the mean of {repeats} repetitions"
        return f"{why} is a score in between; remove `scale: binary`, and judge the task by `score`"
    if (fault := metric_fault(config, metric)) is not None:
        return fault
    is_generated = output == "generate_until"
    if not is_generated and not config.get("process_results") and metric not in LOCAL_METRICS[output]:
        return f"lm-eval gives no {metric} of {output}; judge {', '.join(LOCAL_METRICS[output])}"
    return _sampling_fault(config, metric, entry.filter or first_filter(config), repeats)


def measured_metric(config: Mapping[str, Any], metric: str, measured: Sequence[str]) -> str | None:
    """Return the name among the measured metrics under which lm-eval gives a task's metric, or None.

    The only metric of a task may give its value under another name, as `pass_at_k` gives `pass@1`. What
    `process_results` gives is not tied to any metric of the task.
    """
    if metric in measured:
        return metric
    is_only = len(config.get("metric_list") or ()) == len(measured) == 1 and not config.get("process_results")
    return measured[0] if is_only else None


def unit_score(metric: str, value: float, *, of_corpus: bool = False) -> float:
    """Return lm-eval's value of a metric as a score from 0 to 1; `of_corpus`: it was aggregated from one item."""
    return value / 100 if metric in (_PERCENT | _PERCENT_OF_A_CORPUS if of_corpus else _PERCENT) else value


def scale_of(metric: str, repeats: int, declared: Scale | None) -> Scale | None:
    """Return a metric's scale, or None if it is unknown and the suite must declare it."""
    if declared is not None:
        return declared
    if metric in _BINARY_METRICS:
        return "binary" if repeats == 1 else "continuous"
    return "continuous" if metric in _CONTINUOUS_METRICS else None


def can_be_guessed(metric: str) -> bool:
    """Return True if picking an option at random scores one over their number.

    `exact_match` does not pick an option: it is 1 if greedy decoding would write the right one.
    """
    return metric != "exact_match"


def metric_fault(config: Mapping[str, Any], metric: str) -> str | None:
    """Return why a metric cannot be judged item by item, or None."""
    entries = [one for one in config.get("metric_list") or [] if _metric_name(one) == metric]
    if metric in _CORPUS_METRICS and config.get("output_type") == "multiple_choice":
        return f"{metric} is of all items together and says nothing of one; judge `acc`"
    if metric in _LOWER_IS_BETTER or any(one.get("higher_is_better") is False for one in entries):
        return f"of {metric} less is better; judge a metric of which more is better"
    return f"{metric} is no score of an answer; judge another metric" if metric in _NO_SCORE else None


def _metric_name(entry: Mapping[str, Any]) -> str:
    """Return lm-eval's name of a metric in `metric_list`; for a function, the function's name."""
    found = entry.get("metric", "")
    return str(found["function"]).rpartition(".")[2] if isinstance(found, Mapping) else str(found)


def _sampling_fault(config: Mapping[str, Any], metric: str, filter_name: str, repeats: int) -> str | None:
    settings = config.get("generation_kwargs") or {}
    if repeats == 1 and (settings.get("temperature") or 0) > 0:
        what = f"it draws its answers at temperature {settings['temperature']:g}, and only one of each item"
        return f"{what}; use temperature 0, or several answers (`repeats`)"
    numbers = [one["k"] for one in config.get("metric_list") or [] if _metric_name(one) == metric and "k" in one]
    if repeats > 1 and numbers and 1 not in (numbers[0] if isinstance(numbers[0], list) else numbers):
        what = f"its {metric} is of several answers together (`k`: {numbers[0]}), and benchgate scores each alone"
        return f"{what}; judge a task with `k: [1]`"
    pipelines = [one for one in config.get("filter_list") or [] if one.get("name") == filter_name]
    functions = [step["function"] for pipeline in pipelines for step in pipeline["filter"]]
    if repeats > 1 and (merging := [name for name in functions if name in _MERGING_FILTERS]):
        what = f"its filter {filter_name} takes {repeats} answers together ({', '.join(merging)})"
        return f"{what}; benchgate scores each and takes their mean, so judge another filter"
    return None
