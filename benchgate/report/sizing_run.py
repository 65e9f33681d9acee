"""What a stored run showed of one replica, in lines beside the fleet that is made of it, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from benchgate.cost.sizing import Cache, Question
from benchgate.gate.best_row import BestRow
from benchgate.gate.cache_use import CacheCheck, CacheUse, cache_check
from benchgate.gate.cold_starts import ColdStarts
from benchgate.gate.scaling_signal import KV_USAGE, Signal
from benchgate.report.untrusted import one_line
from benchgate.units import show_duration, show_number, show_percent

_LESS = (
    "prefixes that requests share, requests that waited and held nothing, narrower numbers (--cache-dtype), or more"
    " memory than --cache-memory says"
)
_MORE = (
    "larger pages, room kept for whole answers or for past prompts, requests that failed, wider numbers"
    " (--cache-dtype), or less memory than --cache-memory says: fewer may fit than is said here"
)


@dataclass(frozen=True, slots=True)
class RunSeen:
    """The level that a replica's rate was read from, and what else the run tells of its arm.

    `outcome` is its own verdict, "" without one; `cache_use` says why where it is not known; `taken` names the numbers
    of the question that nobody said and the run gave.
    """

    row: BestRow
    outcome: str = ""
    signals: Sequence[Signal] = ()
    starts: ColdStarts | None = None
    cache_use: CacheUse | str = "nothing was recorded"
    taken: Sequence[str] = ()

    def cache_checked(self, cache: Cache | None) -> CacheCheck | str | None:
        """What a cache is said to hold against what the run saw of it; why not; None where no cache is asked of."""
        if cache is None:
            return None
        return self.cache_use if isinstance(self.cache_use, str) else cache_check(self.cache_use, cache)


def run_document(seen: RunSeen | None, question: Question) -> dict[str, object]:
    """All of it; null where it is not known or there was no run."""
    checked = None if seen is None else seen.cache_checked(question.cache)
    starts = None if seen is None else seen.starts
    return {
        "measured": None if seen is None else asdict(seen.row),
        "signals": [] if seen is None else [{**asdict(one), "tells": one.tells} for one in seen.signals],
        "starts": None if starts is None else asdict(starts),
        "from_run": [] if seen is None else sorted(seen.taken),
        "cache_check": _checked_document(checked) if isinstance(checked, CacheCheck) else None,
        "cache_not_checked": checked if isinstance(checked, str) else None,
    }


def _checked_document(checked: CacheCheck) -> dict[str, object]:
    return {**asdict(checked.use), "predicted_ratio": checked.predicted_ratio, "differs": checked.differs}


def level_lines(seen: RunSeen) -> Iterator[str]:
    """Which level it is, and how far it may be counted on."""
    row = seen.row
    shown, target = show_percent(row.goodput_lower), show_percent(row.target_ratio)
    yield (
        f"That is stage {one_line(row.stage)}, the fastest whose goodput is shown to reach its target"
        f" ({shown} at least, target {target})."
    )
    if row.is_highest:
        yield "No level was measured on which more came through: it carries at least this, and may carry more."
    if seen.outcome not in ("", "PASS"):
        yield f"The run's own verdict is {one_line(seen.outcome)}: read why before the fleet is bought."


def overhead_lines(seen: RunSeen, question: Question) -> Iterator[str]:
    """Where the overhead is from; that none is counted is said too."""
    if question.replica.usd_per_hour is None:
        return
    if question.overhead_ratio is None:
        yield "No overhead is counted: neither --overhead nor the run's `price_terms` say any."
    elif "overhead_ratio" in seen.taken:
        yield f"The overhead of {show_percent(question.overhead_ratio)} is that of the run's `price_terms`."


def start_lines(seen: RunSeen, question: Question) -> Iterator[str]:
    """How long the run's own starts took, and what of it is planned with."""
    starts, planned_s = seen.starts, question.cold_start_s
    if starts is None or planned_s is None:
        return
    took = f"{show_duration(starts.median_s)} (median) and {show_duration(starts.worst_s)} (worst)"
    yield f"Starts of its server in the run: {starts.count:,}, which took {took} from its process to its first answer."
    if "cold_start_s" in seen.taken:
        yield "The worst is planned with; a machine, an image and weights that must be fetched first come on top."
    elif planned_s < starts.worst_s:
        yield f"--cold-start says {show_duration(planned_s)}, less than the worst of them."


def signal_lines(seen: RunSeen) -> Iterator[str]:
    """What to scale by, and what was seen of it."""
    if not seen.signals:
        return
    yield ""
    first = seen.signals[0]
    if first.tells:
        yield f"Scale up by {first.name} of a replica, above {_amount(first, first.holds)}. Seen in the run:"
    else:
        yield "Nothing that the server told was much more where its SLO no longer held. Seen in the run:"
    for one in seen.signals:
        beyond = (
            "" if one.misses is None else f", {_amount(one, one.misses)} at {one_line(one.beyond or '')}, which did not"
        )
        yield f"  {one.name}: {_amount(one, one.holds)} at {one_line(one.stage)}, which held{beyond}"


def _amount(signal: Signal, value: float) -> str:
    return show_percent(value) if signal.name == KV_USAGE else show_number(value)


def cache_lines(seen: RunSeen, cache: Cache | None) -> Iterator[str]:
    """How full the cache should have been at that level, and how full it was told to be."""
    checked = seen.cache_checked(cache)
    if checked is None:
        return
    if isinstance(checked, str):
        yield f"This is not held against the run: {one_line(checked)}."
        return
    use, predicted = checked.use, show_percent(checked.predicted_ratio)
    yield (
        f"At {one_line(use.stage)} {show_number(use.in_flight)} requests of {show_number(use.request_tokens)} tokens"
        f" were inside on the mean: {predicted} of the cache by this, {show_percent(use.measured_ratio)} by its server."
    )
    if checked.differs:
        why = _LESS if use.measured_ratio < checked.predicted_ratio else _MORE
        yield f"These are more than 1.5 times apart. It may be {why}."
