"""How long does a site of a thousand runs take, and how long does the next build take when one run was added?

    .venv/bin/python -m benchmarks.site_scale [--runs 1000] [--kept 25] [--folder KEPT] [--profile]

Makes a store of so many whole runs of four suites: two stages of load of five blocks, twenty requests each, an eval of
sixty items, judged, one in ten promoted. Then their raw records go as `store gc` lets them go: the newest 25 of each
suite keep theirs, and so does what was promoted (`--kept 0`: all of them do). Builds the site of it, builds it again
unchanged, and once more with one run added; then builds it elsewhere from nothing and compares every byte. Beside
these, in the same process, the time that numpy takes to sort eight million integers, and how many reports there were,
which take nearly all of the time: it goes by them and by the number of cores. Exits 1 where a bar is missed (60 s for
1,000 runs, 3 s for the builds after it) or a byte differs. `--folder` keeps the store for the next time; `--profile`
tells where the time of twenty reports goes.
"""

from __future__ import annotations

import argparse
import cProfile
import hashlib
import json
import pstats
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchgate.gate.summary.metric_rows import metric_rows
from benchgate.model.deployment import Arm
from benchgate.model.history import Promotion, PromotionAction, PromotionGrounds, PromotionOrigin
from benchgate.model.run import RunStatus, new_run_id
from benchgate.pipeline.judge import decide_stored, report_html
from benchgate.site.build import Built, build
from benchgate.site.folder import MANIFEST
from benchgate.store.repository import Store
from benchgate.store.retention import Policy
from benchgate.suite.schema import Suite
from benchmarks.made_runs import answers, executions, run_of
from benchmarks.store_scale import yardstick_s

_MOST_BUILD_S, _MOST_AGAIN_S = 60.0, 3.0
_PLAN = b'{"blocks":[]}'
_BLOCKS, _REQUESTS, _ITEMS = 5, 20, 60
_STAGES = ("c4", "c16")
_PROMOTED_EVERY = 10


def made_suite(number: int) -> Suite:
    """One of four suites."""
    return Suite.model_validate(
        {
            "suite": f"suite-{number % 4}",
            "deployments": {
                "base": {"url": "http://base.invalid", "model": "m", "price": "$2/h"},
                "new": {"url": "http://new.invalid", "model": "m", "price": "$2/h"},
            },
            "baseline": "base",
            "candidate": "new",
            "slo": {"ttft": "500ms"},
            "load": {
                "workload": {"input": 32, "output": 3},
                "sweep": [{"stage": stage, "concurrency": 2, "requests": _REQUESTS} for stage in _STAGES],
                "blocks": _BLOCKS,
            },
            "quality": {"tasks": [{"task": "passages.yaml"}]},
            "gate": {
                "checks": [
                    {"metric": "ttft", "margin": "20%"},
                    {"metric": "output_throughput", "margin": "20%"},
                    {"metric": "goodput"},
                    {"metric": "accuracy", "margin": "30 points"},
                ]
            },
        }
    )


def add_run(store: Store, number: int) -> None:
    """One whole run, judged, a quarter of an hour after the one before; of every tenth that passes a promotion."""
    generator, suite = np.random.default_rng(number), made_suite(number)
    began = np.datetime64("2024-11-20T12:00:00.000") + np.timedelta64(15 * number, "m")
    run = replace(
        run_of(suite),
        id=new_run_id(1_732_104_000_000 + 900_000 * number, number.to_bytes(10, "big")),
        label=f"pr-{number}",
        plan_sha256=hashlib.sha256(_PLAN).hexdigest(),
        measurement_sha256=hashlib.sha256(suite.suite.encode()).hexdigest(),
        status=RunStatus.RUNNING,
        started_at=f"{began}Z",
        finished_at=None,
    )
    writer = store.begin_run(run, _PLAN)
    for at, stage in enumerate(_STAGES):
        ttft_s = 0.1 * (at + 1) * generator.lognormal(0, 0.05, (_BLOCKS, 2, _REQUESTS))
        for seen in executions(stage, ttft_s):
            writer.add(replace(seen, position=seen.position + 2 * _BLOCKS * at))
    for arm in Arm:
        writer.add(answers(arm, (generator.random(_ITEMS) < 0.8).tolist(), None))
    writer.finish(RunStatus.COMPLETE, f"{began + np.timedelta64(10, 'm')}Z")
    decision = decide_stored(store, run.id, keep=False)
    judged_at = f"{began + np.timedelta64(11, 'm')}Z"  # as it was then: what came before a run is a part of its report
    store.save_verdict(run.id, decision.document, decided_at=judged_at)
    store.save_metrics(run.id, metric_rows(decision.evidence))
    if number % _PROMOTED_EVERY == 0 and decision.verdict.outcome.promotes:
        promote(store, run.id, f"{began + np.timedelta64(12, 'm')}Z")


