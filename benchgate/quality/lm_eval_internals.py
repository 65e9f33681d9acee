"""lm-eval's internals that benchgate depends on, all of them, checked when this module is imported.

Imported only in the eval process and in the process that reads tasks, never by benchgate itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from importlib import import_module
from pathlib import Path
from typing import Any

import lm_eval.tasks
import numpy as np
from jinja2 import Environment, Template
from jinja2.sandbox import SandboxedEnvironment
from lm_eval.api.group import Group
from lm_eval.api.task import ConfigurableTask

from benchgate.model.records import INVALID_CHOICE
from benchgate.plan.items import PlannedTask
from benchgate.quality.tasks.lm_eval_tasks import function_value, is_function, module_file
from benchgate.system import lacking, write_atomic

OWN_TASKS = Path(lm_eval.tasks.__file__).parent
_MARKER = "\0unread\0"  # in no answer
SEED = 0  # seed of few-shot examples and of everything else that a task draws, the same in both arms


def _internals(module: str, *names: str) -> Any:
    """Import a module of lm-eval. Exits with the reason if this version lacks the module or one of the names."""
    try:
        found = import_module(module)
    except ImportError:
        found = None
    for name in names:
        if not hasattr(found, name):
            found_here = f"lm-eval {lm_eval.__version__} has no {module}.{name}, which benchgate needs"
            raise SystemExit(lacking(found_here, "eval"))
    return found


_utils = _internals("lm_eval.utils", "env")
_index = _internals("lm_eval.tasks._index", "Entry", "Kind", "TaskIndex")
_factory = _internals("lm_eval.tasks._factory", "ConfigurableTask", "TaskFactory")
_yaml_loader = _internals("lm_eval.tasks._yaml_loader", "_import_func_in_yml")


class _Sandbox(SandboxedEnvironment):
    """Renders lm-eval's templates without access beyond their row; compiles each once instead of for each row."""

    def __init__(self, env: Environment) -> None:
        super().__init__(undefined=env.undefined, keep_trailing_newline=env.keep_trailing_newline)
        self.filters |= env.filters
        self._compiled: dict[str, Template] = {}

    def from_string(self, source: Any, *args: Any, **kwargs: Any) -> Template:
        """Compile a template, or return it compiled."""
        if source not in self._compiled:
            self._compiled[source] = super().from_string(source, *args, **kwargs)
        return self._compiled[source]


_utils.env = _Sandbox(_utils.env)


class _Rows(list[dict[str, Any]]):
    """Rows with the one attribute of a data set that lm-eval reads."""

    @property
    def features(self) -> dict[str, None]:
        """Return the column names as keys."""
        return dict.fromkeys(key for row in self for key in row)


def seed_draws() -> None:
    """Seed the generators that tasks draw from, as lm-eval does before it loads its tasks."""
    random.seed(SEED)
    np.random.seed(SEED)


def build_task(task: PlannedTask) -> ConfigurableTask:
    """Return lm-eval's task object over the planned rows, in their order.

    Rows are passed in memory: the JSON reader of `datasets` would turn columns that look like dates into dates, which
    changes the prompts.
    """
    seed_draws()
    rows, shots = [dict(row) for row in task.rows], [dict(row) for row in task.shots]
    test_split, fewshot_split = str(task.config["test_split"]), task.config.get("fewshot_split")
    if fewshot_split == test_split:
        splits = {test_split: _Rows(rows + shots)}
    else:
        splits = {test_split: _Rows(rows), str(fewshot_split): _Rows(shots)}

    def data(**_metadata: object) -> dict[str, _Rows]:
        return splits

    # The worker repeats: lm-eval would drop the answers of all repetitions but one.
    config = {**import_functions(task.config), "repeats": 1}
    built = ConfigurableTask(config={**config, "task": task.name, "custom_dataset": data})
    if built.get_config("num_fewshot") is None:
        built.set_config("num_fewshot", 0)
    built.set_fewshot_seed(SEED)
    return built


def unread_items(built: ConfigurableTask, filter_name: str, samples: Sequence[Mapping[str, Any]]) -> frozenset[int]:
    """Return the `doc_id`s of logged samples with a generated answer in which a step of the filter found nothing.

    The text of a fallback does not tell: a task may have its own, and an answer may really be that text. So each step
    with a fallback also runs with a marker in its place. Steps written in Python often return a fixed text instead.
    """
    if not samples:
        return frozenset()  # some steps fail without any
    pipeline = {one.name: one for one in built._filters}[filter_name]
    docs = [sample["doc"] for sample in samples]
    given: list[Any] = [list(sample["resps"][0]) for sample in samples]
    unread: set[int] = set()
    for make_step in pipeline.filters:
        step, marked = make_step(), make_step()
        fallbacks = [name for name in ("fallback", "default_value") if hasattr(marked, name)]
        for name in fallbacks:
            setattr(marked, name, _MARKER)
        found = list(marked.apply([copy(one) for one in given], docs)) if fallbacks else None
        after = list(step.apply([copy(one) for one in given], docs))
        for number, sample in enumerate(samples):
            if found is not None:
                is_unread = _is_only(found[number], _MARKER, "")
            else:
                had_text = all(text and INVALID_CHOICE not in text for text in _texts(given[number]))
                is_unread = had_text and _is_only(after[number], INVALID_CHOICE, "")
            if is_unread:
                unread.add(int(sample["doc_id"]))
        given = after
    return frozenset(unread)


