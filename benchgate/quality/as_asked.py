"""Whether a task that was asked elsewhere was asked as the suite says: the verdict is one on the suite's evals."""

from __future__ import annotations

import json
from collections.abc import Iterator

from benchgate.quality.results import Results
from benchgate.suite.quality import Quality, TaskEntry

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
