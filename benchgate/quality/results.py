"""The `results_*.json` of an lm-eval run made elsewhere: how it was asked, and what its samples must add up to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from benchgate.model.deployment import sha256_of
from benchgate.quality.model_args import asking_args

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

    @property
    def run(self) -> str:
        """Which run of lm-eval this is: the instant at which it began, which no two share; else all that it found."""
        began = self.data.get("date")
        return str(began) if isinstance(began, int | float) else sha256_of(self.data)

    @property
    def system(self) -> str | None:
        """The system prompt; empty where there was none, None where the file does not tell."""
        if "system_instruction" not in self.data:
            return None
        return str(self.data["system_instruction"] or "")

    @property
    def as_turns(self) -> bool | None:
        """Whether examples were turns of a chat."""
        found = self.data.get("fewshot_as_multiturn")
        return found if isinstance(found, bool) else None

    @property
    def endpoint(self) -> Literal["chat", "completions"] | None:
        """Which endpoint of a server was asked; None of a model that was asked in no server, or one of another kind."""
        backend = str(self._config_of_run.get("model"))
        if "completions" not in backend:
            return None
        return "chat" if "chat" in backend else "completions"

    def leaves(self, name: str) -> tuple[str, ...]:
        """The tasks that a name stands for: those of a group, in order, or itself."""
        inside = self._of("group_subtasks", name)
        if not isinstance(inside, list) or not inside:
            return (name,)
        return tuple(dict.fromkeys(leaf for one in inside for leaf in self.leaves(str(one)) if one != name))

    def expected(self, task: str) -> int | None:
        """How many items of a task were asked."""
        return _whole(self._of("n-samples", task), "effective")

    def original(self, task: str) -> int | None:
        """How many items the task has."""
        return _whole(self._of("n-samples", task), "original")

    def few_shot(self, task: str) -> int | None:
        """How many examples stood before each question."""
        found = self._of("n-shot", task)
        return found if isinstance(found, int) else None

    def max_tokens(self, task: str) -> int | None:
        """The longest answer that the task's own settings allow."""
        return _whole(self._config(task).get("generation_kwargs"), "max_gen_toks")

    def samples_sha256(self, task: str) -> str | None:
        """lm-eval's hash over the lines of a task."""
        found = self._of("task_hashes", task)
        return found if isinstance(found, str) and found else None

    def value(self, task: str, metric: str, filter_name: str) -> float | None:
        """The number that was reported, where it is the mean of the items'."""
        reported = self._of("results", task)
        number = reported.get(f"{metric},{filter_name}") if isinstance(reported, dict) else None
        return float(number) if isinstance(number, int | float) and self._is_mean(task, metric) else None

    def higher_is_better(self, task: str, metric: str) -> bool | None:
        """Whether a large number is a good one; None where the file does not tell."""
        directions = self._of("higher_is_better", task)
        found = directions.get(metric) if isinstance(directions, dict) else None
        return found if isinstance(found, bool) else None

    def facts(self, task: str) -> dict[str, object]:
        """How the task was asked: what must be equal in both arms. A key is there only where the file tells it."""
        config = self._config_of_run
        found: dict[str, object] = {
            "lm_eval": self.data.get("lm_eval_version"),
            "task_version": self._of("versions", task),
            "num_fewshot": self._of("n-shot", task),
            "fewshot_as_turns": self.data.get("fewshot_as_multiturn"),
            "chat_template": self.data.get("chat_template_sha"),
            "system_sha256": self.data.get("system_instruction_sha"),
            "backend": config.get("model"),
            "generation": config.get("gen_kwargs") or None,
            "seeds": [config[name] for name in _SEEDS if name in config] or None,
            "output_type": self._config(task).get("output_type"),
            "task_sha256": self._task_sha256(task),
            **{f"model_args.{name}": value for name, value in asking_args(config.get("model_args")).items()},
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

    @property
    def _config_of_run(self) -> Mapping[str, Any]:
        config = self.data.get("config")
        return config if isinstance(config, dict) else {}

    def _config(self, task: str) -> Mapping[str, Any]:
        config = self._of("configs", task)
        return config if isinstance(config, dict) else {}

    def _of(self, section: str, name: str) -> Any:
        inside = self.data.get(section)
        return inside.get(name) if isinstance(inside, dict) else None


def _whole(section: object, key: str) -> int | None:
    found = section.get(key) if isinstance(section, dict) else None
    return found if isinstance(found, int) else None


def parse_results(text: str, task: str) -> Results:
    """A results file as a value; ValueError for what is none, or none of this task."""
    try:
        data = json.loads(text, parse_constant=lambda name: None)
    except (json.JSONDecodeError, RecursionError) as exc:
        raise ValueError(f"not JSON: {exc}") from exc
    if not isinstance(data, dict) or not isinstance(data.get("results"), dict):
        raise ValueError("no results of lm-eval: it has no `results`; give what `lm_eval --output_path` wrote")
    if not isinstance(data["results"].get(task), dict):
        raise ValueError(
            f"its `results` have nothing of the task {task!r}; give the file that was written with its samples"
        )
    return Results(data)