def _is_only(response: Any, *allowed: str) -> bool:
    texts = _texts(response)
    return bool(texts) and texts <= set(allowed)


def _texts(response: Any) -> set[str]:
    """Return the texts of a response, or of several, in lower case and without white space around them."""
    return {str(one).strip().lower() for one in (response if isinstance(response, list | tuple) else [response])}


def import_functions(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration with its functions imported. Raises ValueError if a module changed since the plan."""

    def imported(value: Any) -> Any:
        if is_function(value):
            name, folder = str(value["function"]), Path(value["folder"])
            if hashlib.sha256(module_file(name, folder).read_bytes()).hexdigest() != value["sha256"]:
                raise ValueError(f"the module of {name} has changed since the suite was read")
            return _yaml_loader._import_func_in_yml(name, folder)
        if isinstance(value, dict):
            return {key: imported(inner) for key, inner in value.items()}
        return [imported(inner) for inner in value] if isinstance(value, list) else value

    return {key: imported(value) for key, value in config.items()}


class UnknownTask(Exception):
    """A name that no task, group or tag has."""


class _TaskConfig:
    """Replaces lm-eval's task object, which loads its data as soon as it is made."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config

    @property
    def task_name(self) -> str:
        """Return the name under which lm-eval groups it."""
        return str(self.config["task"])


def task_index(folders: Sequence[Path]) -> dict[str, Any]:
    """Return lm-eval's index of tasks, groups and tags by name. Names in `folders` replace lm-eval's own."""
    # lm-eval takes ten seconds to read its 14,000 files, so the index is cached for each installation of lm-eval.
    installation = f"{lm_eval.__version__} {OWN_TASKS} {OWN_TASKS.stat().st_mtime_ns}"
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "benchgate"
    cache = caches / f"lm-eval-tasks-{hashlib.sha256(installation.encode()).hexdigest()[:16]}.json"
    try:
        rows = json.loads(cache.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        index = _index.TaskIndex.build([OWN_TASKS])
        rows = [[e.name, e.kind.name, str(e.yaml_path or ""), sorted(e.tags)] for e in index.values()]
        with suppress(OSError):  # a read-only home only costs time
            write_atomic(cache, json.dumps(rows).encode())
    return {
        **(
            {
                name: _index.Entry(name, _index.Kind[kind], Path(path) if path else None, tags=set(tags))
                for name, kind, path, tags in rows
            }
        ),
        **_index.TaskIndex.build(folders),
    }


def leaf_configs(spec: str, index: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the configuration of each task under a name or in a YAML file, in lm-eval's order.

    Loads no data and imports no function: functions are values as `function_value` makes them. Raises UnknownTask, and
    ValueError for anything that is not a task in YAML.
    """
    is_file = spec.endswith((".yaml", ".yml"))
    entry = _index.TaskIndex.entry_from_path(Path(spec)) if is_file else index.get(spec)
    if entry is None:
        raise UnknownTask(spec)
    with _without_loading():
        try:
            built = _factory.TaskFactory().build(entry, registry=index)
        except (KeyError, TypeError, ImportError) as exc:
            raise ValueError(
                f"lm-eval cannot read it, or it is written in Python ({type(exc).__name__}: {exc})"
            ) from exc
    return list({leaf.task_name: leaf.config for leaf in _leaves(built)}.values())


def _leaves(built: Any) -> Iterator[_TaskConfig]:
    if isinstance(built, _TaskConfig):
        yield built
    elif isinstance(built, Group | list):
        for inner in built:
            yield from _leaves(inner)
    else:
        raise ValueError("it is written in Python, not in YAML")


@contextmanager
def _without_loading() -> Iterator[None]:
    originals = _factory.ConfigurableTask, _yaml_loader._import_func_in_yml
    _factory.ConfigurableTask, _yaml_loader._import_func_in_yml = _TaskConfig, function_value
    try:
        yield
    finally:
        _factory.ConfigurableTask, _yaml_loader._import_func_in_yml = originals


def is_own(config: Mapping[str, Any], spec: str, index: Mapping[str, Any]) -> bool:
    """Return True for a task that came with lm-eval and is not changed by the group of another that `spec` names."""
    entry, source = index.get(spec), str((config.get("metadata") or {}).get("config_source", ""))
    named_by = entry.yaml_path if entry is not None else Path(spec)
    return is_own_file(Path(source)) and (named_by is None or is_own_file(named_by))  # a tag has no file


def is_own_file(path: Path) -> bool:
    """Return True for a file or folder of lm-eval's own tasks, whose functions are trusted as lm-eval itself is."""
    return path.resolve().is_relative_to(OWN_TASKS.resolve())
