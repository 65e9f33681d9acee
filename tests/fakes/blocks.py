"""Blocks of a load whose every time is said, for tests of what the gate makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from benchgate.gate.checks.evaluate import FAMILIES, begin
from benchgate.gate.comparison import Comparison, compare
from benchgate.gate.decision import Estimate
from benchgate.gate.policy import concrete_checks
from benchgate.model.deployment import Arm
from benchgate.model.records import ErrorClass, RequestColumns, RequestRecord, TokenSource
from benchgate.model.run import ClientUse, LoadObservation
from benchgate.suite.schema import Suite
from tests.fakes.measured import SuiteText, measured

Blocks = Sequence[tuple[LoadObservation, LoadObservation]]
"""(baseline, candidate) of each."""

_NOTHING = measured(SuiteText([{"metric": "ttft", "margin": "5%"}], blocks=2, requests=2).suite())


def block(
    arm: Arm,
    number: int,
    ttfts_s: Sequence[float | None],
    *,
    tokens: int = 8,
    window_s: float = 1.0,
    stage: str = "c4",
) -> LoadObservation:
    """One execution whose requests have these times to first token; None failed."""
    records = [record(i, ttft_s, tokens) for i, ttft_s in enumerate(ttfts_s)]
    client = ClientUse(cpu_s=0.05, wall_s=1.0, workers=1)
    return LoadObservation(stage, arm, number, 0, RequestColumns.pack(records), window_s, client)


def record(index: int, ttft_s: float | None, tokens: int = 8) -> RequestRecord:
    """A request whose tokens come 10 ms apart."""
    at = index * 1_000_000_000
    if ttft_s is None:
        return RequestRecord(index, at, at, (), None, None, None, None, None, 500, ErrorClass.HTTP_5XX, "broken")
    first = at + round(ttft_s * 1e9)
    chunks = tuple(first + k * 10_000_000 for k in range(tokens))
    return RequestRecord(index, at, at, chunks, chunks[-1], 8, tokens, TokenSource.USAGE, "length", 200, None, None)


def compared(blocks: Blocks, reference: Blocks | None = None) -> Comparison:
    """A run of these blocks, against its own baseline or the candidate of another run."""
    runs = [replace(_NOTHING, load=tuple(one for pair in pairs for one in pair)) for pairs in (blocks, reference or ())]
    return compare(runs[0], runs[1] if reference is not None else None)


def both(
    number: int, theirs_s: Sequence[float | None], ours_s: Sequence[float | None]
) -> tuple[LoadObservation, LoadObservation]:
    """One block of both arms."""
    return block(Arm.BASELINE, number, theirs_s), block(Arm.CANDIDATE, number, ours_s)


def estimate_of(line: Mapping[str, object], comparison: Comparison, suite: Suite | None = None) -> Estimate:
    """The estimate of the check that this line of a policy (the only one of the suite) asks for, over all blocks."""
    suite = suite or _suite_of(tuple(line.items()))
    (spec,) = concrete_checks(suite, comparison.judged)
    estimate = begin(spec)
    with estimate.keeping_problems():
        FAMILIES[spec.check.metric].measure(estimate, spec, suite, comparison, alpha=suite.gate.alpha)
    return estimate


@lru_cache(maxsize=16)
def _suite_of(line: tuple[tuple[str, object], ...]) -> Suite:
    return SuiteText([dict(line)]).suite()
