"""lm-eval results made elsewhere, as observations, checked against the suite and against their own samples.

A line of a samples file is one item after one filter. Its hashes are computed again, so that a truncated, joined or
edited file is noticed; it is no protection against forgery.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchgate.credentials import may_be_secret
from benchgate.errors import Problem, SuiteError
from benchgate.model.deployment import Arm, sha256_of
from benchgate.model.records import INVALID_CHOICE, EvalItem, finite_score
from benchgate.model.run import ImportedEvals, QualityObservation
from benchgate.plan.items import first_metric
from benchgate.quality.choices import chosen_option, extracted_choice, is_unread
from benchgate.quality.tasks.gated_metric import can_be_guessed, measured_metric, metric_fault, scale_of, unit_score
from benchgate.suite.formats import parse_object
from benchgate.suite.quality import Quality, TaskEntry
from benchgate.system import RECORDED_BYTES, read_text_file

_HASHES = ("doc_hash", "prompt_hash", "target_hash")
_KEYS: Mapping[str, type] = {
    "doc_id": int, "doc": dict, "target": str, "arguments": dict, "filtered_resps": list, "filter": str,
    "metrics": list, "doc_hash": str, "prompt_hash": str, "target_hash": str,
}  # fmt: skip
_KIND_NAMES: Mapping[type, str] = {int: "a whole number", dict: "an object", str: "a text", list: "a list"}
_DATE = r"\d{4}-\d{2}-\d{2}T\d{2}-\d{2}-\d{2}(?:\.\d+)?"
_FUNCTION = re.compile(r"^\s*(?:async )?def (?P<name>\w+)\(", re.MULTILINE)
_SAMPLES_GLOBS = ("samples_*.jsonl", "*/samples_*.jsonl")
_SAMPLES = re.compile(rf"samples_(?P<task>.+)_(?P<date>{_DATE})\.jsonl")


@dataclass(frozen=True, slots=True)
class Sample:
    """A line of the file, complete in `row`."""

    line: int
    doc_id: int
    filter: str
    metrics: tuple[str, ...]
    row: Mapping[str, object]

    @property
    def hashes(self) -> tuple[str, str, str]:
        """Return the hashes of document, prompt and target."""
        doc, prompt, target = (str(self.row[name]) for name in _HASHES)
        return doc, prompt, target


@dataclass(frozen=True, slots=True)
class SampleSelection:
    """Filter and metric of a task that are gated. None selects the first ones in its file."""

    task: str
    filter: str | None = None
    metric: str | None = None
    cluster: str | None = None  # key of a document with its cluster
    config: Mapping[str, Any] = field(default_factory=dict)  # of the task, in its results


@dataclass(frozen=True, slots=True)
class SelectedItems:
    """Items under one filter and one metric, in the order of their documents."""

    items: tuple[EvalItem, ...]
    filter: str
    metric: str
    chance: float | None  # mean score of guessing, if every item has options and the metric picks one


def parse_samples(text: str, source: str) -> tuple[list[Sample], list[Problem]]:
    """Return the valid lines in order, and a problem for each invalid one. Empty lines are skipped."""
    samples: list[Sample] = []
    problems: list[Problem] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            samples.append(_sample(parse_object(line), number))
        except ValueError as exc:
            problems.append(Problem(source, number, None, "", str(exc)))
    if not samples and not problems:
        problems.append(Problem(source, None, None, "", "the file has no samples; lm-eval writes one a line"))
    return samples, problems


def select_items(
    samples: Sequence[Sample], selection: SampleSelection, source: str
) -> tuple[SelectedItems | None, list[Problem]]:
    """Return the gated items, or why there are none."""
    filters = list(dict.fromkeys(sample.filter for sample in samples))
    chosen = selection.filter or filters[0]
    selected = [sample for sample in samples if sample.filter == chosen]
    if not selected:
        return None, [Problem(source, None, None, "", f"no filter is called {chosen!r}; there are {_listed(filters)}")]
    metric, measured = selection.metric, selected[0].metrics
    config = {**selection.config, "metric_list": _named_metrics(selection.config)}
    if metric is None:
        first = first_metric(config) if config["metric_list"] else measured[0]
        metric = measured_metric(config, first, measured)
    if metric is None:
        message = (
            f"the items do not have the metric that comes first in the task; name a `metric` of {_listed(measured)}"
        )
        return None, [Problem(source, None, None, "", message)]
    if (fault := metric_fault(config, metric)) is not None:
        return None, [Problem(source, None, None, "", fault)]
    problems: list[Problem] = []
    lines: dict[int, int] = {}
    for sample in selected:
        value, doc = sample.row.get(metric), sample.row["doc"]
        score = finite_score(value)
        faults = []
        if sample.doc_id in lines:
            line = lines[sample.doc_id]
            faults.append(f"`doc_id` {sample.doc_id} stands on line {line} already; leave one of them out")
        lines.setdefault(sample.doc_id, sample.line)
        if metric not in sample.metrics:
            faults.append(f"the item has no {metric!r}; its metrics are {_listed(sample.metrics)}")
        elif score is None:
            faults.append(f"{metric} is {json.dumps(value)[:40]}, which is no score of one item; name another `metric`")
        if score is not None and score > 0 and _is_unread(sample, selection):
            faults.append(
                f"the filter {chosen!r} found nothing in the answer, and the item has {metric} {score:g}; "
                "give the filter a `fallback` that scores 0, and run lm-eval again"
            )
        cluster = selection.cluster
        if cluster is not None and (not isinstance(doc, dict) or doc.get(cluster) in (None, "")):
            faults.append(f"its document has no {cluster!r} to cluster by")
        problems += [Problem(source, sample.line, None, "", fault) for fault in faults]
    if problems:
        return None, problems
    ordered = sorted(selected, key=lambda sample: sample.doc_id)
    # The documents' ids if all have a unique one, else place and hash of the document.
    own = [doc.get("id") if isinstance(doc := sample.row["doc"], dict) else None for sample in ordered]
    ids = [str(one) for one in own if isinstance(one, str) and one]
    if len(set(ids)) < len(own):
        ids = [f"{selection.task}-{sample.doc_id}-{sample.hashes[0][:12]}" for sample in ordered]
    items = tuple(_item(sample, i, metric, selection) for sample, i in zip(ordered, ids, strict=True))
    options = [len(_options(sample.row)[0]) for sample in ordered]
    is_choice = all(options) and can_be_guessed(metric)
    chance = sum(1 / number for number in options) / len(options) if is_choice else None
    return SelectedItems(items, chosen, metric, chance), []


def hashes_sha256(samples: Sequence[Sample]) -> str:
    """Return lm-eval's own hash of a task's samples, as in its results file."""
    return _sha256("".join("".join(sample.hashes) for sample in samples))


def _named_metrics(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the `metric_list` of a task with the name of each metric. lm-eval writes a function as its source text."""
    listed = config.get("metric_list")
    named = []
    for entry in listed if isinstance(listed, list) else ():
        if isinstance(entry, dict):
            function = _FUNCTION.search(str(entry.get("metric")))
            named.append({**entry, "metric": function["name"]} if function else entry)
    return named


