"""`benchgate shadow sample` and `benchgate shadow drift`: a sample of logged requests, and how traffic changed since.

A sample is stratified, redacted and without duplicates. Each request has a pseudo-random rank made of the seed and its
digest; the lowest ranks of each stratum are drawn. So a repeated request has one rank, the order of the files does not
matter, and only candidates for the sample are held.

Drift compares a sample with the traffic of today by the population stability index: prompt length, route, script, and
the beginning of the prompt, which is that of the system prompt.
"""

from __future__ import annotations

import bisect
import hashlib
import heapq
import json
import re
import unicodedata
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path

from benchgate.errors import UsageError
from benchgate.model.verdict import Outcome
from benchgate.plan.items import ShadowPrompt
from benchgate.shadow.prompts import form_problems
from benchgate.shadow.redaction import Redactor, TooSlowError
from benchgate.shadow.request_log import LoggedRequest, LogSummary, read_logs
from benchgate.stats.series import population_stability_index
from benchgate.system import atomic_file

_LENGTHS = re.compile(r"\d+-\d*")  # of `LoggedRequest.length_class`
_OTHER = "other"  # label of routes, and of traits, that are rare
_RARE = 0.01  # share of the distinct requests
_COMMON_ROUTES = ("chat", "completions", "responses", "messages")  # never merged into `other`
_NEAR_DUPLICATE_FACTOR = 4  # candidates per stratum as a multiple of the sample size, if near-duplicates are left out


@dataclass(frozen=True)
class Candidate:
    """A redacted request that may be drawn, and the number of replacements in it by rule."""

    request: LoggedRequest
    replaced: Counter[str]

    @cached_property
    def spelling(self) -> str:
        """Its row as text. The first of several duplicates by it represents them all."""
        return json.dumps(self.request.row(self.request.label), sort_keys=True, ensure_ascii=False)


_Stratum = tuple[str, str]  # label and length class


@dataclass(slots=True)
class Reservoir:
    """Candidates for a sample of `size`. With `near`, requests at least so similar to a drawn one are left out."""

    size: int
    seed: int
    near: float | None = None
    duplicates: int = 0
    near_duplicates: int = 0
    _distinct: Counter[_Stratum] = field(default_factory=Counter)
    _known: set[tuple[bytes, str]] = field(default_factory=set)
    _held: dict[tuple[bytes, str], Candidate] = field(default_factory=dict)
    _ranks: dict[_Stratum, list[tuple[int, bytes]]] = field(default_factory=dict)  # heaps, the last rank on top

    def add(self, candidate: Candidate) -> None:
        """Add a request, or count it as a duplicate if it was added with this label before."""
        digest, label = candidate.request.digest, candidate.request.label
        if (digest, label) in self._known:
            self.duplicates += 1
            held = self._held.get((digest, label))
            if held is not None and candidate.spelling < held.spelling:
                self._held[digest, label] = candidate
            return
        stratum = (label, candidate.request.length_class)
        self._known.add((digest, label))
        self._distinct[stratum] += 1
        self._held[digest, label] = candidate
        ranks = self._ranks.setdefault(stratum, [])
        entry = (-self._rank(digest), digest)
        if len(ranks) < self.size * (1 if self.near is None else _NEAR_DUPLICATE_FACTOR):
            heapq.heappush(ranks, entry)
        else:
            del self._held[heapq.heappushpop(ranks, entry)[1], label]

    @property
    def distinct(self) -> Counter[str]:
        """The number of distinct requests by stratum. A request on two routes counts on each."""
        found: Counter[str] = Counter()
        for (label, length), n in self._distinct.items():
            found[f"{self._labels[label]}/{length}"] += n
        return found

    def draw(self) -> list[tuple[Candidate, str]]:
        """Draw candidates in pseudo-random order (the first rows are a sample too), each with its stratum's label."""
        strata: defaultdict[str, list[tuple[int, str, bytes]]] = defaultdict(list)
        for (label, length), ranks in self._ranks.items():
            strata[f"{self._labels[label]}/{length}"] += [(-rank, label, digest) for rank, digest in ranks]
        drawn: dict[bytes, tuple[Candidate, str]] = {}
        near_duplicates = None if self.near is None else NearDuplicates(self.near)
        for stratum, allocated in allocate(self.distinct, self.size).items():
            full = len(drawn) + allocated
            for _, label, digest in sorted(strata[stratum]):
                if len(drawn) == full:
                    break
                candidate = self._held[digest, label]
                if digest in drawn:  # on another route
                    continue
                if near_duplicates is not None and near_duplicates.is_near(candidate.request.normalised):
                    self.near_duplicates += 1
                    continue
                drawn[digest] = (candidate, self._labels[label])
        return [drawn[digest] for digest in sorted(drawn, key=self._rank)]

    @property
    def _labels(self) -> dict[str, str]:
        """Map each label to itself, or to `other` if it is rare."""
        sizes: Counter[str] = Counter()
        for (label, _), n in self._distinct.items():
            sizes[label] += n
        rare = _RARE * sizes.total()
        return {label: label if n >= rare or label in _COMMON_ROUTES else _OTHER for label, n in sizes.items()}

    def _rank(self, digest: bytes) -> int:
        return int.from_bytes(hashlib.sha256(b"%d:%b" % (self.seed, digest)).digest()[:12])


