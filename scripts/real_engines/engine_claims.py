"""The claims that every engine must bear out: the same set over each row of `engines`."""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

from benchgate.errors import TargetError
from benchgate.gate.evidence.telemetry import compare_counts, executions_of
from benchgate.model.deployment import Arm
from benchgate.model.records import DivergenceObservation, ErrorClass, ProbabilitySource
from benchgate.model.telemetry import Gauge
from benchgate.plan.items import FixedText, planned_pieces
from benchgate.quality.divergence import diverge
from benchgate.suite.quality import Divergence
from benchgate.suite.schema import Limits
from benchgate.targets.discovery import list_models
from benchgate.targets.probe import detect_engine, liveness_problem, server_facts, wait_ready
from benchgate.telemetry.engine_metrics import PAGES, read_page
from scripts.real_engines.claims import Notebook, Session
from scripts.real_engines.command import Decided, counters
from scripts.real_engines.quality_claims import ANSWER_TOKENS, ITEMS, write_task
from scripts.real_engines.servers import Running

PROSE = Path(__file__).parents[2] / "suites" / "data" / "prose.jsonl"
_TOKENS = 48
_AGREE = 0.01
_SEED = 5
_SAME_NATS = 1e-3  # what batching may change of a probability
_IDLE_S = 15.0  # until a server must have dropped the request of a client that left
_FINISH_S = 120.0  # until it must have finished that request, where it does not notice
# The engines run on the load generator's own cores, so it may be late at times.
CLIENT = "{send_lag_p99: 1s, send_lag_max: 1s, read_delay_p99: 1s, read_delay_max: 1s, cpu: 100%, achieved: 50%}"


def identity_claims(session: Session) -> None:
    """Claim that the engine is detected, and that its version and its model are read where it shows them."""
    server, engine = session.server, session.server.engine
    target = server.target()
    detected, facts, listing = detect_engine(target), server_facts(target), list_models(target)
    version = facts.get("engine_version")
    session.book.claim(
        "identity: the dialect is detected, and version and model are read where the engine shows them",
        detected == (engine.detects or engine.dialect)
        and (engine.model in listing.models) == engine.lists_model
        and (version is not None) == engine.shows_version,
        f"dialect {detected}, version {version or 'not shown'}, "
        f"models {', '.join(listing.models) or 'not listed'}, facts {', '.join(sorted(facts)) or 'none'}",
    )


def load_claims(session: Session) -> None:
    """Claim for each endpoint that a closed loop counts what the server counts, by its metrics or by its usage."""
    server, engine = session.server, session.server.engine
    length = engine.fixed_tokens or _TOKENS
    for endpoint, concurrency in engine.load:
        requests = 8 * concurrency
        before = counters(server.metrics_url) if engine.counters else {}
        document = session.benchgate.load(
            server.url,
            engine.model,
            *("--engine", engine.dialect, "--endpoint", endpoint, "--concurrency", str(concurrency)),
            *("--requests", str(requests), "--input-tokens", str(engine.input_tokens)),
            *("--output-tokens", str(_TOKENS)),
        )
        counts, tokens = document["requests"], document["output_tokens"]
        ok, sent = counts["ok"], counts["ok"] + counts["warmup"] + counts["ramp"]  # the server counts all of them
        if engine.counters:
            after = counters(server.metrics_url)
            finished, generated = (after[name] - before.get(name, 0.0) for name in engine.counters)
            agree = _close(finished, sent) and _close(generated, sent * length)
            told = f"{finished:.0f} of {sent} requests sent and {generated:.0f} tokens on the server's metrics page"
        else:
            agree = document["tokens_from"] == {engine.tokens_from: requests}
            told = f"tokens from {', '.join(document['tokens_from']) or 'nothing'}"
        complete = tokens == requests * length
        if engine.tokens_from == "chunks":  # a token that ends inside a character has no chunk of its own
            complete = 0.9 * requests * length <= tokens <= requests * length
        session.book.claim(
            f"load: {endpoint} at concurrency {concurrency} is answered in full, and counted alike at both ends",
            ok == requests and complete and agree,
            f"{ok} of {requests} requests and {tokens} tokens measured; {told}; "
            f"{document['throughput']['output_tokens_per_s'] or 0:.0f} tokens/s, "
            f"TTFT p50 {_ms(document['ttft_s']['p50'])}, TPOT p50 {_ms(document['tpot_s']['p50'])}",
        )


def suite_claims(session: Session) -> None:
    """Claim for a whole suite of the engine against itself: evals, shadow prompts and telemetry."""
    write_task(session.benchgate.folder, session.server)
    decided = session.benchgate.run(f"self-{session.server.engine.name}", _suite(session.server))
    session.book.claim(
        "suite: nothing is held against a deployment that is both arms",
        decided.outcome in ("PASS", "WARN", "INCONCLUSIVE"),
        f"{decided.outcome}: {decided.reason}",
    )
    eval_claims(session.book, decided)
    shadow_claim(session.book, decided)
    _telemetry_claim(session, decided)


