"""Runs on the practice server that are cut short and go on: what is whole is kept, what was begun is measured again."""

from __future__ import annotations

import shutil
import signal
import socket
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchgate.errors import Command, RunInterrupted, TargetError, UsageError
from benchgate.gate.guards.run import session_notes
from benchgate.model.deployment import Arm
from benchgate.model.run import SESSION_BEGUN, DeploymentFault, LoadObservation, Resumption, RunStatus
from benchgate.pipeline import checkpoint, resume
from benchgate.pipeline.environment import utc_now
from benchgate.pipeline.judge import Decision, decide_stored
from benchgate.pipeline.progress import Progress
from benchgate.pipeline.run import RunOptions, run_suite
from benchgate.sim.process import serve_sim
from benchgate.sim.settings import sim_settings
from benchgate.store.evidence import JournalEvent
from benchgate.store.repository import Store
from benchgate.suite.loader import parse_suite
from tests.e2e.command import STORE, command_line, here
from tests.fakes.scripted_server import Received, ScriptedServer, Step, answering, json_response
from tests.shells.store_samples import DONE_AT, PLAN, make_deployment, make_run

pytestmark = pytest.mark.beside  # its client may be late, by a lot: what is asked of it is no time


# What is tested is what is measured, not how fast: bounds of the client are wide, for the machine may be busy.
SUITE = """
suite: resumed
deployments:
  plain: {url: "PLAIN", model: sim}
  other: {url: "OTHER", model: sim}
baseline: plain
candidate: other
load:
  workload: {input: 8 tokens, output: 4 tokens}
  BLOCKS
  warmup: 0
  sweep: [{stage: c2, concurrency: 2, requests: 8}, {stage: c4, concurrency: 4, requests: 8}]
slo: {ttft: 5s, target: 50%}
gate:
  allow_underpowered: true
  client: {send_lag_p99: 200ms, send_lag_max: 1s, read_delay_p99: 200ms, read_delay_max: 1s, cpu: 100%, achieved: 50%}
  checks:
    - {metric: error_rate, max: 50%}
    - {metric: ttft, margin: 95%, required: false}
"""
PACE = sim_settings(ttft_s=0.005, itl_s=0.001)
healthy = answering(lambda received: "one two three four", after_s=0.005)
IN_A_BLOCK = 4  # executions: two stages on two arms


@pytest.fixture(scope="module")
def suite_text() -> Iterator[str]:
    """The suite with two blocks, for two servers that are there for all of these tests."""
    with serve_sim(PACE) as plain, serve_sim(PACE) as other:
        yield SUITE.replace("PLAIN", plain.url).replace("OTHER", other.url).replace("BLOCKS", "blocks: 2")


class Ends(Progress):
    """Watches a run, and ends it as Ctrl-C does once so many steps of its load are done; None: never."""

    def __init__(self, after: int | None = None) -> None:
        self.after = after
        self.steps: list[str] = []
        self.warm: list[str] = []
        self.notes: list[str] = []

    def step(self, done: str) -> None:
        """One step is done: an execution of a stage, say, that is stored and not yet marked as measured."""
        if done.startswith(("block", "capacity")):
            self.steps.append(done)
            if len(self.steps) == self.after:
                raise KeyboardInterrupt
        elif done.startswith("warm-up"):
            self.warm.append(done.removeprefix("warm-up "))

    def note(self, line: str) -> None:
        """Something is said."""
        self.notes.append(line)


def options(folder: Path) -> RunOptions:
    return RunOptions(store=str(folder / STORE), work_dir=folder / "work")


def opened(folder: Path) -> Store:
    return Store.open(str(folder / STORE), create=False)


def begun(folder: Path, text: str, after: int) -> str:
    """A run that ended in its load after so many steps; its id."""
    ends = Ends(after)
    with pytest.raises(RunInterrupted) as interrupted:
        run_suite(parse_suite(text, "resumed.yaml"), folder, options(folder), ends)
    with opened(folder) as store:
        (run,) = store.resumable_runs("resumed")
    assert interrupted.value.run_id == run.id
    return run.id


def gone_on(folder: Path, text: str, ref: str | None = None) -> tuple[Decision, Ends]:
    watching = Ends()
    suite = parse_suite(text, "resumed.yaml")
    return resume.resume_suite(suite, folder, options(folder), watching, ref), watching


def events(folder: Path, run_id: str, kind: str) -> list[Any]:
    with opened(folder) as store:
        told = [entry.what for entry in store.journal(run_id)]
    return [event.data for event in told if isinstance(event, JournalEvent) and event.kind == kind]


