"""A run of `benchgate load`: one server, one load, one JSON document (docs/reference/cli.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from benchgate.gate.evidence.client_strain import saturation_reasons
from benchgate.gate.evidence.tokens import miscounted
from benchgate.load.live import Watch
from benchgate.load.results import StageResult, no_rows
from benchgate.load.shards import Level, Shard
from benchgate.load.standalone.options import LoadOptions
from benchgate.load.standalone.requests import SyntheticRequests, ramp_of
from benchgate.load.warmup import MOST_ROUNDS, WarmedUp, WarmupClass, warm_up
from benchgate.load.workers import Fleet
from benchgate.model import request_metrics
from benchgate.model.deployment import Arm
from benchgate.model.records import BoolArray, ErrorClass, FloatArray, RequestColumns
from benchgate.model.request import GENERATING_ENDPOINTS
from benchgate.model.request_metrics import Slo
from benchgate.model.run import ClientUse
from benchgate.model.verdict import Outcome
from benchgate.stats import distributions
from benchgate.suite.load import first_round
from benchgate.suite.schema import Limits
from benchgate.targets.dialect import DIALECTS, Target
from benchgate.units import show_duration, show_percent

if TYPE_CHECKING:
    from benchgate.load.cluster import ClusterFleet

_QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "max": 1.0}
_TARGET_RATIO = 0.95
_ALPHA = 0.05  # one-sided
_MOST_BLOCKS = 10
_LEAST_OF_BLOCK = 5  # requests
NO_SERVER = frozenset({ErrorClass.CONNECT, ErrorClass.TLS})
SATURATION_REMEDY = (
    "lower the load, or give the load generator a machine, cores or workers of its own (`benchgate doctor`)"
)


def describe(
    options: LoadOptions, engine: str, result: StageResult, *, partial: bool, warmup: int | None
) -> dict[str, object]:
    """Return the whole load in seconds and ratios; plain JSON values, None for what cannot be said.

    `warmup` requests were sent before and are in no other figure; None where the warm-up was interrupted.
    """
    columns, ramp = result.requests, result.only.ramp
    sent = (columns, ramp)  # failures count wherever they happen
    ok = request_metrics.succeeded(columns)
    output_tokens = int(columns.output_tokens[ok].sum())
    reasons = saturation_reasons(result.client, columns, options.offered_rps)
    document: dict[str, object] = {
        "url": options.url,
        "model": options.model,
        "engine": engine,
        "endpoint": options.endpoint,
        "load": _load(options),
        "partial": partial,
        "requests": {
            "warmup": warmup,
            "scheduled": len(columns),
            "ok": int(ok.sum()),
            "ramp": len(ramp),
            "ramp_failed": int(np.count_nonzero(~request_metrics.succeeded(ramp))),
            "failed_by_class": dict(sorted(Counter(e for rows in sent for e in rows.error if e is not None).items())),
        },
        "failures": _failures(*sent),
        "output_tokens": output_tokens,
        "reasoning_ratio": request_metrics.reasoning_ratio(columns),
        "cached_ratio": request_metrics.cached_ratio(columns),
        "miscounted": _miscounted(options, columns),
        "tokens_from": dict(sorted(Counter(s for s in columns.token_source if s is not None).items())),
        "window_s": result.window_s,
        "down_after_s": result.down_after_s,
        "throughput": {
            "output_tokens_per_s": request_metrics.output_tokens_per_s(columns, result.window_s)
            if options.endpoint in GENERATING_ENDPOINTS
            else None,
            "requests_per_s": request_metrics.requests_per_s(columns, result.window_s),
        },
        "goodput_ratio": request_metrics.goodput_ratio(columns, options.slo or Slo()),
    }
    for measure in (
        *request_metrics.LATENCIES.values(),
        request_metrics.ttft_sent_s,
        request_metrics.send_lag_s,
    ):
        document[measure.__name__] = _summary(measure(columns))
    read_tokens = sum(request_metrics.output_tokens(rows) for rows in sent)  # the client read those of the ramp too
    cpu_s = None if partial else result.client.cpu_s  # known only of a load that came to its end
    document["client"] = {
        "cpu_s": cpu_s,
        "cpu_us_per_token": cpu_s / read_tokens * 1e6 if read_tokens and cpu_s is not None else None,
        "workers": result.client.workers,
        "read_delay_s": _read_delay(result.client),
        "start_uncertainty_s": result.client.start_uncertainty_s,
        "unasked": result.client.unasked,
        "reconnects": int(columns.reconnects.sum()),
        "closed_early": result.client.closed_early,
        "saturated": bool(reasons),
        "reasons": list(reasons),
    }
    if options.slo is not None:
        document["verdict"] = _verdict(options, options.slo, result, reasons, partial=partial)
    return document


def _read_delay(use: ClientUse) -> dict[str, object]:
    """Return the delays between arrival and read, and their source: the kernel or the event-loop probe."""
    return {
        "by": use.read_delay_by,
        "p50": use.read_delay_p50_s,
        "p99": use.read_delay_p99_s,
        "max": use.read_delay_max_s,
    }


def _load(options: LoadOptions) -> dict[str, object]:
    """Return the requested load."""
    return {
        "concurrency": options.concurrency,
        "rate_rps": options.rate_rps,
        "arrival": None if options.rate_rps is None else options.arrival.process,
        "arrival_cv": options.arrival.cv
        if options.rate_rps is not None and options.arrival.process == "gamma"
        else None,
        "trace": None if options.replay is None else options.replay.path,
        "speed": None if options.replay is None else options.replay.speed,
        "requests": options.requests,
        "duration_s": options.duration_s,
        "input_tokens": options.input_tokens,
        "output_tokens": options.output_tokens,
        "seed": options.seed,
        "salt": options.salt,
    }


def _failures(*columns: RequestColumns) -> list[dict[str, object]]:
    """The commonest reasons in words, so that nobody has to run it again to learn why."""
    details = Counter(detail for rows in columns for detail in rows.error_detail if detail is not None)
    return [{"count": count, "detail": detail} for detail, count in details.most_common(5)]


def _summary(values: FloatArray) -> dict[str, object]:
    """Failures are +inf: counted in `n` and in every quantile, which is null where it falls on one of them."""
    applicable = values[~np.isnan(values)]
    failed = int(np.isinf(applicable).sum())
    mean = float(applicable.mean()) if len(applicable) and not failed else None
    summary: dict[str, object] = {"n": len(applicable), "failed": failed, "mean": mean}
    for name, q in _QUANTILES.items():
        value = request_metrics.quantile(applicable, q)
        summary[name] = None if value is None or np.isinf(value) else value
    return summary


def _verdict(
    options: LoadOptions, slo: Slo, result: StageResult, saturated: tuple[str, ...], *, partial: bool
) -> dict[str, object]:
    """Is the share of good requests shown to be at least, or shown to be below, 95 %? By one-sided 95 % limits."""
    outcome, lower, upper, method, needed = Outcome.INVALID, None, None, None, None
    reason = "the load was interrupted" if partial else _unusable(options, result, saturated)
    if reason is None:
        good = request_metrics.meets_slo(result.requests, slo)
        blocks = _stretches(good[np.argsort(result.requests.intended_ns, kind="stable")])
        limits, method = _limits(blocks)
        lower, upper = limits.lower, limits.upper
        outcome, standing = _judge(lower, upper)
        count = f"{int(good.sum())} of {len(good)} requests were good"
        reason = f"{count}, {standing} the target of {show_percent(_TARGET_RATIO)}"
        if outcome is Outcome.INCONCLUSIVE:
            from benchgate.stats.clusters import sample_size_to_decide

            needed = sample_size_to_decide(*_counts(blocks), _TARGET_RATIO, _ALPHA)
            reason += "; no number would, at this share" if needed is None else f"; about {needed:,} in all would do"
    return {
        "outcome": outcome.value,
        "exit_code": int(outcome.exit_code()),
        "reason": reason,
        "target_ratio": _TARGET_RATIO,
        "goodput_lower": lower,
        "goodput_upper": upper,
        "method": method,
        "requests_needed": needed,
    }


def _unusable(options: LoadOptions, result: StageResult, saturated: tuple[str, ...]) -> str | None:
    """Return the reason why the requests show nothing of the server's goodput, or None."""
    columns = result.requests
    if len(columns) == 0:
        return "no request was scheduled"
    if all(error in NO_SERVER for error in columns.error):
        return f"the server was not there: {columns.error_detail[0]}"
    if result.down_after_s is not None:
        asked = "" if options.duration_s is None else f" of {show_duration(options.duration_s)}"
        return f"the server stopped accepting connections after {show_duration(result.down_after_s)}{asked}"
    if saturated:
        return f"the client was the bottleneck: {saturated[0]}; {SATURATION_REMEDY}"
    doubt = _miscounted(options, columns)
    if doubt is None or options.slo is None or options.slo.tpot_s is None:
        return None
    return f"{doubt}; see what this server's usage counts: no TPOT can be judged by it"


