"""Samples files of lm-eval runs made elsewhere: where they lie, and their lines as items.

A line is one item after one filter. Its hashes are computed again, so that a truncated, joined or edited file is
noticed; it is no protection against forgery.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchgate.errors import Problem, SuiteError
from benchgate.model.records import EvalItem
from benchgate.suite.formats import parse_object

_HASHES = ("doc_hash", "prompt_hash", "target_hash")
_KEYS: Mapping[str, type] = {
    "doc_id": int, "doc": dict, "target": str, "arguments": dict, "filtered_resps": list, "filter": str,
    "metrics": list, "doc_hash": str, "prompt_hash": str, "target_hash": str,
}  # fmt: skip
_KIND_NAMES: Mapping[type, str] = {int: "a whole number", dict: "an object", str: "a text", list: "a list"}
_DATE = r"\d{4}-\d{2}-\d{2}T\d{2}-\d{2}-\d{2}(?:\.\d+)?"
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


@dataclass(frozen=True, slots=True)
class SelectedItems:
    """Items under one filter and one metric, in the order of their documents."""

    items: tuple[EvalItem, ...]
    filter: str
    metric: str
    chance: float | None  # mean score of guessing, if every item has options


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
    metric = selection.metric or selected[0].metrics[0]
    problems: list[Problem] = []
    lines: dict[int, int] = {}
    for sample in selected:
        value, doc = sample.row.get(metric), sample.row["doc"]
        faults = []
        if sample.doc_id in lines:
            line = lines[sample.doc_id]
            faults.append(f"`doc_id` {sample.doc_id} stands on line {line} already; leave one of them out")
        lines.setdefault(sample.doc_id, sample.line)
        if metric not in sample.metrics:
            faults.append(f"the item has no {metric!r}; its metrics are {_listed(sample.metrics)}")
        elif _score(value) is None:
            faults.append(f"{metric} is {json.dumps(value)[:40]}, which is no score of one item; name another `metric`")
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
    items = tuple(_item(sample, i, metric, selection.cluster) for sample, i in zip(ordered, ids, strict=True))
    options = [len(likelihoods(sample.row)) for sample in ordered]
    chance = sum(1 / number for number in options) / len(options) if all(options) else None
    return SelectedItems(items, chosen, metric, chance), []


def hashes_sha256(samples: Sequence[Sample]) -> str:
    """Return lm-eval's own hash of a task's samples, as in its results file."""
    return _sha256("".join("".join(sample.hashes) for sample in samples))


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
    _check_hashes(row)
    return Sample(line, int(str(row["doc_id"])), str(row["filter"]), tuple(metrics), row)


def _check_hashes(row: Mapping[str, object]) -> None:
    """Raise ValueError unless each hash is that of its text."""
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
    for name, text in texts.items():
        if isinstance(text, str) and row[name] != _sha256(text):
            what = name.removesuffix("_hash")
            raise ValueError(f"`{name}` is not the hash of the {what} beside it: the file is not as lm-eval wrote it")


def _item(sample: Sample, item_id: str, metric: str, cluster: str | None) -> EvalItem:
    doc_hash, prompt_hash, target_hash = sample.hashes
    doc = sample.row["doc"]
    answer: str | None
    choice: str | None
    if scored := likelihoods(sample.row):  # the likeliest option of a multiple choice, as it was sent
        number = scored.index(max(scored))
        requests = sample.row["arguments"]
        request = requests.get(f"gen_args_{number}") if isinstance(requests, dict) else None
        text = request.get("arg_1") if isinstance(request, dict) else None
        answer = choice = text if isinstance(text, str) and text else f"option {number}"
    else:
        answer = _first_text(sample.row.get("resps"))
        choice = None if answer is None else _first_text(sample.row["filtered_resps"])
    return EvalItem(
        item_id=item_id,
        doc_hash=doc_hash,
        prompt_hash=prompt_hash,
        target_hash=target_hash,
        score=_score(sample.row[metric]),
        answer=answer,
        finish_reason=None,
        output_tokens=None,
        latency_ns=None,
        error=None,
        choice=choice,
        cluster=str(doc[cluster]) if cluster is not None and isinstance(doc, dict) else None,
    )


def _score(value: object) -> float | None:
    if isinstance(value, bool | int | float) and math.isfinite(value):
        return float(value)
    return None


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _listed(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names)


def likelihoods(row: Mapping[str, object]) -> list[float]:
    """Return the log-probability of each option. Empty unless the item is multiple choice.

    lm-eval writes that of one option as the texts `["-1.5", "False"]`.
    """
    filtered = row["filtered_resps"]
    scored = []
    for response in filtered if isinstance(filtered, list) else ():
        if not isinstance(response, list) or len(response) != 2 or response[1] not in ("True", "False"):
            return []
        try:
            scored.append(float(str(response[0])))
        except ValueError:
            return []
    return scored if len(scored) > 1 and not any(map(math.isnan, scored)) else []


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
    folders = sorted({file.parent for file in path.glob("samples_*.jsonl")}) or sorted(
        {file.parent for file in path.glob("*/samples_*.jsonl")}
    )
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
