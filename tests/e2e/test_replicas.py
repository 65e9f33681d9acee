"""Runs whose deployments declare their replicas: waited for at the start, counted throughout, and judged by that."""

from __future__ import annotations

import json
import re
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from benchgate.errors import UsageError
from benchgate.model.deployment import Arm
from benchgate.model.run import AT_THE_END, AT_THE_START, REPLICAS
from benchgate.model.verdict import GuardResult, Outcome
from benchgate.pipeline import resume
from benchgate.pipeline.judge import Decision, decide_stored
from benchgate.pipeline.progress import Progress
from benchgate.pipeline.run import RunOptions, run_suite
from benchgate.sim.process import Sim, serve_sim
from benchgate.sim.settings import sim_settings
from benchgate.store.repository import Store
from benchgate.suite.loader import parse_suite
from tests.e2e.command import STORE, here

pytestmark = pytest.mark.beside  # its client may be late, by a lot: what is asked of it is no time

SUITE = """
suite: replicas
deployments:
  plain: {url: "PLAIN", model: sim, engine: vllm}
  other: {url: "OTHER", model: sim, engine: vllm, ready: READY}
baseline: plain
candidate: other
limits: {ready: 60s}
load:
  workload: {input: 8 tokens, output: 4 tokens}
  blocks: 3
  warmup: 0
  sweep: [{stage: c2, concurrency: 2, requests: 8ACTIONS}]
slo: {ttft: 5s, target: 50%}
gate:
  allow_underpowered: true
  client: {send_lag_p99: 1s, send_lag_max: 1s, read_delay_p99: 1s, read_delay_max: 1s, cpu: 100%, achieved: 1%}
  checks: [{metric: error_rate, max: 90%}]
"""
PACE = sim_settings(ttft_s=0.005, itl_s=0.001)
IN_A_BLOCK = 2  # executions: one stage on two arms


@pytest.fixture(scope="module")
def plain() -> Iterator[Sim]:
    with serve_sim(PACE) as sim:
        yield sim


@pytest.fixture(scope="module")
def router() -> Iterator[Sim]:
    with serve_sim(sim_settings(ttft_s=0.005, itl_s=0.001, replicas=3)) as sim:
        yield sim


@pytest.fixture
def three(router: Sim) -> Sim:
    """Three replicas behind one address, whatever was killed before."""
    for replica in router.replicas():
        if replica["state"] != "up":
            router.start(replica["replica"])
    return router


class Watching(Progress):
    """Does something once so many steps of the load are done, and when there is a first note about replicas."""

    def __init__(
        self, after: int = 0, then: Callable[[], None] = lambda: None, once_noted: Callable[[], None] = lambda: None
    ) -> None:
        self.after, self.then, self.once_noted = after, then, once_noted
        self.steps = 0
        self.counts: list[str] = []

    def step(self, done: str) -> None:
        """One step is done."""
        if done.startswith("block"):
            self.steps += 1
            if self.steps == self.after:
                self.then()

    def status(self, line: str) -> None:
        """Something is said."""
        if " replicas" in line:
            self.counts.append(line)
            if len(self.counts) == 1:
                self.once_noted()


def text_of(plain: Sim, other: Sim, ready: str = "{replicas: 3}", actions: str = "") -> str:
    text = SUITE.replace("PLAIN", plain.url).replace("OTHER", other.url)
    return text.replace("READY", ready).replace("ACTIONS", actions)


def options(folder: Path, *, allow_actions: bool = False) -> RunOptions:
    return RunOptions(str(folder / STORE), folder / "work", allow_actions=allow_actions)


def run(folder: Path, text: str, watching: Watching | None = None, *, allow_actions: bool = False) -> Decision:
    suite = parse_suite(text, "replicas.yaml")
    return run_suite(suite, folder, options(folder, allow_actions=allow_actions), watching or Watching())


def guard_of(decision: Decision) -> GuardResult:
    (guard,) = [guard for guard in decision.verdict.guards if guard.id == "replicas-changed"]
    return guard


def tripped(decision: Decision) -> list[str]:
    return [guard.id for guard in decision.verdict.guards if guard.tripped]


def same_from_the_store(folder: Path, decision: Decision) -> None:
    """The stored run gets the same verdict, byte for byte."""
    with Store.open(str(folder / STORE), create=False) as store:
        again = decide_stored(store, decision.evidence.run.id)
    assert again.verdict == decision.verdict
    first, second = (here(folder, "gate", decision.evidence.run.id, "--format", "json").stdout for _ in range(2))
    assert first == second and json.loads(first)["outcome"] == decision.verdict.outcome.value


