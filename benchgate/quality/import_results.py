"""What lm-eval asked elsewhere, as observations: the samples of one arm, read, checked and named as the suite does.

The `results_*.json` of an lm-eval run made elsewhere: how it was asked, and what its samples must add up to.

Whether a task that was asked elsewhere was asked as the suite says: the verdict is one on the suite's evals.

What lm-eval was told of the model beside its name: the part of it that says how a task was asked.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchgate.errors import Problem, SuiteError
from benchgate.model.deployment import Arm, sha256_of
from benchgate.model.run import QualityObservation
from benchgate.quality.import_samples import (
    Judged,
    Sample,
    SampleFiles,
    Wanted,
    find_files,
    hashes_sha256,
    judged,
    parse_samples,
)
from benchgate.quality.tasks.gated_metric import metric_fault, scale_of
from benchgate.suite.quality import Quality, TaskEntry
from benchgate.text_files import RECORDED_BYTES, text_of

_ROUNDING = 1e-6  # of a mean that was written out and read again


@dataclass(frozen=True, slots=True)
class Imported:
    """One arm: its observations in the suite's order, and what identifies where they came from.

    `runs` are the runs of lm-eval that its samples are of (`Results.run`).
    """

    observations: tuple[QualityObservation, ...]
    facts: dict[str, object]
    runs: frozenset[str]

    @property
    def model(self) -> str | None:
        """The model that was asked, by the name it was asked by; None where no results file tells."""
        name = self.facts.get("model")
        return name if isinstance(name, str) else None


def read_arm(arm: Arm, path: Path, quality: Quality) -> Imported:
    """The tasks of the suite as one lm-eval run answered them. Raises SuiteError with every problem of every file."""
    files = find_files(path)
    problems: list[Problem] = []
    results = _results(files, problems)
    observations: list[QualityObservation] = []
    digests: dict[str, object] = {}
    read_from: set[str] = set()
    for entry in quality.tasks:
        leaves = _leaves(entry, results)
        for leaf in leaves:
            name = entry.name if leaf == entry.name else f"{entry.name}/{leaf}"
            file, told = files.samples.get(leaf), results.get(leaf)
            if file is None or told is None:
                problems += _missing(files, leaf)
                continue
            problems += _problems(file, asked_otherwise(quality, entry, told, leaf))
            read_from.add(told.run)
            read = _Read(name, Wanted(leaf, entry.filter, entry.metric, entry.cluster), file, told)
            observation, faults = read.observation(arm, len(leaves) if name != leaf else None)
            problems += faults
            observations += [observation] if observation is not None else []
            digests[name] = read.sha256
    if problems:
        raise SuiteError(problems)
    models = sorted({found.model for found in results.values() if found.model is not None})
    facts: dict[str, object] = {"imported": True, "samples_sha256": digests}
    facts |= {"model": ", ".join(models)} if models else {}
    return Imported(tuple(observations), facts, frozenset(read_from))


def _results(files: SampleFiles, problems: list[Problem]) -> dict[str, Results]:
    """The results of each task that has any; one file may be those of several tasks."""
    found: dict[str, Results] = {}
    for task, path in files.results.items():
        try:
            found[task] = parse_results(_text(path), task)
        except ValueError as exc:
            problems.append(Problem(str(path), None, None, "", str(exc)))
    return found


def _leaves(entry: TaskEntry, results: Mapping[str, Results]) -> tuple[str, ...]:
    """The tasks that an entry of the suite stands for: those of a group, in order, or itself."""
    told = (one.leaves(entry.name) for one in results.values())
    return next((leaves for leaves in told if leaves != (entry.name,)), (entry.name,))


class _Read:
    """One samples file, read and checked against its results."""

    def __init__(self, name: str, wanted: Wanted, path: Path, results: Results) -> None:
        self._name, self._wanted, self._path, self._results = name, wanted, path, results
        self._text = _text(path)
        self.sha256 = hashlib.sha256(self._text.encode("utf-8", "surrogatepass")).hexdigest()

    def observation(self, arm: Arm, leaves: int | None) -> tuple[QualityObservation | None, list[Problem]]:
        """The task as the arm answered it, or every reason why it is none. `leaves`: how many tasks its group has."""
        source = str(self._path)
        samples, problems = parse_samples(self._text, source)
        if problems:
            return None, problems
        found, problems = judged(samples, self._wanted, source)
        if found is None:
            return None, problems
        if problems := _problems(self._path, self._faults(samples, found)):
            return None, problems
        told = self._results.facts(self._wanted.task)
        harness = {**told, "imported": True, "metric": found.metric, "filter": found.filter, "chance": found.chance}
        harness |= {"leaves": leaves} if leaves is not None else {}
        return QualityObservation(self._name, arm, found.items, len(found.items), None, harness), []

    def _faults(self, samples: Sequence[Sample], found: Judged) -> Iterator[str]:
        """A metric that cannot be judged, and in what the file and its results do not agree: lost, or changed since."""
        task, results = self._wanted.task, self._results
        if (fault := metric_fault({"output_type": results.facts(task).get("output_type")}, found.metric)) is not None:
            yield fault
        higher = results.higher_is_better(task, found.metric)
        if higher is False:
            yield f"less of {found.metric} is better by its results; name a `metric` of which more is better"
        if higher is None and scale_of(found.metric, 1, None) is None:
            yield f"its results do not tell whether more of {found.metric} is better; name another `metric`"
        expected = results.expected(task)
        if expected is not None and expected != len(found.items):
            held = f"{len(found.items)} items of the filter {found.filter!r}"
            yield f"it holds {held}, and its results speak of {expected}"
        digest = results.samples_sha256(task)
        if digest is not None and digest != hashes_sha256(samples):
            yield "its lines are not those that its results were made of; export both again"
        reported = results.value(task, found.metric, found.filter)
        mean = sum(item.score or 0.0 for item in found.items) / len(found.items)
        if reported is not None and abs(reported - mean) > _ROUNDING:
            yield f"the mean of {found.metric} over its items is {mean:.6f}, and its results say {reported:.6f}"


def _missing(files: SampleFiles, task: str) -> list[Problem]:
    """Why a task cannot be read: no samples; or no results beside them, of which a fault was told where they are."""
    if task not in files.samples:
        has = ", ".join(sorted(files.samples)) or "none"
        return _problems(files.where, [f"there are no samples of the task {task!r}; there are those of {has}"])
    if task in files.results:
        return []
    return _problems(files.samples[task], [_ALONE])


_ALONE = (
    "there is no results_*.json of its date beside it, so neither how the task was asked nor whether the file is whole "
    "is known; add the one that lm-eval wrote with it"
)


def _problems(path: Path, faults: Iterable[str]) -> list[Problem]:
    return [Problem(str(path), None, None, "", fault) for fault in faults]


def _text(path: Path) -> str:
    try:
        return text_of(path, RECORDED_BYTES)
    except (OSError, UnicodeDecodeError) as exc:
        raise SuiteError([Problem(str(path), None, None, "", f"cannot be read: {exc}")]) from exc


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
        return _int_in(self._of("n-samples", task), "effective")

    def original(self, task: str) -> int | None:
        """How many items the task has."""
        return _int_in(self._of("n-samples", task), "original")

    def few_shot(self, task: str) -> int | None:
        """How many examples stood before each question."""
        found = self._of("n-shot", task)
        return found if isinstance(found, int) else None

    def max_tokens(self, task: str) -> int | None:
        """The longest answer that the task's own settings allow."""
        return _int_in(self._config(task).get("generation_kwargs"), "max_gen_toks")

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


