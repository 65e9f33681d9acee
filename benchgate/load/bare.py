"""The bare load test: one server, one load, one JSON document (docs/cli.md, `benchgate load`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from benchgate.load.bare_document import SATURATION_REMEDY, describe
from benchgate.load.cluster import ClusterFleet
from benchgate.load.drawn import Drawn, ramp_of
from benchgate.load.fleet import Fleet
from benchgate.load.options import BareOptions
from benchgate.load.result import no_rows
from benchgate.load.warmup import MOST_ROUNDS, WarmedUp, WarmupClass, warm_up
from benchgate.load.worker import Level, Shard, StageResult
from benchgate.model.deployment import Arm
from benchgate.suite.load import first_round
from benchgate.suite.schema import Limits
from benchgate.targets.dialect import DIALECTS, Target
from benchgate.targets.probe import detect_engine

__all__ = ["SATURATION_REMEDY", "BareOptions", "CutShort", "run_bare", "run_load"]

_WARMUP_SEED = 2**40  # keeps the prompts of the warm-up apart from those of the load


def run_bare(options: BareOptions, told: Callable[[str], None] = lambda line: None) -> dict[str, object]:
    """Warm up, run the load and describe it, in seconds and ratios; plain JSON values, None for what cannot be said.

    A server that is down gives a document too, with every request failed. So does an interrupted load, with what had
    been answered by then and `partial` true. `told` gets a line where the warm-up did not come to its end.
    """
    target, engine = target_of(options)
    warmup: int | None = None
    partial = False
    with fleet_of(options) as fleet:
        try:
            warmed = warm_up_server(fleet, options, target)
            warmup = warmed.requests
            if warmed.note is not None:
                told(f"warm-up: {warmed.note}")
            result = send_load(fleet, options, target, warmed.service_s.get(""))
        except CutShort as cut:
            result, partial = cut.left, True
    return describe(options, engine, result, partial=partial, warmup=warmup)


def warm_up_server(fleet: Fleet | ClusterFleet, options: BareOptions, target: Target) -> WarmedUp:
    """Warm the server up at the level of this load, with prompts of other seeds.

    Raises CutShort, without any answer, when interrupted.
    """
    requests = first_round(options.concurrency) if options.warmup == "auto" else options.warmup
    if not requests:
        return WarmedUp()

    def send(number: int, sizes: Mapping[str, int], service_s: Mapping[str, float]) -> StageResult:
        replay = options.replay and replace(options.replay, rows=options.replay.rows[: sizes[""]])
        seed = options.seed + _WARMUP_SEED + number
        asked = replace(options, requests=sizes[""], duration_s=None, replay=replay, seed=seed)
        return send_load(fleet, asked, target, service_s.get(""), ramped=False)

    rounds = MOST_ROUNDS if options.warmup == "auto" else 1
    try:
        return warm_up([WarmupClass("", requests, options.offered_rps)], send, rounds)
    except CutShort as cut:
        raise CutShort(StageResult.of(no_rows(), 0.0, cut.left.client)) from cut


def target_of(options: BareOptions) -> tuple[Target, str]:
    """The server, with the name of its engine, which is looked up where the options do not say it."""
    target = Target(
        Arm.CANDIDATE,
        options.url,
        options.model,
        DIALECTS["openai" if options.engine == "auto" else options.engine],
        options.api_key,
        open_headers=options.open_headers,
        secret_headers=options.secret_headers,
        route=options.route,
    )
    engine = detect_engine(target) if options.engine == "auto" else options.engine
    return replace(target, dialect=DIALECTS[engine]), engine


class CutShort(KeyboardInterrupt):
    """A load was interrupted; `left` is what had been answered by then."""

    def __init__(self, left: StageResult) -> None:
        super().__init__()
        self.left = left


def fleet_of(options: BareOptions) -> Fleet | ClusterFleet:
    """Return who sends the load: `options.workers` processes here, or that many workers of a cluster."""
    if options.cluster is not None:
        return ClusterFleet(options.cluster, options.workers)
    return Fleet(options.workers or 1)


def run_load(options: BareOptions, target: Target, service_s: float | None = None) -> StageResult:
    """Run a whole bare load without any warm-up. Raises CutShort when interrupted."""
    with fleet_of(options) as fleet:
        return send_load(fleet, options, target, service_s)


def send_load(
    fleet: Fleet | ClusterFleet,
    options: BareOptions,
    target: Target,
    service_s: float | None = None,
    *,
    ramped: bool = True,
) -> StageResult:
    """Run a whole bare load over the workers of a fleet, with its ramp unless `ramped` is False.

    `service_s` is the mean time in seconds that a request takes; without it an open loop has no ramp. Raises CutShort
    when interrupted.
    """
    ramp, lead_ns = ramp_of(options, service_s) if ramped else (None, 0)
    until_s = options.duration_s if options.concurrency is not None else None  # else the schedule ends by itself
    stage = Shard.of(
        target,
        Drawn(options),
        Level(options.concurrency, options.peak_rps, until_s),
        Limits(),
        audit=options.audit,
        ramp=ramp,
        service_s=service_s,
        lead_ns=lead_ns,
    )
    try:
        return fleet.run(stage)
    except KeyboardInterrupt as stop:
        left = fleet.salvage()
        raise CutShort(replace(left, client=replace(left.client, faults=()))) from stop  # the user's wish is no fault
