"""Prompts and scores of the eval items that are sent among a load, by lm-eval in processes that send nothing.

The load sends the prompts that lm-eval would send, and lm-eval scores the answers as if it had received them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from benchgate.errors import TargetError
from benchgate.model.deployment import Arm
from benchgate.model.records import VerifiedAnswer
from benchgate.model.request import ModelRequest
from benchgate.model.run import QualityObservation
from benchgate.plan.items import PlannedTask
from benchgate.plan.model import VerifiedItem
from benchgate.quality.runner import START_LIMIT_S, EvalProcess, follow, make_job
from benchgate.suite.quality import Quality, stage_of_task, verified_name
from benchgate.suite.schema import Limits
from benchgate.targets.dialect import Target
from benchgate.units import show_duration

Answers = Mapping[Arm, Mapping[str, Sequence[VerifiedAnswer]]]
"""Answers of each arm, by stage."""


def make_prompts(
    target: Target, tasks: Sequence[PlannedTask], settings: Quality, limits: Limits, work_dir: Path
) -> dict[VerifiedItem, ModelRequest]:
    """Return the requests of all items of the tasks, the same for every target. Raises TargetError if lm-eval fails."""
    work_dir.mkdir(parents=True, exist_ok=True)
    job = replace(make_job(target, settings.concurrency, tasks, settings, limits), recorded={}, round_rows=None)
    with EvalProcess(job, work_dir.resolve(), None) as process:
        faults = [one.fault for one in _finish([process], settings.timeout_s) if one.fault is not None]
    if faults:
        raise TargetError(f"the prompts of the eval items for `verify` could not be made: {faults[0]}")
    return {
        VerifiedItem(one.task, one.item_id): ModelRequest(
            one.endpoint, one.content, one.max_tokens, ignore_eos=False, fields=one.fields, recorded=True
        )
        for one in process.prompts
    }


def score_answers(
    targets: Mapping[Arm, Target],
    tasks: Sequence[PlannedTask],
    answers: Answers,
    settings: Quality,
    limits: Limits,
    work_dir: Path,
) -> Iterator[QualityObservation]:
    """Yield an observation for every arm, stage and task, by the task's name there (`add@c16`)."""
    work_dir.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        processes = []
        for arm, by_stage in answers.items():
            recorded = {
                verified_name(task.name, stage): {one.item_id: one for one in found if one.task == task.name}
                for stage, found in by_stage.items()
                for task in tasks
            }
            named = tuple(
                replace(task, name=verified_name(task.name, stage), leaves=None) for stage in by_stage for task in tasks
            )
            job = make_job(targets[arm], settings.concurrency, named, settings, limits)
            job = replace(job, recorded=recorded, round_rows=None)
            processes.append(stack.enter_context(EvalProcess(job, work_dir.resolve(), None)))
        for observation in _finish(processes, settings.timeout_s):
            harness = {name: value for name, value in observation.harness.items() if name != "num_concurrent"}
            yield replace(observation, harness={**harness, "stage": stage_of_task(observation.task)})


def _finish(processes: Sequence[EvalProcess], limit_s: float) -> Iterable[QualityObservation]:
    yield from follow(processes, 0, START_LIMIT_S, "it did not start within {}")
    for process in processes:
        process.start_round()
    yield from follow(processes, 1, limit_s, f"timed out after {show_duration(limit_s)} with answers not scored")
