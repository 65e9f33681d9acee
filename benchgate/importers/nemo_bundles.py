"""Bundles of NeMo Evaluator: `eval-*.json` with `results.jsonl` beside it, one line per problem and repeat.

The fields are those of nemo_evaluator 0.3 (engine/artifacts.py, engine/eval_loop.py). Its earlier `results.yml` holds
means over items only, which cannot be paired.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchgate.errors import SuiteError, UsageError
from benchgate.importers.eval_items import (
    Answer,
    EvalFormat,
    Reported,
    cluster_of,
    count_or_none,
    file_text,
    fingerprint,
    observe,
    problem,
    select_task,
    setting,
    suite_mismatches,
)
from benchgate.importers.reading import Field, optional_text, read_json
from benchgate.model.deployment import Arm
from benchgate.model.records import EvalItem, finite_score
from benchgate.model.run import ImportedEvals, QualityObservation
from benchgate.suite.quality import Quality, TaskEntry

_BUNDLE, _RESULTS, _STEPS = "eval-*.json", "results.jsonl", "trajectories.jsonl"
_AGGREGATES = ("results.yml", "eval_factory_metrics.json")
_METRIC = "reward"
_ROUNDING = 5.1e-5  # its means are rounded to 4 decimals
# Settings of a run that must be equal in both arms.
_SETTINGS = ("temperature", "top_p", "max_tokens", "seed", "system_prompt", "max_problems", "shuffle_seed", "scorers")


@dataclass(frozen=True, slots=True)
class _Bundle:
    """A bundle's path and content."""

    path: Path
    document: Field

    @property
    def task(self) -> str:
        """Return the benchmark's name."""
        return self.document.need("benchmark", "name").text()

    @property
    def config(self) -> Field:
        """Return the settings of the run."""
        return self.document.need("config")


def is_bundle(path: Path) -> bool:
    """Return True for a bundle, a folder with one, or an earlier version's aggregates without lm-eval's samples."""
    if path.is_file():
        return path.match(_BUNDLE) or path.name in _AGGREGATES
    if _within(path, "samples_*.jsonl"):
        return False
    return any(_within(path, name) for name in (_BUNDLE, *_AGGREGATES))


def _within(folder: Path, pattern: str) -> list[Path]:
    return sorted([*folder.glob(pattern), *folder.glob(f"*/{pattern}")])


def read_bundles(arm: Arm, path: Path, quality: Quality) -> ImportedEvals:
    """Read the suite's tasks from bundles. Raises SuiteError or UsageError with file and line for every mistake."""
    files = [path] if path.is_file() and path.match(_BUNDLE) else _within(path, _BUNDLE)
    if not files:
        reason = "holds means over items only, and a paired comparison needs the score of every item"
        remedy = "give a bundle with results.jsonl (nemo_evaluator 0.3), or samples_*.jsonl of its lm-eval"
        raise SuiteError([problem(path, f"{reason}; {remedy}")])
    bundles = {str(file): _Bundle(file, read_json(file_text(file), str(file))) for file in files}
    names = {key: (bundle.task,) for key, bundle in bundles.items()}
    observations: list[QualityObservation] = []
    digests: dict[str, object] = {}
    models, runs = set[str](), set[str]()
    for entry in quality.tasks:
        bundle = bundles[select_task(names, entry.name, path)]
        results = bundle.path.with_name(_RESULTS)
        if not results.is_file():
            reason = f"has no {_RESULTS} beside it, and a paired comparison needs the score of every item"
            raise SuiteError([problem(bundle.path, f"{reason}; copy the whole folder of the run")])
        text = file_text(results)
        observations.append(_observe_task(arm, bundle, text, quality, entry))
        digests[entry.name] = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        if (model := optional_text(bundle.config.get("model"))) is not None:
            models.add(model)
        runs.add(f"nemo_evaluator {bundle.document.need('run_id').text()} {bundle.document.need('timestamp').text()}")
    facts: dict[str, object] = {"imported": True, "samples_sha256": digests}
    facts |= {"model": ", ".join(sorted(models))} if models else {}
    return ImportedEvals(tuple(observations), facts, frozenset(runs))


def _observe_task(arm: Arm, bundle: _Bundle, text: str, quality: Quality, entry: TaskEntry) -> QualityObservation:
    path, config = bundle.path.with_name(_RESULTS), bundle.config
    if entry.metric not in (None, _METRIC):
        raise SuiteError([problem(path, f"no score is called {entry.metric!r}; there is {_METRIC!r}")])
    steps = _steps(bundle.path.with_name(_STEPS))
    answers, rewards = [], []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            row = Field(read_json(line, str(path), number).value, f"{path}:{number}")
            rewards.append(_reward(row))
            answers.append(_answer(f"line {number}", row, steps, entry.cluster))
    benchmark = bundle.document.need("benchmark")
    times = count_or_none(benchmark.get("repeats")) or 1
    prompts = {} if steps is None else {"prompts": "recorded"}
    harness = {"format": "nemo_evaluator", "metric": _METRIC, **prompts, **_settings(bundle)}
    observation = observe(entry.name, arm, answers, str(path), times, harness)
    n_items = len(observation.items)
    faults = []
    for key, counted in (("n_results", len(answers)), ("benchmark.samples", n_items)):
        reported = bundle.document.need(*key.split(".")).count()
        if reported != counted:
            faults.append(f"it holds {counted}, and `{key}` of {bundle.path.name} is {reported}; copy the folder again")
    mean, scores = sum(rewards) / len(rewards), benchmark.need("scores")
    stated = scores.get("mean_reward") or (scores.get("pass@1") if set(rewards) <= {0.0, 1.0} else None)
    value = None if stated is None else finite_score(stated.need("value").value)
    if value is not None and abs(value - mean) > _ROUNDING:
        faults.append(f"the mean of {_METRIC} over its lines is {mean:.6f}, and {bundle.path.name} says {value:.6f}")
    faults += _shard_faults(config, {item.item_id for item in observation.items})
    is_range = config.get("shard_range") is not None and config.get("n_shards") is None
    known = Reported(
        is_whole=config.get("max_problems") is None and not is_range,
        system=optional_text(config.get("system_prompt")),
        max_tokens=count_or_none(config.get("max_tokens")),
    )
    faults += suite_mismatches(quality, entry, known, n_items)
    if faults:
        raise SuiteError([problem(path, fault) for fault in faults])
    return observation


