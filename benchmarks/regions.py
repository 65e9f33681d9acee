"""Does a region's own way to the server show in its own figures alone, and what does a far clock do?

    .venv/bin/python -m benchmarks.regions [--update] [--json] [--busy]

Two regions of one worker each send the load of a suite. Between the worker of `far` and the servers stands a proxy of
30 ms each way; both schedulers are near their workers. All find the servers by one name, which the worker of `far`
resolves to the proxy: it has a hosts file of its own (util-linux's `unshare`). In a second run the scheduler of `far`
is 30 ms away from its worker too, so that only a round trip bounds the worker's clock, and the stage is a burst.
`--update` writes the table to docs/scale.md. `--busy` widens the bounds of the load generator, for a machine that
others use too: what is late there is late for both regions.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchgate.gate.comparison import load_of
from benchgate.model.deployment import Arm
from benchgate.model.request_metrics import ttft_s
from benchgate.model.run import merged_addresses
from benchgate.sim.process import serve_sim
from benchgate.store.repository import Store
from benchgate.suite.simulator import SimSettings
from benchmarks.launchers import ROOT, await_port, daemon, free_port
from benchmarks.tables import in_table, write_table
from tests.fakes.slow_way import SlowWay

PAGE = ROOT / "docs" / "scale.md"
NAME = "gpu.test"
ADDRESSES = {"near": "127.0.0.1", "far": "127.0.0.2"}  # of NAME
ONE_WAY_S = 0.03
STEADY = {"stage": "steady", "rate": "20/s", "requests": 60}
BURST = {"stage": "burst", "rate": "8/s", "for": "4s", "bursts": {"factors": [3], "every": "2s", "for": "1s"}}
BUSY = {"send_lag_p99": "1s", "send_lag_max": "1s", "read_delay_p99": "1s", "read_delay_max": "1s", "cpu": "100%"}
_INSIDE = "--inside"
_WITHIN_MS = 10.0


@dataclass(frozen=True)
class Region:
    """Median TTFT in ms by arm, and the addresses of the servers that its worker connected to."""

    ttft_ms: Mapping[str, float]
    connected: Sequence[str]


@dataclass(frozen=True)
class Measured:
    """Verdict of a run and its regions."""

    outcome: str
    reason: str
    regions: Mapping[str, Region]


def isolated() -> int:
    """Run this module once more where the hosts file may be replaced. Raises SystemExit where `unshare` cannot."""
    tool = shutil.which("unshare")
    if tool is None:
        sys.exit("needs unshare (Debian: util-linux)")
    with tempfile.TemporaryDirectory() as folder:
        for region, address in ADDRESSES.items():
            (Path(folder) / region).write_text(f"{address} {NAME}\n127.0.0.1 localhost\n")
        own = [sys.executable, "-m", "benchmarks.regions", _INSIDE, folder, *sys.argv[1:]]
        command = [tool, *([] if os.geteuid() == 0 else ["-r"]), "-m", *_with_hosts(Path(folder) / "near", own)]
        return subprocess.run(command, cwd=ROOT, check=False).returncode


def _with_hosts(hosts: Path, command: Sequence[str]) -> list[str]:
    return ["sh", "-c", 'mount --bind "$1" /etc/hosts && shift && exec "$@"', "sh", str(hosts), *command]


def measure(stage: Mapping[str, Any], hosts: Path, client: Mapping[str, str], *, far_clock: bool = False) -> Measured:
    """Measure a stage from both regions, and judge it with these bounds of the load generator.

    With `far_clock` a slow way lies before the worker of `far` too.
    """
    with ExitStack() as stack, tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        settings = SimSettings.model_validate({"ttft": "80ms", "itl": "2ms"})
        sims = {name: stack.enter_context(serve_sim(settings)) for name in ("now", "next")}
        for sim in sims.values():
            stack.enter_context(SlowWay("127.0.0.1", sim.port, ONE_WAY_S, at=ADDRESSES["far"], at_port=sim.port))
        regions = {name: stack.enter_context(_cluster(folder, hosts, name, far_clock)) for name in ADDRESSES}
        suite = {
            "suite": "regions",
            "deployments": {
                name: {"url": f"http://{NAME}:{sim.port}", "model": "sim", "engine": "vllm", "metrics": "off"}
                for name, sim in sims.items()
            },
            "baseline": "now",
            "candidate": "next",
            "load": {
                "workload": {"input": "20 tokens", "output": "8 tokens"},
                "regions": regions,
                "sweep": [stage],
                "blocks": 3,
                "warmup": 8,
            },
            "gate": {
                "checks": [{"metric": "ttft", "margin": "20%"}, {"metric": "error_rate", "max": "5%"}],
                "allow_underpowered": True,
                "client": dict(client),
            },
        }
        (folder / "suite.yaml").write_text(yaml.safe_dump(suite))
        run = [sys.executable, "-m", "benchgate", "run", "suite.yaml", "--format", "json"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(run, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        if not done.stdout:
            raise RuntimeError(done.stderr[-2000:])
        verdict = json.loads(done.stdout)
        with Store.open(str(folder / ".benchgate" / "benchgate.db"), create=False) as store:
            evidence = store.evidence(store.runs(limit=1)[0].id)
    known = merged_addresses(one.client.addresses for one in evidence.load)
    found = {}
    for region in ADDRESSES:
        name = f"{stage['stage']}@{region}"
        medians = {}
        for arm in Arm:
            times = np.concatenate([ttft_s(one.requests) for one in load_of(evidence, name, arm).values()])
            medians[arm.value] = round(float(np.median(times)) * 1000, 1)
        addresses = {address for one in known if one.region == region for address in one.connected}
        found[region] = Region(medians, sorted(addresses))
    return Measured(verdict["outcome"], verdict["reason"], found)


@contextlib.contextmanager
def _cluster(folder: Path, hosts: Path, region: str, far_clock: bool) -> Iterator[str]:
    """Start a scheduler and a worker with the hosts file of a region; yield the scheduler's address."""
    port = free_port()
    base = [sys.executable, "-m"]
    place = ["--host", "127.0.0.1", "--no-dashboard"]
    worker = [*base, "distributed.cli.dask_worker", f"tcp://127.0.0.1:{port}", "--nthreads", "1", "--no-nanny"]
    worker += ["--no-dashboard", "--local-directory", str(folder / region)]
    with ExitStack() as stack:
        if region == "far" and far_clock:
            own = free_port()
            way = stack.enter_context(SlowWay("127.0.0.1", own, ONE_WAY_S))
            worker += ["--listen-address", f"tcp://127.0.0.1:{own}", "--contact-address", f"tcp://127.0.0.1:{way.port}"]
        else:
            worker += ["--host", "127.0.0.1"]
        stack.enter_context(daemon([*base, "distributed.cli.dask_scheduler", *place, "--port", str(port)]))
        await_port(port)
        stack.enter_context(daemon(["unshare", "-m", *_with_hosts(hosts / region, worker)]))
        yield f"tcp://127.0.0.1:{port}"


