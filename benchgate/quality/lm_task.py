"""lm-eval's own task object for a planned task, over rows handed to it in memory. Imported only in an eval process.

Through a file rows would pass the JSON reader of `datasets`, which takes a column of texts that look like dates for
dates, and so changes the prompts.
"""

from __future__ import annotations

import hashlib
import random
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, Template
from jinja2.sandbox import SandboxedEnvironment
from lm_eval import utils
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks._yaml_loader import _import_func_in_yml

from benchgate.plan.items import PlannedTask
from benchgate.quality.functions import is_function, module_file


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
