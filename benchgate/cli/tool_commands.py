"""Commands that are tools of their own: the bare load test, and care for the store."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from benchgate.cli import options
from benchgate.errors import ExitCode
from benchgate.model.verdict import Outcome


def load(
    url: Annotated[str, typer.Argument(help="Base address of an OpenAI-compatible server.")],
    model: Annotated[str, typer.Option("--model", help="Model name to ask for.")],
    engine: Annotated[str, typer.Option("--engine", help="Dialect of the server, or auto.")] = "auto",
    concurrency: Annotated[int | None, typer.Option("--concurrency", help="Requests in flight (closed loop).")] = None,
    rate: Annotated[str | None, typer.Option("--rate", help="Requests per second (open loop), like 8/s.")] = None,
    arrival: Annotated[str, typer.Option("--arrival", help="poisson, constant or gamma:CV.")] = "poisson",
    requests: Annotated[int | None, typer.Option("--requests", help="How many requests to send.")] = None,
    duration: Annotated[str | None, typer.Option("--duration", help="How long to send, like 60s.")] = None,
    input_tokens: Annotated[int, typer.Option("--input-tokens", help="Length of each prompt.")] = 100,
    output_tokens: Annotated[int, typer.Option("--output-tokens", help="Length of each answer.")] = 128,
    endpoint: Annotated[str, typer.Option("--endpoint", help="chat or completions.")] = "chat",
    workers: Annotated[str, typer.Option("--workers", help="Load generator processes, or auto.")] = "auto",
    slo: Annotated[str | None, typer.Option("--slo", help="What a good request meets: ttft=500ms,tpot=80ms.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the result to this file as well.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of prompts and arrivals.")] = 0,
    api_key_env: Annotated[str | None, typer.Option("--api-key-env", help="Variable that holds the API key.")] = None,
) -> None:
    """Load-test one server; with --slo, judge its goodput and exit with the verdict's code."""
    from benchgate.load.bare import BareOptions, run_bare
    from benchgate.suite.references import resolve_secret

    key = resolve_secret(f"${{env:{api_key_env}}}", os.environ) if api_key_env is not None else None

    result = run_bare(
        BareOptions.parse(
            url=url,
            model=model,
            engine=engine,
            concurrency=concurrency,
            rate=rate,
            arrival=arrival,
            requests=requests,
            duration=duration,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            endpoint=endpoint,
            workers=workers,
            slo=slo,
            seed=seed,
            api_key=key,
        )
    )
    text = json.dumps(result, indent=2, allow_nan=False) + "\n"
    sys.stdout.write(text)
    if json_file is not None:
        try:
            json_file.write_text(text, encoding="utf-8")
        except OSError as error:
            sys.stderr.write(f"benchgate: {json_file} could not be written: {error.strerror}\n")
            raise typer.Exit(int(ExitCode.PUBLISH_FAILED)) from error
    verdict = result.get("verdict")
    if isinstance(verdict, dict):
        raise typer.Exit(int(Outcome(str(verdict["outcome"])).exit_code()))
    if not result.get("output_tokens"):
        failures = result.get("failures")
        first = failures[0]["detail"] if isinstance(failures, list) and failures else "no request was sent"
        sys.stderr.write(f"benchgate: no request succeeded: {first}\n")
        raise typer.Exit(int(ExitCode.INVALID))


def upgrade(store: options.StoreOption = options.STORE) -> None:
    """Bring a store to this version's schema; an SQLite file is backed up beside it first."""
    from benchgate.store.migrate import upgrade as upgrade_store

    done = upgrade_store(store)
    kept = f"; the old one is kept at {done.backup}" if done.backup else ""
    typer.echo(f"schema {done.before or 'none'} → {done.after}{kept}")