def _shard_faults(config: Field, found: set[str]) -> Iterator[str]:
    """Yield why a shard, or shards that were merged, are not the whole eval.

    A merged bundle has the config of its first shard, with `shard`, and `n_shards`.
    """
    shard, merged, shuffle = config.get("shard"), config.get("n_shards"), config.get("shuffle")
    if merged is None:
        if shard is not None:
            yield "it is one shard of the eval; merge the shards with NeMo Evaluator first"
        return
    if shard is not None and (total := shard.need("total").count()) != merged.count():
        yield f"it is merged of {merged.count()} of {total} shards; merge all of them with NeMo Evaluator"
        return
    size = None if shuffle is None else count_or_none(shuffle.get("ds_effective_size"))
    whole = len(found) == size if size is not None else found == {str(number) for number in range(len(found))}
    if not whole:
        yield "problems are missing among its shards; run them to their end, and merge them with NeMo Evaluator"


def _settings(bundle: _Bundle) -> Mapping[str, object]:
    """Return settings that must be equal in both arms, without the unknown ones."""
    found = {key: setting(one) for key in _SETTINGS if (one := bundle.config.get(key)) is not None}
    version = optional_text(bundle.document.get("sdk_version"))
    return {"nemo_evaluator": version, **found} if version is not None else found


def _reward(row: Field) -> float:
    reward = row.need("reward")
    if (found := finite_score(reward.value)) is None:
        reward.refuse(f"a number as the reward of problem {row.need('problem_idx').value}")
    return found


def _answer(place: str, row: Field, steps: Mapping[tuple[int, int], Field] | None, cluster: str | None) -> Answer:
    """Read one line. NeMo Evaluator scores a request or a judge that failed as 0; here it is a failed item."""
    problem_idx, repeat = row.need("problem_idx").count(), row.get("repeat")
    repetition = 0 if repeat is None else repeat.count()
    details, metadata = row.get("scoring_details"), row.get("metadata")
    error = None if details is None else _error(details)
    expected = row.get("expected_answer")
    category = None if metadata is None else metadata.get("category")
    step = None if steps is None else steps.get((problem_idx, repetition))
    if steps is not None and step is None:
        raise UsageError(f"{row.source}: problem {problem_idx}, repeat {repetition} is not in {_STEPS} beside it")
    model = None if step is None else step.get("model")
    finish = None if model is None else model.get("finish_reason")
    tokens = None if model is None else model.get("tokens")
    latency, extracted = row.get("latency_ms"), row.get("extracted_answer")
    item = EvalItem(
        item_id=str(problem_idx),
        doc_hash=fingerprint([problem_idx, None if category is None else category.value]),
        prompt_hash="" if step is None else fingerprint(step.need("prompt").value),
        target_hash=fingerprint(None if expected is None else expected.value),
        score=None if error is not None else _reward(row),
        answer=None if (text := row.get("model_response")) is None else str(text.value),
        finish_reason=None if finish is None else str(finish.value) or None,
        output_tokens=None if tokens is None else count_or_none(tokens.get("completion")),
        latency_ns=round(latency.number() * 1e6) or None if latency is not None else None,
        error=error,
        choice=None if extracted is None else str(extracted.value),
        cluster=cluster_of(metadata, cluster),
        input_tokens=None if tokens is None else count_or_none(tokens.get("prompt")),
    )
    return Answer(place, repetition, item)


def _error(details: Field) -> str | None:
    category = details.get("error_category")
    if category is not None:
        return str((details.get("error") or category).value)[:500]
    found = details.value.get("judge")
    judge = found if isinstance(found, dict) else {}
    if (message := judge.get("error")) is not None:
        return f"the judge failed: {message}"[:500]
    if judge.get("parse_error") is True:
        return "the judge's verdict cannot be read"
    # PinchBench's judges give a `total`, which is null if it cannot be read.
    unjudged = judge.get("normalized") is None and judge.get("total") is None
    if unjudged and (details.value.get("needs_judge") is True or "total" in judge):
        return "it needs a judge, and none scored it"
    return None


def _steps(path: Path) -> Mapping[tuple[int, int], Field] | None:
    """Return the records with the prompts by problem and repeat; None if the run kept none."""
    return dict(_step_lines(path)) if path.is_file() else None


def _step_lines(path: Path) -> Iterator[tuple[tuple[int, int], Field]]:
    for number, line in enumerate(file_text(path).split("\n"), 1):
        if line.strip():
            step = Field(read_json(line, str(path), number).value, f"{path}:{number}")
            yield (step.need("problem_idx").count(), step.need("repeat").count()), step


NEMO_EVALUATOR = EvalFormat("NeMo Evaluator", is_bundle, read_bundles)
