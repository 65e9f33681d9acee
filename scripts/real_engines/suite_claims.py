"""Whole suites: two equal vLLM servers, the knee, the capacity, and a real regression that is blocked."""

from __future__ import annotations

from contextlib import suppress

from benchgate.gate.checks.capacity import knees_by_block
from benchgate.gate.decision import CannotJudge
from benchgate.model import request_metrics
from benchgate.model.deployment import Arm
from benchgate.model.telemetry import Counter, TelemetryWindow
from benchgate.stats.knee import NoKnee, ServerKnee
from scripts.real_engines import prefix_claims
from scripts.real_engines.claims import Notebook, Session
from scripts.real_engines.command import Decided
from scripts.real_engines.engine_claims import CLIENT, counts_claim, eval_claims, shadow_claim
from scripts.real_engines.engines import BATCH_SEQUENCES, TRANSFORMERS
from scripts.real_engines.quality_claims import ANSWER_TOKENS, write_task
from scripts.real_engines.servers import Running, serve

BLOCKS = 4
_POINTS = 0.02


def alike_claims(session: Session) -> None:
    """Claim that nothing speaks against a candidate that is the same: load, evals, shadow, telemetry, prefix cache."""
    book, benchgate, one = session.book, session.benchgate, session.server
    rows = prefix_claims.write_trace(benchgate.folder / "mooncake.jsonl", BLOCKS)
    write_task(benchgate.folder, one)
    with serve(session.places, one.engine, name=f"{one.engine.name}-other") as other:
        decided = benchgate.run("alike", _alike(one, other))
    stages = f"{len(decided.evidence.load)} stages run"
    book.claim(
        "two equal servers: nothing is held against the candidate",
        decided.outcome in ("PASS", "WARN", "INCONCLUSIVE"),
        f"{decided.outcome} ({stages}): {decided.reason}",
    )
    eval_claims(book, decided)
    shadow_claim(book, decided)
    counts_claim(book, decided)
    _prefix(book, decided, prefix_claims.implied_ratio(rows))


def _prefix(book: Notebook, decided: Decided, implied: float) -> None:
    for arm in Arm:
        windows = [w for w in decided.evidence.telemetry if w.stage == "mooncake" and w.arm is arm]
        measured = _hit_ratio(windows)
        book.claim(
            f"the {arm.value}'s prefix-cache hits are those that the trace's hashes imply",
            measured is not None and abs(measured - implied) <= _POINTS,
            f"{'nothing reported' if measured is None else f'{measured:.2%}'} measured, {implied:.2%} implied",
        )


def _hit_ratio(windows: list[TelemetryWindow]) -> float | None:
    found = [(w.change(Counter.PREFIX_HITS), w.change(Counter.PREFIX_QUERIES)) for w in windows]
    known = [(hits, queries) for hits, queries in found if hits is not None and queries]
    return sum(hits for hits, _ in known) / sum(queries for _, queries in known) if known else None