@pytest.mark.slow
def test_a_run_goes_on_at_the_block_it_had_only_begun_and_comes_to_the_same_plan(
    tmp_path: Path, suite_text: str
) -> None:
    suite_text = suite_text.replace("blocks: 2", "looks: [2, 3]")  # of which the first one settles it
    run_id = begun(tmp_path, suite_text, after=IN_A_BLOCK + 2)
    with opened(tmp_path) as store:
        cut = store.evidence(run_id)
    assert (cut.run.status, cut.run.finished_at, len(cut.load)) == (RunStatus.PARTIAL, None, IN_A_BLOCK + 2)

    decision, watched = gone_on(tmp_path, suite_text)
    run = decision.evidence.run
    assert (run.id, run.status, run.plan_sha256) == (run_id, RunStatus.COMPLETE, cut.run.plan_sha256)
    # What one arm was asked already, both were asked once more before it counts: neither has it alone in a cache.
    assert watched.warm == ["c2 on baseline", "c2 on candidate", "c4 on baseline", "c4 on candidate"]
    assert len(watched.steps) == IN_A_BLOCK
    found = [(seen.block, seen.position, seen.stage, seen.arm.value) for seen in decision.evidence.load]
    assert [block for block, *_ in found] == [0] * IN_A_BLOCK + [1] * IN_A_BLOCK
    assert [position for _, position, *_ in found] == [0, 1, 2, 3, 6, 7, 8, 9]  # 4 and 5 were set aside
    assert len({(block, *place) for block, _, *place in found}) == 2 * IN_A_BLOCK
    (note,) = [line for line in decision.verdict.notes if "sessions" in line]
    assert note.startswith("measured in 2 sessions: interrupted, resumed at ")
    assert note.endswith(", and measured again from the beginning: block 2")
    assert decision.evidence.resumptions[0].same_process == ("baseline", "candidate")
    assert not [guard.id for guard in decision.verdict.guards if guard.tripped], decision.verdict.reason
    assert decision.verdict.outcome.promotes
    (look,) = events(tmp_path, run_id, "look")
    assert look["after_s"] > sum(seen.client.wall_s for seen in (*cut.load, *decision.evidence.load[IN_A_BLOCK:]))

    with opened(tmp_path) as store:
        journal = store.journal(run_id)
    aside = [entry.what for entry in journal if entry.aside]
    assert [(one.stage, one.block) for one in aside if isinstance(one, LoadObservation)] == [("c2", 1), ("c2", 1)]
    assert set(decision.evidence.resumptions[0].set_aside) == {entry.seq for entry in journal if entry.aside}
    again = here(tmp_path, "gate", run_id, "--format", "json")
    assert again.stdout == decision.json(decision.exit_code)
    with pytest.raises(UsageError, match="is complete, so nothing of it is left to measure"):
        gone_on(tmp_path, suite_text, run_id)


@pytest.mark.slow
def test_looks_keep_their_decision_and_a_search_goes_on_with_those_it_had(tmp_path: Path, suite_text: str) -> None:
    # Of 32 requests without an error 9 % are not ruled out at the first look of two.
    search = "capacity: {over: concurrency, from: 1, to: 4, probe: 32, budget: 160}"
    text = suite_text.replace("blocks: 2", f"looks: [2, 3]\n  {search}").replace("max: 50%", "max: 9%")
    run_id = begun(tmp_path, text, after=3 * IN_A_BLOCK + 4)
    taken = events(tmp_path, run_id, "look")
    assert [(look["blocks"], look["then"]) for look in taken] == [(2, "on to 3"), (3, "ended")]
    decision, watched = gone_on(tmp_path, text)
    assert events(tmp_path, run_id, "look") == taken
    assert not [step for step in watched.steps if step.startswith("block")]
    looks = [seen for seen in decision.evidence.load if seen.stage.startswith("capacity")]
    assert len(looks) == 3 + len(watched.steps)
    assert max(Counter((seen.stage, seen.arm, seen.block) for seen in looks).values()) == 1
    assert [seen.arm.value for seen in looks[:4]] == ["baseline", "candidate", "baseline", "candidate"]
    assert [seen.session for seen in looks] == [0, 0, 0, *(1 for _ in watched.steps)]
    assert decision.evidence.resumptions[0].again == (f"look {looks[3].block + 1} at {looks[3].stage}",)


