"""Kill a run at a random instant, and let it go on: is all there that was finished, and does it come to the same plan?

.venv/bin/python -m benchmarks.kill_anywhere [--kills 100] [--database sqlite|postgres] [--seed 1]

Each time a small run on the practice server is ended by SIGKILL at an instant drawn from its whole length. Then: the
store opens; every stage that the run had told of as finished is there, and all that is there hashes; the run is marked
partial; it goes on to the same plan, each stage there once and none of its guards tripped. The run tells a file of each
step, which the system keeps when the process is killed. Exits with 1 when one of these fails.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from benchgate.errors import BenchgateError
from benchgate.model.run import Evidence, Run, RunStatus
from benchgate.pipeline import resume
from benchgate.pipeline.progress import Phase, Progress
from benchgate.pipeline.run import RunOptions, run_suite
from benchgate.store.repository import Store
from benchgate.suite.loader import parse_suite
from benchgate.suite.schema import Suite
from benchmarks.stores import DATABASES, empty_store

# How it is measured is not what is looked at, and the machine may be busy: the bounds of the client are wide.
SUITE = """
suite: kill-anywhere
deployments:
  plain: {sim: {ttft: 5ms, itl: 1ms}}
  other: {sim: {ttft: 5ms, itl: 1ms}}
baseline: plain
candidate: other
load:
  workload: {input: 8 tokens, output: 4 tokens}
  looks: [2, 4]
  warmup: 4
  sweep: [{stage: c2, concurrency: 2, requests: 12}, {stage: c4, concurrency: 4, requests: 12}]
  capacity: {over: concurrency, from: 1, to: 4, probe: 64, budget: 200}
shadow: {prompts: prompts.jsonl, concurrency: 2}
slo: {ttft: 5s, target: 50%}
gate:
  allow_underpowered: true
  client: {send_lag_p99: 500ms, send_lag_max: 1s, read_delay_p99: 500ms, read_delay_max: 1s, cpu: 100%, achieved: 10%}
  checks:
    - {metric: error_rate, max: 9%}
    - {metric: ttft, margin: 95%}
    - {metric: shadow_excess, margin: 50 points}
"""
STAGES, BLOCKS, PROMPTS = ("c2", "c4"), 4, 12
_BEGUN = "begun"
_STEP = re.compile(r"block (\d+) of \d+, stage (\S+) on (\S+)|(capacity/\S+), look (\d+), on (\S+)")


class Witness(Progress):
    """Tells a file of each step, at once: what a killed process wrote to it stays."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def begin(self, phase: Phase) -> None:
        """A phase starts: the first one, when the run is in the store."""
        os.write(self._file, f"{_BEGUN}\n".encode())

    def step(self, done: str) -> None:
        """One step is done and stored."""
        os.write(self._file, f"{done}\n".encode())


@dataclass(frozen=True, slots=True)
class Place:
    """Where it all happens."""

    folder: Path
    store: str

    def options(self) -> RunOptions:
        """Of every run."""
        return RunOptions(store=self.store, work_dir=self.folder / "work")

    def suite(self) -> Suite:
        """The suite, and its prompts beside it."""
        lines = (f'{{"id": "{number}", "prompt": "prompt {number}"}}\n' for number in range(PROMPTS))
        (self.folder / "prompts.jsonl").write_text("".join(lines), encoding="utf-8")
        return parse_suite(SUITE, "kill-anywhere.yaml")

    def last_word(self) -> str:
        """The last line that a child process said."""
        lines = (self.folder / "log.txt").read_text(encoding="utf-8").strip().split("\n")
        return lines[-1]

    def child(self, what: str, witness: Path) -> subprocess.Popen[bytes]:
        """A process that measures (`run`), or goes on (`resume`)."""
        command = [sys.executable, "-m", "benchmarks.kill_anywhere", "--child", what, "--witness", str(witness)]
        with (self.folder / "log.txt").open("ab") as log:
            return subprocess.Popen(
                [*command, "--folder", str(self.folder), "--store", self.store], stdout=log, stderr=log
            )


def child(place: Place, what: str, witness: Path) -> None:
    """What a child process does; it ends by itself, or is killed."""
    suite, options = place.suite(), place.options()
    if what == "run":
        run_suite(suite, place.folder, options, Witness(witness))
    else:
        resume.resume_suite(suite, place.folder, options, Witness(witness))


