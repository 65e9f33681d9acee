"""A run of `benchgate load`: one server, one load drawn as it is needed, one JSON document (docs/reference/cli.md)."""

from __future__ import annotations

import itertools
import socket
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from benchgate.errors import TargetError
from benchgate.gate.evidence.client_saturation import losses, saturation_reasons
from benchgate.gate.evidence.shares import Counts
from benchgate.load.live import LiveFigures, Watch
from benchgate.load.results import StageResult, no_rows
from benchgate.load.shards import FindRequest, Level, Ramp, Shard
from benchgate.load.stage_summary import Offered, RegionPart, StageSummary, summarise
from benchgate.load.standalone.metrics import load_metrics, misses_of
from benchgate.load.standalone.options import LoadOptions, Prompts
from benchgate.load.warmup import MOST_ROUNDS, WarmedUp, WarmupClass, warm_up
from benchgate.load.workers import Fleet
from benchgate.model import request_metrics
from benchgate.model.arrivals import TracedRequest
from benchgate.model.deployment import Arm
from benchgate.model.histogram import RELATIVE_ERROR, TimeHistogram
from benchgate.model.metric import TREND_UNITS, Slo
from benchgate.model.records import ErrorClass, FloatArray, IntArray
from benchgate.model.request import ENDPOINTS, LARGEST_SALT, Endpoint, ModelRequest, text_request
from benchgate.model.request_metrics import miscounted
from benchgate.model.request_summary import RequestSummary
from benchgate.model.verdict import Outcome
from benchgate.plan.arrivals import arrival_blocks_ns, arrival_blocks_within_ns, profile_offsets_ns, ramp_offsets_ns
from benchgate.plan.media import data_url, speech_wav
from benchgate.plan.model import NO_MATERIAL, PlannedRequest
from benchgate.plan.prompts import RequestBuilder, SyntheticTexts
from benchgate.plan.salt import Salter, salted_vocabulary
from benchgate.plan.slot_share import WHOLE, SlotShare
from benchgate.plan.vocabulary import VOCABULARIES, keyed_text
from benchgate.stats import distributions
from benchgate.suite.load import first_round
from benchgate.suite.schema import Limits
from benchgate.suite.stages import RAMP_SERVICE_TIMES, region_name
from benchgate.suite.workload import Workload
from benchgate.targets.address import ServerAddress, show_address
from benchgate.targets.dialect import DIALECTS, Target
from benchgate.targets.server_lock import locked_servers
from benchgate.units import show_duration, show_percent

if TYPE_CHECKING:
    from benchgate.load.cluster import ClusterFleet

_NS = 1_000_000_000
_AFTER_ALL = 2**40  # first number of the ramp where the number of measured requests is not known before


