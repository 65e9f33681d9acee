"""How often the gate is wrong about evals: equal candidates, and candidates whose harm is what is allowed or more."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from benchgate.gate.judge import judge
from benchgate.model.verdict import Outcome
from tests.fakes.evals import Answers, Line, evidence_of, suite_of

TASKS = {"short": 120, "long": 400}
CHECKS: list[Line] = [
    {"metric": "accuracy", "margin": "4 points"},
    {"metric": "accuracy", "task": "each", "margin": "8 points"},
]


def outcomes(runs: int, harm: float, *, correlated: bool = False) -> Counter[Outcome]:
    """Verdicts on candidates with this harm in every task, of items that flip by 8 % and more."""
    generator, seen = np.random.default_rng(31), Counter[Outcome]()
    suite = suite_of(CHECKS, list(TASKS))
    for _ in range(runs):
        tasks = {name: answered(generator, n, harm, correlated=correlated) for name, n in TASKS.items()}
        seen[judge(suite, evidence_of(suite, tasks)).outcome] += 1
    return seen


def answered(generator: np.random.Generator, n: int, harm: float, *, correlated: bool) -> tuple[Answers, Answers]:
    """A tenth of the items nobody gets right; of the others 4 points flip each way, and the harm is lost besides."""
    common = generator.random(n // 4).repeat(4)
    own = np.where(generator.random(n) < 0.55, common, generator.random(n)) if correlated else generator.random(n)
    theirs, ours = np.where(own < 0.04, 0.0, 1.0), np.where((own >= 0.04) & (own < 0.08 + harm), 0.0, 1.0)
    neither = generator.random(n) < 0.1
    clusters = [f"c{i // 4}" for i in range(n)] if correlated else None
    return (
        Answers(np.where(neither, 0.0, theirs).tolist(), clusters=clusters),
        Answers(np.where(neither, 0.0, ours).tolist(), clusters=clusters),
    )


def test_equal_candidates_are_hardly_ever_blocked() -> None:
    seen = outcomes(60, 0.0)
    assert seen[Outcome.BLOCK] <= 6  # 5 % promised: 7 or more come about 3 times in 100
    assert seen[Outcome.INVALID] == 0
    assert seen[Outcome.PASS] >= 36


@pytest.mark.parametrize("correlated", [False, True])
def test_what_is_at_the_margin_is_hardly_ever_promoted(correlated: bool) -> None:
    seen = outcomes(40, 0.04 / 0.9, correlated=correlated)
    assert seen[Outcome.PASS] + seen[Outcome.WARN] <= 6  # 5 % promised


def test_what_is_far_beyond_the_margin_is_blocked() -> None:
    assert outcomes(10, 0.15)[Outcome.BLOCK] == 10


def in_six_prompts(generator: np.random.Generator, n: int, clusters: bool) -> dict[str, tuple[Answers, Answers]]:
    """A group of six prompts to the same documents. Each document is lost (10 %) or gained (5 %) by all of them."""
    drawn, prompts = generator.random(n), range(6)
    theirs, ours = np.where(drawn >= 0.95, 0.0, 1.0).tolist(), np.where(drawn < 0.1, 0.0, 1.0).tolist()
    names = [f"document {i}" for i in range(n)] if clusters else None
    documents = None if clusters else "shared"
    arms = tuple(Answers(scores, clusters=names, documents=documents) for scores in (theirs, ours))
    return {f"g/p{prompt}": (arms[0], arms[1]) for prompt in prompts}


@pytest.mark.parametrize("clusters", [False, True])
def test_one_question_in_several_prompts_is_not_promoted_more_often_at_the_margin(clusters: bool) -> None:
    """As independent items, 17 of these candidates would be promoted."""
    generator, passed = np.random.default_rng(7), 0
    suite = suite_of([{"metric": "accuracy", "margin": "5 points"}], ["g"])
    for _ in range(100):
        passed += judge(suite, evidence_of(suite, in_six_prompts(generator, 150, clusters))).outcome is Outcome.PASS
    assert passed <= 11  # 5 % promised: 12 or more come 4 times in 1,000
