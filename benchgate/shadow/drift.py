"""`benchgate shadow drift`: does a sample still look like what is asked now?

Four things are compared, each by the population stability index over a few categories: how long the prompts are, where
they were asked, in which script they are written, and how they begin (which is to say: their system prompts).
"""

from __future__ import annotations

import bisect
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchgate.model.verdict import Outcome
from benchgate.plan.items import ShadowPrompt
from benchgate.shadow.asked import Asked
from benchgate.shadow.logs import Reading, read_logs
from benchgate.shadow.redaction import Redactor
from benchgate.shadow.sampling import redacted_at
from benchgate.stats.series import population_stability_index

SHIFTED, MOVED = 0.1, 0.25
"""Where a change is worth a look, and where the sample no longer stands for the traffic: the usual bounds of the index
(Siddiqi 2006, "Credit Risk Scorecards"; Lewis 1994, "An Introduction to Credit Scoring")."""

_BINS = 10
_BEGINNING = 64  # characters
_COMMON = 0.05  # of the sample begins alike: a kind of traffic of its own
_LETTERS = 400  # are looked at to tell the script
_OTHER = "other"


@dataclass(frozen=True, slots=True)
class Traits:
    """What is compared of one prompt."""

    length: int
    endpoint: str
    script: str
    beginning: str


@dataclass(frozen=True, slots=True)
class Change:
    """One comparison: its index, the most that chance makes of it, and the category whose share changed most."""

    of: str
    index: float
    chance: float
    outcome: Outcome
    most: str
    share_sample: float
    share_now: float


@dataclass(frozen=True, slots=True)
class Drift:
    """What was found. `outcome` is the worst of the changes: PASS, WARN, INCONCLUSIVE (too few prompts) or BLOCK."""

    outcome: Outcome
    changes: tuple[Change, ...]
    sample_n: int
    now_n: int


def traits_of_sample(prompts: Iterable[ShadowPrompt]) -> list[Traits]:
    """Of the rows of a sample."""
    return [_of_row(prompt) for prompt in prompts]


def traits_of_logs(
    logs: Sequence[Path], redactor: Redactor, reading: Reading, told: Callable[[str], None] = lambda line: None
) -> list[Traits]:
    """Of every request of the logs that differs from the others, redacted as a sample is.

    Raises UsageError for a file that cannot be used, and for a rule that does not come to an end.
    """
    seen: set[bytes] = set()
    found: list[Traits] = []
    for place, asked in read_logs(logs, reading, told):
        redacted, _ = redacted_at(place, asked, redactor)
        if redacted.digest not in seen:
            seen.add(redacted.digest)
            found.append(_traits(redacted, redacted.label))
    return found


def drift(sample: Sequence[Traits], now: Sequence[Traits]) -> Drift:
    """Compare a sample with what is asked now. Both need at least one prompt."""
    edges = _edges([each.length for each in sample])
    places = {each.endpoint for each in sample}  # rare ones are `other` in a sample
    common = _common([each.beginning for each in sample])
    categories: dict[str, Callable[[Traits], str]] = {
        "length": lambda each: _bin(edges, each.length),
        "endpoint": lambda each: each.endpoint if each.endpoint in places else _OTHER,
        "script": lambda each: each.script,
        "beginning": lambda each: each.beginning if each.beginning in common else _OTHER,
    }
    changes = tuple(_change(of, category, sample, now) for of, category in categories.items())
    order = (Outcome.PASS, Outcome.WARN, Outcome.INCONCLUSIVE, Outcome.BLOCK)
    return Drift(max((each.outcome for each in changes), key=order.index), changes, len(sample), len(now))


def _change(of: str, category: Callable[[Traits], str], sample: Sequence[Traits], now: Sequence[Traits]) -> Change:
    was, is_now = Counter(map(category, sample)), Counter(map(category, now))
    names = sorted(was | is_now)
    found = population_stability_index([was[name] for name in names], [is_now[name] for name in names])
    if found is None:
        raise ValueError("nothing to compare")
    most = max(names, key=lambda name: abs(was[name] / len(sample) - is_now[name] / len(now)))
    shown = f"{most[:_BEGINNING]}" if of != "beginning" or most == _OTHER else "one of the sample's own"
    return Change(
        of, found.index, found.chance, _judged(found.index, found.chance), shown,
        was[most] / len(sample), is_now[most] / len(now),
    )  # fmt: skip


def _judged(index: float, chance: float) -> Outcome:
    """BLOCK and WARN need more than chance; PASS needs enough prompts for a change to have shown."""
    if index >= MOVED and index > chance:
        return Outcome.BLOCK
    if chance >= MOVED:
        return Outcome.INCONCLUSIVE
    return Outcome.WARN if index >= SHIFTED and index > chance else Outcome.PASS


def _of_row(prompt: ShadowPrompt) -> Traits:
    text = None if prompt.messages else prompt.prompt
    asked = Asked(prompt.endpoint, prompt.endpoint, prompt.messages, text, prompt.fields)
    endpoint = prompt.endpoint if prompt.stratum is None else prompt.stratum.rpartition("/")[0] or prompt.stratum
    return _traits(asked, endpoint)


def _traits(asked: Asked, endpoint: str) -> Traits:
    return Traits(len(asked.normal), endpoint, _script(asked.normal), asked.first[:_BEGINNING])


def _script(text: str) -> str:
    """The script of most of the first letters, as Unicode names it (LATIN, CYRILLIC, CJK); `none` without letters."""
    scripts = Counter(
        unicodedata.name(letter, _OTHER).partition(" ")[0] for letter in text[: 4 * _LETTERS] if letter.isalpha()
    )
    return scripts.most_common(1)[0][0] if scripts else "none"


def _edges(lengths: Sequence[int]) -> list[int]:
    """Bounds of bins that hold about as many prompts of the sample each; equal lengths share one."""
    ranked = sorted(lengths)
    return sorted({ranked[len(ranked) * cut // _BINS] for cut in range(1, _BINS)})


def _bin(edges: Sequence[int], length: int) -> str:
    at = bisect.bisect_right(edges, length)
    low = "0" if at == 0 else f"{edges[at - 1]:,}"
    return f"{low} to {edges[at] - 1:,} characters" if at < len(edges) else f"{low} characters or more"


def _common(beginnings: Sequence[str]) -> frozenset[str]:
    counts = Counter(beginnings)
    return frozenset(each for each, n in counts.items() if n > 1 and n >= _COMMON * len(beginnings))