@dataclass(frozen=True, slots=True)
class SyntheticRequests:
    """Requests of a worker's `part`, by default all, numbered from `first`. A ramp without `at_ns` is endless."""

    options: LoadOptions
    part: SlotShare = WHOLE
    first: int = 0
    at_ns: tuple[int, ...] = ()

    @property
    def endless(self) -> bool:
        """Return True if a closed loop sends as many as there is time for."""
        return self.options.concurrency is not None and (self.options.requests is None or self.first > 0)

    def __iter__(self) -> Iterator[PlannedRequest]:
        options = self.options
        offsets: Iterable[int | None] = itertools.repeat(None)
        if not self.endless:
            offsets = itertools.repeat(None, options.requests or 0)
        lengths: Iterable[TracedRequest] = itertools.repeat(TracedRequest(0, None, None))
        if self.at_ns:
            offsets = self.at_ns
        elif options.replay is not None:
            offsets, lengths = options.replay.offsets_ns, options.replay.rows
        elif options.rate_rps is not None:
            blocks = schedule_blocks_ns(options, options.rate_rps)
            offsets = itertools.chain.from_iterable(block.tolist() for block in blocks)
        ask = None if options.prompts is None else _recorded(options, options.prompts)
        texts = SyntheticTexts(options.seed, 0, salted_vocabulary(VOCABULARIES["words"], options.salt), prefix=None)
        planned = enumerate(zip(offsets, lengths, strict=False), start=self.first)
        for index, (offset_ns, row) in self.part.select(planned):
            seed = zlib.crc32(b"%d/%d" % (options.seed, index)) >> 1
            if ask is not None:
                yield PlannedRequest(index, offset_ns, ask(index), seed)
                continue
            if ENDPOINTS[options.endpoint].transcribes:
                speech = speech_wav(options.audio_s, np.random.default_rng([options.seed, options.salt, index]))
                yield PlannedRequest(index, offset_ns, _transcription(data_url(speech, "audio/wav")), seed)
                continue
            tokens = row.input_tokens or options.input_tokens
            if row.hash_ids:
                prompt = texts.hashed(row.hash_ids, tokens, np.random.default_rng([options.seed, 1, index]))
            else:
                prompt = keyed_text(texts.vocabulary, tokens, f"{options.seed}/{index}")
            request = text_request(options.endpoint, prompt, row.output_tokens or options.output_tokens)
            yield PlannedRequest(index, offset_ns, request, seed)

    def share(self, share: SlotShare) -> SyntheticRequests:
        """Return a worker's share of all requests."""
        return replace(self, part=share)

    def find(self) -> FindRequest:
        """Return a function that finds the request of a number: its own recorded row, without the mark of the salt.

        Answers to synthetic requests are all read alike, so one request stands for them.
        """
        if self.options.prompts is not None:
            ask = _recorded(self.options, self.options.prompts, marks=False)
            return lambda number: PlannedRequest(number, None, ask(number), 0)
        if self.options.endpoint in ("chat", "completions"):
            return lambda number: None
        if ENDPOINTS[self.options.endpoint].transcribes:
            alike = _transcription("")
        else:
            alike = text_request(self.options.endpoint, "", self.options.output_tokens)
        return lambda number: PlannedRequest(number, None, alike, 0)


def _transcription(recording: str) -> ModelRequest:
    return ModelRequest("transcriptions", {"file": recording}, None)


def _recorded(options: LoadOptions, prompts: Prompts, *, marks: bool = True) -> Callable[[int], ModelRequest]:
    """Return a function that gives the recorded request of a number: in each round all rows, in an order of its own.

    Unless the salt is 0, each round marks its prompts otherwise, so that no server has them in its cache. Without
    `marks` the texts stay as recorded. Which row a number has depends on the salt all the same.
    """
    workload = Workload.model_validate({"endpoint": options.endpoint})
    builder, rows = RequestBuilder.of(workload, NO_MATERIAL), prompts.rows

    @lru_cache(maxsize=4)
    def round_of(number: int) -> tuple[IntArray, Salter | None]:
        generator = np.random.default_rng([options.seed, options.salt, number])
        order = generator.permutation(len(rows))
        salt = int(generator.integers(1, LARGEST_SALT + 1))
        return order, Salter(salt, VOCABULARIES["words"]) if options.salt and marks else None

    def ask(index: int) -> ModelRequest:
        order, salter = round_of(index // len(rows))
        row = rows[order[index % len(rows)]]
        request = builder.recorded(row, row.messages, options.output_tokens)
        return request if salter is None else salter.ask(request)

    return ask


def ramp_of(options: LoadOptions, service_s: float | None) -> tuple[Ramp | None, int]:
    """Return the ramp of a load and the instant in ns at which its measured schedule begins.

    `service_s` is the mean time in seconds that a request takes; None when it is not known. A trace and a changing
    rate have no ramp, nor has an open loop whose service time is not known.
    """
    if options.concurrency is not None:
        first = _AFTER_ALL if options.requests is None else options.requests
        return Ramp(SyntheticRequests(options, first=first), first), 0
    if options.rate_rps is None or options.ramp_to_rps is not None or service_s is None:
        return None, 0
    planned, last_ns, ramp_s = 0, 0, RAMP_SERVICE_TIMES * service_s
    for block in schedule_blocks_ns(options, options.rate_rps):
        planned, last_ns = planned + len(block), int(block[-1]) if len(block) else last_ns
    at_ns = ramp_offsets_ns(options.arrival, options.rate_rps, ramp_s, ramp_s, last_ns, [options.seed, 2])
    return Ramp(SyntheticRequests(options, first=planned, at_ns=at_ns), planned), round(ramp_s * _NS)


def schedule_blocks_ns(options: LoadOptions, rate_rps: float) -> Iterator[IntArray]:
    """Yield the intended sends of an open loop, many at a time: so many, or as many as fall within the duration."""
    arrival, seeds = options.arrival, [options.seed, 0]
    generator = np.random.default_rng(seeds)
    if options.profile is not None:
        yield np.array(profile_offsets_ns(arrival, options.profile, generator), dtype=np.int64)
    elif options.duration_s is not None:
        yield from arrival_blocks_within_ns(arrival, rate_rps, options.duration_s, seeds)
    else:
        yield from arrival_blocks_ns(arrival.process, rate_rps, options.requests or 0, generator, cv=arrival.cv)


_QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "max": 1.0}
_TARGET_RATIO = 0.95
_ALPHA = 0.05  # one-sided
_MOST_REASONS = 5  # of failures, in a result
NO_SERVER = frozenset({ErrorClass.CONNECT, ErrorClass.TLS})
SATURATION_REMEDY = (
    "lower the load, or give the load generator a machine, cores or workers of its own (`benchgate doctor`)"
)