def allocate(sizes: Mapping[str, int], total: int) -> dict[str, int]:
    """Allocate a sample in proportion to stratum sizes, at least one each; if too many strata, to the largest."""
    population = sum(sizes.values())
    if population <= total:
        return dict(sorted(sizes.items()))
    names = sorted(sizes, key=lambda name: (-sizes[name], name))[:total]
    fair = {name: total * sizes[name] / population for name in names}
    given = {name: min(sizes[name], max(1, int(fair[name]))) for name in names}
    while sum(given.values()) > total:
        given[_largest({name: given[name] - fair[name] for name in names if given[name] > 1})] -= 1
    while sum(given.values()) < total:
        given[_largest({name: fair[name] - given[name] for name in names if given[name] < sizes[name]})] += 1
    return dict(sorted(given.items()))


def _largest(distances: Mapping[str, float]) -> str:
    return max(sorted(distances), key=lambda name: distances[name])


_SHINGLE_BYTES = 24  # a few words
_SKETCH_SIZE = 128  # smallest hashes: the standard error of a similarity of 0.8 is 0.035


class NearDuplicates:
    """Texts kept so far, to find those at least `near` similar: the same template, filled in a little differently."""

    def __init__(self, near: float) -> None:
        self._near = near
        self._kept: list[frozenset[int]] = []
        self._kept_with: defaultdict[int, list[int]] = defaultdict(list)  # indices of kept sketches by hash

    def is_near(self, text: str) -> bool:
        """Return True if a text is near a kept one. Keep it if not."""
        new = sketch(text)
        shared = Counter(at for shingle in new for at in self._kept_with[shingle])
        least = self._near * min(len(new), _SKETCH_SIZE)  # with fewer in common, `near` cannot be reached
        if any(n >= least and jaccard(new, self._kept[at]) >= self._near for at, n in shared.items()):
            return True
        for shingle in new:
            self._kept_with[shingle].append(len(self._kept))
        self._kept.append(new)
        return False


def sketch(text: str) -> frozenset[int]:
    """Return the smallest hashes of a text's shingles, from which `jaccard` estimates similarity."""
    data = text.casefold().encode()
    starts = range(max(1, len(data) - _SHINGLE_BYTES + 1))
    return frozenset(heapq.nsmallest(_SKETCH_SIZE, {zlib.crc32(data[at : at + _SHINGLE_BYTES]) for at in starts}))


def jaccard(one: frozenset[int], other: frozenset[int]) -> float:
    """Estimate the Jaccard index from two sketches (Broder 1997, "On the resemblance … of documents")."""
    smallest = heapq.nsmallest(_SKETCH_SIZE, one | other)
    shared = one & other
    return sum(shingle in shared for shingle in smallest) / len(smallest)


@dataclass(frozen=True)
class Sample:
    """The drawn rows, and what is reported of them: numbers, reasons and places, never a text."""

    rows: tuple[Mapping[str, object], ...]
    summary: LogSummary
    reservoir: Reservoir
    redacted: Mapping[str, tuple[int, int]]  # by rule: replacements, and prompts with any


