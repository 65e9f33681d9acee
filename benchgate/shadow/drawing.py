"""Which of many requests make the sample: stratified, without duplicates, the same whatever order they come in.

Every request has a rank that follows from the seed and from what it asks, as if by chance: of each stratum those with
the lowest ranks are drawn. So a request asked twice has one rank, the order of the files changes nothing, and only as
many requests as may be drawn are held.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from benchgate.shadow.asked import Asked
from benchgate.shadow.likeness import Likeness

OTHER = "other"
"""Where requests were asked at places of which each has less than a hundredth of them."""

_RARE = 0.01  # of the requests that differ
_USUAL_PLACES = ("chat", "completions", "responses")  # are kept apart however rare they are
_SPARE = 4
"""Times the size of the sample that are held of each stratum where what is much alike will be left out of it."""


@dataclass(frozen=True)
class Drawable:
    """A request that may be drawn, redacted, and how often each rule replaced something in it."""

    asked: Asked
    replaced: Counter[str]

    @cached_property
    def spelled(self) -> str:
        """Its row in one spelling: of requests that count as the same, the first by it stands for all."""
        return json.dumps(self.asked.row(self.asked.label), sort_keys=True, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Drawn:
    """What was drawn, and the label it counts under."""

    drawable: Drawable
    label: str

    @property
    def row(self) -> dict[str, object]:
        """Its row in the sample."""
        return self.drawable.asked.row(self.label)


_Stratum = tuple[str, str]  # label and class of length


@dataclass(slots=True)
class Pool:
    """Requests to draw `size` of. `near`: what is so much like one that is drawn is left out; None: nothing is."""

    size: int
    seed: int
    near: float | None = None
    duplicates: int = 0
    near_duplicates: int = 0
    _seen: Counter[_Stratum] = field(default_factory=Counter)  # requests that differ
    _known: set[tuple[bytes, str]] = field(default_factory=set)
    _held: dict[tuple[bytes, str], Drawable] = field(default_factory=dict)
    _ranks: dict[_Stratum, list[tuple[int, bytes]]] = field(default_factory=dict)  # heaps, the last rank on top

    def add(self, drawable: Drawable) -> None:
        """Take a request into account; one that was asked at this place before only counts as a duplicate."""
        digest, label = drawable.asked.digest, drawable.asked.label
        if (digest, label) in self._known:
            self.duplicates += 1
            held = self._held.get((digest, label))
            if held is not None and drawable.spelled < held.spelled:
                self._held[digest, label] = drawable
            return
        stratum = (label, drawable.asked.length_class)
        self._known.add((digest, label))
        self._seen[stratum] += 1
        self._held[digest, label] = drawable
        ranks = self._ranks.setdefault(stratum, [])
        entry = (-self._rank(digest), digest)
        if len(ranks) < self.size * (1 if self.near is None else _SPARE):
            heapq.heappush(ranks, entry)
        else:
            del self._held[heapq.heappushpop(ranks, entry)[1], label]

    @property
    def distinct(self) -> Counter[str]:
        """How many requests differ in each stratum, as rows name it; one at two places counts at each."""
        found: Counter[str] = Counter()
        for (label, length), n in self._seen.items():
            found[f"{self._labels[label]}/{length}"] += n
        return found

    def draw(self) -> list[Drawn]:
        """The sample, in an order that is of chance too, so that its first rows are a sample as well."""
        strata: defaultdict[str, list[tuple[int, str, bytes]]] = defaultdict(list)
        for (label, length), ranks in self._ranks.items():
            strata[f"{self._labels[label]}/{length}"] += [(-rank, label, digest) for rank, digest in ranks]
        drawn: dict[bytes, Drawn] = {}
        likeness = None if self.near is None else Likeness(self.near)
        for stratum, wanted in allocate(self.distinct, self.size).items():
            full = len(drawn) + wanted
            for _, label, digest in sorted(strata[stratum]):
                if len(drawn) == full:
                    break
                drawable = self._held[digest, label]
                if digest in drawn:  # at another place too
                    continue
                if likeness is not None and likeness.is_near(drawable.asked.normal):
                    self.near_duplicates += 1
                    continue
                drawn[digest] = Drawn(drawable, self._labels[label])
        return [drawn[digest] for digest in sorted(drawn, key=self._rank)]

    @property
    def _labels(self) -> dict[str, str]:
        """What the requests of each label count under."""
        sizes: Counter[str] = Counter()
        for (label, _), n in self._seen.items():
            sizes[label] += n
        rare = _RARE * sizes.total()
        return {label: label if n >= rare or label in _USUAL_PLACES else OTHER for label, n in sizes.items()}

    def _rank(self, digest: bytes) -> int:
        return int.from_bytes(hashlib.sha256(b"%d:%b" % (self.seed, digest)).digest()[:12])


def allocate(sizes: Mapping[str, int], total: int) -> dict[str, int]:
    """How many to draw of each stratum: in proportion to its size, and at least one of each where there are enough.

    With more strata than are to be drawn, the largest ones get one each. Never more of a stratum than it has.
    """
    all_of_them = sum(sizes.values())
    if all_of_them <= total:
        return dict(sorted(sizes.items()))
    names = sorted(sizes, key=lambda name: (-sizes[name], name))[:total]
    fair = {name: total * sizes[name] / all_of_them for name in names}
    given = {name: min(sizes[name], max(1, int(fair[name]))) for name in names}
    while sum(given.values()) > total:
        given[_furthest({name: given[name] - fair[name] for name in names if given[name] > 1})] -= 1
    while sum(given.values()) < total:
        given[_furthest({name: fair[name] - given[name] for name in names if given[name] < sizes[name]})] += 1
    return dict(sorted(given.items()))


def _furthest(distances: Mapping[str, float]) -> str:
    return max(sorted(distances), key=lambda name: distances[name])