def describe(
    options: LoadOptions,
    engine: str,
    result: StageResult | StageSummary,
    *,
    partial: bool,
    warmup: int | None,
    region: RegionShare | None = None,
) -> dict[str, object]:
    """Return the load as JSON values in seconds and ratios. `warmup` requests are in no other figure.

    The result is that of one `region` if it is given. Counts come from a summary of the records. Without the records
    themselves, so do the quantiles: each has a relative error of at most `quantile_error_ratio`.
    """
    summary = result if isinstance(result, StageSummary) else summarise([result], offered_load(options))
    requests, ramp = summary.only.requests, summary.only.ramp
    window_s = result.only.window_s
    failed = requests.failures + ramp.failures  # failures count wherever they happen
    by_class = Counter[str]()
    for (error, _), count in failed.items():
        by_class[error] += count
    if partial and isinstance(result, StageResult):
        # Whether its client kept up is unknown: CPU time and read delay are those of a load that came to its end.
        reasons = losses(result.client, result.requests)
        saturated = True if reasons else None
    else:
        reasons = _saturation(options, result, region)
        saturated = bool(reasons)
    doubt = _miscounted(options, result)
    stage = region_name(options.stage, None if region is None else region.name)
    output_tokens, generates = requests.tokens["output_tokens"], ENDPOINTS[options.endpoint].generates
    document: dict[str, object] = {
        "url": options.url,
        "request_url": options.request_url,
        "model": options.model,
        "engine": engine,
        "endpoint": options.endpoint,
        "load": (
            {
                "concurrency": options.concurrency,
                "rate_rps": options.rate_rps,
                "arrival": None if options.rate_rps is None else options.arrival.process,
                "arrival_cv": options.arrival.cv
                if options.rate_rps is not None and options.arrival.process == "gamma"
                else None,
                "trace": None if options.replay is None else options.replay.path,
                "speed": None if options.replay is None else options.replay.speed,
                "ramp_to_rps": options.ramp_to_rps,
                "think_s": options.think_s if options.concurrency is not None else None,
                "requests": options.requests,
                "duration_s": options.duration_s,
                "prompts": None if options.prompts is None else options.prompts.name,
                "inputs_sha256": options.inputs_sha256,
                **options.lengths,
                "seed": options.seed,
                "salt": options.salt,
            }
        ),
        "partial": partial,
        "requests": {
            "warmup": warmup,
            "scheduled": requests.scheduled,
            "ok": requests.succeeded,
            "ramp": ramp.scheduled,
            "ramp_failed": ramp.scheduled - ramp.succeeded,
            "failed_by_class": dict(sorted(by_class.items())),
        },
        "failures": _commonest(failed),
        "output_tokens": output_tokens,
        "reasoning_ratio": requests.token_ratio("reasoning_tokens", "output_tokens"),
        "cached_ratio": requests.token_ratio("cached_tokens", "input_tokens"),
        "miscounted": doubt,
        "tokens_from": dict(sorted(requests.token_sources.items())),
        "window_s": window_s,
        "down_after_s": result.down_after_s,
        "throughput": {
            "output_tokens_per_s": output_tokens / window_s if generates and window_s > 0 else None,
            "requests_per_s": requests.succeeded / window_s if window_s > 0 else None,
        },
        "slo": None if options.slo is None else asdict(options.slo),
        "goodput_ratio": requests.good / requests.scheduled if requests.scheduled else None,
        "quantile_error_ratio": 0.0 if isinstance(result, StageResult) else RELATIVE_ERROR,
    }
    if isinstance(result, StageResult):
        measures = (*request_metrics.LATENCIES.values(), request_metrics.ttft_sent_s, request_metrics.send_lag_s)
        document |= {measure.__name__: _summary(measure(result.requests)) for measure in measures}
    else:
        document |= {f"{name}_s": _histogram_summary(one) for name, one in requests.known_times.items()}
    read_tokens = output_tokens + ramp.tokens["output_tokens"]  # the client read those of the ramp too
    cpu_s = None if partial else result.client.cpu_s  # known only of a load that came to its end
    document["client"] = {
        "cpu_s": cpu_s,
        "cpu_us_per_token": cpu_s / read_tokens * 1e6 if read_tokens and cpu_s is not None else None,
        "workers": result.client.workers,
        "read_delay_s": (
            {
                "by": result.client.read_delay_by,
                "p50": result.client.read_delay_p50_s,
                "p99": result.client.read_delay_p99_s,
                "max": result.client.read_delay_max_s,
            }
        ),
        "start_uncertainty_s": result.client.start_uncertainty_s,
        "clock_offset_s": result.client.clock_offset_s,
        "addresses": [asdict(one) for one in result.client.addresses],
        "unasked": result.client.unasked,
        "reconnects": requests.reconnects,
        "closed_early": result.client.closed_early,
        "saturated": saturated,
        "reasons": list(reasons),
        "remedy": SATURATION_REMEDY if reasons else None,
    }
    document["stage"] = stage
    document["metrics"] = [
        {
            "name": row.name,
            "unit": TREND_UNITS[row.name],
            "statistic": row.statistic,
            "value": row.value,
            "lower": row.lower,
            "upper": row.upper,
            "n": row.n,
        }
        for row in load_metrics(result, options.slo, stage)
        if generates or row.name != "output_throughput"
    ]
    if options.slo is not None:
        reason = "the load was interrupted" if partial else _unusable(options, result, reasons, doubt)
        document["verdict"] = _verdict(misses_of(result, options.slo), reason, 1 if region is None else region.regions)
    return document