@pytest.mark.slow
def test_a_server_that_the_suite_starts_is_started_again(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = command_line("sim", "--port", str(port), "--set", "ttft=5ms", "--set", "itl=1ms")
    with serve_sim(PACE) as plain:
        text = SUITE.replace("PLAIN", plain.url).replace("OTHER", f"http://127.0.0.1:{port}")
        text = text.replace("BLOCKS", "blocks: 2").replace(
            "model: sim}\nbase", f"START, start: {{run: {words}}}}}\nbase"
        )
        text = text.replace("START", "model: sim, engine: vllm")
        allowed = replace(options(tmp_path), allow_actions=True)
        suite = parse_suite(text, "resumed.yaml")
        with pytest.raises(RunInterrupted):
            run_suite(suite, tmp_path, allowed, Ends(IN_A_BLOCK + 1))
        decision = resume.resume_suite(suite, tmp_path, allowed, Ends(), None)
    assert decision.evidence.run.status is RunStatus.COMPLETE
    assert len(decision.evidence.load) == 2 * IN_A_BLOCK
    markers = [w.markers[0] for w in decision.evidence.telemetry if w.arm is Arm.CANDIDATE and w.stage == "c2"]
    assert len(set(markers)) == 2  # another process in the second session
    (sessions,) = session_notes(decision.evidence)  # and none on the server that benchgate stopped and started itself
    assert sessions.startswith("measured in 2 sessions")


class EndsScoring(Ends):
    """Ends a run once the answers to one task among the load are scored on both arms, and others are not."""

    def __init__(self) -> None:
        super().__init__()
        self.scored: list[str] = []

    def step(self, done: str) -> None:
        super().step(done)
        if "@c2 on" in done:
            self.scored.append(done.split(" on ")[0])
            if self.scored.count(self.scored[-1]) == 2:
                raise KeyboardInterrupt


@pytest.mark.slow
def test_scored_answers_among_the_load_are_stored_once(tmp_path: Path) -> None:
    drills = Path(__file__).parents[2] / "suites" / "drills"
    shutil.copytree(drills / "data", tmp_path / "data")
    (tmp_path / "tasks").mkdir()
    for name in ("say", "tell"):
        task = (drills / "tasks" / "say.yaml").read_text().replace("task: say", f"task: {name}")
        (tmp_path / "tasks" / f"{name}.yaml").write_text(task)
    pace = sim_settings(ttft_s=0.005, itl_s=0.001, says_ratio=1.0)
    with serve_sim(pace) as plain, serve_sim(pace) as other:
        text = SUITE.replace("PLAIN", plain.url).replace("OTHER", other.url).replace("BLOCKS", "blocks: 2")
        text = text.replace("concurrency: 2, requests: 8", "concurrency: 2, requests: 20, verify: 50%")
        for place in ("", "stage: c2, "):
            text += f"    - {{metric: accuracy, task: each, {place}margin: 45 points}}\n"
        text += "quality: {tasks: [tasks/say.yaml, tasks/tell.yaml]}\n"
        ends, suite = EndsScoring(), parse_suite(text, "resumed.yaml")
        with pytest.raises(RunInterrupted):
            run_suite(suite, tmp_path, options(tmp_path), ends)
        decision, _ = gone_on(tmp_path, text)
    counts = Counter((one.task, one.arm) for one in decision.evidence.quality)
    assert counts == {(task, arm): 1 for task in ("say", "tell", "say@c2", "tell@c2") for arm in Arm}
    assert "is measured once" not in decision.verdict.reason


@pytest.mark.slow
def test_what_changed_is_said_and_nothing_is_written(
    tmp_path: Path, suite_text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"id": "a", "prompt": "one"}\n')
    suite_text += "shadow: {prompts: prompts.jsonl}\n"
    run_id = begun(tmp_path, suite_text, after=1)
    with opened(tmp_path) as store:
        before = [entry.seq for entry in store.journal(run_id)]
    with pytest.raises(UsageError, match=r"the suite's load\.sweep\[0\]\.requests was 8 and is 9\n"):
        gone_on(tmp_path, suite_text.replace("requests: 8}, {", "requests: 9}, {"))
    with pytest.raises(UsageError, match=r"the suite's deployments\.other\.price was nothing and is 2\.0"):
        gone_on(tmp_path, suite_text.replace("other: {", "other: {price: $2/h, "))
    with pytest.raises(UsageError, match="no interrupted run of resumed, plain against plain, can be resumed"):
        gone_on(tmp_path, suite_text.replace("candidate: other", "candidate: plain"))
    with pytest.raises(UsageError, match=r"slo\.target was 50 % and is 90 %\n.*slo\.ttft was 5 s and is 500 ms"):
        gone_on(tmp_path, suite_text.replace("ttft: 5s, target: 50%", "ttft: 500ms, target: 90%"))
    prompts.write_text('{"id": "a", "prompt": "two"}\n')
    with pytest.raises(UsageError, match=r"the plan was \w+ and is \w+: a file that the suite names"):
        gone_on(tmp_path, suite_text)
    prompts.write_text('{"id": "a", "prompt": "one"}\n')
    suite = parse_suite(suite_text, "resumed.yaml")
    by_others = replace(options(tmp_path), cluster="tcp://127.0.0.1:1")
    with pytest.raises(UsageError, match="its load was sent by this machine and would be by a cluster"):
        resume.resume_suite(suite, tmp_path, by_others, Ends())
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "__version__", "9.9")
        patch.setattr(checkpoint, "environment_facts", lambda: {"cpu": "another"})
        with pytest.raises(UsageError, match=r"benchgate was \S+ and is 9\.9\n  this machine's"):
            gone_on(tmp_path, suite_text)
    with opened(tmp_path) as store:
        assert [(run.id, run.status) for run in store.resumable_runs()] == [(run_id, RunStatus.PARTIAL)]
        assert [entry.seq for entry in store.journal(run_id)] == before


