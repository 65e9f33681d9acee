"""One bare load test over one or several processes that share one clock: plan, split, run, merge."""

from __future__ import annotations

import itertools
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from multiprocessing.connection import Connection as Pipe
from multiprocessing.process import BaseProcess
from time import monotonic_ns

import numpy as np

from benchgate.errors import BenchgateError
from benchgate.load.options import BareOptions
from benchgate.load.tickets import Ticket, tickets_of
from benchgate.load.worker import Level, StageResult, run_tickets
from benchgate.model.records import RequestColumns
from benchgate.model.run import ClientUse
from benchgate.plan.arrivals import arrival_offsets_ns
from benchgate.plan.schedule import PlannedRequest
from benchgate.plan.workloads import prompt_text
from benchgate.suite.schema import Limits
from benchgate.targets.dialect import Target

_NS = 1_000_000_000
_START_IN_NS = 100_000_000  # between "all are ready" and the shared start


def run_fleet(options: BareOptions, target: Target) -> StageResult:
    """Run the whole load over `options.workers` processes; one worker is this process itself."""
    if options.workers == 1:
        return _run_share(options, target, 0, monotonic_ns)
    context = multiprocessing.get_context("spawn")
    processes: list[BaseProcess] = []
    pipes: list[Pipe] = []
    try:
        for worker in range(options.workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, options, target, worker), daemon=True)
            process.start()
            theirs.close()
            processes.append(process)
            pipes.append(ours)
        for pipe in pipes:
            _receive(pipe)  # connections are open
        epoch_ns = monotonic_ns() + _START_IN_NS
        for pipe in pipes:
            pipe.send(epoch_ns)
        results = []
        for pipe in pipes:
            result = _receive(pipe)
            assert isinstance(result, StageResult)
            results.append(result)
        return merged(results)
    finally:
        for started in processes:
            started.terminate()
            started.join()
        for pipe in pipes:
            pipe.close()


def _receive(pipe: Pipe) -> object:
    try:
        return pipe.recv()
    except EOFError:
        raise BenchgateError("a load generator process died; its own message stands above") from None


def _work(pipe: Pipe, options: BareOptions, target: Target, worker: int) -> None:
    """The life of one load generator process. Ctrl-C is the parent's, who then ends this."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def start() -> int:
        pipe.send(None)
        epoch_ns: int = pipe.recv()
        time.sleep(max(0, epoch_ns - monotonic_ns()) / _NS)
        return epoch_ns

    pipe.send(_run_share(options, target, worker, start))


def _run_share(options: BareOptions, target: Target, worker: int, start: Callable[[], int]) -> StageResult:
    """Every `workers`-th request, beginning with the `worker`-th."""
    ignore_eos = target.dialect.ignore_eos is not None
    tickets: Iterable[Ticket] = tickets_of(
        target, _requests(options, worker), endpoint=options.endpoint, ignore_eos=ignore_eos
    )
    endless = options.concurrency is not None and options.duration_s is not None
    return run_tickets(target, tickets if endless else list(tickets), _level(options, worker), Limits(), start)


def _level(options: BareOptions, worker: int) -> Level:
    if options.concurrency is not None:
        slots = len(range(worker, options.concurrency, options.workers))
        return Level(slots, None, options.duration_s)
    assert options.rate_rps is not None
    return Level(None, options.rate_rps / options.workers)


def _requests(options: BareOptions, worker: int) -> Iterator[PlannedRequest]:
    """The requests of one worker: together with the others' the same ones, however many workers there are."""
    if options.rate_rps is None:
        indexes: Iterable[int] = itertools.count() if options.requests is None else range(options.requests)
        planned: Iterable[tuple[int, int | None]] = ((index, None) for index in indexes)
    else:
        planned = enumerate(schedule_ns(options, options.rate_rps))
    for index, offset_ns in itertools.islice(planned, worker, None, options.workers):
        generator = np.random.default_rng([options.seed, 1, index])
        yield PlannedRequest(
            index=index,
            offset_ns=offset_ns,
            prompt=prompt_text("words", options.input_tokens, generator),
            output_tokens=options.output_tokens,
            seed=int(generator.integers(2**31)),
        )


def schedule_ns(options: BareOptions, rate_rps: float) -> tuple[int, ...]:
    """The intended sends of an open loop: so many, or as many as fall within the duration."""
    arrival = options.arrival

    def offsets(count: int) -> tuple[int, ...]:
        generator = np.random.default_rng([options.seed, 0])
        return arrival_offsets_ns(arrival.process, rate_rps, count, generator, cv=arrival.cv)

    if options.duration_s is None:
        return offsets(options.requests or 0)
    end_ns = int(options.duration_s * _NS)
    count = 16 + int(2 * rate_rps * options.duration_s)
    while (planned := offsets(count))[-1] <= end_ns:
        count *= 2
    return tuple(ns for ns in planned if ns <= end_ns)


def merged(results: Sequence[StageResult]) -> StageResult:
    """The results of workers that shared one epoch, as if one had done it all."""
    parts = [result.requests for result in results]
    columns: dict[str, object] = {}
    for column in fields(RequestColumns):
        values = [getattr(part, column.name) for part in parts]
        if column.name == "chunk_start":
            lengths = np.concatenate([np.diff(starts) for starts in values])
            columns[column.name] = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        elif isinstance(values[0], np.ndarray):
            columns[column.name] = np.concatenate(values)
        else:
            columns[column.name] = tuple(itertools.chain.from_iterable(values))
    used = [result for result in results if len(result.requests)]
    first_s = [int(result.requests.intended_ns.min()) / _NS for result in used]
    last_s = [first + result.window_s for first, result in zip(first_s, used, strict=True)]
    client = ClientUse(
        cpu_s=sum(result.client.cpu_s for result in results),
        wall_s=max(result.client.wall_s for result in results),
        workers=len(results),
    )
    window_s = max(last_s) - min(first_s) if used else 0.0
    down_after_s = min((result.down_after_s for result in results if result.down_after_s is not None), default=None)
    packed = RequestColumns(**columns)  # type: ignore[arg-type]  # typed by name
    return StageResult(packed, window_s, client, down_after_s)
