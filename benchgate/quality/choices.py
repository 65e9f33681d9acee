"""Choice of an item, compared between the arms: the option that its gated metric takes, or the extracted answer."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from benchgate.model.records import INVALID_CHOICE

_LONGEST_CHOICE = 200
_DEFAULT_PATTERN = r"#### (\-?[0-9\.\,]+)"  # of lm-eval's `regex`


def extracted_choice(text: str) -> str:
    """Return an extracted answer or option; its digest if it is long, or `[invalid]`, which marks one not read."""
    if len(text) <= _LONGEST_CHOICE and text != INVALID_CHOICE:
        return text
    return f"sha256:{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"


def is_unread(steps: Sequence[Mapping[str, Any]], answers: Sequence[str], filtered: str) -> bool:
    """Return True if the steps of a filter, as lm-eval reports them, found nothing in the answers to an item.

    Steps that are known here are run again on the first answer. For others, an answer is unread if its result is the
    fallback and no answer contains that text.
    """
    names = [str(step.get("function")) for step in steps]
    if answers and "take_first" not in names[:-1]:
        text = answers[0]
        try:
            for step in steps:
                if (applied := _applied(step, text)) is None:
                    return True
                text = applied
        except (LookupError, TypeError, re.error):
            pass  # a step unknown here
        else:
            if text == filtered:
                return False
    fallbacks = {str(step.get(name, INVALID_CHOICE)) for step in steps for name in ("fallback", "default_value")}
    found = filtered.strip().lower()
    return found in {one.strip().lower() for one in fallbacks} and not any(found in one.lower() for one in answers)


def _applied(step: Mapping[str, Any], text: str) -> str | None:
    """Return what a step makes of an answer, None for nothing. Raises LookupError for a step unknown here."""
    match step["function"]:
        case "regex":
            found = re.findall(step.get("regex_pattern", _DEFAULT_PATTERN), text)
            if not found:
                return None
            groups = found[step.get("group_select", 0)]
            one = next(filter(None, groups), "") if isinstance(groups, tuple) else groups
            return one.strip() or None
        case "map":
            mapped = step["mapping_dict"].get(text)
            return None if mapped is None else str(mapped)
        case "remove_whitespace":
            return text.strip()
        case "lowercase":
            return text.lower()
        case "uppercase":
            return text.upper()
        case "take_first":
            return text
    raise LookupError(step["function"])


def chosen_option(metric: str, options: Sequence[str], logprobs: Sequence[float]) -> int:
    """Return the number of the option that lm-eval takes: the likeliest one, for some metrics per character or byte."""
    if metric == "acc_norm":
        weighted = [value / max(len(option), 1) for value, option in zip(logprobs, options, strict=False)]
    elif metric == "acc_bytes":
        weighted = [value / max(len(option.encode()), 1) for value, option in zip(logprobs, options, strict=False)]
    elif metric == "acc_mutual_info":
        unconditional = logprobs[len(options) :]
        weighted = [value - other for value, other in zip(logprobs, unconditional, strict=False)]
    else:
        weighted = list(logprobs[: len(options)])
    return weighted.index(max(weighted))