def test_a_run_that_may_not_go_on_says_why(tmp_path: Path, suite_text: str) -> None:
    run_id = begun(tmp_path, suite_text, after=1)
    with opened(tmp_path) as store:
        calibration = make_run(suite={"calibration": True})
        store.begin_run(calibration, PLAN).suspend()
        over = make_run()
        store.begin_run(over, PLAN).finish(RunStatus.PARTIAL, DONE_AT)
        open_yet = [run.id for run in store.resumable_runs()]
    suite, part = parse_suite(suite_text, "resumed.yaml"), replace(options(tmp_path), only="load")
    with pytest.raises(KeyboardInterrupt):
        run_suite(suite, tmp_path, part, Ends(1))
    with opened(tmp_path) as store:
        assert [run.id for run in store.resumable_runs()] == open_yet
        # Killed after it had noted that a deployment is gone, and before it could end by that.
        writer = store.reopen_run(run_id, spool=tmp_path / "spool.jsonl")
        writer.add(DeploymentFault(Arm.CANDIDATE, "after block 1 of 2, stage c2", "it refuses connections"))
        writer.suspend()
        writer.close()
    for ref, why in (
        (run_id, "the candidate other was not there after block 1 of 2, stage c2, by which the run ended"),
        (calibration.id, "is a calibration; only measured runs with a candidate can be resumed"),
        (over.id, "is over, though not complete"),
    ):
        with pytest.raises(UsageError, match=why):
            gone_on(tmp_path, suite_text, ref)


def test_a_run_that_was_killed_after_it_went_on_does_not_go_on_again(tmp_path: Path, suite_text: str) -> None:
    run_id = begun(tmp_path, suite_text, after=1)
    names = {Arm.BASELINE: make_deployment("plain"), Arm.CANDIDATE: make_deployment("other")}
    with opened(tmp_path) as store:
        writer = store.reopen_run(run_id, spool=tmp_path / "spool.jsonl")
        writer.resume(Resumption("2026-11-20T12:30:00Z", 42, (), ()), [])
        writer.close()
        # Of another suite of that name, which is not the one that is asked for.
        newer = make_run(suite_name="resumed", started_at=utc_now(), arms=names)
        store.begin_run(newer, PLAN).suspend()
    with opened(tmp_path) as store:
        assert store.run(run_id).status is RunStatus.RUNNING
        decision = decide_stored(store, run_id)
    assert decision.evidence.run.status is RunStatus.PARTIAL
    (guard,) = [guard for guard in decision.verdict.guards if guard.id == "run-complete"]
    assert str(guard.remedy).startswith("it was resumed once and cannot be resumed again")
    with pytest.raises(UsageError, match="it was resumed once already, and no verdict rests on a run"):
        gone_on(tmp_path, suite_text)


