"""A `samples_*.jsonl` that lm-eval wrote elsewhere: its lines → items, or every mistake with its line. Gets text.

A line is one item as one filter of the task left it. What its hashes were taken of stands beside them, so each is taken
again here, and a file that was cut, glued or changed by mistake is told. Who forges one can take its hashes anew.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchgate.errors import Problem
from benchgate.model.records import EvalItem
from benchgate.quality.sample_answers import answer_of, likelihoods
from benchgate.suite.formats import parse_object

_HASHES = ("doc_hash", "prompt_hash", "target_hash")


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of the file; `row` is all of it."""

    line: int
    doc_id: int
    filter: str
    metrics: tuple[str, ...]
    row: Mapping[str, object]

    @property
    def hashes(self) -> tuple[str, str, str]:
        """Of the document, the prompt and the target."""
        doc, prompt, target = (str(self.row[name]) for name in _HASHES)
        return doc, prompt, target


@dataclass(frozen=True, slots=True)
class Wanted:
    """What of a task's file is judged; None: the filter and the metric that come first in it."""

    task: str
    filter: str | None = None
    metric: str | None = None
    cluster: str | None = None  # the key of a document that says which others it belongs to


@dataclass(frozen=True, slots=True)
class Judged:
    """The items of one file under one filter and one metric, in the order of their documents."""

    items: tuple[EvalItem, ...]
    filter: str
    metric: str
    chance: float | None  # mean score of guessing among options; None where nothing is chosen from any


def parse_samples(text: str, source: str) -> tuple[list[Sample], list[Problem]]:
    """The lines that are sound, in order, and a problem for each that is not. Empty lines are skipped."""
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


def judged(samples: Sequence[Sample], wanted: Wanted, source: str) -> tuple[Judged | None, list[Problem]]:
    """The items that are judged, in the order of their documents, or why there are none."""
    filters = list(dict.fromkeys(sample.filter for sample in samples))
    chosen = wanted.filter or filters[0]
    mine = [sample for sample in samples if sample.filter == chosen]
    if not mine:
        return None, [Problem(source, None, None, "", f"no filter is called {chosen!r}; there are {_listed(filters)}")]
    metric = wanted.metric or mine[0].metrics[0]
    problems = [*_repeated(mine, source), *_unscored(mine, metric, source)]
    if wanted.cluster is not None:
        problems += _without(mine, wanted.cluster, source)
    if problems:
        return None, problems
    ordered = sorted(mine, key=lambda sample: sample.doc_id)
    ids = _ids(ordered, wanted.task)
    items = tuple(_item(sample, i, metric, wanted.cluster) for sample, i in zip(ordered, ids, strict=True))
    return Judged(items, chosen, metric, _chance(ordered)), []


def hashes_sha256(samples: Sequence[Sample]) -> str:
    """lm-eval's own hash of all the lines of a task, as its results file has it."""
    return _sha256("".join("".join(sample.hashes) for sample in samples))


def _sample(row: dict[str, object], line: int) -> Sample:
    """A line as a sample; ValueError with what is wrong."""
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
    doc_id = row["doc_id"]
    assert isinstance(doc_id, int), "looked at above"
    return Sample(line, doc_id, str(row["filter"]), tuple(metrics), row)


_KEYS: Mapping[str, type] = {
    "doc_id": int, "doc": dict, "target": str, "arguments": dict, "filtered_resps": list, "filter": str,
    "metrics": list, "doc_hash": str, "prompt_hash": str, "target_hash": str,
}  # fmt: skip
_KIND_NAMES: Mapping[type, str] = {int: "a whole number", dict: "an object", str: "a text", list: "a list"}


def _check_hashes(row: Mapping[str, object]) -> None:
    """Each hash is what lm-eval would take of what stands beside it; ValueError where one is not."""
    said = {
        "doc_hash": json.dumps(row["doc"], indent=2, ensure_ascii=False),
        "prompt_hash": _prompt(row),
        "target_hash": row["target"],
    }
    for name, text in said.items():
        if isinstance(text, str) and row[name] != _sha256(text):
            what = name.removesuffix("_hash")
            raise ValueError(f"`{name}` is not the hash of the {what} beside it: the file is not as lm-eval wrote it")


def _prompt(row: Mapping[str, object]) -> str | None:
    """What lm-eval hashed as the prompt: the first text that was sent; None where it was not a text (an image, say)."""
    requests = row["arguments"]
    first = requests.get("gen_args_0") if isinstance(requests, dict) else None
    sent = first.get("arg_0") if isinstance(first, dict) else None
    if isinstance(sent, list) and len(sent) == 1:  # the messages of a chat, as one JSON text
        sent = sent[0]
    return sent if isinstance(sent, str) else None


def _repeated(samples: Sequence[Sample], source: str) -> Iterator[Problem]:
    first: dict[int, int] = {}
    for sample in samples:
        if sample.doc_id in first:
            message = f"`doc_id` {sample.doc_id} stands on line {first[sample.doc_id]} already; leave one of them out"
            yield Problem(source, sample.line, None, "", message)
        first.setdefault(sample.doc_id, sample.line)


def _unscored(samples: Sequence[Sample], metric: str, source: str) -> Iterator[Problem]:
    for sample in samples:
        value = sample.row.get(metric)
        if metric not in sample.metrics:
            message = f"the item has no {metric!r}; its metrics are {_listed(sample.metrics)}"
            yield Problem(source, sample.line, None, "", message)
        elif _score(value) is None:
            message = f"{metric} is {json.dumps(value)[:40]}, which is no score of one item; name another `metric`"
            yield Problem(source, sample.line, None, "", message)


def _without(samples: Sequence[Sample], cluster: str, source: str) -> Iterator[Problem]:
    for sample in samples:
        doc = sample.row["doc"]
        if not isinstance(doc, dict) or doc.get(cluster) in (None, ""):
            yield Problem(source, sample.line, None, "", f"its document has no {cluster!r} to cluster by")


def _ids(samples: Sequence[Sample], task: str) -> Iterator[str]:
    """The documents' own ids where each has one of its own, else the place in the data and the document's hash."""
    own = [doc.get("id") if isinstance(doc := sample.row["doc"], dict) else None for sample in samples]
    if all(isinstance(one, str) and one for one in own) and len(set(own)) == len(own):
        yield from map(str, own)
        return
    for sample in samples:
        yield f"{task}-{sample.doc_id}-{sample.hashes[0][:12]}"


def _chance(samples: Sequence[Sample]) -> float | None:
    options = [len(likelihoods(sample.row)) for sample in samples]
    return sum(1 / number for number in options) / len(options) if all(options) else None


def _item(sample: Sample, item_id: str, metric: str, cluster: str | None) -> EvalItem:
    doc_hash, prompt_hash, target_hash = sample.hashes
    doc = sample.row["doc"]
    answer, choice = answer_of(sample.row)
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
