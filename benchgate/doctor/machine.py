"""Checks of this machine and its store: what would spoil a measurement, and what to do about it."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import resource
import shutil
import sqlite3
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from benchgate.errors import BenchgateError
from benchgate.load.client_delay import audit_refusal
from benchgate.load.http.library import DISABLED_BY, library
from benchgate.pipeline.environment import known_client
from benchgate.store.database import Address
from benchgate.store.repository import Store
from benchgate.system import lacking, usable_cpus
from benchgate.targets.address import ServerAddress
from benchgate.units import show_duration, show_number, show_percent, show_size


class State(StrEnum):
    """State of a symptom. WARN: numbers may suffer; FAIL: benchgate cannot work."""

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Symptom:
    """A result of a check, with a remedy unless all is well."""

    name: str
    state: State
    found: str
    remedy: str | None = None


def examine(store: str) -> list[Symptom]:
    """Run all checks in a fixed order. Writes nothing, contacts no server."""
    symptoms = [Symptom("python", State.OK, f"{platform.python_implementation()} {platform.python_version()}")]
    symptoms += [check() for check in (_compiled_reader, _clock, _governor, _cores)]
    refusal = audit_refusal(ServerAddress.of("http://127.0.0.1"))
    found = "the kernel stamps what arrives: `audit` can check the client's reads"
    symptoms.append(Symptom("kernel stamps", State.OK, found if refusal is None else f"no `audit` here: {refusal}"))
    for name, module, extra, feature in _EXTRAS:
        # No warning: what a suite or a store needs and lacks is refused with it.
        there = importlib.util.find_spec(module) is not None
        found = f"{module} is installed" if there else lacking(f"not installed, needed for {feature}", extra)
        symptoms.append(Symptom(name, State.OK, found))
    return [*symptoms, *_store_symptoms(store)]


def _compiled_reader() -> Symptom:
    """Check for the compiled reader; without it streams cost more processor time."""
    if library() is not None:
        return Symptom("reads", State.OK, "streams are read by compiled code")
    if os.environ.get(DISABLED_BY) == "0":
        return Symptom("reads", State.WARN, f"streams are read in Python: {DISABLED_BY}=0", f"unset {DISABLED_BY}")
    found = "streams are read in Python, at more processor time a token"
    if sys.platform != "linux":
        return Symptom("reads", State.WARN, found, "measure from Linux, where many streams must be read")
    return Symptom("reads", State.WARN, found, "install a C compiler (`cc`), then install benchgate again from source")


_SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit")
_COARSE_S = 1e-6


def _clock() -> Symptom:
    resolution_s = time.get_clock_info("monotonic").resolution
    source = _read_line("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    found = f"steps of {show_duration(resolution_s)}" + (f", from {source}" if source else "")
    if resolution_s > _COARSE_S or source in _SLOW_CLOCKS:
        remedy = "let the kernel use a counter of the processor (clocksource tsc, kvm-clock or arch_sys_counter)"
        return Symptom("clock", State.WARN, found, remedy)
    return Symptom("clock", State.OK, found)


def _governor() -> Symptom:
    governor = _read_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    if governor is None:
        return Symptom("cpu governor", State.OK, "the system does not show one")
    if governor == "performance":
        return Symptom("cpu governor", State.OK, governor)
    remedy = "a processor that sleeps between events answers them late: `cpupower frequency-set -g performance`"
    return Symptom("cpu governor", State.WARN, governor, remedy)


def _cores() -> Symptom:
    cpus, load = usable_cpus(), os.getloadavg()[0]
    found = f"{cpus} usable, load average {show_number(load)} over the last minute"
    if cpus < 2:
        return Symptom(
            "cores", State.WARN, found, "with one core the load generator and a server here take turns; use two"
        )
    if load > cpus / 2:
        return Symptom("cores", State.WARN, found, "stop what else runs here, or measure from another machine")
    return Symptom("cores", State.OK, found)


_EXTRAS = (
    ("lm-eval", "lm_eval", "eval", "suites with `quality`"),
    ("embedded engine", "xllamacpp", "demo", "`benchgate demo` and embedded deployments"),
    ("cluster", "distributed", "cluster", "load from several machines (`--cluster`)"),
    ("grpc", "grpc", "grpc", "the endpoint `grpc-infer`"),
    ("postgres", "psycopg", "postgres", "a store in Postgres"),
    ("tokenizers", "tokenizers", "tokenizer", "workloads with a `tokenizer` file"),
)


def _store_symptoms(store: str) -> list[Symptom]:
    """Check the store, and its profile of this machine's load generator. A missing store is no fault."""
    try:
        path = Address.parse(store).path
        if path is not None and not path.exists():
            return [
                Symptom("store", State.OK, f"{path} does not exist yet; the first run makes it"),
                _NO_CLIENT_PROFILE,
            ]
        opened = Store.open_as_is(store)
        if opened is None:
            found = f"{Address.parse(store).shown} does not have this version's schema"
            old = Symptom("store", State.WARN, found, "`benchgate store upgrade` brings it there")
            return [old, _NO_CLIENT_PROFILE]
        with opened:
            profile = known_client(opened)
    except BenchgateError as error:
        return [Symptom("store", State.FAIL, str(error), "correct --store or BENCHGATE_STORE")]
    known = Symptom("store", State.OK, f"{Address.parse(store).shown} opens")
    if profile is None:
        return [known, _NO_CLIENT_PROFILE]
    if profile.tokens_per_s is None or profile.requests_per_s is None:
        kind = "streams" if profile.tokens_per_s is None else "requests"
        remedy = "measure again while nothing else runs here: `benchgate doctor --client`"
        unsound = f"no load of {kind} was sound when it was measured"
        return [known, Symptom("load generator", State.WARN, unsound, remedy)]
    tokens = f"{show_number(profile.tokens_per_s)} tokens/s, {profile.streams:,} streams"
    found = f"{tokens} and {show_number(profile.requests_per_s)} requests/s per worker"
    return [known, Symptom("load generator", State.OK, f"{found}, measured {profile.measured_at[:10]}")]


