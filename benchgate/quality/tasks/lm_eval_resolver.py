"""Reads lm-eval's own tasks, and task files with code: `python -m benchgate.quality.tasks.lm_eval_resolver JOB ANSWER`.

A process of its own, started by `named`: lm-eval and what its tasks import stay out of benchgate, and may print and
fail as they like.


The rows of a task as lm-eval reads them, in plain JSON, and those that examples are drawn from.

Used only in the process of `resolve`.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from benchgate.quality.tasks.gated_metric import config_fault
from benchgate.quality.tasks.lm_eval_tasks import functions_in
from benchgate.quality.tasks.task_file import IGNORED, exact_match_of, nothing_left
from benchgate.suite.quality import TaskEntry

_NOT_FOR_ARMS = (
    "process_docs", "training_split", "validation_split", "fewshot_split", "custom_dataset", "dataset_kwargs", "tag",
    "group", "task_list", "task_alias", "should_decontaminate", "doc_to_decontamination_query",
)  # fmt: skip


_MAY_COME = (
    OSError, ValueError, LookupError, TypeError, AttributeError, AssertionError, ImportError, RuntimeError,
    ArithmeticError,
)  # fmt: skip
"""From a task's own code and from the hub's client; what else comes ends the process, and `named` says so."""


def main(job_path: str, answer_path: str) -> None:
    """Answer for each entry of the job: its tasks, or one problem."""
    job = json.loads(Path(job_path).read_text(encoding="utf-8"))
    from benchgate.quality.lm_eval_internals import Names

    names = Names([Path(folder) for folder in job["include"]])
    answers = [_answer(entry, names, job) for entry in job["entries"]]
    Path(answer_path).write_text(json.dumps(answers), encoding="utf-8")


def _answer(entry: Mapping[str, Any], names: Any, job: Mapping[str, Any]) -> dict[str, Any]:
    from benchgate.quality.lm_eval_internals import UnknownTask, leaf_configs

    try:
        configs = leaf_configs(entry["spec"], names)
    except UnknownTask:
        near = get_close_matches(entry["spec"], names.known, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "a path of a task file ends in .yaml"
        return {"problem": f"lm-eval has no task or group {entry['spec']!r}; {hint}"}
    except (ValueError, OSError) as exc:
        return {"problem": str(exc)}
    leaves = []
    for config in configs:
        leaf = _leaf(config, entry, job)
        if "problem" in leaf:
            return {"problem": leaf["problem"] if len(configs) == 1 else f"{config['task']}: {leaf['problem']}"}
        leaves.append(leaf)
    return {"leaves": leaves}


def _leaf(config: dict[str, Any], entry: Mapping[str, Any], job: Mapping[str, Any]) -> dict[str, Any]:
    """One task: its configuration for the arms, its rows, and what examples are drawn from."""
    from benchgate.quality.lm_eval_internals import is_own

    found = None if is_own(config) else _code_of(config)
    if found is not None and not job["allow_unsafe_code"]:
        what = f"it runs code ({found})"
        return {"problem": f"{what}; read that, and set `quality.allow_unsafe_code: true` to let it"}
    if config.get("unsafe_code") and not job["allow_unsafe_code"]:
        what = "it runs the code that a model writes, on this machine"
        return {"problem": f"{what}; set `quality.allow_unsafe_code: true` to let it, and run in a container"}
    closed = (found is not None or config.get("unsafe_code")) and not job["allow_code"]
    if closed and job["fetch"]:
        return {"problem": "it runs code on this machine; read it, and add --allow-code to let it"}
    name = str(config["task"])
    config = _prepared(config, entry)
    if (fault := config_fault(config, _said(entry["said"]))) is not None:
        return {"problem": fault}
    leaf: dict[str, Any] = {"name": name, "config": _for_arms(config), "unsafe": bool(config.get("unsafe_code"))}
    if closed:
        return {**leaf, "rows": [], "needs": f"{_data_of(config, name)} (with --allow-code)"}
    try:
        return {**leaf, **task_data(config, name, is_file=entry["is_file"])}
    except Unusable as exc:
        return {"problem": str(exc)}
    except TemplateError as exc:
        return {"problem": f"a template of it cannot be rendered: {exc}"}
    except _MAY_COME as exc:
        reason = " ".join(str(exc).split())[:300] or type(exc).__name__
        needs = _data_of(config, "")
        if isinstance(exc, ImportError):
            package = f"the Python package {exc.name}" if exc.name else "further Python packages"
            if job["fetch"]:
                return {"problem": f"it needs {package}, which is not installed here: {reason}"}
            return {**leaf, "rows": [], "needs": f"{needs} (with {package})"}
        if job["fetch"]:
            return {"problem": _not_there(needs, f"{type(exc).__name__}: {reason}")}
        return {**leaf, "rows": [], "needs": needs or reason}


def _data_of(config: Mapping[str, Any], name: str) -> str:
    """What the hub calls the data of a task; the task's own name where it has none there."""
    called = [str(config[key]) for key in ("dataset_path", "dataset_name") if config.get(key)]
    return name if called[:1] == ["json"] and name else " ".join(called) or name


