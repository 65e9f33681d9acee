"""Results of a stage's shards merged one after another: record by record up to a limit, in summaries beyond it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from benchgate.gate.evidence.client_strain import saturation_reasons
from benchgate.gate.evidence.tokens import miscounted
from benchgate.load.results import ClassResult, ShareWindow, StageResult, merged, merged_use, merged_window_s
from benchgate.model.request_metrics import Slo
from benchgate.model.request_summary import EXACT_RECORDS, RequestSummary
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
    `miscounted`).
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
    rate_rps: float | None = None  # of an open loop
    output_tokens: int | None = None  # limit of every request
    seed: int = 0


def merge_shares(
    shares: Iterable[StageResult], records: int, offered: Offered, *, exact: int = EXACT_RECORDS
) -> StageResult | StageSummary:
    """Merge the shares of a stage, which have so many `records` together; the order of the shares does not matter.

    Up to `exact` records the result holds every one. Beyond that, each share is summarised and let go before the next
    one is read: memory holds one share.
    """
    return merged(list(shares)) if records <= exact else summarise(shares, offered)


def summarise(shares: Iterable[StageResult], offered: Offered) -> StageSummary:
    """Summarise the shares of a stage one after another."""
    classes: dict[str, ClassSummary] = {}
    uses: list[ClientUse] = []
    down_after_s: list[float] = []
    saturation, miscounts = Counter[str](), Counter[str]()
    for share in shares:
        uses.append(share.client)
        down_after_s += [] if share.down_after_s is None else [share.down_after_s]
        for part in share.classes:
            if part.name not in classes:
                measured, ramp = (RequestSummary(offered.slo, offered.seed) for _ in range(2))
                classes[part.name] = ClassSummary(part.name, measured, ramp)
            classes[part.name].add(part)
            use = replace(share.client, faults=())
            saturation.update(saturation_reasons(use, part.requests, offered.rate_rps))
            doubt = miscounted(part.requests, offered.output_tokens)
            miscounts.update([] if doubt is None else [doubt])
    client = merged_use(uses)
    reasons = (*client.faults, *_commonest(saturation, len(uses)))
    down = min(down_after_s, default=None)
    return StageSummary(tuple(classes.values()), client, down, reasons, _commonest(miscounts, len(uses)))


def _commonest(found: Counter[str], shares: int) -> tuple[str, ...]:
    return tuple(f"{reason}, in {count} of {shares} shards" for reason, count in found.most_common(_MOST_SHOWN))
