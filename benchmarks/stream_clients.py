"""One client in a process of its own: a closed loop of token streams, what it cost and what it says it saw.

    .venv/bin/python -m benchmarks.stream_clients CLIENT URL MODEL [--streams 500] [--seconds 10] [--tokens 128]

CLIENT is benchgate (its own load engine, one worker), watched (the same under the live view of `benchgate load`, in a
terminal), sampled (the same beside telemetry that polls the server),
uncompiled (the same, all of it in Python), httpx (on asyncio's own loop), httpx2 (its maintained successor, on
uvloop), aiohttp (on uvloop) or bare. httpx, httpx2 and aiohttp are plain competent loops: one session without limits
on connections, line by line, an instant from perf_counter for every line, JSON parsed after the answer is whole. bare
is the least that Python can do: a protocol on uvloop that keeps reads and instants, knows no HTTP beyond the last
bytes of a response, and looks for text by a pattern. Prints one document. `cpu_s` is user and system time of the
process and its children from before the first request to after the last answer was read and every quantile computed;
starting the interpreter and the first request ever are not in it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import pty
import re
import resource
import subprocess
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, cast
from urllib.parse import urlsplit

import httpx
import httpx2
import numpy as np
import uvloop

from benchgate.load.http.library import DISABLED_BY
from benchgate.load.live import Watch

Document = dict[str, Any]
_TEXT = re.compile(rb'"content":"(?!")')
_HEADERS = {"content-type": "application/json", "accept-encoding": "identity"}


@dataclass(frozen=True)
class Job:
    """A closed loop: so many streams, each asking again until the time is up."""

    url: str
    model: str
    streams: int
    seconds: float
    tokens: int

    @property
    def address(self) -> str:
        """Where a chat is asked for."""
        return f"{self.url}/v1/chat/completions"

    @property
    def body(self) -> bytes:
        """One request, always the same."""
        return json.dumps(
            {
                "model": self.model,
                "messages": [{"role": "user", "content": "word " * 100}],
                "max_tokens": self.tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        ).encode()


@dataclass
class Seen:
    """What a client saw, in seconds."""

    ttft_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    tokens: int = 0

    def take(self, sent_s: float, lines: list[tuple[float, str | bytes]]) -> None:
        """Read a whole answer: every line with its instant."""
        instants = []
        for at_s, line in lines:
            text = line[6:].strip()
            if text in ("[DONE]", b"[DONE]"):
                continue
            choices = json.loads(text)["choices"]
            if choices and choices[0]["delta"].get("content"):
                instants.append(at_s)
        self.note(sent_s, instants)

    def note(self, sent_s: float, instants: list[float]) -> None:
        """The instants of an answer's tokens."""
        self.tokens += len(instants)
        self.ttft_s.append(instants[0] - sent_s)
        self.gaps_s += [after - before for before, after in itertools.pairwise(instants)]

    def document(self) -> Document:
        """The same in quantiles."""
        ttft_p50_s, ttft_p99_s = np.quantile(self.ttft_s, (0.5, 0.99)).tolist()
        itl_p99_s = float(np.quantile(self.gaps_s, 0.99))
        return {"tokens": self.tokens, "ttft_p50_s": ttft_p50_s, "ttft_p99_s": ttft_p99_s, "itl_p99_s": itl_p99_s}