def eval_claims(book: Notebook, decided: Decided) -> None:
    """Claim that evals get the answers of plain requests, on each arm."""
    for observation in decided.evidence.quality:
        correct = sum(item.score == 1.0 for item in observation.items)
        book.claim(
            f"quality: evals on the {observation.arm.value} get the answers of plain requests",
            observation.fault is None and correct == ITEMS,
            f"{correct} of {ITEMS} correct, fault: {observation.fault}",
        )


def shadow_claim(book: Notebook, decided: Decided) -> None:
    """Claim that the candidate's answers to recorded prompts are the baseline's."""
    shadow = decided.evidence.shadow
    items = () if shadow is None else shadow.items
    errors = [item.error for item in items if item.error]
    differing = sum(item.primary != item.candidate for item in items)
    book.claim(
        "shadow: recorded prompts get the same answers",
        len(items) == ITEMS and not errors and differing == 0,
        f"{differing} of {len(items)} answers differ, {len(errors)} errors{': ' + str(errors[0]) if errors else ''}",
    )


def counts_claim(book: Notebook, decided: Decided) -> None:
    """Claim that the server's counts of requests, prompt and generated tokens are the client's, stage by stage."""
    compared = 0
    worst, worst_at = 0.0, "nowhere"
    for window in decided.evidence.telemetry:
        executions = executions_of(decided.evidence, window.stage, window.arm).get(window.block, [])
        for count in compare_counts(window, executions, 0, 4096):
            compared += 1
            off = max(count.excess_ratio, count.shortfall_ratio)
            if off >= worst:
                worst, worst_at = off, f"{count.what} of {window.stage}, block {window.block + 1}, {window.arm.value}"
    book.claim(
        "telemetry: the server's own counters agree with the client's in every stage",
        compared == 3 * len(decided.evidence.telemetry) > 0 and worst <= _AGREE,
        f"{compared} counts over {len(decided.evidence.telemetry)} stages, the worst off by {worst:.2%} ({worst_at})",
    )


def _telemetry_claim(session: Session, decided: Decided) -> None:
    engine, windows = session.server.engine, decided.evidence.telemetry
    names = sorted({str(metric) for window in windows for sample in window.readings for metric in sample.values})
    own = [name for name in names if not name.startswith("client_")]
    read_as = {window.engine for window in windows}
    problems = sorted({problem for window in windows for problem in window.problems})
    session.book.claim(
        "telemetry: the metrics page is read by the engine's names"
        if engine.metrics
        else "telemetry: a server without a known metrics page gives no metrics",
        (read_as == {engine.metrics} and bool(own) if engine.metrics else read_as <= {None} and not own),
        f"{', '.join(own) or 'no metrics'}{'; ' + problems[0] if problems else ''}",
    )
    if engine.counters:
        counts_claim(session.book, decided)


def probability_claims(session: Session) -> None:
    """Claim that fixed texts read twice do not diverge; or that benchgate refuses, where the engine has no way."""
    engine = session.server.engine
    for way in engine.probabilities:
        positions, top = (40, 5) if way == "cut" else (200, 20)
        found = _divergence(session.server, way, positions, top)
        largest = max((item.kld for item in found.items), default=None)
        same = sum(item.same_top1 for item in found.items)
        session.book.claim(
            f"log-probabilities: a server that is both arms does not diverge from itself by `{way}`",
            found.fault is None and found.way == way and len(found.items) == found.expected_n
            and largest is not None and largest <= _SAME_NATS and same >= 0.99 * len(found.items),
            found.fault or f"largest KLD {largest} nats, {same} of {len(found.items)} most probable tokens alike",
        )  # fmt: skip
    if not engine.probabilities:
        found = _divergence(session.server, "auto", 40, 5)
        session.book.claim(
            "log-probabilities: the engine has none of given texts, and benchgate refuses with the reason",
            found.fault is not None and not found.items,
            found.fault or f"read by {found.way}",
        )


