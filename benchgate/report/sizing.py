"""A fleet for a demand, and what a stored run showed of one replica, as plain lines and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import MappingProxyType

from benchgate.escape import one_line
from benchgate.report import display
from benchgate.report.screen import PLAIN, Screen, fitting_table
from benchgate.sizing.fleet import FleetSizing, KvCache, SizedLevel, SizingInput
from benchgate.sizing.operating_point import OperatingPoint, QueueTrend
from benchgate.sizing.signals import KV_USAGE, CacheCheck, CacheUse, ColdStarts, ScalingSignal, cache_check
from benchgate.sizing.simulation import SimulatedHours
from benchgate.stats.capacity_search import MIN_RESIDENCE_TIMES
from benchgate.units import as_written, beside, show_duration, show_memory, show_number, show_percent

_NO_TELEMETRY = "no two blocks of that level have the server's queue or cache usage (docs/guides/servers.md)"
_LESS = (
    "shared prefixes, requests that waited and held nothing, narrower numbers (`cache.dtype`), or more memory than"
    " `cache.memory`"
)
_MORE = (
    "larger pages, room kept for whole responses or for past prompts, failed requests, wider numbers (`cache.dtype`),"
    " or less memory than `cache.memory`: fewer requests may fit than predicted"
)


@dataclass(frozen=True, slots=True)
class NamedRun:
    """A run and one of its deployments; `outcome` is the verdict on its candidate."""

    id: str
    label: str | None
    suite: str
    day: str
    deployment: str
    arm: str
    outcome: str


@dataclass(frozen=True, slots=True)
class RunSeen:
    """The level that a replica's rate was read from, and what else the run tells of its arm.

    `cache_use` says why where it is not known; `taken` names the figures that the demand file leaves out and the run
    gave, `overridden` has those that it states beside the run's own. `from_records`: the figures were made of the raw
    records, and `unlike` is how many of those that the store keeps are not what they make. `care` are sentences without
    ends on how well the load was measured, and `unpaid` is one on accelerators that the run's price is not of, None
    where none are or the price is not the run's. `searched` is one on what its `load.capacity` found,
    which is not sized by. `watched` is how long the level was, where it has a steady rate. `deployment_replicas` is how
    many replicas the deployment has, if several: then the replica that is sized with is the whole deployment.
    """

    choice: OperatingPoint
    run: NamedRun | None = None
    signals: Sequence[ScalingSignal] = ()
    starts: ColdStarts | None = None
    cache_use: CacheUse | str = "nothing was recorded"
    accelerators: int = 1
    taken: Sequence[str] = ()
    overridden: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    from_records: bool = True
    unlike: int = 0
    care: Sequence[str] = ()
    unpaid: str | None = None
    searched: str | None = None
    watched: QueueTrend | None = None
    deployment_replicas: int | None = None

    def cache_checked(self, cache: KvCache | None) -> CacheCheck | str | None:
        """Compare the predicted cache with the measured one; a reason where that is unknown, None without a cache."""
        if cache is None:
            return None
        return self.cache_use if isinstance(self.cache_use, str) else cache_check(self.cache_use, cache)


def run_document(seen: RunSeen | None, question: SizingInput) -> dict[str, object]:
    """Return what a run showed as plain JSON; unknown values are null."""
    if seen is None:
        return dict.fromkeys(_KEYS) | {name: [] for name in ("signals", "from_run", "left_out", "care")}
    checked, choice = seen.cache_checked(question.cache), seen.choice
    row = choice.row
    of_row = {"holds": row.holds, "missed_at": choice.missed_at, "by_name": choice.by_name}
    watched = None if seen.watched is None else {**asdict(seen.watched), "is_brief": seen.watched.is_brief}
    return {
        "run": None if seen.run is None else asdict(seen.run),
        "figures": {"from": "records" if seen.from_records else "stored figures", "stored_unlike": seen.unlike},
        "measured": {**asdict(row), **of_row},
        "left_out": [asdict(one) for one in choice.left_out],
        "care": list(seen.care),
        "unpaid": seen.unpaid,
        "searched": seen.searched,
        "watched": watched,
        "deployment_replicas": seen.deployment_replicas,
        "signals": [{**asdict(one), "tells": one.tells, "threshold": one.threshold} for one in seen.signals],
        "starts": None if seen.starts is None else asdict(seen.starts),
        "from_run": sorted(seen.taken),
        "overridden": {name: {"stated": given, "measured": ours} for name, (given, ours) in seen.overridden.items()},
        "cache_check": {**asdict(checked.use), "predicted_ratio": checked.predicted_ratio, "differs": checked.differs}
        if isinstance(checked, CacheCheck)
        else None,
        "cache_not_checked": checked if isinstance(checked, str) else None,
    }


_KEYS = (
    "run", "figures", "measured", "unpaid", "searched", "watched", "starts", "overridden", "cache_check",
    "cache_not_checked", "deployment_replicas",
)  # fmt: skip


def run_lines(seen: RunSeen) -> Iterator[str]:
    """Yield the run's identity and outcome, and the source of its figures."""
    run = seen.run
    if run is not None:
        name = run.id if run.label is None else f"{run.id} ({one_line(run.label)})"
        whose = "Its verdict" if run.arm == "candidate" else "The verdict on its candidate"
        yield (
            f"Run {name} of suite {one_line(run.suite)}, {run.day}: {run.arm} {one_line(run.deployment)}."
            f" {whose} is {one_line(run.outcome)}."
        )
        if run.outcome != "PASS":
            yield (
                f"That is not PASS: read why (`benchgate report {run.id}`), and size by a run that passes before buying"
                " the fleet."
            )
    if not seen.from_records:
        yield (
            "Its raw records were removed: these are the stored figures, unverified. The request time and whether"
            " requests piled up at its levels are unknown."
        )
    if seen.unlike:
        yield (
            f"{seen.unlike:,} of its stored figures differ from its raw records, and were not used: `benchgate store"
            " check --figures` lists them."
        )
    for line in seen.care:
        yield f"{line[0].upper()}{line[1:]}."