def draw_sample(
    logs: Sequence[Path],
    redactor: Redactor,
    *,
    size: int = 256,
    seed: int = 0,
    near: float | None = None,
    on_file: Callable[[str], None] = lambda line: None,
) -> Sample:
    """Read the logs once, redact each request and draw. `on_file` gets a line for each file. Raises UsageError."""
    summary, reservoir = LogSummary(), Reservoir(size, seed, near)
    for place, request in read_logs(logs, summary, on_file):
        redacted, replaced = redact_logged(place, request, redactor)
        if _has_invalid_form(json.dumps(redacted.fields, sort_keys=True)):
            reason = "requests an answer form that is invalid (`response_format`, `tools`)"
            summary.note(summary.left_out, reason, place)
        else:
            reservoir.add(Candidate(redacted, replaced))
    drawn = reservoir.draw()
    times: Counter[str] = Counter()
    prompts: Counter[str] = Counter()
    for candidate, _ in drawn:
        times += candidate.replaced
        prompts.update(candidate.replaced.keys())
    by_rule = {rule: (times[rule], prompts[rule]) for rule in redactor.rules}
    return Sample(tuple(candidate.request.row(label) for candidate, label in drawn), summary, reservoir, by_rule)


def redact_logged(place: str, request: LoggedRequest, redactor: Redactor) -> tuple[LoggedRequest, Counter[str]]:
    """Redact a request. Raises UsageError, with its place in the log, if a rule takes too long."""
    try:
        return redactor.redact(request)
    except TooSlowError as error:
        cause = "usually a repeated group inside a repetition is the cause"
        raise UsageError(f"{place}: the redaction rule {error} takes too long on this request; {cause}") from error


@lru_cache(maxsize=1024)  # much of the traffic has the same fields
def _has_invalid_form(fields: str) -> bool:
    return bool(form_problems(json.loads(fields)))


def write_sample(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write the rows atomically to a new file that only its owner can read. Raises UsageError."""
    refuse_existing(path)
    try:
        with atomic_file(path, mode=0o600) as file:
            file.writelines(f"{json.dumps(row, ensure_ascii=False)}\n".encode() for row in rows)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error


def refuse_existing(path: Path) -> None:
    """Raise UsageError if a file exists: an earlier sample is not overwritten."""
    if path.exists() or path.is_symlink():
        raise UsageError(f"{path} already exists; name another file")


def describe(sample: Sample) -> dict[str, object]:
    """Return the report as plain JSON values."""
    summary, reservoir = sample.summary, sample.reservoir
    distinct = reservoir.distinct
    drawn = Counter(str(row["stratum"]) for row in sample.rows)

    def reasons(found: Counter[str]) -> list[dict[str, object]]:
        return [{"reason": reason, "lines": n, "first": summary.places[reason]} for reason, n in found.most_common()]

    return {
        "rows": len(sample.rows),
        "size": reservoir.size,
        "seed": reservoir.seed,
        "lines": summary.lines,
        "requests": summary.requests,
        "distinct": distinct.total(),
        "duplicates": reservoir.duplicates,
        "near": reservoir.near,
        "near_duplicates": reservoir.near_duplicates,
        "other_lines": summary.other,
        "cut_at": summary.cut_at,
        "bad_lines": reasons(summary.bad),
        "left_out": reasons(summary.left_out),
        "strata": [{"stratum": name, "distinct": distinct[name], "drawn": drawn[name]} for name in sorted(distinct)],
        "redacted": [
            {"rule": rule, "replacements": times, "prompts": prompts}
            for rule, (times, prompts) in sample.redacted.items()
        ],
    }


WARN_FROM, BLOCK_FROM = 0.1, 0.25
"""The usual bounds of the index: a change worth attention, and traffic that the sample no longer represents.

Siddiqi 2006, "Credit Risk Scorecards"; Lewis 1994, "An Introduction to Credit Scoring".
"""

_BINS = 10
_BEGINNING = 64  # characters
_COMMON = 0.05  # share of the sample from which a beginning is a category of its own
_LETTERS = 400  # letters that decide the script


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
        route, _, length = (prompt.stratum or "").rpartition("/")
        # A stratum of `shadow sample` is a route and a range of lengths; any other is its author's own word.
        found.append(_traits(request, route if route and _LENGTHS.fullmatch(length) else prompt.endpoint))
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
    if edges[-1] == ranked[-1]:  # so that longer ones are not in the bin of the longest
        edges.append(ranked[-1] + 1)
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
