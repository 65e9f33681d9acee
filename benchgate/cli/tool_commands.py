"""The bare load test, a tool of its own."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchgate.cli import options
from benchgate.cli.interruption import interrupted_code
from benchgate.cli.places import refuse_unwritable
from benchgate.cli.saying import say
from benchgate.cli.searching import refuse_without_search, search_exit_code, searched
from benchgate.errors import BenchgateError, ExitCode, PublishError
from benchgate.model.verdict import Outcome

if TYPE_CHECKING:
    from benchgate.model.client import ClientProfile


def load(
    url: Annotated[str, typer.Argument(help="Base address of an OpenAI-compatible server.")],
    model: Annotated[str, typer.Option("--model", help="Model name to ask for.")],
    engine: Annotated[str, typer.Option("--engine", help="Dialect of the server, or auto.")] = "auto",
    concurrency: Annotated[int | None, typer.Option("--concurrency", help="Requests in flight (closed loop).")] = None,
    rate: Annotated[str | None, typer.Option("--rate", help="Requests per second (open loop), like 8/s.")] = None,
    arrival: Annotated[
        str | None, typer.Option("--arrival", help="poisson (unless said), constant or gamma:CV; of --rate.")
    ] = None,
    trace: Annotated[str | None, typer.Option("--trace", help="Recorded file to replay (open loop).")] = None,
    speed: Annotated[float | None, typer.Option("--speed", help="How much faster than recorded; of --trace.")] = None,
    requests: Annotated[int | None, typer.Option("--requests", help="How many requests to send.")] = None,
    duration: Annotated[str | None, typer.Option("--duration", help="How long to send, like 60s.")] = None,
    input_tokens: Annotated[int, typer.Option("--input-tokens", help="Length of each prompt.")] = 100,
    output_tokens: Annotated[int, typer.Option("--output-tokens", help="Length of each answer.")] = 128,
    endpoint: Annotated[str, typer.Option("--endpoint", help="chat, completions, responses or embeddings.")] = "chat",
    workers: Annotated[str, typer.Option("--workers", help="Load generator processes, or auto.")] = "auto",
    cluster: options.ClusterOption = None,
    slo: Annotated[str | None, typer.Option("--slo", help="What a good request meets: ttft=500ms,tpot=80ms.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the result to this file as well.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of prompts and arrivals.")] = 0,
    api_key_env: Annotated[str | None, typer.Option("--api-key-env", help="Variable that holds the API key.")] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", help="NAME:VALUE for every request; a secret as ${env:VARIABLE}.")
    ] = None,
    ca: Annotated[str | None, typer.Option("--ca", help="CA certificates to trust instead of the system's.")] = None,
    cert: Annotated[str | None, typer.Option("--cert", help="Client certificate to show, PEM.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="Key of the client certificate, PEM.")] = None,
    proxy: Annotated[
        str | None, typer.Option("--proxy", help="HTTP proxy; none is taken from the environment.")
    ] = None,
    audit: Annotated[
        bool, typer.Option("--audit", help="Let the kernel stamp arrivals; report the read delay.")
    ] = False,
    search: Annotated[str | None, typer.Option("--search", help="Find the capacity over rate or concurrency.")] = None,
    lowest: Annotated[str | None, typer.Option("--from", help="Where --search begins, like 1/s.")] = None,
    highest: Annotated[str | None, typer.Option("--to", help="How far --search goes, like 64/s.")] = None,
    target: Annotated[str | None, typer.Option("--target", help="Share of good requests that --search wants.")] = None,
    resolution: Annotated[str | None, typer.Option("--resolution", help="How near --search comes, like 10%.")] = None,
    probe: Annotated[int | None, typer.Option("--probe", help="Most requests per level of --search.")] = None,
    budget: Annotated[int | None, typer.Option("--budget", help="Most requests of a whole --search.")] = None,
    least: Annotated[str | None, typer.Option("--min", help="Judge the capacity that --search finds by this.")] = None,
    store: options.StoreOption = options.STORE,
) -> None:
    """Load-test one server; with --slo, judge its goodput and exit with the verdict's code."""
    from benchgate.circumstances import usable_cpus
    from benchgate.load.bare import BareOptions, run_bare
    from benchgate.suite.references import resolve_secret

    refuse_unwritable(json_file)
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
        api_key=api_key,
        headers=header or (),
        ca=ca,
        cert=cert,
        key=key,
        proxy=proxy,
        audit=audit,
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
        result = run_bare(BareOptions.parse(**asked))
    else:
        result = searched(search, wanted, asked)
    code = _exit_code(result) if search is None else search_exit_code(result)
    _tell(result, json_file)
    raise typer.Exit(int(code))


def _tell(result: Mapping[str, Any], json_file: Path | None) -> None:
    """Write a result to a file where one is named, and print it: each whatever becomes of the other."""
    text = json.dumps(result, indent=2, allow_nan=False) + "\n"
    try:
        if json_file is not None:
            json_file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise PublishError(f"{json_file} could not be written: {error.strerror}") from error
    finally:
        say(text)


def _exit_code(result: Mapping[str, Any]) -> ExitCode:
    """How a load test ends, with the reasons on stderr. A saturated client's numbers are its own, --slo or not."""
    from benchgate.load.bare import SATURATION_REMEDY

    if result["partial"]:
        sys.stderr.write("benchgate: interrupted; the document holds what was answered by then\n")
        return interrupted_code()
    code = ExitCode.OK
    if result["client"]["saturated"]:
        reasons = "; ".join(result["client"]["reasons"])
        sys.stderr.write(f"benchgate: the client was the bottleneck: {reasons}; {SATURATION_REMEDY}\n")
        code = ExitCode.INVALID
    if "verdict" in result:
        verdict = result["verdict"]
        code = Outcome(verdict["outcome"]).exit_code()
        if code is not ExitCode.OK and not result["client"]["saturated"]:
            failures = result["failures"]
            most = f"; the commonest failure: {failures[0]['detail']}" if failures else ""
            sys.stderr.write(f"benchgate: {verdict['outcome']}: {verdict['reason']}{most}\n")
    elif not result["requests"]["ok"]:
        failures = result["failures"]
        first = failures[0]["detail"] if failures else "no request was sent"
        sys.stderr.write(f"benchgate: no request succeeded: {first}\n")
        code = ExitCode.INVALID
    return code


def _client(store: str) -> ClientProfile | None:
    """What one load generator process delivers here, if a store says so. A load test needs no store to run."""
    from benchgate.circumstances import known_client_at

    try:
        return known_client_at(store)
    except BenchgateError as error:
        sys.stderr.write(f"benchgate: what the load generator delivers here is not known: {error}\n")
        return None