def test_deployments_that_are_others_or_gone_are_told_and_the_run_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = [4096]

    def telling(received: Received) -> Iterable[Step]:
        if received.path == "/v1/models":
            return [json_response({"data": [{"id": "sim", "max_model_len": context[0]}]})]
        return healthy(received)

    with ScriptedServer(telling) as plain:
        with ScriptedServer(healthy) as other:
            monkeypatch.setenv("THE_OTHER", other.url)
            text = SUITE.replace("PLAIN", plain.url).replace("OTHER", "${env:THE_OTHER}").replace("BLOCKS", "blocks: 2")
            text += "limits: {ready: 1s, connect: 1s}\n"
            run_id = begun(tmp_path, text, after=1)
            assert other.url not in str(events(tmp_path, run_id, SESSION_BEGUN))
            monkeypatch.setenv("THE_OTHER", other.url.replace("127.0.0.1", "localhost"))
            with pytest.raises(UsageError, match="the candidate other has another `url` than before"):
                gone_on(tmp_path, text)
            monkeypatch.setenv("THE_OTHER", f"{other.url}/")
            context[0] = 8192
            with pytest.raises(UsageError, match=r"the baseline plain is not what it was .*_len was 4096 and is 8192"):
                gone_on(tmp_path, text)
        context[0] = 4096
        with pytest.raises(TargetError, match="cannot go on now, and stays as it is: the candidate other: "):
            gone_on(tmp_path, text)
    with opened(tmp_path) as store:
        assert [run.id for run in store.resumable_runs()] == [run_id]
    assert events(tmp_path, run_id, "resumed") == []


@contextmanager
def telling_facts(listed: list[Step]) -> Iterator[str]:
    """The suite for two servers, the baseline of which answers each request for its list of models by the next step.

    The last step answers all further ones.
    """

    def telling(received: Received) -> Iterable[Step]:
        if received.path == "/v1/models":
            return [listed.pop(0) if len(listed) > 1 else listed[0]]
        return healthy(received)

    with ScriptedServer(telling) as plain, ScriptedServer(healthy) as other:
        yield SUITE.replace("PLAIN", plain.url).replace("OTHER", other.url).replace("BLOCKS", "blocks: 2")


MUTE = json_response({"data": [{"id": "sim"}]})
FACTS = json_response({"data": [{"id": "sim", "max_model_len": 4096}]})


def test_deployment_that_reports_a_fact_no_more_is_refused_and_one_that_did_not_answer_once_is_asked_again(
    tmp_path: Path,
) -> None:
    listed: list[Step] = [FACTS]
    with telling_facts(listed) as text:
        run_id = begun(tmp_path, text, after=1)
        listed[:] = [MUTE]
        with pytest.raises(UsageError, match=r"baseline plain is not .*: max_model_len was 4096 and is not reported; "):
            gone_on(tmp_path, text)
        assert events(tmp_path, run_id, "resumed") == []
        listed[:] = [json_response({"error": "busy"}, status=503), FACTS]
        decision, _ = gone_on(tmp_path, text)
    assert (decision.evidence.run.id, decision.evidence.run.status) == (run_id, RunStatus.COMPLETE)


@pytest.mark.slow
@pytest.mark.parametrize("before", [[MUTE], [json_response({"data": [{"id": "sim", "n_params": 7}]})]])
def test_deployment_that_reports_a_new_fact_is_refused_once_a_block_is_complete(
    tmp_path: Path, before: list[Step]
) -> None:
    for after, is_complete in ((1, False), (IN_A_BLOCK + 1, True)):
        folder = tmp_path / str(after)
        folder.mkdir()
        listed = list(before)
        with telling_facts(listed) as text:
            run_id = begun(folder, text, after)
            now = json_response({"data": [{"id": "sim", "n_params": 7, "max_model_len": 4096}]})
            listed[:] = [now]
            if is_complete:
                with pytest.raises(UsageError, match=r"max_model_len was not reported and is 4096;"):
                    gone_on(folder, text)
                assert events(folder, run_id, "resumed") == []
            else:
                decision, _ = gone_on(folder, text)
                assert decision.evidence.run.arms[Arm.BASELINE].facts == {"n_params": 7, "max_model_len": 4096}


