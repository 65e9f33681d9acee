"""One run of the installed command as a case of the campaign: disturbed, waited for, and searched for what it left.

Every process of a run carries a token in its environment, whichever session or parent it has by then. So the census
finds also what was re-parented. The command reports every finished step to a file, which outlives a killed process:
what was reported there must be in the store or in the spool afterwards.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from benchgate.errors import BenchgateError
from benchgate.model.run import Evidence
from benchgate.store.repository import Store
from benchmarks.campaign.forking import ForkedRun, Forks

ENDS: Mapping[str, int] = {
    "PASS": 0, "WARN": 0, "BLOCK": 10, "INCONCLUSIVE": 11, "INVALID": 12, "refused": 2, "unusable": 12,
    "not stored": 13, "interrupted": 130, "terminated": 143, "killed": -signal.SIGKILL,
}  # fmt: skip
"""Exit codes of verdicts, and of other ways in which a run ends, which have no verdict or none that is stored."""
TOKEN = "CAMPAIGN_CASE"
LEAVE_S = 15.0  # for processes to follow a parent that was killed; they look once a second
_MOMENT_S = 150.0  # on a busy machine, for a run to reach the moment at which it is disturbed
_COMMAND = """
import os, sys
from benchgate.cli import progress
{prelude}
witness, step = os.open(sys.argv.pop(1), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), progress.RunProgress.step
def report(self, done):
    step(self, done)
    os.write(witness, (done + "\\n").encode())
progress.RunProgress.step = report
from benchgate.cli.app import main
main()
"""
_LOAD_STEP = re.compile(r"block (\d+) of \d+, stage (\S+) on (\S+)")
_START_STEP = re.compile(r"(baseline|candidate) \S+ start (\d+) of \d+: .*")
_TASK_STEP = re.compile(r"(\S+) on (baseline|candidate)")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended. `outcome` is None without a verdict, `code` for a run that had to be killed at its deadline.

    `judged` is the outcome of `benchgate gate` afterwards, for a run without a verdict of its own. `failed` counts the
    requests, eval items and prompts on record that failed, and faults.
    """

    outcome: str | None
    code: int | None
    judged: str | None
    reasons: tuple[str, ...]
    orphans: tuple[str, ...]  # command lines
    lost: tuple[str, ...]
    failed: int
    crash: str  # last line of a log with a traceback
    took_s: float
    attempts: int = 1
    is_undisturbed: bool = False  # it never came to the moment of the case

    def early(self) -> Ended:
        """Return this result as that of a run which never came to the moment at which it was to be disturbed."""
        return replace(self, is_undisturbed=True)

    @property
    def end(self) -> str:
        """Return the verdict, or how the run ended without one, as the exit code says."""
        if self.code is None:
            return "hang"
        if self.outcome is not None and self.code == ENDS[self.outcome]:
            return self.outcome
        return next((end for end, code in ENDS.items() if end.islower() and code == self.code), f"exit {self.code}")

    def repeated(self, before: Ended) -> Ended:
        """Return this result of one attempt more, with what was found to be broken in those before."""
        orphans, lost = before.orphans + self.orphans, before.lost + self.lost
        crash, attempts = before.crash or self.crash, before.attempts + 1
        return replace(self, orphans=orphans, lost=lost, crash=crash, attempts=attempts)