def test_a_healthy_deployment_is_counted_at_every_moment_and_holds_the_guard(
    tmp_path: Path, plain: Sim, three: Sim
) -> None:
    decision = run(tmp_path, text_of(plain, three))
    moments = [AT_THE_START, "before block 1", "before block 2", "before block 3", AT_THE_END]
    assert [(one.arm, one.when, one.count) for one in decision.evidence.replicas] == [
        (Arm.CANDIDATE, moment, 3) for moment in moments
    ]
    assert tripped(decision) == [] and not guard_of(decision).tripped
    assert decision.verdict.outcome is Outcome.PASS, decision.verdict.reason
    same_from_the_store(tmp_path, decision)


def test_a_replica_that_is_lost_between_blocks_makes_the_load_invalid(tmp_path: Path, plain: Sim, three: Sim) -> None:
    decision = run(tmp_path, text_of(plain, three), Watching(2 * IN_A_BLOCK, lambda: three.kill(2)))
    assert decision.verdict.outcome is Outcome.INVALID
    assert tripped(decision) == ["replicas-changed"]
    assert "2 of 3 replicas before block 3; 2 of 3 replicas at the end" in guard_of(decision).reason
    same_from_the_store(tmp_path, decision)


def test_a_replica_that_comes_back_before_the_end_was_gone_all_the_same(tmp_path: Path, plain: Sim, three: Sim) -> None:
    class Flapping(Watching):
        def step(self, done: str) -> None:
            super().step(done)
            if self.steps == IN_A_BLOCK:
                three.kill(0)
            elif self.steps == 2 * IN_A_BLOCK:
                three.start(0)

    decision = run(tmp_path, text_of(plain, three), Flapping())
    assert [one.count for one in decision.evidence.replicas] == [3, 3, 2, 3, 3]
    assert decision.verdict.outcome is Outcome.INVALID and tripped(decision) == ["replicas-changed"]


def test_a_run_begins_when_all_replicas_are_there(tmp_path: Path, plain: Sim, three: Sim) -> None:
    three.kill(1)
    watching = Watching(once_noted=lambda: three.start(1))
    decision = run(tmp_path, text_of(plain, three), watching)
    assert watching.counts[0] == "the candidate has 2 of 3 replicas after 0 s of 60"
    assert decision.verdict.outcome is Outcome.PASS, decision.verdict.reason


def test_replicas_that_do_not_come_in_time_are_a_deployment_that_is_not_there(
    tmp_path: Path, plain: Sim, three: Sim
) -> None:
    three.kill(1)
    decision = run(tmp_path, text_of(plain, three).replace("ready: 60s", "ready: 1s"))
    assert decision.verdict.outcome is Outcome.INVALID
    (fault,) = decision.evidence.target_faults
    assert (fault.arm, fault.when) == (Arm.CANDIDATE, AT_THE_START)
    assert fault.reason == "2 of 3 replicas were ready after 1 s"
    (up,) = [guard for guard in decision.verdict.guards if guard.id == "targets-up"]
    assert up.remedy is not None and "`ready.replicas`" in up.remedy
    assert not decision.evidence.load


def test_a_server_that_reports_no_replicas_ends_the_run_at_the_start_with_what_to_write(
    tmp_path: Path, plain: Sim
) -> None:
    with serve_sim(PACE) as alone:
        decision = run(tmp_path, text_of(plain, alone))
    (fault,) = decision.evidence.target_faults
    assert "its replicas cannot be counted" in fault.reason and "`command: …`" in fault.reason


def test_a_command_counts_only_where_it_is_allowed(tmp_path: Path, plain: Sim, three: Sim) -> None:
    number = tmp_path / "number"
    number.write_text("3\n")
    text = text_of(plain, three, f"{{replicas: 3, command: 'cat {number}'}}")
    with pytest.raises(UsageError, match="--allow-actions"):
        run(tmp_path, text)
    decision = run(tmp_path, text, Watching(IN_A_BLOCK, number.unlink), allow_actions=True)
    assert [one.count for one in decision.evidence.replicas] == [3, 3, None, None, None]
    assert decision.verdict.outcome is Outcome.INVALID
    assert "not counted (cat ended with status 1; see replicas.log) before block 2" in guard_of(decision).reason
    log = (tmp_path / "work" / decision.evidence.run.id / "replicas.log").read_text()
    assert log.startswith("3\n") and "No such file" in log
    same_from_the_store(tmp_path, decision)


