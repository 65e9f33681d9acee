"""What lm-eval's `exact_match` leaves out before it compares, so that nothing of a target may be left to compare."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_DIGITS = str.maketrans("", "", string.digits)


def exact_match_of(metrics: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The `exact_match` of a `metric_list`, the last one as lm-eval has it; empty where there is none."""
    found = [metric for metric in metrics if metric.get("metric") == "exact_match"]
    return found[-1] if found else {}


def compared(text: str, metric: Mapping[str, Any]) -> str:
    """What is compared of an answer or a target, as `exact_match` has it but for its case.

    ValueError for a pattern of `regexes_to_ignore` that is none.
    """
    for pattern in metric.get("regexes_to_ignore") or ():
        try:
            text = re.sub(pattern, "", text)
        except re.error as exc:
            raise ValueError(f"`regexes_to_ignore` has {pattern!r}, which is no pattern: {exc}") from exc
    if metric.get("ignore_punctuation"):
        text = text.translate(_PUNCTUATION)
    return text.translate(_DIGITS) if metric.get("ignore_numbers") else text


def nothing_left(targets: Sequence[str], metric: Mapping[str, Any]) -> str | None:
    """The first of a row's right answers of which nothing is left that tells it from others; None where something is.

    Of a text with letters or digits one must be left. Beside others, a right answer of signs alone may go: what matches
    it then has neither letter nor digit. ValueError as for `compared`.
    """
    emptied = [target for target in targets if _says_nothing(target, compared(target, metric))]
    if len(emptied) == len(targets):
        return next(iter(emptied), None)
    return next((target for target in emptied if _speaks(target)), None)


def _says_nothing(target: str, left: str) -> bool:
    return not left.strip() or (_speaks(target) and not _speaks(left))


def _speaks(text: str) -> bool:
    return any(map(str.isalnum, text))
