"""Reads lm-eval's own tasks and task files with code: `python -m benchgate.quality.tasks.lm_eval_resolver JOB ANSWER`.

A process of its own, started by `lm_eval_tasks`: lm-eval and the modules of its tasks stay out of benchgate, and may
print and fail.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import evaluate
from datasets import disable_caching
from jinja2 import TemplateError
from lm_eval.api.registry import METRIC_REGISTRY
from lm_eval.api.task import ConfigurableTask
from lm_eval.utils import handle_non_serializable, hash_string

from benchgate.quality.lm_eval_internals import (
    UnknownTask,
    import_functions,
    is_own,
    is_own_file,
    leaf_configs,
    seed_draws,
    task_index,
)
from benchgate.quality.tasks.gated_metric import config_fault
from benchgate.quality.tasks.lm_eval_tasks import functions_in, unknown_task
from benchgate.quality.tasks.task_file import exact_match_of, ignored_target_fault
from benchgate.suite.quality import TaskEntry

_LOADING_KEYS = (
    "process_docs", "training_split", "validation_split", "fewshot_split", "custom_dataset", "dataset_kwargs", "tag",
    "group", "task_list", "task_alias", "should_decontaminate", "doc_to_decontamination_query",
)  # fmt: skip
"""Keys without a meaning in an eval process: its rows come with the plan."""

_LIMIT_KEYS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""Names that lm-eval knows for the longest answer."""

_TASK_ERRORS = (
    OSError, ValueError, LookupError, TypeError, AttributeError, AssertionError, ImportError, RuntimeError,
    ArithmeticError,
)  # fmt: skip
"""Errors of a task's code and of the hub's client. Others end the process, and `lm_eval_tasks` reports them."""


class UnusableData(Exception):
    """The data was loaded, but a gate cannot use it."""


def main(job_path: str, answer_path: str) -> None:
    """Write an answer for each entry of the job: its tasks, or one problem."""
    disable_caching()  # of processed rows: others may have drawn them with another seed. Downloads are kept.
    job = json.loads(Path(job_path).read_text(encoding="utf-8"))
    index = task_index([Path(folder) for folder in job["include"]])
    answers = [_answer(entry, index, job) for entry in job["entries"]]
    Path(answer_path).write_text(json.dumps(answers), encoding="utf-8")


def _answer(entry: Mapping[str, Any], index: dict[str, Any], job: Mapping[str, Any]) -> dict[str, Any]:
    try:
        configs = leaf_configs(entry["spec"], index)
    except UnknownTask:
        return {"problem": unknown_task(entry["spec"], index)}
    except (ValueError, OSError) as exc:
        return {"problem": str(exc)}
    leaves = []
    for config in configs:
        leaf = _leaf(config, entry, job, trusted=is_own(config, entry["spec"], index))
        if "problem" in leaf:
            return {"problem": leaf["problem"] if len(configs) == 1 else f"{config['task']}: {leaf['problem']}"}
        leaves.append(leaf)
    return {"leaves": leaves}


