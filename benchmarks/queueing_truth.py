"""Is the TTFT of an open-loop stage that of the steady state? M/D/c and M/M/c at 50, 80 and 95 % use.

    .venv/bin/python -m benchmarks.queueing_truth [--ramp 5] [--requests 600] [--only mdc mmc] [--use 50 80 95]
    .venv/bin/python -m benchmarks.queueing_truth --bias

The practice server is a queue of 4 servers, whose service of 100 ms is constant or exponential and makes one token, so
TTFT is wait plus service. The truth are the same arrivals and the same services, the ramp's included, simulated by the
recursion of Kiefer and Wolfowitz from a queue in steady state: from many such queues, each the end of an independent
past, and the mean of their quantiles. What is left is what the stage did not reach of the steady state, and what
server, network and client add. Exits 1 when p50, p95 or p99 is more than 3 % away.

At 50 and 80 % use the stage has the suite's default ramp; at 95 % the queue fills so slowly that it needs a longer one.
`--bias` shows how long: it needs no server, and simulates how far quantiles of a stage that begins empty
are from the steady state, by its ramp.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchgate.model import request_metrics
from benchgate.model.run import LoadObservation
from benchgate.pipeline.progress import Progress
from benchgate.pipeline.run import RunOptions, run_suite
from benchgate.sim.process import serve_sim
from benchgate.sim.settings import sim_settings
from benchgate.suite.loader import parse_suite
from benchmarks.lies import OWN_MACHINE
from benchmarks.tables import in_table

Seconds = npt.NDArray[np.float64]

SERVICE_S = 0.1
SERVERS = 4
LAWS = {"mdc": "constant", "mmc": "exponential"}
LONG_RAMPS = {("mdc", 95): 400, ("mmc", 95): 800}
"""Service times after which a queue that began empty is within 1 % of its steady state, where 5 are too few."""
QUANTILES = (0.5, 0.95, 0.99)
PASTS = 200  # independent queues in steady state
PAST = 20_000  # arrivals of each
BAR = 0.03


def drawn_services_s(law: str, shape: tuple[int, ...], rng: np.random.Generator) -> Seconds:
    """Draw services of a law."""
    return rng.exponential(SERVICE_S, shape) if law == "mmc" else np.full(shape, SERVICE_S)


def waits_s(gaps_s: Seconds, services_s: Seconds, work_s: Seconds) -> Iterator[Seconds]:
    """Yield the wait of each arrival for every queue at once, by the recursion of Kiefer and Wolfowitz (1955).

    `gaps_s` and `services_s` are of arrivals by queues, or by 1 where all queues have the same. `work_s` is what each
    server of each queue has left at the arrival before, sorted, and is brought up to date in place.
    """
    for gap_s, service_s in zip(gaps_s, services_s, strict=True):
        np.maximum(work_s - gap_s[:, None], 0, out=work_s)
        wait_s = work_s[:, 0].copy()
        work_s[:, 0] += service_s
        work_s.sort(axis=1)
        yield wait_s


def steady_queues(law: str, rate_rps: float, rng: np.random.Generator) -> Seconds:
    """Return what servers have left to do in queues that have been running for long."""
    work_s = np.zeros((PASTS, SERVERS))
    for _ in range(0, PAST, 1000):
        gaps_s = rng.exponential(1 / rate_rps, (1000, PASTS))
        for _ in waits_s(gaps_s, drawn_services_s(law, (1000, PASTS), rng), work_s):
            pass
    return work_s


def quantiles_s(gaps_s: Seconds, services_s: Seconds, work_s: Seconds, ramp: int) -> Seconds:
    """Return TTFT quantiles of all arrivals after the ramp: their mean over the queues."""
    ttft_s = np.array([*waits_s(gaps_s, services_s, work_s.copy())]) + services_s
    return np.asarray(np.quantile(ttft_s[ramp:], QUANTILES, axis=0).mean(axis=1))


def measured(law: str, rate_rps: float, requests: int, ramp: float | None) -> Iterator[tuple[Seconds, Seconds]]:
    """Run the stage; yield for each of two blocks the measured TTFT quantiles and their truth."""
    costs = sim_settings(service_s=SERVICE_S, servers=SERVERS, service_law=LAWS[law], service_until="last-token")
    stage = {"stage": "open", "rate": f"{rate_rps:g}/s", "requests": requests} | (
        {} if ramp is None else {"ramp": ramp}
    )
    with tempfile.TemporaryDirectory() as scratch, serve_sim(costs) as sim:
        suite = {
            "suite": "queue", "baseline": "queue", "candidate": "queue",
            "deployments": {"queue": {"url": sim.url, "model": "sim", "engine": "vllm"}},
            "load": {"workload": {"input": 8, "output": 1}, "blocks": 2, "sweep": [stage]},
            "gate": {"client": OWN_MACHINE, "checks": [{"metric": "error_rate", "max": "50%"}]},
        }  # fmt: skip
        options = RunOptions(str(Path(scratch) / "store.db"), Path(scratch))
        decision = run_suite(parse_suite(json.dumps(suite), "queue.yaml"), Path(scratch), options, Progress())
        rows = sorted(sim.truth(with_requests=True)["rows"], key=lambda row: row["received_ns"])
    received_ns = np.array([row["received_ns"] for row in rows])
    services_s = np.array([row["service_ns"] for row in rows]) / 1e9
    rng = np.random.default_rng([1, *law.encode(), round(rate_rps * 100)])
    steady = steady_queues(law, rate_rps, rng)
    for one in decision.evidence.load:
        yield _held_against_truth(one, received_ns, services_s, steady)


def _held_against_truth(
    one: LoadObservation, received_ns: npt.NDArray[np.int64], services_s: Seconds, steady: Seconds
) -> tuple[Seconds, Seconds]:
    ttft_s = request_metrics.ttft_s(one.requests)
    first_ns, last_ns = one.requests.intended_ns.min(), one.requests.intended_ns.max()
    due_ns = np.sort(np.concatenate([part.intended_ns for part in (one.requests, one.ramp)]))
    due_ns = due_ns[due_ns <= last_ns]
    at = _place_of(due_ns, received_ns)
    gaps_s = np.diff(due_ns, prepend=due_ns[0])[:, None] / 1e9
    services_s = services_s[at : at + len(due_ns), None]
    truth_s = quantiles_s(gaps_s, services_s, steady, int(np.searchsorted(due_ns, first_ns)))
    return np.quantile(ttft_s, QUANTILES), truth_s


def _place_of(due_ns: npt.NDArray[np.int64], received_ns: npt.NDArray[np.int64]) -> int:
    """Return where among all requests of the server those of a stage begin, by the gaps between them."""
    gaps = np.diff(due_ns)
    starts = range(len(received_ns) - len(due_ns) + 1)
    off_ns = [float(np.abs(np.diff(received_ns[at : at + len(due_ns)]) - gaps).mean()) for at in starts]
    if not off_ns or min(off_ns) > 0.2 * gaps.mean():
        sys.exit("the server did not receive the requests as they were due: the machine is too busy to tell")
    return int(np.argmin(off_ns))


def bias(laws: Sequence[str], uses: Sequence[int], requests: int) -> Iterator[tuple[str, ...]]:
    """Yield a row for each law, use and ramp: how far stages that begin empty are from the steady state."""
    for law in laws:
        for use in uses:
            rng = np.random.default_rng([2, *law.encode(), use])
            rate_rps = use / 100 * SERVERS / SERVICE_S
            steady = steady_queues(law, rate_rps, rng)
            for ramp in (0, 5, 20, 100, 400, 800):
                lead = round(ramp * SERVICE_S * rate_rps)
                shape = (lead + requests, PASTS)
                gaps_s, services_s = rng.exponential(1 / rate_rps, shape), drawn_services_s(law, shape, rng)
                true_s, seen_s = (
                    quantiles_s(gaps_s, services_s, work_s, lead) for work_s in (steady, np.zeros_like(steady))
                )
                yield law, f"{use} %", f"{ramp}", *(f"{100 * off:+.1f} %" for off in seen_s / true_s - 1)


def main() -> int:
    """Print measured quantiles beside the truth, and hold them against the bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bias", action="store_true", help="simulate alone: what ramps of a length leave")
    parser.add_argument(
        "--ramp", type=float, help="the stage's `ramp`, in service times; default: 5, at 95 %% use 400 or 800"
    )
    parser.add_argument("--requests", type=int, default=600, help="measured requests of each of two blocks")
    parser.add_argument("--only", nargs="+", choices=LAWS, default=list(LAWS))
    parser.add_argument("--use", nargs="+", type=int, default=[50, 80, 95], help="percentages")
    chosen = parser.parse_args()
    if chosen.bias:
        head = ("queue", "use", "ramp, service times", "p50", "p95", "p99")
        print("\n".join(in_table(head, bias(chosen.only, chosen.use, chosen.requests))))
        return 0
    worst, rows = 0.0, []
    for law in chosen.only:
        for use in chosen.use:
            rate_rps = use / 100 * SERVERS / SERVICE_S
            ramp = LONG_RAMPS.get((law, use)) if chosen.ramp is None else chosen.ramp
            for seen_s, truth_s in measured(law, rate_rps, chosen.requests, ramp):
                off = seen_s / truth_s - 1
                worst = max(worst, float(np.abs(off).max()))
                shown = (
                    f"{1e3 * s:.1f} / {1e3 * t:.1f} ({100 * o:+.1f} %)"
                    for s, t, o in zip(seen_s, truth_s, off, strict=True)
                )
                rows.append((law, f"{use} %", *shown))
                print("  ", *rows[-1], flush=True)
    print("\n".join(in_table(("queue", "use", "TTFT p50, ms / truth", "p95", "p99"), rows)))
    print(f"{'held' if worst <= BAR else 'MISSED'}: at most {100 * worst:.1f} % from the truth, bar {100 * BAR:g} %")
    return int(worst > BAR)


if __name__ == "__main__":
    sys.exit(main())