def test_a_run_that_goes_on_keeps_the_counts_from_before(tmp_path: Path, plain: Sim, three: Sim) -> None:
    suite = parse_suite(text_of(plain, three), "replicas.yaml")

    class Ends(Watching):
        def step(self, done: str) -> None:
            super().step(done)
            if self.steps == IN_A_BLOCK and done.startswith("block"):
                three.kill(0)
            if self.steps == IN_A_BLOCK + 1:  # after the count before block 2, which is measured again
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_suite(suite, tmp_path, options(tmp_path), Ends())
    three.start(0)
    decision = resume.resume_suite(suite, tmp_path, options(tmp_path), Watching())
    found = [(one.when, one.count) for one in decision.evidence.replicas]
    before = [(AT_THE_START, 3), ("before block 1", 3), ("before block 2", 2)]
    after = [(AT_THE_START, 3), ("before block 2", 3), ("before block 3", 3), (AT_THE_END, 3)]
    assert found == before + after
    assert decision.verdict.outcome is Outcome.INVALID
    assert "2 of 3 replicas before block 2" in guard_of(decision).reason
    same_from_the_store(tmp_path, decision)


def test_a_count_that_is_removed_from_the_journal_is_noticed(tmp_path: Path, plain: Sim, three: Sim) -> None:
    decision = run(tmp_path, text_of(plain, three))
    with closing(sqlite3.connect(tmp_path / STORE)) as connection, connection:
        triggers = connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'event'")
        for (name,) in triggers.fetchall():  # they keep what is stored from being changed
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("DELETE FROM event WHERE kind = ? AND data LIKE '%before block 2%'", (REPLICAS,))
    found = here(tmp_path, "gate", decision.evidence.run.id)
    assert found.returncode != 0
    assert re.search("not what it was when it finished", found.stderr)


DRILL = """
suite: losing
deployments:
  server: {sim: {replicas: 3, ttft: 5ms, itl: 1msLOSS}, ready: {replicas: 3}}
baseline: server
candidate: server
load:
  workload: {input: 8 tokens, output: 4 tokens}
  blocks: 3
  warmup: 0
  sweep: [{stage: steady, concurrency: 2, requests: 8}, {stage: loss, rate: 20/s, arrival: constant, for: 500msACTIONS}]
gate:
  allow_underpowered: true
  client: {send_lag_p99: 1s, send_lag_max: 1s, read_delay_p99: 1s, read_delay_max: 1s, cpu: 100%, achieved: 1%}
  checks: [{metric: error_rate, max: 90%}]
"""


def test_a_drill_whose_server_loses_a_replica_on_the_way_is_invalid(tmp_path: Path) -> None:
    in_block_2 = 34  # requests; a block has 18 and its ramp, and a few come before the first
    text = DRILL.replace("LOSS", f", lose_replica_after: {in_block_2}").replace("ACTIONS", "")
    decision = run(tmp_path, text)
    assert [one.count for one in decision.evidence.replicas] == [3, 3, 3, 2, 2]
    assert decision.verdict.outcome is Outcome.INVALID
    assert "replicas-changed" in tripped(decision)
    same_from_the_store(tmp_path, decision)


def test_a_drill_that_kills_a_replica_on_purpose_has_them_all_again_afterwards(tmp_path: Path) -> None:
    decision = run(tmp_path, DRILL.replace("LOSS", "").replace("ACTIONS", ", actions: [{at: 150ms, kill: 1}]"))
    assert {one.count for one in decision.evidence.replicas} == {3}
    after = [one.when for one in decision.evidence.replicas if one.when.startswith("after")]
    assert after == [f"after block {block} of 3, stage loss" for block in (1, 2, 3)]
    assert not guard_of(decision).tripped
    assert decision.verdict.outcome in (Outcome.PASS, Outcome.WARN), decision.verdict.reason


KILL = """
import http.client, os
if os.environ["BENCHGATE_ARM"] == "candidate":
    line = http.client.HTTPConnection("127.0.0.1", PORT)
    line.request("POST", "/sim/replicas/0/kill")
    line.getresponse()
"""


def test_a_command_of_a_stage_that_takes_a_replica_away_is_waited_for(tmp_path: Path, plain: Sim, three: Sim) -> None:
    """The reader's own way to lose one; whoever watches over the replicas brings it back."""

    class BringsBack(Watching):
        def status(self, line: str) -> None:
            super().status(line)
            if " replicas" in line:
                three.start(0)

    (tmp_path / "kill.py").write_text(KILL.replace("PORT", str(three.port)))
    actions = f", actions: [{{at: 0s, run: [{sys.executable}, {tmp_path / 'kill.py'}]}}]"
    text = text_of(plain, three, actions=actions).replace("requests: 8,", "requests: 100,")
    watching = BringsBack()
    decision = run(tmp_path, text.replace("blocks: 3", "blocks: 2"), watching, allow_actions=True)
    assert watching.counts and watching.counts[0].startswith("the candidate has 2 of 3 replicas")
    assert {one.count for one in decision.evidence.replicas} == {3}
    assert not guard_of(decision).tripped