def _sample(row: dict[str, object], line: int) -> Sample:
    for key, kind in _KEYS.items():
        if key not in row:
            raise ValueError(
                f"a sample has a `{key}`, and this line has none; is it a file of lm-eval's --log_samples?"
            )
        if not isinstance(row[key], kind) or isinstance(row[key], bool):
            raise ValueError(f"`{key}` is {json.dumps(row[key])[:40]}, and not {_KIND_NAMES[kind]}")
    metrics = row["metrics"]
    if not isinstance(metrics, list) or not metrics or not all(isinstance(name, str) for name in metrics):
        raise ValueError("`metrics` names no metric; the item was not scored")
    requests = row["arguments"]
    first = requests.get("gen_args_0") if isinstance(requests, dict) else None
    sent = first.get("arg_0") if isinstance(first, dict) else None
    if isinstance(sent, list) and len(sent) == 1:  # the messages of a chat, as one JSON text
        sent = sent[0]
    texts = {
        "doc_hash": json.dumps(row["doc"], indent=2, ensure_ascii=False),
        "prompt_hash": sent if isinstance(sent, str) else None,
        "target_hash": row["target"],
    }
    for name, hashed in texts.items():
        if isinstance(hashed, str) and row[name] != _sha256(hashed):
            what = name.removesuffix("_hash")
            raise ValueError(f"`{name}` is not the hash of the {what} beside it: the file is not as lm-eval wrote it")
    return Sample(line, int(str(row["doc_id"])), str(row["filter"]), tuple(metrics), row)


