"""A whole suite over two vLLM servers that are alike, and one over two that are not."""

from __future__ import annotations

from contextlib import suppress

from benchgate.gate.checks.capacity import knees_by_block
from benchgate.gate.decision import CannotJudge
from benchgate.gate.evidence.telemetry import compare_counts, executions_of
from benchgate.model import request_metrics
from benchgate.model.deployment import Arm
from benchgate.model.telemetry import Counter, TelemetryWindow
from benchgate.stats.knee import NoKnee, ServerKnee
from scripts.real_engines import prefix_claims
from scripts.real_engines.asking import Benchgate, Decided
from scripts.real_engines.claims import Notebook
from scripts.real_engines.quality_claims import ANSWER_TOKENS, ITEMS
from scripts.real_engines.servers import MODEL, Engines, Running, transformers_serve

BLOCKS = 4
_AGREE = 0.01
_POINTS = 0.02
# The engines run on the load generator's own cores, so it may be late at times.
_CLIENT = "{send_lag_p99: 1s, send_lag_max: 1s, read_delay_p99: 1s, read_delay_max: 1s, cpu: 100%, achieved: 50%}"


def alike_claims(book: Notebook, benchgate: Benchgate, one: Running, other: Running) -> None:
    """Load, evals, shadow and telemetry over two servers that are the same: nothing may speak against the candidate."""
    rows = prefix_claims.write_trace(benchgate.folder / "mooncake.jsonl", BLOCKS)
    decided = benchgate.run("alike", _alike(one, other))
    stages = f"{len(decided.evidence.load)} stages run"
    book.claim(
        "two equal vLLM servers: nothing is held against the candidate",
        decided.outcome in ("PASS", "WARN", "INCONCLUSIVE"),
        f"{decided.outcome} ({stages}): {decided.why}",
    )
    _quality(book, decided)
    _telemetry(book, decided)
    _prefix(book, decided, prefix_claims.implied_ratio(rows))


def _quality(book: Notebook, decided: Decided) -> None:
    for seen in decided.evidence.quality:
        right = sum(item.score == 1.0 for item in seen.items)
        book.claim(
            f"evals on the {seen.arm.value} get the answers that a plain request gets",
            seen.fault is None and right == ITEMS,
            f"{right} of {ITEMS} right, fault: {seen.fault}",
        )


def _telemetry(book: Notebook, decided: Decided) -> None:
    """Requests, prompt and generated tokens of every stage, the server's count against the client's."""
    told = 0
    worst, where = 0.0, "nowhere"
    for window in decided.evidence.telemetry:
        seen = executions_of(decided.evidence, window.stage, window.arm).get(window.block, [])
        for count in compare_counts(window, seen, 0, 4096):
            told += 1
            off = max(count.excess_ratio, count.shortfall_ratio)
            if off >= worst:
                worst, where = off, f"{count.what} of {window.stage}, block {window.block + 1}, {window.arm.value}"
    book.claim(
        "vLLM's own counters agree with the client's in every stage",
        told == 3 * len(decided.evidence.telemetry) > 0 and worst <= _AGREE,
        f"{told} counts over {len(decided.evidence.telemetry)} stages, the worst off by {worst:.2%} ({where})",
    )


def _prefix(book: Notebook, decided: Decided, implied: float) -> None:
    for arm in Arm:
        windows = [w for w in decided.evidence.telemetry if w.stage == "mooncake" and w.arm is arm]
        measured = _hit_ratio(windows)
        book.claim(
            f"the {arm.value}'s prefix-cache hits are those that the trace's hashes imply",
            measured is not None and abs(measured - implied) <= _POINTS,
            f"{'nothing told' if measured is None else f'{measured:.2%}'} measured, {implied:.2%} implied",
        )


def _hit_ratio(windows: list[TelemetryWindow]) -> float | None:
    found = [(w.change(Counter.PREFIX_HITS), w.change(Counter.PREFIX_QUERIES)) for w in windows]
    known = [(hits, queries) for hits, queries in found if hits is not None and queries]
    return sum(hits for hits, _ in known) / sum(queries for _, queries in known) if known else None


