"""Evals with known answers, for tests of the gate: what both arms answered is made up, how it is judged is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from benchgate.model.deployment import Arm
from benchgate.model.records import EvalItem
from benchgate.model.run import Evidence, QualityObservation
from benchgate.suite.schema import Suite
from tests.fakes.measured import SuiteText, measured

Line = dict[str, object]


@dataclass(frozen=True)
class Answers:
    """One arm's answers to one task: the scores of its items, and what is odd about some of them."""

    scores: Sequence[float | None]
    choices: Sequence[str | None] | None = None
    clusters: Sequence[str] | None = None
    finish: Mapping[int, str | None] = field(default_factory=dict)
    answers: Mapping[int, str] = field(default_factory=dict)
    latency_ns: int = 30_000_000
    fault: str | None = None
    harness: Mapping[str, object] = field(default_factory=dict)
    expected_n: int | None = None
    documents: str | None = None  # name of documents that several tasks share; the task's own by default


def suite_of(checks: list[Line], tasks: Sequence[object], **quality: object) -> Suite:
    """A suite of evals alone."""
    written = SuiteText(checks).suite().model_dump(mode="json", include={"deployments"})
    return Suite.model_validate(
        {
            "suite": "evals",
            "deployments": {name: {"url": spec["url"], "model": "m"} for name, spec in written["deployments"].items()},
            "quality": {"tasks": list(tasks), **quality},
            "gate": {"checks": checks},
        }
    )


def evidence_of(
    suite: Suite,
    tasks: Mapping[str, tuple[Answers, Answers]],
    again: Mapping[str, Answers] | None = None,
    run_id: str = "run-1",
) -> Evidence:
    """Both arms' answers to every task, and those of the baseline asked once more."""
    observations = [
        observation(task, arm, answers) for task, both in tasks.items() for arm, answers in zip(Arm, both, strict=True)
    ]
    observations += [observation(task, Arm.BASELINE, answers, repeat=1) for task, answers in (again or {}).items()]
    return replace(measured(suite, items=0, run_id=run_id), quality=tuple(observations))


def observation(task: str, arm: Arm, answers: Answers, *, repeat: int = 0) -> QualityObservation:
    """One task on one arm."""
    items = tuple(_item(task, i, score, answers) for i, score in enumerate(answers.scores))
    expected = len(items) if answers.expected_n is None else answers.expected_n
    return QualityObservation(task, arm, items, expected, answers.fault, dict(answers.harness), repeat)


def _item(task: str, i: int, score: float | None, answers: Answers) -> EvalItem:
    return EvalItem(
        item_id=f"{task}-{i}",
        doc_hash=f"{task if answers.documents is None else answers.documents}-d{i}",
        prompt_hash=f"p{i}",
        target_hash=f"t{i}",
        score=score,
        answer=answers.answers.get(i, f"answer {i}: {score}"),
        finish_reason=answers.finish.get(i, "stop"),
        output_tokens=4,
        latency_ns=answers.latency_ns,
        error=None if score is not None else "no answer",
        choice=answers.choices[i] if answers.choices is not None else None,
        cluster=answers.clusters[i] if answers.clusters is not None else None,
    )


def right_but(n: int, *wrong: int) -> list[float]:
    """n items, all right but those at these positions."""
    return [0.0 if i in wrong else 1.0 for i in range(n)]


def wrong_first(n: int, wrong: int) -> list[float]:
    """n items, the first so many wrong."""
    return right_but(n, *range(wrong))
