"""The bare load test: one server, one load, one JSON document (docs/cli.md, `benchgate load`)."""

from __future__ import annotations

from dataclasses import replace

from benchgate.load.bare_document import SATURATION_REMEDY, describe
from benchgate.load.cluster import ClusterFleet
from benchgate.load.drawn import Drawn, ramp_of
from benchgate.load.fleet import Fleet
from benchgate.load.options import BareOptions
from benchgate.load.worker import Level, Shard, StageResult
from benchgate.model.deployment import Arm
from benchgate.suite.schema import Limits
from benchgate.targets.dialect import DIALECTS, Target
from benchgate.targets.probe import detect_engine

__all__ = ["SATURATION_REMEDY", "BareOptions", "CutShort", "run_bare", "run_load"]


def run_bare(options: BareOptions) -> dict[str, object]:
    """Run the load and describe it, in seconds and ratios; plain JSON values, None for what cannot be said.

    A server that is down gives a document too, with every request failed. So does an interrupted load, with what had
    been answered by then and `partial` true.
    """
    target, engine = target_of(options)
    try:
        result, partial = run_load(options, target), False
    except CutShort as cut:
        result, partial = cut.left, True
    return describe(options, engine, result, partial=partial)


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


def run_load(options: BareOptions, target: Target, service_s: float | None = None) -> StageResult:
    """Run a whole bare load over `options.workers` processes here, or over that many workers of a cluster.

    `service_s` is the mean time in seconds that a request takes; without it an open loop has no ramp. Raises CutShort
    when interrupted.
    """
    ramp, lead_ns = ramp_of(options, service_s)
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
    if options.cluster is not None:
        with ClusterFleet(options.cluster, options.workers) as cluster:
            return _run_or_salvage(cluster, stage)
    with Fleet(options.workers or 1) as fleet:
        return _run_or_salvage(fleet, stage)


def _run_or_salvage(fleet: Fleet | ClusterFleet, stage: Shard) -> StageResult:
    try:
        return fleet.run(stage)
    except KeyboardInterrupt as stop:
        left = fleet.salvage()
        raise CutShort(replace(left, client=replace(left.client, faults=()))) from stop  # the user's wish is no fault