def knee_claims(book: Notebook, benchgate: Benchgate, server: Running, sequences: int) -> None:
    """More requests in flight than the server takes at once only wait.

    Just as many leave places empty between an answer and the next request, so tokens/s may still grow a little.
    Held by the blocks themselves and not by the verdict, which is INVALID where a busy machine holds the client up.
    """
    decided = benchgate.run("knee", _knee(server))
    knees: list[ServerKnee | NoKnee] = []
    with suppress(CannotJudge):
        knees = knees_by_block(decided.evidence, [(f"c{level}", level) for level in (1, 2, 4, 8, 16, 32)])
    found = sorted(knee.level for knee in knees if isinstance(knee, ServerKnee))
    book.say(f"as a policy: {decided.outcome}, {decided.why}")
    book.claim(
        f"the knee lies where the server is full: at {sequences} sequences, or the next level up",
        len(found) > BLOCKS / 2 and sequences <= found[len(found) // 2] <= 2 * sequences,
        f"by block: {', '.join(f'{knee.level:g}' if isinstance(knee, ServerKnee) else 'none' for knee in knees)}",
    )


def capacity_claims(book: Notebook, benchgate: Benchgate, server: Running) -> None:
    """The capacity that a search finds cannot be more than a closed loop gets out of the same server."""
    decided = benchgate.run("capacity", _capacity(server))
    found = next(check for check in decided.document["checks"] if check["metric"] == "capacity")
    peak = max(
        request_metrics.requests_per_s(seen.requests, seen.window_s) or 0.0
        for seen in decided.evidence.load
        if seen.stage == "full"
    )
    sent = sum(len(seen.requests) for seen in decided.evidence.load if seen.stage.startswith("capacity/"))
    lower, upper = found["lower"], found["upper"]
    book.claim(
        "the capacity search ends with a bracket that a closed loop bears out",
        lower is not None and upper is not None and lower < upper and lower <= 1.3 * peak,
        f"{lower} to {upper} requests/s after {sent} requests, closed loop {peak:.1f}/s; {found['reason']}",
    )


def regression_claims(book: Notebook, benchgate: Benchgate, engines: Engines) -> None:
    """`transformers serve` without continuous batching answers one request at a time: it must not get through."""
    with (
        transformers_serve(engines, "batching", continuous_batching=True) as good,
        transformers_serve(engines, "one-at-a-time", continuous_batching=False) as bad,
    ):
        book.say(f"transformers serve is there after {good.start_s:.0f} s and {bad.start_s:.0f} s")
        decided = benchgate.run("regression", _regression(good, bad))
    for check in decided.document["checks"]:
        book.say(f"{check.get('title') or check.get('metric')}: {check.get('outcome')} {check.get('reason')}")
    book.claim(
        "transformers serve without continuous batching is blocked against itself with it",
        decided.outcome == "BLOCK" and decided.exit_code == 10,
        f"{decided.outcome}, exit code {decided.exit_code}: {decided.why}",
    )


def _alike(one: Running, other: Running) -> str:
    return f"""\
suite: alike
seed: 5
deployments:
  one: {{url: "{one.url}", model: {MODEL}, engine: vllm}}
  other: {{url: "{other.url}", model: {MODEL}, engine: vllm}}
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
  client: {_CLIENT}
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
  here: {{url: "{server.url}", model: {MODEL}, engine: vllm}}
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
  client: {_CLIENT}
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
  here: {{url: "{server.url}", model: {MODEL}, engine: vllm}}
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
  client: {_CLIENT}
  allow_underpowered: true # short runs, of servers that differ by far more than they can show
  checks:
    - {{metric: capacity, min: 1/s}}
    - {{metric: error_rate, max: 10%}}
"""


def _regression(good: Running, bad: Running) -> str:
    common = f"model: {MODEL}, engine: openai, leave_out: [ignore_eos, stream_options, seed]"
    return f"""\
suite: regression
seed: 7
deployments:
  batching: {{url: "{good.url}", {common}}}
  one-at-a-time: {{url: "{bad.url}", {common}}}
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
  client: {_CLIENT}
  allow_underpowered: true # short runs, of servers that differ by far more than they can show
  checks:
    - {{metric: ttft, stage: c16, margin: 20%}}
    - {{metric: output_throughput, stage: c16, margin: 20%}}
    - {{metric: ttft, stage: c1, margin: 50%, required: false}}
    - {{metric: error_rate, max: 10%}}
"""
