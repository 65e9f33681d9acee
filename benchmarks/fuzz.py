"""Fuzz every reader of untrusted input for a time, and keep each input on which it crashes, is slow or takes memory.

.venv/bin/python -m benchmarks.fuzz [--minutes 30] [--only TARGET ...] [--engine atheris|hypothesis] [--folder .fuzz]

Targets are in `fuzz_targets.py`. Atheris follows the branches that an input reaches; install it beside the profile dev
with `pip install --require-hashes -r requirements/fuzz.txt`. Without it, Hypothesis draws the mutations. Minutes are
CPU time for each target, one after another, each in a process of its own. Inputs that reach something new stay in
FOLDER/corpus, and the next call goes on from them. A crash is an exception that is no documented refusal, more than 5 s
of CPU time or 2 GiB of memory for one input. Each is written once to FOLDER/crashes/TARGET: move it to
tests/fixtures/fuzz/TARGET, where a test reads it from then on. Exits with 1 if there was any.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.util
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.fuzz_targets import Target

NAMES = ("sse", "http", "suite", "units", "importers", "bundles", "prometheus", "report", "request-log")
MOST_CPU_S = 5.0
MOST_BYTES = 2 * 2**30
_MEMORY_FOLDER = Path("/dev/shm")
_ROUND = 500  # examples that Hypothesis makes from one seed


class TooSlow(BaseException):
    """An input took more CPU time than allowed. No reader catches it."""


@contextmanager
def bounded(cpu_s: float = MOST_CPU_S) -> Iterator[None]:
    """Raise TooSlow if the block takes more CPU time. For the main thread."""

    def expire(_signal: int, _frame: FrameType | None) -> None:
        raise TooSlow(f"more than {cpu_s:g} s of CPU time for one input")

    before = signal.signal(signal.SIGPROF, expire)
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


class Session:
    """Inputs tried on one target: their number, the CPU time and the crashes, each place in the code once."""

    def __init__(self, target: Target, crashes: Path, cpu_s: float, most_cpu_s: float = MOST_CPU_S) -> None:
        self.target, self.inputs = target, 0
        self._crashes, self._cpu_s, self._most_cpu_s = crashes, cpu_s, most_cpu_s
        self._found: dict[str, str] = {}

    @property
    def is_over(self) -> bool:
        """Return True if the CPU time is used up."""
        return time.process_time() >= self._cpu_s

    def try_input(self, data: bytes) -> None:
        """Read an input; write it down if that crashes where none did before."""
        self.inputs += 1
        try:
            with bounded(self._most_cpu_s):
                self.target.read(data)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever a reader raises is a finding
            place = _place_of(error)
            if place in self._found:
                return
            self._found[place] = f"{type(error).__name__}: {str(error)[:200]}"
            name = hashlib.sha256(data).hexdigest()[:16]
            self._crashes.mkdir(parents=True, exist_ok=True)
            (self._crashes / name).write_bytes(data)
            text = "".join(traceback.format_exception(error, limit=-12))
            (self._crashes / f"{name}.txt").write_text(text, encoding="utf-8", errors="backslashreplace")

    def summary(self) -> dict[str, Any]:
        """Return the result as plain JSON."""
        minutes = time.process_time() / 60
        return {"target": self.target.name, "inputs": self.inputs, "minutes": minutes, "crashes": self._found}


def _place_of(error: BaseException) -> str:
    """Return the kind of an error and the innermost line of benchgate that it passed."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/benchgate/" in frame.filename] or list(frames)
    return f"{type(error).__name__} in {Path(own[-1].filename).name}:{own[-1].lineno}" if own else type(error).__name__


