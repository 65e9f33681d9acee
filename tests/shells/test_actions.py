"""What is done to a deployment while a stage runs: on time, told when it was not, and undone afterwards."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from benchgate.errors import TargetError
from benchgate.load.results import ClassResult, StageResult
from benchgate.model.deployment import Arm
from benchgate.model.records import RequestColumns
from benchgate.model.run import ClientUse
from benchgate.pipeline.actions import ActionRunner, undo_actions
from benchgate.sim.process import serve_sim
from benchgate.sim.settings import sim_settings
from benchgate.suite.deployment import DeploymentSpec
from benchgate.suite.schema import Limits
from benchgate.suite.stages import Action
from benchgate.targets.dialect import Target, dialect_of
from tests.shells.test_server_commands import pids_of, runs

NONE = RequestColumns.pack([])
DIALECT = dialect_of(DeploymentSpec(sim=sim_settings()))


def target(url: str = "http://127.0.0.1:9") -> Target:
    return Target(Arm.CANDIDATE, url, "sim", DIALECT)


def acted(
    tmp_path: Path, *actions: Action, held_s: float, window_s: float = 60.0, url: str = "http://127.0.0.1:9"
) -> ActionRunner:
    """The actions of a stage that is held so long, and whose last answer came after `window_s`."""
    acts = ActionRunner(actions, target(url), "loss", tmp_path / "logs" / "actions.log")
    with acts:
        assert acts.begin is not None
        acts.begin(time.time_ns())
        deadline_s = time.monotonic() + held_s
        while len(acts.results) < len(actions) and time.monotonic() < deadline_s:
            time.sleep(0.01)
    result = StageResult((ClassResult("", NONE, window_s),), ClientUse(cpu_s=0, wall_s=1, workers=1), None)
    faults = acts.add_faults(result).client.faults
    assert [f"the action to {act.action.shown} {act.problem}" for act in acts.results if act.problem] == list(faults)
    return acts


def command(code: str, at_s: float = 0.0) -> Action:
    return Action.model_validate(
        {"at_s": at_s, "run": [sys.executable, "-c", code]}, by_name=True, context={"stored": True}
    )


def test_command_runs_without_a_shell_and_is_told_arm_and_stage(tmp_path: Path) -> None:
    code = "import os; print(os.environ['BENCHGATE_ARM'], os.environ['BENCHGATE_STAGE'], '$HOME')"
    (act,) = acted(tmp_path, command(code), held_s=60).results
    assert act.problem is None
    assert (tmp_path / "logs" / "actions.log").read_text() == "candidate loss $HOME\n"


def test_command_that_fails_is_told_with_its_status(tmp_path: Path) -> None:
    (act,) = acted(tmp_path, command("raise SystemExit(3)"), held_s=60).results
    assert act.problem is not None and "ended with status 3" in act.problem


def test_command_that_is_not_there_is_told(tmp_path: Path) -> None:
    missing = Action.model_validate({"at": "0s", "run": [str(tmp_path / "nothing")]})
    (act,) = acted(tmp_path, missing, held_s=60).results
    assert act.problem == "failed: No such file or directory"


def test_command_is_ended_with_its_stage_and_so_is_what_it_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    code = (
        "import os, subprocess, time; started = subprocess.Popen(['sleep', '600']); "
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{started.pid}}\\n'); time.sleep(600)"
    )
    acts = ActionRunner((command(code),), target(), "loss", tmp_path / "actions.log")
    with acts:
        assert acts.begin is not None
        acts.begin(time.time_ns())
        found = pids_of(pids)
    assert acts.results[0].problem == "was not done when the stage was over"
    deadline_s = time.monotonic() + 10
    while any(map(runs, found)) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert not any(map(runs, found))


def test_action_whose_instant_did_not_come_is_told(tmp_path: Path) -> None:
    (act,) = acted(tmp_path, command("pass", at_s=600), held_s=0).results
    assert act.began_s is None
    assert act.problem == "was never begun: the stage was over before"


def test_action_that_began_long_after_its_instant_is_told(tmp_path: Path) -> None:
    slow, next_one = command("import time; time.sleep(0.6)"), command("pass", at_s=0.1)
    first, second = acted(tmp_path, slow, next_one, held_s=60).results
    assert first.problem is None
    assert second.problem is not None and second.problem.endswith("s late")


@pytest.mark.slow
def test_action_that_was_done_after_the_last_answer_is_told_but_a_start_only_has_to_begin(tmp_path: Path) -> None:
    (late,) = acted(tmp_path, command("pass"), held_s=60, window_s=0.0).results
    assert late.problem is not None and "the stage was over after 0.0 s" in late.problem
    begun = Action.model_validate({"at": "0s", "start": 0})
    with serve_sim(sim_settings(replicas=2, ttft_s=0.0, itl_s=0.0)) as sim:
        (act,) = acted(tmp_path, begun, held_s=60, window_s=0.0, url=sim.url).results
    assert act.problem is None


def test_killed_replica_is_really_gone_and_is_brought_back(tmp_path: Path) -> None:
    kill = Action.model_validate({"at": "0s", "kill": 1})
    with serve_sim(sim_settings(replicas=2, ttft_s=0.0, itl_s=0.0)) as sim:
        pid = sim.replicas()[1]["pid"]
        (act,) = acted(tmp_path, kill, held_s=60, url=sim.url).results
        assert act.problem is None
        assert [one["state"] for one in sim.replicas()] == ["up", "down"]
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        undo_actions((kill,), target(sim.url), "chat", Limits())
        assert [one["state"] for one in sim.replicas()] == ["up", "up"]
        with pytest.raises(TargetError, match="there is no replica 7"):
            sim.kill(7)


def test_action_on_a_server_that_is_gone_is_told(tmp_path: Path) -> None:
    (act,) = acted(tmp_path, Action.model_validate({"at": "0s", "kill": 1}), held_s=60).results
    assert act.problem is not None and act.problem.startswith("failed: the practice server did not answer")
