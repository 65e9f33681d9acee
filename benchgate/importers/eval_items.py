"""Paired items of evals made elsewhere: answers with their repetitions, and the suite's settings to check them against.

A repetition is an epoch of inspect_ai or a repeat of NeMo Evaluator. An item's score is the mean of its repetitions.
One failed repetition fails the item; no item is left out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchgate.errors import Problem, SuiteError
from benchgate.importers.reading import Field
from benchgate.model.deployment import Arm, canonical_json, sha256_of
from benchgate.model.records import INVALID_CHOICE, EvalItem
from benchgate.model.run import ImportedEvals, QualityObservation
from benchgate.suite.quality import Quality, TaskEntry
from benchgate.system import RECORDED_BYTES, read_text_file

MEAN_TOLERANCE = 1e-6  # between a reported mean and the mean of its items


@dataclass(frozen=True, slots=True)
class EvalFormat:
    """Format of evals made elsewhere: its name, a test for its files, and its reader."""

    name: str
    is_at: Callable[[Path], bool]
    read: Callable[[Arm, Path, Quality], ImportedEvals]


@dataclass(frozen=True, slots=True)
class Answer:
    """Repetition of an item, with its place in the file."""

    place: str
    repetition: int
    item: EvalItem


@dataclass(frozen=True, slots=True)
class Reported:
    """Settings that a file reports, to be held against the suite. None is unknown."""

    is_whole: bool | None  # every item of the task's data was evaluated
    system: str | None = None  # "" for none
    max_tokens: int | None = None


def file_text(path: Path) -> str:
    """Read a text file. Raises SuiteError if it cannot be read."""
    try:
        return read_text_file(path, RECORDED_BYTES)
    except (OSError, UnicodeDecodeError) as exc:
        raise SuiteError([problem(path, f"cannot be read: {exc}")]) from exc


def problem(path: Path | str, message: str) -> Problem:
    """Return a problem of a whole file."""
    return Problem(str(path), None, None, "", message)


def fingerprint(value: object) -> str:
    """Hash a part of an item that must be equal in both arms. NaN is hashed as JSON text."""
    return sha256_of(json.dumps(value, sort_keys=True, ensure_ascii=False))


def setting(field: Field | None) -> object:
    """Return a setting that must be equal in both arms, None for a missing one.

    Raises UsageError for NaN or infinity, which cannot be hashed.
    """
    if field is None:
        return None
    try:
        canonical_json(field.value)
    except ValueError:
        field.refuse("a setting without NaN and infinity")
    return field.value


def count_or_none(field: Field | None) -> int | None:
    """Return a whole number of 1 or more; None for a missing one and for 0, which tools write for unknown."""
    return (field.count() or None) if field is not None else None


def cluster_of(metadata: Field | None, key: str | None) -> str | None:
    """Return the cluster that an item's metadata names. Raises UsageError if the suite needs one and it is missing."""
    if key is None:
        return None
    found = None if metadata is None else metadata.need(key)
    if found is None or not isinstance(found.value, str | int) or found.value == "":
        (found or metadata or Field(None, "", key)).refuse(f"metadata with {key!r} to cluster by")
    return str(found.value)


def merge_repetitions(answers: Sequence[Answer], source: str, times: int) -> tuple[EvalItem, ...]:
    """Return one item for all its repetitions, in order of first appearance.

    Raises SuiteError if an item has a repetition twice or lacks one.
    """
    by_item: dict[str, list[Answer]] = {}
    faults: list[str] = [] if answers else ["it holds no samples, so there is nothing to compare"]
    for answer in answers:
        group = by_item.setdefault(answer.item.item_id, [])
        for other in group:
            if other.repetition == answer.repetition:
                name = f"sample {answer.item.item_id!r}, repetition {answer.repetition}"
                faults.append(f"{answer.place}: {name} is at {other.place} already; leave one of them out")
        group.append(answer)
    for item_id, group in by_item.items():
        if (found := len({one.repetition for one in group})) != times:
            faults.append(f"sample {item_id!r} has {found} of {times} repetitions; copy the file again")
    if faults:
        raise SuiteError([problem(source, fault) for fault in faults])
    return tuple(_merged(sorted(group, key=lambda one: one.repetition)) for group in by_item.values())