def _int_in(section: object, key: str) -> int | None:
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


_MEND = "correct the suite, or let lm-eval ask as it says"


def asked_otherwise(quality: Quality, entry: TaskEntry, results: Results, task: str) -> Iterator[str]:
    """In what the results of a task contradict the suite, or leave open what it says; `task` is lm-eval's name.

    How many items and which system prompt go without saying: all of them, and none. What else the suite leaves unsaid
    is as the files have it; that both arms have it alike is looked at where they are judged.
    """
    yield from _items(_said(entry.limit, quality.limit), results.expected(task), results.original(task))
    if quality.system is not None or results.system:
        yield from _other("system", quality.system, results.system)
    given = quality.model_fields_set
    for key, said, told in (
        ("few_shot", _said(entry.few_shot, quality.few_shot), results.few_shot(task)),
        ("max_tokens", entry.max_tokens, results.max_tokens(task)),
        ("fewshot_as_turns", quality.fewshot_as_turns if "fewshot_as_turns" in given else None, results.as_turns),
        ("endpoint", quality.endpoint if "endpoint" in given else None, results.endpoint),
    ):
        if said is not None:
            yield from _other(key, said, told)


def _items(limit: int | None, asked: int | None, there: int | None) -> Iterator[str]:
    known = [number for number in (limit, there) if number is not None]
    if known and asked != min(known):
        says = "has no `limit`" if limit is None else f"says `limit: {limit}`"
        told = "do not tell how many were asked" if asked is None else f"are of {asked} of {there or 'its'} items"
        yield f"the suite {says}, and its results {told}; {_MEND}"


