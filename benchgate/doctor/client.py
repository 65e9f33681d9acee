"""Load that this machine's load generator can deliver: one worker against `benchgate sim`, step by step.

The practice server keeps its own schedule and reports afterwards when it really sent what, so the difference is the
client's delay. There are two series: streams of 50 tokens/s in a closed loop, and one-token answers at a constant rate
in an open one. Each ends with the first step at which the client (by the gate's own bounds) or the server was the
bottleneck.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchgate.errors import BenchgateError, TargetError
from benchgate.gate.evidence.client_saturation import saturation_reasons
from benchgate.load.results import StageResult
from benchgate.load.workers import run_stage
from benchgate.model import request_metrics
from benchgate.model.client import ClientProfile, ClientStep
from benchgate.model.deployment import Arm
from benchgate.model.request import text_request
from benchgate.pipeline.environment import client_machine, utc_now
from benchgate.pipeline.progress import Phase, Progress
from benchgate.plan.model import PlannedRequest, PlannedStage
from benchgate.sim.process import Sim, serve_sim
from benchgate.sim.settings import sim_settings
from benchgate.suite.schema import ClientBounds, Limits
from benchgate.suite.simulator import SimSettings
from benchgate.targets.dialect import DIALECTS, Target
from benchgate.units import show_duration, show_percent

STREAMS = (50, 100, 200, 400, 700, 1000, 1500)
RATES_RPS = (200, 500, 1000, 1500, 2000, 3000, 4000)

_USUAL = ClientBounds()
_ITL_S = 0.02  # 50 tokens/s a stream
_STREAM_TTFT_S = 0.1
_STREAM_TOKENS = 100
_ROUNDS = 2  # requests per stream: about 4 s in all
_RATE_TTFT_S = 0.005
_RATE_S = 3.0
_JITTER_RATIO = 0.3
_DELIVERED_LEAST = _USUAL.achieved_ratio  # of the offered load
_TTFT_ERROR_S = _USUAL.send_lag_p99_s + _USUAL.read_delay_p99_s  # p99: it is late when it sends and when it reads
_SERVER_LATE_S = 0.005  # p99 of the practice server's own lateness: beyond, it is no measure of a client
_PROMPT = "hello"
_NS = 1_000_000_000


def measure_client(
    progress: Progress, *, streams: tuple[int, ...] = STREAMS, rates_rps: tuple[int, ...] = RATES_RPS
) -> ClientProfile:
    """Measure every step for some seconds, about a minute in all, while nothing else should run here.

    Raises BenchgateError when the practice server does not start or answer.
    """
    progress.begin(Phase("streams of 50 tokens/s", len(streams)))
    closed = list(
        _series(progress, sim_settings(ttft_s=_STREAM_TTFT_S, itl_s=_ITL_S, jitter_ratio=_JITTER_RATIO), streams)
    )
    progress.begin(Phase("requests of one token", len(rates_rps)))
    opened = list(_series(progress, sim_settings(ttft_s=_RATE_TTFT_S, jitter_ratio=_JITTER_RATIO), (), rates_rps))
    return ClientProfile(measured_at=utc_now(), machine=client_machine(), steps=(*closed, *opened))


def _series(
    progress: Progress, settings: SimSettings, streams: tuple[int, ...], rates_rps: tuple[int, ...] = ()
) -> Iterator[ClientStep]:
    """Yield the steps of one series up to the first unsound one, included."""
    with serve_sim(settings) as sim:
        target = Target(Arm.CANDIDATE, sim.url, settings.model, DIALECTS["openai"])
        for stage in (*map(_closed, streams), *map(_opened, rates_rps)):
            step = _measured(sim, target, stage)
            if not step.sound:
                step = _measured(sim, target, stage)  # one hiccup of the machine is not what the client can do
            yield step
            progress.step(f"{stage.name}: {'kept up' if step.sound else 'did not'}")
            if not step.sound:
                return


def _closed(streams: int) -> PlannedStage:
    requests = tuple(_request(index, None, _STREAM_TOKENS) for index in range(streams * _ROUNDS))
    return PlannedStage.of(f"{streams} streams", streams, None, requests)


def _opened(rate_rps: int) -> PlannedStage:
    gap_ns = _NS // rate_rps
    requests = tuple(_request(index, (index + 1) * gap_ns, 1) for index in range(int(rate_rps * _RATE_S)))
    return PlannedStage.of(f"{rate_rps} requests/s", None, float(rate_rps), requests)


def _request(index: int, offset_ns: int | None, tokens: int) -> PlannedRequest:
    return PlannedRequest(index=index, offset_ns=offset_ns, ask=text_request("chat", _PROMPT, tokens), seed=index)


def _measured(sim: Sim, target: Target, stage: PlannedStage) -> ClientStep:
    try:
        sim.reset()
        result = run_stage(target, stage, limits=Limits())
        truth = sim.truth()
    except (OSError, TargetError, ValueError) as exc:
        raise BenchgateError(f"the practice server did not answer: {exc}") from exc
    return client_step(stage, result, truth)


def client_step(stage: PlannedStage, result: StageResult, truth: Mapping[str, Any]) -> ClientStep:
    """Return one step from the client's records and the server's own times.

    The throughput of a closed loop follows from the duration of its answers (Little's law), so the server's own mean
    duration gives the rate of a client without delay.
    """
    columns, tokens = result.requests, sum(request.ask.output_tokens or 0 for request in stage.requests)
    ok = request_metrics.succeeded(columns)
    bound = list(saturation_reasons(result.client, columns, stage.only.rate_rps))
    if not ok.all():
        detail = next((text for text in columns.error_detail if text is not None), "no reason given")
        bound.append(f"{int((~ok).sum())} of {len(ok)} requests failed: {detail}")
    e2e_s, true_e2e_s = request_metrics.e2e_s(columns)[ok], float(truth["e2e_s"]["mean"] or 0.0)
    group = stage.only
    if group.concurrency is not None:
        offered_rps = group.concurrency / true_e2e_s if true_e2e_s > 0 else 0.0
        delivered = true_e2e_s / float(e2e_s.mean()) if len(e2e_s) else None
    else:
        # Span of the schedule over span of the sends: 1 when the rate was reached.
        actual_ns = int(columns.sent_ns.max() - columns.sent_ns.min()) if (columns.sent_ns >= 0).all() else 0
        planned_ns = float(columns.intended_ns.max() - columns.intended_ns.min())
        offered_rps, delivered = group.rate_rps or 0.0, planned_ns / actual_ns if actual_ns else None
    ttft_p99_s = request_metrics.quantile(request_metrics.ttft_s(columns)[ok], 0.99)
    lag_s = truth["schedule_lag_s"]["p99"]
    ttft_error_s = None if ttft_p99_s is None else ttft_p99_s - float(truth["ttft_s"]["p99"])
    late = lag_s is not None and lag_s > _SERVER_LATE_S
    if not late and delivered is not None and delivered < _DELIVERED_LEAST:  # else the server may have caused the loss
        bound.append(f"{show_percent(delivered)} of the load was delivered (least {show_percent(_DELIVERED_LEAST)})")
    if not late and ttft_error_s is not None and ttft_error_s > _TTFT_ERROR_S:
        above = f"the p99 of TTFT is {show_duration(ttft_error_s)} above the server's own"
        bound.append(f"{above} (bound {show_duration(_TTFT_ERROR_S)})")
    return ClientStep(
        streams=group.concurrency,
        offered_rps=offered_rps,
        offered_tokens_per_s=offered_rps * tokens / len(stage.requests),
        delivered_ratio=delivered,
        cpu_us_per_token=result.client.cpu_s / tokens * 1e6,
        read_delay_p99_s=result.client.read_delay_p99_s,
        ttft_error_p99_s=ttft_error_s,
        client_bound=tuple(bound),
        server_late=f"the practice server was {show_duration(lag_s)} late itself (p99)" if late else None,
    )
