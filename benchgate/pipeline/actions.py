"""Actions on a deployment while a stage runs: replicas killed and started, commands run, each at its instant.

A thread waits for the stage to begin and performs one action after the other. An action that fails, begins late or is
not done by the end of the stage is a fault of the client, because the stage was not the planned one.
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

from benchgate import child_process
from benchgate.errors import TargetError
from benchgate.load.results import StageResult
from benchgate.model.request import Endpoint
from benchgate.sim.process import SimControl
from benchgate.suite.schema import Limits
from benchgate.suite.stages import Action
from benchgate.targets.dialect import Target
from benchgate.targets.probe import wait_ready

LATE_S = 0.25  # a later start is another disturbance than the planned one
_POLL_S = 0.05
_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ActionResult:
    """Start and end of one action, in seconds after the start of the stage, and its problem."""

    action: Action
    began_s: float | None  # None if it never began
    done_s: float | None
    problem: str | None

    def document(self) -> dict[str, object]:
        """Return the form kept in the run's journal."""
        return {"what": self.action.shown, "began_s": self.began_s, "done_s": self.done_s, "problem": self.problem}


@dataclass(slots=True)
class ActionRunner:
    """Context manager around one execution of a stage that performs its actions; the sender calls `begin`."""

    actions: Sequence[Action]
    target: Target
    stage: str
    log: Path  # output of the commands
    results: list[ActionResult] = field(default_factory=list)
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
        """Return the callback that takes the start of the stage, in ns since 1970; None without actions."""
        return self._begin if self.actions else None

    def add_faults(self, result: StageResult) -> StageResult:
        """Return the result with every action that was not done as planned among the faults of its client."""
        end_s = max(group.measured_until_s for group in result.classes)
        for number, one in enumerate(self.results):
            # Only the start of a replica may take longer than the stage.
            if one.action.start is None and one.problem is None and one.done_s is not None and one.done_s > end_s:
                late = f"was done after {one.done_s:.1f} s, and the stage was over after {end_s:.1f} s"
                self.results[number] = replace(one, problem=late)
        faults = tuple(f"the action to {one.action.shown} {one.problem}" for one in self.results if one.problem)
        return replace(result, client=replace(result.client, faults=(*result.client.faults, *faults)))

    def _begin(self, start_ns: int) -> None:
        self._start_ns = start_ns
        self._begun.set()

    def _act(self) -> None:
        self._begun.wait()
        for action in sorted(self.actions, key=lambda one: one.at_s):
            self._over.wait(max(0.0, action.at_s - self._now_s()))
            if self._over.is_set():
                self.results.append(ActionResult(action, None, None, "was never begun: the stage was over before"))
                continue
            began_s = self._now_s()
            problem = self._do(action)
            late_s = began_s - action.at_s
            if problem is None and late_s > LATE_S:
                problem = f"was begun {late_s:.1f} s late"
            self.results.append(ActionResult(action, began_s, self._now_s(), problem))

    def _do(self, action: Action) -> str | None:
        if action.run is not None:
            return self._run(action.run)
        try:
            control = SimControl(self.target.url)
            if action.kill is not None:
                control.kill(action.kill)
            elif action.drain is not None:
                control.drain(action.drain)
            elif action.start is not None:
                control.start(action.start)
        except TargetError as fault:
            return f"failed: {fault}"
        return None

    def _run(self, command: Sequence[str]) -> str | None:
        """Run a command without a shell, and end it, with whatever it started, when the stage ends."""
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
            if self._over.wait(_POLL_S) and process.poll() is None:
                child_process.kill_session(process)
                return "was not done when the stage was over"
        status = process.returncode
        return None if status == 0 else f"failed: its command ended with status {status}; see {self.log}"

    def _now_s(self) -> float:
        return (time.time_ns() - self._start_ns) / _NS


def undo_actions(actions: Sequence[Action], target: Target, endpoint: Endpoint, limits: Limits) -> None:
    """Undo a stage's actions, and wait until the deployment answers. Raises TargetError if it does not."""
    if any(action.on_replica is not None for action in actions):
        deadline_s = time.monotonic() + limits.ready_s
        control = SimControl(target.url)
        for one in control.replicas():
            if one["state"] in ("down", "draining"):
                control.start(one["replica"])
        while any(one["state"] != "up" for one in control.replicas()):
            if time.monotonic() >= deadline_s:
                raise TargetError(f"a replica that was killed is not back within {limits.ready_s:g} s")
            time.sleep(_POLL_S)
    if actions:
        wait_ready(target, endpoint=endpoint, ready_s=limits.ready_s, connect_s=limits.connect_s)
