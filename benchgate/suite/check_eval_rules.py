"""What checks of evals and of recorded prompts must be to them: no task and no judge that nobody looks at."""

from __future__ import annotations

from collections.abc import Iterator

from benchgate.suite.check import Check
from benchgate.suite.metric_kinds import KINDS
from benchgate.suite.parts import Parts, task_stem
from benchgate.suite.text import Fault


def has_its_floor(parts: Parts, number: int, check: Check) -> Iterator[Fault]:
    """Greedy answers of one server differ from run to run, so flips mean nothing without the baseline's own."""
    if check.metric == "flips" and parts.tasks and parts.repeat_baseline is False:
        message = "flips are counted beyond those of the baseline against itself; set `quality.repeat_baseline: true`"
        yield Fault(("gate", "checks", number, "metric"), message)


def early_stop_is_judged(parts: Parts) -> Iterator[Fault]:
    """Evals end early when a required check shows harm; without one that can, they never would."""
    if not parts.stop_early or None in parts.checks or not parts.checks:
        return
    if not any(c and c.required and c.margin and c.metric in ("accuracy", "score") for c in parts.checks):
        message = (
            "ends the evals when a required check on `accuracy` or `score` with a `margin` shows harm, and there is "
            "none; add {metric: accuracy, task: each, margin: 5 points}"
        )
        yield Fault(("quality", "stop_early"), message)


def tasks_are_judged(parts: Parts) -> Iterator[Fault]:
    """Where evals are judged at all, every task is: one that no check looks at could be lost without a word.

    A check that says `required: false` is a decision too, and it warns. Flips do not tell a loss from a gain.
    """
    if None in parts.checks or not any(c and KINDS[c.metric].needs == "quality" for c in parts.checks):
        return
    looked_at = {c.task for c in parts.checks if c and c.metric in ("accuracy", "score")}
    stems = [task_stem(task) for task in parts.tasks]
    misnamed = {task.split("/")[0] for task in looked_at if task is not None} - {*stems, "each"}
    if looked_at & {None, "each"} or misnamed:  # the misnamed one may be the one that is missed
        return
    for number, task in enumerate(stems):
        if task not in looked_at:
            message = (
                f'"{task}" could be lost unjudged: no check looks at its `accuracy` or `score`; add {{metric: '
                f"accuracy, task: {task}, margin: 5 points}}, with `required: false` if it is only to warn"
            )
            yield Fault(("quality", "tasks", number), message)


def judge_is_heard(parts: Parts) -> Iterator[Fault]:
    """Texts are sent to a judge for its verdict: one that no check looks at could find every answer worse."""
    if parts.shadow is None or parts.shadow.judge is None or None in parts.checks or not parts.checks:
        return
    if not any(c and c.metric == "judge_loss" for c in parts.checks):
        message = (
            "is sent texts, and no check looks at what it says; add {metric: judge_loss, margin: 5 points}, with "
            "`required: false` if it is only to warn, or remove `judge`"
        )
        yield Fault(("shadow", "judge"), message, at_key=True)
