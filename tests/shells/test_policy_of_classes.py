"""`--policy` beside classes of traffic with SLOs of their own: each is held to the SLO of its namesake."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from benchgate.errors import UsageError
from benchgate.model.run import RunStatus
from benchgate.model.verdict import Outcome
from benchgate.pipeline.judge import Decision, decide_stored
from benchgate.release.attest import statement_of
from benchgate.release.verify import Answer, VerifyRequest, verify
from benchgate.report.document import policy_parts_sha256
from benchgate.store.repository import Store
from benchgate.suite.loader import parse_suite
from benchgate.suite.schema import Suite
from tests.core.test_gate_classes import mixed_evidence
from tests.fakes import quick_command
from tests.fakes.measured import Effect
from tests.shells.store_samples import PLAN

SUITE = """\
suite: classes
deployments: {one: {url: "http://one", model: m}}
baseline: one
candidate: one
slo: {ttft: 300ms, target: 95%}
load:
  workload: {input: 8 tokens, output: 10 tokens}
  blocks: 8
  sweep:
    - stage: mix
      classes:
        chat: {concurrency: 2, requests: 40, slo: {ttft: 100ms}}
        reports: {concurrency: 2, requests: 40}
        batch: {concurrency: 8, background: true}
gate: {checks: [{metric: goodput}, {metric: error_rate, max: 5%}]}
"""
OWN = "slo: {ttft: 100ms}"
FAST, SLOW = Effect(), Effect(slowdown=3)  # 50 and 150 ms to the first token


def suite(own: str = OWN, reports: str = "", shared: str = "slo: {ttft: 300ms, target: 95%}") -> str:
    text = SUITE.replace("slo: {ttft: 300ms, target: 95%}\n", f"{shared}\n" if shared else "")
    text = text.replace(f", {OWN}", f", {own}" if own else "")
    return text.replace("reports: {concurrency: 2, requests: 40", f"reports: {{concurrency: 2, requests: 40{reports}")


def parsed(text: str) -> Suite:
    return parse_suite(text, "policy.yaml")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with a run `fast`, whose chat meets its SLO, and one `slow`, whose chat misses it."""
    path = tmp_path / "b.db"
    with Store.open(str(path)) as opened:
        for number, (label, effect) in enumerate((("fast", FAST), ("slow", SLOW))):
            evidence = mixed_evidence(parsed(SUITE), dict.fromkeys(("chat", "reports", "batch"), effect))
            run_id, plan = f"01a20ae1-0cfb-7000-8000-00000000000{number}", hashlib.sha256(PLAN).hexdigest()
            run = replace(evidence.run, id=run_id, label=label, plan_sha256=plan, status=RunStatus.RUNNING)
            writer = opened.begin_run(replace(run, finished_at=None), PLAN)
            for observation in evidence.load:
                writer.add(observation)
            writer.finish(RunStatus.COMPLETE, "2026-01-02T03:06:40Z")
    return path


def decided(store: Path, label: str, policy: str | None) -> Decision:
    with Store.open(str(store), create=False) as opened:
        by = None if policy is None else parsed(policy)
        return decide_stored(opened, opened.resolve(label), policy=by, keep=False)


def outcomes(decision: Decision) -> dict[str | None, Outcome]:
    return {check.stage: check.outcome for check in decision.verdict.checks if check.metric == "goodput"}


def test_a_stricter_slo_of_a_class_blocks_and_a_looser_one_passes(store: Path) -> None:
    assert [outcomes(decided(store, label, None))["mix/chat"] for label in ("fast", "slow")] == ["PASS", "BLOCK"]
    stricter, looser = (suite(f"slo: {{ttft: {bound}}}") for bound in ("20ms", "250ms"))
    assert outcomes(decided(store, "fast", stricter)) == {"mix/chat": "BLOCK", "mix/reports": "PASS"}
    assert outcomes(decided(store, "slow", looser)) == {"mix/chat": "PASS", "mix/reports": "PASS"}


def test_keys_that_a_class_takes_from_the_policys_own_slo_replace_those_of_the_run(store: Path) -> None:
    """The class writes its TTFT alone, so that the bound of the end of the answer is the suite's."""
    bounded = suite(shared="slo: {ttft: 300ms, e2e: 1ms, target: 95%}")
    assert outcomes(decided(store, "fast", bounded)) == {"mix/chat": "BLOCK", "mix/reports": "BLOCK"}


def test_a_class_without_an_slo_of_its_own_in_the_policy_is_held_to_the_policys(store: Path) -> None:
    assert outcomes(decided(store, "slow", suite(own="")))["mix/chat"] == "PASS"  # 300 ms, and no longer 100 ms


def test_an_slo_that_only_the_policy_gives_a_class_holds_for_it(store: Path) -> None:
    given = suite(reports=", slo: {ttft: 20ms}")
    assert outcomes(decided(store, "fast", given)) == {"mix/chat": "PASS", "mix/reports": "BLOCK"}


def test_a_policy_without_any_slo_leaves_those_of_the_run(store: Path) -> None:
    bare = suite(own="", shared="").replace("{metric: goodput}, ", "")
    decision = decided(store, "slow", bare)
    judged = decision.terms.suite(decision.evidence.run)
    assert (judged.slo, judged.load) == (parsed(SUITE).slo, parsed(SUITE).load)


@pytest.mark.parametrize(
    ("policy", "place"),
    [
        (suite().replace("chat:", "talk:"), "mix/chat"),
        (suite().replace("stage: mix", "stage: other"), "mix/chat"),
        (suite(shared="", own="", reports=", slo: {ttft: 1s}").replace("{metric: goodput}, ", ""), "mix/chat"),
        (suite(shared="").replace("{metric: goodput}, ", ""), "mix/reports"),
    ],
)
def test_a_class_that_the_policy_gives_no_slo_is_refused_by_name(
    store: Path, tmp_path: Path, policy: str, place: str
) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(policy)
    with pytest.raises(UsageError, match=f'the policy gives "{place}" no `slo`'):
        quick_command.told("gate", "fast", "--policy", str(path), "--store", str(store))


def test_a_replaced_slo_of_a_class_is_another_policy_in_document_and_statement(store: Path) -> None:
    same, looser = suite(), suite("slo: {ttft: 250ms}")
    replaced = {policy: decided(store, "slow", policy).document["policy_replaced"] for policy in (same, looser)}
    assert replaced == {same: False, looser: True}
    assert policy_parts_sha256(parsed(same)) != policy_parts_sha256(parsed(looser))
    decision = decided(store, "slow", looser)
    statement = statement_of(decision, decision.exit_code)
    for given, answer in ((looser, Answer.HOLDS), (suite("slo: {ttft: 9s}"), Answer.BROKEN)):
        lines = verify(statement, b"", VerifyRequest(policy=parsed(given))).lines
        assert [line.answer for line in lines if line.part == "policy"] == [answer]


def test_a_table_of_candidates_takes_no_policy_with_another_slo_of_a_class(store: Path, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(suite("slo: {ttft: 250ms}"))
    with pytest.raises(UsageError, match="the policy's `slo` differs from that of run"):
        quick_command.told("frontier", "fast", "--policy", str(path), "--store", str(store))
