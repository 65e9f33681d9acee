"""Evals of both arms at the same time, each in an lm-eval process of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from benchgate.errors import UsageError, lacking
from benchgate.model.deployment import Arm
from benchgate.model.run import QualityObservation
from benchgate.plan.schedule import PlannedTask
from benchgate.quality.arm import ArmProcess
from benchgate.quality.spool import Job
from benchgate.suite.schema import Limits, Quality
from benchgate.targets.address import ServerAddress
from benchgate.targets.dialect import PATHS, Target
from benchgate.units import show_duration

_POLL_S = 0.05
_START_LIMIT_S = 120.0
"""For importing lm-eval, which takes seconds on a busy machine; not counted as time of the eval."""

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
) -> Iterator[QualityObservation]:
    """Exactly one observation per task and arm, each as soon as it is complete.

    The arms begin together and run side by side, so that both servers see the same load. Nothing that happens to one
    arm touches the other. A server that fails, a process that dies and `settings.timeout_s`, which counts from the
    common start over all tasks, end as a `fault` beside the items answered until then; so does an interrupt, which is
    raised again once these observations are taken. Leaving the iteration at any point ends the processes. Files stay in
    `work_dir`; they hold prompts and answers, never a credential.
    """
    require_lm_eval()
    work_dir.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        processes = []
        for arm, target in targets.items():
            job = _job(target, tasks, settings, limits or Limits())
            progress = partial(on_progress, arm) if on_progress is not None else _ignore
            processes.append(stack.enter_context(ArmProcess(target, job, work_dir.resolve(), progress)))
        try:
            yield from _until(lambda process: process.ready, processes, _START_LIMIT_S, "it did not start within {}")
            for process in processes:
                process.start()
            late = "timed out after {} with tasks unfinished"
            yield from _until(lambda process: False, processes, settings.timeout_s, late)
        except (KeyboardInterrupt, SystemExit):
            for process in processes:
                process.kill()
                yield from process.new_observations()
                yield from process.abandoned("interrupted")
            raise


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


def _job(target: Target, tasks: Sequence[PlannedTask], settings: Quality, limits: Limits) -> Job:
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
        concurrency=settings.concurrency,
        max_tokens=settings.max_tokens,
        connect_s=limits.connect_s,
        total_s=limits.total_s,
        tasks=tuple(tasks),
    )
