"""`benchgate load`: a load test of one server, or a search for its capacity."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchgate.cli import options
from benchgate.cli.interruption import interrupted_code
from benchgate.cli.options import ResultFormat, refuse_unwritable
from benchgate.cli.saying import (
    fitting,
    inform,
    log,
    say_escaped,
    say_json_text,
    settings,
    stderr_console,
    stdout_screen,
)
from benchgate.errors import BenchgateError, ExitCode, PublishError, UsageError
from benchgate.escape import json_text
from benchgate.model.request import ENDPOINTS
from benchgate.model.verdict import Outcome
from benchgate.system import write_atomic
from benchgate.units import show_duration, show_number

if TYPE_CHECKING:
    from benchgate.load.live import LiveFigures
    from benchgate.load.standalone.options import LoadOptions
    from benchgate.load.standalone.shard import ShardOptions
    from benchgate.model.client import ClientProfile

_LOG_EVERY_S = 15.0
_SERVER, _LOAD, _REQUESTS, _CLIENT, _SHARDS, _SEARCH, _RESULT = (
    "Server", "Load", "Requests", "Load generator", "Shards", "Capacity search", "Result",
)  # fmt: skip
_ENDPOINTS = tuple(name for name, spec in ENDPOINTS.items() if spec.is_made_up)
_SPELT = {"lowest": "from", "highest": "to", "least": "min"}
_SEARCH_DEFAULTS: dict[str, Any] = {"target": "95%", "resolution": "10%", "probe": 1000}


def load(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="Address of an OpenAI-compatible server: host:8000 or https://host/v1.")
    ],
    model: Annotated[
        str | None,
        typer.Option(help="Model name.", show_default="the one that the server lists", rich_help_panel=_SERVER),
    ] = None,
    engine: Annotated[str, typer.Option(help="Dialect of the server, or auto.", rich_help_panel=_SERVER)] = "auto",
    concurrency: Annotated[
        int | None, typer.Option(help="Requests in flight (closed loop).", rich_help_panel=_LOAD)
    ] = None,
    rate: Annotated[
        str | None, typer.Option(help="Requests per second (open loop), like 8/s.", rich_help_panel=_LOAD)
    ] = None,
    arrival: Annotated[
        str | None,
        typer.Option(help="Arrivals of --rate: poisson (default), constant or gamma:CV.", rich_help_panel=_LOAD),
    ] = None,
    trace: Annotated[str | None, typer.Option(help="Trace file to replay (open loop).", rich_help_panel=_LOAD)] = None,
    speed: Annotated[float | None, typer.Option(help="Speed factor of --trace.", rich_help_panel=_LOAD)] = None,
    requests: Annotated[int | None, typer.Option(help="Number of requests.", rich_help_panel=_LOAD)] = None,
    duration: Annotated[str | None, typer.Option(help="Measured time, like 60s.", rich_help_panel=_LOAD)] = None,
    think_time: Annotated[
        str | None,
        typer.Option(
            help="Pause between an answer and the next request of --concurrency, like 2s.", rich_help_panel=_LOAD
        ),
    ] = None,
    ramp_to: Annotated[
        str | None,
        typer.Option(help="Change --rate linearly to this one within --duration, like 16/s.", rich_help_panel=_LOAD),
    ] = None,
    prompts: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE",
            help="Prompts to send: a file, the folder of a data set, hf:ORG/NAME@COMMIT, `builtin`, or a mapping as "
            "in a suite, like '{source: builtin, where: {category: code}}'.",
            rich_help_panel=_REQUESTS,
        ),
    ] = None,
    input_tokens: Annotated[
        int | None, typer.Option(help="Length of each prompt.", show_default="100", rich_help_panel=_REQUESTS)
    ] = None,
    output_tokens: Annotated[int, typer.Option(help="Length of each response.", rich_help_panel=_REQUESTS)] = 128,
    audio: Annotated[
        str | None,
        typer.Option(
            help="Length of the generated recordings that are transcribed.",
            show_default="5s",
            rich_help_panel=_REQUESTS,
        ),
    ] = None,
    grpc: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where grpc-infer is served; grpcs://HOST:PORT with TLS. URL is the server's address for HTTP.",
            rich_help_panel=_SERVER,
        ),
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(
            help=f"{', '.join(_ENDPOINTS[:-1])} or {_ENDPOINTS[-1]}.",
            show_default="the one that URL ends in, or chat",
            rich_help_panel=_SERVER,
        ),
    ] = None,
    workers: Annotated[str, typer.Option(help="Load generator processes, or auto.", rich_help_panel=_CLIENT)] = "auto",
    cluster: options.ClusterOption = None,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="I/N",
            help="Send only shard I (from 0) of N, or auto/N by JOB_COMPLETION_INDEX or SLURM_PROCID; auto+K/N adds K.",
            rich_help_panel=_SHARDS,
        ),
    ] = None,
    start_at: Annotated[
        str | None,
        typer.Option(
            metavar="INSTANT",
            help="Common start of all shards: 2026-05-01T12:00:00Z, or seconds since 1970.",
            rich_help_panel=_SHARDS,
        ),
    ] = None,
    spool: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Folder for the shards' results: a path, or an object store like s3://bucket/run-1. A file `stop` "
            "in it ends them all.",
            rich_help_panel=_SHARDS,
        ),
    ] = None,
    region: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Region that this shard is sent from; results have it.", rich_help_panel=_SHARDS
        ),
    ] = None,
    service_time: Annotated[
        str | None,
        typer.Option(
            help="Mean time of a request, like 2s, by which the load ramps up.",
            show_default="as the warm-up finds it; none with --shard",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    slo: Annotated[
        str | None, typer.Option(help="SLO of a good request: ttft=500ms,tpot=80ms.", rich_help_panel=_RESULT)
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the result to this file too.", rich_help_panel=_RESULT)
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of prompts and arrivals.", rich_help_panel=_REQUESTS)] = 0,
    salt: Annotated[
        int | None,
        typer.Option(
            help="Seed of the words of prompts; random by default, 0 for none.",
            show_default=False,
            rich_help_panel=_REQUESTS,
        ),
    ] = None,
    api_key_env: Annotated[
        str | None,
        typer.Option(
            help="Environment variable with the API key.",
            show_default="OPENAI_API_KEY, over https and to private addresses",
            rich_help_panel=_SERVER,
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME:VALUE", help="Header of every request; a secret as ${env:VARIABLE}.", rich_help_panel=_SERVER
        ),
    ] = None,
    ca: Annotated[
        str | None, typer.Option(help="CA certificates to trust instead of the system's.", rich_help_panel=_SERVER)
    ] = None,
    cert: Annotated[str | None, typer.Option(help="Client certificate, PEM.", rich_help_panel=_SERVER)] = None,
    key: Annotated[
        str | None, typer.Option(help="Key of the client certificate, PEM.", rich_help_panel=_SERVER)
    ] = None,
    proxy: Annotated[
        str | None, typer.Option(help="HTTP proxy; the environment's is not used.", rich_help_panel=_SERVER)
    ] = None,
    audit: Annotated[
        bool,
        typer.Option(
            "--audit", help="Report the read delay by kernel timestamps of arrivals.", rich_help_panel=_CLIENT
        ),
    ] = False,
    warmup: Annotated[
        str,
        typer.Option(help="Requests before the measurement; auto sends until TTFT is stable.", rich_help_panel=_LOAD),
    ] = "auto",
    search: Annotated[
        str | None, typer.Option(help="Search the capacity over rate or concurrency.", rich_help_panel=_SEARCH)
    ] = None,
    lowest: Annotated[
        str | None, typer.Option("--from", help="Lowest level of --search, like 1/s.", rich_help_panel=_SEARCH)
    ] = None,
    highest: Annotated[
        str | None, typer.Option("--to", help="Highest level of --search, like 64/s.", rich_help_panel=_SEARCH)
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(help="Share of good requests for --search.", show_default="95%", rich_help_panel=_SEARCH),
    ] = None,
    resolution: Annotated[
        str | None, typer.Option(help="Resolution of --search.", show_default="10%", rich_help_panel=_SEARCH)
    ] = None,
    probe: Annotated[
        int | None,
        typer.Option(
            help="Most measured requests per level of --search.", show_default="1000", rich_help_panel=_SEARCH
        ),
    ] = None,
    budget: Annotated[
        int | None,
        typer.Option(
            help="Most requests of a whole --search, with those sent before and after the measured ones of a level. "
            "Their number is estimated from earlier levels: those of the first, and any beyond the estimate, are "
            "extra.",
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    least: Annotated[
        str | None, typer.Option("--min", help="Required capacity: judge --search by it.", rich_help_panel=_SEARCH)
    ] = None,
    save: Annotated[
        bool,
        typer.Option("--save", help="Keep the result in the store, for trend and compare.", rich_help_panel=_RESULT),
    ] = False,
    label: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name to find the saved result by; implies --save.", rich_help_panel=_RESULT),
    ] = None,
    store: options.StoreOption = options.STORE,
    output: options.ResultFormatOption = ResultFormat.TEXT,
) -> None:
    """Load-test one server

    Prints a table of latencies. With --slo it judges the server's goodput and exits with the verdict's code.

    Example: benchgate load gpu:8000 --rate 8/s --duration 60s --slo ttft=500ms
    """
    from benchgate.load.http.library import missing_warning
    from benchgate.load.standalone.options import LoadOptions
    from benchgate.system import usable_cpus

    refuse_unwritable(json_file, store=store, prompts=prompts, trace=trace)
    save = save or label is not None
    if save and search is not None:
        raise UsageError("--save keeps a load test, and --search is none; leave it out")
    place = _shard_options(shard, start_at, spool, region)
    if place is not None:
        others = {
            "--cluster": cluster,
            "--workers": workers != "auto",
            "--search": search,
            "--json": json_file,
            "--format": output is not ResultFormat.TEXT,
            "--save": save,
        }
        if (other := next((name for name, value in others.items() if value), None)) is not None:
            raise UsageError(f"--shard sends a part of a load test with one process, without {other}; leave it out")
        workers, salt = "1", place.salt if salt is None else salt
    if save:
        _require_store(store, label)
    if cluster is None and (warning := missing_warning()) is not None:
        inform(f"warning: {warning}")
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
        think_time=think_time,
        ramp_to=ramp_to,
        service_time=service_time,
        prompts=prompts,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        audio=audio,
        grpc=grpc,
        endpoint=endpoint,
        workers=workers,
        cluster=cluster,
        slo=slo,
        seed=seed,
        salt=salt,
        api_key_env=api_key_env,
        headers=header or (),
        ca=ca,
        cert=cert,
        key=key,
        proxy=proxy,
        audit=audit,
        warmup=warmup,
        client=lambda: _client_profile(store),
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

        _log_key(parsed, api_key_env)
        is_level = parsed.rate_rps is not None and parsed.ramp_to_rps is None
        if is_level and parsed.service_s is None and (place is not None or parsed.warmup == 0):
            log_progress("the rate begins without a ramp; add --service-time, the mean time of a request, for one")
        if place is not None:
            _send_shard(parsed, test, place)
            return
        with live_display(parsed.duration_s, parsed.requests) as display:
            with _unwatched("the cluster sends") if cluster is not None else nullcontext():
                result: Mapping[str, Any] = run_load_test(parsed, display.note, display.watch)
            display.end()
    else:
        if lowest is None or highest is None:
            raise UsageError("--search needs where to begin and where to end: --from 1/s --to 64/s")
        from benchgate.load.standalone.search import SearchOptions, run_search

        values: dict[str, Any] = {**levels, **limits} | _SEARCH_DEFAULTS | given
        chosen = SearchOptions.parse(over=search, load=test, **values)
        _log_key(chosen.base, api_key_env)
        with live_display(None, None) as display:
            result = run_search(chosen, display.note, display.watch)
            display.end()
    try:
        _write(result, json_file, output)
    finally:
        if save:
            _save(result, store, label)
    raise typer.Exit(int(exit_code(result)))


def load_merge(
    urls: Annotated[list[str], typer.Argument(metavar="URL...", help="Folders that the shards had as --spool.")],
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the result to this file too.")] = None,
    save: Annotated[bool, typer.Option("--save", help="Keep the result in the store, for trend and compare.")] = False,
    label: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name to find the saved result by; implies --save.")
    ] = None,
    store: options.StoreOption = options.STORE,
    output: options.ResultFormatOption = ResultFormat.TEXT,
) -> None:
    """Merge the shards of a load test

    Prints what `load` prints. A shard that is missing, late, saturated or unlike the others makes the result INVALID
    by its name; what the others measured is kept.

    Example: benchgate load merge s3://bucket/run-1
    """
    from benchgate.load.standalone.merge import merge_shards

    refuse_unwritable(json_file, store=store)
    save = save or label is not None
    if save:
        _require_store(store, label)
    result = merge_shards(urls)
    try:
        _write(result, json_file, output)
    finally:
        if save:
            _save(result, store, label)
    raise typer.Exit(int(ExitCode.INVALID if result["partial"] else exit_code(result)))


def _shard_options(
    shard: str | None, start_at: str | None, spool: str | None, region: str | None
) -> ShardOptions | None:
    if shard is None and start_at is None and spool is None and region is None:
        return None
    from benchgate.load.standalone.shard import ShardOptions

    return ShardOptions.parse(shard, start_at, spool, os.environ, region)


def _send_shard(load: LoadOptions, texts: Mapping[str, Any], place: ShardOptions) -> None:
    from benchgate.load.standalone.shard import send_shard

    log_progress(f"shard {place.shard}/{place.shards} starts in {place.start_at_ns / 1e9 - time.time():.0f} s")
    sent = send_shard(load, texts, place, log_progress)
    log_progress(f"shard {place.shard}/{place.shards}: {sent.only.recorded:,} requests in {place.spool}")
    for fault in sent.client.faults:
        log_progress(fault)


def _save(result: Mapping[str, Any], store: str, label: str | None) -> None:
    if result["partial"]:
        log_progress("an interrupted load is not saved")
    elif exit_code(result) is ExitCode.INVALID:  # its numbers would stand in trends without their reservation
        log_progress(f"this load is not saved: {next(load_remarks(result))}")
    elif result["metrics"]:
        from benchgate.pipeline.import_load import save_load

        run_id = save_load(store, result, label)
        log_progress(f"saved as run {run_id}; compare it with another: benchgate compare RUN {label or run_id[:13]}")


def _require_store(address: str, label: str | None) -> None:
    """Raise before anything is measured what saving would raise after: for the store, and for the label."""
    from benchgate.store.missing import require_spelling
    from benchgate.store.repository import Store

    if label is not None:
        require_spelling(label)
    taken = None
    with Store.open(address) as store:
        if label is not None:
            with suppress(UsageError):
                taken = store.resolve(label)
    if taken is not None:
        raise UsageError(f"--label {label}: run {taken} has it already, and a label means one run; give another")


def _log_key(load: LoadOptions, named: str | None) -> None:
    """Log the use of a key that nobody named, and that it was not sent where it could be read on the way."""
    from benchgate.load.standalone.options import USUAL_KEY
    from benchgate.targets.address import show_address

    if named is not None or not os.environ.get(USUAL_KEY):
        return
    if load.api_key is not None:
        log_progress(f"API key from {USUAL_KEY}")
    elif "authorization" not in {*load.open_headers, *load.secret_headers}:
        place = show_address(load.url)
        log_progress(
            f"{USUAL_KEY} is not sent to {place}, neither https nor private; send it by --api-key-env {USUAL_KEY}"
        )


@contextmanager
def live_display(duration_s: float | None, requests: int | None) -> Iterator[_Display]:
    """Show a load under way: one updating line where stderr is a terminal, else a line every 15 s."""
    if settings.quiet or not sys.stderr.isatty():
        yield _Display(duration_s, requests)
        return
    from rich.live import Live
    from rich.text import Text

    with Live(
        console=stderr_console(), auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
    ) as live:

        def show(line: str) -> None:
            parts = fitting(line, live.console.width)
            live.update(Text("\n".join(parts), no_wrap=True, overflow="ellipsis"), refresh=True)

        def keep(line: str) -> None:
            for part in fitting(line, live.console.width):
                live.console.print(Text(part), soft_wrap=True)

        yield _Display(duration_s, requests, show, keep)


@contextmanager
def _unwatched(state: str) -> Iterator[None]:
    """Log a line every 15 s of a load whose figures come at its end, as other machines or processes have them."""
    over, began_s = threading.Event(), time.monotonic()

    def write() -> None:
        while not over.wait(_LOG_EVERY_S):
            log_progress(f"{state}, {time.monotonic() - began_s:.0f} s so far; its figures come at the end")

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    try:
        yield
    finally:
        over.set()
        writer.join()


class _Display:
    """Figures of a load under way as lines. Without `show`, one is logged every 15 s."""

    def __init__(
        self,
        duration_s: float | None,
        requests: int | None,
        show: Callable[[str], None] | None = None,
        keep: Callable[[str], None] = inform,
    ) -> None:
        self._duration_s, self._requests = duration_s, requests
        self._show, self._keep = show, keep
        self._logged_s = time.monotonic()
        self._phase = self._line = ""

    def note(self, line: str) -> None:
        """Write a line that stays."""
        self._keep(f"benchgate: {line}")

    def watch(self, phase: str, figures: LiveFigures) -> None:
        """Show the figures of a phase so far."""
        line = f"{phase}: {', '.join(self._figures(phase, figures))}"
        if phase != self._phase:
            self.end()
        self._phase, self._line = phase, line
        if self._show is not None:
            self._show(line)
        elif time.monotonic() - self._logged_s >= _LOG_EVERY_S:
            self._logged_s = time.monotonic()
            self.note(line)

    def end(self) -> None:
        """Keep the last figures of the phase, with `--verbose`."""
        if settings.verbose and self._line:
            self.note(self._line)

    def _figures(self, phase: str, figures: LiveFigures) -> Iterator[str]:
        left_s = self._left_s(figures) if phase == "load" else None
        yield f"{figures.elapsed_s:.0f} s" + (f" ({left_s:.0f} s left)" if left_s else "")
        yield f"{figures.in_flight:,} in flight"
        yield f"{figures.ended:,} done"
        if figures.requests_per_s is not None:
            yield f"{show_number(figures.requests_per_s)}/s"
        if figures.failed:
            yield f"{figures.failed:,} failed"
        for name, latency_s in (("TTFT", figures.ttft_p50_s), ("TPOT", figures.tpot_p50_s)):
            if latency_s is not None:
                yield f"{name} {show_duration(latency_s)}"

    def _left_s(self, figures: LiveFigures) -> float | None:
        if self._duration_s is not None:
            return max(0.0, self._duration_s - figures.elapsed_s)
        if self._requests is None or not figures.requests_per_s:
            return None
        return max(0.0, (self._requests - figures.ended) / figures.requests_per_s)


def _write(result: Mapping[str, Any], json_file: Path | None, output: ResultFormat) -> None:
    """Print a result, and write it to a file if one is named; a failed write does not keep it from being printed.

    Beside JSON, the findings go to standard error.
    """
    is_search = "search" in result
    document = json_text(json.dumps(result, indent=2, allow_nan=False)) + "\n"
    try:
        if json_file is not None:
            write_atomic(json_file, document.encode())
    except OSError as error:
        raise PublishError(f"{json_file} could not be written: {error.strerror}") from error
    finally:
        if output is ResultFormat.JSON:
            say_json_text(document)
            for line in search_remarks(result) if is_search else load_remarks(result):
                log(f"benchgate: {line}")
        else:
            from benchgate.report.load_result import render_load, render_search

            say_escaped((render_search if is_search else render_load)(result, stdout_screen()))


def exit_code(result: Mapping[str, Any]) -> ExitCode:
    """Return the exit code of a load test or a search. A saturated client makes a load test INVALID, --slo or not."""
    if result["partial"]:
        return interrupted_code()
    if "verdict" in result:
        return Outcome(result["verdict"]["outcome"]).exit_code()
    if "search" in result:
        return ExitCode.OK if result["fault"] is None else ExitCode.INVALID
    return ExitCode.INVALID if result["client"]["saturated"] or not result["requests"]["ok"] else ExitCode.OK


def load_remarks(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the reasons why a load test did not end with exit code 0."""
    if result["partial"]:
        yield "interrupted; the result holds what was measured by then"
        return
    client, failures, verdict = result["client"], result["failures"], result.get("verdict")
    if client["saturated"]:
        yield f"the client was the bottleneck: {'; '.join(client['reasons'])}; {client['remedy']}"
    elif verdict is not None and verdict["exit_code"]:
        most = f"; the commonest failure: {failures[0]['detail']}" if failures else ""
        yield f"{verdict['outcome']}: {verdict['reason']}{most}"
    if verdict is None and not result["requests"]["ok"]:
        from benchgate.report.load_result import nothing_succeeded

        yield nothing_succeeded(result)


def search_remarks(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the findings of a search, and the reason of a verdict other than PASS."""
    from benchgate.report.load_result import search_findings

    yield from search_findings(result)
    verdict = result.get("verdict")
    if verdict is not None and verdict["exit_code"] and not result["partial"] and result["fault"] is None:
        yield f"{verdict['outcome']}: {verdict['reason']}"


def _client_profile(store: str) -> ClientProfile | None:
    """Return the stored speed of a load generator process here, if known. A load test needs no store."""
    from benchgate.pipeline.environment import known_client_at

    try:
        return known_client_at(store)
    except BenchgateError as error:
        inform(f"benchgate: the speed of the load generator here is unknown: {error}")
        return None


def log_progress(line: str) -> None:
    """Write a line of progress to stderr."""
    inform(f"benchgate: {line}")
