"""Paths into JSON values, as suites write them: `$.id`, `$.items[*].ts`, `$["odd key"][0]`, `$..created`. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

_STEP = re.compile(
    r"""(?P<deep>\.\.)(?P<deep_key>[A-Za-z_][\w-]*)
      | \.(?P<key>[A-Za-z_][\w-]*)
      | \.(?P<every_key>\*)
      | \[(?P<index>\d{1,9})\]
      | \[(?P<every>\*)\]
      | \["(?P<quoted>[^"\\]*)"\]
      | \['(?P<single>[^'\\]*)'\]""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a path: a key, a place in a list, or (`of` is None) all there are. `deep`: at any depth below."""

    of: str | int | None
    deep: bool = False


def parse_path(text: str) -> tuple[Step, ...]:
    """The steps of a path. ValueError, with what to write, for what is none or leads nowhere but the whole."""
    example = 'write it like $.id, $.items[*].ts, $["a key"] or $..created'
    if not text.startswith("$"):
        raise ValueError(f"{text!r} is no path into JSON; {example}")
    steps, at = [], 1
    while at < len(text):
        match = _STEP.match(text, at)
        if match is None:
            raise ValueError(f"{text!r} is no path into JSON from character {at + 1} on; {example}")
        steps.append(_step(match))
        at = match.end()
    if not steps:
        raise ValueError(f"{text!r} is the whole of every answer, and then nothing is compared; {example}")
    if all(step.of is None for step in steps):
        raise ValueError(f"{text!r} leads to everything at some depth, and then little is compared; {example}")
    return tuple(steps)


def _step(match: re.Match[str]) -> Step:
    if match["deep"]:
        return Step(match["deep_key"], deep=True)
    if match["index"]:
        return Step(int(match["index"]))
    if match["every"] or match["every_key"]:
        return Step(None)
    return Step(next(match[name] for name in ("key", "quoted", "single") if match[name] is not None))