def run_benchgate(job: Job, watch: Watch | None = None) -> Document:
    """The load engine as `benchgate load` runs it; TTFT is from the instant a request was due."""
    from benchgate.gate.evidence.client_saturation import saturation_reasons
    from benchgate.load.standalone.options import LoadOptions
    from benchgate.load.standalone.run import fleet_of, send_load
    from benchgate.model import request_metrics
    from benchgate.model.columns import concatenate_columns
    from benchgate.model.deployment import Arm
    from benchgate.targets.dialect import DIALECTS, Target

    options = LoadOptions(
        job.url, job.model, "vllm", concurrency=job.streams, duration_s=job.seconds, output_tokens=job.tokens
    )
    with fleet_of(options, watch) as fleet:
        result = send_load(fleet, options, Target(Arm.CANDIDATE, job.url, job.model, DIALECTS["vllm"]))
    columns = concatenate_columns([result.requests, result.only.ramp])  # the client does the same work for all of them
    if not request_metrics.succeeded(columns).all():
        raise SystemExit(f"requests failed: {set(columns.error_detail)}")
    ttft_s, gaps_s = request_metrics.ttft_s(columns), request_metrics.itl_s(columns)
    seen = Seen(ttft_s.tolist(), gaps_s.tolist(), int(columns.output_tokens.sum()))
    return seen.document() | {"client_bound": saturation_reasons(result.client, columns, None)}


def run_watched(job: Job) -> Document:
    """The same with the live view of `benchgate load`, in a terminal of its own."""
    from benchgate.cli.load import live_display

    ours, theirs = pty.openpty()
    with subprocess.Popen(["cat"], stdin=ours, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
        os.close(ours)
        with (
            os.fdopen(theirs, "w") as terminal,  # closed, it ends what reads the other side
            contextlib.redirect_stderr(terminal),
            live_display(job.seconds, None) as display,
        ):
            return run_benchgate(job, lambda figures: display.watch("load", figures))


async def httpx_lines(job: Job, seen: Seen) -> None:
    """One AsyncClient of httpx."""
    free = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(limits=free, timeout=None, trust_env=False) as client:
        await _each_line(client, job, seen)


async def httpx2_lines(job: Job, seen: Seen) -> None:
    """One AsyncClient of httpx2."""
    free = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx2.AsyncClient(limits=free, timeout=None, trust_env=False) as client:
        await _each_line(client, job, seen)


async def _each_line(client: httpx.AsyncClient | httpx2.AsyncClient, job: Job, seen: Seen) -> None:
    """`aiter_lines` of either."""
    body = job.body

    async def ask() -> None:
        sent_s = perf_counter()
        lines: list[tuple[float, str | bytes]] = []
        async with client.stream("POST", job.address, content=body, headers=_HEADERS) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    lines.append((perf_counter(), line))
        seen.take(sent_s, lines)

    await closed_loop(job, ask)


async def aiohttp_lines(job: Job, seen: Seen) -> None:
    """One ClientSession of aiohttp, iterating over the lines of the content."""
    import aiohttp

    body, timeout = job.body, aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=2**20) as session:

        async def ask() -> None:
            sent_s = perf_counter()
            lines: list[tuple[float, str | bytes]] = []
            async with session.post(job.address, data=body, headers=_HEADERS) as response:
                async for line in response.content:
                    if line.startswith(b"data: "):
                        lines.append((perf_counter(), line))
            seen.take(sent_s, lines)

        await closed_loop(job, ask)


class BareConnection(asyncio.Protocol):
    """One kept connection of the bare client."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Open."""
        self.transport = cast(asyncio.Transport, transport)
        self.reads: list[tuple[float, bytes]] = []
        self.over: asyncio.Future[None] | None = None

    def data_received(self, data: bytes) -> None:
        """Keep it; the response is whole when it ends as a chunked one does."""
        self.reads.append((perf_counter(), data))
        if data.endswith(b"\r\n0\r\n\r\n") and self.over is not None:
            self.over.set_result(None)

    async def ask(self, request: bytes) -> list[tuple[float, bytes]]:
        """One request, and the reads of its answer."""
        self.reads, self.over = [], asyncio.get_running_loop().create_future()
        self.transport.write(request)
        await self.over
        return self.reads