_NO_CLIENT_PROFILE = Symptom(
    "load generator",
    State.WARN,
    "what it can deliver on this machine was never measured",
    "measure it once, while nothing else runs here: `benchgate doctor --client`",
)


def _read_line(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None


_GIB = 1024**3
_LEAST_MEMORY_BYTES = _GIB
_FEW_CONNECTIONS = 4096
_LEAST_DISK_BYTES, _NO_DISK_BYTES = _GIB, 64 * 1024**2
_MOST_TAKEN = 0.01  # of the time: a hundredth that is taken in one piece is a late send
_STEAL_WINDOW_S = 0.2
_TIME_ERROR = 5  # adjtimex(2): the clock is not synchronised
_TIMEX_BYTES = 512  # more than any struct timex has

_PROC, _CGROUP = Path("/proc"), Path("/sys/fs/cgroup")


def examine_resources(folders: dict[str, Path], *, proc: Path = _PROC, cgroup: Path = _CGROUP) -> Iterator[Symptom]:
    """Yield checks of memory, disk, processor time and clock. `folders` that a run writes into may not exist yet."""
    yield _memory(proc, cgroup)
    for name, folder in folders.items():
        yield _disk(name, folder)
    yield _connections(proc)
    yield _quota(proc, cgroup)
    yield _steal(proc)
    yield _time_of_day()


def _memory(proc: Path, cgroup: Path) -> Symptom:
    """Check the memory that is free by the kernel and by the limits of our own control groups."""
    free = [int(line.split()[1]) * 1024 for line in _lines(proc / "meminfo") if line.startswith("MemAvailable:")]
    for group in _groups(proc, cgroup):
        most, used = _number(group / "memory.max"), _number(group / "memory.current")
        if most is not None and used is not None:
            kept = _counts(group / "memory.stat").get("inactive_file", 0)  # pages of files, which the kernel gives up
            free.append(max(0, most - used + kept))
    if not free:
        return Symptom("memory", State.OK, "the system does not show how much is free")
    found = f"{show_size(min(free))} free"
    if min(free) >= _LEAST_MEMORY_BYTES:
        return Symptom("memory", State.OK, found)
    return Symptom("memory", State.WARN, found, f"leave {show_size(_LEAST_MEMORY_BYTES)}: evals take the most")


def _disk(name: str, folder: Path) -> Symptom:
    """Check the disk of a folder, which may not exist yet."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    free = shutil.disk_usage(there).free
    found = f"{show_size(free)} free"
    if not os.access(there, os.W_OK):
        return Symptom(name, State.FAIL, f"{there} may not be written", "name a folder where you may write")
    if free < _NO_DISK_BYTES:
        return Symptom(name, State.FAIL, found, "make room: nothing that is measured could be kept")
    if free < _LEAST_DISK_BYTES:
        return Symptom(name, State.WARN, found, "make room: a large run with its texts takes hundreds of megabytes")
    return Symptom(name, State.OK, found)


def _quota(proc: Path, cgroup: Path) -> Symptom:
    """Check the container's limit of processor time, and how often it was stopped for exceeding it."""
    cpus, stopped, is_shown = float(usable_cpus()), 0.0, False
    for group in _groups(proc, cgroup):
        words = " ".join(_lines(group / "cpu.max")).split()
        is_shown |= bool(words)
        if len(words) == 2 and words[0].isdigit():
            cpus = min(cpus, int(words[0]) / int(words[1]))
        counts = _counts(group / "cpu.stat")
        if counts.get("nr_periods"):
            stopped = max(stopped, counts.get("nr_throttled", 0) / counts["nr_periods"])
    remedy = "a process that is stopped sends and reads late: raise the limit of CPU of this container, or remove it"
    if stopped > _MOST_TAKEN:
        found = f"stopped in {show_percent(stopped)} of all periods for having used up its processor time"
        return Symptom("cpu quota", State.WARN, found, remedy)
    if cpus < usable_cpus():
        return Symptom("cpu quota", State.WARN, f"the time of {cpus:.3g} of {usable_cpus()} cores", remedy)
    found = "none that takes time away" if is_shown else "the system does not show one (control groups of version 2)"
    return Symptom("cpu quota", State.OK, found)


def _steal(proc: Path) -> Symptom:
    """Check the time that the host took from this virtual machine (proc(5): the eighth number of `cpu`)."""
    before = _cpu_times(proc)
    time.sleep(_STEAL_WINDOW_S if before else 0.0)
    after = _cpu_times(proc)
    passed = sum(after) - sum(before) if before and after else 0
    if passed <= 0 or len(after) < 8:
        return Symptom("steal", State.OK, "the system does not show any")
    stolen = after[7] - before[7]
    share = stolen / passed
    found = f"{show_percent(share)} of the processors' time over {_STEAL_WINDOW_S:g} s"
    if stolen <= 1 or share <= _MOST_TAKEN:  # one tick may be most of one, or the last bit of many
        return Symptom("steal", State.OK, found)
    remedy = "others on the same host take time from this machine: measure from one of its own"
    return Symptom("steal", State.WARN, found, remedy)


def _time_of_day() -> Symptom:
    """Check that the clock is synchronised, by adjtimex(2), which changes nothing with no mode set."""
    adjtimex = getattr(ctypes.CDLL(None), "adjtimex", None)
    state = -1 if adjtimex is None else adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    if state == _TIME_ERROR:
        remedy = "let chrony, ntpd or systemd-timesyncd set it: runs are dated and waivers end by it"
        return Symptom("time of day", State.WARN, "the clock is not synchronised, by the kernel's report", remedy)
    return Symptom(
        "time of day", State.OK, "the clock is synchronised" if state >= 0 else "the system does not report it"
    )


def _groups(proc: Path, cgroup: Path) -> list[Path]:
    """Return our control group (version 2) and its parents. In a container's namespace its own is the root."""
    own = next((line[3:].strip("/") for line in _lines(proc / "self/cgroup") if line.startswith("0::")), "")
    inner = cgroup / own
    return [place for place in (inner, *inner.parents) if place.is_relative_to(cgroup) and place.is_dir()]


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Most connections: of one worker by open files, and of all workers of this machine together; None: no limit."""

    open_files: int | None
    ports: int | None  # local ports, for each pair of source and server address
    tracked: int | None  # entries of the connection tracking, through which NAT passes

    def __str__(self) -> str:
        files = "no limit of open files" if self.open_files is None else f"{self.open_files:,} by open files"
        together = [
            f"{count:,} {kind}"
            for count, kind in ((self.ports, "to one server address"), (self.tracked, "through NAT"))
            if count is not None
        ]
        shared = f"; all workers together {' and '.join(together)}" if together else ""
        return f"one worker holds {files}{shared}"


def connection_limits(*, proc: Path = _PROC) -> ConnectionLimits:
    """Return how many connections this machine allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    ports = [int(word) for line in _lines(proc / "sys/net/ipv4/ip_local_port_range") for word in line.split()]
    return ConnectionLimits(
        None if hard == resource.RLIM_INFINITY else hard,
        ports[1] - ports[0] + 1 if len(ports) == 2 else None,
        _number(proc / "sys/net/netfilter/nf_conntrack_max"),
    )


def _connections(proc: Path) -> Symptom:
    """Check how many streams may be open: each is an open file, a local port and, with NAT, a tracked connection."""
    limits = connection_limits(proc=proc)
    known = [count for count in (limits.open_files, limits.ports, limits.tracked) if count is not None]
    if min(known, default=_FEW_CONNECTIONS) >= _FEW_CONNECTIONS:
        return Symptom("connections", State.OK, str(limits))
    remedy = (
        f"allow {_FEW_CONNECTIONS:,} or more: open files (`ulimit -Hn`), net.ipv4.ip_local_port_range "
        "and net.netfilter.nf_conntrack_max"
    )
    return Symptom("connections", State.WARN, f"{limits}: fewer than a large stage has", remedy)


def _cpu_times(proc: Path) -> list[int]:
    first = next(iter(_lines(proc / "stat")), "")
    return [int(word) for word in first.split()[1:9]] if first.startswith("cpu ") else []


def _number(path: Path) -> int | None:
    words = _lines(path)
    return int(words[0]) if words and words[0].isdigit() else None


def _counts(path: Path) -> dict[str, int]:
    """Read lines of a name and a number."""
    pairs = (line.split() for line in _lines(path))
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []


def examine_store_file(store: str) -> Iterator[Symptom]:
    """Yield checks of the file of an existing store that opens; `examine` reports on others."""
    try:
        path = Address.parse(store).path
        if path is None or not path.exists():
            return
        opened = Store.open_as_is(store)
    except BenchgateError:
        return
    yield _permissions(path)
    if opened is not None:
        with opened:
            yield _lock(path)


def _permissions(path: Path) -> Symptom:
    for place in (path, path.parent):
        if not os.access(place, os.W_OK):
            remedy = "a run could keep nothing in it: let this user write to file and folder"
            return Symptom("store access", State.FAIL, f"{place} may not be written", remedy)
        mode = place.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            remedy = f"`chmod o-w {place}`: who can change evidence can change a verdict"
            return Symptom("store access", State.WARN, f"everybody may write to {place}", remedy)
    return Symptom("store access", State.OK, "may be written, and not by everybody")


def _lock(path: Path) -> Symptom:
    """Take the writer's lock for an instant, and write nothing."""
    try:
        with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
    except sqlite3.OperationalError as error:
        remedy = "wait for it, or see what holds it (`fuser`): a run waits 10 s for its turn"
        return Symptom("store lock", State.WARN, f"another process is writing to it ({error})", remedy)
    return Symptom("store lock", State.OK, "no other process is writing to it")
