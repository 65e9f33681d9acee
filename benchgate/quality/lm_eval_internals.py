"""lm-eval's own task object for a planned task, over rows handed to it in memory. Imported only in an eval process.

Through a file rows would pass the JSON reader of `datasets`, which takes a column of texts that look like dates for
dates, and so changes the prompts.


lm-eval's own tasks and groups by name, and what their YAML comes to. Imported only in a process that asks for them.

lm-eval reads all of its 14,000 files before it knows one of them, which takes ten seconds. Here the files' text tells
which of them define a name, and lm-eval's own loader and factory then read those alone. No data is loaded, and no
function of a task is imported: functions stand in the configurations as values (see `functions`).
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from os.path import normpath
from pathlib import Path
from typing import Any

import lm_eval.tasks
import numpy as np
from jinja2 import Environment, Template
from jinja2.sandbox import SandboxedEnvironment
from lm_eval import utils
from lm_eval.api.group import Group
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks import _factory, _yaml_loader
from lm_eval.tasks._index import Entry, TaskIndex
from lm_eval.tasks._yaml_loader import _import_func_in_yml, load_yaml

from benchgate.plan.evals import PlannedTask
from benchgate.quality.tasks.lm_eval_tasks import function_value, is_function, module_file


class _Guarded(SandboxedEnvironment):
    """Renders lm-eval's templates where none reaches beyond its row, and compiles each once instead of for each row."""

    def __init__(self, found: Environment) -> None:
        super().__init__(undefined=found.undefined, keep_trailing_newline=found.keep_trailing_newline)
        self.filters |= found.filters
        self._compiled: dict[str, Template] = {}

    def from_string(self, source: Any, *given: Any, **named: Any) -> Template:
        """The template of a text."""
        if source not in self._compiled:
            self._compiled[source] = super().from_string(source, *given, **named)
        return self._compiled[source]


utils.env = _Guarded(utils.env)

SEED = 0
"""Of the draw of few-shot examples, and of whatever else a task draws: the same in both arms."""


class Rows(list[dict[str, Any]]):
    """Rows with what lm-eval asks of a data set: the names of its columns."""

    @property
    def features(self) -> dict[str, None]:
        """The columns, as keys."""
        return dict.fromkeys(key for row in self for key in row)


def built_task(task: PlannedTask) -> ConfigurableTask:
    """The task as lm-eval asks and scores it; its first rows are the planned ones, in their order."""
    random.seed(SEED)
    np.random.seed(SEED)  # what tasks of lm-eval draw from
    rows, shots = [dict(row) for row in task.rows], [dict(row) for row in task.shots]
    judged, drawn = str(task.config["test_split"]), task.config.get("fewshot_split")
    splits = {judged: Rows(rows + shots)} if drawn == judged else {judged: Rows(rows), str(drawn): Rows(shots)}

    def data(**_metadata: object) -> dict[str, Rows]:
        return splits

    config = {**resolved(task.config), "repeats": 1}  # who asks again is `child`, so that no answer is dropped
    built = ConfigurableTask(config={**config, "task": task.name, "custom_dataset": data})
    if built.get_config("num_fewshot") is None:
        built.set_config("num_fewshot", 0)
    built.set_fewshot_seed(SEED)
    return built