def level_lines(seen: RunSeen) -> Iterator[str]:
    """Yield the level that the fleet is sized by, its reservations, and the values given instead of measured ones."""
    choice, row = seen.choice, seen.choice.row
    shown, target = (
        beside(show_percent, row.goodput_lower, row.target_ratio),
        as_written(show_percent, row.target_ratio),
    )
    which = "selected by --stage," if choice.by_name else "the fastest open loop" if row.is_open else "the fastest"
    yield (
        f"That is stage {one_line(row.stage)}, {which} whose goodput is shown to reach its target"
        f" ({shown} at least, target {target})."
    )
    if not row.is_open:
        yield (
            "It is a closed loop: a caller waits for its response, so this is throughput and not an arrival rate."
            " Independent requests queue sooner: measure a stage with `rate`."
        )
    watched = seen.watched
    if watched is not None and watched.is_brief:
        window, request = show_duration(watched.window_s), show_duration(watched.stay_s)
        yield (
            f"Its blocks lasted {window} each, less than {MIN_RESIDENCE_TIMES} times the request time of {request}: too"
            " short to show that no queue grows at this rate. Measure it longer before you buy a fleet."
        )
    yield from _beyond_lines(seen)
    for left in choice.left_out:
        yield f"Not by {one_line(left.stage)}: {left.why}."
    stated = []
    for name, (given, measured) in seen.overridden.items():
        key, show = _KEYS_OF[name]
        stated.append(f"`{key}` {show(given)} (the run: {show(measured)})")
    if stated:
        yield f"Stated, not measured: {', '.join(stated)}."


