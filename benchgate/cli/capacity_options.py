"""The options of `benchgate capacity`, in the order in which its help has them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RunArgument = Annotated[
    str | None, typer.Argument(help="Stored run whose best level that holds its SLOs is what a replica carries.")
]
ArmOption = Annotated[str, typer.Option("--arm", help="Whose: candidate or baseline.")]
StageOption = Annotated[
    str | None,
    typer.Option("--stage", help="Size by this stage of the run, which must hold; else the best that does."),
]
TargetTokensOption = Annotated[
    float | None, typer.Option("--target-tokens-per-s", help="Demand on the mean, in output tokens.")
]
TargetRequestsOption = Annotated[
    float | None, typer.Option("--target-requests-per-s", help="Demand on the mean, in requests, instead.")
]
P95Option = Annotated[float | None, typer.Option("--p95", help="The demand of busy hours, in the same unit.")]
PeakOption = Annotated[float | None, typer.Option("--peak", help="The highest demand, in the same unit.")]
TrafficOption = Annotated[
    Path | None, typer.Option("--traffic", help="CSV with one row an hour, instead of the demand (docs/capacity.md).")
]
ReplicaTokensOption = Annotated[
    float | None, typer.Option("--replica-tokens-per-s", help="What a replica carries, in output tokens.")
]
ReplicaRequestsOption = Annotated[
    float | None, typer.Option("--replica-requests-per-s", help="What a replica carries, in requests.")
]
OutputTokensOption = Annotated[
    float | None, typer.Option("--output-tokens", help="Output tokens of a request on the mean.")
]
RequestTimeOption = Annotated[
    str | None, typer.Option("--request-time", help="How long a request stays on the mean, like 2.5s.")
]
PricePerHourOption = Annotated[
    str | None,
    typer.Option(
        "--price-per-hour", help="Dollars per hour of a whole replica, like 1.2 or $1.2/h; else the run's price."
    ),
]
SafetyFactorOption = Annotated[float, typer.Option("--safety-factor", help="So many times the demand is planned for.")]
SparesOption = Annotated[
    int, typer.Option("--spares", help="Replicas that may be lost and the demand still be carried.")
]
ColdStartOption = Annotated[
    str | None,
    typer.Option(
        "--cold-start", help="From asking for a replica to its first answer, like 3min; else the run's worst start."
    ),
]
OverheadOption = Annotated[
    str | None,
    typer.Option("--overhead", help="Paid beside each dollar of replica (gateway, on-call), like 25%; else the run's."),
]
ModelConfigOption = Annotated[
    Path | None, typer.Option("--model-config", help="The model's config.json: what a token takes in the cache.")
]
CacheMemoryOption = Annotated[
    str | None,
    typer.Option("--cache-memory", help="Memory for the cache of all a replica's accelerators, like 40GB or 37GiB."),
]
RequestTokensOption = Annotated[
    int | None, typer.Option("--request-tokens", help="Tokens of a long request, prompt and answer together.")
]
CacheDtypeOption = Annotated[
    str, typer.Option("--cache-dtype", help="Type of the cache's numbers, like fp8, where it is not the model's.")
]
TensorParallelOption = Annotated[
    int | None,
    typer.Option("--tensor-parallel", help="Accelerators of a replica that share every layer, 1 unless said."),
]
MinReplicasOption = Annotated[int, typer.Option("--min-replicas", help="Replay: replicas that are always there.")]
MaxReplicasOption = Annotated[
    int | None, typer.Option("--max-replicas", help="Replay the --traffic against a fleet that grows up to this.")
]
PlacesOption = Annotated[int | None, typer.Option("--places", help="Replay: requests that a replica answers at once.")]
WaitOption = Annotated[str, typer.Option("--wait", help="Replay: how long a request may wait for a place.")]
TargetLoadOption = Annotated[str, typer.Option("--target-load", help="Replay: so much of the places shall be taken.")]
LookOption = Annotated[str, typer.Option("--look", help="Replay: how often the autoscaler looks.")]
CooldownOption = Annotated[
    str, typer.Option("--cooldown", help="Replay: how long fewer must do before some are let go.")
]
RequestCvOption = Annotated[
    float,
    typer.Option("--request-cv", help="Replay: variation of the request time; 0 constant, 1 exponential, at most 10."),
]
BalanceOption = Annotated[
    str, typer.Option("--balance", help="Replay: one-line, in-turn or least, for who gets a request.")
]
SeedOption = Annotated[int, typer.Option("--seed", help="Replay: of its arrivals and request times.", min=0)]
