"""Where an lm-eval run keeps what it wrote: the samples of every task, and the results that belong to them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchgate.errors import Problem, SuiteError

_DATE = r"\d{4}-\d{2}-\d{2}T\d{2}-\d{2}-\d{2}(?:\.\d+)?"
_SAMPLES = re.compile(rf"samples_(?P<task>.+)_(?P<date>{_DATE})\.jsonl")


@dataclass(frozen=True, slots=True)
class SampleFiles:
    """The samples files of one run by task, each with its results file where there is one."""

    where: Path
    samples: Mapping[str, Path]
    results: Mapping[str, Path]


def find_files(path: Path) -> SampleFiles:
    """The files of a folder that `lm_eval --output_path --log_samples` wrote, or of one samples file.

    A folder is looked into itself, else into its one folder that has samples: lm-eval makes one for each model. Raises
    SuiteError.
    """
    if path.is_file():
        return _one_file(path)
    if not path.is_dir():
        raise _refused(path, "is not there; give the folder that `lm_eval --output_path` made, or one samples file")
    folders = sorted({file.parent for file in path.glob("samples_*.jsonl")}) or sorted(
        {file.parent for file in path.glob("*/samples_*.jsonl")}
    )
    if not folders:
        raise _refused(path, "has no samples_*.jsonl; run lm_eval with `--output_path DIR --log_samples`")
    if len(folders) > 1:
        raise _refused(
            path, f"holds several runs ({', '.join(f.name for f in folders)}); give the folder of one of them"
        )
    return _folder(folders[0])


def _one_file(path: Path) -> SampleFiles:
    named = _SAMPLES.fullmatch(path.name)
    if named is None:
        raise _refused(
            path, "is not named as lm-eval names samples, `samples_TASK_DATE.jsonl`: its results go by that name"
        )
    results = path.with_name(f"results_{named['date']}.json")
    return SampleFiles(path, {named["task"]: path}, {named["task"]: results} if results.is_file() else {})


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
        told = file.with_name(f"results_{named['date']}.json")
        if told.is_file():
            results[named["task"]] = told
    if problems:
        raise SuiteError(problems)
    return SampleFiles(folder, samples, results)


def _refused(path: Path, why: str) -> SuiteError:
    return SuiteError([Problem(str(path), None, None, "", why)])