def _leaf(config: dict[str, Any], entry: Mapping[str, Any], job: Mapping[str, Any], *, trusted: bool) -> dict[str, Any]:
    """Return one task: its configuration for the eval processes, its rows and its few-shot examples; or its problem."""
    code = _code_of(config, trusted=trusted)
    if code is not None and not job["allow_unsafe_code"]:
        what = f"it runs code ({code})"
        return {"problem": f"{what}; read that, and set `quality.allow_unsafe_code: true` to let it"}
    if config.get("unsafe_code") and not job["allow_unsafe_code"]:
        what = "it runs the code that a model writes, on this machine"
        return {"problem": f"{what}; set `quality.allow_unsafe_code: true` to let it, and run in a container"}
    needs_consent = (code is not None or config.get("unsafe_code")) and not job["allow_code"]
    if needs_consent and job["fetch"]:
        return {"problem": "it runs code on this machine; read it, and add --allow-code to let it"}
    name = str(config["task"])
    config = _with_suite_settings(config, entry)
    suite_entry = TaskEntry.model_validate(
        {"task": entry["entry"]} if isinstance(entry["entry"], str) else entry["entry"],
        by_name=True,
        by_alias=False,
        context={"stored": True},
    )
    if (fault := config_fault(config, suite_entry)) is not None:
        return {"problem": fault}
    kept = {key: value for key, value in config.items() if key not in _LOADING_KEYS and value is not None}
    if isinstance(fewshot := config.get("fewshot_config"), dict):
        loading = ("split", "process_docs", "samples")
        kept["fewshot_config"] = {key: value for key, value in fewshot.items() if key not in loading}
    leaf = {"name": name, "config": {**kept, "test_split": "test"}, "unsafe": bool(config.get("unsafe_code"))}
    if needs_consent:
        return {**leaf, "rows": [], "needs": f"{_data_name(config, name)} (with --allow-code)"}
    try:
        return {**leaf, **_data(config, name, is_file=entry["is_file"])}
    except UnusableData as exc:
        return {"problem": str(exc)}
    except TemplateError as exc:
        return {"problem": f"a template of it cannot be rendered: {exc}"}
    except _TASK_ERRORS as exc:
        reason = " ".join(str(exc).split())[:300] or type(exc).__name__
        needs = f"the scorer of {name}" if _is_of_scorer(reason) else _data_name(config, "")
        if isinstance(exc, ImportError):
            package = f"the Python package {exc.name}" if exc.name else "further Python packages"
            if job["fetch"]:
                return {"problem": f"it needs {package}, which is not installed here: {reason}"}
            return {**leaf, "rows": [], "needs": f"{needs} (with {package})"}
        if job["fetch"]:
            return {"problem": _loading_problem(needs, f"{type(exc).__name__}: {reason}")}
        return {**leaf, "rows": [], "needs": needs or reason}


def _code_of(config: Mapping[str, Any], *, trusted: bool) -> str | None:
    """Return code that a task brings: a function, or a metric that lm-eval would download from the hub and run.

    A `trusted` task is lm-eval's own, but a group may have given it a function from another folder.
    """
    for found in functions_in(config):
        if not is_own_file(Path(found["folder"])):
            return f"{found['function']}, in {found['folder']}"
    metric = None if trusted else next(_hub_metrics(config), None)
    return None if metric is None else f"the metric {metric!r}, from the hub"