def _item(sample: Sample, item_id: str, metric: str, selection: SampleSelection) -> EvalItem:
    doc_hash, prompt_hash, target_hash = sample.hashes
    doc, cluster = sample.row["doc"], selection.cluster
    answer: str | None
    choice: str | None
    options, logprobs = _options(sample.row)
    if options:
        delimiter = str(selection.config.get("target_delimiter", " "))
        # A chat template takes the delimiter's place.
        delimited = delimiter if all(option.startswith(delimiter) for option in options) else ""
        number = chosen_option(metric, [option.removeprefix(delimited) for option in options], logprobs)
        is_named = all(options) and len(set(options)) == len(options)
        answer = options[number] if is_named else f"option {number}"
        choice = extracted_choice(answer)
        if not is_named and metric in ("acc_norm", "acc_bytes"):
            choice = None  # the options stand in the prompts, and their lengths are unknown
    elif selection.config.get("output_type") == "loglikelihood":
        request = sample.row["arguments"]
        sent = request.get("gen_args_0") if isinstance(request, dict) else None
        continuation = sent.get("arg_1") if isinstance(sent, dict) else None  # the only one: there is nothing to choose
        answer, choice = (continuation or None) if isinstance(continuation, str) else None, None
    else:
        answer = _first_text(sample.row.get("resps"))
        filtered = None if answer is None else _first_text(sample.row["filtered_resps"])
        choice = None if filtered is None else extracted_choice(filtered)
        if _is_unread(sample, selection):
            choice = INVALID_CHOICE
    score = finite_score(sample.row[metric])
    return EvalItem(
        item_id=item_id,
        doc_hash=doc_hash,
        prompt_hash=prompt_hash,
        target_hash=target_hash,
        score=None if score is None else unit_score(metric, score),
        answer=answer,
        finish_reason=None,
        output_tokens=None,
        latency_ns=None,
        error=None,
        choice=choice,
        cluster=str(doc[cluster]) if cluster is not None and isinstance(doc, dict) else None,
    )


def _is_unread(sample: Sample, selection: SampleSelection) -> bool:
    """Return True if the sample's filter found nothing in a generated answer."""
    filtered, resps = _first_text(sample.row["filtered_resps"]), sample.row.get("resps")
    if filtered is None or _options(sample.row)[0]:
        return False
    requests = [one if isinstance(one, list) else [one] for one in (resps if isinstance(resps, list) else ())]
    answers = [text for repetitions in requests for text in repetitions if isinstance(text, str)]
    pipelines = selection.config.get("filter_list") if selection.config else [{"name": sample.filter, "filter": [{}]}]
    for pipeline in pipelines if isinstance(pipelines, list) else ():
        if isinstance(pipeline, dict) and pipeline.get("name") == sample.filter:
            listed = pipeline.get("filter")
            steps = [step for step in (listed if isinstance(listed, list) else ()) if isinstance(step, dict)]
            return is_unread(steps, answers, filtered)
    return False  # without a filter the answer is taken whole


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _listed(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names)


def _options(row: Mapping[str, object]) -> tuple[list[str], list[float]]:
    """Return the options of a multiple choice as they were sent, and log-probabilities; empty for other answers.

    lm-eval writes a log-probability as `["-1.5", "False"]`. For `acc_mutual_info` those of the options without their
    question follow.
    """
    filtered, requests, metrics = row["filtered_resps"], row["arguments"], row["metrics"]
    logprobs: list[float] = []
    for response in filtered if isinstance(filtered, list) else ():
        if not isinstance(response, list) or len(response) != 2 or response[1] not in ("True", "False"):
            return [], []
        try:
            logprobs.append(float(str(response[0])))
        except ValueError:
            return [], []
    n = len(logprobs) // (2 if isinstance(metrics, list) and "acc_mutual_info" in metrics else 1)
    if n < 2 or any(map(math.isnan, logprobs)):
        return [], []
    sent = [requests.get(f"gen_args_{number}") if isinstance(requests, dict) else None for number in range(n)]
    texts = [one.get("arg_1") if isinstance(one, dict) else None for one in sent]
    return [text if isinstance(text, str) else "" for text in texts], logprobs


