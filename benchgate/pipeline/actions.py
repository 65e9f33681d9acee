"""What is done to a deployment while a stage runs: replicas killed and started, commands run, each at its instant.

A thread waits for the stage to begin and does one thing after the other. What fails, begins late or is not done by the
end of the stage is told, because then the stage was not the one that was planned.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from benchgate.errors import TargetError
from benchgate.load.results import ClassResult, StageResult
from benchgate.model.request import Endpoint
from benchgate.sim.process import SimControl
from benchgate.suite.schema import Limits
from benchgate.suite.stages import Action
from benchgate.targets.dialect import Target
from benchgate.targets.probe import wait_ready

LATE_S = 0.25  # after its instant; more is another disturbance than the planned one
_LOOK_S = 0.05  # between looks at whether a command has ended, or a replica has come up
_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Act:
    """What became of one action: when it was begun and done, after the start of the stage, and what was wrong."""

    action: Action
    began_s: float | None  # None: never
    done_s: float | None
    problem: str | None

    def document(self) -> dict[str, object]:
        """As the run's journal keeps it."""
        return {"what": self.action.shown, "began_s": self.began_s, "done_s": self.done_s, "problem": self.problem}


@dataclass(slots=True)
class Acts:
    """The actions of one execution of a stage. Use as a context manager around it, with `begin` told its start."""

    actions: Sequence[Action]
    target: Target
    stage: str
    log: Path  # where the words of commands go
    done: list[Act] = field(default_factory=list)
    _start_ns: int = 0
    _begun: threading.Event = field(default_factory=threading.Event)
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self.actions:
            self._thread = threading.Thread(target=self._act, name="actions", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._over.set()
        self._begun.set()
        if self._thread is not None:
            self._thread.join()

    @property
    def begin(self) -> Callable[[int], None] | None:
        """To be told the start of the stage, in ns since 1970; None where nothing is to be done."""
        return self._begin if self.actions else None

    def told(self, result: StageResult) -> StageResult:
        """The result with every action that was not done as planned among the faults of its client."""
        over_s = max((_over_s(group) for group in result.classes), default=0.0)
        self.done = [_in_time(act, over_s) for act in self.done]
        faults = tuple(f"the action to {act.action.shown} {act.problem}" for act in self.done if act.problem)
        return replace(result, client=replace(result.client, faults=(*result.client.faults, *faults)))

    def _begin(self, start_ns: int) -> None:
        self._start_ns = start_ns
        self._begun.set()

    def _act(self) -> None:
        self._begun.wait()
        for action in sorted(self.actions, key=lambda one: one.at_s):
            self._over.wait(max(0.0, action.at_s - self._now_s()))
            self.done.append(self._did(action))

    def _did(self, action: Action) -> Act:
        if self._over.is_set():
            return Act(action, None, None, "was never begun: the stage was over before")
        began_s = self._now_s()
        problem = self._do(action)
        late_s = began_s - action.at_s
        if problem is None and late_s > LATE_S:
            problem = f"was begun {late_s:.1f} s late"
        return Act(action, began_s, self._now_s(), problem)

    def _do(self, action: Action) -> str | None:
        if action.run is not None:
            return self._run(action.run)
        try:
            if action.kill is not None:
                SimControl(self.target.url).kill(action.kill)
            elif action.start is not None:
                SimControl(self.target.url).start(action.start)
        except TargetError as fault:
            return f"failed: {fault}"
        return None

    def _run(self, command: Sequence[str]) -> str | None:
        """Run a command without a shell, and end it with the stage."""
        environment = {**os.environ, "BENCHGATE_ARM": str(self.target.arm), "BENCHGATE_STAGE": self.stage}
        try:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with self.log.open("ab") as log:
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
                )
        except OSError as error:
            return f"failed: {error.strerror or error}"
        while process.poll() is None:
            if self._over.wait(_LOOK_S) and process.poll() is None:
                process.kill()
                process.wait()
                return "was not done when the stage was over"
        status = process.returncode
        return None if status == 0 else f"failed: its command ended with status {status}; see {self.log}"

    def _now_s(self) -> float:
        return (time.time_ns() - self._start_ns) / _NS


def _over_s(group: ClassResult) -> float:
    """When the last answer had come, after the start of the stage: a window begins with the first request."""
    first_ns = int(group.requests.intended_ns.min()) if len(group.requests) else 0
    return first_ns / _NS + group.window_s


def _in_time(act: Act, over_s: float) -> Act:
    """A replica that was told to start takes its time; everything else must have happened to this stage's requests."""
    if act.action.start is None and act.problem is None and act.done_s is not None and act.done_s > over_s:
        return replace(act, problem=f"was done after {act.done_s:.1f} s, and the stage was over after {over_s:.1f} s")
    return act


def bring_back(actions: Sequence[Action], target: Target, endpoint: Endpoint, limits: Limits) -> None:
    """Undo what a stage's actions did, and wait until the deployment answers. Raises TargetError when it does not."""
    if any(action.kill is not None for action in actions):
        deadline_s = time.monotonic() + limits.ready_s
        control = SimControl(target.url)
        for one in control.replicas():
            if one["state"] == "down":
                control.start(one["replica"])
        while any(one["state"] != "up" for one in control.replicas()):
            if time.monotonic() >= deadline_s:
                raise TargetError(f"a replica that was killed is not back within {limits.ready_s:g} s")
            time.sleep(_LOOK_S)
    if actions:
        wait_ready(target, endpoint=endpoint, ready_s=limits.ready_s, connect_s=limits.connect_s)