def _hub_metrics(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the metrics whose code lm-eval loads from the hub."""
    import_module("lm_eval.api.metrics")  # registers lm-eval's own
    for one in config.get("metric_list") or [] if not config.get("process_results") else ():
        name = one.get("metric")
        if isinstance(name, str) and (one.get("hf_evaluate") or name not in METRIC_REGISTRY):
            yield name


def _data_name(config: Mapping[str, Any], name: str) -> str:
    """Return the hub's name of a task's data, or the task's own name."""
    parts = [str(config[key]) for key in ("dataset_path", "dataset_name") if config.get(key)]
    return name if parts[:1] == ["json"] and name else " ".join(parts) or name


def _is_of_scorer(reason: str) -> bool:
    return "module script" in reason  # the hub client's name for the code of a metric


def _loading_problem(needs: str, reason: str) -> str:
    cache = os.environ.get("HF_DATASETS_CACHE") or f"{os.environ.get('HF_HOME', '~/.cache/huggingface')}/datasets"
    offline = os.environ.get("HF_HUB_OFFLINE") in ("1", "ON", "YES", "TRUE")
    remedy = "unset HF_HUB_OFFLINE to fetch it once" if offline else "run once where the hub can be reached"
    if _is_of_scorer(reason):
        return f"its scorer, which comes from the hub, could not be loaded: {reason}; {remedy}"
    data = needs or "made by its own code"
    return f"its data ({data}) could not be loaded: {reason}; {remedy}; it is kept in {cache}"


def _with_suite_settings(config: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with the suite's settings, temperature 0 unless it samples, and paths of local data."""
    config = dict(config)
    metadata = dict(config.get("metadata") or {})
    source = Path(str(metadata.pop("config_source", "")))  # a path of this machine, not part of the task
    config["metadata"] = metadata
    if entry["few_shot"] is not None:
        config["num_fewshot"] = entry["few_shot"]
    if config.get("output_type", "generate_until") == "generate_until":
        settings = dict(config.get("generation_kwargs") or {})
        if not settings.get("do_sample"):
            settings["temperature"] = 0.0  # servers do not know `do_sample`
        if entry["max_tokens"] is not None:
            settings = {key: value for key, value in settings.items() if key not in _LIMIT_KEYS}
            settings["max_gen_toks"] = entry["max_tokens"]
        config["generation_kwargs"] = settings
    kwargs = dict(config.get("dataset_kwargs") or {})
    if files := kwargs.get("data_files"):
        config["dataset_kwargs"] = {**kwargs, "data_files": _absolute(files, source.parent)}
    return config


def _absolute(files: Any, folder: Path) -> Any:
    if isinstance(files, dict):
        return {split: _absolute(inner, folder) for split, inner in files.items()}
    if isinstance(files, list):
        return [_absolute(inner, folder) for inner in files]
    return str(folder / files) if (folder / str(files)).is_file() else files


def _data(config: dict[str, Any], name: str, *, is_file: bool) -> dict[str, Any]:
    """Load a task's rows and few-shot examples. Raises UnusableData if a gate cannot use them."""
    if config.get("output_type", "generate_until") == "generate_until":
        for hub_metric in _hub_metrics(config):
            evaluate.load(hub_metric)  # raises; lm-eval itself would go on without it, and fail at the first answer
    seed_draws()  # modules draw when they are imported, and custom data sets when they are made
    task = ConfigurableTask(config=import_functions(config))
    seed_draws()  # a download may have drawn the delays of its retries
    rows = [_json_row(row, name) for row in task.eval_docs]
    found: dict[str, Any] = {"rows": rows, "ids": _ids(rows, name, is_file=is_file)}
    if config.get("num_fewshot"):
        test_split = config.get("test_split") or config.get("validation_split")
        # lm-eval's own order for a task that names no split for its examples
        usual = config.get("training_split") or config.get("validation_split") or config.get("test_split")
        split = task.fewshot_cfg.split or (None if task.fewshot_cfg.samples else usual)
        found["shots_from_test_split"] = split == test_split
        found["shots"] = [] if split == test_split else [_json_row(row, name) for row in task.fewshot_docs()]
    if config.get("output_type") == "multiple_choice":
        found["guesses"] = [1 / len(task.doc_to_choice(row)) for row in rows]
    elif (metric := exact_match_of(config.get("metric_list") or ())) and not config.get("process_results"):
        # An empty answer, or any answer of some kind, must not match exactly.
        for number, row in enumerate(rows):
            target = task.doc_to_target(row)
            targets = [str(one) for one in (target if isinstance(target, list) else [target])]
            if not targets or not all(one.strip() for one in targets):
                raise UnusableData(f"row {number} has an empty target, for which an empty answer would be right")
            if (fault := ignored_target_fault(targets, metric)) is not None:
                raise UnusableData(f"row {number}: {fault}")
    return found


def _json_row(row: Any, name: str) -> dict[str, Any]:
    found: dict[str, Any] = dict(row)
    for key, value in found.items():
        if not _is_json(value):
            what = f"its column {key!r} holds {type(value).__name__}, which is neither text nor number"
            raise UnusableData(f"{what}; benchgate sends {name} as text alone")
    return found


def _is_json(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(inner) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_json, value))
    return value is None or isinstance(value, str | int | bool)


def _ids(rows: list[dict[str, Any]], name: str, *, is_file: bool) -> list[str] | None:
    """Return ids made of place and lm-eval's hash; None for a task file, whose rows must have ids."""
    if is_file:
        own = [row.get("id") for row in rows]
        if not all(isinstance(one, str) and one for one in own) or len(set(own)) != len(own):
            raise UnusableData(
                "its rows have no `id` of their own, a text that no other row has; answers are paired by it"
            )
        return None
    texts = [json.dumps(row, indent=2, default=handle_non_serializable, ensure_ascii=False) for row in rows]
    return [f"{name}-{number}-{str(hash_string(text))[:8]}" for number, text in enumerate(texts)]


if __name__ == "__main__":
    main(*sys.argv[1:])
