"""CPU of starting commands, beside a bare Python and a bare typer application.

    .venv/bin/python -m benchmarks.startup --store STORE [--repeats 5]
    .venv/bin/python -m benchmarks.startup --mistakes [--repeats 5]

STORE is a store with at least one run; it is copied. `load` and `run` are sent to practice servers, whose CPU does not
count. Of `run` everything up to the first request counts, of the command and of its children. The commands take turns,
and the least CPU time of each counts, user and system: other work on the machine only adds. Exits with 1 when a bound
is missed.

`--mistakes` measures the mistakes of a new user instead (tests/e2e/test_new_user.py). They send nothing. Those that the
command line, the suite or a file of waivers shows are bounded by 0.4 s; the others read a store, data files or a plan.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from pathlib import Path

from benchgate.model.verdict import Outcome
from benchgate.sim.process import serve_sim
from benchgate.sim.settings import sim_settings
from tests.e2e.test_new_user import MISTAKES, make_world, prepared

_SIM = sim_settings(ttft_s=0.01, itl_s=0.001)
_TYPER = "import typer; app = typer.Typer(); app.command()(lambda: None); app()"
_SUITE = """\
suite: startup
deployments:
  base: {{url: "{base}", model: "{model}", engine: vllm}}
  new: {{url: "{new}", model: "{model}", engine: vllm}}
baseline: base
candidate: new
load:
  blocks: 4
  workload: {{input: 20, output: 4}}
  sweep:
    - {{stage: c2, concurrency: 2, requests: 8}}
gate:
  checks:
    - {{metric: {metric}, margin: 50%}}
    - {{metric: error_rate, max: 50%}}
"""
_POLL_S = 0.005
_MISTAKE_S = 0.4
_READ = {
    "rate that this machine cannot send": "plan, store",
    "new store with a typo": "plan, store",
    "data as CSV": "data files",
    "data with a typo": "data files",
    "empty data": "data files",
    "no such data": "data files",
    "no such bundle": "bundle",
    "bundle to import": "bundle",
    "statement of another suite": "statement",
    "verification of a report": "statement",
    "verdict server at a foreign address": "store",
    **dict.fromkeys(
        (
            "resume of a complete run",
            "resume of nothing",
            "promotion of a blocked run",
            "promotion of a partial run",
            "unknown check",
            "store of a newer benchgate",
            "store of another kind",
            "store in a folder",
            "store that is no store",
            "fleet by a partial run",
            "frontier of a mistyped suite",
            "trend of an unknown stage",
            "prefix of two ids",
            "run against itself",
        ),
        "store",
    ),
}  # what must be read before a mistake can be seen, beside the command line, the suite and a file of waivers
_NOT_REFUSED = ("expired waiver", "lm-eval not installed")  # one judges a run, one needs another installation
_USAGE = 2  # the exit code of refused arguments
_VERDICTS = tuple(sorted({int(outcome.exit_code()) for outcome in Outcome}))


def main() -> int:
    """Measure every command in turns and print the least CPU time of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--store", type=Path, help="SQLite store with a run")
    what.add_argument("--mistakes", action="store_true", help="measure the mistakes of a new user")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    if options.mistakes:
        return _measure_mistakes(options.repeats)
    with tempfile.TemporaryDirectory() as scratch, serve_sim(_SIM) as base, serve_sim(_SIM) as new:
        folder = Path(scratch)
        store = folder / "copy.db"
        shutil.copyfile(options.store, store)
        for name, metric in (("suite", "ttft"), ("mistake", "tftt")):
            text = _SUITE.format(base=base.url, new=new.url, model=_SIM.model, metric=metric)
            (folder / f"{name}.yaml").write_text(text)
        of_store = ("--store", str(store))
        load = ["load", base.url, "--model", _SIM.model, "--concurrency", "1", "--requests", "1", "--warmup", "0"]
        suite, mistake = str(folder / "suite.yaml"), str(folder / "mistake.yaml")
        commands: dict[str, tuple[Callable[[], float], float | None]] = {
            "python -c pass": (lambda: _python_s("-c", "pass"), None),
            "a bare typer application": (lambda: _python_s("-c", _TYPER), None),
            "--help": (lambda: _benchgate_s("--help"), None),
            "a wrong option": (lambda: _benchgate_s("gate", "--nosuch", refused=True), 0.4),
            "a store that is missing": (lambda: _benchgate_s("gate", "--store", "none.db", refused=True), 0.4),
            "an unknown run": (lambda: _benchgate_s("gate", "nosuch", *of_store, refused=True), 0.4),
            "an unknown run to publish": (
                lambda: _benchgate_s("publish", "nosuch", "--comment", *of_store, refused=True),
                0.4,
            ),
            "an unknown metric": (lambda: _benchgate_s("trend", "ttfts", *of_store, refused=True), 0.4),
            "load, unit missing": (lambda: _benchgate_s(*load, "--think-time", "2", refused=True), 0.4),
            "plan, mistake in the suite": (lambda: _benchgate_s("plan", mistake, refused=True), 0.8),
            "plan": (lambda: _benchgate_s("plan", suite), 1.2),
            "gate": (lambda: _python_s("-m", "benchgate", "gate", "@latest", *of_store, codes=_VERDICTS), 1.0),
            "load, one request": (lambda: _benchgate_s(*load), 0.7),
            "run, to the first request": (lambda: _first_request_s(suite, folder, base.truth), 1.0),
        }
        least = dict.fromkeys(commands, float("inf"))
        for _ in range(options.repeats):
            for name, (measure, _bound) in commands.items():
                least[name] = min(least[name], measure())
    bare_s = least["a bare typer application"]
    print(f"{'':28}  CPU s   bare typer   bound")
    missed = 0
    for name, (_measure, bound_s) in commands.items():
        limit_s = 2 * bare_s if name == "--help" else bound_s
        missed += limit_s is not None and least[name] > limit_s
        shown = "" if limit_s is None else f"{limit_s:.2f}"
        print(f"{name:28}  {least[name]:5.2f}  {least[name] / bare_s:10.1f}x   {shown}")
    return int(missed > 0)


