"""What lm-eval asked elsewhere, as observations: the samples of one arm, read, checked and named as the suite does."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchgate.errors import Problem, SuiteError
from benchgate.model.deployment import Arm
from benchgate.model.run import QualityObservation
from benchgate.quality.as_asked import asked_otherwise
from benchgate.quality.metrics import metric_fault, scale_of
from benchgate.quality.results import Results, parse_results
from benchgate.quality.sample_files import SampleFiles, find_files
from benchgate.quality.samples import Judged, Sample, Wanted, hashes_sha256, judged, parse_samples
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