def _beyond_lines(seen: RunSeen) -> Iterator[str]:
    """Yield how much more a replica may carry."""
    choice = seen.choice
    if choice.missed_at is not None:
        yield f"The capacity lies between this and {one_line(choice.missed_at)}, which is shown to miss its SLO."
    elif choice.row.is_open:
        yield (
            "The next open level is not shown to miss its SLO, so this is the offered rate and not a limit: a replica"
            " may serve much more, and the fleet may need fewer. Measure higher rates, until one misses."
        )
    else:
        yield "The next level is not shown to miss its SLO: with more callers the throughput may be higher."
    if seen.searched is not None:
        yield f"{seen.searched[0].upper()}{seen.searched[1:]}."


_KEYS_OF: Mapping[str, tuple[str, Callable[[float], str]]] = MappingProxyType(
    {
        "usd_per_hour": ("price", "${:,.2f}/h".format),
        "overhead_ratio": ("overhead", show_percent),
        "residence_s": ("request_time", show_duration),
        "tokens_per_request": ("output_tokens", show_number),
        "cold_start_s": ("cold_start", show_duration),
        "slots": ("slots", "{:,.0f}".format),
    }
)


def overhead_lines(seen: RunSeen, question: SizingInput) -> Iterator[str]:
    """Yield the source of the overhead, if any."""
    if question.replica.usd_per_hour is None:
        return
    if question.overhead_ratio is None:
        yield "No overhead is counted: neither `replica.overhead` nor the run's `price_terms` state one."
    elif "overhead_ratio" in seen.taken:
        yield f"The overhead of {show_percent(question.overhead_ratio)} is that of the run's `price_terms`."


def start_lines(seen: RunSeen, question: SizingInput) -> Iterator[str]:
    """Yield how long the run's starts took and which time is planned with."""
    starts, planned_s = seen.starts, question.cold_start_s
    if starts is None or planned_s is None:
        return
    took = f"{show_duration(starts.median_s)} (median) and {show_duration(starts.worst_s)} (worst)"
    yield f"Starts of its server in the run: {starts.count:,}, which took {took} from its process to its first answer."
    if "cold_start_s" in seen.taken:
        yield "The worst is planned with; a machine, an image and weights that must be fetched first come on top."
    elif planned_s < starts.worst_s:
        yield f"`replica.cold_start` is {show_duration(planned_s)}, less than the worst of them."


def signal_lines(seen: RunSeen) -> Iterator[str]:
    """Yield the autoscaling signal with its values in the run, or how to find one."""
    yield ""
    if not seen.signals:
        yield f"No autoscaling signal: {_NO_TELEMETRY if seen.from_records else 'the raw records were removed'}."
        return
    first = seen.signals[0]
    if first.threshold is not None:
        whose, several = "a replica", seen.deployment_replicas
        if several is not None:
            # of several replicas the usage is the fullest cache's; everything else is added up
            whose = f"{'the fullest of its' if first.name == KV_USAGE else 'all'} {several:,} replicas"
        yield f"Scale up by {first.name} of {whose}, above {_amount(first, first.threshold)}. Seen in the run:"
    else:
        yield f"No autoscaling signal found: {_no_signal(seen.signals)} Seen in the run:"
    for one in seen.signals:
        holds, beyond = one.holds, one.beyond
        missed = ""
        if beyond is not None:
            how = "which did not" if one.beyond_misses else "which was not shown to hold"
            missed = f", {_amount(one, beyond.mean)} at {one_line(beyond.stage)}, {how}"
        yield f"  {one.name}: {_amount(one, holds.mean)} at {one_line(holds.stage)}, which held{missed}"


def _no_signal(signals: Sequence[ScalingSignal]) -> str:
    known = next((one for one in signals if one.beyond is not None), None)
    if known is None or known.beyond is None:
        stage = one_line(signals[0].holds.stage)
        return f"no level beyond {stage} is known to miss its SLO. Measure one at which requests queue."
    return (
        f"at {one_line(known.beyond.stage)}, which {'misses' if known.beyond_misses else 'is not shown to hold'} the"
        " SLO, no metric rose clearly (1.5 times in every block, and one"
        " waiting request or half of the cache). Measure a higher level at which requests queue."
    )


