"""Do stages of 64, 160 and 480 measured requests agree on goodput and TTFT p95? A closed loop that fills a queue.

    .venv/bin/python -m benchmarks.steady_sizes [--repeats 4]

16 requests in flight against a practice server that reads one prompt at a time, 60 ms each, and writes 100 tokens 10 ms
apart. In steady state hardly any request waits. The first 16 of a stage that all begin at once wait in line, and weigh
more the shorter the stage is. Exits 1 when 95 % intervals of two sizes do not meet: of goodput Clopper-Pearson, of
TTFT p95 order statistics over the requests, widened to t over the repeats, as a check of an SLO has them.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np

from benchgate.model import request_metrics
from benchgate.model.metric import Slo
from benchgate.model.records import RequestColumns
from benchgate.pipeline.progress import Progress
from benchgate.pipeline.run import RunOptions, run_suite
from benchgate.sim.process import serve_sim
from benchgate.sim.settings import sim_settings
from benchgate.stats.means import paired_t
from benchgate.stats.proportions import clopper_pearson
from benchgate.stats.quantiles import order_statistic_limits
from benchgate.suite.loader import parse_suite
from benchmarks.lies import OWN_MACHINE
from benchmarks.tables import in_table

SIZES = (64, 160, 480)
SLO = Slo(ttft_s=0.5)
_ALPHA = 0.025  # one-sided

Figure = tuple[float, float, float]
"""A value with its lower and upper limit."""


def measured(repeats: int) -> Iterator[tuple[int, RequestColumns]]:
    """Measure the stages; yield the size of each with its measured requests."""
    sweep = [{"stage": f"n{size}", "concurrency": 16, "requests": size} for size in SIZES]
    settings = sim_settings(service_s=0.06, itl_s=0.01)
    with tempfile.TemporaryDirectory() as scratch, serve_sim(settings) as sim:
        suite = {
            "suite": "sizes", "baseline": "queue", "candidate": "queue",
            "deployments": {"queue": {"url": sim.url, "model": "sim", "engine": "vllm"}},
            "load": {"workload": {"input": 20, "output": 100}, "blocks": repeats, "sweep": sweep},
            "gate": {"client": OWN_MACHINE, "checks": [{"metric": "error_rate", "max": "50%"}]},
        }  # fmt: skip
        options = RunOptions(str(Path(scratch) / "store.db"), Path(scratch))
        found = run_suite(parse_suite(json.dumps(suite), "sizes.yaml"), Path(scratch), options, Progress())
        for one in found.evidence.load:
            yield len(one.requests), one.requests


def figures(stages: Sequence[RequestColumns]) -> tuple[Figure, Figure]:
    """Return goodput (ratio) and TTFT p95 (s) of stages of one size, each with its 95 % limits."""
    good = np.concatenate([request_metrics.meets_slo(columns, SLO) for columns in stages])
    ttft_s = np.concatenate([request_metrics.ttft_s(columns) for columns in stages])
    share, p95 = clopper_pearson(int(good.sum()), len(good), _ALPHA), order_statistic_limits(ttft_s, 0.95, _ALPHA)
    if p95 is None:
        sys.exit(f"{len(ttft_s)} requests are too few for the limits of a p95; repeat the stages more often")
    each_s = [float(np.quantile(request_metrics.ttft_s(columns), 0.95)) for columns in stages]
    over = paired_t(np.array(each_s), _ALPHA)
    if over is None:
        sys.exit("repeat the stages at least twice: one says nothing of how much they vary")
    lower, upper = min(p95.lower, over.limits.lower), max(p95.upper, over.limits.upper)
    return (float(good.mean()), share.lower, share.upper), (float(np.quantile(ttft_s, 0.95)), lower, upper)


def _meet(one: Figure, other: Figure) -> bool:
    return one[1] <= other[2] and other[1] <= one[2]


def main() -> int:
    """Print both figures of each stage, and hold the sizes against each other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=4, help="stages of each size, at least 2")
    chosen = parser.parse_args()
    stages: defaultdict[int, list[RequestColumns]] = defaultdict(list)
    for size, columns in measured(chosen.repeats):
        stages[size].append(columns)
    found = {size: figures(stages[size]) for size in SIZES}
    rows = [
        (
            f"{size}",
            f"{100 * good:.1f} % ({100 * low:.1f} to {100 * high:.1f})",
            f"{1e3 * p95_s:.0f} ms ({1e3 * from_s:.0f} to {1e3 * to_s:.0f})",
        )
        for size, ((good, low, high), (p95_s, from_s, to_s)) in found.items()
    ]
    pairs = combinations(found.values(), 2)
    apart = sum(not _meet(a, b) for one, other in pairs for a, b in zip(one, other, strict=True))
    print("\n".join(in_table(("measured requests", "goodput", "TTFT p95"), rows)))
    print(f"MISSED: {apart} pairs of intervals do not meet" if apart else "held: all sizes agree")
    return int(apart > 0)


if __name__ == "__main__":
    sys.exit(main())
