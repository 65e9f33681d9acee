"""A few cheap questions to the machine benchgate runs on: what would spoil a measurement, and what to do about it."""

from __future__ import annotations

import importlib.util
import os
import platform
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from benchgate.errors import BenchgateError, lacking
from benchgate.load.client_delay import audit_refusal
from benchgate.load.http.library import DISABLED_BY, library
from benchgate.model.client import ClientProfile
from benchgate.pipeline.environment import known_client, usable_cpus
from benchgate.store.database import Address
from benchgate.store.repository import Store
from benchgate.targets.address import ServerAddress
from benchgate.units import show_duration, show_number


class State(StrEnum):
    """OK; WARN: it works, and numbers may suffer; FAIL: benchgate cannot work so."""

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Symptom:
    """One thing looked at: what was found, and unless all is well what to do."""

    name: str
    state: State
    found: str
    remedy: str | None = None


def examine(store: str) -> list[Symptom]:
    """Everything, in a fixed order. Writes nothing, asks no server, takes a moment."""
    looks: tuple[Callable[[], Symptom], ...] = (
        _python, _reads, _open_files, _clock, _governor, _load, _stamps, _evals, _embedded_engine, _cluster, _postgres,
        _tokenizers,
    )  # fmt: skip
    return [*(look() for look in looks), *_kept(store)]


def _python() -> Symptom:
    return Symptom("python", State.OK, f"{platform.python_implementation()} {platform.python_version()}")


def _reads() -> Symptom:
    """A pure installation works; it only keeps the processor busier, which a stage with many streams will feel."""
    if library() is not None:
        return Symptom("reads", State.OK, "streams are read by compiled code")
    if os.environ.get(DISABLED_BY) == "0":
        return Symptom("reads", State.WARN, f"streams are read in Python: {DISABLED_BY}=0", f"unset {DISABLED_BY}")
    found = "streams are read in Python, at more processor time a token"
    if sys.platform != "linux":
        return Symptom("reads", State.WARN, found, "measure from Linux, where many streams must be read")
    return Symptom("reads", State.WARN, found, "install a C compiler (`cc`), then install benchgate again from source")


_FEW_FILES = 4096


def _open_files() -> Symptom:
    """Every stream is an open file; the load generator raises its own limit as far as the hard one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard >= _FEW_FILES:
        return Symptom("open files", State.OK, "no limit" if hard == resource.RLIM_INFINITY else f"at most {hard:,}")
    remedy = f"raise the hard limit (`ulimit -Hn`, or `nofile` in limits.conf) to {_FEW_FILES:,} or more"
    return Symptom("open files", State.WARN, f"at most {hard:,}: fewer streams than a large stage has", remedy)


_SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit")
_COARSE_S = 1e-6


def _clock() -> Symptom:
    resolution_s = time.get_clock_info("monotonic").resolution
    source = _read("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    found = f"steps of {show_duration(resolution_s)}" + (f", from {source}" if source else "")
    if resolution_s > _COARSE_S or source in _SLOW_CLOCKS:
        remedy = "let the kernel use a counter of the processor (clocksource tsc, kvm-clock or arch_sys_counter)"
        return Symptom("clock", State.WARN, found, remedy)
    return Symptom("clock", State.OK, found)


def _governor() -> Symptom:
    governor = _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    if governor is None:
        return Symptom("cpu governor", State.OK, "the system does not show one")
    if governor == "performance":
        return Symptom("cpu governor", State.OK, governor)
    remedy = "a processor that sleeps between events answers them late: `cpupower frequency-set -g performance`"
    return Symptom("cpu governor", State.WARN, governor, remedy)


def _load() -> Symptom:
    cpus, load = usable_cpus(), os.getloadavg()[0]
    found = f"{cpus} usable, load average {show_number(load)} over the last minute"
    if cpus < 2:
        return Symptom(
            "cores", State.WARN, found, "with one core the load generator and a server here take turns; use two"
        )
    if load > cpus / 2:
        return Symptom("cores", State.WARN, found, "stop what else runs here, or measure from another machine")
    return Symptom("cores", State.OK, found)


def _stamps() -> Symptom:
    refusal = audit_refusal(ServerAddress.of("http://127.0.0.1"))
    if refusal is None:
        return Symptom(
            "kernel stamps", State.OK, "the kernel stamps what arrives: `audit` can check the client's reads"
        )
    return Symptom(
        "kernel stamps", State.WARN, refusal, "measure from Linux, over http, where the client must be audited"
    )


def _evals() -> Symptom:
    return _extra("lm-eval", "lm_eval", "eval", "suites with `quality`")


def _embedded_engine() -> Symptom:
    return _extra("embedded engine", "xllamacpp", "demo", "`benchgate demo` and embedded deployments")


def _cluster() -> Symptom:
    return _extra("cluster", "distributed", "cluster", "load from several machines (`--cluster`)")


def _postgres() -> Symptom:
    return _extra("postgres", "psycopg", "postgres", "a store in Postgres")


def _tokenizers() -> Symptom:
    return _extra("tokenizers", "tokenizers", "tokenizer", "workloads with a `tokenizer` file")


def _extra(name: str, module: str, extra: str, needed_by: str) -> Symptom:
    if importlib.util.find_spec(module) is not None:
        return Symptom(name, State.OK, f"{module} is installed")
    return Symptom(name, State.WARN, f"{module} is not installed", lacking(f"needed for {needed_by}", extra))


def _kept(store: str) -> list[Symptom]:
    """The store, and what it knows of this machine's load generator. A store that is not there yet is no fault."""
    try:
        path = Address.parse(store).path
        if path is not None and not path.exists():
            return [Symptom("store", State.OK, f"{path} does not exist yet; the first run makes it"), _unmeasured()]
        opened = Store.open_as_is(store)
        if opened is None:
            return [_outdated(store), _unmeasured()]
        with opened:
            profile = known_client(opened)
    except BenchgateError as error:
        return [Symptom("store", State.FAIL, str(error), "correct --store or BENCHGATE_STORE")]
    known = Symptom("store", State.OK, f"{Address.parse(store).shown} opens")
    return [known, _unmeasured() if profile is None else _able(profile)]


def _outdated(store: str) -> Symptom:
    found = f"{Address.parse(store).shown} does not have this version's schema"
    return Symptom("store", State.WARN, found, "`benchgate store upgrade` brings it there")


def _able(profile: ClientProfile) -> Symptom:
    if profile.tokens_per_s is None or profile.requests_per_s is None:
        kind = "streams" if profile.tokens_per_s is None else "requests"
        remedy = "measure again while nothing else runs here: `benchgate doctor --client`"
        return Symptom("load generator", State.WARN, f"no load of {kind} was sound when it was measured", remedy)
    tokens = f"{show_number(profile.tokens_per_s)} tokens/s, {profile.streams:,} streams"
    found = f"{tokens} and {show_number(profile.requests_per_s)} requests/s per worker"
    return Symptom("load generator", State.OK, f"{found}, measured {profile.measured_at[:10]}")


def _unmeasured() -> Symptom:
    remedy = "measure it once, while nothing else runs here: `benchgate doctor --client`"
    return Symptom("load generator", State.WARN, "what it can deliver on this machine was never measured", remedy)


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