def _amount(signal: ScalingSignal, value: float) -> str:
    return show_percent(value) if signal.name == KV_USAGE else show_number(value)


def cache_lines(seen: RunSeen, cache: KvCache | None) -> Iterator[str]:
    """Compare the predicted cache usage with the measured one."""
    checked = seen.cache_checked(cache)
    if cache is None or checked is None:
        return
    if seen.accelerators != cache.accelerators:
        yield (
            f"The run's deployment has {seen.accelerators:,} accelerators, and the cache is counted for"
            f" {cache.accelerators:,} that share every layer (`cache.tensor_parallel`)."
        )
    if isinstance(checked, str):
        yield f"This was not compared with the run: {one_line(checked)}."
        return
    use, predicted, measured = (
        checked.use,
        show_percent(checked.predicted_ratio),
        show_percent(checked.use.measured_ratio),
    )
    yield (
        f"At {one_line(use.stage)} {show_number(use.in_flight)} requests of {show_number(use.request_tokens)} tokens"
        f" were in the system on average: {predicted} of the cache by this, {measured} by its server."
    )
    if checked.differs:
        why = _LESS if use.measured_ratio < checked.predicted_ratio else _MORE
        yield f"These are more than 1.5 times apart. It may be {why}."


SCHEMA = "benchgate.capacity/1"
_TITLES = (
    *("demand", "per second", "replicas", "with factor", "with spares", "by lower bound", "load"),
    *("in flight", "$/h", "$/month", "$/1M tok"),
)
_HALF_A_CENT, _MOST_WRITTEN_OUT = 0.005, 1e12
_FASTER = 1.1  # beyond this ratio the simulated slots serve notably more than was stated or measured


def sizing_document(
    found: FleetSizing, seen: RunSeen | None = None, simulated: SimulatedHours | None = None
) -> dict[str, object]:
    """Return the fleet as plain JSON: rates per second, dollars, ratios; null is unknown.

    `seen` is what a stored run showed of a replica, `simulated` the simulation of its hours.
    """
    document: dict[str, object] = {"schema": SCHEMA, **asdict(found), **run_document(seen, found.question)}
    for name in ("usd_per_million_tokens", "usd_per_million_tokens_upper"):
        document[f"loaded_{name}"] = document[f"full_{name}"]
        if not _is_full(seen):
            document[f"full_{name}"] = None
    document["simulated"] = None if simulated is None else asdict(simulated)
    cache = found.question.cache
    if cache is not None:
        names = ("bytes_per_token", "bytes_per_request", "requests_that_fit", "accelerators", "times_kept")
        document["cache"] = {name: getattr(cache, name) for name in names}
    return document


def sizing_text(
    found: FleetSizing,
    seen: RunSeen | None = None,
    simulated: SimulatedHours | None = None,
    screen: Screen = PLAIN,
) -> str:
    """Render a replica's rate, the fleet at every level of the demand, and its consequences."""
    question = found.question
    lines = [] if seen is None else [*run_lines(seen)]
    lines += _replica(found, "Fully used" if _is_full(seen) else "Always at this load")
    if seen is not None:
        if (several := seen.deployment_replicas) is not None:
            lines.append(
                f"This replica is the whole deployment of the run, with {several:,} replicas: counts, spares, dollars"
                f" and thresholds are of groups of {several:,}. To size by single replicas, measure one."
            )
        if question.replica.lower_per_s is None:
            lines.append("Its lower bound is unknown: its blocks differ too much, or not at all.")
        if seen.unpaid is not None:
            lines.append(
                f"{one_line(seen.unpaid[0].upper() + seen.unpaid[1:])}: the dollars may be wrong. State `accelerators`"
                " and their price in its suite and measure again, or set `replica.price` to the price of all of them."
            )
        lines += [*level_lines(seen), *overhead_lines(seen, question), *start_lines(seen, question)]
    rows = [*map(_cells, found.levels)]
    table = fitting_table(screen, _TITLES, rows, right=range(1, len(_TITLES)))
    after = [*_notes(found)]
    if seen is not None:
        after += [*cache_lines(seen, question.cache), *signal_lines(seen)]
    after += _simulated(simulated, question.replica.per_s)
    return "".join(f"{line}\n" for line in (*screen.folded(lines), "", *table, "", *screen.folded(after)))