@dataclass(frozen=True, slots=True)
class RegionShare:
    """Share of a load that one of several `regions` sends."""

    name: str
    ratio: float
    regions: int


_OF_A_REGION = (
    "requests", "failures", "output_tokens", "window_s", "throughput", "goodput_ratio", "quantile_error_ratio",
    "ttft_s", "ttfot_s", "tpot_s", "itl_s", "e2e_s", "client", "stage", "metrics", "verdict",
)  # fmt: skip


def with_regions(
    document: dict[str, object], options: LoadOptions, engine: str, parts: Mapping[str, RegionPart], *, partial: bool
) -> dict[str, object]:
    """Add the figures of each region to a load's. Its verdict is then the worst of its own and the regions'."""
    shares = sum(part.shares for part in parts.values())
    regions: dict[str, dict[str, Any]] = {}
    for name, part in sorted(parts.items()):
        region = RegionShare(name, part.shares / shares, len(parts))
        of_region = describe(options, engine, part.result, partial=partial, warmup=None, region=region)
        regions[name] = {key: of_region[key] for key in _OF_A_REGION if key in of_region}
    found: dict[str, Any] = {**document, "regions": regions}
    for name, one in regions.items() if options.slo is not None else ():
        verdict = one["verdict"]
        if Outcome(verdict["outcome"]).severity > Outcome(found["verdict"]["outcome"]).severity:
            found["verdict"] = {**verdict, "region": name, "reason": f"in {name}: {verdict['reason']}"}
    return found