def main() -> int:
    """Measure, print, and exit with 1 unless `far` alone is 60 ms slower in a valid run, and INVALID in a burst."""
    if _INSIDE not in sys.argv:
        return isolated()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(_INSIDE, type=Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--update", action="store_true", help="write the table to docs/scale.md")
    parser.add_argument("--busy", action="store_true", help="widen the bounds of the load generator")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    args = parser.parse_args()
    client = BUSY if args.busy else {}
    steady = measure(STEADY, args.inside, client)
    print(f"steady: {steady}", file=sys.stderr, flush=True)
    burst = measure(BURST, args.inside, client, far_clock=True)
    if args.json:
        print(json.dumps({"steady": asdict(steady), "burst": asdict(burst)}))
    rows, over_ms = [], dict[str, float]()
    for name, region in steady.regions.items():
        baseline, candidate = (region.ttft_ms[arm.value] for arm in Arm)
        over_ms[name] = statistics.mean(
            region.ttft_ms[arm] - steady.regions["near"].ttft_ms[arm] for arm in region.ttft_ms
        )
        times = (f"{baseline:.1f}", f"{candidate:.1f}", f"{candidate - baseline:+.1f}", f"{over_ms[name]:+.1f}")
        rows.append((name, ", ".join(region.connected), *times))
    head = ("region", "server's address", "TTFT p50 of the baseline, ms", "candidate", "difference", "over `near`")
    table = "\n".join(in_table(head, rows))
    if not args.json:
        print(f"{table}\n\nsteady: {steady.outcome}. {steady.reason}\nburst: {burst.outcome}. {burst.reason}")
    if args.update:
        write_table("regions", table, PAGE)
    valid = steady.outcome in ("PASS", "WARN") and abs(over_ms["far"] - 2000 * ONE_WAY_S) < _WITHIN_MS
    return int(not (valid and burst.outcome == "INVALID" and "(far)" in burst.reason))


if __name__ == "__main__":
    sys.exit(main())