def _first_text(value: object) -> str | None:
    """Return the first text in nested lists, the first of several answers."""
    while isinstance(value, list) and len(value) > 0:
        value = value[0]
    return value if isinstance(value, str) else None


@dataclass(frozen=True, slots=True)
class SampleFiles:
    """Samples files of one run by task, and the results files that exist for them."""

    where: Path
    samples: Mapping[str, Path]
    results: Mapping[str, Path]


def has_samples(path: Path) -> bool:
    """Return True for a samples file, or a folder that holds one."""
    if path.is_file():
        return _SAMPLES.fullmatch(path.name) is not None
    return any(any(path.glob(pattern)) for pattern in _SAMPLES_GLOBS)


def find_files(path: Path) -> SampleFiles:
    """Return the files that `lm_eval --output_path --log_samples` wrote to a folder, or one samples file.

    Samples may lie in the folder or in its one subfolder that has any: lm-eval makes one for each model. Raises
    SuiteError.
    """
    if path.is_file():
        named = _SAMPLES.fullmatch(path.name)
        if named is None:
            raise _error(
                path, "is not named as lm-eval names samples, `samples_TASK_DATE.jsonl`: its results go by that name"
            )
        results = path.with_name(f"results_{named['date']}.json")
        return SampleFiles(path, {named["task"]: path}, {named["task"]: results} if results.is_file() else {})
    if not path.is_dir():
        raise _error(path, "is not there; give the folder that `lm_eval --output_path` made, or one samples file")
    found = (sorted({file.parent for file in path.glob(pattern)}) for pattern in _SAMPLES_GLOBS)
    folders = next(filter(None, found), [])
    if not folders:
        raise _error(path, "has no samples_*.jsonl; run lm_eval with `--output_path DIR --log_samples`")
    if len(folders) > 1:
        raise _error(path, f"holds several runs ({', '.join(f.name for f in folders)}); give the folder of one of them")
    return _folder(folders[0])


def _folder(folder: Path) -> SampleFiles:
    samples: dict[str, Path] = {}
    results: dict[str, Path] = {}
    problems: list[Problem] = []
    for file in sorted(folder.glob("samples_*.jsonl")):
        named = _SAMPLES.fullmatch(file.name)
        if named is None:
            continue
        if named["task"] in samples:
            message = f"{samples[named['task']].name} is of the same task; keep the one that counts in the folder"
            problems.append(Problem(str(file), None, None, "", message))
        samples[named["task"]] = file
        beside = file.with_name(f"results_{named['date']}.json")
        if beside.is_file():
            results[named["task"]] = beside
    if problems:
        raise SuiteError(problems)
    return SampleFiles(folder, samples, results)


def _error(path: Path, reason: str) -> SuiteError:
    return SuiteError([Problem(str(path), None, None, "", reason)])


_MEAN_TOLERANCE = 1e-6  # of a mean that was written as text
_SEEDS = ("random_seed", "numpy_seed", "torch_seed", "fewshot_seed")
_LOCAL_KEYS = ("dataset_path", "dataset_name", "dataset_kwargs", "metadata", "custom_dataset")
_MODEL_ARGS = frozenset({
    "base_url", "model", "pretrained", "revision", "subfolder", "peft", "delta", "lora_local_path", "enable_lora",
    "max_lora_rank", "gguf_file", "dtype", "kv_cache_dtype", "quantization", "load_in_8bit", "load_in_4bit", "autogptq",
    "gptqmodel", "attn_implementation", "speculative_config", "trust_remote_code",
})  # fmt: skip
"""Arguments that identify the model: the arms are meant to differ in them."""
_MACHINE_ARGS = frozenset({
    "device", "device_map", "parallelize", "tp_plan", "max_memory_per_gpu", "max_cpu_memory", "offload_folder",
    "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "gpu_memory_utilization", "enforce_eager",
    "batch_size", "max_batch_size", "num_concurrent", "max_retries", "timeout", "verify_certificate", "ca_cert_path",
})  # fmt: skip
"""Arguments that do not change answers."""


