"""How long it takes to compare evals: 10,000 items of each arm, paired, judged and guarded, as a verdict does it.

    .venv/bin/python -m benchmarks.quality_compare

Prints the seconds that a verdict over 10,000 items x 2 arms takes: as one task, as five of unlike sizes with a second
baseline run, with clusters, and as a score by degrees.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np

from benchgate.gate.judge import judge
from tests.fakes.evals import Answers, Line, evidence_of, suite_of

ITEMS = 10_000
ACCURACY: Line = {"metric": "accuracy", "margin": "1 points"}
EACH: Line = {"metric": "accuracy", "task": "each", "margin": "2 points"}
FLIPS: Line = {"metric": "flips", "margin": "5 points"}
SCORE: Line = {"metric": "score", "margin": "1 points"}
UNLIKE = {"one": 164, "two": 541, "three": 1319, "four": 3976, "five": 4000}


def main() -> None:
    """One line for each shape of evals."""
    generator = np.random.default_rng(1)
    timed("one task", [ACCURACY], {"t": answered(generator, ITEMS)})
    tasks = {name: answered(generator, n) for name, n in UNLIKE.items()}
    again = {name: answered(generator, n)[0] for name, n in UNLIKE.items()}
    timed("five tasks of unlike sizes, baseline asked twice", [ACCURACY, EACH, FLIPS], tasks, again)
    timed("2,000 clusters of five items", [ACCURACY], {"t": answered(generator, ITEMS, clusters=2000)})
    timed("a score by degrees", [SCORE], {"t": scored(generator, ITEMS)})


def answered(generator: np.random.Generator, n: int, clusters: int | None = None) -> tuple[Answers, Answers]:
    """Both arms right on 85 % of the items, flipping 5 % of them."""
    theirs = (generator.random(n) < 0.85).astype(float)
    ours = np.where(generator.random(n) < 0.05, 1 - theirs, theirs)
    names = [f"c{i % clusters}" for i in range(n)] if clusters is not None else None
    return Answers(theirs.tolist(), clusters=names), Answers(ours.tolist(), clusters=names)


def scored(generator: np.random.Generator, n: int) -> tuple[Answers, Answers]:
    """Both arms' scores, equal but for noise."""
    theirs = generator.uniform(0.2, 0.9, n)
    ours = theirs + generator.normal(0, 0.05, n)
    known = {"scale": "continuous"}
    return Answers(theirs.tolist(), harness=known), Answers(ours.tolist(), harness=known)


def timed(
    what: str,
    checks: list[Line],
    tasks: Mapping[str, tuple[Answers, Answers]],
    again: Mapping[str, Answers] | None = None,
) -> None:
    """Judge and print: the evidence is made before the clock starts."""
    suite = suite_of(checks, list(tasks), repeat_baseline=again is not None)
    evidence = evidence_of(suite, tasks, again)
    started = time.perf_counter()
    verdict = judge(suite, evidence)
    taken = time.perf_counter() - started
    items = sum(len(both[0].scores) for both in tasks.values())
    print(f"{what}: {items:,} items x 2 arms in {taken:.2f} s ({verdict.outcome})")


if __name__ == "__main__":
    main()
