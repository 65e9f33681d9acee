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

_SPELT = {"lowest": "from", "highest": "to", "least": "min"}
_SEARCH_DEFAULTS: dict[str, Any] = {"target": "95%", "resolution": "10%", "probe": 1000}


def load(
    url: Annotated[str, typer.Argument(metavar="URL", help="Base address of an OpenAI-compatible server.")],
    model: Annotated[str, typer.Option(help="Model name.")],
    engine: Annotated[str, typer.Option(help="Dialect of the server, or auto.")] = "auto",
    concurrency: Annotated[int | None, typer.Option(help="Requests in flight (closed loop).")] = None,
    rate: Annotated[str | None, typer.Option(help="Requests per second (open loop), like 8/s.")] = None,
    arrival: Annotated[
        str | None, typer.Option(help="Arrivals of --rate: poisson (default), constant or gamma:CV.")
    ] = None,
    trace: Annotated[str | None, typer.Option(help="Trace file to replay (open loop).")] = None,
    speed: Annotated[float | None, typer.Option(help="Speed factor of --trace.")] = None,
    requests: Annotated[int | None, typer.Option(help="Number of requests.")] = None,
    duration: Annotated[str | None, typer.Option(help="Measured time, like 60s.")] = None,
    input_tokens: Annotated[int, typer.Option(help="Length of each prompt.")] = 100,
    output_tokens: Annotated[int, typer.Option(help="Length of each response.")] = 128,
    endpoint: Annotated[str, typer.Option(help="chat, completions, responses or embeddings.")] = "chat",
    workers: Annotated[str, typer.Option(help="Load generator processes, or auto.")] = "auto",
    cluster: options.ClusterOption = None,
    slo: Annotated[str | None, typer.Option(help="SLO of a good request: ttft=500ms,tpot=80ms.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the result to this file too.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of prompts and arrivals.")] = 0,
    salt: Annotated[
        int | None,
        typer.Option(help="Seed of the words of prompts; random by default, 0 for none.", show_default=False),
    ] = None,
    api_key_env: Annotated[str | None, typer.Option(help="Environment variable with the API key.")] = None,
    header: Annotated[
        list[str] | None, typer.Option(help="NAME:VALUE for every request; a secret as ${env:VARIABLE}.")
    ] = None,
    ca: Annotated[str | None, typer.Option(help="CA certificates to trust instead of the system's.")] = None,
    cert: Annotated[str | None, typer.Option(help="Client certificate, PEM.")] = None,
    key: Annotated[str | None, typer.Option(help="Key of the client certificate, PEM.")] = None,
    proxy: Annotated[str | None, typer.Option(help="HTTP proxy; the environment's is not used.")] = None,
    audit: Annotated[
        bool, typer.Option("--audit", help="Report the read delay by kernel timestamps of arrivals.")
    ] = False,
    warmup: Annotated[
        str, typer.Option(help="Requests before the measurement; auto sends until TTFT is stable.")
    ] = "auto",
    search: Annotated[str | None, typer.Option(help="Search the capacity over rate or concurrency.")] = None,
    lowest: Annotated[str | None, typer.Option("--from", help="Lowest level of --search, like 1/s.")] = None,
    highest: Annotated[str | None, typer.Option("--to", help="Highest level of --search, like 64/s.")] = None,
    target: Annotated[str | None, typer.Option(help="Share of good requests for --search [default: 95%].")] = None,
    resolution: Annotated[str | None, typer.Option(help="Resolution of --search [default: 10%].")] = None,
    probe: Annotated[int | None, typer.Option(help="Most requests per level of --search [default: 1000].")] = None,
    budget: Annotated[int | None, typer.Option(help="Most requests of a whole --search.")] = None,
    least: Annotated[str | None, typer.Option("--min", help="Required capacity: judge --search by it.")] = None,
    store: options.StoreOption = options.STORE,
) -> None:
    """Load-test one server

    With --slo it judges the server's goodput and exits with the verdict's code.

    Example: benchgate load http://gpu:8000 --model m --rate 8/s --duration 60s
    """
    from benchgate.load.http.library import missing_warning
    from benchgate.load.standalone.options import LoadOptions
    from benchgate.pipeline.environment import usable_cpus
    from benchgate.suite.deployment import resolve_secret

    refuse_unwritable(json_file)
    if cluster is None and (warning := missing_warning()) is not None:
        log(f"warning: {warning}")
    api_key = None
    if api_key_env is not None:
        api_key = resolve_secret(f"${{env:{api_key_env}}}", os.environ, "--api-key-env")
    test: dict[str, Any] = dict(
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
        client=_client_profile(store) if workers == "auto" and cluster is None else None,
        cpus=usable_cpus(),
    )
    levels = dict(lowest=lowest, highest=highest, target=target, resolution=resolution)
    limits = dict(probe=probe, budget=budget, least=least)
    given = {name: value for name, value in {**levels, **limits}.items() if value is not None}
    if search is None:
        if given:
            name = next(iter(given))
            raise UsageError(f"--{_SPELT.get(name, name)} needs --search; leave it out, or add --search")
        parsed = LoadOptions.parse(**test)
        from benchgate.load.standalone.run import run_load_test  # slow to import, and not needed to refuse an option

        result: Mapping[str, Any] = run_load_test(parsed, log_progress)
        code = _exit_code(result)
    else:
        from benchgate.load.standalone.search import SearchOptions, run_search

        values: dict[str, Any] = {**levels, **limits} | _SEARCH_DEFAULTS | given
        result = run_search(SearchOptions.parse(over=search, load=test, **values), log_progress)
        code = search_exit_code(result)
    _write(result, json_file)
    raise typer.Exit(int(code))


