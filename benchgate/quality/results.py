"""The `results_*.json` of an lm-eval run made elsewhere: how it was asked, and what its samples must add up to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchgate.model.deployment import sha256_of

_SEEDS = ("random_seed", "numpy_seed", "torch_seed", "fewshot_seed")
_OF_A_MACHINE = ("dataset_path", "dataset_name", "dataset_kwargs", "metadata", "custom_dataset")


@dataclass(frozen=True, slots=True)
class Results:
    """A results file. `data` is all of it; what it lacks is not known."""

    data: Mapping[str, Any]

    @property
    def model(self) -> str | None:
        """The model that was asked, by the name it was asked by."""
        name = self.data.get("model_name")
        return name if isinstance(name, str) and name else None

    def leaves(self, name: str) -> tuple[str, ...]:
        """The tasks that a name stands for: those of a group, in order, or itself."""
        inside = self._of("group_subtasks", name)
        if not isinstance(inside, list) or not inside:
            return (name,)
        return tuple(dict.fromkeys(leaf for one in inside for leaf in self.leaves(str(one)) if one != name))

    def expected(self, task: str) -> int | None:
        """How many items of a task were asked."""
        counts = self._of("n-samples", task)
        number = counts.get("effective") if isinstance(counts, dict) else None
        return number if isinstance(number, int) else None

    def samples_sha256(self, task: str) -> str | None:
        """lm-eval's hash over the lines of a task."""
        found = self._of("task_hashes", task)
        return found if isinstance(found, str) and found else None

    def value(self, task: str, metric: str, filter_name: str) -> float | None:
        """The number that was reported, where it is the mean of the items'."""
        reported = self._of("results", task)
        number = reported.get(f"{metric},{filter_name}") if isinstance(reported, dict) else None
        return float(number) if isinstance(number, int | float) and self._is_mean(task, metric) else None

    def lower_is_better(self, task: str, metric: str) -> bool:
        """Whether a small number is a good one."""
        directions = self._of("higher_is_better", task)
        return directions.get(metric) is False if isinstance(directions, dict) else False

    def facts(self, task: str) -> dict[str, object]:
        """How the task was asked: what must be equal in both arms. A key is there only where the file tells it."""
        config = self.data.get("config")
        config = config if isinstance(config, dict) else {}
        found: dict[str, object] = {
            "lm_eval": self.data.get("lm_eval_version"),
            "task_version": self._of("versions", task),
            "num_fewshot": self._of("n-shot", task),
            "fewshot_as_turns": self.data.get("fewshot_as_multiturn"),
            "chat_template": self.data.get("chat_template_sha"),
            "system_sha256": self.data.get("system_instruction_sha"),
            "generation": config.get("gen_kwargs") or None,
            "seeds": [config[name] for name in _SEEDS if name in config] or None,
            "output_type": self._config(task).get("output_type"),
            "task_sha256": self._task_sha256(task),
        }
        return {key: value for key, value in found.items() if value is not None}

    def _is_mean(self, task: str, metric: str) -> bool:
        listed = self._config(task).get("metric_list")
        for entry in listed if isinstance(listed, list) else ():
            if isinstance(entry, dict) and entry.get("metric") == metric:
                return str(entry.get("aggregation", "mean")) == "mean"
        return False

    def _task_sha256(self, task: str) -> str | None:
        """Identity of the task as it was configured, wherever its data lay."""
        config = {key: value for key, value in self._config(task).items() if key not in _OF_A_MACHINE}
        return sha256_of(config) if config else None

    def _config(self, task: str) -> Mapping[str, Any]:
        config = self._of("configs", task)
        return config if isinstance(config, dict) else {}

    def _of(self, section: str, name: str) -> Any:
        inside = self.data.get(section)
        return inside.get(name) if isinstance(inside, dict) else None


def parse_results(text: str) -> Results:
    """A results file as a value; ValueError for what is none."""
    try:
        data = json.loads(text, parse_constant=lambda name: None)
    except (json.JSONDecodeError, RecursionError) as exc:
        raise ValueError(f"not JSON: {exc}") from exc
    if not isinstance(data, dict) or not isinstance(data.get("results"), dict):
        raise ValueError("no results of lm-eval: it has no `results`; give what `lm_eval --output_path` wrote")
    return Results(data)
