"""Cases of the campaign as data: what is done to a run in which phase, and what may come of it.

`SIM` has the faults of the practice server, which meet load stages of every kind and the other phases. `OUTSIDE` has
what happens to servers, network, disk, clock and processes. A verdict that promotes is expected only where the fault
cannot change what is measured, or where the suite allows as much.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from zlib import crc32

from benchgate.sim.fault_injection import FaultDraw
from benchgate.suite.simulator import parse_fault
from benchmarks.campaign import surroundings as at
from benchmarks.campaign.forking import Forks
from benchmarks.campaign.running import Ended, Run
from benchmarks.campaign.suites import KINDS, LONG, PACE, PHASES, Options, suite_of, write_files
from benchmarks.campaign.surroundings import Act, Prepare, Surroundings

_DEADLINE_S = 240.0  # a case takes five seconds on an idle machine; what hangs does so for longer


@dataclass(frozen=True, slots=True)
class Expected:
    """Ways in which a run may end, and ids of guards and checks of which the reasons must name one."""

    ends: Sequence[str]
    by: Sequence[str] = ()


def expect(*ends: str, by: str = "") -> Expected:
    """Return an expectation; ids are separated by blanks."""
    return Expected(ends, tuple(by.split()))


HARMLESS = expect("PASS", "WARN")
DOWN = expect("INVALID", by="targets-up")
BY_ITS_SIZE = expect("PASS", "WARN", "BLOCK", "INCONCLUSIVE", "INVALID")  # the suite allows some failures
FAILS = expect("BLOCK", "INVALID", by="error_rate targets-up")
KILLED, TERMINATED, INTERRUPTED = expect("killed"), expect("terminated"), expect("interrupted")
NOT_STORED = expect("not stored", "INVALID")


@dataclass(frozen=True, slots=True)
class SimFault:
    """A fault of the practice server: its text in the settings, or other settings, and what is expected of each phase.

    Of a fault that fails requests a share meets it, so that the server is ready at the start: `partly`. When benchgate
    measures starts, every request does.
    """

    startup: Expected
    load: Expected
    quality: Expected
    shadow: Expected
    text: str | None = None
    other: Options | None = None  # settings instead of a fault
    partly: bool = False
    words: str = ""  # what it does, where the catalogue of the practice server does not say it

    def expected(self, phase: str, kind: str | None) -> Expected:
        """Return what is expected of a phase; of load stages with conversations failures carry further."""
        expected: Expected = getattr(self, phase)
        return expected

    def settings(self, phase: str) -> Options:
        """Return the settings in which the candidate's server differs in a phase."""
        if self.other is not None:
            return self.other
        if not self.partly or phase == "startup":
            return {"faults": [self.text]}
        fault = f"{self.text}@{_SHARE}"
        return {"faults": [fault], "seed": _seed_of(fault)}


_SHARE = "40%"
_CLEAN = 6  # requests at the start that meet no fault: the server is ready


@cache
def _seed_of(fault: str) -> int:
    """Return the first seed of a server whose first requests do not meet the fault."""
    parsed, seed = parse_fault(fault), 0
    while True:
        draw = FaultDraw([parsed], random.Random(f"faults {seed}"))
        if not any(draw.next().name for _ in range(_CLEAN)):
            return seed
        seed += 1


_UNUSABLE_ITEMS = expect("INVALID", by="items-paired targets-up answers-not-empty")
_UNUSABLE_PAIRS = expect("BLOCK", "INVALID", by="shadow_excess shadow-not-empty targets-up")
_FAILED_LOAD = expect("BLOCK", by="error_rate")
_NO_COUNTS = expect("INVALID", by="prompts-alike tokens-alike")
_WRONG = expect("BLOCK", "INVALID", by="accuracy items-paired answers-not-empty answers-readable gain-plausible")
_DIFFERS = expect("BLOCK", "INVALID", by="shadow_excess shadow-not-empty")
_LIE = expect("INVALID", "BLOCK", by="same-text text-not-degenerate answers-there error_rate same-work")


def _failing(text: str, startup: Expected = DOWN) -> SimFault:
    return SimFault(startup, _FAILED_LOAD, _UNUSABLE_ITEMS, _UNUSABLE_PAIRS, text=text, partly=True)


