"""`benchgate load`: a load test of one server, or a search for its capacity."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchgate.cli import options
from benchgate.cli.interruption import interrupted_code
from benchgate.cli.options import refuse_unwritable
from benchgate.cli.saying import log, say_json_text
from benchgate.errors import BenchgateError, ExitCode, PublishError, UsageError
from benchgate.escape import json_text
from benchgate.model.verdict import Outcome

if TYPE_CHECKING:
    from benchgate.model.client import ClientProfile

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


def load(
    url: UrlArgument,
    model: ModelOption,
    engine: EngineOption = "auto",
    concurrency: ConcurrencyOption = None,
    rate: RateOption = None,
    arrival: ArrivalOption = None,
    trace: TraceOption = None,
    speed: SpeedOption = None,
    requests: RequestsOption = None,
    duration: DurationOption = None,
    input_tokens: InputTokensOption = 100,
    output_tokens: OutputTokensOption = 128,
    endpoint: EndpointOption = "chat",
    workers: WorkersOption = "auto",
    cluster: options.ClusterOption = None,
    slo: SloOption = None,
    json_file: JsonFileOption = None,
    seed: SeedOption = 0,
    salt: SaltOption = None,
    api_key_env: ApiKeyEnvOption = None,
    header: HeaderOption = None,
    ca: CaOption = None,
    cert: CertOption = None,
    key: KeyOption = None,
    proxy: ProxyOption = None,
    audit: AuditOption = False,
    warmup: WarmupOption = "auto",
    search: SearchOption = None,
    lowest: LowestOption = None,
    highest: HighestOption = None,
    target: TargetOption = None,
    resolution: ResolutionOption = None,
    probe: ProbeOption = None,
    budget: BudgetOption = None,
    least: LeastOption = None,
    store: options.StoreOption = options.STORE,
) -> None:
    """Load-test one server; with --slo, judge its goodput and exit with the verdict's code."""
    from benchgate.load.http.library import missing_warning
    from benchgate.load.standalone.options import LoadOptions
    from benchgate.load.standalone.run import run_load_test
    from benchgate.pipeline.environment import usable_cpus
    from benchgate.suite.deployment import resolve_secret

    refuse_unwritable(json_file)
    if cluster is None and (warning := missing_warning()) is not None:
        log(f"warning: {warning}")
    api_key = None
    if api_key_env is not None:
        api_key = resolve_secret(f"${{env:{api_key_env}}}", os.environ, "--api-key-env")

    asked: dict[str, Any] = dict(
        url=url,
        model=model,
        engine=engine,
        concurrency=concurrency,
        rate=rate,
        arrival=arrival,
        trace=trace,
        speed=speed,
        requests=requests,
        duration=duration,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        endpoint=endpoint,
        workers=workers,
        cluster=cluster,
        slo=slo,
        seed=seed,
        salt=salt,
        api_key=api_key,
        headers=header or (),
        ca=ca,
        cert=cert,
        key=key,
        proxy=proxy,
        audit=audit,
        warmup=warmup,
        client=_client(store) if workers == "auto" and cluster is None else None,
        cpus=usable_cpus(),
    )
    wanted = {
        "lowest": lowest,
        "highest": highest,
        "target": target,
        "resolution": resolution,
        "probe": probe,
        "budget": budget,
        "least": least,
    }
    if search is None:
        refuse_without_search(wanted)
        result = run_load_test(LoadOptions.parse(**asked), tell)
    else:
        result = searched(search, wanted, asked)
    code = _exit_code(result) if search is None else search_exit_code(result)
    _tell(result, json_file)
    raise typer.Exit(int(code))


def _tell(result: Mapping[str, Any], json_file: Path | None) -> None:
    """Write a result to a file where one is named, and print it: each whatever becomes of the other."""
    text = json_text(json.dumps(result, indent=2, allow_nan=False)) + "\n"
    try:
        if json_file is not None:
            json_file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise PublishError(f"{json_file} could not be written: {error.strerror}") from error
    finally:
        say_json_text(text)