def _commonest(failed: Counter[tuple[str, str]]) -> list[dict[str, object]]:
    """Return the commonest reasons in words, at least one of each class: nobody should have to run it again."""
    ordered = failed.most_common()
    first_of = {error: place for place, ((error, _), _) in reversed(list(enumerate(ordered)))}
    return [
        {"count": count, "class": error, "detail": detail}
        for place, ((error, detail), count) in enumerate(ordered)
        if place < _MOST_REASONS or first_of[error] == place
    ]


def offered_load(options: LoadOptions, shares: int = 1) -> Offered:
    """Return the load by which results are judged. Rows of a trace and recorded prompts have lengths of their own."""
    output_tokens = options.output_tokens if options.replay is None and options.prompts is None else None
    if ENDPOINTS[options.endpoint].transcribes:
        output_tokens = None
    return Offered(options.slo or Slo(), options.offered_rps, output_tokens, options.seed, shares)


def _saturation(
    options: LoadOptions, result: StageResult | StageSummary, region: RegionShare | None
) -> tuple[str, ...]:
    if isinstance(result, StageSummary):
        return result.saturation
    offered_rps = options.offered_rps
    if offered_rps is not None and region is not None:
        offered_rps *= region.ratio
    return saturation_reasons(result.client, result.requests, offered_rps)


def _miscounted(options: LoadOptions, result: StageResult | StageSummary) -> str | None:
    """Return the reason why the server's token counts cannot be trusted; None for an endpoint without tokens."""
    if not ENDPOINTS[options.endpoint].generates:
        return None
    if isinstance(result, StageSummary):
        return next(iter(result.miscounts), None)
    return miscounted(result.requests, offered_load(options).output_tokens)


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


def _histogram_summary(histogram: TimeHistogram) -> dict[str, object]:
    found = {name: histogram.quantile(q) for name, q in _QUANTILES.items()}
    quantiles = {name: None if one is None or np.isinf(one.middle) else one.middle for name, one in found.items()}
    return {"n": len(histogram), "failed": histogram.infinite, "mean": histogram.mean_s, **quantiles}


def _verdict(misses: Counts, invalid: str | None, regions: int = 1) -> dict[str, object]:
    """Judge whether the share of good requests is at least 95 %, by one-sided 95 % limits, unless it is `invalid`.

    One of several `regions` is a breach by limits at 5 % / `regions`, since any of them decides (Bonferroni).
    """
    outcome, lower, upper, method, needed = Outcome.INVALID, None, None, None, None
    reason, upper_alpha = invalid, _ALPHA / regions
    if reason is None:
        from benchgate.stats.clusters import sample_size_to_decide

        counts = misses.kept, misses.totals
        limits, method = _limits(*counts, _ALPHA)
        lower, upper = limits.lower, _limits(*counts, upper_alpha)[0].upper
        if lower >= _TARGET_RATIO:
            outcome, standing = Outcome.PASS, "which shows"
        elif upper < _TARGET_RATIO:
            outcome, standing = Outcome.BLOCK, "which shows a breach of"
        else:
            outcome, standing = Outcome.INCONCLUSIVE, "too few to show or to refute"
        count = f"{sum(misses.kept)} of {misses.scheduled} requests were good"
        reason = f"{count}, {standing} the target of {show_percent(_TARGET_RATIO)}"
        if outcome is Outcome.INCONCLUSIVE:
            needed = sample_size_to_decide(*counts, _TARGET_RATIO, _ALPHA)
            reason += "; no number would, at this share" if needed is None else f"; about {needed:,} in all would do"
    return {
        "outcome": outcome.value,
        "exit_code": int(outcome.exit_code()),
        "reason": reason,
        "target_ratio": _TARGET_RATIO,
        "goodput_lower": lower,
        "goodput_upper": upper,
        "upper_alpha": upper_alpha,
        "method": method,
        "requests_needed": needed,
    }