def _is_full(seen: RunSeen | None) -> bool:
    """Return True if the measured level keeps a replica full: an offered rate need not."""
    return seen is None or not seen.choice.row.is_open


def _replica(found: FleetSizing, loaded: str) -> Iterator[str]:
    question = found.question
    replica, unit, overhead = question.replica, question.unit, question.overhead_ratio or 0.0
    lower = "" if replica.lower_per_s is None else f" (lower 95 % bound {show_number(replica.lower_per_s)})"
    paid = ""
    if replica.usd_per_hour is not None:
        beside = f" and {show_percent(overhead)} overhead" if overhead else ""
        paid = f", at ${_dollars(replica.usd_per_hour / (1 + overhead))}/h{beside}"
    yield f"One replica serves {show_number(replica.per_s)} {unit}/s{lower}{paid}."
    if found.full_usd_per_million_tokens is not None:
        upper = found.full_usd_per_million_tokens_upper
        most = "" if upper is None else f" (up to {_usd(upper)} by that bound)"
        yield f"{loaded}, 1M output tokens cost {_usd(found.full_usd_per_million_tokens)}{most}."


def _cells(level: SizedLevel) -> tuple[str, ...]:
    sized = level.sized
    dollars = [
        "-" if value is None else _dollars(value)
        for value in (sized.usd_per_hour, sized.usd_per_month, level.usd_per_million_tokens)
    ]
    counts = [f"{count:,}" for count in (sized.bare, sized.replicas, sized.with_spares)]
    by_lower = "-" if sized.by_lower is None else f"{sized.by_lower:,}"
    inside = "-" if level.in_flight is None else show_number(level.in_flight)
    load = show_percent(sized.load_ratio)
    return level.name, show_number(sized.demand_per_s), *counts, by_lower, load, inside, *dollars


def _notes(found: FleetSizing) -> Iterator[str]:
    question = found.question
    spares = f"{question.spares} spare replica{'s' if question.spares != 1 else ''}"
    factor = show_number(question.safety_factor)
    yield f"With factor: {factor} times the demand. With spares: plus {spares}; this fleet is paid for."
    by_lower = [
        f"{_usd(level.sized.by_lower_usd_per_month)} for the {level.name}"
        for level in found.levels
        if level.sized.by_lower_usd_per_month is not None
    ]
    if by_lower:
        yield f"By the lower bound a month would cost {', '.join(by_lower)}."
    if any(level.usd_per_million_tokens is not None for level in found.levels):
        yield "$/1M tok: cost of that fleet in a month over the tokens of a month at the mean demand."
    elif question.replica.usd_per_hour is None:
        yield "No dollars: the price of a replica is unknown; set `replica.price`."
    elif question.tokens_per_request is None:
        yield "$/1M tok needs the output tokens of a request; set `replica.output_tokens`."
    if found.ahead is not None and question.cold_start_s is not None:
        starts = show_duration(question.cold_start_s)
        yield f"A replica takes {starts} to start: stay {found.ahead:,} ahead of the demand where it rises steepest."
    elif question.cold_start_s is None and (question.demand.growth_per_s2 or 0.0) > 0:
        yield (
            "How many replicas to start ahead of rising demand is unknown: set `replica.cold_start`, or use a run that"
            " timed starts."
        )
    if question.residence_s is not None and all(level.in_flight is None for level in found.levels):
        yield "The requests in flight need the output tokens of a request; set `replica.output_tokens`."
    if question.cache is not None:
        yield from _cache(question.cache, found.levels)


