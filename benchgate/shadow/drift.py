"""`benchgate shadow drift`: compares a sample with today's traffic by the population stability index.

Compared are prompt length, route, script, and the beginning of the prompt, which is that of the system prompt.
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
from benchgate.shadow.redaction import Redactor
from benchgate.shadow.request_log import LoggedRequest, LogSummary, read_logs
from benchgate.shadow.sampling import redact_logged
from benchgate.stats.series import population_stability_index

WARN_FROM, BLOCK_FROM = 0.1, 0.25
"""The usual bounds of the index: a change worth attention, and traffic that the sample no longer represents.

Siddiqi 2006, "Credit Risk Scorecards"; Lewis 1994, "An Introduction to Credit Scoring".
"""

_BINS = 10
_BEGINNING = 64  # characters
_COMMON = 0.05  # share of the sample from which a beginning is a category of its own
_LETTERS = 400  # letters that decide the script
_OTHER = "other"


@dataclass(frozen=True, slots=True)
class Traits:
    """The compared properties of one prompt."""

    length: int
    endpoint: str
    script: str
    beginning: str


@dataclass(frozen=True, slots=True)
class Change:
    """A comparison: its index, the largest index expected by chance, and the category that changed most."""

    of: str
    index: float
    chance: float
    outcome: Outcome
    most: str
    share_sample: float
    share_now: float


@dataclass(frozen=True, slots=True)
class Drift:
    """The comparisons. `outcome` is the worst of them: PASS, WARN, INCONCLUSIVE (too few prompts) or BLOCK."""

    outcome: Outcome
    changes: tuple[Change, ...]
    sample_n: int
    now_n: int


def traits_of_sample(prompts: Iterable[ShadowPrompt]) -> list[Traits]:
    """Return the traits of the rows of a sample."""
    found = []
    for prompt in prompts:
        text = None if prompt.messages else prompt.prompt
        request = LoggedRequest(prompt.endpoint, prompt.endpoint, prompt.messages, text, prompt.fields)
        stratum = prompt.stratum
        found.append(_traits(request, prompt.endpoint if stratum is None else stratum.rpartition("/")[0] or stratum))
    return found


def traits_of_logs(
    logs: Sequence[Path], redactor: Redactor, summary: LogSummary, on_file: Callable[[str], None] = lambda line: None
) -> list[Traits]:
    """Return the traits of every distinct request in the logs, redacted as in a sample. Raises UsageError."""
    seen: set[bytes] = set()
    found: list[Traits] = []
    for place, request in read_logs(logs, summary, on_file):
        redacted, _ = redact_logged(place, request, redactor)
        if redacted.digest not in seen:
            seen.add(redacted.digest)
            found.append(_traits(redacted, redacted.label))
    return found


def drift(sample: Sequence[Traits], now: Sequence[Traits]) -> Drift:
    """Compare a sample with today's traffic. Both need at least one prompt."""
    ranked = sorted(each.length for each in sample)
    edges = sorted({ranked[len(ranked) * cut // _BINS] for cut in range(1, _BINS)})  # bins of about as many prompts
    routes = {each.endpoint for each in sample}  # rare ones are `other` in a sample
    beginnings = Counter(each.beginning for each in sample)
    common = {text for text, n in beginnings.items() if n > 1 and n >= _COMMON * len(sample)}
    categories: dict[str, Callable[[Traits], str]] = {
        "length": lambda each: _length_bin(edges, each.length),
        "endpoint": lambda each: each.endpoint if each.endpoint in routes else _OTHER,
        "script": lambda each: each.script,
        "beginning": lambda each: each.beginning if each.beginning in common else _OTHER,
    }
    changes = tuple(_change(of, category, sample, now) for of, category in categories.items())
    order = (Outcome.PASS, Outcome.WARN, Outcome.INCONCLUSIVE, Outcome.BLOCK)
    return Drift(max((each.outcome for each in changes), key=order.index), changes, len(sample), len(now))


def _change(of: str, category: Callable[[Traits], str], sample: Sequence[Traits], now: Sequence[Traits]) -> Change:
    then_n, now_n = Counter(map(category, sample)), Counter(map(category, now))
    names = sorted(then_n | now_n)
    found = population_stability_index([then_n[name] for name in names], [now_n[name] for name in names])
    if found is None:
        raise ValueError("nothing to compare")
    most = max(names, key=lambda name: abs(then_n[name] / len(sample) - now_n[name] / len(now)))
    shown = most[:_BEGINNING] if of != "beginning" or most == _OTHER else "one of the sample's own"
    # BLOCK and WARN need more than chance; PASS needs enough prompts to have shown a change.
    outcome, is_beyond_chance = Outcome.PASS, found.index > found.chance
    if found.index >= BLOCK_FROM and is_beyond_chance:
        outcome = Outcome.BLOCK
    elif found.chance >= BLOCK_FROM:
        outcome = Outcome.INCONCLUSIVE
    elif found.index >= WARN_FROM and is_beyond_chance:
        outcome = Outcome.WARN
    return Change(of, found.index, found.chance, outcome, shown, then_n[most] / len(sample), now_n[most] / len(now))


def _traits(request: LoggedRequest, endpoint: str) -> Traits:
    text = request.normalised
    scripts = Counter(  # as Unicode names them: LATIN, CYRILLIC, CJK
        unicodedata.name(letter, _OTHER).partition(" ")[0] for letter in text[: 4 * _LETTERS] if letter.isalpha()
    )
    script = scripts.most_common(1)[0][0] if scripts else "none"
    return Traits(len(text), endpoint, script, request.first_text[:_BEGINNING])


def _length_bin(edges: Sequence[int], length: int) -> str:
    at = bisect.bisect_right(edges, length)
    low = "0" if at == 0 else f"{edges[at - 1]:,}"
    return f"{low} to {edges[at] - 1:,} characters" if at < len(edges) else f"{low} characters or more"
