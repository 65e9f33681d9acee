"""Suites and evidence of drills: one deployment held against itself, stage against stage."""

from __future__ import annotations

from dataclasses import replace

from benchgate.gate.judge import judge
from benchgate.model.run import Evidence
from benchgate.model.verdict import CheckResult
from benchgate.suite.schema import Suite
from tests.fakes.measured import Effect, Noise, measured

Line = dict[str, object]
STEADY = Noise()


def drill(*checks: Line, stages: tuple[str, ...] = ("short", "long"), blocks: int = 8) -> Suite:
    """A suite of one deployment in both arms, whose stages keep 1, 2, 4, ... requests in flight."""
    return Suite.model_validate(
        {
            "suite": "drill",
            "deployments": {"one": {"url": "http://one", "model": "m"}},
            "baseline": "one",
            "candidate": "one",
            "slo": {"ttft": "200ms", "target": "95%"},
            "load": {
                "workload": {"input": "8 tokens", "output": "10 tokens"},
                "blocks": blocks,
                "sweep": [
                    {"stage": name, "concurrency": 2**number, "requests": 40} for number, name in enumerate(stages)
                ],
            },
            "gate": {"checks": list(checks)},
        }
    )


def seen(suite: Suite, effects: dict[str, Effect], noise: Noise = STEADY) -> Evidence:
    """Both arms with these effects at these stages."""
    evidence = measured(suite, noise=noise)
    for stage, effect in effects.items():
        other = measured(suite, effect, effect, noise=noise)
        load = tuple(b if a.stage == stage else a for a, b in zip(evidence.load, other.load, strict=True))
        evidence = replace(evidence, load=load)
    return evidence


def checked(line: Line, effects: dict[str, Effect], noise: Noise = STEADY, blocks: int = 8) -> CheckResult:
    """The one check of a drill whose stages have these effects."""
    suite = drill(line, blocks=blocks)
    return judge(suite, seen(suite, effects, noise)).checks[0]