def _unusable(
    options: LoadOptions, result: StageResult | StageSummary, saturated: tuple[str, ...], doubt: str | None
) -> str | None:
    requests = result.only.requests
    if len(requests) == 0:
        return "no request was scheduled"
    if isinstance(requests, RequestSummary):
        unreached = sum(count for (error, _), count in requests.failures.items() if error in NO_SERVER)
        first = next((detail for (error, detail) in requests.failures if error in NO_SERVER), None)
    else:
        unreached, first = int(requests.error.are(NO_SERVER).sum()), requests.error_detail[0]
    if unreached == len(requests):
        return f"the server was not there: {first}"
    if result.down_after_s is not None:
        planned = "" if options.duration_s is None else f" of {show_duration(options.duration_s)}"
        return f"the server stopped accepting connections after {show_duration(result.down_after_s)}{planned}"
    if saturated:
        return f"the client was the bottleneck: {saturated[0]}; {SATURATION_REMEDY}"
    if doubt is None or options.slo is None or options.slo.tpot_s is None:
        return None
    return f"{doubt}; see what this server's usage counts: no TPOT can be judged by it"


def _limits(good: Sequence[int], scheduled: Sequence[int], alpha: float) -> tuple[distributions.Limits, str]:
    from benchgate.stats.clusters import miss_share_limits
    from benchgate.stats.proportions import clopper_pearson

    missed = miss_share_limits(good, scheduled, alpha)
    if missed is None:
        return clopper_pearson(sum(good), sum(scheduled), alpha), "clopper_pearson"
    bounds = distributions.Limits(lower=1 - missed.upper, upper=1 - missed.lower)
    return bounds, f"korn_graubard over {len(good)} blocks"


_WARMUP_SEED = 2**40  # keeps the prompts of the warm-up apart from those of the load


PhaseWatch = Callable[[str, LiveFigures], None]
"""Takes the name of what is sent at the moment, and its figures so far."""


def run_load_test(
    options: LoadOptions, note: Callable[[str], None] = lambda line: None, watch: PhaseWatch | None = None
) -> dict[str, object]:
    """Warm up, run the load and describe it, in seconds and ratios; plain JSON values, None for what cannot be said.

    A server that fails every request gives a document too. So does an interrupted load, with what had been answered by
    then and `partial` true. `note` gets a line where the warm-up did not come to its end, `watch` the figures so far
    about once a second. Raises what `exclusive_server` and `with_model` do.
    """
    options = with_model(options)
    target, engine = target_of(options)
    warmup: int | None = None
    partial, phase = False, "warm-up"
    watched = None if watch is None else lambda figures: watch(phase, figures)
    with exclusive_server(options, target), fleet_of(options, watched) as fleet:
        try:
            warmed = warm_up_server(fleet, options, target)
            warmup, phase = warmed.requests, "load"
            if warmed.note is not None:
                note(f"warm-up: {warmed.note}")
            result = send_load(fleet, options, target, options.service_s or warmed.service_s.get(""))
        except LoadInterrupted as cut:
            result, partial = cut.left, True
    return describe(options, engine, result, partial=partial, warmup=warmup)


def warm_up_server(fleet: Fleet | ClusterFleet, options: LoadOptions, target: Target) -> WarmedUp:
    """Warm the server up at this load's level with prompts of other seeds. Raises LoadInterrupted, empty."""
    requests = first_round(options.concurrency) if options.warmup == "auto" else options.warmup
    if not requests:
        return WarmedUp()

    def send(number: int, sizes: Mapping[str, int], service_s: Mapping[str, float]) -> StageResult:
        return send_load(fleet, warmup_load(options, number, sizes[""]), target, service_s.get(""), ramped=False)

    rounds = MOST_ROUNDS if options.warmup == "auto" else 1
    try:
        return warm_up([WarmupClass("", requests, options.offered_rps)], send, rounds)
    except LoadInterrupted as cut:
        raise LoadInterrupted(StageResult.of(no_rows(), 0.0, cut.left.client)) from cut


def warmup_load(options: LoadOptions, number: int, requests: int) -> LoadOptions:
    """Return the load of a round of the warm-up, at the mean rate and with the prompts of another seed."""
    replay = options.replay and replace(options.replay, rows=options.replay.rows[:requests])
    rate_rps = options.offered_rps if options.replay is None else None
    load = replace(options, requests=requests, duration_s=None, replay=replay, rate_rps=rate_rps, ramp_to_rps=None)
    return replace(load, seed=options.seed + _WARMUP_SEED + number)


