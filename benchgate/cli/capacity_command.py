"""`benchgate capacity`: how many replicas a demand needs, what they cost, and how many requests their cache holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from benchgate.cli import options
from benchgate.cli.capacity_asked import by_option, cache_asked, carried, demand_asked, measured_row, read_option
from benchgate.cli.capacity_replay import ReplayOptions, rehearsed
from benchgate.cli.options import CareFormat
from benchgate.cli.saying import say
from benchgate.errors import UsageError


def capacity(
    run: Annotated[
        str | None, typer.Argument(help="Stored run whose best level that holds its SLOs is what a replica carries.")
    ] = None,
    arm: Annotated[str, typer.Option("--arm", help="Whose: candidate or baseline.")] = "candidate",
    target_tokens_per_s: Annotated[
        float | None, typer.Option("--target-tokens-per-s", help="Demand on the mean, in output tokens.")
    ] = None,
    target_requests_per_s: Annotated[
        float | None, typer.Option("--target-requests-per-s", help="Demand on the mean, in requests, instead.")
    ] = None,
    p95: Annotated[float | None, typer.Option("--p95", help="The demand of busy hours, in the same unit.")] = None,
    peak: Annotated[float | None, typer.Option("--peak", help="The highest demand, in the same unit.")] = None,
    traffic: Annotated[
        Path | None,
        typer.Option("--traffic", help="CSV with one row an hour, instead of the demand (docs/capacity.md)."),
    ] = None,
    replica_tokens_per_s: Annotated[
        float | None, typer.Option("--replica-tokens-per-s", help="What a replica carries, in output tokens.")
    ] = None,
    replica_requests_per_s: Annotated[
        float | None, typer.Option("--replica-requests-per-s", help="What a replica carries, in requests.")
    ] = None,
    output_tokens: Annotated[
        float | None, typer.Option("--output-tokens", help="Output tokens of a request on the mean.")
    ] = None,
    request_time: Annotated[
        str | None, typer.Option("--request-time", help="How long a request stays on the mean, like 2.5s.")
    ] = None,
    price_per_hour: Annotated[
        float | None,
        typer.Option("--price-per-hour", help="Dollars per hour of a whole replica; else the run's price."),
    ] = None,
    safety_factor: Annotated[
        float, typer.Option("--safety-factor", help="So many times the demand is planned for.")
    ] = 1.2,
    spares: Annotated[
        int, typer.Option("--spares", help="Replicas that may be lost and the demand still be carried.")
    ] = 1,
    cold_start: Annotated[
        str | None, typer.Option("--cold-start", help="From asking for a replica to its first answer, like 3min.")
    ] = None,
    overhead: Annotated[
        str | None, typer.Option("--overhead", help="Paid beside each dollar of replica (gateway, on-call), like 25%.")
    ] = None,
    model_config: Annotated[
        Path | None, typer.Option("--model-config", help="The model's config.json: what a token takes in the cache.")
    ] = None,
    cache_memory: Annotated[
        str | None, typer.Option("--cache-memory", help="A replica's memory for the cache, like 40GiB.")
    ] = None,
    request_tokens: Annotated[
        int | None, typer.Option("--request-tokens", help="Tokens of a long request, prompt and answer together.")
    ] = None,
    cache_dtype: Annotated[
        str, typer.Option("--cache-dtype", help="Type of the cache's numbers, like fp8, where it is not the model's.")
    ] = "",
    min_replicas: Annotated[int, typer.Option("--min-replicas", help="Replay: replicas that are always there.")] = 1,
    max_replicas: Annotated[
        int | None, typer.Option("--max-replicas", help="Replay the --traffic against a fleet that grows up to this.")
    ] = None,
    places: Annotated[
        int | None, typer.Option("--places", help="Replay: requests that a replica answers at once.")
    ] = None,
    wait: Annotated[str, typer.Option("--wait", help="Replay: how long a request may wait for a place.")] = "1s",
    target_load: Annotated[
        str, typer.Option("--target-load", help="Replay: so much of the places shall be taken.")
    ] = "80%",
    look: Annotated[str, typer.Option("--look", help="Replay: how often the autoscaler looks.")] = "15s",
    cooldown: Annotated[
        str, typer.Option("--cooldown", help="Replay: how long fewer must do before some are let go.")
    ] = "5min",
    request_cv: Annotated[
        float, typer.Option("--request-cv", help="Replay: variation of the request time; 0 constant, 1 exponential.")
    ] = 1.0,
    balance: Annotated[
        str, typer.Option("--balance", help="Replay: one-line, in-turn or least, for who gets a request.")
    ] = "one-line",
    seed: Annotated[int, typer.Option("--seed", help="Replay: of its arrivals and request times.", min=0)] = 0,
    store: options.StoreOption = options.STORE,
    output: Annotated[CareFormat, typer.Option("--format", help="How to print the fleet.")] = CareFormat.TEXT,
) -> None:
    """Size a fleet: from a stored run, or from numbers alone."""
    from benchgate.cost.fleet import Replica
    from benchgate.cost.sizing import REQUESTS, Question, sizing
    from benchgate.report.sizing import sizing_document, sizing_text
    from benchgate.units import parse_percent_ratio, parse_span_s

    asked = demand_asked(target_tokens_per_s, target_requests_per_s, (p95, peak), traffic)
    measured = measured_row(run, arm, store) if run is not None else None
    row = measured.row if measured is not None else None
    rates = carried(asked.unit, (replica_tokens_per_s, replica_requests_per_s), row)
    price = price_per_hour if price_per_hour is not None or measured is None else measured.usd_per_hour
    overhead_ratio = read_option("--overhead", overhead, parse_percent_ratio) if overhead is not None else 0.0
    residence_s = read_option("--request-time", request_time, parse_span_s) if request_time is not None else None
    cold_start_s = read_option("--cold-start", cold_start, parse_span_s) if cold_start is not None else None
    if residence_s is None and row is not None:
        residence_s, places = row.e2e_mean_s, places if places is not None else row.in_flight
    usd_per_hour = None if price is None else price * (1 + overhead_ratio)
    try:
        found = sizing(
            Question(
                unit=asked.unit,
                demand=asked.demand,
                replica=Replica(*rates, usd_per_hour),
                overhead_ratio=overhead_ratio,
                safety_factor=safety_factor,
                spares=spares,
                residence_s=residence_s,
                tokens_per_request=output_tokens
                if output_tokens is not None or row is None
                else row.tokens_per_request,
                cold_start_s=cold_start_s,
                cache=cache_asked(model_config, cache_memory, request_tokens, cache_dtype),
            )
        )
    except ValueError as error:
        raise UsageError(f"this fleet cannot be: {by_option(error)}") from None
    scaled = ReplayOptions(
        min_replicas, max_replicas, places, wait, look, cooldown, target_load, request_cv, balance, seed
    )
    hours = asked.hours if asked.unit == REQUESTS else None
    replayed = rehearsed(scaled, hours, residence_s, cold_start_s, usd_per_hour)
    if output is CareFormat.JSON:
        say(json.dumps(sizing_document(found, row, replayed), indent=2, sort_keys=True) + "\n")
    else:
        say(sizing_text(found, row, replayed, judged="" if measured is None else measured.outcome))
