"""Two runs of one suite ask anew: a candidate that is quick for prompts it has seen is blocked in the second, too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchgate.model.deployment import Arm
from benchgate.model.run import RunStatus
from benchgate.model.verdict import Outcome
from benchgate.pipeline import resume
from benchgate.pipeline.forecast import read_plan
from benchgate.pipeline.judge import Decision
from benchgate.pipeline.run import run_suite
from benchgate.plan.salt import run_salt
from benchgate.plan.schedule import measurement_sha256
from benchgate.store.repository import Store
from benchgate.suite.loader import parse_suite
from benchgate.suite.schema import Suite
from tests.e2e.command import STORE
from tests.e2e.test_resume import Ends, options
from tests.fakes.scripted_server import Received, ScriptedServer, Step, answering

pytestmark = pytest.mark.beside  # its client may be late, by a lot: what is asked of it is no time

SUITE = """
suite: salted
deployments:
  plain: {url: "PLAIN", model: scripted}
  other: {url: "OTHER", model: scripted}
baseline: plain
candidate: other
load:
  workload: {input: 20 tokens, output: 4 tokens}
  blocks: 4
  warmup: 2
  salt: SALT
  sweep: [{stage: c2, concurrency: 2, requests: 8}]
gate:
  allow_underpowered: true
  client: {send_lag_p99: 200ms, send_lag_max: 1s, read_delay_p99: 200ms, read_delay_max: 1s, cpu: 100%, achieved: 50%}
  checks: [{metric: e2e, statistic: p50, margin: 60%}, {metric: error_rate, max: 50%}]
"""
THINKS_S, SLOWER_S = 0.02, 0.08
MEASURED = 4 * 8 + 2  # with the warm-up
READY = 40  # characters of the prompt of a readiness probe, which no run salts, have at most so many
quick, slow = (answering(lambda received: "a b c d", after_s=after_s) for after_s in (THINKS_S, SLOWER_S))


class Remembers:
    """A server that is slow for every prompt that it has not seen in an earlier run, and quick for the others."""

    def __init__(self) -> None:
        self.before: set[str] = set()
        self.now: set[str] = set()

    def __call__(self, received: Received) -> Iterator[Step]:
        self.now.add(received.prompt)
        yield from quick(received) if received.prompt in self.before else slow(received)

    def end_run(self) -> None:
        """A run is over: its prompts are known from now on."""
        self.before |= self.now


def prompts(server: ScriptedServer) -> set[str]:
    """Take what the server was asked by the load since the last time."""
    found = {received.prompt for received in server.requests if len(received.prompt) > READY}
    server.requests.clear()
    return found


@pytest.fixture
def servers() -> Iterator[tuple[ScriptedServer, ScriptedServer, Remembers]]:
    remembers = Remembers()
    with ExitStack() as stack:
        plain, other = (stack.enter_context(ScriptedServer(respond)) for respond in (quick, remembers))
        yield plain, other, remembers


def suite_of(plain: ScriptedServer, other: ScriptedServer, *, salt: bool) -> Suite:
    text = SUITE.replace("PLAIN", plain.url).replace("OTHER", other.url).replace("SALT", str(salt).lower())
    return parse_suite(text, "salted.yaml")


def measured(suite: Suite, folder: Path) -> Decision:
    return run_suite(suite, folder, options(folder), Ends())


def test_a_candidate_that_is_quick_for_what_it_has_seen_is_blocked_by_every_run(
    tmp_path: Path, servers: tuple[ScriptedServer, ScriptedServer, Remembers]
) -> None:
    plain, other, remembers = servers
    suite = suite_of(plain, other, salt=True)
    decisions, sent = [], []
    for _ in range(2):
        decisions.append(measured(suite, tmp_path))
        sent.append(prompts(plain))
        assert len(sent[-1] & prompts(other)) >= MEASURED  # how many more the ramp sends depends on each server
        remembers.end_run()
    assert not sent[0] & sent[1]
    assert min(map(len, sent)) >= MEASURED
    assert [decision.verdict.outcome.value for decision in decisions] == ["BLOCK", "BLOCK"]
    first, second = (decision.evidence.run for decision in decisions)
    assert (first.plan_sha256, first.measurement_sha256) == (second.plan_sha256, second.measurement_sha256)
    for decision in decisions:
        run = decision.evidence.run
        assert run.load_salt == run_salt(run.id)
        assert json.loads(decision.json(decision.exit_code))["run"]["load_salt"] == run.load_salt


def test_a_suite_without_salt_sends_the_words_of_its_plan(
    tmp_path: Path, servers: tuple[ScriptedServer, ScriptedServer, Remembers]
) -> None:
    plain, other, remembers = servers
    suite = suite_of(plain, other, salt=False)
    plan = read_plan(suite, tmp_path)
    stages = [*plan.warmup, *(stage for block in plan.blocks for stage in block.stages)]
    planned = {request.ask.prompt for stage in stages for request in stage.requests}
    first = measured(suite, tmp_path)
    assert planned <= prompts(plain) & prompts(other)
    remembers.end_run()
    decision = measured(suite, tmp_path)
    assert planned <= prompts(plain) & prompts(other)
    # What the salt is against: the second run does not block what the first one blocked.
    assert first.verdict.outcome is Outcome.BLOCK
    assert decision.verdict.outcome is not Outcome.BLOCK
    run = decision.evidence.run
    assert run.load_salt == 0
    assert "load_salt" not in json.loads(decision.json(decision.exit_code))["run"]
    assert run.measurement_sha256 != measurement_sha256(suite_of(plain, other, salt=True), plan)


def test_a_resumed_run_sends_the_words_that_it_began_with(
    tmp_path: Path, servers: tuple[ScriptedServer, ScriptedServer, Remembers]
) -> None:
    plain, other, _ = servers
    suite = suite_of(plain, other, salt=True)
    with pytest.raises(KeyboardInterrupt):
        run_suite(suite, tmp_path, options(tmp_path), Ends(after=3))
    before = prompts(plain)
    with Store.open(str(tmp_path / STORE), create=False) as store:
        (begun,) = store.resumable_runs("salted")
    evidence = resume.resume_suite(suite, tmp_path, options(tmp_path), Ends()).evidence
    run = evidence.run
    assert (run.id, run.status, run.load_salt) == (begun.id, RunStatus.COMPLETE, begun.load_salt)
    after = prompts(plain)
    assert len(before & after) >= 2  # of the warm-up, which is done again
    measured = sum(len(one.requests) for one in evidence.load if one.arm is Arm.BASELINE)
    assert measured == 4 * 8
    ramp = sum(len(one.ramp) for one in evidence.load if one.arm is Arm.BASELINE)
    assert MEASURED <= len(before | after) <= MEASURED + 2 * ramp  # of the ramp of what was begun only, too