def by_hypothesis(session: Session, seed: int) -> None:
    """Draw mutations of the seeds until the time is over."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as with_seed
    from hypothesis import strategies as st
    from hypothesis.errors import Flaky

    seeds = session.target.seeds()
    for data in seeds:
        session.try_input(data)

    @settings(
        max_examples=_ROUND,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.sampled_from(seeds), st.randoms(use_true_random=False), st.integers(1, 3))
    def search(data: bytes, drawn: random.Random, times: int) -> None:
        if session.is_over:
            return
        for _ in range(times):
            data = session.target.mutate(data, drawn)
        session.try_input(data)

    while not session.is_over:
        try:
            with_seed(seed)(search)()
        except Flaky:  # where the time is over, the same draws end earlier than before
            if not session.is_over:
                raise
        seed += 1


def by_atheris(session: Session, corpus: Path, seed: int, end: Callable[[], None]) -> None:
    """Follow new branches until the time is over. Never returns: libFuzzer ends the process, after `end`."""
    import atheris

    corpus.mkdir(parents=True, exist_ok=True)
    for data in session.target.seeds():
        (corpus / hashlib.sha1(data, usedforsecurity=False).hexdigest()).write_bytes(data)

    def read(data: bytes) -> None:
        session.try_input(data)
        if session.is_over:
            end()
            os._exit(0)

    def mutate(data: bytes, most: int, number: int) -> bytes:
        drawn = random.Random(number)
        made: bytes = session.target.mutate(data, drawn)
        return made[:most]

    # Its own limits would end the process: `try_input` has limits for one input, and goes on after them.
    options = ["-max_len=1048576", "-timeout=1000000", "-rss_limit_mb=0", "-verbosity=0", f"-seed={seed}"]
    options.append(f"-artifact_prefix={corpus.parent}/died-{session.target.name}-")
    atheris.Setup([sys.argv[0], *options, str(corpus)], read, custom_mutator=mutate)
    atheris.Fuzz()


def _load_target(name: str, *, instrumented: bool) -> Target:
    if not instrumented:
        return importlib.import_module("benchmarks.fuzz_targets").TARGETS[name]  # type: ignore[no-any-return]
    import atheris

    with atheris.instrument_imports(include=["benchgate"]):
        return importlib.import_module("benchmarks.fuzz_targets").TARGETS[name]  # type: ignore[no-any-return]


def _run_one(arguments: argparse.Namespace) -> None:
    """Fuzz one target in this process, and write the result to the file that the parent reads."""
    target = _load_target(arguments.child, instrumented=arguments.engine == "atheris")
    if _MEMORY_FOLDER.is_dir():
        tempfile.tempdir = str(_MEMORY_FOLDER)  # readers of files and stores would wait for the disk most of the time
    session = Session(target, arguments.folder / "crashes" / target.name, arguments.minutes * 60)
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + MOST_BYTES, resource.RLIM_INFINITY))

    def end() -> None:
        _result_file(arguments.folder, target.name).write_text(json.dumps(session.summary()))

    if arguments.engine == "atheris":
        by_atheris(session, arguments.folder / "corpus" / target.name, arguments.seed, end)
    else:
        by_hypothesis(session, arguments.seed)
        end()


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _result_file(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"


def run_target(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Fuzz one target in a process of its own. A process that dies is a crash too."""
    result = _result_file(arguments.folder, name)
    result.unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks.fuzz", "--child", name, "--engine", arguments.engine]
    command += ["--minutes", str(arguments.minutes), "--seed", str(arguments.seed), "--folder", str(arguments.folder)]
    with (arguments.folder / f"{name}.log").open("wb") as log:
        # Each thread of a reader would reserve 64 MiB of addresses for its own memory, and the process has a limit.
        environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}
        ended = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, env=environment, check=False)
    if result.exists():
        found: dict[str, Any] = json.loads(result.read_text())
        return found
    reason = f"the process ended with {ended.returncode}; see {arguments.folder / f'{name}.log'}"
    return {"target": name, "inputs": 0, "minutes": 0.0, "crashes": {"process": reason}}


def main() -> int:
    """Fuzz the targets one after another and print a line for each."""
    has_atheris = importlib.util.find_spec("atheris") is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=30.0, help="CPU time for each target")
    parser.add_argument("--only", action="append", choices=NAMES, help="a target; may be given several times")
    parser.add_argument(
        "--engine", choices=("atheris", "hypothesis"), default="atheris" if has_atheris else "hypothesis"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path(".fuzz"), help="corpus, crashes and logs")
    parser.add_argument("--child", choices=NAMES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.child:
        _run_one(arguments)
        return 0
    crashed = False
    for name in arguments.only or NAMES:
        found = run_target(name, arguments)
        crashed |= bool(found["crashes"])
        print(
            f"{name}: {found['inputs']:,} inputs in {found['minutes']:.1f} CPU minutes by {arguments.engine}, "
            f"{len(found['crashes'])} crashes",
            flush=True,
        )
        for place, what in found["crashes"].items():
            print(f"  {place}: {what}", flush=True)
    return int(crashed)


if __name__ == "__main__":
    sys.exit(main())
