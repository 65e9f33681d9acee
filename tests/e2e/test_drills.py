"""Every drill that ships, shortened: it passes where its effect is there, and blocks where it is not.

Their servers mostly wait, so several drills run at once, each in a process of a small pool.
"""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchgate.model.metric import METRICS
from benchgate.model.verdict import Outcome
from benchgate.pipeline.progress import Progress
from benchgate.pipeline.run import RunOptions, run_suite
from benchgate.suite.loader import parse_suite
from benchgate.suite.schema import Suite
from benchmarks.drills import DRILLS, FAULTS, Fault, changed_suite

Stored = dict[str, Any]

BLOCKS = {
    "affinity": 4, "cache-stampede": 4, "disconnect": 3, "kv-exhaustion": 4, "many-adapters": 3, "tradeoff": 3,
    "verified-answers": 4,
}  # fmt: skip
"""A median of blocks has limits only from three on (from four for two checks), a mean from two."""

SHORTER = {"many-adapters": 2, "overload": 2, "router-mix": 2}
"""By how much a stage has fewer requests, where it is not four times: a queue needs some to grow."""

WITHOUT_RAMP = frozenset({"load-shedding", "overload"})
"""Their servers have more to do than they can: five service times of a ramp would be answered for half a minute."""

AS_THEY_SHIP = frozenset({"endpoints", "grpc-inference"})
"""Not shortened: a fault of most answers needs many to show, and with one of all of them no probe would pass."""

LONGEST = frozenset({"affinity", "chunked-prefill", "replica-loss", "tradeoff"})
"""Begun first, so that nothing is left waiting for them at the end."""

ATTEMPTS = 3
AT_ONCE = 4
AS_LATE_AS_IT_LIKES = {
    "send_lag_p99_s": 1.0, "send_lag_max_s": 1.0, "read_delay_p99_s": 1.0, "read_delay_max_s": 1.0,
    "cpu_share": 1.0, "achieved_ratio": 0.01,
}  # fmt: skip


def shortened(name: str, fault: Fault | None = None) -> Stored:
    """The drill with fewer, shorter stages, and bounds that so little can show: its effects are multiples."""
    suite = parse_suite(json.dumps(changed_suite(name, fault, None)), name).to_stored()
    suite["gate"] |= {"alpha": 0.2, "client": AS_LATE_AS_IT_LIKES}
    if name in AS_THEY_SHIP:
        return suite
    for check in suite["gate"]["checks"]:
        if check["metric"] == "error_rate" and check["max"] in ("5%", "10%"):
            check["max"] = "60%"
        if check["metric"] == "error_rate" and check.get("class_name") is not None:
            check["required"] = False  # in so short a stage nothing of its background may come to an end
    if suite.get("start"):
        suite["start"]["times"] = 2
    if suite["load"]:
        suite["load"] |= {"blocks": BLOCKS.get(name, 2), "warmup": 1}
        for stage in suite["load"]["sweep"]:
            _shorten(name, stage)
    return suite


def _shorten(name: str, stage: Stored) -> None:
    for part in (stage.get("classes") or {"": stage}).values():
        if name in WITHOUT_RAMP:
            part["ramp"] = 0.0
        if part.get("duration_s") is not None:
            part["duration_s"] /= 2
            part.pop("requests", None)
        elif part.get("requests") is not None:
            least = 16 if part.get("rate_rps") else 2
            part["requests"] = max(least, part.get("concurrency") or 0, part["requests"] // SHORTER.get(name, 4))
            if part.get("verify_ratio"):
                part["verify_ratio"] *= SHORTER.get(name, 4)  # as many eval items among fewer requests
    for times in ("every_s", "duration_s"):
        if stage.get("bursts"):
            stage["bursts"][times] /= 2
    for action in stage.get("actions") or ():
        action["at_s"] /= 2


@dataclass(frozen=True, slots=True)
class Told:
    """What a drill came to, and why it did not pass: of its checks and of the guards that tripped."""

    outcome: Outcome
    why: tuple[str, ...]


def judged(name: str, with_effect: bool, folder: Path) -> Told:
    """A drill, or what is left of it without its effect; measured again where a stall left it undecided."""
    told = _judged_once(name, with_effect, folder / "1")
    for attempt in range(2, ATTEMPTS + 1):
        if told.outcome in (Outcome.INCONCLUSIVE, Outcome.INVALID):
            told = _judged_once(name, with_effect, folder / str(attempt))
    return told


def _judged_once(name: str, with_effect: bool, folder: Path) -> Told:
    stored = shortened(name, None if with_effect else FAULTS[name][-1])
    options = RunOptions(str(folder / "store.db"), folder)
    verdict = run_suite(Suite.from_stored(stored), DRILLS, options, Progress()).verdict
    why = [f"{check.outcome} {check.id}: {check.reason}" for check in verdict.checks if check.outcome != Outcome.PASS]
    why += [f"{guard.id}: {guard.reason}" for guard in verdict.guards if guard.tripped]
    return Told(verdict.outcome, tuple(why))


Asked = tuple[str, bool]
Judged = Callable[[str, bool], Told]


@pytest.fixture(scope="module")
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judged]:
    """What a drill came to. All that the chosen tests will ask for is begun at once."""
    asked = [item.callspec.params for item in request.session.items if getattr(item, "module", None) is request.module
             and hasattr(item, "callspec")]  # fmt: skip
    with ProcessPoolExecutor(AT_ONCE, multiprocessing.get_context("spawn")) as pool:
        keys = [(params["name"], params["with_effect"]) for params in asked if "with_effect" in params]
        begun: dict[Asked, Future[Told]] = {
            key: pool.submit(judged, *key, tmp_path_factory.mktemp("drill"))
            for key in sorted(keys, key=lambda key: key[0] not in LONGEST)
        }
        yield lambda name, with_effect: begun[name, with_effect].result()


@pytest.mark.parametrize("with_effect", [True])
@pytest.mark.parametrize("name", sorted(FAULTS))
def test_drill_passes_where_its_effect_is(name: str, with_effect: bool, run: Judged) -> None:
    told = run(name, with_effect)
    assert told.outcome in (Outcome.PASS, Outcome.WARN), told.why


@pytest.mark.parametrize("with_effect", [False])
@pytest.mark.parametrize("name", sorted(FAULTS))
def test_drill_blocks_where_its_effect_is_absent(name: str, with_effect: bool, run: Judged) -> None:
    told = run(name, with_effect)
    assert told.outcome == Outcome.BLOCK, told.why


def test_every_drill_that_ships_is_tried() -> None:
    assert sorted(path.stem for path in DRILLS.glob("*.yaml")) == sorted(FAULTS)


def test_faults_are_found_by_metrics_that_exist() -> None:
    found_by = {metric for faults in FAULTS.values() for fault in faults for metric in fault.finds}
    assert found_by <= set(METRICS)
