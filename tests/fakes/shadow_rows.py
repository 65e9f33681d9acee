"""Shadow comparisons of three hundred prompts, made up row by row, and the verdicts on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchgate.gate.judge import judge
from benchgate.model.records import AnswerAgreement, AnswerFacts, PairFacts, ShadowItem
from benchgate.model.run import Evidence, ShadowObservation
from benchgate.model.verdict import CheckResult, Verdict
from benchgate.suite.schema import Suite
from tests.fakes.measured import measured

Line = dict[str, object]
EXCESS: Line = {"metric": "shadow_excess", "margin": "5 points"}
VALIDITY: Line = {"metric": "shadow_validity", "margin": "3 points"}
JUDGE: Line = {"metric": "judge_loss", "margin": "6 points"}
N = 300

FACTS = AnswerFacts(characters=40, latency_ns=900_000_000, refusal=False, tokens=50)
EQUAL = PairFacts(AnswerAgreement.EXACT, differs=False, exact=True, normalised=True)
OTHER = PairFacts(AnswerAgreement.DIFFERENT, differs=True, exact=False, normalised=False, at_character=3, at_word=1)


def item(n: int, **changed: object) -> ShadowItem:
    whole = ShadowItem(
        prompt_id=f"{n:04}", prompt_sha256=f"{n}", primary="same", secondary="same", candidate="same",
        primary_finish="stop", secondary_finish="stop", candidate_finish="stop", error=None,
        primary_facts=FACTS, secondary_facts=FACTS, candidate_facts=FACTS,
        with_primary=EQUAL, with_secondary=EQUAL, own=EQUAL,
    )  # fmt: skip
    return replace(whole, **changed)  # type: ignore[arg-type]  # by the keyword


def different(n: int, **changed: object) -> ShadowItem:
    return item(n, candidate="other", with_primary=OTHER, with_secondary=OTHER, **changed)


def items(*changed: ShadowItem) -> list[ShadowItem]:
    """All prompts answered alike but these."""
    special = {one.prompt_id: one for one in changed}
    return [special.get(f"{n:04}", item(n)) for n in range(N)]


def suite(*checks: Line, **shadow: object) -> Suite:
    return Suite.model_validate(
        {
            "suite": "shadow",
            "deployments": {
                "baseline": {"url": "http://b", "model": "m"},
                "candidate": {"url": "http://c", "model": "m"},
            },
            "shadow": {"prompts": "p.jsonl", **shadow},
            "gate": {"checks": list(checks)},
        }
    )


def evidence(asked: Suite, rows: Sequence[ShadowItem]) -> Evidence:
    return replace(measured(asked), shadow=ShadowObservation(tuple(rows), len(rows), None))


def verdict(rows: Sequence[ShadowItem], *checks: Line) -> Verdict:
    asked = suite(*checks)
    return judge(asked, evidence(asked, rows))


def only(found: Verdict) -> CheckResult:
    [check] = found.checks
    return check


def range_of(make: object, first: int, last: int, **changed: object) -> list[ShadowItem]:
    return [make(n, **changed) for n in range(first, last)]  # type: ignore[operator]  # item or different