def _cache(cache: KvCache, levels: Sequence[SizedLevel]) -> Iterator[str]:
    inside = max((level.in_flight or 0.0) / max(1, level.sized.replicas) for level in levels)
    token, request = show_memory(cache.bytes_per_token), show_memory(cache.bytes_per_request)
    yield (
        f"In the cache a token takes {token} and a request of {cache.request_tokens:,} tokens {request}:"
        f" {cache.requests_that_fit:,} of them fit into {show_memory(cache.memory_bytes)}."
    )
    if cache.layout.state_layers:
        yield (
            f"{cache.layout.state_layers:,} of its layers keep a state of each request, which does not grow and is not"
            " counted here: fewer may fit."
        )
    if not cache.requests_that_fit:
        yield "A replica cannot serve one: give the cache more memory, or expect shorter requests."
    if cache.accelerators > 1:
        each, times = show_memory(cache.bytes_per_request / cache.accelerators), round(cache.times_kept)
        copies = "" if times == 1 else f"; everything is kept {times:,} times"
        yield f"That is of {cache.accelerators:,} accelerators together, {each} of such a request on each{copies}."
    if inside > cache.requests_that_fit > 0:
        yield (
            f"Each replica would have {show_number(inside)} requests in flight: if all were that long, some would"
            " wait or be preempted."
        )


def _simulated(found: SimulatedHours | None, carries_per_s: float) -> Iterator[str]:
    if found is None:
        return
    scaling, service = found.scaling, found.service
    interval, starts, fewer = (show_duration(s) for s in (scaling.interval_s, scaling.cold_start_s, scaling.cooldown_s))
    yield ""
    yield (
        f"Simulated: {found.requests:,} requests of {show_duration(service.mean_s)} mean time (cv"
        f" {show_number(service.cv)}) on {scaling.min_replicas:,} to {scaling.max_replicas:,} replicas of"
        f" {scaling.slots:,} slots ({scaling.balancer}). The autoscaler fills {show_percent(scaling.target_ratio)} of"
        f" the slots and decides every {interval}; a start takes {starts}, a removal waits for {fewer}."
    )
    yield (
        f"{display.percent(found.within_ratio)} waited at most {show_duration(found.wait_s)} for a slot (mean"
        f" {display.duration(found.wait_mean_s)}, p99 {display.duration(found.wait_p99_s)})."
    )
    if found.worst_hour is not None and found.worst_per_s is not None:
        demand, within = f"{show_number(found.worst_per_s)} requests/s", display.percent(found.worst_within_ratio)
        yield f"The worst hour is row {found.worst_hour} below the heading, {demand}: {within}."
    if found.left_inside:
        yield (
            f"When the hours ended, {found.left_inside:,} requests were unanswered, {found.left_waiting:,} of them in"
            f" the queue: the fleet runs for {show_duration(found.over_s)} more, which is paid too."
        )
    if found.slots_per_s > carries_per_s * _FASTER:
        yield (
            f"A simulated replica serves up to {show_number(found.slots_per_s)} requests/s (slots over request time),"
            f" more than the {show_number(carries_per_s)} of this replica: with fewer slots requests wait longer."
        )
    dollars = "" if found.usd is None else f", ${_dollars(found.usd)}"
    if found.usd_per_month is not None:
        dollars += f" (${_dollars(found.usd_per_month)} in a month of such hours)"
    yield (
        f"Paid: {show_number(found.replica_hours)} replica hours{dollars}; at most {found.highest:,} replicas at once."
        f" {found.scaled_up:,} scale-ups, {found.scaled_down:,} scale-downs."
    )


def _usd(value: float) -> str:
    return f"${_dollars(value)}" if value >= 1 else display.usd(value)


def _dollars(value: float) -> str:
    """Show dollars with cents, unless these would be all zeros or too many digits."""
    return f"{value:,.2f}" if value == 0 or _HALF_A_CENT <= value < _MOST_WRITTEN_OUT else f"{value:.3g}"