@pytest.mark.slow
def test_a_killed_run_is_marked_by_the_next_one_and_goes_on_once(tmp_path: Path, suite_text: str) -> None:
    text = suite_text.replace("blocks: 2", "blocks: 3")
    (tmp_path / "resumed.yaml").write_text(text)
    older = killed(tmp_path, "run", "resumed.yaml", "--work-dir", "work", after=7)
    with pytest.raises(KeyboardInterrupt):
        run_suite(parse_suite(text, "resumed.yaml"), tmp_path, options(tmp_path), Ends(1))
    with opened(tmp_path) as store:
        newer, run = store.resumable_runs()
        assert (run.id, run.status) == (older, RunStatus.PARTIAL)
        assert len(store.evidence(older).load) >= 7
    spool = tmp_path / "work" / older / "spool.jsonl"  # what it holds is brought in before it goes on
    suite, ends = parse_suite(text, "resumed.yaml"), Ends(1)
    spool.rename(tmp_path / "lost")
    with pytest.raises(UsageError, match=f"what it measured is kept in {spool} too, which is not there"):
        gone_on(tmp_path, text, older)
    (tmp_path / "lost").rename(spool)
    elsewhere, gone = replace(options(tmp_path), work_dir=tmp_path / "elsewhere"), str(tmp_path / "gone.db")
    with pytest.raises(UsageError, match=f"that this store does not have is in {spool}") as lost:
        resume.resume_suite(suite, tmp_path, replace(options(tmp_path), store=gone), ends)
    (remedy,) = lost.value.remedies
    assert (remedy.command, remedy.subject, remedy.store) == (Command.IMPORT, str(spool), gone)
    with pytest.raises(KeyboardInterrupt):
        resume.resume_suite(suite, tmp_path, elsewhere, ends, older[:13])
    assert ends.notes[-1].startswith(f"run {older} was cut short again; it went on once, and does so no more")
    with pytest.raises(UsageError, match=r"is over, though not complete \(it went on once already, and was"):
        gone_on(tmp_path, text, older)
    with opened(tmp_path) as store:
        assert store.evidence(older).resumptions[0].by_spool

    result = here(tmp_path, "run", "resumed.yaml", "--resume", "--work-dir", "work", "--format", "json")
    assert result.returncode == 0, result.stderr
    with opened(tmp_path) as store:
        evidence = store.evidence(newer.id)
    assert (evidence.run.status, evidence.run.plan_sha256) == (RunStatus.COMPLETE, run.plan_sha256)
    assert Counter((seen.stage, seen.arm, seen.block) for seen in evidence.load).total() == 3 * IN_A_BLOCK


def killed(folder: Path, *arguments: str, after: int) -> str:
    """Run the command until the store has so many observations, and end it as nothing can prevent; the run's id."""
    process = subprocess.Popen(command_line(*arguments), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while process.poll() is None and asked(folder / STORE, "SELECT count(*) FROM observation", 0) < after:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGKILL, errors
    return str(asked(folder / STORE, "SELECT id FROM run", ""))


def asked(path: Path, question: str, unknown: Any) -> Any:
    """What a store says by now; `unknown` while it is being made."""
    if not path.exists():
        return unknown
    with closing(sqlite3.connect(path, timeout=10)) as connection:
        try:
            return connection.execute(question).fetchone()[0]
        except sqlite3.OperationalError:
            return unknown


@pytest.mark.beside
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--run", "abcd"), "--run is about the run that --resume continues"),
        (("--ignore-missing-spool",), "--ignore-missing-spool is about the run that --resume continues"),
        (("--resume", "--label", "new"), "leave --label out"),
        (("--resume", "--only", "load"), "a run of one part, or a quick one, cannot be resumed"),
        (("--resume",), "there is no benchgate store"),
    ],
)
def test_a_mistake_in_the_command_line_is_told_before_anything_is_measured(
    tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    (tmp_path / "resumed.yaml").write_text(offline())
    (tmp_path / "r.html").write_text("of another run")
    result = here(tmp_path, "run", "resumed.yaml", "--report", "r.html", *arguments)
    assert result.returncode == 2
    assert says in result.stderr
    assert (tmp_path / "r.html").read_text() == "of another run"


@pytest.mark.slow
@pytest.mark.beside
def test_of_several_candidates_one_is_named(tmp_path: Path) -> None:
    third = '  third: {url: "http://127.0.0.1:3", model: sim}\nbaseline: plain'
    text = offline().replace("candidate: other", "candidates: [other, third]").replace("baseline: plain", third)
    (tmp_path / "resumed.yaml").write_text(text)
    (tmp_path / STORE).parent.mkdir()
    Store.open(str(tmp_path / STORE)).close()
    result = here(tmp_path, "run", "resumed.yaml", "--resume")
    assert result.returncode == 2
    assert "name its candidate with --candidate, one of other, third" in result.stderr


def offline() -> str:
    """The suite for servers that nobody asks anything."""
    text = SUITE.replace("PLAIN", "http://127.0.0.1:1").replace("OTHER", "http://127.0.0.1:2")
    return text.replace("BLOCKS", "blocks: 2")