def begun(witness: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait until the run is in the store."""
    while process.poll() is None and not (witness.exists() and witness.stat().st_size):
        time.sleep(0.002)


def finished(witness: Path) -> set[tuple[str, str, int]]:
    """The executions that the run told of as finished: stage, arm, block (of a search: look), from 0."""
    lines = witness.read_text(encoding="utf-8").split("\n")[:-1]
    found = [match for line in lines if (match := _STEP.fullmatch(line))]
    return {(one[2], one[3], int(one[1]) - 1) if one[1] else (one[4], one[6], int(one[5]) - 1) for one in found}


def executed(evidence: Evidence) -> Counter[tuple[str, str, int]]:
    """The executions that the store has."""
    return Counter((seen.stage, seen.arm.value, seen.block) for seen in evidence.load)


def problems_after_kill(
    place: Place, told: set[tuple[str, str, int]], before: set[str]
) -> tuple[list[str], Run | None]:
    """What is wrong with the store after a kill, and the run; None where nothing of it is there, or all of it."""
    with Store.open(place.store, create=False) as store:
        store.mark_abandoned_runs()
        new = [run for run in store.runs() if run.id not in before]
        if not new:
            return (["the run is not there, though it said that it had begun"], None)
        (run,) = new
        missing = told - set(executed(store.evidence(run.id)))
        wrong = [f"{one} was finished and is not there" for one in sorted(missing)]
        if run.status is RunStatus.COMPLETE:
            return wrong, None
        left = [one.id for one in store.resumable_runs()]
        if run.status is not RunStatus.PARTIAL or run.id not in left:
            wrong.append(f"it is {run.status.value}, and not marked as partial so that it may go on")
        return wrong, run


def problems_at_end(place: Place, run: Run) -> list[str]:
    """What is wrong with a run that went on to its end."""
    with Store.open(place.store, create=False) as store:
        evidence, outcome = store.evidence(run.id), store.own_outcome(run.id)
        verdict = store.verdicts(run.id)[-1].document if outcome is not None else {}
    found = executed(evidence)
    due = {(stage, arm, block) for stage in STAGES for arm in ("baseline", "candidate") for block in range(BLOCKS)}
    guards = verdict.get("guards", [])
    assert isinstance(guards, list)
    wrong = [f"guard {guard['id']} tripped: {guard['reason']}" for guard in guards if guard["tripped"]]
    if evidence.run.status is not RunStatus.COMPLETE:
        wrong.append(f"it is {evidence.run.status.value} after it went on")
    if evidence.run.plan_sha256 != run.plan_sha256:
        wrong.append("it has another plan")
    if not due <= set(found) or max(found.values()) > 1:
        wrong.append(f"its stages are not there once each: {sorted(due - set(found))} missing")
    if evidence.shadow is None or evidence.shadow.fault is not None:
        wrong.append("its shadow comparison is not there")
    if outcome is None:
        wrong.append("it has no verdict")
    return wrong


def killed_once(place: Place, number: int, after_s: float) -> list[str] | None:
    """One run, killed and gone on with: what is wrong; None where it had ended by itself before."""
    witness = place.folder / f"witness-{number}"
    with Store.open(place.store) as store:
        before = {run.id for run in store.runs()}
    process = place.child("run", witness)
    begun(witness, process)
    time.sleep(after_s)
    process.send_signal(signal.SIGKILL)
    if process.wait() != -signal.SIGKILL:
        return None if process.returncode == 0 else [f"the run ended with {process.returncode}: {place.last_word()}"]
    try:
        wrong, run = problems_after_kill(place, finished(witness), before)
        if run is None:
            return wrong or None
        code = place.child("resume", place.folder / f"witness-{number}-resumed").wait()
        if code != 0:
            return [*wrong, f"going on with it ended with {code}: {place.last_word()}"]
        return [*wrong, *problems_at_end(place, run)]
    except BenchgateError as error:
        return [str(error)]


def measure(place: Place, kills: int, seed: int) -> int:
    """Kill so many runs; how many went wrong."""
    began_s = time.monotonic()
    process = place.child("run", first := place.folder / "witness-whole")
    begun(first, process)
    begun_s = time.monotonic()
    if process.wait() != 0:
        print((place.folder / "log.txt").read_text(encoding="utf-8"))
        return 1
    length_s = time.monotonic() - begun_s
    print(f"a whole run takes {length_s:.1f} s from its first row, {begun_s - began_s:.1f} s of start before that")
    instants = random.Random(seed)
    done, failed, early = 0, 0, 0
    while done < kills:
        after_s = instants.uniform(0.0, length_s)
        wrong = killed_once(place, done + early, after_s)
        if wrong is None:
            early += 1
            continue
        done += 1
        failed += bool(wrong)
        print(f"kill {done:3} after {after_s:5.2f} s: {'; '.join(wrong) if wrong else 'whole again'}", flush=True)
    print(
        f"{done} killed, {done - failed} of them: store opened, every finished stage there and hashed, marked partial, "
        f"gone on to the same plan; {failed} not; {early} had ended by themselves first"
    )
    return failed


def main() -> None:
    """Parse, kill, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--database", choices=DATABASES, default="sqlite", help="of a store that is made for it")
    parser.add_argument("--store", help="a store that is there, instead")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--child", choices=("run", "resume"), help=argparse.SUPPRESS)
    parser.add_argument("--witness", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(Place(given.folder, given.store), given.child, given.witness)
        return
    made = nullcontext(given.store) if given.store else empty_store(given.database)
    with tempfile.TemporaryDirectory(prefix="benchgate-kill-") as folder, made as store:
        failed = measure(Place(Path(folder), store), given.kills, given.seed)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
