"""Does each drill of a fleet find its fault, and stay silent without it? Whole runs of the installed command.

    .venv/bin/python -m benchmarks.drills [--only NAME] [--runs 20] [--keep FILE]

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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from zlib import crc32

from benchgate.suite.yaml import read_text
from benchmarks.tables import in_table

_ATTEMPTS = 3
DRILLS = Path(__file__).parents[1] / "suites" / "drills"


@dataclass(frozen=True, slots=True)
class Fault:
    """A change of the drill's practice server, the metrics of which one must block, and a note that must be made."""

    words: str
    settings: Mapping[str, object]
    finds: tuple[str, ...]
    names: str = ""  # part of a note in the verdict
    removed: tuple[str, ...] = ()  # settings of the drill that the fault takes away
    actions: tuple[Mapping[str, object], ...] = ()  # instead of those of the drill
    place: str = ""  # stage of the check that must block, and no other check


FAULTS: Mapping[str, tuple[Fault, ...]] = {
    "gray-replica": (
        Fault("one of three replicas is slower", {"unlike": {"1": {"itl": "32ms"}}}, ("goodput",), "replica 1 "),
    ),
    "cache-stampede": (
        Fault("prefix cache emptied at once, again and again", {"flush_every": 2}, ("prefix_hit_rate", "goodput")),
    ),
    "kv-exhaustion": (Fault("KV cache for two of eight requests", {"kv_tokens": 256}, ("preemptions", "ttft")),),
    "prefill-decode": (
        Fault("6 ms of transfer for every prompt token", {"transfer": "6ms"}, ("goodput",)),
        Fault("one decode replica with two slots", {"prefill_replicas": 2, "batch": 2}, ("goodput",)),
    ),
    "router-mix": (
        Fault(
            "a quarter to a model whose JSON is invalid",
            {"unlike": {"1": {"invalid_json": "100%", "ttft": "5ms", "itl": "2ms"}}},
            ("validity",),
        ),
    ),
    "autoscaling": (
        Fault("requests to a replica that loads", {"load_time": "3s"}, ("goodput",), removed=("ready_after",)),
        Fault(
            "replicas removed without draining",
            {},
            ("error_rate", "goodput"),
            actions=({"at": "300ms", "kill": 2}, {"at": "600ms", "kill": 1}, {"at": "1s", "start": 2}),
        ),
    ),
    "verified-answers": (
        Fault("a quarter wrong at 16 in flight", {"faults": ["wrong-answer:15@25%"]}, ("accuracy",), place="c16"),
    ),
}  # fmt: skip


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
        return self.outcome == "BLOCK" and found and named


def changed_suite(name: str, fault: Fault | None, seed: int) -> dict[str, Any]:
    """Return a drill as a mapping, with a seed and a fault. JSON is YAML."""
    path = DRILLS / f"{name}.yaml"
    suite: dict[str, Any] = read_text(path.read_text(encoding="utf-8"), path.name).data
    for deployment in suite["deployments"].values():
        deployment["sim"]["seed"] = seed
    suite["seed"], sim = seed, suite["deployments"][suite["candidate"]]["sim"]
    if "quality" in suite:
        suite["quality"]["tasks"] = [str(DRILLS / task) for task in suite["quality"]["tasks"]]
    if fault is not None:
        for key in fault.removed:
            del sim[key]
        sim.update(fault.settings)
        if fault.actions:
            suite["load"]["sweep"][-1]["actions"] = list(fault.actions)
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
        sys.exit(f"benchgate ended with status {result.returncode} and no verdict:\n{result.stderr}")
    document = json.loads(result.stdout)
    blocking = tuple(one["id"] for one in document["checks"] if one["outcome"] == "BLOCK")
    return Ended(document["outcome"], blocking, document["reason"], tuple(document.get("notes", ())), took_s, 1)


def run_many(name: str, fault: Fault | None, seeds: Sequence[int], kept: Path | None) -> list[Ended]:
    """Run a drill for every seed; what `kept` has already is not run again."""
    words = fault.words if fault is not None else "as it ships"
    found = []
    for seed in seeds:
        known = json.loads(kept.read_text(encoding="utf-8")) if kept is not None and kept.exists() else {}
        suite = changed_suite(name, fault, seed)
        key = f"{name} {words} {seed} {crc32(json.dumps(suite).encode()):08x}"  # a changed drill is run again
        if key not in known:
            known[key] = asdict(run_once(name, fault, seed))
            if kept is not None:
                kept.write_text(json.dumps(known, indent=1), encoding="utf-8")
        one = known[key]
        found.append(Ended(**{**one, "blocking": tuple(one["blocking"]), "notes": tuple(one["notes"])}))
        is_right = found[-1].is_right(fault)
        print(
            f"  {name}, {words}, {seed}: {found[-1].outcome} {', '.join(found[-1].blocking)} {found[-1].took_s:.0f} s"
            + ("" if is_right else f"  <- WRONG: {found[-1].reason}; {'; '.join(found[-1].notes)}"),
            flush=True,
        )
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
    chosen = parser.parse_args()
    seeds = range(chosen.first_seed, chosen.first_seed + chosen.runs)
    cases = [(name, fault) for name in chosen.only or FAULTS for fault in (None, *FAULTS[name])]
    found = [(name, fault, run_many(name, fault, seeds, chosen.keep)) for name, fault in cases]
    print("\n".join(table_lines(found)))
    wrong = [(name, fault) for name, fault, ended in found if not all(one.is_right(fault) for one in ended)]
    names = ", ".join(f"{name} ({fault.words if fault else 'as it ships'})" for name, fault in wrong)
    print(f"MISSED: {names}" if wrong else "held: every fault found, and nothing without one")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