def _plain(text: str, load: Expected = HARMLESS, quality: Expected = HARMLESS, shadow: Expected = HARMLESS) -> SimFault:
    return SimFault(HARMLESS, load, quality, shadow, text=text)


def _set(
    other: Options, words: str, load: Expected = HARMLESS, quality: Expected = HARMLESS, shadow: Expected = HARMLESS
) -> SimFault:
    return SimFault(HARMLESS, load, quality, shadow, other=other, words=words)


SIM: Mapping[str, SimFault] = {
    **{
        name: _failing(name)
        for name in (
            "error-after", "error-first", "cut-after", "reset-after", "empty-answer", "empty-body", "http-error",
            "rate-limited", "no-answer", "hang-after",
        )
    },
    "abort-after": _failing("abort-after", startup=HARMLESS),
    "endless": replace(_failing("endless"), load=expect("BLOCK", "INVALID", by="answers-not-too-long error_rate")),
    "stall-after": replace(_failing("stall-after:1:1s", startup=HARMLESS), quality=HARMLESS, shadow=HARMLESS),
    "stall-of-ten-minutes": replace(
        _failing("stall-after:1:600s"), words="silence for ten minutes; `limits.stall` is 0.7 s instead of 30"
    ),
    "no-usage": _plain("no-usage", _NO_COUNTS),
    "zero-usage": _plain("zero-usage", _NO_COUNTS),
    "late-usage": _plain("late-usage:100ms", _NO_COUNTS),
    "no-done": _plain("no-done"),
    "usage-times": _plain("usage-times:2", expect("INVALID", by="answers-not-too-long same-text")),
    "other-model": _plain("other-model", load=expect("WARN", by="model-names")),
    "multi-token": _plain("multi-token"),
    "merged": _plain("merged"),
    "fast-when-seen": _plain("fast-when-seen"),
    "half-text": _plain("half-text", expect("INVALID", by="same-text"), shadow=_DIFFERS, quality=_WRONG),
    "reasoning-only": _plain("reasoning-only", _LIE, _WRONG, _DIFFERS),
    "blank-text": _plain("blank-text", _LIE, _WRONG, _DIFFERS),
    "zero-width-text": _plain("zero-width-text", _LIE, _WRONG, _DIFFERS),
    "repeated-text": _plain("repeated-text", _LIE, _WRONG, _DIFFERS),
    "wrong-answer": _plain("wrong-answer", quality=_WRONG, shadow=_DIFFERS),
    "other-script": _plain("other-script", quality=_WRONG, shadow=_DIFFERS),
    "unasked-call": _plain("unasked-call", _LIE, _WRONG, _DIFFERS),
    "second-choice": _plain("second-choice", _LIE, _WRONG, _DIFFERS),
    "slow": _set({"ttft": "80ms", "itl": "4ms"}, "four times the latency", load=expect("BLOCK", by="ttft e2e")),
    "half-wrong": _set({"says": "50%"}, "half of the answers are wrong", quality=expect("BLOCK", by="accuracy"),
                       shadow=expect("BLOCK", by="shadow_excess")),
    "closes-idle": _set({"keep_alive": "50ms"}, "idle connections are closed after 50 ms"),
    "gray-replica": _set({"replicas": 2, "unlike": {1: {"ttft": "160ms", "itl": "8ms"}}},
                         "one of two replicas has eight times the latency",
                         load=expect("BLOCK", "INCONCLUSIVE", "WARN", "PASS")),
    "replica-lost": _set({"replicas": 2, "lose_replica_after": 30}, "one of two replicas is killed after 30 requests",
                         load=expect("BLOCK", "INCONCLUSIVE", "WARN", "PASS")),  # depends on its requests in flight
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Outside:
    """Something that happens to a run from outside, once something of the phase was measured.

    `fails`: requests that failed by it must be on record, also where the suite allows so few.
    """

    does: str
    expected: Mapping[str, Expected]
    act: Act = at.nothing
    prepare: Prepare = at.started
    fails: bool = False
    deadline_s: float = _DEADLINE_S


def _in(phases: str, expected: Expected) -> dict[str, Expected]:
    return dict.fromkeys(phases.split(), expected)


_MEASURING = "load quality shadow"
_ALL = " ".join(PHASES)

OUTSIDE: Mapping[str, Outside] = {
    "parent-sigint": Outside("Ctrl-C", _in(_ALL, INTERRUPTED), at.send(signal.SIGINT, "parent")),
    "parent-sigterm": Outside("SIGTERM to benchgate", _in(_ALL, TERMINATED), at.send(signal.SIGTERM, "parent")),
    "parent-sigkill": Outside("SIGKILL to benchgate", _in(_ALL, KILLED), at.send(signal.SIGKILL, "parent")),
    "parent-sigstop": Outside(
        "benchgate is stopped for 2 s",
        {**_in("startup load quality", HARMLESS), "shadow": BY_ITS_SIZE},
        at.stop_for(2, "parent"),
    ),
    "parent-stop-kill": Outside("benchgate is stopped, and then killed", _in(_ALL, KILLED), at.stop_and_kill),
    "worker-sigterm": Outside(
        "SIGTERM to the load process", _in("load", expect("INVALID", by="load-as-planned")),
        at.send(signal.SIGTERM, "load worker"),
    ),
    "worker-sigkill": Outside(
        "SIGKILL to the load process, as when memory runs out", _in("load", expect("INVALID", by="load-as-planned")),
        at.send(signal.SIGKILL, "load worker"),
    ),
    "worker-sigstop": Outside(
        "the load process is stopped for good; its limit is 3 s instead of 60",
        _in("load", expect("INVALID", by="load-as-planned")), at.send(signal.SIGSTOP, "load worker"), at.patient(3),
    ),
    "worker-pause": Outside(
        "the load process is stopped for 2.5 s", _in("load", expect("INVALID", by="client-keeps-up load-as-planned")),
        at.stop_for(2.5, "load worker"),
    ),
    "worker-memory": Outside(
        "the load process gets no more memory", _in("load", expect("PASS", "WARN", "INVALID")), at.take_memory,
    ),
    "engine-sigterm": Outside(
        "SIGTERM to the candidate's server", _in(_MEASURING, expect("BLOCK", "INVALID")),
        at.send(signal.SIGTERM, "engine"), fails=True,
    ),
    "engine-sigkill": Outside(
        "SIGKILL to the candidate's server, as when memory runs out", _in(_MEASURING, expect("BLOCK", "INVALID")),
        at.send(signal.SIGKILL, "engine"), fails=True,
    ),
    "engine-sigstop": Outside(
        "the candidate's server is stopped for good", _in(_MEASURING, expect("BLOCK", "INVALID")),
        at.send(signal.SIGSTOP, "engine"), fails=True,
    ),
    "engine-pause": Outside(
        "the candidate's server is stopped for 4 s, a second longer than `limits.total`",
        _in(_MEASURING, BY_ITS_SIZE), at.stop_for(4, "engine"), fails=True,
    ),
    "lm-eval-sigterm": Outside(
        "SIGTERM to the candidate's lm-eval", _in("quality", expect("INVALID", by="items-paired")),
        at.send(signal.SIGTERM, "lm-eval"),
    ),
    "lm-eval-sigkill": Outside(
        "SIGKILL to the candidate's lm-eval", _in("quality", expect("INVALID", by="items-paired")),
        at.send(signal.SIGKILL, "lm-eval"),
    ),
    "lm-eval-sigstop": Outside(
        "lm-eval is stopped for good; `quality.timeout` is 8 s instead of 900",
        _in("quality", expect("INVALID", by="items-paired")), at.send(signal.SIGSTOP, "lm-eval"), at.patient(3),
    ),
    "lm-eval-pause": Outside(
        "lm-eval is stopped for 2 s", _in("quality", expect("PASS", "WARN", "INVALID")), at.stop_for(2, "lm-eval"),
    ),
    "lm-eval-memory": Outside(
        "lm-eval gets 300 MB of memory", _in("quality", expect("INVALID", by="items-paired")),
        prepare=at.with_little_memory,
    ),
    "server-restart": Outside(
        "the candidate's server is killed and is back after half a second",
        {"load": FAILS, **_in("quality shadow", BY_ITS_SIZE)},
        at.restart, at.served,
    ),
    "server-silent": Outside(
        "the candidate's server accepts connections and answers nothing any more",
        _in(_MEASURING, expect("BLOCK", "INVALID")), at.stop_server_for_good, at.served, fails=True,
    ),
    "half-open": Outside(
        "connections to the candidate are lost without a reset, and new ones work",
        _in(_MEASURING, BY_ITS_SIZE), at.go_silent, at.relayed, fails=True,
    ),
    "swapped": Outside(
        "another model takes the place of the candidate between two requests",
        {
            "load": expect("INVALID", by="server-kept-running"),
            "quality": expect("BLOCK", "INVALID", "INCONCLUSIVE"), "shadow": expect("BLOCK", "INVALID", "INCONCLUSIVE"),
        },
        at.swap, at.relayed,
    ),
    "dns-unknown": Outside("the candidate's host name is unknown", _in("load", DOWN), prepare=at.unknown_name),
    "dns-lost": Outside(
        "the name server fails; open connections stay",
        {"load": expect("BLOCK", "INVALID"), **_in("quality shadow", BY_ITS_SIZE)},
        at.lose_names, at.named,
    ),
    "tls-expired": Outside("the candidate's certificate has expired", _in("load", DOWN), prepare=at.expired),
    "tls-expires": Outside(
        "the clock passes the end of the candidate's certificate; open connections stay",
        {"load": expect("BLOCK", "INVALID"), **_in("quality shadow", BY_ITS_SIZE)},
        at.step_clock(24 * 365 * 95), at.over_tls,
    ),
    "clock-forward": Outside(
        "the clock is set an hour forward", _in(_ALL, HARMLESS), at.step_clock(1), at.with_own_clock,
    ),
    "clock-back": Outside("the clock is set an hour back", _in(_ALL, HARMLESS), at.step_clock(-1), at.with_own_clock),
    "disk-full-at-once": Outside(
        "no file may grow beyond 20 KB", _in("load shadow", expect("refused", "not stored", "INVALID")),
        prepare=at.on_small_disk(20_000),
    ),
    "disk-full-later": Outside(
        "no file may grow beyond 260 KB",
        {"load": NOT_STORED, **_in("startup quality shadow", expect("PASS", "WARN", "not stored", "INVALID"))},
        prepare=at.on_small_disk(260_000),
    ),
    "disk-full-tiny": Outside(
        "the store's file system has 400 KB", {"load": NOT_STORED, "shadow": expect("PASS", "WARN", "not stored")},
        prepare=at.on_tiny_file_system,
    ),
    "read-only": Outside(
        "the store's file system is read-only", _in("load", expect("not stored")), prepare=at.on_read_only_file_system,
    ),
    "postgres-restart": Outside(
        "the store's Postgres crashes, and is back in seconds", _in(_ALL, expect("PASS", "WARN", "not stored")),
        at.restart_postgres, at.on_postgres,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """A fault in a phase: what is expected of it, and how it is run. `key` changes with what is run."""

    fault: str
    phase: str
    kind: str | None
    expected: Expected
    key: str
    run: Callable[[Path, ExitStack, Forks | None], Ended]
    fails: bool = False

    @property
    def name(self) -> str:
        """Return its name: `no-usage/load/open`."""
        return "/".join(filter(None, (self.fault, self.phase, self.kind)))

    def problems(self, ended: Ended) -> list[str]:
        """Return everything that is not as stated."""
        found = []
        if ended.is_undisturbed:
            found.append(f"the moment of the case never came: {'; '.join(ended.reasons)}")
        if ended.end not in self.expected.ends:
            found.append(f"ended with {ended.end} (exit {ended.code}), expected {' or '.join(self.expected.ends)}")
        elif self.expected.by and ended.end not in ("PASS", "WARN") and not self._is_named(ended):
            found.append(f"the reasons name none of {', '.join(self.expected.by)}")
        if ended.judged in ("PASS", "WARN"):
            found.append(f"judged again it is {ended.judged}")
        if self.fails and not ended.failed:
            found.append("no failure is on record")
        found += [f"left a process: {words}" for words in ended.orphans]
        found += [f"lost: {what}" for what in ended.lost]
        if ended.crash or ended.code == 1:
            found.append(f"traceback: {ended.crash}")
        return found

    def is_wrongly_promoted(self, ended: Ended) -> bool:
        """Return True for a PASS or WARN that is not allowed."""
        return not ended.is_undisturbed and self._is_promoted(ended)

    def _is_promoted(self, ended: Ended) -> bool:
        return ended.judged in ("PASS", "WARN") or (
            ended.end in ("PASS", "WARN") and ended.end not in self.expected.ends
        )

    def may_repeat(self, ended: Ended) -> bool:
        """Return True where nothing but the verdict is wrong, and it does not promote: the machine may be busy."""
        harmless = ended.code is not None and not (ended.orphans or ended.lost or ended.crash)
        undecided = ended.is_undisturbed or ended.end in ("INVALID", "INCONCLUSIVE", "BLOCK")
        return harmless and undecided and bool(self.problems(ended))

    def _is_named(self, ended: Ended) -> bool:
        return any(
            re.search(rf"(?m)^{re.escape(name)}\b", reason) for name in self.expected.by for reason in ended.reasons
        )


def sim_case(name: str, fault: SimFault, phase: str, kind: str | None) -> Case:
    """Return the case of a practice server's fault."""
    settings = fault.settings(phase)
    stage = None if kind is None else KINDS[kind]
    baseline = {**PACE, "says": "100%", "seed": settings.get("seed", PACE["seed"])}
    deployments: Options = {"before": {"sim": baseline}, "after": {"sim": {**baseline, **settings}}}
    suite = suite_of(phase, deployments, stage=stage)

    def run(folder: Path, stack: ExitStack, forks: Forks | None) -> Ended:
        write_files(folder, suite)
        shutil.copy(_empty_store(), folder / "store.db")
        return stack.enter_context(Run(folder, "store.db", forks=forks, is_forked=True)).ended(_DEADLINE_S)

    key = f"{name} {phase} {kind} {crc32(json.dumps(suite).encode()):08x}"
    return Case(name, phase, kind, fault.expected(phase, kind), key, run)


@cache
def _empty_store() -> Path:
    from tempfile import mkdtemp

    from benchgate.store.repository import Store

    path = Path(mkdtemp(prefix="benchgate-campaign-")) / "store.db"
    Store.open(str(path)).close()
    return path


def outside_case(name: str, what: Outside, phase: str) -> Case:
    """Return the case of something that happens from outside."""

    def run(folder: Path, stack: ExitStack, forks: Forks | None) -> Ended:
        place = Surroundings(folder, phase, stack)
        what.prepare(place)
        suite = suite_of(phase, place.deployments, stage=LONG)
        if phase == "quality":
            suite["quality"] |= place.suite
        write_files(folder, suite)
        run = Run(folder, place.store, place.prelude, place.environment, forks=forks)
        with run:
            if what.act is not at.nothing:
                if not run.await_moment(lambda: at.in_the_middle(phase, run)):
                    return run.ended(what.deadline_s).early()
                time.sleep(at.INTO_A_STAGE_S if phase == "load" else 0.0)
                what.act(place, run)
            return run.ended(what.deadline_s)

    key = f"{name} {phase} {crc32(repr((what.does, phase)).encode()):08x}"
    return Case(name, phase, None, what.expected[phase], key, run, what.fails)


def all_cases() -> list[Case]:
    """Return every case."""
    return [*_sim_cases(), *_outside_cases()]


def _sim_cases() -> Iterator[Case]:
    for name, fault in SIM.items():
        for phase in PHASES:
            for kind in KINDS if phase == "load" else (None,):
                yield sim_case(name, fault, phase, kind)


def _outside_cases() -> Iterator[Case]:
    for name, what in OUTSIDE.items():
        for phase in what.expected:
            yield outside_case(name, what, phase)


def short_cases() -> list[Case]:
    """Return a case or two of each sort."""
    return [case for case in all_cases() if case.name in SHORT]


SHORT = frozenset({
    "error-after/load/closed", "reset-after/load/conversation", "hang-after/load/classes", "half-text/load/trace",
    "blank-text/load/burst", "stall-of-ten-minutes/load/steps", "closes-idle/load/open", "error-first/quality",
    "half-wrong/quality", "wrong-answer/shadow", "empty-answer/startup",
    "parent-sigkill/load", "parent-sigterm/quality", "parent-stop-kill/shadow", "worker-sigstop/load",
    "worker-memory/load", "engine-sigkill/shadow", "lm-eval-sigstop/quality", "server-restart/load",
    "half-open/shadow", "swapped/load", "dns-lost/load", "tls-expires/load", "clock-back/load",
    "disk-full-later/load", "read-only/load", "postgres-restart/load",
})  # fmt: skip
