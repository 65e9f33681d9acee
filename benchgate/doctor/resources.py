"""What this machine has left for a run: memory, disk, processor time that others take, and a clock that is set."""

from __future__ import annotations

import ctypes
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from benchgate.doctor.machine import State, Symptom
from benchgate.pipeline.environment import usable_cpus
from benchgate.units import show_percent, show_size

_GIB = 1024**3
_LEAST_MEMORY_BYTES = _GIB
_LEAST_DISK_BYTES, _NO_DISK_BYTES = _GIB, 64 * 1024**2
_MOST_TAKEN = 0.01  # of the time: a hundredth that is taken in one piece is a late send
_LOOK_S = 0.2
_TIME_ERROR = 5  # adjtimex(2): the clock is not synchronised
_TIMEX_BYTES = 512  # more than any struct timex has

_PROC, _CGROUP = Path("/proc"), Path("/sys/fs/cgroup")


def examine_resources(folders: dict[str, Path], *, proc: Path = _PROC, cgroup: Path = _CGROUP) -> Iterator[Symptom]:
    """In a fixed order. `folders` are those that a run writes into, there or not yet, by what they are for."""
    yield _memory(proc, cgroup)
    for name, folder in folders.items():
        yield _disk(name, folder)
    yield _quota(proc, cgroup)
    yield _stolen(proc)
    yield _set_clock()


def _memory(proc: Path, cgroup: Path) -> Symptom:
    """What is available to new work, by the kernel and by the limit of our own group of processes."""
    free = [int(line.split()[1]) * 1024 for line in _lines(proc / "meminfo") if line.startswith("MemAvailable:")]
    for group in _groups(proc, cgroup):
        most, used = _number(group / "memory.max"), _number(group / "memory.current")
        if most is not None and used is not None:
            free.append(max(0, most - used))
    if not free:
        return Symptom("memory", State.OK, "the system does not show how much is free")
    found = f"{show_size(min(free))} free"
    if min(free) >= _LEAST_MEMORY_BYTES:
        return Symptom("memory", State.OK, found)
    return Symptom("memory", State.WARN, found, f"leave {show_size(_LEAST_MEMORY_BYTES)}: evals take the most")


def _disk(name: str, folder: Path) -> Symptom:
    """The disk of a folder, which may not be there yet."""
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
    """Processor time that the container may have, and how often it was stopped for having used it up."""
    cpus, stopped = float(usable_cpus()), 0.0
    for group in _groups(proc, cgroup):
        words = " ".join(_lines(group / "cpu.max")).split()
        if len(words) == 2 and words[0].isdigit():
            cpus = min(cpus, int(words[0]) / int(words[1]))
        counts = dict(line.split() for line in _lines(group / "cpu.stat") if len(line.split()) == 2)
        if int(counts.get("nr_periods", 0)):
            stopped = max(stopped, int(counts.get("nr_throttled", 0)) / int(counts["nr_periods"]))
    remedy = "a process that is stopped sends and reads late: raise the limit of CPU of this container, or remove it"
    if stopped > _MOST_TAKEN:
        found = f"stopped in {show_percent(stopped)} of all periods for having used up its processor time"
        return Symptom("cpu quota", State.WARN, found, remedy)
    if cpus < usable_cpus():
        return Symptom("cpu quota", State.WARN, f"the time of {cpus:.3g} of {usable_cpus()} cores", remedy)
    return Symptom("cpu quota", State.OK, "none that takes time away")


def _stolen(proc: Path) -> Symptom:
    """Time that the machine beneath a virtual one gave to others (proc(5): the eighth number of `cpu`)."""
    before = _cpu_times(proc)
    time.sleep(_LOOK_S if before else 0.0)
    after = _cpu_times(proc)
    passed = sum(after) - sum(before) if before and after else 0
    if passed <= 0 or len(after) < 8:
        return Symptom("steal", State.OK, "the system does not show any")
    share = (after[7] - before[7]) / passed
    found = f"{show_percent(share)} of the processors' time over {_LOOK_S:g} s"
    if share <= _MOST_TAKEN:
        return Symptom("steal", State.OK, found)
    remedy = "others on the same host take time from this machine: measure from one of its own"
    return Symptom("steal", State.WARN, found, remedy)


def _set_clock() -> Symptom:
    """Whether somebody sets the clock, by the kernel (adjtimex(2), which changes nothing with no mode set)."""
    asked = getattr(ctypes.CDLL(None), "adjtimex", None)
    state = -1 if asked is None else asked(ctypes.create_string_buffer(_TIMEX_BYTES))
    if state == _TIME_ERROR:
        remedy = "let chrony, ntpd or systemd-timesyncd set it: runs are dated and waivers end by it"
        return Symptom("time of day", State.WARN, "nobody sets the clock, as far as the kernel knows", remedy)
    return Symptom("time of day", State.OK, "the clock is set" if state >= 0 else "the system does not say who sets it")


def _groups(proc: Path, cgroup: Path) -> list[Path]:
    """Our control group of version 2 and those above it; the namespace of a container shows its own as the root."""
    own = next((line[3:].strip("/") for line in _lines(proc / "self/cgroup") if line.startswith("0::")), "")
    inner = cgroup / own
    return [place for place in (inner, *inner.parents) if place.is_relative_to(cgroup) and place.is_dir()]


def _cpu_times(proc: Path) -> list[int]:
    first = next(iter(_lines(proc / "stat")), "")
    return [int(word) for word in first.split()[1:9]] if first.startswith("cpu ") else []


def _number(path: Path) -> int | None:
    words = _lines(path)
    return int(words[0]) if words and words[0].isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []
