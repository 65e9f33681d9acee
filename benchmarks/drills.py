"""Does each drill find its fault, and stay silent without it? Whole runs of the installed command.

    .venv/bin/python -m benchmarks.drills [--only NAME] [--runs 20] [--keep FILE] [--at-once 1]

A drill is run as it ships, which must PASS (or WARN), and with each of its faults, which must BLOCK by one of the
checks that the fault concerns. Every run has a seed of its own, which moves the answers, their jitter and the schedule
of the load. An INVALID run, as on a machine that is too busy, decides nothing: it is repeated, up to three times in
all, and counted. Exits 1 when a fault was missed or anything was found without one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any
from zlib import crc32

from benchgate.suite.yaml import read_text
from benchmarks.tables import in_table

_ATTEMPTS = 3
DRILLS = Path(__file__).parents[1] / "suites" / "drills"


Suite = dict[str, Any]
Change = Callable[[Suite], None]


@dataclass(frozen=True, slots=True)
class Fault:
    """A change of a drill, the metrics of which one must block, and a note that must be made."""

    words: str
    change: Change
    finds: tuple[str, ...]
    names: str = ""  # part of a note in the verdict
    place: str = ""  # stage of the check that must block, and no other check
    every: tuple[str, ...] = ()  # how the ids of further checks begin that must all block


def settings(**changed: object) -> Change:
    """Give the candidate's practice server other settings; None takes one away."""

    def change(suite: Suite) -> None:
        candidate = suite["deployments"][suite["candidate"]]
        sim = {**candidate["sim"], **changed}
        candidate["sim"] = {key: value for key, value in sim.items() if value is not None}

    return change


def paced(suite: Suite) -> None:
    """Replace the server by one to which neither length nor load makes a difference."""
    suite["deployments"][suite["candidate"]]["sim"] = {"ttft": "40ms", "itl": "4ms"}


def actions(*taken: Mapping[str, object]) -> Change:
    """Replace the actions of the last stage."""
    return lambda suite: suite["load"]["sweep"][-1].update(actions=list(taken))


def _without_long_answers(suite: Suite) -> None:
    del suite["load"]["sweep"][1]["classes"]["long"]
    del suite["load"]["workloads"]
    suite["gate"]["checks"] = [check for check in suite["gate"]["checks"] if check.get("class") != "long"]


def _impatient(suite: Suite) -> None:
    suite["gate"]["checks"][0]["max"] = "500ms"


_LENGTH_AND_LOAD_MAKE_NO_DIFFERENCE = "neither length nor load makes a difference"
_ALL_KILLED = Fault(
    "all three replicas killed", actions(*({"at": "600ms", "kill": number} for number in range(3))), ("error_rate",)
)