def _miscounted(options: LoadOptions, columns: RequestColumns) -> str | None:
    """Return the reason why the server's token counts cannot be trusted. Rows of a trace have lengths of their own."""
    if options.endpoint not in GENERATING_ENDPOINTS:
        return None
    return miscounted(columns, options.output_tokens if options.replay is None else None)


def _stretches(good: BoolArray) -> list[BoolArray]:
    """Stretches of consecutive requests, in the order they were due, that stand in for blocks.

    Requests near each other in time share the server's bad moments and are no independent trials. One stretch where
    there are too few requests for two.
    """
    return np.array_split(good, max(1, min(_MOST_BLOCKS, len(good) // _LEAST_OF_BLOCK)))


def _limits(blocks: list[BoolArray]) -> tuple[distributions.Limits, str]:
    """Limits of the share of good requests, and how they were found."""
    from benchgate.stats.clusters import miss_share_limits
    from benchgate.stats.proportions import clopper_pearson

    good, scheduled = _counts(blocks)
    missed = miss_share_limits(good, scheduled, _ALPHA)
    if missed is None:
        return clopper_pearson(sum(good), sum(scheduled), _ALPHA), "clopper_pearson"
    bounds = distributions.Limits(lower=1 - missed.upper, upper=1 - missed.lower)
    return bounds, f"korn_graubard over {len(blocks)} blocks"


def _counts(blocks: list[BoolArray]) -> tuple[list[int], list[int]]:
    return [int(block.sum()) for block in blocks], [len(block) for block in blocks]


def _judge(lower: float, upper: float) -> tuple[Outcome, str]:
    if lower >= _TARGET_RATIO:
        return Outcome.PASS, "which shows"
    if upper < _TARGET_RATIO:
        return Outcome.BLOCK, "which shows a breach of"
    return Outcome.INCONCLUSIVE, "too few to show or to refute"


_WARMUP_SEED = 2**40  # keeps the prompts of the warm-up apart from those of the load


def run_load_test(
    options: LoadOptions, note: Callable[[str], None] = lambda line: None, watch: Watch | None = None
) -> dict[str, object]:
    """Warm up, run the load and describe it, in seconds and ratios; plain JSON values, None for what cannot be said.

    A server that is down gives a document too, with every request failed. So does an interrupted load, with what had
    been answered by then and `partial` true. `note` gets a line where the warm-up did not come to its end, `watch` the
    figures so far about twice a second.
    """
    target, engine = target_of(options)
    warmup: int | None = None
    partial = False
    with fleet_of(options, watch) as fleet:
        try:
            warmed = warm_up_server(fleet, options, target)
            warmup = warmed.requests
            if warmed.note is not None:
                note(f"warm-up: {warmed.note}")
            result = send_load(fleet, options, target, warmed.service_s.get(""))
        except LoadInterrupted as cut:
            result, partial = cut.left, True
    return describe(options, engine, result, partial=partial, warmup=warmup)


def warm_up_server(fleet: Fleet | ClusterFleet, options: LoadOptions, target: Target) -> WarmedUp:
    """Warm the server up at the level of this load, with prompts of other seeds.

    Raises LoadInterrupted, without any answer, when interrupted.
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
    except LoadInterrupted as cut:
        raise LoadInterrupted(StageResult.of(no_rows(), 0.0, cut.left.client)) from cut


def target_of(options: LoadOptions) -> tuple[Target, str]:
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
    engine = options.engine
    if engine == "auto":
        from benchgate.targets.probe import detect_engine  # imports an HTTP client

        engine = detect_engine(target)
    return replace(target, dialect=DIALECTS[engine]), engine


class LoadInterrupted(KeyboardInterrupt):
    """A load was interrupted; `left` is what had been answered by then."""

    def __init__(self, left: StageResult) -> None:
        super().__init__()
        self.left = left


def fleet_of(options: LoadOptions, watch: Watch | None = None) -> Fleet | ClusterFleet:
    """Return who sends the load: `options.workers` processes here, or that many workers of a cluster."""
    if options.cluster is not None:
        from benchgate.load.cluster import ClusterFleet

        return ClusterFleet(options.cluster, options.workers)
    return Fleet(options.workers or 1, fork=True, watch=watch)


def run_load(options: LoadOptions, target: Target, service_s: float | None = None) -> StageResult:
    """Run a whole bare load without any warm-up. Raises LoadInterrupted when interrupted."""
    with fleet_of(options) as fleet:
        return send_load(fleet, options, target, service_s)


def send_load(
    fleet: Fleet | ClusterFleet,
    options: LoadOptions,
    target: Target,
    service_s: float | None = None,
    *,
    ramped: bool = True,
) -> StageResult:
    """Run a whole bare load over the workers of a fleet, with its ramp unless `ramped` is False.

    `service_s` is the mean time in seconds that a request takes; without it an open loop has no ramp.
    Raises LoadInterrupted.
    """
    ramp, lead_ns = ramp_of(options, service_s) if ramped else (None, 0)
    until_s = options.duration_s if options.concurrency is not None else None  # else the schedule ends by itself
    stage = Shard.of(
        target,
        SyntheticRequests(options),
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
        raise LoadInterrupted(replace(left, client=replace(left.client, faults=()))) from stop