def _measure_mistakes(repeats: int) -> int:
    """Print the least CPU time of each mistake, the slowest first, and of a bare Python."""
    with tempfile.TemporaryDirectory() as scratch:
        world = make_world(Path(scratch))
        refused = [one for one in MISTAKES if one.code != 0 and one.name not in _NOT_REFUSED]
        least = {mistake.name: float("inf") for mistake in refused}
        bare_s = float("inf")
        for _ in range(repeats):
            bare_s = min(bare_s, _python_s("-c", "pass"))
            for mistake in refused:
                words = prepared(world, mistake, world.names)
                used_s = _python_s("-m", "benchgate", *words, codes=(mistake.code,), folder=world.folder)
                least[mistake.name] = min(least[mistake.name], used_s)
    commands = {mistake.name: mistake.command for mistake in MISTAKES}
    for name, used_s in sorted(least.items(), key=lambda one: -one[1]):
        print(f"{used_s:5.2f}  {name:40}  {_READ.get(name, ''):12}  benchgate {commands[name][:60]}")
    bounded = {name: used_s for name, used_s in least.items() if name not in _READ}
    slow = [name for name, used_s in bounded.items() if used_s > _MISTAKE_S]
    print(f"{len(bounded)} bounded mistakes, {len(slow)} over {_MISTAKE_S} s; a bare Python takes {bare_s:.2f} s")
    return int(bool(slow))


def _benchgate_s(*arguments: str, refused: bool = False) -> float:
    return _python_s("-m", "benchgate", *arguments, codes=(_USAGE if refused else 0,))


def _python_s(*arguments: str, codes: Collection[int] = (0,), folder: Path | None = None) -> float:
    """Run Python once; return the CPU time of the process and of the children that it waited for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command, environment = [sys.executable, *arguments], _environment()
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in codes:
        raise SystemExit(f"{' '.join(arguments)} ended with {done.returncode}:\n{done.stderr}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _first_request_s(suite: str, folder: Path, truth: Callable[[], dict[str, object]]) -> float:
    """Start a run; return the CPU time of its processes when the server has answered the first request. End the run."""
    before = truth()["requests"]
    with tempfile.TemporaryDirectory(dir=folder) as work:
        command = [sys.executable, "-m", "benchgate", "run", suite, "--store", f"{work}/run.db", "--work-dir", work]
        with subprocess.Popen(command, env=_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
            while truth()["requests"] == before and run.poll() is None:
                time.sleep(_POLL_S)
            if run.poll() is not None:
                raise SystemExit(f"`run` ended with {run.returncode} before its first request")
            used_s = sum(map(_cpu_s, [run.pid, *_descendants(run.pid)]))
            run.terminate()
    return used_s


def _environment() -> dict[str, str]:
    """Return the environment with compiled modules kept, as an installation has them."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _cpu_s(pid: int) -> float:
    """Return the CPU time of a process and of the children that it waited for (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _descendants(pid: int) -> list[int]:
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [*children, *(one for child in children for one in _descendants(child))]


if __name__ == "__main__":
    sys.exit(main())
