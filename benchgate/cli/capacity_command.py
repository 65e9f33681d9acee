"""`benchgate capacity`: how many replicas a demand needs, what they cost, and how many requests their cache holds."""

from __future__ import annotations

from typing import Annotated

import typer

from benchgate.cli import capacity_options as given
from benchgate.cli import options
from benchgate.cli.capacity_asked import (
    by_option,
    cache_asked,
    carried,
    demand_asked,
    price_asked,
    read_if_said,
    require_no_longer_answers,
)
from benchgate.cli.capacity_effect import require_effect, require_use, said_in
from benchgate.cli.capacity_replay import ReplayOptions, rehearsed
from benchgate.cli.capacity_run import Numbers, measured_run
from benchgate.cli.options import CareFormat
from benchgate.cli.saying import say, say_json
from benchgate.errors import UsageError


def capacity(
    context: typer.Context,
    run: given.RunArgument = None,
    arm: given.ArmOption = "candidate",
    stage: given.StageOption = None,
    target_tokens_per_s: given.TargetTokensOption = None,
    target_requests_per_s: given.TargetRequestsOption = None,
    p95: given.P95Option = None,
    peak: given.PeakOption = None,
    traffic: given.TrafficOption = None,
    replica_tokens_per_s: given.ReplicaTokensOption = None,
    replica_requests_per_s: given.ReplicaRequestsOption = None,
    output_tokens: given.OutputTokensOption = None,
    request_time: given.RequestTimeOption = None,
    price_per_hour: given.PricePerHourOption = None,
    safety_factor: given.SafetyFactorOption = 1.2,
    spares: given.SparesOption = 1,
    cold_start: given.ColdStartOption = None,
    overhead: given.OverheadOption = None,
    model_config: given.ModelConfigOption = None,
    cache_memory: given.CacheMemoryOption = None,
    request_tokens: given.RequestTokensOption = None,
    cache_dtype: given.CacheDtypeOption = "",
    tensor_parallel: given.TensorParallelOption = None,
    min_replicas: given.MinReplicasOption = 1,
    max_replicas: given.MaxReplicasOption = None,
    places: given.PlacesOption = None,
    wait: given.WaitOption = "1s",
    target_load: given.TargetLoadOption = "80%",
    look: given.LookOption = "15s",
    cooldown: given.CooldownOption = "5min",
    request_cv: given.RequestCvOption = 1.0,
    balance: given.BalanceOption = "one-line",
    seed: given.SeedOption = 0,
    store: options.StoreOption = options.STORE,
    output: Annotated[CareFormat, typer.Option("--format", help="How to print the fleet.")] = CareFormat.TEXT,
) -> None:
    """Size a fleet: from a stored run, or from numbers alone."""
    from benchgate.report.sizing import sizing_document, sizing_text
    from benchgate.sizing.fleet import REQUESTS, Replica, SizingInput, size_demand
    from benchgate.units import parse_duration_s, parse_percent_ratio, parse_span_s

    words = said_in(context)
    require_effect(words, is_fixed=min_replicas == max_replicas)
    asked = demand_asked(target_tokens_per_s, target_requests_per_s, (p95, peak), traffic)
    measured = measured_run(run, arm, stage, store) if run is not None else None
    row = None if measured is None else measured.seen.choice.row
    rates = carried(asked.unit, (replica_tokens_per_s, replica_requests_per_s), row)
    require_no_longer_answers(asked.unit, output_tokens, row)
    said = Numbers(
        usd_per_hour=price_asked(price_per_hour),
        overhead_ratio=read_if_said("--overhead", overhead, parse_percent_ratio),
        residence_s=read_if_said("--request-time", request_time, parse_duration_s),
        tokens_per_request=output_tokens,
        cold_start_s=read_if_said("--cold-start", cold_start, parse_span_s),
        places=places,
    )
    known, seen = (said, None) if measured is None else measured.beside(said)
    require_use(
        words,
        in_requests=asked.unit == REQUESTS,
        has_price=known.usd_per_hour is not None,
        has_time=known.residence_s is not None,
    )
    cache = cache_asked(model_config, cache_memory, request_tokens, cache_dtype, tensor_parallel)
    try:
        found = size_demand(
            SizingInput(
                unit=asked.unit,
                demand=asked.demand,
                replica=Replica(*rates, known.paid_usd_per_hour),
                overhead_ratio=known.overhead_ratio,
                safety_factor=safety_factor,
                spares=spares,
                residence_s=known.residence_s,
                tokens_per_request=known.tokens_per_request,
                cold_start_s=known.cold_start_s,
                cache=cache,
            )
        )
    except ValueError as error:
        raise UsageError(f"this fleet cannot be: {by_option(error)}") from None
    scaled = ReplayOptions(
        min_replicas, max_replicas, known.places, wait, look, cooldown, target_load, request_cv, balance, seed
    )
    hours = asked.hours if asked.unit == REQUESTS else None
    replayed = rehearsed(scaled, hours, found.question)
    if output is CareFormat.JSON:
        say_json(sizing_document(found, seen, replayed), sort_keys=True, allow_nan=False)
    else:
        say(sizing_text(found, seen, replayed))
