"""Tasks that lm-eval must read, in a child process: its own by name, and task files with code."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchgate.errors import UsageError
from benchgate.plan.items import PlannedTask
from benchgate.quality.tasks.gated_metric import can_be_guessed, gated_task
from benchgate.suite.quality import Quality, TaskEntry
from benchgate.system import lacking
from benchgate.targets.error_messages import one_line

_RESOLVER = "benchgate.quality.tasks.lm_eval_resolver"
# Time limit for downloading data. Nothing is measured yet.
_LIMIT_S = 3600.0
_TASK_NAME = re.compile(rb"""^[ -]*(?:task|group|tag) *: *["']?([\w.+-]+)["']? *$""", re.MULTILINE)
_OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_EVALUATE_OFFLINE")


def read_lm_eval_tasks(
    suite_dir: Path, entries: Sequence[TaskEntry], quality: Quality, *, fetch: bool, allow_code: bool
) -> list[list[PlannedTask] | str]:
    """Return each entry's tasks (several for a group), or why there are none.

    Without `fetch` nothing is downloaded, and a task without cached data has `needs`. Code that the suite allows runs
    only with `allow_code`. Raises UsageError if the process fails.
    """
    if find_spec("lm_eval") is None:
        raise UsageError(lacking("tasks of lm-eval's need lm-eval, which is not installed", "eval"))
    unknown = _unknown_tasks([entry.task for entry in entries if not entry.is_file], suite_dir, quality)
    if unknown:
        return [unknown.get(entry.task, []) for entry in entries]
    job = {
        "include": [str((suite_dir / folder).resolve()) for folder in quality.include],
        "allow_unsafe_code": quality.allow_unsafe_code,
        "allow_code": allow_code,
        "fetch": fetch,
        "entries": [
            {
                "spec": str((suite_dir / entry.task).resolve()) if entry.is_file else entry.task,
                "is_file": entry.is_file,
                "few_shot": quality.few_shot if entry.few_shot is None else entry.few_shot,
                "max_tokens": entry.max_tokens,
                "entry": entry.model_dump(mode="json"),
            }
            for entry in entries
        ],
    }
    environment = lm_eval_environment(offline=not fetch, allow_code=quality.allow_unsafe_code and allow_code)
    answers = _run_resolver(job, environment)
    return [_planned_tasks(entry, answer, quality) for entry, answer in zip(entries, answers, strict=True)]


def _unknown_tasks(names: Sequence[str], suite_dir: Path, quality: Quality) -> dict[str, str]:
    """Return the message for each name that no task file holds.

    lm-eval takes half a minute to import and to read its files; to search them takes a second.
    """
    package = find_spec("lm_eval")  # its parts are not looked up: that would import it
    places = package.submodule_search_locations if package is not None else None
    folders = [*(f"{place}/tasks" for place in places or ()), *quality.include]
    files = [
        Path(folder, name)
        for top in folders
        for folder, _, found in os.walk(suite_dir / top)
        for name in found
        if not name.endswith(".py")  # some task files have no suffix
    ]
    open_names, known = set(names), set[str]()
    patterns = {name: re.compile(rb"(?<![\w+.-])%b(?![\w+.-])" % re.escape(name.encode())) for name in names}
    for path in sorted(files, key=lambda path: not any(name in str(path) for name in names)):
        if not open_names:
            return {}
        try:
            text = path.read_bytes()
        except OSError:
            return {}
        open_names -= {name for name in open_names if name.encode() in text and patterns[name].search(text)}
        known.update(match.decode(errors="replace") for match in _TASK_NAME.findall(text))
    return {name: unknown_task(name, known) for name in open_names}


def unknown_task(name: str, known: Iterable[str]) -> str:
    """Return the message for a name that lm-eval does not know."""
    near = get_close_matches(name, sorted(known), n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else "a path of a task file ends in .yaml"
    return f"lm-eval has no task or group {name!r}; {hint}"


def lm_eval_environment(*, offline: bool, allow_code: bool) -> dict[str, str]:
    """Return the environment of a process that imports lm-eval: ours and its import path, without chatter."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "PYTHONWARNINGS": "ignore",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TQDM_DISABLE": "1",
        "LMEVAL_LOG_LEVEL": "WARNING",
    }
    if allow_code:
        environment["HF_ALLOW_CODE_EVAL"] = "1"  # tasks that run code try it as soon as they are imported
    return environment | dict.fromkeys(_OFFLINE, "1") if offline else environment


def _run_resolver(job: Mapping[str, object], environment: Mapping[str, str]) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="benchgate-tasks-") as folder:
        job_path, answer_path, log_path = (Path(folder) / name for name in ("job.json", "answer.json", "log.txt"))
        job_path.write_text(json.dumps(job), encoding="utf-8")
        with log_path.open("wb") as log:
            try:
                code = subprocess.run(
                    [sys.executable, "-P", "-m", _RESOLVER, str(job_path), str(answer_path)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=folder,
                    env=environment,
                    timeout=_LIMIT_S,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                raise UsageError("the data of lm-eval's tasks was not there after an hour; see the network") from None
        if code != 0:
            lines = log_path.read_text(encoding="utf-8", errors="replace").split("\n")
            last = next((line.strip() for line in reversed(lines) if line.strip()), "its log is empty")
            raise UsageError(f"lm-eval could not read its tasks (exit code {code}): {one_line(last)}")
        answers: list[dict[str, Any]] = json.loads(answer_path.read_text(encoding="utf-8"))
        return answers


def _planned_tasks(entry: TaskEntry, answer: Mapping[str, Any], quality: Quality) -> list[PlannedTask] | str:
    if "problem" in answer:
        return str(answer["problem"])
    leaves = answer["leaves"]
    alone = len(leaves) == 1 and (entry.is_file or leaves[0]["name"] == entry.name)
    tasks = []
    for leaf in leaves:
        config: dict[str, object] = dict(leaf["config"])
        if leaf.get("shots_from_test_split"):
            config["fewshot_split"] = config["test_split"]
        elif leaf.get("shots"):
            config["fewshot_split"] = "shots"
        name = entry.name if alone else f"{entry.name}/{leaf['name']}"
        task = gated_task(name, config, tuple(leaf["rows"]), entry, quality)
        if isinstance(task, str):
            return task if alone else f"{leaf['name']}: {task}"
        tasks.append(
            replace(
                task,
                ids=tuple(leaf["ids"]) if leaf.get("ids") is not None else None,
                shots=tuple(leaf.get("shots") or ()),
                guesses=tuple(leaf.get("guesses", ())) if can_be_guessed(task.metric) else (),
                leaves=None if alone else len(leaves),
                unsafe=leaf["unsafe"],
                needs=leaf.get("needs"),
            )
        )
    return tasks


def is_function(value: object) -> bool:
    """Return True for a function of a task file (`!function utils.process_docs`), as `function_value` stores it."""
    return isinstance(value, Mapping) and value.keys() == {"function", "folder", "sha256"}


def function_value(name: str, folder: Path) -> dict[str, str]:
    """Return a function as a JSON value with its module's digest. Runs nothing. Raises ImportError without a module."""
    digest = hashlib.sha256(module_file(name, folder).read_bytes()).hexdigest()
    return {"function": name, "folder": str(folder), "sha256": digest}


def module_file(name: str, folder: Path) -> Path:
    """Return the file of a function's module: next to the task file, else importable. Imports nothing."""
    module = name.rpartition(".")[0]
    local = folder / f"{module.replace('.', '/')}.py"
    if local.exists():
        return local
    first, *inner = module.split(".")  # `find_spec` would import, and so run, the packages around a module
    try:
        spec = find_spec(first) if first else None
    except ValueError:  # for the module that runs as `__main__`
        spec = None
    files = [Path(spec.origin)] if spec is not None and spec.origin is not None else []
    if inner and spec is not None:
        stems = [Path(root).joinpath(*inner) for root in spec.submodule_search_locations or ()]
        files = [file for stem in stems for file in (stem / "__init__.py", stem.with_suffix(".py"))]
    for file in files:
        if file.is_file():
            return file
    raise ImportError(f"{name}: there is no module {module!r} beside the task file, and none to import")


def functions_in(value: Any) -> Iterator[Mapping[str, str]]:
    """Yield every function of a configuration."""
    if is_function(value):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from functions_in(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from functions_in(inner)