def read_arm(arm: Arm, path: Path, quality: Quality) -> ImportedEvals:
    """Read the suite's tasks from one lm-eval run. Raises SuiteError with every problem of every file."""
    files = find_files(path)
    problems: list[Problem] = []
    results: dict[str, Results] = {}
    for task, file in files.results.items():
        try:
            results[task] = parse_results(_text(file), task)
        except ValueError as exc:
            problems += _problems(file, [str(exc)])
    observations: list[QualityObservation] = []
    digests: dict[str, object] = {}
    runs: set[str] = set()
    for entry in quality.tasks:
        groups = (one.leaves(entry.name) for one in results.values())
        leaves = next((leaves for leaves in groups if leaves != (entry.name,)), (entry.name,))
        for leaf in leaves:
            name = entry.name if leaf == entry.name else f"{entry.name}/{leaf}"
            if leaf not in files.samples or leaf not in results:
                problems += _missing_file(files, leaf)
                continue
            text = _text(files.samples[leaf])
            digests[name] = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
            runs.add(results[leaf].run)
            problems += _problems(files.samples[leaf], suite_mismatches(quality, entry, results[leaf], leaf))
            config = results[leaf].task_config(leaf)
            selection = SampleSelection(leaf, entry.filter, entry.metric, entry.cluster, config)
            found, faults = _select(text, files.samples[leaf], selection, results[leaf])
            problems += faults
            if found is not None:
                harness = {
                    **results[leaf].facts(leaf),
                    "imported": True,
                    "metric": found.metric,
                    "filter": found.filter,
                    "chance": found.chance,
                    **({"leaves": len(leaves)} if name != leaf else {}),
                }
                observations.append(QualityObservation(name, arm, found.items, len(found.items), None, harness))
    if problems:
        raise SuiteError(problems)
    models = sorted({found.model for found in results.values() if found.model is not None})
    facts: dict[str, object] = {"imported": True, "samples_sha256": digests}
    facts |= {"model": ", ".join(models)} if models else {}
    return ImportedEvals(tuple(observations), facts, frozenset(runs))


def _missing_file(files: SampleFiles, task: str) -> list[Problem]:
    if task not in files.samples:
        available = ", ".join(sorted(files.samples)) or "none"
        return _problems(files.where, [f"there are no samples of the task {task!r}; there are those of {available}"])
    if task in files.results:
        return []  # that file's own problem was reported
    alone = "there is no results_*.json of its date beside it, so neither the task's settings nor whether the file"
    return _problems(files.samples[task], [f"{alone} is whole are known; add the one that lm-eval wrote with it"])


def _select(
    text: str, path: Path, selection: SampleSelection, results: Results
) -> tuple[SelectedItems | None, list[Problem]]:
    samples, problems = parse_samples(text, str(path))
    if problems:
        return None, problems
    found, problems = select_items(samples, selection, str(path))
    if found is not None:
        problems = _problems(path, _result_faults(samples, selection.task, found, results))
    return (None, problems) if problems else (found, [])


def _result_faults(samples: Sequence[Sample], task: str, found: SelectedItems, results: Results) -> Iterator[str]:
    """Yield why the metric cannot be judged, and where the samples disagree with their results."""
    higher = results.higher_is_better(task, found.metric)
    if higher is False:
        yield f"less of {found.metric} is better by its results; name a `metric` of which more is better"
    if higher is None and scale_of(found.metric, 1, None) is None:
        yield f"its results do not report whether more of {found.metric} is better; name another `metric`"
    expected = results.expected(task)
    if expected is not None and expected != len(found.items):
        held = f"{len(found.items)} items of the filter {found.filter!r}"
        yield f"it holds {held}, and its results speak of {expected}"
    digest = results.samples_sha256(task)
    if digest is not None and digest != hashes_sha256(samples):
        yield "its lines are not those that its results were made of; export both again"
    reported = results.value(task, found.metric, found.filter)
    reported = None if reported is None else unit_score(found.metric, reported)
    mean = sum(item.score or 0.0 for item in found.items) / len(found.items)
    if reported is not None and abs(reported - mean) > _MEAN_TOLERANCE:
        yield f"the mean of {found.metric} over its items is {mean:.6f}, and its results say {reported:.6f}"