def _merged(group: Sequence[Answer]) -> EvalItem:
    errors = [one.item.error for one in group if one.item.error is not None]
    if errors:
        return replace(group[0].item, score=None, error=errors[0])
    scores = [one.item.score for one in group if one.item.score is not None]
    return replace(group[0].item, score=sum(scores) / len(group))


def _mark_unreadable(answers: Sequence[Answer]) -> list[Answer]:
    """Mark wrong answers with a text out of which the scorer extracted nothing.

    A scorer that extracts nothing out of any answer does not extract.
    """
    extracts = any(one.item.choice is not None for one in answers)

    def is_unreadable(item: EvalItem) -> bool:
        nothing = extracts if item.choice is None else not item.choice.strip()
        return nothing and item.score == 0 and bool((item.answer or "").strip())

    return [
        replace(one, item=replace(one.item, choice=INVALID_CHOICE)) if is_unreadable(one.item) else one
        for one in answers
    ]


def observe(
    task: str, arm: Arm, answers: Sequence[Answer], source: str, times: int, harness: Mapping[str, object]
) -> QualityObservation:
    """Return the observation of a task from all its answers, with the counts that the answer guards need."""
    answers = _mark_unreadable(answers)
    items = merge_repetitions(answers, source, times)
    failed = [item for item in items if item.error is not None]
    fault = None
    if failed:
        first = f"{failed[0].item_id}: {failed[0].error}"
        fault = f"{len(failed)} of {len(items)} items failed, the first is {first}"
    facts = {**harness, "imported": True, "repeats": times}
    if times > 1:
        complete = {item.item_id: item for item in items if item.error is None}
        kept = [one.item for one in answers if one.item.item_id in complete]
        unclear = Counter(
            item.item_id for item in kept if item.finish_reason == "length" or item.choice == INVALID_CHOICE
        )
        facts["askings_count"] = len(kept)
        facts["empty_count"] = sum(not (item.answer or "").strip() for item in kept)
        facts["unclear_count"] = sum(number for name, number in unclear.items() if not complete[name].correct)
    return QualityObservation(task, arm, items, len(items), fault, facts)


def suite_mismatches(quality: Quality, entry: TaskEntry, reported: Reported, n_items: int) -> Iterator[str]:
    """Yield settings of the suite that the file contradicts or does not report."""
    limit = quality.limit if entry.limit is None else entry.limit
    whole = reported.is_whole
    if not (whole if limit is None else n_items == limit or (whole is True and n_items < limit)):
        suite = "has no `limit`" if limit is None else f"says `limit: {limit}`"
        extent = {True: "all", False: "not all", None: "perhaps not all"}[whole]
        yield f"the suite {suite}, and the file holds {n_items} items, {extent} of the task's; correct the suite"
    few_shot = quality.few_shot if entry.few_shot is None else entry.few_shot
    max_tokens = entry.max_tokens if reported.max_tokens is None else quality.stated_max_tokens(entry)
    declared: list[tuple[str, object, object]] = [
        ("few_shot", few_shot, None),
        ("system", quality.system, reported.system),
        ("max_tokens", max_tokens, reported.max_tokens),
        ("endpoint", quality.endpoint if "endpoint" in quality.model_fields_set else None, None),
    ]
    for key, value, found in declared:
        if value is not None and value != found:
            says = "does not report it" if found is None else f"says {json.dumps(found, ensure_ascii=False)[:60]}"
            suite = f"the suite says `{key}: {json.dumps(value, ensure_ascii=False)[:60]}`"
            yield f"{suite}, and the file {says}; correct the suite, or run the eval again as it says"
    if entry.filter is not None:
        yield f"the suite says `filter: {entry.filter}`, and the file has no filters; name a `metric` instead"


def select_task(available: Mapping[str, Sequence[str]], name: str, where: Path) -> str:
    """Return the key whose names include a task's. Raises SuiteError if none or several do."""
    found = [key for key, names in available.items() if name in names]
    if len(found) == 1:
        return found[0]
    if found:
        listed = ", ".join(sorted(Path(key).name for key in found))
        raise SuiteError([problem(where, f"{listed} are all of the task {name!r}; keep the one that counts")])
    known = ", ".join(sorted({names[0] for names in available.values()})) or "none"
    raise SuiteError([problem(where, f"there are no samples of the task {name!r}; there are those of {known}")])