FAULTS: Mapping[str, tuple[Fault, ...]] = {
    "affinity": (Fault("requests to any replica", settings(affinity=None), ("prefix_hit_rate",)),),
    "autoscaling": (
        Fault("requests to a replica that loads", settings(load_time="3s", ready_after=None), ("goodput",)),
        Fault(
            "replicas removed without draining",
            actions({"at": "300ms", "kill": 2}, {"at": "600ms", "kill": 1}, {"at": "1s", "start": 2}),
            ("error_rate", "goodput"),
        ),
        _ALL_KILLED,
    ),
    "batching": (Fault("no long answers beside the short ones", _without_long_answers, ("e2e",)),),
    "burst": (Fault(_LENGTH_AND_LOAD_MAKE_NO_DIFFERENCE, paced, ("ttft",)),),
    "cache-stampede": (
        Fault(
            "prefix cache emptied at once, again and again", settings(flush_every=2), ("prefix_hit_rate", "goodput")
        ),
    ),
    "chunked-prefill": (Fault("prompts read whole", settings(prefill_chunk=8192), ("tpot",)),),
    "cold-start": (Fault("0.5 s allowed of 1 s", _impatient, ("cold_start",)),),
    "decode": (
        Fault(
            "tokens that cost nearly nothing",
            settings(prefill="10ms", decode="0.5ms", decode_per_sequence="0ms"),
            ("e2e",),
        ),
    ),
    "disconnect": (Fault("KV cache of clients that left is kept", settings(leak_kv=True), ("kv_usage_after",)),),
    "embeddings": (Fault(_LENGTH_AND_LOAD_MAKE_NO_DIFFERENCE, paced, ("e2e",)),),
    "endpoints": (
        Fault(
            "answers break off after four tokens",
            settings(faults=["cut-after:4@75%"]),
            ("error_rate",),
            every=tuple(f"error_rate@{stage}" for stage in ("chat", "messages", "generate", "infer")),
        ),
    ),
    "grpc-inference": (
        Fault(
            "streams break off after four tokens",
            settings(faults=["cut-after:4@75%"]),
            ("error_rate",),
            every=("error_rate@grpc",),
        ),
    ),
    "gray-replica": (
        Fault("one of three replicas is slower", settings(unlike={"1": {"itl": "32ms"}}), ("goodput",), "replica 1 "),
        Fault(
            "two of three replicas are slower",
            settings(unlike={"1": {"itl": "24ms"}, "2": {"itl": "24ms"}}),
            ("goodput",),
        ),
    ),
    "kv-exhaustion": (Fault("KV cache for two of eight requests", settings(kv_tokens=256), ("preemptions", "ttft")),),
    "load-shedding": (Fault("nothing is shed", settings(shed_above=None), ("rejected",)),),
    "long-context": (Fault(_LENGTH_AND_LOAD_MAKE_NO_DIFFERENCE, paced, ("request_throughput",)),),
    "many-adapters": (Fault("adapters load in no time", settings(adapter_swap="0ms"), ("ttft",)),),
    "multi-lora": (Fault("the adapter costs nothing", settings(adapter_cost="0ms", decode="20ms"), ("tpot",)),),
    "overload": (Fault(_LENGTH_AND_LOAD_MAKE_NO_DIFFERENCE, paced, ("goodput", "ttft")),),
    "prefill": (Fault(_LENGTH_AND_LOAD_MAKE_NO_DIFFERENCE, paced, ("ttft",)),),
    "prefill-decode": (
        Fault("one decode replica with two slots", settings(prefill_replicas=2, batch=2), ("goodput",)),
        Fault("6 ms of transfer for every prompt token", settings(transfer="6ms"), ("goodput",)),
    ),
    "prefix-cache": (Fault("no prefix cache", settings(prefix_cache=0), ("ttft", "prefix_hit_rate")),),
    "reasoning": (Fault("no thoughts before the answer", paced, ("ttfot",)),),
    "replica-loss": (_ALL_KILLED,),
    "router-mix": (
        Fault(
            "a quarter to a model whose JSON is invalid",
            settings(unlike={"1": {"invalid_json": "100%", "ttft": "5ms", "itl": "2ms"}}),
            ("validity",),
        ),
    ),
    "structured-output": (Fault("19 of 20 answers break the schema", settings(invalid_json="95%"), ("validity",)),),
    "tradeoff": (
        Fault(
            "batches without a limit or a cost",
            settings(batch=64, decode_per_sequence="0ms"),
            ("e2e", "output_throughput", "knee"),
        ),
    ),
    "verified-answers": (
        Fault(
            "a quarter wrong at 16 in flight", settings(faults=["wrong-answer:15@25%"]), ("accuracy",), place="c16"
        ),
        Fault("all wrong at 16 in flight", settings(faults=["wrong-answer:15"]), ("accuracy",), place="c16"),
    ),
}  # fmt: skip
"""The faults of every drill that ships. The last one of each shows even in few requests."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How the last attempt at a run ended: the checks that blocked, its reason and notes, and how long it took."""

    outcome: str
    blocking: tuple[str, ...]  # ids
    reason: str
    notes: tuple[str, ...]
    took_s: float
    attempts: int

    def is_right(self, fault: Fault | None) -> bool:
        """Return True for a fault that was found and named, or for silence without one."""
        if fault is None:
            return self.outcome in ("PASS", "WARN") and not self.notes
        named = any(fault.names in note for note in self.notes) if fault.names else True
        if fault.place:
            return self.outcome == "BLOCK" and self.blocking == tuple(f"{name}@{fault.place}" for name in fault.finds)
        found = any(check.startswith(fault.finds) for check in self.blocking)
        found = found and all(any(check.startswith(one) for check in self.blocking) for one in fault.every)
        return self.outcome == "BLOCK" and found and named


def changed_suite(name: str, fault: Fault | None, seed: int | None) -> Suite:
    """Return a drill as a mapping, with a fault and a seed. JSON is YAML."""
    path = DRILLS / f"{name}.yaml"
    suite: Suite = read_text(path.read_text(encoding="utf-8"), path.name).data
    if "quality" in suite:
        suite["quality"]["tasks"] = [str(DRILLS / task) for task in suite["quality"]["tasks"]]
    if fault is not None:
        fault.change(suite)
    if seed is not None:
        suite["seed"] = seed
        for deployment in suite["deployments"].values():
            if "sim" in deployment:
                deployment["sim"]["seed"] = seed
    return suite


