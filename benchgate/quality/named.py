"""Tasks that lm-eval itself must read: its own by name, and task files with code. Read in a process of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchgate.errors import UsageError, lacking
from benchgate.plan.evals import PlannedTask
from benchgate.quality.judged import judged_task
from benchgate.suite.quality import Quality, TaskEntry
from benchgate.targets.error_messages import one_line

_LIMIT_S = 3600.0
"""For fetching data: nothing is under load yet."""

_OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_EVALUATE_OFFLINE")


def read_named(
    suite_dir: Path, entries: Sequence[TaskEntry], quality: Quality, *, fetch: bool, allow_code: bool
) -> list[list[PlannedTask] | str]:
    """For each entry its tasks (several for a group), or why there are none.

    Without `fetch` nothing is downloaded: a task whose data is not kept on this machine then `needs` it. Code that the
    suite lets run is run with `allow_code` alone. Raises UsageError when the process itself comes to nothing.
    """
    if find_spec("lm_eval") is None:
        raise UsageError(lacking("tasks of lm-eval's need lm-eval, which is not installed", "eval"))
    job = {
        "include": [str((suite_dir / folder).resolve()) for folder in quality.include],
        "allow_unsafe_code": quality.allow_unsafe_code,
        "allow_code": allow_code,
        "fetch": fetch,
        "entries": [_asked(suite_dir, entry, quality) for entry in entries],
    }
    answers = _run(job, fetch=fetch)
    return [_tasks(entry, answer, quality) for entry, answer in zip(entries, answers, strict=True)]


def _asked(suite_dir: Path, entry: TaskEntry, quality: Quality) -> dict[str, object]:
    return {
        "spec": str((suite_dir / entry.task).resolve()) if entry.is_file else entry.task,
        "is_file": entry.is_file,
        "few_shot": quality.few_shot if entry.few_shot is None else entry.few_shot,
        "max_tokens": entry.max_tokens,
        "said": entry.model_dump(mode="json"),
    }


def _run(job: Mapping[str, object], *, fetch: bool) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="benchgate-tasks-") as folder:
        job_path, answer_path, log_path = (Path(folder) / name for name in ("job.json", "answer.json", "log.txt"))
        job_path.write_text(json.dumps(job), encoding="utf-8")
        with log_path.open("wb") as log:
            try:
                code = subprocess.run(
                    [sys.executable, "-P", "-m", "benchgate.quality.resolve", str(job_path), str(answer_path)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=folder,
                    env=_environment(job, fetch=fetch),
                    timeout=_LIMIT_S,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                raise UsageError("the data of lm-eval's tasks was not there after an hour; see the network") from None
        if code != 0:
            lines = log_path.read_text(encoding="utf-8", errors="replace").split("\n")
            last = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
            raise UsageError(f"lm-eval could not read its tasks (exit code {code}): {one_line(last)}")
        answers: list[dict[str, Any]] = json.loads(answer_path.read_text(encoding="utf-8"))
        return answers


def _environment(job: Mapping[str, object], *, fetch: bool) -> dict[str, str]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "PYTHONWARNINGS": "ignore",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TQDM_DISABLE": "1",
        "LMEVAL_LOG_LEVEL": "WARNING",
    }
    if job["allow_unsafe_code"] and job["allow_code"]:
        environment["HF_ALLOW_CODE_EVAL"] = "1"  # tasks that run code try it as soon as they are imported
    return environment if fetch else environment | dict.fromkeys(_OFFLINE, "1")


def _tasks(entry: TaskEntry, answer: Mapping[str, Any], quality: Quality) -> list[PlannedTask] | str:
    if "problem" in answer:
        return str(answer["problem"])
    leaves = answer["leaves"]
    alone = len(leaves) == 1 and (entry.is_file or leaves[0]["name"] == entry.name)
    tasks = []
    for leaf in leaves:
        name = entry.name if alone else f"{entry.name}/{leaf['name']}"
        made = judged_task(name, _config(leaf), tuple(leaf["rows"]), entry, quality)
        if isinstance(made, str):
            return made if alone else f"{leaf['name']}: {made}"
        tasks.append(
            replace(
                made,
                ids=tuple(leaf["ids"]) if leaf.get("ids") is not None else None,
                shots=tuple(leaf.get("shots") or ()),
                chance=leaf.get("chance"),
                leaves=None if alone else len(leaves),
                unsafe=leaf["unsafe"],
                needs=leaf.get("needs"),
            )
        )
    return tasks


def _config(leaf: Mapping[str, Any]) -> dict[str, object]:
    config: dict[str, object] = dict(leaf["config"])
    if leaf.get("drawn_from_itself"):
        config["fewshot_split"] = config["test_split"]
    elif leaf.get("shots"):
        config["fewshot_split"] = "shots"
    return config
