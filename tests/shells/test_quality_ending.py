"""Eval processes that end before their work does: what was answered is kept, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchgate.errors import UsageError
from benchgate.model.deployment import Arm
from benchgate.model.run import QualityObservation
from benchgate.quality import runner
from benchgate.quality.protocol import ItemAnswered, SpoolWriter
from benchgate.quality.runner import EvalProcess, evaluate, require_lm_eval
from benchgate.suite.schema import Limits
from tests.fakes.scripted_server import Received, ScriptedServer, Step, answering
from tests.shells.quality_helpers import (
    ITALIAN,
    TASKS,
    Observed,
    child_pids,
    collect,
    is_running,
    only_baseline,
    right_answer,
    settings,
    subject,
    target,
    wait_until,
)

pytest_plugins = ["tests.shells.quality_surroundings"]
pytestmark = pytest.mark.usefixtures("surroundings")


def answers_then_stalls(received: Received) -> Iterator[Step]:
    """Three numbers are answered, everything else hangs."""
    if subject(received) not in ("one", "two", "three"):
        yield 600.0
    yield from answering(right_answer)(received)


@pytest.fixture(scope="module")
def cut_short(tmp_path_factory: pytest.TempPathFactory) -> Observed:
    """The baseline's process is killed when it has three answers; the candidate's runs into the time limit."""
    work_dir = tmp_path_factory.mktemp("cut")

    def kill_baseline(arm: Arm, task: str, answered: int) -> None:
        if arm is Arm.BASELINE and answered == 3:
            [spool] = work_dir.glob("quality-baseline-*/spool.jsonl")
            os.kill(json.loads(spool.read_text().splitlines()[0])["pid"], signal.SIGKILL)

    with ScriptedServer(answers_then_stalls) as baseline, ScriptedServer(answers_then_stalls) as candidate:
        targets = {
            Arm.BASELINE: target(Arm.BASELINE, baseline.url),
            Arm.CANDIDATE: target(Arm.CANDIDATE, candidate.url),
        }
        return collect(evaluate(targets, TASKS, settings(timeout="3s"), work_dir, on_progress=kill_baseline))


def test_answers_survive_the_killing_of_the_process(cut_short: Observed) -> None:
    observed = cut_short[Arm.BASELINE, "italian"]
    assert observed.fault == "the eval process was ended by SIGKILL"
    assert len(observed.items) >= 3
    assert {i.answer for i in observed.items} == {"uno", "due", "tre"}
    assert {i.score for i in observed.items} == {None}
    assert {i.error for i in observed.items} == {"answered, but the eval ended before it was scored"}


def test_the_time_limit_ends_the_eval_and_keeps_the_answers(cut_short: Observed) -> None:
    observed = cut_short[Arm.CANDIDATE, "italian"]
    assert observed.fault == "timed out after 3.00 s with tasks unfinished"
    assert {i.answer for i in observed.items} == {"uno", "due", "tre"}
    assert observed.expected_n == 7


def test_tasks_that_never_began_are_observed_as_faults_too(cut_short: Observed) -> None:
    for arm in Arm:
        never_begun = cut_short[arm, "dates"]
        assert never_begun.fault is not None
        assert (never_begun.items, never_begun.expected_n) == ((), 5)


@pytest.mark.slow
def test_process_that_is_stopped_for_good_is_ended_at_the_time_limit(tmp_path: Path) -> None:
    """By default that is after `quality.timeout`, 900 s; a stopped process ends at SIGKILL alone."""

    def stop(arm: Arm, task: str, answered: int) -> None:
        if answered == 2:
            [pid] = child_pids(tmp_path)
            os.kill(pid, signal.SIGSTOP)

    with ScriptedServer(answering(right_answer, after_s=0.3)) as server:
        [observed] = evaluate(only_baseline(server.url), [ITALIAN], settings(timeout="3s"), tmp_path, on_progress=stop)
    assert observed.fault == "timed out after 3.00 s with tasks unfinished"
    assert 2 <= len(observed.items) < observed.expected_n
    [pid] = child_pids(tmp_path)
    assert not is_running(pid)


def test_an_interrupt_keeps_the_answers_and_ends_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    work_dir = Path("logs/run")  # neither absolute nor there yet
    kept: list[QualityObservation] = []

    def interrupt(arm: Arm, task: str, answered: int) -> None:
        if answered == 2:
            raise KeyboardInterrupt

    with ScriptedServer(answers_then_stalls) as server, pytest.raises(KeyboardInterrupt):
        for observation in evaluate(only_baseline(server.url), TASKS, settings(), work_dir, on_progress=interrupt):
            kept.append(observation)
    assert [observation.fault for observation in kept] == ["interrupted", "interrupted"]
    assert len(kept[0].items) >= 2
    [pid] = child_pids(work_dir)
    assert not is_running(pid)


def test_a_process_that_needs_more_memory_than_it_may_use_ends_with_that_reason(tmp_path: Path) -> None:
    small = settings().model_copy(update={"memory_bytes": 128 * 1024**2})
    with ScriptedServer(answering(right_answer)) as server:
        [observed] = evaluate(only_baseline(server.url), [ITALIAN], small, tmp_path)
    assert observed.fault is not None
    assert "(`quality.memory` limits it to 128 MiB)" in observed.fault
    assert (observed.items, server.requests) == ((), [])


PARENT = """
import sys
from pathlib import Path
from benchgate.quality.runner import evaluate
from tests.shells.quality_helpers import TASKS, only_baseline, settings
list(evaluate(only_baseline(sys.argv[1]), TASKS, settings(), Path(sys.argv[2])))
"""


@pytest.mark.slow
def test_a_killed_benchgate_leaves_no_eval_process_behind(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with ScriptedServer(answers_then_stalls) as server:
        command = [sys.executable, "-c", PARENT, server.url, str(tmp_path)]
        with subprocess.Popen(command, env=environment) as parent:
            try:
                wait_until(lambda: len(server.requests) >= 3)
                [pid] = child_pids(tmp_path)
                assert is_running(pid)
            finally:
                parent.kill()
        wait_until(lambda: not is_running(pid), limit_s=20)


def test_a_missing_lm_eval_is_told_with_the_command_that_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install .+\[eval\]'"):
        require_lm_eval()


def test_lm_eval_is_not_imported_by_the_parent() -> None:
    probe = "import sys, benchgate.quality.runner, benchgate.quality.tasks.loading; print('lm_eval' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    said = subprocess.run([sys.executable, "-c", probe], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "False"


def test_what_was_answered_right_before_the_time_ran_out_is_kept(tmp_path: Path) -> None:
    class LastMoment(EvalProcess):
        """Writes an answer in the moment it is ended, after the last look at its spool."""

        ended = False

        def kill(self) -> None:
            with SpoolWriter(self._folder / "spool.jsonl") as spool:
                spool.write(ItemAnswered("italian", "n1", "uno", "stop", 1, 1))

    job = runner.make_job(target(Arm.BASELINE, "http://127.0.0.1:9"), 4, [ITALIAN], settings(), Limits())
    process = LastMoment(job, tmp_path, None)
    [observation] = runner.follow([process], 1, 0.0, "timed out after {}")
    assert observation.fault == "timed out after 0 s"
    assert [item.answer for item in observation.items] == ["uno"]