def resolved(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration with its functions imported; ValueError when their module is not the one that was planned."""
    made: dict[str, Any] = _resolved(config)
    return made


def _resolved(value: Any) -> Any:
    if is_function(value):
        name, folder = str(value["function"]), Path(value["folder"])
        if hashlib.sha256(module_file(name, folder).read_bytes()).hexdigest() != value["sha256"]:
            raise ValueError(f"the module of {name} has changed since the suite was read")
        return _import_func_in_yml(name, folder)
    if isinstance(value, dict):
        return {key: _resolved(inner) for key, inner in value.items()}
    return [_resolved(inner) for inner in value] if isinstance(value, list) else value


OWN_TASKS = Path(lm_eval.tasks.__file__).parent

_DEFINED = re.compile(
    rb"^[\"']?(?:task|group)[\"']?:[ \t]*[\"']?([^\"'\n#\[\]]+?)[\"']?[ \t\r]*(?:#.*)?$", re.MULTILINE
)
_INCLUDED = re.compile(rb"^[\"']?include[\"']?:[ \t]*[\"']?([^\"'\n#]+?)[\"']?[ \t\r]*(?:#.*)?$", re.MULTILINE)


class UnknownTask(Exception):
    """No task, group or tag has this name."""


class _Leaf:
    """Stands in for lm-eval's task object, which loads its data as soon as it is made."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config

    @property
    def task_name(self) -> str:
        """As lm-eval asks for it."""
        return str(self.config["task"])


class Names(dict[str, Entry]):
    """lm-eval's registry of names, filled as names are asked for; folders of one's own come before lm-eval's."""

    def __init__(self, folders: Sequence[Path] = ()) -> None:
        super().__init__()
        self._texts: dict[Path, bytes] = {}
        self._places: dict[str, Path] = {}
        for root in (OWN_TASKS, *folders):
            self._places |= self._defined(root)

    def __contains__(self, name: object) -> bool:
        return self.get(str(name)) is not None

    def __missing__(self, name: str) -> Entry:
        if name in self._places:
            found = TaskIndex.entry_from_path(self._places[name])
            entry = Entry(name, found.kind, self._places[name]) if found is not None else None
        else:
            entry = self._tagged(name)
        if entry is None:
            raise KeyError(name)
        self[name] = entry
        return entry

    def get(self, name: str, default: Any = None) -> Any:
        """The entry of a name, or the default."""
        try:
            return self[name]
        except KeyError:
            return default

    @property
    def known(self) -> list[str]:
        """Every name of a task or group."""
        return sorted(self._places)

    def _defined(self, root: Path) -> dict[str, Path]:
        """Name → file, the first one in the order of their paths, as lm-eval has it."""
        places: dict[str, Path] = {}
        for path in sorted(root.glob("**/*.yaml"), key=Path.as_posix):
            self._texts[path] = path.read_bytes()
            for name in _DEFINED.findall(self._texts[path]):
                places.setdefault(name.decode(errors="replace"), path)
        return places

    def _tagged(self, tag: str) -> Entry | None:
        """All tasks with a tag, of their own or of a file they include."""
        index: dict[str, Entry] = {}
        for path in sorted(self._mentioning(tag.encode()), key=Path.as_posix):
            if path.suffix == ".yaml":
                TaskIndex.process_cfg(load_yaml(path, resolve_func=False), path, index)
        return index.get(tag)

    def _mentioning(self, word: bytes) -> set[Path]:
        """Files whose text has a word, and those that include them."""
        including = self._including  # first: it reads the included files
        pattern = re.compile(rb"(?<![\w-])" + re.escape(word) + rb"(?![\w-])")
        found = {path for path, text in self._texts.items() if word in text and pattern.search(text)}
        waiting = list(found)
        while waiting:
            new = set(including.get(waiting.pop(), ())) - found
            found |= new
            waiting += new
        return found

    @cached_property
    def _including(self) -> dict[Path, list[Path]]:
        """File → the files that include it; what is included need not end in .yaml, and is read here."""
        including: dict[Path, list[Path]] = {}
        waiting = list(self._texts)
        while waiting:
            path = waiting.pop()
            for name in _INCLUDED.findall(self._texts[path]):
                included = Path(normpath(path.parent / name.decode(errors="replace")))
                including.setdefault(included, []).append(path)
                if included not in self._texts and included.is_file():
                    self._texts[included] = included.read_bytes()
                    waiting.append(included)
        return including


def leaf_configs(spec: str, names: Names) -> list[dict[str, Any]]:
    """The configuration of every task that a name or the path of a YAML file stands for, in lm-eval's order.

    Raises UnknownTask, and ValueError for what is no task in YAML.
    """
    is_file = spec.endswith((".yaml", ".yml"))
    entry = TaskIndex.entry_from_path(Path(spec)) if is_file else names.get(spec)
    if entry is None:
        raise UnknownTask(spec)
    with _unloaded():
        try:
            made = _factory.TaskFactory().build(entry, registry=names)
        except (KeyError, TypeError, ImportError) as exc:
            raise ValueError(
                f"lm-eval cannot read it, or it is written in Python ({type(exc).__name__}: {exc})"
            ) from exc
    return list({leaf.task_name: leaf.config for leaf in _leaves(made)}.values())


def _leaves(made: Any) -> Iterator[_Leaf]:
    if isinstance(made, _Leaf):
        yield made
    elif isinstance(made, Group | list):
        for inner in made:
            yield from _leaves(inner)
    else:
        raise ValueError("it is written in Python, not in YAML")


@contextmanager
def _unloaded() -> Iterator[None]:
    """lm-eval's factory without what it does too early: loading data, and importing functions."""
    usual = _factory.ConfigurableTask, _yaml_loader._import_func_in_yml
    _factory.ConfigurableTask, _yaml_loader._import_func_in_yml = _Leaf, function_value
    try:
        yield
    finally:
        _factory.ConfigurableTask, _yaml_loader._import_func_in_yml = usual


def is_own(config: Mapping[str, Any]) -> bool:
    """Whether a task came with lm-eval: its functions are as much to be trusted as lm-eval itself."""
    source = Path(str((config.get("metadata") or {}).get("config_source", "")))
    return source.is_relative_to(OWN_TASKS)