def run_once(name: str, fault: Fault | None, seed: int) -> Ended:
    """Run a drill, again where it decided nothing."""
    ended = _attempt(name, fault, seed)
    while ended.attempts < _ATTEMPTS and ended.outcome == "INVALID":
        ended = replace(_attempt(name, fault, seed), attempts=ended.attempts + 1)
    return ended


def _attempt(name: str, fault: Fault | None, seed: int) -> Ended:
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "suite.yaml").write_text(json.dumps(changed_suite(name, fault, seed)), encoding="utf-8")
        command = [sys.executable, "-m", "benchgate", "run", "suite.yaml", "--format", "json"]
        began_s = time.monotonic()
        result = subprocess.run(command, cwd=scratch, capture_output=True, text=True)
        took_s = time.monotonic() - began_s
    if not result.stdout:
        raise SystemExit(f"benchgate ended with status {result.returncode} and no verdict:\n{result.stderr}")
    document = json.loads(result.stdout)
    blocking = tuple(one["id"] for one in document["checks"] if one["outcome"] == "BLOCK")
    return Ended(document["outcome"], blocking, document["reason"], tuple(document.get("notes", ())), took_s, 1)


class Kept:
    """Runs that have ended, by drill, fault and seed; with a `path`, those of earlier calls too."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known = json.loads(path.read_text(encoding="utf-8")) if path is not None and path.exists() else {}
        self._writing = Lock()

    def run(self, name: str, fault: Fault | None, seed: int) -> Ended:
        """Run a drill, unless it has ended before. A changed drill is run again."""
        words = fault.words if fault is not None else "as it ships"
        key = f"{name} {words} {seed} {crc32(json.dumps(changed_suite(name, fault, seed)).encode()):08x}"
        if key not in self._known:
            ended = asdict(run_once(name, fault, seed))
            with self._writing:
                self._known[key] = ended
                if self._path is not None:
                    self._path.write_text(json.dumps(self._known, indent=1), encoding="utf-8")
        one = self._known[key]
        found = Ended(**{**one, "blocking": tuple(one["blocking"]), "notes": tuple(one["notes"])})
        wrong = "" if found.is_right(fault) else f"  <- WRONG: {found.reason}; {'; '.join(found.notes)}"
        blocking = ", ".join(found.blocking)
        print(f"  {name}, {words}, {seed}: {found.outcome} {blocking} {found.took_s:.0f} s{wrong}", flush=True)
        return found


def table_lines(found: Sequence[tuple[str, Fault | None, Sequence[Ended]]]) -> Iterator[str]:
    """Yield a line for each drill with and without each fault."""
    rows = []
    for name, fault, ended in found:
        right = sum(one.is_right(fault) for one in ended)
        took_s = sum(one.took_s for one in ended) / len(ended)
        words = fault.words if fault is not None else "none"
        repeated = sum(one.attempts - 1 for one in ended)
        rows.append((name, words, f"{len(ended)}", f"{right}", f"{repeated}", f"{took_s:.0f} s"))
    yield from in_table(("drill", "fault", "runs", "right", "repeated", "a run takes"), rows)


def main() -> int:
    """Run the drills, print them, hold them against the bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=FAULTS, action="append", help="this drill alone; may be repeated")
    parser.add_argument("--runs", type=int, default=20, help="runs of each drill with each fault, and without")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="keep finished runs in this file, and do not run them again")
    parser.add_argument("--at-once", type=int, default=1, help="runs side by side; they mostly wait")
    chosen = parser.parse_args()
    seeds = range(chosen.first_seed, chosen.first_seed + chosen.runs)
    cases = [(name, fault) for name in chosen.only or FAULTS for fault in (None, *FAULTS[name])]
    kept = Kept(chosen.keep)
    with ThreadPoolExecutor(chosen.at_once) as pool:
        running = [(name, fault, [pool.submit(kept.run, name, fault, seed) for seed in seeds]) for name, fault in cases]
        try:
            found = [(name, fault, [one.result() for one in ended]) for name, fault, ended in running]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    print("\n".join(table_lines(found)))
    wrong = [(name, fault) for name, fault, ended in found if not all(one.is_right(fault) for one in ended)]
    names = ", ".join(f"{name} ({fault.words if fault else 'as it ships'})" for name, fault in wrong)
    print(f"MISSED: {names}" if wrong else "held: every fault found, and nothing without one")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