def _code_of(config: Mapping[str, Any]) -> str | None:
    """What code a task brings with it: a function, or a metric that lm-eval would fetch from the hub and run."""
    from lm_eval.api.registry import METRIC_REGISTRY

    import_module("lm_eval.api.metrics")  # which enters its own
    if found := next(functions_in(config), None):
        return f"{found['function']}, in {found['folder']}"
    for one in config.get("metric_list") or []:
        if one.get("hf_evaluate") or (one.get("metric") not in METRIC_REGISTRY and not config.get("process_results")):
            return f"the metric {one.get('metric')!r}, from the hub"
    return None


def _said(stored: Any) -> TaskEntry:
    """What the suite says of the task; just its name where it says no more."""
    said = {"task": stored} if isinstance(stored, str) else stored
    return TaskEntry.model_validate(said, by_name=True, by_alias=False, context={"stored": True})


def _not_there(needs: str, reason: str) -> str:
    cache = os.environ.get("HF_DATASETS_CACHE") or f"{os.environ.get('HF_HOME', '~/.cache/huggingface')}/datasets"
    offline = os.environ.get("HF_HUB_OFFLINE") in ("1", "ON", "YES", "TRUE")
    remedy = "unset HF_HUB_OFFLINE to fetch it once" if offline else "run once where the hub can be reached"
    if "module script" in reason:  # as the hub's client calls the code of a metric
        return f"its scorer, which comes from the hub, could not be loaded: {reason}; {remedy}"
    return (
        f"its data ({needs or 'made by its own code'}) could not be loaded: {reason}; {remedy}; it is kept in {cache}"
    )


def _prepared(config: dict[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    """With what the suite says of the task, greedy where it means to be, and data files found beside it."""
    config = dict(config)
    metadata = dict(config.get("metadata") or {})
    source = Path(str(metadata.pop("config_source", "")))  # a path of this machine: no part of what is asked
    config["metadata"] = metadata
    if entry["few_shot"] is not None:
        config["num_fewshot"] = entry["few_shot"]
    if config.get("output_type", "generate_until") == "generate_until":
        settings = dict(config.get("generation_kwargs") or {})
        if not settings.get("do_sample"):
            settings["temperature"] = 0.0  # as it means; a server knows nothing of `do_sample`
        if entry["max_tokens"] is not None:
            settings["max_gen_toks"] = entry["max_tokens"]
        config["generation_kwargs"] = settings
    kwargs = dict(config.get("dataset_kwargs") or {})
    if files := kwargs.get("data_files"):
        config["dataset_kwargs"] = {**kwargs, "data_files": _beside(files, source.parent)}
    return config


def _beside(files: Any, folder: Path) -> Any:
    if isinstance(files, dict):
        return {split: _beside(inner, folder) for split, inner in files.items()}
    if isinstance(files, list):
        return [_beside(inner, folder) for inner in files]
    return str(folder / files) if (folder / str(files)).is_file() else files


def _for_arms(config: Mapping[str, Any]) -> dict[str, Any]:
    """What an arm needs: its rows come with the plan, after whatever is done to them once."""
    kept = {key: value for key, value in config.items() if key not in _NOT_FOR_ARMS and value is not None}
    if isinstance(config.get("fewshot_config"), dict):
        shown = config["fewshot_config"]
        kept["fewshot_config"] = {
            key: value for key, value in shown.items() if key not in ("split", "process_docs", "samples")
        }
    return {**kept, "test_split": "test"}


class Unusable(Exception):
    """The data is there, and is not what a gate can pair by."""


def task_data(config: dict[str, Any], name: str, *, is_file: bool) -> dict[str, Any]:
    """The rows of a task as it reads them, and those that few-shot examples are drawn from."""
    from lm_eval.api.task import ConfigurableTask

    from benchgate.quality.lm_eval_internals import resolved

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


if __name__ == "__main__":
    main(*sys.argv[1:])