def _divergence(server: Running, way: ProbabilitySource | str, positions: int, top: int) -> DivergenceObservation:
    window = min(1200, server.engine.context_tokens // 2)  # characters, each at most one token
    settings = Divergence.model_validate(
        {"texts": PROSE.name, "window": window, "positions": positions, "top": top, "way": way}
    )
    rows = [json.loads(line) for line in PROSE.read_text(encoding="utf-8").splitlines()]
    texts = [FixedText(row["id"], row["text"]) for row in rows]
    pieces = planned_pieces(texts, settings.window, settings.positions, _SEED)
    [found] = diverge({arm: server.target(arm) for arm in Arm}, pieces, settings, _SEED, Limits())
    return found


def error_claims(session: Session) -> None:
    """Claim that wrong requests fail in the server's words, or are answered where the engine takes them."""
    server, engine = session.server, session.server.engine
    refusal = None
    try:
        wait_ready(server.target(model="no-such-model"), endpoint=engine.endpoint, ready_s=10, connect_s=5)
    except TargetError as exc:
        refusal = str(exc)
    session.book.claim(
        f"errors: an unknown model is {'refused before any load' if engine.refuses_unknown_model else 'answered'}",
        (refusal is not None and "refuses requests" in refusal) == engine.refuses_unknown_model
        and (refusal is None) != engine.refuses_unknown_model,
        refusal or "answered",
    )
    prompts = session.benchgate.folder / "long.jsonl"
    prompts.write_text(json.dumps({"prompt": "word " * (engine.context_tokens + 50)}) + "\n", encoding="utf-8")
    document = session.benchgate.load(
        server.url,
        engine.model,
        *("--engine", engine.dialect, "--endpoint", engine.endpoint),
        *("--concurrency", "1", "--requests", "2", "--warmup", "0"),
        *("--prompts", str(prompts), "--output-tokens", "8"),
    )
    ok, failures = document["requests"]["ok"], document["failures"]
    session.book.claim(
        f"errors: a prompt beyond the context is {'refused' if engine.refuses_long_prompt else 'answered'}",
        ok == (0 if engine.refuses_long_prompt else 2) and all(f["class"] != ErrorClass.TIMEOUT for f in failures),
        f"{ok} of 2 answered; {json.dumps(failures[:1]) if failures else 'no failure'}",
    )


def disconnect_claims(session: Session) -> None:
    """Claim that a client that leaves in mid-stream costs the next request nothing."""
    server, engine = session.server, session.server.engine
    _leave_in_mid_stream(server)
    began = time.monotonic()
    problem = liveness_problem(server.target(), within_s=_IDLE_S if engine.notices_disconnect else _FINISH_S)
    took_s = time.monotonic() - began
    figures = problem or f"the next request was answered after {took_s:.1f} s"
    idle = True
    if engine.metrics and Gauge.RUNNING in PAGES[engine.metrics].names:
        while not (idle := _running_requests(server) == 0) and time.monotonic() - began < _IDLE_S:
            time.sleep(0.2)
        figures += (
            f"; {'no request is' if idle else 'requests are'} left running after {time.monotonic() - began:.1f} s"
        )
    effect = "frees the server" if engine.notices_disconnect else "has its request finished, and the next is answered"
    session.book.claim(f"disconnect: a client that leaves {effect}", problem is None and idle, figures)


def _leave_in_mid_stream(server: Running) -> None:
    address = urlsplit(server.url)
    body = {
        "model": server.engine.model,
        "messages": [{"role": "user", "content": "Count."}],
        "max_tokens": server.engine.context_tokens * 3 // 4,
        "stream": True,
    }
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
    with contextlib.closing(connection):
        headers = {"content-type": "application/json"}
        connection.request("POST", f"{address.path}/v1/chat/completions", json.dumps(body), headers)
        connection.getresponse().read1(256)


def _running_requests(server: Running) -> float | None:
    address = urlsplit(server.metrics_url)
    with contextlib.closing(http.client.HTTPConnection(address.netloc, timeout=10)) as connection:
        connection.request("GET", address.path)
        page = connection.getresponse().read().decode()
    return read_page(page, server.engine.model).values.get(Gauge.RUNNING)


GROUPS: Mapping[str, Callable[[Session], None]] = MappingProxyType(
    {
        "identity": identity_claims,
        "load": load_claims,
        "suite": suite_claims,
        "probabilities": probability_claims,
        "errors": error_claims,
        "disconnect": disconnect_claims,
    }
)


def _close(one: float, other: float) -> bool:
    return abs(one - other) <= _AGREE * other


def _ms(seconds: float | None) -> str:
    return "none" if seconds is None else f"{seconds * 1000:.1f} ms"


def _suite(server: Running) -> str:
    return f"""\
suite: self-{server.engine.name}
seed: {_SEED}
deployments:
  here: {server.deployment_text}
baseline: here
candidate: here
load:
  workload: {{input: {server.engine.input_tokens} tokens, output: 24 tokens}}
  blocks: 2
  warmup: 2
  sweep:
    - {{stage: c2, concurrency: 2, requests: 8}}
quality: {{tasks: [echo.yaml], max_tokens: {ANSWER_TOKENS}, max_empty_ratio: 10%}}
shadow: {{prompts: shadow.jsonl, max_tokens: {ANSWER_TOKENS}}}
gate:
  alpha: 0.001
  client: {CLIENT}
  allow_underpowered: true # short runs
  checks:
    - {{metric: error_rate, max: 50%}}
    - {{metric: accuracy, margin: 10 points}}
    - {{metric: shadow_excess, margin: 10 points, block_when: breach}}
"""
