"""How long does the report of a whole promotion run take, and how large is its file?

    .venv/bin/python -m benchmarks.report_speed [--stages 6] [--repeats 3]

Makes a run with all that a report can show: a sweep of six levels in 20 blocks with telemetry and prices, four tasks of
1,000 items, and 500 shadow prompts with their texts. Prints how many charts there are and what they take, the whole
page, its size, and beside it what hashing 256 MiB takes in the same process, by which machines can be told apart. Exits
1 when 20 charts take more than 4 s (the median over the repeats), the file has more than 600 kB, or two renderings of
the same run differ.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from benchgate.gate.judge import judge
from benchgate.model.deployment import Arm
from benchgate.model.records import EvalItem, ShadowItem
from benchgate.model.run import ClientUse, Evidence, LoadObservation, QualityObservation, ShadowObservation
from benchgate.model.telemetry import Counter, Gauge, TelemetryMetric, TelemetrySample, TelemetryWindow
from benchgate.model.verdict import Verdict
from benchgate.report import charts
from benchgate.report.html import page_of
from benchgate.report.view import ReportView, report_view
from benchgate.suite.schema import Suite
from benchmarks.gate_million import answered
from benchmarks.made_runs import run_of

_MOST_S, _OF_CHARTS = 4.0, 20
_MOST_BYTES = 600_000
_BLOCKS, _REQUESTS, _CHUNKS = 20, 60, 64
_TASKS, _ITEMS, _PROMPTS = ("add", "sort", "read", "write"), 1_000, 500
_HASHED_BYTES = 256 * 1024 * 1024
_SLOWER = 1.06  # the candidate, so that there is something to show


def a_suite(stages: int) -> Suite:
    """A promotion suite that asks for everything."""
    sweep = [{"stage": f"c{2**number}", "concurrency": 2**number, "requests": _REQUESTS} for number in range(stages)]
    return Suite.model_validate(
        {
            "suite": "promotion",
            "deployments": {
                "base": {"url": "http://base.invalid", "model": "m", "price": "$2/h"},
                "new": {"url": "http://new.invalid", "model": "m", "price": "$1.50/h"},
            },
            "baseline": "base",
            "candidate": "new",
            "slo": {"ttft": "400ms", "tpot": "40ms", "target": "95%"},
            "load": {"workload": {"input": 100, "output": _CHUNKS}, "sweep": sweep, "blocks": _BLOCKS},
            "quality": {"tasks": [f"{task}.yaml" for task in _TASKS]},
            "shadow": {"prompts": "prompts.jsonl", "store_text": True},
            "gate": {
                "checks": [
                    {"metric": "ttft", "margin": "5%"},
                    {"metric": "tpot", "statistic": "p95", "margin": "10%"},
                    {"metric": "output_throughput", "margin": "5%"},
                    {"metric": "error_rate", "margin": "1 points"},
                    {"metric": "goodput"},
                    {"metric": "accuracy", "margin": "2 points"},
                    {"metric": "shadow_excess", "margin": "5 points"},
                ]
            },
        }
    )


def a_run(stages: int) -> Evidence:
    """All of it, measured; the same for the same number of stages."""
    suite, generator = a_suite(stages), np.random.default_rng(7)
    run = run_of(suite)
    prices = {Arm.BASELINE: 2.0, Arm.CANDIDATE: 1.5}
    arms = {arm: replace(one, price_usd_per_hour=prices[arm]) for arm, one in run.arms.items()}
    load = _load(suite, generator)
    return Evidence(
        replace(run, arms=arms), load, _quality(generator), _shadow(generator), (), tuple(map(_telemetry, load))
    )


def _load(suite: Suite, generator: np.random.Generator) -> tuple[LoadObservation, ...]:
    assert suite.load is not None, "a suite of load"
    found: list[LoadObservation] = []
    for block in range(_BLOCKS):
        for number, stage in enumerate(suite.load.sweep):
            for arm in tuple(Arm) if block % 2 == 0 else tuple(Arm)[::-1]:
                slower = (1 + 0.2 * number) * (_SLOWER if arm is Arm.CANDIDATE else 1.0)
                columns = answered(_REQUESTS, _CHUNKS, slower * float(generator.lognormal(0, 0.02)), generator)
                window_s = float(columns.end_ns.max() - columns.sent_ns.min()) * 1e-9
                client = ClientUse(cpu_s=0.3, wall_s=window_s, workers=1)
                found.append(LoadObservation(stage.name, arm, block, len(found), columns, window_s, client))
    return tuple(found)


def _telemetry(seen: LoadObservation) -> TelemetryWindow:
    """A look a second, the queue as long as the answers are slow."""
    waits_s = float((seen.requests.first_answer_ns - seen.requests.intended_ns).max()) * 1e-9
    before: dict[TelemetryMetric, float] = {Counter.QUEUE_S: 0.0, Counter.QUEUED: 0.0}
    after: dict[TelemetryMetric, float] = {Counter.QUEUE_S: waits_s * _REQUESTS / 2, Counter.QUEUED: float(_REQUESTS)}
    looks = [
        TelemetrySample(
            at + 0.5, {Gauge.RUNNING: 8.0, Gauge.WAITING: waits_s * (at % 4), Gauge.KV_USAGE: 0.1 * (at % 9)}
        )
        for at in range(max(3, int(seen.window_s)))
    ]
    readings = (TelemetrySample(-0.1, before), *looks, TelemetrySample(seen.window_s + 1, after))
    return TelemetryWindow(
        seen.stage, seen.arm, seen.block, seen.position, "vllm", seen.window_s, drained=True, readings=readings
    )


def _quality(generator: np.random.Generator) -> tuple[QualityObservation, ...]:
    observations = []
    for task in _TASKS:
        for arm in Arm:
            right = generator.random(_ITEMS) < (0.8 if arm is Arm.BASELINE else 0.79)
            items = tuple(_item(task, at, ok=bool(ok)) for at, ok in enumerate(right))
            observations.append(QualityObservation(task, arm, items, _ITEMS, None))
    return tuple(observations)


def _item(task: str, at: int, *, ok: bool) -> EvalItem:
    answer = "right" if ok else f"wrong {at}"
    return EvalItem(
        f"{task}-{at}", f"d{at}", f"p{at}", f"t{at}", float(ok), answer, "stop", 4, 30_000_000, None, choice=answer
    )


def _shadow(generator: np.random.Generator) -> ShadowObservation:
    texts = ["the same answer to this prompt, as long as answers are " * 8, "another answer altogether " * 12]
    items = []
    for at in range(_PROMPTS):
        ours, theirs = (texts[int(generator.random() < share)] for share in (0.06, 0.02))
        items.append(
            ShadowItem(
                f"prompt-{at:04}", "e1" * 32, texts[0], theirs, ours, "stop", "stop", "stop", None,
                prompt_text="what is asked of the model " * 10, primary_text=texts[0], secondary_text=theirs,
                candidate_text=ours,
            )
        )  # fmt: skip
    return ShadowObservation(tuple(items), _PROMPTS, None)


def _draw(view: ReportView) -> int:
    """Draw every chart anew and return their number."""
    charts._drawn.cache_clear()
    return len([figure.svg for section in view.sections for figure in section.figures])


def _page(evidence: Evidence, verdict: Verdict) -> str:
    charts._drawn.cache_clear()
    return page_of(report_view(evidence, verdict))


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> int:
    """Render it a few times, print what it took, and hold it against the bounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    evidence = a_run(options.stages)
    started = time.perf_counter()
    verdict = judge(Suite.from_stored(evidence.run.suite), evidence)
    judged_s = time.perf_counter() - started
    view = report_view(evidence, verdict)
    drawn = _draw(view)  # the first call also loads the renderer
    views_s = [_timed(lambda: report_view(evidence, verdict)) for _ in range(options.repeats)]
    charts_s = statistics.median(_timed(lambda: _draw(view)) for _ in range(options.repeats))
    pages = {_page(evidence, verdict) for _ in range(2)}
    size = len(next(iter(pages)).encode())
    of_20_s = charts_s / drawn * _OF_CHARTS
    block = bytes(_HASHED_BYTES)
    hashed_s = statistics.median(_timed(lambda: hashlib.sha256(block)) for _ in range(options.repeats))
    print(f"{drawn} charts in {charts_s:.2f} s: {of_20_s:.2f} s for {_OF_CHARTS} (at most {_MOST_S:g})")
    print(f"the numbers of the page in {statistics.median(views_s):.2f} s, the verdict in {judged_s:.2f} s")
    alike = "equal" if len(pages) == 1 else "unlike"
    print(f"the file: {size:,} bytes (at most {_MOST_BYTES:,}); two renderings are {alike}")
    print(f"beside it, SHA-256 of {_HASHED_BYTES // 1024**2} MiB: {hashed_s:.2f} s")
    return int(of_20_s > _MOST_S or size > _MOST_BYTES or len(pages) > 1)


if __name__ == "__main__":
    sys.exit(main())
