"""Results of a stage's shards merged one after another: record by record up to a limit, in summaries beyond it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from benchgate.load.results import ClassResult, ShareWindow, StageResult, merged, merged_use, merged_window_s
from benchgate.model.request_metrics import Slo
from benchgate.model.request_summary import EXACT_RECORDS, RequestSummary
from benchgate.model.run import ClientUse


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
    """A stage with too many records to hold, class by class. `down_after_s` is that of `StageResult`."""

    classes: tuple[ClassSummary, ...]
    client: ClientUse
    down_after_s: float | None = None

    @property
    def only(self) -> ClassSummary:
        """Return the single class of a stage. Raises ValueError for a stage of several."""
        if len(self.classes) != 1:
            raise ValueError(f"the stage has {len(self.classes)} classes of traffic, not one")
        return self.classes[0]


def merge_shares(
    shares: Iterable[StageResult], records: int, *, slo: Slo | None = None, seed: int = 0, exact: int = EXACT_RECORDS
) -> StageResult | StageSummary:
    """Merge the shares of a stage, which have so many `records` together; the order of the shares does not matter.

    Up to `exact` records the result holds every one. Beyond that, each share is summarised and let go before the next
    one is read: memory holds one share. `slo` is that of a good request, and `seed` that of the sample.
    """
    if records <= exact:
        return merged(list(shares))
    classes: dict[str, ClassSummary] = {}
    uses: list[ClientUse] = []
    down_after_s: float | None = None
    for share in shares:
        uses.append(share.client)
        if share.down_after_s is not None:
            down_after_s = share.down_after_s if down_after_s is None else min(down_after_s, share.down_after_s)
        for part in share.classes:
            if part.name not in classes:
                bounds = slo or Slo()
                classes[part.name] = ClassSummary(part.name, RequestSummary(bounds, seed), RequestSummary(bounds, seed))
            classes[part.name].add(part)
    return StageSummary(tuple(classes.values()), merged_use(uses), down_after_s)