def _problems(path: Path, faults: Iterable[str]) -> list[Problem]:
    return [Problem(str(path), None, None, "", fault) for fault in faults]


def _text(path: Path) -> str:
    try:
        return read_text_file(path, RECORDED_BYTES)
    except (OSError, UnicodeDecodeError) as exc:
        raise SuiteError([Problem(str(path), None, None, "", f"cannot be read: {exc}")]) from exc


def suite_mismatches(quality: Quality, entry: TaskEntry, results: Results, task: str) -> Iterator[str]:
    """Yield settings of the suite that results contradict or lack. Without a key: all items, no system."""
    limit = quality.limit if entry.limit is None else entry.limit
    few_shot = quality.few_shot if entry.few_shot is None else entry.few_shot
    expected, original = results.expected(task), results.original(task)
    known = [number for number in (limit, original) if number is not None]
    if known and expected != min(known):
        suite = "has no `limit`" if limit is None else f"says `limit: {limit}`"
        found = f"are of {expected} of {original or 'its'} items"
        yield _mismatch(suite, "do not report how many were sent" if expected is None else found)
    own_limit, run_limit = results.max_tokens(task), results.run_max_tokens(task)
    max_tokens = entry.max_tokens if run_limit is None else quality.stated_max_tokens(entry)
    settings: list[tuple[str, object, object]] = [
        ("few_shot", few_shot, results.few_shot(task)),
        ("max_tokens", max_tokens, run_limit if own_limit is None else own_limit),
    ]
    for key, value in (("fewshot_as_turns", results.as_turns), ("endpoint", results.endpoint)):
        settings.append((key, getattr(quality, key) if key in quality.model_fields_set else None, value))
    compared = [setting for setting in settings if setting[1] is not None]
    if quality.system is not None or results.system:
        compared.insert(0, ("system", quality.system, results.system))
    for key, declared, reported in compared:
        if declared != reported:
            suite = f"has no `{key}`" if declared is None else f"says `{key}: {_json(declared)}`"
            yield _mismatch(suite, "do not report it" if reported is None else f"say {_json(reported)}")


def _mismatch(suite: str, results: str) -> str:
    return f"the suite {suite}, and its results {results}; correct the suite, or run lm-eval as it says"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)[:60]


