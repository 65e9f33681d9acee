"""The bare load test, a tool of its own."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from benchgate.cli import load_options as given
from benchgate.cli import options
from benchgate.cli.interruption import interrupted_code
from benchgate.cli.places import refuse_unwritable
from benchgate.cli.saying import log, say_json_text
from benchgate.cli.searching import refuse_without_search, search_exit_code, searched, tell
from benchgate.errors import BenchgateError, ExitCode, PublishError
from benchgate.escape import json_text
from benchgate.model.verdict import Outcome

if TYPE_CHECKING:
    from benchgate.model.client import ClientProfile


def load(
    url: given.UrlArgument,
    model: given.ModelOption,
    engine: given.EngineOption = "auto",
    concurrency: given.ConcurrencyOption = None,
    rate: given.RateOption = None,
    arrival: given.ArrivalOption = None,
    trace: given.TraceOption = None,
    speed: given.SpeedOption = None,
    requests: given.RequestsOption = None,
    duration: given.DurationOption = None,
    input_tokens: given.InputTokensOption = 100,
    output_tokens: given.OutputTokensOption = 128,
    endpoint: given.EndpointOption = "chat",
    workers: given.WorkersOption = "auto",
    cluster: options.ClusterOption = None,
    slo: given.SloOption = None,
    json_file: given.JsonFileOption = None,
    seed: given.SeedOption = 0,
    salt: given.SaltOption = None,
    api_key_env: given.ApiKeyEnvOption = None,
    header: given.HeaderOption = None,
    ca: given.CaOption = None,
    cert: given.CertOption = None,
    key: given.KeyOption = None,
    proxy: given.ProxyOption = None,
    audit: given.AuditOption = False,
    warmup: given.WarmupOption = "auto",
    search: given.SearchOption = None,
    lowest: given.LowestOption = None,
    highest: given.HighestOption = None,
    target: given.TargetOption = None,
    resolution: given.ResolutionOption = None,
    probe: given.ProbeOption = None,
    budget: given.BudgetOption = None,
    least: given.LeastOption = None,
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
