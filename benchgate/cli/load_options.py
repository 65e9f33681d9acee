"""The options of `benchgate load`, in the order in which its help has them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

UrlArgument = Annotated[str, typer.Argument(help="Base address of an OpenAI-compatible server.")]
ModelOption = Annotated[str, typer.Option("--model", help="Model name to ask for.")]
EngineOption = Annotated[str, typer.Option("--engine", help="Dialect of the server, or auto.")]
ConcurrencyOption = Annotated[int | None, typer.Option("--concurrency", help="Requests in flight (closed loop).")]
RateOption = Annotated[str | None, typer.Option("--rate", help="Requests per second (open loop), like 8/s.")]
ArrivalOption = Annotated[
    str | None, typer.Option("--arrival", help="poisson (unless said), constant or gamma:CV; of --rate.")
]
TraceOption = Annotated[str | None, typer.Option("--trace", help="Recorded file to replay (open loop).")]
SpeedOption = Annotated[float | None, typer.Option("--speed", help="How much faster than recorded; of --trace.")]
RequestsOption = Annotated[int | None, typer.Option("--requests", help="How many requests to send.")]
DurationOption = Annotated[str | None, typer.Option("--duration", help="How long to send, like 60s.")]
InputTokensOption = Annotated[int, typer.Option("--input-tokens", help="Length of each prompt.")]
OutputTokensOption = Annotated[int, typer.Option("--output-tokens", help="Length of each answer.")]
EndpointOption = Annotated[str, typer.Option("--endpoint", help="chat, completions, responses or embeddings.")]
WorkersOption = Annotated[str, typer.Option("--workers", help="Load generator processes, or auto.")]
SloOption = Annotated[str | None, typer.Option("--slo", help="What a good request meets: ttft=500ms,tpot=80ms.")]
JsonFileOption = Annotated[Path | None, typer.Option("--json", help="Write the result to this file as well.")]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of prompts and arrivals.")]
SaltOption = Annotated[
    int | None,
    typer.Option(
        "--salt", help="Changes the words of prompts; drawn anew unless given, 0 for none.", show_default=False
    ),
]
ApiKeyEnvOption = Annotated[str | None, typer.Option("--api-key-env", help="Variable that holds the API key.")]
HeaderOption = Annotated[
    list[str] | None, typer.Option("--header", help="NAME:VALUE for every request; a secret as ${env:VARIABLE}.")
]
CaOption = Annotated[str | None, typer.Option("--ca", help="CA certificates to trust instead of the system's.")]
CertOption = Annotated[str | None, typer.Option("--cert", help="Client certificate to show, PEM.")]
KeyOption = Annotated[str | None, typer.Option("--key", help="Key of the client certificate, PEM.")]
ProxyOption = Annotated[str | None, typer.Option("--proxy", help="HTTP proxy; none is taken from the environment.")]
WarmupOption = Annotated[
    str, typer.Option("--warmup", help="Requests sent before, in no figure; auto goes on until TTFT no longer falls.")
]
AuditOption = Annotated[bool, typer.Option("--audit", help="Let the kernel stamp arrivals; report the read delay.")]
SearchOption = Annotated[str | None, typer.Option("--search", help="Find the capacity over rate or concurrency.")]
LowestOption = Annotated[str | None, typer.Option("--from", help="Where --search begins, like 1/s.")]
HighestOption = Annotated[str | None, typer.Option("--to", help="How far --search goes, like 64/s.")]
TargetOption = Annotated[str | None, typer.Option("--target", help="Share of good requests that --search wants.")]
ResolutionOption = Annotated[str | None, typer.Option("--resolution", help="How near --search comes, like 10%.")]
ProbeOption = Annotated[int | None, typer.Option("--probe", help="Most requests per level of --search.")]
BudgetOption = Annotated[int | None, typer.Option("--budget", help="Most requests of a whole --search.")]
LeastOption = Annotated[str | None, typer.Option("--min", help="Judge the capacity that --search finds by this.")]