async def bare_reads(job: Job, seen: Seen) -> None:
    """Reads as they come, over connections used again."""
    address = urlsplit(job.address)
    host, port = address.hostname, address.port
    assert host is not None and port is not None
    lines = [f"POST {address.path} HTTP/1.1", f"host: {address.netloc}", f"content-length: {len(job.body)}"]
    lines += [f"{name}: {value}" for name, value in _HEADERS.items()]
    request = "\r\n".join([*lines, "", ""]).encode() + job.body
    idle: list[BareConnection] = []

    async def ask() -> None:
        if idle:
            connection = idle.pop()
        else:
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_connection(BareConnection, host, port)
        sent_s = perf_counter()
        reads = await connection.ask(request)
        idle.append(connection)
        seen.note(sent_s, [at_s for at_s, data in reads for _ in _TEXT.findall(data)])

    await closed_loop(job, ask)


async def closed_loop(job: Job, ask: Callable[[], Awaitable[None]]) -> None:
    """Every slot asks again until the time is up; what is under way then is awaited.

    The slots begin as benchgate's do: five hundred requests of one instant would wait in the server's own reading.
    """
    began_s = perf_counter()
    until_s = began_s + job.seconds
    gap_s = min(0.001, 0.5 / job.streams)

    async def slot() -> None:
        while perf_counter() < until_s:
            await ask()

    async with asyncio.TaskGroup() as slots:
        for number in range(job.streams):
            await asyncio.sleep(max(0.0, began_s + number * gap_s - perf_counter()))
            slots.create_task(slot())


def run_plain(lines: Callable[[Job, Seen], Awaitable[None]], job: Job, *, on_uvloop: bool) -> Document:
    """One of the plain loops."""
    seen = Seen()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if on_uvloop else None) as runner:
        runner.run(_awaited(lines(job, seen)))
    return seen.document()


async def _awaited(result: Awaitable[None]) -> None:
    await result


def run_sampled(job: Job) -> Document:
    """The load engine as a run drives it, with the server's metrics page read every second."""
    from benchgate.model.deployment import Arm
    from benchgate.targets.dialect import DIALECTS, Target
    from benchgate.telemetry.sampler import Sampler
    from benchgate.telemetry.sources import Sources

    target = Target(Arm.CANDIDATE, job.url, job.model, DIALECTS["vllm"])
    with Sampler(Sources(page=f"{job.url}/metrics"), target) as sampler, sampler.stage() as snapshots:
        document = run_benchgate(job)
    if len(snapshots.taken) < job.seconds / 2:
        raise SystemExit(f"only {len(snapshots.taken)} snapshots were taken")
    return document


def run_uncompiled(job: Job) -> Document:
    """The load engine as it runs where nothing could be compiled."""
    os.environ[DISABLED_BY] = "0"
    return run_benchgate(job)


CLIENTS: dict[str, Callable[[Job], Document]] = {
    "benchgate": run_benchgate,
    "watched": run_watched,
    "sampled": run_sampled,
    "uncompiled": run_uncompiled,
    "httpx": lambda job: run_plain(httpx_lines, job, on_uvloop=False),
    "httpx2": lambda job: run_plain(httpx2_lines, job, on_uvloop=True),
    "aiohttp": lambda job: run_plain(aiohttp_lines, job, on_uvloop=True),
    "bare": lambda job: run_plain(bare_reads, job, on_uvloop=True),
}


def cpu_s() -> float:
    """User and system seconds so far of this process and its children that ended."""
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in spent)


def main() -> None:
    """Warm up with one stream, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("client", choices=CLIENTS)
    parser.add_argument("url")
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--tokens", type=int, default=128)
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    run = CLIENTS[options.client]
    run(Job(options.url, options.model, streams=1, seconds=0.01, tokens=2))  # imports what is imported when it runs
    httpx2.post(f"{options.url}/sim/reset", trust_env=False).raise_for_status()
    job = Job(options.url, options.model, options.streams, options.seconds, options.tokens)
    before_s, began_s = cpu_s(), perf_counter()
    document = run(job)
    document["cpu_s"], document["wall_s"] = cpu_s() - before_s, perf_counter() - began_s
    print(json.dumps(document))


if __name__ == "__main__":
    main()
