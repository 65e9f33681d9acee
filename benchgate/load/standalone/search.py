"""The bare capacity search: one server, one load level after the other, one JSON document (docs/reference/cli.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Literal, Self, cast

from benchgate import units
from benchgate.errors import UsageError
from benchgate.gate.checks.capacity import ArmSearch
from benchgate.load.standalone.options import LoadOptions, read_rate_rps
from benchgate.load.standalone.run import (
    NO_SERVER,
    LoadInterrupted,
    PhaseWatch,
    exclusive_server,
    fleet_of,
    offered_load,
    send_load,
    target_of,
    warm_up_server,
    with_model,
)
from benchgate.load.warmup import mean_service_s, ramp_service_s
from benchgate.model.metric import Slo
from benchgate.model.verdict import Outcome
from benchgate.stats.capacity_search import PlannedLook, Probe, SearchSettings
from benchgate.suite.load import LEAST_REQUESTS
from benchgate.suite.schema import ClientBounds
from benchgate.suite.stages import LISTED_REQUESTS

_NOT_BESIDE_SEARCH = ("concurrency", "rate", "ramp_to", "trace", "speed", "requests", "duration")
_MOST_IN_ALL = 1000 * LISTED_REQUESTS  # of a search: beyond it no number is meant
_SEEDS_APART = 1009  # looks draw their own prompts and instants


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """A search over one server; `base` is the load of its highest level, `least` the required capacity, if any."""

    base: LoadOptions
    slo: Slo
    settings: SearchSettings
    least: float | None
    bounds: ClientBounds = field(default_factory=ClientBounds)

    @classmethod
    def parse(
        cls,
        *,
        over: str,
        lowest: str,
        highest: str,
        target: str,
        resolution: str,
        probe: int,
        budget: int | None,
        least: str | None,
        load: Mapping[str, object],
    ) -> Self:
        """Parse texts as typed; `load` are the arguments of `LoadOptions.parse`. Raises UsageError."""
        if over not in ("rate", "concurrency"):
            raise UsageError(f'--search: {over!r} cannot be searched; write "rate" or "concurrency"')
        for name in _NOT_BESIDE_SEARCH:
            if load.get(name) is not None:
                raise UsageError(
                    f"--{name.replace('_', '-')} means nothing beside --search, which chooses the levels; leave it out"
                )
        if over == "concurrency" and load.get("arrival") is not None:
            raise UsageError("--arrival means nothing in a closed loop; leave it out, or search over the rate")
        if over == "rate" and load.get("think_time") is not None:
            raise UsageError("--think-time is the pause of a closed loop; leave it out, or search over the concurrency")
        kind = cast('Literal["rate", "concurrency"]', over)
        from_level, to_level = _level("--from", kind, lowest), _level("--to", kind, highest)
        if from_level >= to_level:
            raise UsageError(f"--from {lowest} is not below --to {highest}; there is nothing to search between them")
        required = None if least is None else _level("--min", kind, least)
        if required is not None and required > to_level:
            raise UsageError(f"--min {least} is above --to {highest}, and nothing above that is searched; raise --to")
        target_ratio = _share("--target", target)
        if target_ratio == 1:
            raise UsageError("--target: 100% is missed by one bad request in a million; write less, like 99%")
        settings = SearchSettings(
            over=kind,
            lowest=from_level,
            highest=to_level,
            target_ratio=target_ratio,
            resolution_ratio=_share("--resolution", resolution),
            probe_requests=_requests("--probe", probe, LISTED_REQUESTS),
            budget_requests=None if budget is None else _requests("--budget", budget, _MOST_IN_ALL),
        )
        most = {"rate": f"{settings.highest:.12g}/s"} if kind == "rate" else {"concurrency": int(settings.highest)}
        base = LoadOptions.parse(**{**load, **most, "requests": probe})  # type: ignore[arg-type]  # typed by name
        if base.slo is None:
            raise UsageError("--search needs to know what a good request is; add --slo ttft=500ms,tpot=80ms")
        return cls(base, base.slo, settings, required)

    def at(self, look: PlannedLook, number: int) -> LoadOptions:
        """Return the load of one look; `number` counts the looks of the search."""
        load = replace(self.base, requests=look.requests, seed=self.base.seed + _SEEDS_APART * number)
        if self.settings.over == "rate":
            return replace(load, rate_rps=look.level)
        return replace(load, concurrency=int(look.level))


def run_search(
    options: SearchOptions, note: Callable[[str], None] = lambda line: None, watch: PhaseWatch | None = None
) -> dict[str, object]:
    """Search, and describe what was found; plain JSON values, None for what cannot be said.

    A look in which the load generator set the pace says nothing of the server: it does not count and is taken again,
    and the third in a row ends the search, as a server that is down does. An interrupted one says what it knew by
    then, with `partial` true. `note` gets a line before each look, and one when a level is left, `watch` the
    figures of the look so far. Raises what `exclusive_server` and `with_model` do.
    """
    options = replace(options, base=with_model(options.base))
    target, engine = target_of(options.base)
    search = ArmSearch(options.settings, options.slo, options.bounds, offered_load(options.base).output_tokens)
    first = search.next
    down, partial, warmup, service_s, least_s, phase = None, False, None, None, None, "warm-up"
    watched = None if watch is None else lambda figures: watch(phase, figures)
    with exclusive_server(options.base, target), fleet_of(options.base, watched) as fleet:
        try:
            if first is not None:
                warmed = warm_up_server(fleet, options.at(first, 0), target)
                warmup, service_s = warmed.requests, options.base.service_s or warmed.service_s.get("")
                least_s = service_s
                if warmed.note is not None:
                    note(f"warm-up: {warmed.note}")
            while down is None and (look := search.next) is not None:
                phase = f"{_shown(options, look.level)}, look {look.number + 1}"
                note(f"{phase}: {look.requests:,} requests")
                left_out = len(search.left_out)
                result = send_load(fleet, options.at(look, len(search.looks)), target, service_s)
                if (mean_s := mean_service_s(result.requests)) is not None:
                    least_s = mean_s if least_s is None else min(mean_s, least_s)
                    service_s = ramp_service_s(mean_s, least_s)
                if result.down_after_s is not None or all(error in NO_SERVER for error in result.requests.error):
                    down = f"the server did not accept connections at {look.name}"
                else:
                    search.take(look.level, result.requests, result.client, result.only.ramp, result.only.left)
                if len(search.left_out) > left_out:
                    note(f"that look measured its client and does not count: {search.left_out[-1]}")
                if search.next is None or search.next.level != look.level:
                    found = "no look at it counted"
                    for probe in search.result.probes:
                        if probe.level == look.level:
                            finding = probe.finding
                            good = f"{finding.good:,} of {finding.scheduled:,} requests good"
                            more = "" if finding.needs is None else f", {finding.needs:,} more needed"
                            found = f"{finding.standing.words} ({good}{more})"
                    note(f"{_shown(options, look.level)}: {found}")
        except LoadInterrupted:
            partial = True
    return _document(options, engine, search, down, partial=partial, warmup=warmup)


def _shown(options: SearchOptions, level: float) -> str:
    return f"{level:g}/s" if options.settings.over == "rate" else f"{level:g} in flight"


def _share(option: str, text: str) -> float:
    """A percentage above 0 and up to 100, as a suite takes it."""
    try:
        ratio = units.parse_percent_ratio(text)
    except ValueError as exc:
        raise UsageError(f"{option}: {exc}") from exc
    if not 0 < ratio <= 1:
        raise UsageError(f"{option}: {text} is out of range; write a percentage above 0% and up to 100%")
    return ratio


def _requests(option: str, number: int, most: int) -> int:
    if number < LEAST_REQUESTS:
        raise UsageError(f"{option} is {number}; it must be at least {LEAST_REQUESTS} requests")
    if number > most:
        raise UsageError(f"{option} is {number}; it must be at most {most:,} requests")
    return number


def _level(option: str, over: Literal["rate", "concurrency"], text: str) -> float:
    """`8/s` or a bare number of requests per second; of concurrencies a whole number."""
    try:
        if over == "rate":
            return read_rate_rps(text)
        if text.isascii() and text.isdecimal() and int(text) >= 1:
            return float(int(text))
    except ValueError as exc:
        raise UsageError(f"{option}: {exc}") from exc
    raise UsageError(f"{option}: {text!r} is not a number of requests in flight; write a whole number like 8")


def _document(
    options: SearchOptions, engine: str, search: ArmSearch, down: str | None, *, partial: bool, warmup: int | None
) -> dict[str, object]:
    settings, result = options.settings, search.result
    fault = down if down is not None else None if search.fault is None else f"{search.fault}; {search.remedy}"
    needed = [probe.measured + probe.finding.needs for probe in result.probes if probe.finding.needs is not None]
    document: dict[str, object] = {
        "url": options.base.url,
        "request_url": options.base.request_url,
        "model": options.base.model,
        "engine": engine,
        "endpoint": options.base.endpoint,
        "search": {
            "over": settings.over,
            "from": settings.lowest,
            "to": settings.highest,
            "target_ratio": settings.target_ratio,
            "resolution_ratio": settings.resolution_ratio,
            "probe_requests": settings.probe_requests,
            "budget_requests": settings.budget_requests,
            "alpha": settings.alpha,
            "slo": asdict(options.slo),
            "prompts": None if options.base.prompts is None else options.base.prompts.name,
            **options.base.lengths,
            "arrival": options.base.arrival.process if settings.over == "rate" else None,
            "seed": options.base.seed,
            "salt": options.base.salt,
        },
        "partial": partial,
        "stop": None if result.stop is None else result.stop.value,
        "capacity": {"lower": result.lower, "upper": result.upper, "estimate": result.estimate},
        "cliff": None if result.cliff is None else list(result.cliff),
        "requests_warmup": warmup,
        "requests_sent": result.sent,
        "requests_needed": min(needed, default=None),
        "probes": [_probe(probe) for probe in result.probes],
        "fit": []
        if result.fit is None
        else [list(at) for at in zip(result.fit.levels, result.fit.shares, strict=True)],
        "fault": fault,
        "looks_left_out": search.left_out,
    }
    if options.least is not None:
        if partial or fault is not None:
            outcome, reason = Outcome.INVALID, "the search was interrupted" if fault is None else fault
        elif result.lower is not None and result.lower >= options.least:
            outcome, reason = Outcome.PASS, f"{result.lower:g} was shown to meet the target"
        elif result.upper is not None and result.upper <= options.least:
            outcome, reason = Outcome.BLOCK, f"{result.upper:g} was shown to miss the target"
        else:
            outcome, reason = (
                Outcome.INCONCLUSIVE,
                f"neither shown to reach {options.least:g} nor shown to stay below it",
            )
        document["verdict"] = {
            "outcome": outcome.value,
            "exit_code": int(outcome.exit_code()),
            "reason": reason,
            "min": options.least,
        }
    return document


def _probe(probe: Probe) -> dict[str, object]:
    finding = probe.finding
    return {
        "level": probe.level,
        "standing": finding.standing.value,
        "good": finding.good,
        "scheduled": finding.scheduled,
        "sent": probe.sent,
        "cut": finding.cut,
        "goodput_ratio": finding.share,
        "goodput_lower": None if finding.limits is None else finding.limits.lower,
        "goodput_upper": None if finding.limits is None else finding.limits.upper,
        "backlog_grows": finding.unstable,
        "unsteady": finding.unsteady,
        "requests_needed": None if finding.needs is None else probe.measured + finding.needs,
        "window_s": finding.window_s,
        "window_short": finding.short,
    }
