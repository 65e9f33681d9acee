"""What was answered, as a line of lm-eval's samples has it: a text, or the log-probability of each option."""

from __future__ import annotations

import math
from collections.abc import Mapping


def answer_of(row: Mapping[str, object]) -> tuple[str | None, str | None]:
    """What was answered, and what was read out of it; of a task of options, the likeliest option for both."""
    if scored := likelihoods(row):
        option = _option(row, scored.index(max(scored)))
        return option, option
    answer = _first_text(row.get("resps"))
    return answer, None if answer is None else _first_text(row["filtered_resps"])


def likelihoods(row: Mapping[str, object]) -> list[float]:
    """The log-probability of each option; empty where the item was no choice between options."""
    filtered = row["filtered_resps"]
    options = [_likelihood(one) for one in filtered] if isinstance(filtered, list) else []
    scored = [one for one in options if one is not None]
    return scored if len(scored) > 1 and len(scored) == len(options) else []


def _likelihood(response: object) -> float | None:
    """The log-probability in a response to one option, which lm-eval writes as the texts `["-1.5", "False"]`."""
    if not isinstance(response, list) or len(response) != 2 or response[1] not in ("True", "False"):
        return None
    try:
        logprob = float(str(response[0]))
    except ValueError:
        return None
    return None if math.isnan(logprob) else logprob


def _option(row: Mapping[str, object], number: int) -> str:
    """The text of an option, as it was sent; its number where it was no text."""
    requests = row["arguments"]
    asked = requests.get(f"gen_args_{number}") if isinstance(requests, dict) else None
    text = asked.get("arg_1") if isinstance(asked, dict) else None
    return text if isinstance(text, str) and text else f"option {number}"


def _first_text(value: object) -> str | None:
    """The text at the head of nested lists: of several answers to one item the first."""
    while isinstance(value, list) and len(value) > 0:
        value = value[0]
    return value if isinstance(value, str) else None