@dataclass(slots=True)
class Run:
    """A run of the command in its own folder. Use as a context manager: leaving it ends every process of the run."""

    folder: Path
    store: str
    prelude: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    token: str = field(default_factory=lambda: secrets.token_hex(12))
    forks: Forks | None = None
    is_forked: bool = False  # else it is a process of the installed command
    process: subprocess.Popen[bytes] | ForkedRun = field(init=False)
    began_s: float = field(init=False)

    def __enter__(self) -> Self:
        code = _COMMAND.format(prelude=self.prelude)
        arguments = [str(self._witness), "run", "suite.yaml", "--format", "json", "--store", self._address]
        arguments += ["--work-dir", "work"]
        environment, out, log = self._environment(), self.folder / "out.json", self.folder / "log.txt"
        if self.forks is not None and self.is_forked:
            order = {"code": code, "arguments": arguments, "folder": str(self.folder), "environment": environment}
            self.process = self.forks.run({**order, "out": str(out), "log": str(log)})
            self.began_s = time.monotonic()
            return self
        with out.open("wb") as said, log.open("wb") as logged:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code, *arguments], cwd=self.folder, env=environment, stdin=subprocess.DEVNULL,
                stdout=said, stderr=logged, start_new_session=True,
            )  # fmt: skip
        self.began_s = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("GITHUB_", "BENCHGATE_"))}
        return kept | {TOKEN: self.token, "XDG_STATE_HOME": str(self.folder / "state")} | dict(self.environment)

    @property
    def _witness(self) -> Path:
        return self.folder / "witness.txt"

    @property
    def _address(self) -> str:
        return self.store if "://" in self.store else str(self.folder / self.store)

    def steps(self) -> list[str]:
        """Return the finished steps that the run has reported so far."""
        return self._witness.read_text(encoding="utf-8").split("\n")[:-1] if self._witness.exists() else []

    def processes(self) -> list[int]:
        """Return the ids of the run's living processes, children that were re-parented included."""
        return [pid for pid, _ in self._census()]

    def children(self, part: str) -> list[int]:
        """Return the ids of the run's processes with this part in their command line, in order of their start."""
        return sorted(pid for pid, words in self._census() if part in words)

    def await_moment(self, reached: Callable[[], bool]) -> bool:
        """Wait for a moment of the run. Return False if it ended before, or the moment never came."""
        deadline_s = time.monotonic() + _MOMENT_S
        while time.monotonic() < deadline_s and self.process.poll() is None:
            if reached():
                return True
            time.sleep(0.02)
        return False

    def ended(self, deadline_s: float) -> Ended:
        """Wait for the end, at most until the deadline after the start, and examine what is left of the run."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0.0, self.began_s + deadline_s - time.monotonic()))
        code, took_s = self.process.poll(), time.monotonic() - self.began_s
        orphans = () if code is None else self._orphans()
        self.__exit__()
        verdict, log = _json(self.folder / "out.json"), (self.folder / "log.txt").read_text(errors="replace")
        found = next((line for line in log.splitlines() if line.startswith("Traceback")), "")
        crash = log.strip().splitlines()[-1] if found else ""
        outcome = None if verdict is None else str(verdict["outcome"])
        evidence, lost = self._left()
        judged = self._judged_again() if verdict is None and code is not None else None
        said = tuple(line.strip() for line in log.splitlines()[-3:])
        reasons = tuple(_reasons(verdict)) if verdict is not None else said
        return Ended(outcome, code, judged, reasons, orphans, lost, _failed(evidence), crash, took_s)

    def _census(self) -> Iterator[tuple[int, str]]:
        """Yield each living process with the token in its environment or of the run's session, and its command line."""
        mark = f"{TOKEN}={self.token}".encode()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal():
                continue
            with suppress(OSError):
                state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                if state in "ZX" or not (int(session) == self.process.pid or mark in (entry / "environ").read_bytes()):
                    continue
                yield int(entry.name), (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()

    def _orphans(self) -> tuple[str, ...]:
        deadline_s = time.monotonic() + LEAVE_S
        while (left := [words for _, words in self._census()]) and time.monotonic() < deadline_s:
            time.sleep(0.1)
        return tuple(left)

    def _judged_again(self) -> str | None:
        """Return the verdict of `benchgate gate` about what is stored; None if nothing is."""
        out, arguments = self.folder / "judged.json", ["gate", "--format", "json", "--store", self._address]
        if self.forks is not None:
            code = "from benchgate.cli.app import main; main()"
            order = {"code": code, "arguments": arguments, "folder": str(self.folder), "out": str(out)}
            self.forks.run({**order, "environment": self._environment(), "log": os.devnull}).wait()
        else:
            with out.open("wb") as said:
                command = [sys.executable, "-m", "benchgate", *arguments]
                subprocess.run(command, cwd=self.folder, env=self._environment(), stdout=said, check=False)
        judged = _json(out)
        return None if judged is None else str(judged["outcome"])

    def _left(self) -> tuple[Evidence | None, tuple[str, ...]]:
        """Return what can be read of the run, and what it had reported as finished and is not in there."""
        steps = self.steps()
        try:
            evidence = self.evidence()
        except (BenchgateError, LookupError) as error:
            measured = [step for step in steps if not step.endswith(" answers")]
            return None, (f"the records cannot be read: {error}",) if measured else ()
        return evidence, tuple(_missing(steps, evidence))

    def evidence(self) -> Evidence:
        """Return what can be read of the run, from the store and from a spool that the store has not taken in yet."""
        address = self._address if "://" in self.store else self._copied(Path(self._address))
        with Store.open(address, create=False) as store:
            for spool in sorted((self.folder / "work").glob("*/spool.jsonl")):
                with suppress(BenchgateError):
                    store.recover(spool)
            newest = next(iter(store.runs(limit=1)), None)
            if newest is None:
                raise LookupError("the store has no run")
            return store.evidence(newest.id)

    def _copied(self, store: Path) -> str:
        """Return the address of a copy of the store, which can take in what its own disk had no room for."""
        (self.folder / "copy").mkdir(exist_ok=True)
        for file in store.parent.glob(f"{store.name}*"):
            shutil.copy(file, self.folder / "copy")
        return str(self.folder / "copy" / store.name)


def _missing(steps: list[str], evidence: Evidence) -> Iterator[str]:
    load = {(seen.stage.partition("/")[0], seen.arm.value, seen.block + 1) for seen in evidence.load}
    starts = {(seen.arm.value, seen.number + 1) for seen in evidence.starts}
    tasks = {f"{seen.task} on {seen.arm}" for seen in evidence.quality}
    for step in steps:
        if match := _LOAD_STEP.fullmatch(step):
            if (match[2], match[3], int(match[1])) not in load:
                yield f"{step} is not there"
        elif match := _START_STEP.fullmatch(step):
            if (match[1], int(match[2])) not in starts:
                yield f"{step} is not there"
        elif _TASK_STEP.fullmatch(step) and step not in tasks:
            yield f"{step} is not there"


def _failed(evidence: Evidence | None) -> int:
    if evidence is None:
        return 0
    requests = sum(error is not None for seen in evidence.load for error in seen.requests.error)
    items = sum(item.error is not None for seen in evidence.quality for item in seen.items)
    prompts = sum(item.error is not None for item in (evidence.shadow.items if evidence.shadow else ()))
    faults = sum(seen.fault is not None for seen in evidence.quality) + len(evidence.target_faults)
    return requests + items + prompts + faults


def _json(path: Path) -> dict[str, Any] | None:
    text = path.read_text(encoding="utf-8").strip()
    document: dict[str, Any] | None = json.loads(text) if text else None
    return document


def _reasons(verdict: Mapping[str, Any]) -> Iterator[str]:
    for guard in verdict["guards"]:
        if guard["tripped"]:
            yield f"{guard['id']}: {guard['reason']}"
    for check in verdict["checks"]:
        if check["outcome"] != "PASS":
            yield f"{check['id']} {check['outcome']}: {check['reason']}"
    yield str(verdict["reason"])