def _write(result: Mapping[str, Any], json_file: Path | None) -> None:
    """Print a result, and write it to a file if one is named; a failed write does not keep it from being printed."""
    text = json_text(json.dumps(result, indent=2, allow_nan=False)) + "\n"
    try:
        if json_file is not None:
            json_file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise PublishError(f"{json_file} could not be written: {error.strerror}") from error
    finally:
        say_json_text(text)


def _exit_code(result: Mapping[str, Any]) -> ExitCode:
    """Return the exit code of a load test and log the reasons. A saturated client makes it INVALID, --slo or not."""
    from benchgate.load.standalone.run import SATURATION_REMEDY

    if result["partial"]:
        log("benchgate: interrupted; the document holds what was measured by then")
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


def _client_profile(store: str) -> ClientProfile | None:
    """Return the stored speed of a load generator process here, if known. A load test needs no store."""
    from benchgate.pipeline.environment import known_client_at

    try:
        return known_client_at(store)
    except BenchgateError as error:
        log(f"benchgate: the speed of the load generator here is unknown: {error}")
        return None


def search_exit_code(result: Mapping[str, Any]) -> ExitCode:
    """Return the exit code of a search and log its findings: 0 if it ended, unless `--min` requires a capacity."""
    if result["partial"]:
        log_progress("interrupted; the document holds what was measured by then")
        return interrupted_code()
    if result["fault"] is not None:
        log_progress(str(result["fault"]))
        return ExitCode.INVALID
    for line in _findings(result):
        log_progress(line)
    if "verdict" not in result:
        return ExitCode.OK
    verdict = result["verdict"]
    code = Outcome(verdict["outcome"]).exit_code()
    if code is not ExitCode.OK:
        log_progress(f"{verdict['outcome']}: {verdict['reason']}")
    return code


def _findings(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the bracket, or why there is none, with a remedy."""
    capacity, over, why = result["capacity"], result["search"]["over"], _ENDED.get(result["stop"], "")
    lower, upper = (None if capacity[end] is None else _level(capacity[end], over) for end in ("lower", "upper"))
    if lower is not None and upper is not None:
        yield f"the capacity is between {lower} and {upper}{why}"
    elif lower is not None:
        yield f"the capacity is {lower} or more{why}"
    elif upper is not None:
        yield f"the capacity is below {upper}{why}"
    else:
        yield f"no level was shown to meet or to miss the target{why}"
    if result["requests_needed"] is not None:
        yield f"about {result['requests_needed']:,} requests at one level would show more (--probe)"
    unclear = [probe for probe in result["probes"] if probe["standing"] in ("open", "unresolved")]
    short = ", ".join(_level(probe["level"], over) for probe in unclear if probe["window_short"])
    if short:
        yield f"measured for less than 10 s, or 10 % of its looks: {short}; give it more requests (--probe)"


_ENDED = {
    "never_breached": ": the highest level met the target; search further (--to)",
    "unmet_at_minimum": ": the lowest level missed the target; start lower (--from)",
    "unresolved": "; the remaining levels stayed unresolved",
    "probes_exhausted": "; the search tried its maximum number of levels",
    "budget_exhausted": "; the --budget is spent",
}


def _level(level: float, over: str) -> str:
    return f"{level:g}/s" if over == "rate" else f"{level:g} in flight"


def log_progress(line: str) -> None:
    """Write a line of progress to stderr."""
    log(f"benchgate: {line}")
