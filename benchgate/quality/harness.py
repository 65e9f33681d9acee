"""Evals of both arms at the same time, each in an lm-eval process of its own."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from benchgate.errors import UsageError, lacking
from benchgate.model.deployment import Arm
from benchgate.model.records import EvalItem
from benchgate.model.run import INTERRUPTED, QualityObservation
from benchgate.plan.items import PlannedTask
from benchgate.quality.arm import ArmProcess
from benchgate.quality.spool import Job
from benchgate.suite.quality import Quality
from benchgate.suite.schema import Limits
from benchgate.targets.address import ServerAddress
from benchgate.targets.dialect import PATHS, Target
from benchgate.units import show_duration

_POLL_S = 0.05
_START_LIMIT_S = 120.0
"""For importing lm-eval, which takes seconds on a busy machine; not counted as time of the eval."""

_ITEMS_A_LOOK = 10

Items = Mapping[str, tuple[Sequence[EvalItem], Sequence[EvalItem]]]
"""Task → the baseline's and the candidate's items so far, in the order of asking."""

Stop = Callable[[Items], str | None]
"""What is shown by the items so far, so that no more are asked; None while nothing is."""

OnProgress = Callable[[Arm, str, int], None]
"""Called with the arm, the task and how many of its items have been answered."""


def require_lm_eval() -> None:
    """UsageError when lm-eval cannot be imported; cheap, so that it can be asked before any request is sent."""
    if find_spec("lm_eval") is None or find_spec("aiohttp") is None:
        raise UsageError(lacking("quality needs lm-eval, which is not installed", "eval"))


def evaluate(
    targets: Mapping[Arm, Target],
    tasks: Sequence[PlannedTask],
    settings: Quality,
    work_dir: Path,
    *,
    limits: Limits | None = None,
    on_progress: OnProgress | None = None,
    stop: Stop | None = None,
) -> Iterator[QualityObservation]:
    """Exactly one observation per task and arm, each as soon as it is complete.

    With `repeat_baseline` one more of each task on the baseline, as `repeat` 1. All processes begin together and run
    side by side, so that both servers see the same load. With `stop_early` they ask in rounds, and what `stop` says of
    the answers after one ends them all: their observations then hold what came until there, as `stopped_early` of their
    harness says, and no fault. Nothing else that happens to one arm touches the other. A server
    that fails, a process that dies and `settings.timeout_s`, which counts from the common start over all tasks, end as
    a `fault` beside the items answered until then; so does an interrupt, which is raised again once these observations
    are taken. Leaving the iteration at any point ends the processes. Files stay in `work_dir`; they hold prompts and
    answers, never a credential.
    """
    require_lm_eval()
    work_dir.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        processes = []
        for asked in _askings(targets, settings):
            job = _job(asked, tasks, settings, limits or Limits())
            progress = partial(on_progress, asked.arm) if on_progress is not None and not asked.repeat else _ignore
            process = ArmProcess(asked.target, job, work_dir.resolve(), progress, asked.repeat)
            processes.append(stack.enter_context(process))
        try:
            yield from _until(lambda process: process.ready, processes, _START_LIMIT_S, "it did not start within {}")
            yield from _rounds(processes, settings.timeout_s, stop)
        except (KeyboardInterrupt, SystemExit):
            for process in processes:
                process.kill()
                yield from process.new_observations()
                yield from process.abandoned(INTERRUPTED)
            raise


@dataclass(frozen=True, slots=True)
class _Asking:
    """One process: whom it asks, for which time, and how many requests of it are in flight."""

    target: Target
    repeat: int
    concurrency: int

    @property
    def arm(self) -> Arm:
        return self.target.arm


def _askings(targets: Mapping[Arm, Target], settings: Quality) -> Iterator[_Asking]:
    """Each arm once, and the baseline once more where its own noise is to be known.

    Both askings of the baseline go at the same time as the candidate's and share the requests in flight, so that every
    server has as many: answers differ by what they are batched with, and an idle server would show too little of it.
    """
    for arm, target in targets.items():
        if arm is Arm.BASELINE and settings.repeat_baseline:
            yield _Asking(target, 0, settings.concurrency - settings.concurrency // 2)
            yield _Asking(target, 1, settings.concurrency // 2)
        else:
            yield _Asking(target, 0, settings.concurrency)


def _rounds(processes: Sequence[ArmProcess], limit_s: float, stop: Stop | None) -> Iterator[QualityObservation]:
    """Let all arms ask round after round, each as soon as all are through with the one before, until it is enough."""
    deadline = time.monotonic() + limit_s
    number = 0
    while any(not process.finished for process in processes):
        for process in processes:
            process.start()
        number += 1
        through = partial(_is_through, number)
        left_s = max(deadline - time.monotonic(), 0.0)
        yield from _until(through, processes, left_s, f"timed out after {show_duration(limit_s)} with tasks unfinished")
        if stop is not None and (shown := stop(_pairs(processes))) is not None:
            for process in processes:
                yield from process.stopped(shown)


def _pairs(processes: Sequence[ArmProcess]) -> Items:
    """Each task's items so far, the baseline's and the candidate's; none where an arm is missing."""
    arms = {process.judged: process.items() for process in processes if process.judged is not None}
    if len(arms) < len(Arm):
        return {}
    return {task: (items, arms[Arm.CANDIDATE][task]) for task, items in arms[Arm.BASELINE].items()}


def _chunk(tasks: Sequence[PlannedTask], settings: Quality) -> int | None:
    """Rows of each task between two looks at what was answered: some ten of all tasks together; None without looks."""
    if not settings.stop_early:
        return None
    return max(2, math.ceil(_ITEMS_A_LOOK / max(len(tasks), 1)))


def _is_through(number: int, process: ArmProcess) -> bool:
    return process.rounds >= number


def _until(
    enough: Callable[[ArmProcess], bool], processes: Sequence[ArmProcess], limit_s: float, late: str
) -> Iterator[QualityObservation]:
    """Follow the arms until each has had enough or all of its tasks are observed, if need be with a fault.

    An arm whose process ends, or which has not had enough within `limit_s`, gets the fault for all its open tasks.
    """
    deadline = time.monotonic() + limit_s
    while waiting := [process for process in processes if not process.finished and not enough(process)]:
        for process in waiting:
            ended = process.ended  # asked first: what was written before the end is then certainly read
            yield from process.new_observations()
            if ended:
                yield from process.abandoned(process.end_reason())
            elif time.monotonic() > deadline:
                process.kill()
                yield from process.new_observations()  # what was answered since the last look
                yield from process.abandoned(late.format(show_duration(limit_s)))
        time.sleep(_POLL_S)


def _ignore(task: str, answered: int) -> None:
    """Nobody wants to know."""


def _job(asked: _Asking, tasks: Sequence[PlannedTask], settings: Quality, limits: Limits) -> Job:
    target = asked.target
    server = ServerAddress.of(target.url)
    return Job(
        url=server.http_url + PATHS[settings.endpoint],
        socket=server.socket,
        route=target.route,
        model=target.model,
        endpoint=settings.endpoint,
        headers=target.plain_headers(),
        extra=dict(target.dialect.extra),
        leave_out=list(target.dialect.leave_out),
        max_tokens_field=target.dialect.max_tokens_field,
        concurrency=asked.concurrency,
        max_tokens=settings.max_tokens,
        connect_s=limits.connect_s,
        total_s=limits.total_s,
        tasks=tuple(tasks),
        engine=target.dialect.engine,
        base_url=target.url,
        memory_bytes=settings.memory_bytes,
        in_flight=settings.concurrency,
        chunk=_chunk(tasks, settings),
    )
