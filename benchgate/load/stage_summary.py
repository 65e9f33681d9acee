"""Results of a stage's shards merged one after another: record by record up to a limit, in summaries beyond it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from benchgate.gate.evidence.client_saturation import saturation_reasons
from benchgate.load.results import ClassResult, ShareWindow, StageResult, merged, merged_use, merged_window_s
from benchgate.model.metric import Slo
from benchgate.model.request import EXACT_RECORDS
from benchgate.model.request_metrics import miscounted
from benchgate.model.request_summary import RequestSummary
from benchgate.model.run import ClientUse

_MOST_SHOWN = 5


@dataclass(slots=True, eq=False)
class ClassSummary:
    """A class of traffic in which there are too many records to hold. `left` counts those broken off on purpose."""

    name: str  # "" when the stage has no other
    requests: RequestSummary
    ramp: RequestSummary
    left: int = 0
    windows: list[ShareWindow] = field(default_factory=list)

    @property
    def window_s(self) -> float:
        """Return the window of all shares (`merged_window_s`)."""
        return merged_window_s(self.windows)

    def add(self, share: ClassResult) -> None:
        """Add a share of the class."""
        self.requests.add(share.requests)
        self.ramp.add(share.ramp)
        self.left += len(share.left)
        if len(share.requests):
            self.windows.append(ShareWindow.of(share))


@dataclass(frozen=True, slots=True, eq=False)
class StageSummary:
    """A stage with too many records to hold, class by class. `down_after_s` is that of `StageResult`.

    `saturation` and `miscounts` are what was found in single shares, with the number of shares (`saturation_reasons`,
    `miscounted`). `saturation` begins with the faults of the client.
    """

    classes: tuple[ClassSummary, ...]
    client: ClientUse
    down_after_s: float | None = None
    saturation: tuple[str, ...] = ()
    miscounts: tuple[str, ...] = ()

    @property
    def only(self) -> ClassSummary:
        """Return the single class of a stage. Raises ValueError for a stage of several."""
        if len(self.classes) != 1:
            raise ValueError(f"the stage has {len(self.classes)} classes of traffic, not one")
        return self.classes[0]


@dataclass(frozen=True, slots=True)
class Offered:
    """Load that a stage was to send, by which its shares are judged one by one."""

    slo: Slo = field(default_factory=Slo)
    rate_rps: float | None = None  # of an open loop, by all shares together
    output_tokens: int | None = None  # limit of every request
    seed: int = 0
    shares: int = 1

    @property
    def share_rps(self) -> float | None:
        """Return the rate of an open loop that one share was to send at."""
        return None if self.rate_rps is None else self.rate_rps / self.shares


@dataclass(frozen=True, slots=True, eq=False)
class MergedShares:
    """A stage merged from its shares, and the part of each region."""

    whole: StageResult | StageSummary
    regions: Mapping[str, RegionPart]


@dataclass(frozen=True, slots=True, eq=False)
class RegionPart:
    """Part of a stage that was sent from a region, by some of its `shares`."""

    result: StageResult | StageSummary
    shares: int


def merge_shares(
    shares: Iterable[StageResult], records: int, offered: Offered, *, exact: int = EXACT_RECORDS
) -> MergedShares:
    """Merge the shares of a stage, which have so many `records` together; the order of the shares does not matter.

    Up to `exact` records the results hold every one. Beyond that, each share is summarised and let go: memory holds
    those that `shares` has read ahead.
    """
    if records <= exact:
        held = list(shares)
        each = {name: [one for one in held if one.region == name] for one in held if (name := one.region) is not None}
        return MergedShares(merged(held), {name: RegionPart(merged(own), len(own)) for name, own in each.items()})
    total, parts = _Summing(offered), dict[str, _Summing]()
    for share in shares:
        total.add(share)
        if share.region is not None:
            parts.setdefault(share.region, _Summing(offered)).add(share)
    return MergedShares(total.summary(), {name: RegionPart(one.summary(), one.shares) for name, one in parts.items()})


def summarise(shares: Iterable[StageResult], offered: Offered) -> StageSummary:
    """Summarise the shares of a stage one after another."""
    summing = _Summing(offered)
    for share in shares:
        summing.add(share)
    return summing.summary()


class _Summing:
    """Summary of shares that are added one after another."""

    def __init__(self, offered: Offered) -> None:
        self._offered = offered
        self._classes: dict[str, ClassSummary] = {}
        self._uses: list[ClientUse] = []
        self._down_after_s: list[float] = []
        self._saturation, self._miscounts = Counter[str](), Counter[str]()

    @property
    def shares(self) -> int:
        """Return how many were added."""
        return len(self._uses)

    def add(self, share: StageResult) -> None:
        offered, reasons = self._offered, dict[str, None]()
        self._uses.append(share.client)
        self._down_after_s += [] if share.down_after_s is None else [share.down_after_s]
        for part in share.classes:
            if part.name not in self._classes:
                measured, ramp = (RequestSummary(offered.slo, offered.seed) for _ in range(2))
                self._classes[part.name] = ClassSummary(part.name, measured, ramp)
            self._classes[part.name].add(part)
            reasons |= dict.fromkeys(saturation_reasons(share.client, part.requests, offered.share_rps))
            doubt = miscounted(part.requests, offered.output_tokens)
            self._miscounts.update([] if doubt is None else [doubt])
        self._saturation.update(reason for reason in reasons if reason not in share.client.faults)

    def summary(self) -> StageSummary:
        client, shares = merged_use(self._uses), self.shares
        reasons = (*client.faults, *_commonest(self._saturation, shares))
        down = min(self._down_after_s, default=None)
        return StageSummary(tuple(self._classes.values()), client, down, reasons, _commonest(self._miscounts, shares))


def _commonest(found: Counter[str], shares: int) -> tuple[str, ...]:
    return tuple(f"{reason}, in {count} of {shares} shards" for reason, count in found.most_common(_MOST_SHOWN))
