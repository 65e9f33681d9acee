"""A fleet for a demand as plain lines and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from benchgate.escape import terminal_line
from benchgate.report import show
from benchgate.report.sizing_run import (
    RunSeen,
    cache_lines,
    level_lines,
    overhead_lines,
    run_document,
    run_lines,
    signal_lines,
    start_lines,
    unlimited_lines,
    unpaid_lines,
)
from benchgate.sizing.fleet import FleetSizing, KvCache, SizedLevel
from benchgate.sizing.simulation import SimulatedHours
from benchgate.units import show_duration, show_memory, show_number, show_percent

SCHEMA = "benchgate.capacity/1"
_TITLES = (
    *("demand", "per second", "replicas", "with factor", "with spares", "by lower limit", "load"),
    *("in flight", "$/h", "$/month", "$/1M tok"),
)
_HALF_A_CENT, _MOST_WRITTEN_OUT = 0.005, 1e12
_FASTER = 1.1  # times: beyond it the places of a replay carry more than was said or measured


def sizing_document(
    found: FleetSizing, seen: RunSeen | None = None, replayed: SimulatedHours | None = None
) -> dict[str, object]:
    """All of it: rates per second, dollars, ratios; null where something is not known.

    `seen` is what a stored run showed of the replica, `replayed` what a week's traffic met.
    """
    document: dict[str, object] = {"schema": SCHEMA, **asdict(found), **run_document(seen, found.question)}
    for name in ("usd_per_million_tokens", "usd_per_million_tokens_upper"):
        document[f"loaded_{name}"] = document[f"full_{name}"]
        if not _is_full(seen):
            document[f"full_{name}"] = None
    document["replayed"] = None if replayed is None else asdict(replayed)
    cache = found.question.cache
    if cache is not None:
        names = ("bytes_per_token", "bytes_per_request", "requests_that_fit", "accelerators", "times_kept")
        document["cache"] = {name: getattr(cache, name) for name in names}
    return document


def sizing_text(found: FleetSizing, seen: RunSeen | None = None, replayed: SimulatedHours | None = None) -> str:
    """What one replica carries, the fleet at every level of the demand, and what follows from it."""
    question = found.question
    lines = [] if seen is None else [*run_lines(seen)]
    lines += _replica(found, "Always full" if _is_full(seen) else "Loaded like this all the time")
    if seen is not None:
        lines += [
            *unlimited_lines(question),
            *unpaid_lines(seen),
            *level_lines(seen),
            *overhead_lines(seen, question),
            *start_lines(seen, question),
        ]
    lines += ["", *_table(found), "", *_notes(found)]
    if seen is not None:
        lines += [*cache_lines(seen, question.cache), *signal_lines(seen)]
    lines += _replayed(replayed, question.replica.per_s)
    return "".join(f"{terminal_line(line).rstrip()}\n" for line in lines)


def _is_full(seen: RunSeen | None) -> bool:
    """Whether what a replica carries keeps it full: a rate that was offered need not."""
    return seen is None or not seen.choice.row.is_open


def _replica(found: FleetSizing, loaded: str) -> Iterator[str]:
    question = found.question
    replica, unit, overhead = question.replica, question.unit, question.overhead_ratio or 0.0
    lower = "" if replica.lower_per_s is None else f" (lower 95 % limit {show_number(replica.lower_per_s)})"
    paid = ""
    if replica.usd_per_hour is not None:
        beside = f" and {show_percent(overhead)} overhead" if overhead else ""
        paid = f", at ${_dollars(replica.usd_per_hour / (1 + overhead))}/h{beside}"
    yield f"One replica carries {show_number(replica.per_s)} {unit}/s{lower}{paid}."
    if found.full_usd_per_million_tokens is not None:
        upper = found.full_usd_per_million_tokens_upper
        most = "" if upper is None else f" (up to {_usd(upper)} by that limit)"
        yield f"{loaded}, 1M output tokens cost {_usd(found.full_usd_per_million_tokens)}{most}."


def _table(found: FleetSizing) -> Iterator[str]:
    rows = [_TITLES, *(_cells(level) for level in found.levels)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_TITLES))]
    for row in rows:
        others = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        yield "  ".join((row[0].ljust(widths[0]), *others))


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
    yield f"With factor: {factor} times the demand. With spares: and {spares}; these are what is paid."
    by_lower = [
        f"{_usd(level.sized.by_lower_usd_per_month)} for the {level.name}"
        for level in found.levels
        if level.sized.by_lower_usd_per_month is not None
    ]
    if by_lower:
        yield f"By lower limit a month would cost {', '.join(by_lower)}."
    if any(level.usd_per_million_tokens is not None for level in found.levels):
        yield "$/1M tok: what that fleet costs in a month over the tokens of a month, which come by the mean."
    elif question.replica.usd_per_hour is None:
        yield "No dollars: what a replica costs is not known; give --price-per-hour."
    elif question.tokens_per_request is None:
        yield "$/1M tok follows from the tokens of an answer; give --output-tokens."
    if found.ahead is not None and question.cold_start_s is not None:
        starts = show_duration(question.cold_start_s)
        yield f"A replica takes {starts} to start: be {found.ahead:,} ahead of the demand where it rises steepest."
    elif question.cold_start_s is None and (question.demand.growth_per_s2 or 0.0) > 0:
        yield "How far to be ahead where the demand rises is not known: give --cold-start, or a run that timed starts."
    if question.residence_s is not None and all(level.in_flight is None for level in found.levels):
        yield "How many are in flight follows from the tokens of an answer; give --output-tokens."
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
        yield "So a replica cannot answer one: give the cache more memory, or expect shorter requests."
    if cache.accelerators > 1:
        each, times = show_memory(cache.bytes_per_request / cache.accelerators), round(cache.times_kept)
        copies = "" if times == 1 else f"; they keep everything {times:,} times"
        yield f"That is of {cache.accelerators:,} accelerators together, {each} of such a request on each{copies}."
    if inside > cache.requests_that_fit > 0:
        yield (
            f"Each replica would have {show_number(inside)} requests in flight: were all as long as that, some would"
            " wait or push others out."
        )


def _replayed(found: SimulatedHours | None, carries_per_s: float) -> Iterator[str]:
    if found is None:
        return
    scaling, service = found.scaling, found.service
    look, starts, fewer = (show_duration(s) for s in (scaling.look_s, scaling.cold_start_s, scaling.cooldown_s))
    yield ""
    yield (
        f"Replayed: {found.requests:,} requests of {show_duration(service.mean_s)} each on the mean (cv"
        f" {show_number(service.cv)}) against {scaling.least:,} to {scaling.most:,} replicas of"
        f" {scaling.places:,} places ({scaling.balance}), of which {show_percent(scaling.target_ratio)} shall be taken;"
        f" a look every {look}, a start takes {starts}, fewer after {fewer}."
    )
    yield (
        f"{_share(found.within_ratio)} waited at most {show_duration(found.wait_s)} for a place (mean"
        f" {show.duration(found.wait_mean_s)}, p99 {show.duration(found.wait_p99_s)})."
    )
    if found.worst_hour is not None and found.worst_per_s is not None:
        demand, within = f"{show_number(found.worst_per_s)} requests/s", _share(found.worst_within_ratio)
        yield f"The worst is row {found.worst_hour} below the heading, {demand}: {within}."
    if found.left_inside:
        yield (
            f"When the hours ended {found.left_inside:,} requests were not answered yet, {found.left_waiting:,} of them"
            f" in line: the fleet goes on for {show_duration(found.over_s)} until all are, which is paid too."
        )
    if found.places_per_s > carries_per_s * _FASTER:
        yield (
            f"Here a replica takes up to {show_number(found.places_per_s)} requests/s (places over request time), and"
            f" {show_number(carries_per_s)} is what it was to carry: with fewer places they wait longer."
        )
    dollars = "" if found.usd is None else f", ${_dollars(found.usd)}"
    if found.usd_per_month is not None:
        dollars += f" (${_dollars(found.usd_per_month)} in a month of such hours)"
    yield (
        f"Paid: {show_number(found.replica_hours)} replica hours{dollars}; at most {found.highest:,} replicas at once."
        f" More were asked for {found.scaled_up:,} times, and some let go {found.scaled_down:,} times."
    )


def _share(ratio: float | None) -> str:
    """Never all of them by rounding alone: who waited longer is what was asked for."""
    shown = show.percent(ratio)
    return "nearly 100 %" if ratio is not None and ratio < 1 and shown == show.percent(1.0) else shown


def _usd(value: float) -> str:
    return f"${_dollars(value)}" if value >= 1 else show.usd(value)


def _dollars(value: float) -> str:
    """With cents, unless that would be nothing but zeros, or more digits than anyone reads."""
    return f"{value:,.2f}" if value == 0 or _HALF_A_CENT <= value < _MOST_WRITTEN_OUT else f"{value:.3g}"