def _exit_code(result: Mapping[str, Any]) -> ExitCode:
    """How a load test ends, with the reasons on stderr. A saturated client's numbers are its own, --slo or not."""
    from benchgate.load.standalone.run import SATURATION_REMEDY

    if result["partial"]:
        log("benchgate: interrupted; the document holds what was answered by then")
        return interrupted_code()
    code = ExitCode.OK
    if result["client"]["saturated"]:
        reasons = "; ".join(result["client"]["reasons"])
        log(f"benchgate: the client was the bottleneck: {reasons}; {SATURATION_REMEDY}")
        code = ExitCode.INVALID
    if "verdict" in result:
        verdict = result["verdict"]
        code = Outcome(verdict["outcome"]).exit_code()
        if code is not ExitCode.OK and not result["client"]["saturated"]:
            failures = result["failures"]
            most = f"; the commonest failure: {failures[0]['detail']}" if failures else ""
            log(f"benchgate: {verdict['outcome']}: {verdict['reason']}{most}")
    elif not result["requests"]["ok"]:
        failures = result["failures"]
        first = failures[0]["detail"] if failures else "no request was sent"
        log(f"benchgate: no request succeeded: {first}")
        code = ExitCode.INVALID
    return code


def _client(store: str) -> ClientProfile | None:
    """What one load generator process delivers here, if a store says so. A load test needs no store to run."""
    from benchgate.pipeline.environment import known_client_at

    try:
        return known_client_at(store)
    except BenchgateError as error:
        log(f"benchgate: what the load generator delivers here is not known: {error}")
        return None


_SPELT = {"lowest": "from", "highest": "to", "least": "min"}
_USUAL: dict[str, Any] = {"target": "95%", "resolution": "10%", "probe": 1000}


def refuse_without_search(wanted: Mapping[str, object]) -> None:
    """An option of the search that would change nothing is a mistake."""
    for name, value in wanted.items():
        if value is not None:
            raise UsageError(f"--{_SPELT.get(name, name)} means nothing without --search; leave it out")


def searched(over: str, wanted: Mapping[str, Any], load: Mapping[str, Any]) -> dict[str, object]:
    """Search one server; the document."""
    from benchgate.load.standalone.search import SearchOptions, run_search

    given: dict[str, Any] = {name: value if value is not None else _USUAL.get(name) for name, value in wanted.items()}
    return run_search(SearchOptions.parse(over=over, load=load, **given), tell)


def search_exit_code(result: Mapping[str, Any]) -> ExitCode:
    """0 for a search that ended, whatever it found, unless a `--min` asks for a verdict. What it found is told."""
    if result["partial"]:
        tell("interrupted; the document holds what was known by then")
        return interrupted_code()
    if result["fault"] is not None:
        tell(str(result["fault"]))
        return ExitCode.INVALID
    for line in _findings(result):
        tell(line)
    if "verdict" not in result:
        return ExitCode.OK
    verdict = result["verdict"]
    code = Outcome(verdict["outcome"]).exit_code()
    if code is not ExitCode.OK:
        tell(f"{verdict['outcome']}: {verdict['reason']}")
    return code


def _findings(result: Mapping[str, Any]) -> Iterator[str]:
    """The bracket, or why there is none, and what would mend that."""
    capacity, over, why = result["capacity"], result["search"]["over"], _ENDED.get(result["stop"], "")
    lower, upper = (None if capacity[end] is None else _level(capacity[end], over) for end in ("lower", "upper"))
    if lower is not None and upper is not None:
        yield f"the capacity is between {lower} and {upper}{why}"
    elif lower is not None:
        yield f"the capacity is {lower} or more{why}"
    elif upper is not None:
        yield f"the capacity is below {upper}{why}"
    else:
        yield f"no level was shown to meet the target or to miss it{why}"
    if result["requests_needed"] is not None:
        yield f"about {result['requests_needed']:,} requests at one level would show more (--probe)"
    unclear = [probe for probe in result["probes"] if probe["standing"] in ("open", "unresolved")]
    short = ", ".join(_level(probe["level"], over) for probe in unclear if probe["window_short"])
    if short:
        yield f"watched for less than 10 s, or 10 % of its looks: {short}; more requests (--probe) watch longer"


_ENDED = {
    "never_breached": ": the highest level met the target; search further (--to)",
    "unmet_at_minimum": ": the lowest level missed the target; begin lower (--from)",
    "unresolved": "; the levels left to look at stayed unresolved",
    "probes_exhausted": "; the search looked at as many levels as it may",
    "budget_exhausted": "; the --budget is spent",
}


def _level(level: float, over: str) -> str:
    return f"{level:g}/s" if over == "rate" else f"{level:g} in flight"


def tell(line: str) -> None:
    """Write a line of progress to stderr."""
    log(f"benchgate: {line}")