def with_model(options: LoadOptions) -> LoadOptions:
    """Return the options with a model: where they name none, the only one that the server lists.

    Raises UsageError for a server that lists several or none, TargetError for one that does not answer.
    """
    if options.model:
        return options
    from benchgate.targets.discovery import list_models, only_model  # imports an HTTP client

    require_listener(options)
    target = _target(options, "openai")
    where, remedy = f"the server at {show_address(options.url)}", "name the model with --model"
    listing = list_models(target)
    if listing.fault is not None:
        raise TargetError(f"{where} did not list its models: {listing.fault.reason}; {remedy}")
    return replace(options, model=only_model(target, listing.models, where, remedy))


def require_listener(options: LoadOptions) -> None:
    """Raise TargetError where no server listens at the address, before a warm-up is sent there.

    Behind a proxy, and for the workers of a cluster, this machine cannot tell.
    """
    address = ServerAddress.of(options.url)
    if options.route.proxy is not None or options.cluster is not None:
        return
    try:
        if address.socket is not None:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(address.socket)
        else:
            socket.create_connection((address.host, address.tcp_port), timeout=_LISTENS_S).close()
    except OSError as error:
        reason = f"no answer within {_LISTENS_S:g} s" if isinstance(error, TimeoutError) else error.strerror or error
        remedy = "start the server, or correct the address"
        raise TargetError(f"the server at {address.shown} cannot be reached: {reason}; {remedy}") from error


_LISTENS_S = 10.0
_ENGINES: Mapping[Endpoint, str] = {"generate": "tgi", "triton-generate": "triton"}  # whose own endpoints these are


def target_of(options: LoadOptions) -> tuple[Target, str]:
    """Return the server and the name of its engine, which is detected where the options leave it open."""
    if options.engine != "auto":
        return _target(options, options.engine), options.engine
    target = _target(options, "openai")
    engine = _ENGINES.get(options.endpoint)
    if engine is None:
        from benchgate.targets.probe import detect_engine  # imports an HTTP client

        engine = detect_engine(target)
    return replace(target, dialect=DIALECTS[engine]), engine


def _target(options: LoadOptions, engine: str) -> Target:
    return Target(
        Arm.CANDIDATE,
        options.url,
        options.model,
        DIALECTS[engine],
        options.api_key,
        open_headers=options.open_headers,
        secret_headers=options.secret_headers,
        route=options.route,
        grpc=options.grpc,
    )


@contextmanager
def exclusive_server(options: LoadOptions, target: Target) -> Iterator[None]:
    """Keep others from measuring the server during the block. Raises UsageError if someone does.

    Then raises what `require_listener` does.
    """
    with locked_servers([target]) as name_holder:
        name_holder("benchgate load")
        require_listener(options)
        yield


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


def send_load(
    fleet: Fleet | ClusterFleet,
    options: LoadOptions,
    target: Target,
    service_s: float | None = None,
    *,
    ramped: bool = True,
) -> StageResult:
    """Run a whole bare load over the workers of a fleet. Raises LoadInterrupted."""
    try:
        return fleet.run(stage_of(options, target, service_s, ramped=ramped))
    except KeyboardInterrupt as stop:
        left = fleet.salvage()
        raise LoadInterrupted(replace(left, client=replace(left.client, faults=()))) from stop


def stage_of(options: LoadOptions, target: Target, service_s: float | None, *, ramped: bool = True) -> Shard:
    """Return a whole bare load as one shard, with its ramp unless `ramped` is False.

    `service_s` is the mean time in seconds that a request takes; without it an open loop has no ramp.
    """
    ramp, lead_ns = ramp_of(options, service_s) if ramped else (None, 0)
    if service_s is not None:  # for which a request holds its slot
        service_s += options.think_s
    until_s = options.duration_s if options.concurrency is not None else None  # else the schedule ends by itself
    return Shard.of(
        target,
        SyntheticRequests(options),
        Level(options.concurrency, options.peak_rps, until_s, think_s=options.think_s),
        Limits(),
        audit=options.audit,
        ramp=ramp,
        service_s=service_s,
        lead_ns=lead_ns,
        by_grpc=ENDPOINTS[options.endpoint].by_grpc,
    )