def _said(own: int | None, general: int | None) -> int | None:
    """What the suite says of one task, else of all."""
    return general if own is None else own


def _other(key: str, said: object, told: object) -> Iterator[str]:
    if said != told:
        says = f"has no `{key}`" if said is None else f"says `{key}: {_shown(said)}`"
        yield f"the suite {says}, and its results {'do not tell' if told is None else f'say {_shown(told)}'}; {_MEND}"


def _shown(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)[:60]


_THE_MODEL = frozenset({
    "base_url", "model", "pretrained", "revision", "subfolder", "peft", "delta", "lora_local_path", "enable_lora",
    "max_lora_rank", "gguf_file", "dtype", "kv_cache_dtype", "quantization", "load_in_8bit", "load_in_4bit", "autogptq",
    "gptqmodel", "attn_implementation", "speculative_config", "trust_remote_code",
})  # fmt: skip
"""Which model it is, and in what form: what the two arms are there to differ in."""
_THE_MACHINE = frozenset({
    "device", "device_map", "parallelize", "tp_plan", "max_memory_per_gpu", "max_cpu_memory", "offload_folder",
    "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "gpu_memory_utilization", "enforce_eager",
    "batch_size", "max_batch_size", "num_concurrent", "max_retries", "timeout", "verify_certificate", "ca_cert_path",
})  # fmt: skip
"""Where it runs, how it is reached and how fast it is asked."""
_SECRET = re.compile(r"key|auth|header|secret|passw|credential|^(hf_)?token$", re.IGNORECASE)


def asking_args(model_args: object) -> dict[str, str]:
    """Every argument but those of the model and its machine, as text: lm-eval writes a mapping, or `a=1,b=2`.

    What is known of neither may change answers, so it stays. What may hold a secret is left out.
    """
    if isinstance(model_args, str):
        parts = (part.partition("=") for part in model_args.split(","))
        model_args = {name.strip(): value.strip() for name, _, value in parts}
    if not isinstance(model_args, Mapping):
        return {}
    named = {str(name): str(value) for name, value in sorted(model_args.items(), key=lambda pair: str(pair[0]))}
    return {name: value for name, value in named.items() if _is_of_asking(name)}


def _is_of_asking(name: str) -> bool:
    of_the_arm = name in _THE_MODEL or name in _THE_MACHINE or name.startswith("bnb_")
    return name.isidentifier() and not of_the_arm and _SECRET.search(name) is None