def knee_claims(session: Session) -> None:
    """Claim that the knee lies where the server is full.

    More requests in flight only wait. Just as many leave slots empty between an answer and the next request, so
    tokens/s may still grow a little. The blocks are judged and not the verdict, which is INVALID where a busy machine
    delays the client.
    """
    decided = session.benchgate.run("knee", _knee(session.server))
    knees: list[ServerKnee | NoKnee] = []
    with suppress(CannotJudge):
        knees = knees_by_block(decided.evidence, [(f"c{level}", level) for level in (1, 2, 4, 8, 16, 32)])
    found = sorted(knee.level for knee in knees if isinstance(knee, ServerKnee))
    session.book.note(f"as a policy: {decided.outcome}, {decided.reason}")
    session.book.claim(
        f"the knee lies where the server is full: at {BATCH_SEQUENCES} sequences, or the next level up",
        len(found) > BLOCKS / 2 and BATCH_SEQUENCES <= found[len(found) // 2] <= 2 * BATCH_SEQUENCES,
        f"by block: {', '.join(f'{knee.level:g}' if isinstance(knee, ServerKnee) else 'none' for knee in knees)}",
    )


def capacity_claims(session: Session) -> None:
    """Claim that the capacity that a search finds is no more than a closed loop gets out of the same server."""
    decided = session.benchgate.run("capacity", _capacity(session.server))
    found = next(check for check in decided.document["checks"] if check["metric"] == "capacity")
    peak = max(
        request_metrics.requests_per_s(observation.requests, observation.window_s) or 0.0
        for observation in decided.evidence.load
        if observation.stage == "full"
    )
    sent = sum(len(part.requests) for part in decided.evidence.load if part.stage.startswith("capacity/"))
    lower, upper = found["lower"], found["upper"]
    session.book.claim(
        "the capacity search ends with a bracket that a closed loop bears out",
        lower is not None and upper is not None and lower < upper and lower <= 1.3 * peak,
        f"{lower} to {upper} requests/s after {sent} requests, closed loop {peak:.1f}/s; {found['reason']}",
    )


def regression_claims(session: Session) -> None:
    """Claim that `transformers serve`, one request at a time, does not pass against continuous batching."""
    batching = ("--continuous-batching", "--cb-num-blocks", "64")
    with serve(session.places, TRANSFORMERS, *batching, name="transformers-batching") as good:
        decided = session.benchgate.run("regression", _regression(good, session.server))
    for check in decided.document["checks"]:
        session.book.note(f"{check.get('title') or check.get('metric')}: {check.get('outcome')} {check.get('reason')}")
    session.book.claim(
        "transformers serve without continuous batching is blocked against itself with it",
        decided.outcome == "BLOCK" and decided.exit_code == 10,
        f"{decided.outcome}, exit code {decided.exit_code}: {decided.reason}",
    )


def _alike(one: Running, other: Running) -> str:
    return f"""\
suite: alike
seed: 5
deployments:
  one: {one.deployment_text}
  other: {other.deployment_text}
baseline: one
candidate: other
slo: {{e2e: 20s, target: 90%}}
load:
  workload: {{endpoint: completions, input: 64 tokens, output: 32 tokens, tokenizer: server}}
  blocks: {BLOCKS}
  warmup: 4
  sweep:
    - {{stage: c4, concurrency: 4, requests: 16}}
    - {{stage: r4, rate: 4/s, requests: 12}}
    - {{stage: mooncake, trace: mooncake.jsonl, requests: {prefix_claims.ROWS_A_BLOCK}}}
quality: {{tasks: [echo.yaml], max_tokens: {ANSWER_TOKENS}, max_empty_ratio: 10%}}
shadow: {{prompts: shadow.jsonl, max_tokens: {ANSWER_TOKENS}}}
gate:
  alpha: 0.001
  client: {CLIENT}
  allow_underpowered: true # short runs, of servers that differ by far more than they can show
  checks:
    - {{metric: ttft, stage: c4, margin: 90%}}
    - {{metric: output_throughput, stage: c4, margin: 60%}}
    - {{metric: goodput}}
    - {{metric: accuracy, margin: 10 points}}
    - {{metric: shadow_excess, margin: 10 points, block_when: breach}}
"""


def _knee(server: Running) -> str:
    return f"""\
suite: knee
seed: 6
deployments:
  here: {server.deployment_text}
baseline: here
candidate: here
load:
  workload: {{endpoint: completions, input: 8 tokens, output: 64 tokens}}
  blocks: {BLOCKS}
  sweep:
    - {{stage: c1, concurrency: 1, requests: 4}}
    - {{stage: c2, concurrency: 2, requests: 8}}
    - {{stage: c4, concurrency: 4, requests: 16}}
    - {{stage: c8, concurrency: 8, requests: 32}}
    - {{stage: c16, concurrency: 16, requests: 64}}
    - {{stage: c32, concurrency: 32, requests: 96}}
gate:
  client: {CLIENT}
  allow_underpowered: true # short runs, of servers that differ by far more than they can show
  checks:
    - {{metric: knee, min: 8}}
    - {{metric: knee, max: 16}}
    - {{metric: error_rate, max: 10%}}
"""


def _capacity(server: Running) -> str:
    return f"""\
suite: capacity
seed: 8
deployments:
  here: {server.deployment_text}
baseline: here
candidate: here
slo: {{e2e: 1500ms, target: 90%}}
load:
  workload: {{endpoint: completions, input: 16 tokens, output: 32 tokens}}
  blocks: 2
  sweep:
    - {{stage: full, concurrency: 16, requests: 96}}
  capacity: {{over: rate, from: 8/s, to: 512/s, resolution: 50%, probe: 600 requests, budget: 4000 requests}}
gate:
  client: {CLIENT}
  allow_underpowered: true # short runs, of servers that differ by far more than they can show
  checks:
    - {{metric: capacity, min: 1/s}}
    - {{metric: error_rate, max: 10%}}
"""


def _regression(good: Running, bad: Running) -> str:
    return f"""\
suite: regression
seed: 7
deployments:
  batching: {good.deployment_text}
  one-at-a-time: {bad.deployment_text}
baseline: batching
candidate: one-at-a-time
load:
  workload: {{input: 32 tokens, output: 24 tokens}}
  blocks: 4
  warmup: 4
  sweep:
    - {{stage: c1, concurrency: 1, requests: 2}}
    - {{stage: c16, concurrency: 16, requests: 24}}
gate:
  client: {CLIENT}
  allow_underpowered: true # short runs, of servers that differ by far more than they can show
  checks:
    - {{metric: ttft, stage: c16, margin: 20%}}
    - {{metric: output_throughput, stage: c16, margin: 20%}}
    - {{metric: ttft, stage: c1, margin: 50%, required: false}}
    - {{metric: error_rate, max: 10%}}
"""