def promote(store: Store, run_id: str, at: str) -> None:
    """Into the baseline series, on what is stored of it."""
    (verdict,), run = store.verdicts(run_id), store.run(run_id)
    grounds = PromotionGrounds(
        outcome=verdict.outcome,
        verdict_sha256=verdict.sha256,
        evidence_sha256=store.evidence_sha256(run_id) or "",
        suite_sha256=run.suite_sha256,
        policy_sha256="0" * 64,
        measurement_sha256=run.measurement_sha256,
        report_sha256="0" * 64,
    )
    origin = PromotionOrigin("release", "main", "c0ffee" * 6, protected=True)
    store.save_promotion(
        Promotion(f"of-{run_id}", run_id, at, run.suite_name, PromotionAction.PROMOTED, origin, grounds)
    )


def fill(address: str, runs: int) -> None:
    """Adds what is missing of so many runs."""
    with Store.open(address) as store:
        for number in range(len(store.runs()), runs):
            add_run(store, number)


def remove_records(address: str, kept: int) -> None:
    """Of all but the newest so many runs of each suite, and of those that were promoted."""
    with Store.open(address) as store:
        now = store.runs(limit=1)[0].finished_at or ""
        store.remove_raw(store.expendable(Policy(keep_last=kept), now), now=now, reason="benchgate store gc")


def hashes(folder: Path) -> dict[str, str]:
    """Every file of a site by its path."""
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def shelf_entries(folder: Path) -> list[dict[str, object]]:
    """What the manifest says of each file."""
    return list(json.loads((folder / MANIFEST).read_bytes())["files"].values())


def processor_s() -> float:
    """What this process and those that it waited for have used of any processor."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def timed(what: str, address: str, folder: Path, most_s: float, unit_s: float) -> tuple[Built, bool]:
    """One build, told with its bar."""
    began_s, used_s = time.perf_counter(), processor_s()
    built = build(address, folder, lambda done, of: None)
    took_s, used_s = time.perf_counter() - began_s, processor_s() - used_s
    fine, n = took_s <= most_s, built.changes
    told = f"{n.written:,} written, {n.kept:,} kept; {'held' if fine else 'MISSED'}, at most {most_s:g} s"
    times = f"{took_s:6.1f} s, {took_s / unit_s:6.1f} times the sort; {used_s:6.1f} s of processor time"
    made = sum(1 for entry in shelf_entries(folder) if entry.get("outcome"))
    print(f"{what:28} {times}; {told}; {made:,} reports", flush=True)
    return built, fine


def profiled(address: str) -> None:
    """Where the time of twenty reports goes, in this process."""
    with Store.open(address) as store:
        ids = [run.id for run in store.runs(limit=21)]
        report_html(decide_stored(store, ids.pop(), keep=False))  # what is done once
        with cProfile.Profile() as profile:
            for run_id in ids:
                report_html(decide_stored(store, run_id, keep=False))
    pstats.Stats(profile).sort_stats("cumulative").print_stats("benchgate|vl_convert|vegalite", 40)


def measure(address: str, runs: int, folder: Path) -> Iterator[bool]:
    """Whether each bar holds."""
    unit_s = yardstick_s()
    site = folder / "site"
    yield timed(f"{runs:,} runs from nothing", address, site, _MOST_BUILD_S * max(runs, 1000) / 1000, unit_s)[1]
    yield timed("nothing new", address, site, _MOST_AGAIN_S, unit_s)[1]
    with Store.open(address) as store:
        add_run(store, len(store.runs()))
    yield timed("one run more", address, site, _MOST_AGAIN_S, unit_s)[1]
    timed("the same from nothing", address, folder / "again", _MOST_BUILD_S * max(runs, 1000) / 1000, unit_s)
    grown, fresh = hashes(site), hashes(folder / "again")
    differing = sorted(name for name in grown.keys() | fresh.keys() if grown.get(name) != fresh.get(name))
    n_bytes = sum(file.stat().st_size for file in site.rglob("*") if file.is_file())
    told = f"BYTES DIFFER: {', '.join(differing[:5])}" if differing else "every byte the same"
    print(f"{told}; {n_bytes / 1e6:,.0f} MB", flush=True)
    yield not differing


def main() -> int:
    """The whole benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--kept", type=int, default=25, help="newest runs of each suite that keep raw records; 0: all")
    parser.add_argument("--folder", type=Path, help="keep the store here, and use the one that is there")
    parser.add_argument("--profile", action="store_true", help="only tell where the time of twenty reports goes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="benchgate-site-") as made:
        kept = options.folder or Path(made)
        kept.mkdir(parents=True, exist_ok=True)
        address = str(kept / "runs.db")
        began_s = time.perf_counter()
        fill(address, options.runs)
        if options.kept:
            remove_records(address, options.kept)
        print(f"{options.runs:,} runs, made in {time.perf_counter() - began_s:.0f} s", flush=True)
        if options.profile:
            profiled(address)
            return 0
        return int(not all(list(measure(address, options.runs, Path(made)))))


if __name__ == "__main__":
    sys.exit(main())