@dataclass(frozen=True, slots=True)
class Results:
    """`results_*.json` of an lm-eval run. Anything it lacks is unknown, and None."""

    data: Mapping[str, Any]

    @property
    def model(self) -> str | None:
        """Return the model's name."""
        name = self.data.get("model_name")
        return name if isinstance(name, str) and name else None

    @property
    def run(self) -> str:
        """Identify the run of lm-eval by its start time, else by its content."""
        began = self.data.get("date")
        return str(began) if isinstance(began, int | float) else sha256_of(json.dumps(self.data, sort_keys=True))

    @property
    def system(self) -> str | None:
        """Return the system prompt, "" for none."""
        if "system_instruction" not in self.data:
            return None
        return str(self.data["system_instruction"] or "")

    @property
    def as_turns(self) -> bool | None:
        """Return True if few-shot examples were chat turns."""
        found = self.data.get("fewshot_as_multiturn")
        return found if isinstance(found, bool) else None

    @property
    def endpoint(self) -> Literal["chat", "completions"] | None:
        """Return the endpoint, None for a model without a server or another kind of endpoint."""
        backend = str(self._config_of_run.get("model"))
        if "completions" not in backend:
            return None
        return "chat" if "chat" in backend else "completions"

    def leaves(self, name: str, above: frozenset[str] = frozenset()) -> tuple[str, ...]:
        """Return the tasks of a group in order, or the name of a task itself. `above` are groups that it is within."""
        inside = self._of("group_subtasks", name)
        if not isinstance(inside, list) or not inside:
            return (name,)
        groups = above | {name}  # a file may name a group within itself
        tasks = (leaf for one in map(str, inside) if one not in groups for leaf in self.leaves(one, groups))
        return tuple(dict.fromkeys(tasks))

    def expected(self, task: str) -> int | None:
        """Return the number of evaluated items."""
        return _int_in(self._of("n-samples", task), "effective")

    def original(self, task: str) -> int | None:
        """Return the number of items that the task has."""
        return _int_in(self._of("n-samples", task), "original")

    def few_shot(self, task: str) -> int | None:
        """Return the number of few-shot examples."""
        found = self._of("n-shot", task)
        return found if isinstance(found, int) else None

    def max_tokens(self, task: str) -> int | None:
        """Return the token limit of answers in the task's settings."""
        return _int_in(self.task_config(task).get("generation_kwargs"), "max_gen_toks")

    def run_max_tokens(self, task: str) -> int | None:
        """Return the token limit that the run set for the task; None if the task's own applies or none is reported."""
        settings, config = self.task_config(task).get("generation_kwargs"), self._config_of_run
        if not isinstance(settings, dict):
            return None
        for given in (config.get("gen_kwargs"), None if "max_gen_toks" in settings else config.get("model_args")):
            if (limit := _comparable_args(given).get("max_gen_toks", "")).isdecimal():
                return int(limit)
        return None

    def samples_sha256(self, task: str) -> str | None:
        """Return lm-eval's hash of the task's samples."""
        found = self._of("task_hashes", task)
        return found if isinstance(found, str) and found else None

    def value(self, task: str, metric: str, filter_name: str) -> float | None:
        """Return the reported metric if it is a mean over items."""
        reported = self._of("results", task)
        number = reported.get(f"{metric},{filter_name}") if isinstance(reported, dict) else None
        for entry in _named_metrics(self.task_config(task)):
            if entry.get("metric") == metric:
                is_mean = str(entry.get("aggregation", "mean")) == "mean"
                return float(number) if isinstance(number, int | float) and is_mean else None
        return None

    def higher_is_better(self, task: str, metric: str) -> bool | None:
        """Return True if higher values of a metric are better."""
        directions = self._of("higher_is_better", task)
        found = directions.get(metric) if isinstance(directions, dict) else None
        return found if isinstance(found, bool) else None

    def facts(self, task: str) -> dict[str, object]:
        """Return settings that must be equal in both arms, without the unknown ones."""
        config = self._config_of_run
        task_config = {key: value for key, value in self.task_config(task).items() if key not in _LOCAL_KEYS}
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
            "output_type": self.task_config(task).get("output_type"),
            "task_sha256": sha256_of(task_config) if task_config else None,
            **{f"model_args.{name}": value for name, value in _comparable_args(config.get("model_args")).items()},
        }
        return {key: value for key, value in found.items() if value is not None}

    @property
    def _config_of_run(self) -> Mapping[str, Any]:
        config = self.data.get("config")
        return config if isinstance(config, dict) else {}

    def task_config(self, task: str) -> Mapping[str, Any]:
        """Return the task's configuration."""
        config = self._of("configs", task)
        return config if isinstance(config, dict) else {}

    def _of(self, section: str, name: str) -> Any:
        inside = self.data.get(section)
        return inside.get(name) if isinstance(inside, dict) else None


def _int_in(section: object, key: str) -> int | None:
    found = section.get(key) if isinstance(section, dict) else None
    return found if isinstance(found, int) else None


def parse_results(text: str, task: str) -> Results:
    """Parse a results file. Raises ValueError if it is none, or has nothing of this task."""
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


def _comparable_args(model_args: object) -> dict[str, str]:
    """Return arguments as text but for the model, its machine and secrets; lm-eval writes a mapping or `a=1`."""
    if isinstance(model_args, str):
        parts = (part.partition("=") for part in model_args.split(","))
        model_args = {name.strip(): value.strip() for name, _, value in parts}
    if not isinstance(model_args, Mapping):
        return {}
    return {
        name: str(model_args[name])
        for name in sorted(map(str, model_args))
        if name.isidentifier()
        and name not in _MODEL_ARGS | _MACHINE_ARGS
        and not name.startswith("bnb_")
        and not may_be_secret(name)
    }
