"""Adapter between the plain data of the cases and the objects of benchgate.

`run_case` builds a suite and its evidence from a case, asks for the verdict and returns that as plain data again.
Of this folder only `mutations.py`, which damages that evidence, and its test import benchgate as well: when modules and
names of benchgate change, no case does.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any

import numpy as np

from benchgate.gate.checks.accuracy import certain_regression
from benchgate.gate.interim import ContinueLoad, StopLoad, limit_passed, next_step
from benchgate.gate.judge import doubted, judge
from benchgate.model.deployment import Arm, Deployment
from benchgate.model.history import Attempt, PastArm, PastCheck, PastRun, past_arm
from benchgate.model.metric import METRICS
from benchgate.model.noise import NoiseProfile, NoiseSpread, noise_key
from benchgate.model.records import (
    AnswerAgreement,
    AnswerFacts,
    DivergenceItem,
    DivergenceObservation,
    EvalItem,
    JudgeVerdict,
    PairFacts,
    RequestColumns,
    ShadowItem,
)
from benchgate.model.run import (
    BudgetReading,
    ClientUse,
    DeploymentFault,
    Evidence,
    LoadEnd,
    LoadObservation,
    QualityObservation,
    ReplicaCount,
    Resumption,
    Run,
    RunStatus,
    ServerStart,
    ShadowObservation,
)
from benchgate.model.telemetry import Counter, Gauge, TelemetryMetric, TelemetrySample, TelemetryWindow
from benchgate.model.verdict import BUDGET, HISTORY, CheckResult, GuardResult, Outcome, Scale, Unit, Verdict, Waivers
from benchgate.suite.loader import parse_suite
from benchgate.suite.schema import Suite, measured_arms
from benchgate.suite.waivers import parse_waivers
from tests.verdicts.servers import MS, Server, normal, queue_columns, request_columns, uniform

Plain = dict[str, Any]

_STARTED, _FINISHED = "2026-01-01T00:00:00.000Z", "2026-01-01T00:01:00.000Z"


@dataclass(frozen=True)
class Result:
    """The verdict of a case as plain data, and (metric, form, outcome) of every check in it."""

    verdict: Plain
    judged: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class Judged:
    """What a case has judged: suite, evidence, that of the reference run, waivers, and the reference's outcome."""

    suite: Suite
    evidence: Evidence
    reference: Evidence | None
    waivers: Waivers | None
    doubt: str | None

    def verdict(self) -> Verdict:
        """Return the verdict."""
        verdict = judge(self.suite, self.evidence, self.reference, waivers=self.waivers)
        return doubted(verdict, None if self.doubt is None else Outcome(self.doubt))


def read_case(suite_text: str, recipe: Plain, texts: Mapping[str, str]) -> Judged:
    """Return what `recipe` describes. `texts` are further suites that it names."""
    suite = _suite(suite_text)
    recipe = {key: value for key, value in recipe.items() if key != "spent"}
    reference, file, doubt = (recipe.pop(key, None) for key in ("reference", "waivers", "reference_outcome"))
    judged = _evidence(suite, recipe, texts)
    compared = None if reference is None else _evidence(suite, reference, texts)
    return Judged(suite, judged, compared, None if file is None else _waivers(file, judged), doubt)


def run_case(suite_text: str, recipe: Plain, texts: Mapping[str, str]) -> Result:
    """Return the verdict on the evidence of `recipe`. `texts` are further suites that the recipe names."""
    case = read_case(suite_text, recipe, texts)
    suite, judged, compared, waivers = case.suite, case.evidence, case.reference, case.waivers
    verdict, spent = case.verdict(), recipe.get("spent")
    found = _plain_verdict(verdict)
    if compared is None and (step := next_step(suite, judged, waivers)) is not None:
        found["interim"] = _plain_step(step)
    if suite.quality is not None and suite.quality.stop_early:
        found["evals_stopped_by"] = certain_regression(suite, _both_answered(judged))
    if spent is not None:
        found["limit_passed"] = limit_passed(suite, spent["seconds"], spent["next_seconds"])
    forms = tuple((c.metric, _form(c), c.outcome.value) for c in verdict.checks if c.family not in (HISTORY, BUDGET))
    return Result(found, forms)


def metric_forms() -> dict[str, tuple[str, ...]]:
    """Return the forms that a check of each metric may take, of every metric that there is."""
    return {
        name: (
            *(["margin"] if kind.margin is not None else []),
            *kind.bounds,
            *(["max over", "min over"] if kind.over_stage else []),
        )
        for name, kind in METRICS.items()
    }


def _form(check: CheckResult) -> str:
    """Return the form as the end of the id tells it: `:slo` where the metric has one side alone, `:min-over-…`."""
    bound = check.id.rpartition(":")[2]
    if check.scale is not Scale.ABSOLUTE:
        return "margin"
    side = METRICS[check.metric].bounds[0] if bound == "slo" else bound[:3]
    return side if check.over is None else f"{side} over"


@functools.cache
def _suite(text: str) -> Suite:
    return parse_suite(text, "suite.yaml")


# From the verdict to plain data


def _plain_verdict(verdict: Verdict) -> Plain:
    checks = {check.id: _plain_check(check) for check in verdict.checks}
    assert len(checks) == len(verdict.checks), "two checks have one id"
    found: Plain = {"outcome": verdict.outcome.value, "checks": checks, "guards": _plain_guards(verdict.guards)}
    declared = {one.field for one in verdict.differences if one.field is not None and one.declared}
    undeclared = {one.field for one in verdict.differences if one.field is not None and not one.declared}
    if declared or undeclared:
        found["differences"] = {"declared": sorted(declared), "undeclared": sorted(undeclared)}
    if verdict.waivers:
        found["waivers"] = {one.waiver.check: one.use.value for one in verdict.waivers}
    return found


def _plain_check(check: CheckResult) -> Plain:
    numbers = {"baseline": check.baseline, "candidate": check.candidate, "effect": check.harm, "lower": check.lower}
    numbers |= {"upper": check.upper, "margin": check.margin, "p_value": check.p_value, "p_adjusted": check.p_holm}
    found: Plain = {"outcome": check.outcome.value, "n": check.n} | ({} if check.required else {"required": False})
    return found | {name: value for name, value in numbers.items() if value is not None}


def _plain_guards(guards: Iterable[GuardResult]) -> Plain:
    found: Plain = {"passed": [], "not_applicable": [], "warned": [], "tripped": []}
    for one in guards:
        if one.tripped:
            found["tripped"].append({"id": one.id, "invalidates": list(one.invalidates)})
        else:
            found["warned" if one.warns else "passed" if one.known else "not_applicable"].append(one.id)
    found["tripped"].sort(key=lambda one: (one["id"], one["invalidates"]))
    return {state: ids if state == "tripped" else sorted(ids) for state, ids in found.items() if ids}


def _plain_step(step: StopLoad | ContinueLoad) -> Plain:
    checks = {one.id: {"outcome": one.outcome.value, "p_adjusted": one.p_holm} for one in step.checks}
    if isinstance(step, ContinueLoad):
        undecided = [one.id for one in step.undecided]
        return {"decision": "continue", "blocks": step.blocks, "open": undecided, "checks": checks}
    return {"decision": "stop", "because": step.reason, "checks": checks}


# The run and what does not come from a stage of load


def _evidence(judging: Suite, recipe: Plain, texts: Mapping[str, str]) -> Evidence:
    """Return the evidence that a recipe describes. `measured_by` names the suite of the run, if another one judges it.

    `load`, `capacity`, `telemetry`, `evals`, `shadow`, `texts`, `noise`, `history`, `attempts` and `deployments` have a
    function or a class of their own below, which documents their words. `run` replaces fields of the run. `starts` are
    seconds by arm, `faults` are [arm, when, reason], `replicas` [arm, when, block, count, declared], `budget_spent` is
    a share, `resumptions` a number, `ended` the interim analysis after which the load ended.
    """
    recipe = dict(recipe)
    suite = _suite(texts[recipe.pop("measured_by")]) if "measured_by" in recipe else judging
    declared = recipe.pop("deployments", {})
    assert declared.keys() <= set(Arm), f"no such arm: {sorted(declared)}"
    arms = {arm: _deployment(suite, arm, declared.get(arm.value, {})) for arm in Arm}
    run = _run(suite, arms, recipe.pop("run", {}))
    load = tuple(_load(suite, recipe.pop("load", {})))
    load += tuple(_search(suite, recipe.pop("capacity", {})))
    quality = tuple(_evals(recipe.pop("evals", {})))
    shadow, fixed = recipe.pop("shadow", None), recipe.pop("texts", None)
    noise, history = recipe.pop("noise", None), recipe.pop("history", [])
    spent, ended = recipe.pop("budget_spent", None), recipe.pop("ended", None)
    starts = recipe.pop("starts", {})
    resumptions = range(recipe.pop("resumptions", 0))
    replicas = recipe.pop("replicas", [])
    found = Evidence(
        run=run,
        load=load,
        quality=quality,
        shadow=None if shadow is None else _shadow(shadow),
        target_faults=tuple(DeploymentFault(Arm(f[0]), f[1], f[2]) for f in recipe.pop("faults", [])),
        telemetry=tuple(_telemetry(load, recipe.pop("telemetry", {}))),
        starts=tuple(ServerStart(Arm(arm), i, s) for arm, times in starts.items() for i, s in enumerate(times)),
        divergence=None if fixed is None else _divergence(Texts(**fixed)),
        noise=None if noise is None else _noise(noise, run),
        ended=None if ended is None else LoadEnd(**ended),
        history=tuple(_past_run(k, one, run) for k, one in enumerate(history)),
        attempts=tuple(_attempt(k, one, run) for k, one in enumerate(recipe.pop("attempts", []))),
        budget_spent=None if spent is None else BudgetReading(spent, "made up", _STARTED),
        resumptions=tuple(Resumption(f"2026-01-01T0{k}:00:00Z", 7, (), (k,)) for k in resumptions),
        replicas=tuple(ReplicaCount(Arm(r[0]), r[1], r[2], r[3], r[4]) for r in replicas),
    )
    assert not recipe, f"unknown words of a recipe: {sorted(recipe)}"
    return found


def _run(suite: Suite, arms: Mapping[Arm, Deployment], words: Plain) -> Run:
    words = dict(words)
    stored = suite.to_stored() | ({"calibration": True} if words.pop("calibration", False) else {})
    status = RunStatus(words.pop("status", "complete"))
    if "arms" in words:  # those that the run knows
        arms = {Arm(name): arms[Arm(name)] for name in words.pop("arms")}
    run = Run(
        id="run-1",
        suite_name=suite.suite,
        suite=stored,
        suite_sha256="s" * 64,
        measurement_sha256="m" * 64,
        plan_sha256="p" * 64,
        seed=suite.seed,
        tool_version="0",
        label=None,
        status=status,
        started_at=_STARTED,
        finished_at=_FINISHED,
        environment={},
        arms=arms,
    )
    return replace(run, **words)


def _deployment(suite: Suite, arm: Arm, words: Plain) -> Deployment:
    """Describe a deployment as the suite declares it; `words` replace what the suite does not say, or says wrongly."""
    name = suite.baseline if arm is Arm.BASELINE else suite.candidate
    spec = suite.deployments[name]
    fields: Plain = {"settings": {}, "price_terms": {}, "token_prices": {}}
    if spec.embedded is not None:
        fields["settings"] = {"weights": spec.embedded.weights}
    if spec.price is not None and spec.price_terms is not None:
        fields["price_terms"] = spec.price_terms.to_stored(spec.price)
    if spec.token_prices is not None:
        fields["token_prices"] = spec.token_prices.to_stored()
    fields |= {"price_usd_per_hour": spec.usd_per_hour, "accelerators": spec.accelerators, "url": spec.url}
    return Deployment(name=name, engine=spec.engine, **{"model": spec.model or "tiny", **fields, **words})


def _noise(words: Plain, run: Run) -> NoiseProfile:
    """`spreads` maps "metric statistic place" ("-" for no statistic) to the standard deviation between two runs."""
    words = dict(words)
    key = noise_key(run.arms[Arm.BASELINE], run.environment, run.measurement_sha256)
    pairs, made_at = words.pop("pairs", 10), words.pop("measured_at", "2025-12-20T00:00:00Z")
    spreads = tuple(
        NoiseSpread(metric, None if statistic == "-" else statistic, place, sd, sd, pairs)
        for (metric, statistic, place), sd in ((name.split(), sd) for name, sd in words.pop("spreads").items())
    )
    version, run_id = words.pop("engine_version", "0.11.0"), words.pop("run_id", "calibration")
    assert not words, f"unknown words of a noise profile: {sorted(words)}"
    return NoiseProfile(key, made_at, run_id, pairs, spreads, engine_version=version)


def _past_arm(name: str, run: Run) -> PastArm:
    """`baseline` and `candidate` are the arms of the run itself; every other name is a release of its own."""
    own = {arm.value: past_arm(deployment, run.environment) for arm, deployment in run.arms.items()}
    hardware = own["baseline"].hardware
    name, elsewhere = name.removesuffix(" elsewhere"), name.endswith(" elsewhere")
    known = own.get(name) or PastArm(name, name, name, hardware)
    return replace(known, hardware="elsewhere") if elsewhere else known


def _past_run(number: int, words: Plain, run: Run) -> PastRun:
    """`checks` maps an id to [effect, half width of its interval, value of the baseline]."""
    checks = {}
    for name, (effect, reach, value) in words.get("checks", {}).items():
        share = name.startswith(("accuracy", "goodput", "error_rate", "validity"))
        unit, scale = (Unit.RATIO, Scale.DIFFERENCE) if share else (Unit.SECONDS, Scale.LOG_RATIO)
        ours = value + effect if share else value * math.exp(effect)
        checks[name] = PastCheck(name, unit, scale, value, ours, effect, effect - reach, effect + reach, 0.05, 8)
    arms = [_past_arm(words[side], run) for side in ("baseline", "candidate")]
    return PastRun(f"run-{number:04}-xxxxxx", f"2025-11-{number + 1:02}T00:00:00Z", None, arms[0], arms[1], checks)


def _attempt(number: int, words: Plain, run: Run) -> Attempt:
    arms = [_past_arm(words[side], run) for side in ("baseline", "candidate")]
    at = f"2025-12-{number + 1:02}T00:00:00Z"
    return Attempt(f"try-{number:04}-xxxxxx", at, None, arms[0], arms[1], Outcome(words["outcome"]))


def _waivers(words: Plain, judged: Evidence) -> Waivers:
    """`RELEASE` in the file stands for the fingerprint of the candidate."""
    text = words["file"].replace("RELEASE", judged.run.arms[Arm.CANDIDATE].fingerprint[:12])
    return parse_waivers(text, "waivers.yaml", date.fromisoformat(words["as_of"])).waivers


# Load


@dataclass(frozen=True, kw_only=True)
class Client:
    """What the load generator spent; `cpu` and `busiest` are shares of a core, `read_delay_ms` is p50, p99 and max."""

    cpu: float = 0.05
    workers: int = 1
    busiest: float | None = None
    read_delay_ms: Sequence[float] | None = None  # None: not measured
    faults: Sequence[str] = ()
    by_cluster: bool = False
    start_uncertainty_s: float | None = None
    unsolicited: int = 0  # times that the server sent something without a request
    closed_early: int = 0

    def use(self, wall_s: float) -> ClientUse:
        """Return the record of a stage that lasted so long."""
        delays = [None] * 3 if self.read_delay_ms is None else [delay / 1000 for delay in self.read_delay_ms]
        return ClientUse(
            cpu_s=self.cpu * wall_s * self.workers,
            wall_s=wall_s,
            workers=self.workers,
            busiest_share=self.busiest,
            read_delay_p50_s=delays[0],
            read_delay_p99_s=delays[1],
            read_delay_max_s=delays[2],
            faults=tuple(self.faults),
            by_cluster=self.by_cluster,
            start_uncertainty_s=self.start_uncertainty_s,
            unasked=self.unsolicited,
            closed_early=self.closed_early,
        )


def _load(suite: Suite, words: Plain) -> Iterator[LoadObservation]:
    """Yield every execution in order of time: both arms at a place in turn, block by block.

    Words: `baseline` and `candidate`, how they answer anywhere; `at`, place by place; `in_blocks`, block by block
    (counted from 1, one place's words for each arm); `blocks`, how many were measured; `seed`; `lost` and `twice`,
    executions as [place, arm, block].
    """
    if suite.load is None:
        assert not words, "a suite without load has none"
        return
    known = {"baseline", "candidate", "at", "in_blocks", "blocks", "seed", "lost", "twice"}
    assert words.keys() <= known, f"unknown words of a load: {sorted(words.keys() - known)}"
    position, levels, measured = 0, suite.load.classes(suite.slo), measured_arms(suite)
    assert words.get("at", {}).keys() <= {level.name for level in levels}, f"no such place: {list(words['at'])}"
    assert words.get("in_blocks", {}).keys() <= set(range(1, suite.load.blocks + 1)), "no such block"
    for one in (*words.get("at", {}).values(), *words.get("in_blocks", {}).values()):
        assert one.keys() <= set(Arm), f"no such arm: {sorted(one)}"
    for block in range(words.get("blocks", suite.load.blocks)):
        arms = [arm for arm in (tuple(Arm)[::-1] if block % 2 == 1 else tuple(Arm)) if arm in measured]
        for number, level in enumerate(levels):
            asks = {"tokens": level.workload.output_tokens} if isinstance(level.workload.output_tokens, int) else {}
            rate = level.mean_rps if level.is_open else None
            turns = level.turns if level.workload.session is not None else None
            course = [level.schedule.requests, rate, level.schedule.concurrency, suite.load.blocks, turns]
            for arm in arms:
                server = {**asks, **words.get(arm, {}), **words.get("at", {}).get(level.name, {}).get(arm, {})}
                server |= words.get("in_blocks", {}).get(block + 1, {}).get(arm, {})
                place = [level.name, arm.value, block + 1]
                seeds = [words.get("seed", 1), number, arm is Arm.CANDIDATE, block]
                seen = _execution(json.dumps([place, position, server, course, seeds], sort_keys=True))
                yield from [seen] * ((place not in words.get("lost", [])) + (place in words.get("twice", [])))
                position += 1


_NOTHING = RequestColumns.pack([])
_packed = RequestColumns.from_columns


@functools.lru_cache(maxsize=4096)  # most cases have the same healthy baseline
def _execution(key: str) -> LoadObservation:
    """Return one execution: its place, position, words of its server, course, and numbers for `normal`, as JSON."""
    (name, who, _), position, words, course, (seed, place, arm, block) = json.loads(key)
    requests, rate, concurrency, blocks, turns = course
    server = Server(**words)
    factor = math.exp(server.noise * normal(101 * seed + 7 * place + 3 * arm, blocks)[block])
    factor = server.slower * (server.factors[block] if server.factors else factor)
    service_ms = (server.ttft_ms + (server.tokens - 1) * server.step_ms) * factor
    every_ms = 1000 / rate if rate is not None else service_ms / (concurrency or 1)
    z = 1000 * seed + 100 * place + 10 * block + arm
    columns = _packed(request_columns(server, server.requests or requests, every_ms, factor, z))
    if turns is not None:
        columns = replace(columns, session=columns.index - columns.index % turns)
    ramp = left = _NOTHING
    ends, begins = columns.end_ns[columns.end_ns > 0], columns.sent_ns[columns.sent_ns >= 0]
    spanned_s = (max([0, *ends, *columns.intended_ns]) - min([0, *begins])) * 1e-9
    window_s = float(spanned_s if server.window_s is None else server.window_s)
    if server.ramp is not None:
        other = Server(**{**words, "ramp": None, **server.ramp})
        ramp = _packed(request_columns(other, server.ramp["requests"], every_ms, factor, z + 1, ramp=True))
    if server.cancelled:
        broken_off = request_columns(server, server.cancelled, every_ms, factor, z + 2)
        left = _packed({**broken_off, "left": np.ones(server.cancelled, dtype=np.int8)})
    client = Client(**server.client).use(max(window_s, 0.001))
    return LoadObservation(name, Arm(who), block, position, columns, window_s, client, left, ramp)


def _search(suite: Suite, words: Plain) -> Iterator[LoadObservation]:
    """Yield the looks of a search for the capacity.

    Words of an arm: `servers`, each of which takes 100 ms a request; `looks` as [level, [requests of each]]; `late`,
    numbers of the looks at which the load generator was at fault.
    """
    assert words.keys() <= set(Arm), f"no such arm: {sorted(words)}"
    for arm in [arm for arm in Arm if arm.value in words]:
        search, times = words[arm.value], dict[float, int]()
        looks = [(level, requests) for level, several in search["looks"] for requests in several]
        for number, (level, requests) in enumerate(looks):
            assert suite.load is not None and suite.load.capacity is not None
            closed = suite.load.capacity.over == "concurrency"
            columns = _packed(queue_columns(requests, search["servers"], level, closed=closed))
            apart_ns = 2 * number + (arm is Arm.CANDIDATE)  # no two looks are sent at the same nanoseconds
            columns = replace(columns, sent_ns=columns.sent_ns + apart_ns)
            client = ClientUse(cpu_s=0.1, wall_s=10.0, workers=1)
            if number in search.get("late", []):
                client = replace(client, faults=("worker 1 of 1 started 3.0 s late",))
            block = times.get(level, 0)
            times[level] = block + 1
            position = 1000 + 2 * number + (arm is Arm.CANDIDATE)
            window_s = float(columns.end_ns.max() - columns.intended_ns.min()) * 1e-9
            yield LoadObservation(
                f"capacity/{level:.12g}", arm, block, position, columns, window_s, client, _NOTHING, _NOTHING
            )


# Telemetry


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """What a server reports of itself in every stage. A list has a value for each block, in turn."""

    process: Any = None  # changes when the server is restarted; each arm has its own
    restarted: Any = False  # during the stage
    counter_fell: Any = False
    times_counted: Any = 1.0  # what the server counts, as a multiple of what was sent
    hit_ratio: Any = 0.0  # of the prefix cache
    preemptions: Any = 0
    waiting: Any = 0
    queued_s: Any = None  # of each request on average, in the queue
    accepted: Any = None  # share of 100 drafted tokens
    kv_peak: Any = 0.3
    energy_j: Any = None
    kv_after: Any = 0.0
    drained: Any = True
    readings: Any = 2  # during the stage
    unreported: Sequence[str] = ()

    def at(self, block: int, name: str) -> Any:
        """Return the value of a field in a block."""
        value = getattr(self, name)
        return value[block % len(value)] if isinstance(value, list) else value


def _telemetry(load: Sequence[LoadObservation], recipe: Plain) -> Iterator[TelemetryWindow]:
    """Yield a window for each stage, block and arm of the recipe; the classes of a stage share one."""
    assert recipe.keys() <= set(Arm), f"no such arm: {sorted(recipe)}"
    stages: dict[tuple[str, Arm, int], list[LoadObservation]] = {}
    for execution in load:
        stages.setdefault((execution.stage.partition("/")[0], execution.arm, execution.block), []).append(execution)
    for (stage, arm, block), executions in stages.items():
        if arm.value in recipe:
            yield _window(stage, arm, block, executions, Metrics(**recipe[arm.value]))


def _window(
    stage: str, arm: Arm, block: int, executions: Sequence[LoadObservation], metrics: Metrics
) -> TelemetryWindow:
    columns = [rows for execution in executions for rows in execution.parts]
    prompts = float(sum(rows.input_tokens[rows.input_tokens > 0].sum() for rows in columns))
    written = float(sum(rows.output_tokens[rows.output_tokens > 0].sum() for rows in columns))
    times, ended_s = metrics.at(block, "times_counted"), executions[0].window_s
    grown: dict[TelemetryMetric, float] = {
        Counter.REQUESTS: times * sum(map(len, columns)),
        Counter.PROMPT_TOKENS: times * prompts,
        Counter.GENERATION_TOKENS: times * written,
        Counter.PREFIX_QUERIES: prompts,
        Counter.PREFIX_HITS: prompts * metrics.at(block, "hit_ratio"),
        Counter.PREEMPTIONS: float(metrics.at(block, "preemptions")),
    }
    if (queued_s := metrics.at(block, "queued_s")) is not None:
        grown |= {Counter.QUEUE_S: queued_s * 10, Counter.QUEUED: 10.0}
    if (accepted := metrics.at(block, "accepted")) is not None:
        grown |= {Counter.ACCEPTED: accepted * 100, Counter.DRAFTED: 100.0}
    if (energy_j := metrics.at(block, "energy_j")) is not None:
        grown |= {Counter.GPU_ENERGY_J: float(energy_j)}
    start = dict.fromkeys(grown, 1000.0)
    end = {word: 1000.0 + value for word, value in grown.items()}
    if metrics.at(block, "counter_fell"):
        end[Counter.REQUESTS] = 10.0
    waiting, kv_after = float(metrics.at(block, "waiting")), metrics.at(block, "kv_after")
    busy: dict[TelemetryMetric, float] = {
        Gauge.RUNNING: 2.0,
        Gauge.WAITING: waiting,
        Gauge.KV_USAGE: metrics.at(block, "kv_peak"),
    }
    idle: dict[TelemetryMetric, float] = {Gauge.RUNNING: 0.0, Gauge.WAITING: 0.0, Gauge.KV_USAGE: kv_after}
    before = metrics.at(block, "process") or arm.value
    after = f"{before} again" if metrics.at(block, "restarted") else before
    instants = [0.5 + k for k in range(metrics.at(block, "readings")) if 0.5 + k < ended_s]
    found = [
        (0.0, start | idle, before),
        *((at_s, start | busy, before) for at_s in instants),
        (ended_s + 1, end | idle, after),
    ]
    readings = tuple(
        TelemetrySample(
            at_s, {word: value for word, value in values.items() if word.value not in metrics.unreported}, process
        )
        for at_s, values, process in found
    )
    drained = metrics.at(block, "drained")
    return TelemetryWindow(stage, arm, block, executions[0].position, "vllm", ended_s, drained, readings)


# Evals, recorded prompts, fixed texts


def _rows(text: Any) -> frozenset[int]:
    """Return positions: `12` is the first twelve, "3 10-19" is the third after the first and ten more."""
    if isinstance(text, int):
        return frozenset(range(text))
    parts = [part.partition("-") for part in text.split()]
    return frozenset(i for first, _, last in parts for i in range(int(first), int(last or first) + 1))


@dataclass(frozen=True, kw_only=True)
class Answers:
    """How one arm answers a task. A set of items is written as `_rows` reads it; the first four sets are wrong."""

    wrong: Any = 0
    cut: Any = 0  # by the limit of tokens
    empty: Any = 0
    unreadable: Any = 0
    unscored: Any = 0
    missing: Any = 0
    other_prompt: Any = 0
    quick: Any = 0  # answered within 1 ms
    looped: Any = 0  # ends in a repetition loop
    latency_ms: float = 30.0
    score: float | None = None  # mean of a task that is scored by degrees
    sd: float = 0.2  # of the scores; both arms deviate alike
    own_sd: float = 0.0  # of what this arm deviates beyond that
    harness: Plain = field(default_factory=dict)
    expected: int | None = None
    fault: str | None = None


def _evals(recipe: Plain) -> Iterator[QualityObservation]:
    """Yield the answers of both arms, and those of the baseline when it is run `again`.

    A task has `items`, `clusters` to which they belong in turn, and the settings of the harness, unless an arm has its
    own. An arm that is null did not run it.
    """
    for task, words in recipe.items():
        assert words.keys() <= {"items", "clusters", "harness", "baseline", "candidate", "again"}, f"keys of {task}"
        arms = {"baseline": {}, "candidate": {}, **words}
        for who, arm in (("baseline", Arm.BASELINE), ("candidate", Arm.CANDIDATE), ("again", Arm.BASELINE)):
            if arms.get(who) is not None:
                answers = Answers(**{"harness": words.get("harness", {}), **arms[who]})
                items = tuple(_eval_items(task, words["items"], words.get("clusters"), answers, own=len(who)))
                expected = words["items"] if answers.expected is None else answers.expected
                repeat = int(who == "again")
                yield QualityObservation(task, arm, items, expected, answers.fault, answers.harness, repeat)


def _eval_items(task: str, count: int, clusters: int | None, answers: Answers, *, own: int) -> Iterator[EvalItem]:
    names = ("wrong", "cut", "empty", "unreadable", "unscored", "missing", "other_prompt", "quick", "looped")
    of = {name: _rows(getattr(answers, name)) for name in names}
    wrong = of["wrong"] | of["cut"] | of["empty"] | of["unreadable"]
    scores = [float(i not in wrong) for i in range(count)]
    if answers.score is not None:
        deviations = answers.sd * normal(5, count) + answers.own_sd * normal(own, count)
        scores = np.clip(answers.score + deviations, 0, 1).round(6).tolist()
    for i in range(count):
        word = "wrong" if i in wrong else "right"
        if i not in of["missing"]:
            yield EvalItem(
                item_id=f"{task}-{i}",
                doc_hash=f"{task}-d{i}",
                prompt_hash=f"other p{i}" if i in of["other_prompt"] else f"p{i}",
                target_hash=f"t{i}",
                score=None if i in of["unscored"] else scores[i],
                answer="" if i in of["empty"] else word * 40 if i in of["looped"] else word,
                finish_reason="length" if i in of["cut"] else "stop",
                output_tokens=4,
                latency_ns=round((1.0 if i in of["quick"] else answers.latency_ms) * MS),
                error="no answer" if i in of["unscored"] else None,
                choice="[invalid]" if i in of["unreadable"] else None,
                cluster=None if clusters is None else str(i % clusters),
            )


def _both_answered(judged: Evidence) -> dict[str, tuple[Sequence[EvalItem], Sequence[EvalItem]]]:
    found = {(one.task, one.arm): one.items for one in judged.quality if one.repeat == 0}
    return {task: (found[task, Arm.BASELINE], found[task, Arm.CANDIDATE]) for task, _ in found}


_EQUAL = PairFacts(AnswerAgreement.EXACT, differs=False, exact=True, normalised=True)
_OTHER = PairFacts(AnswerAgreement.DIFFERENT, differs=True, exact=False, normalised=False, at_character=3, at_word=1)


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """How one recorded prompt was answered. A text names those for whom it is so: primary, secondary, candidate."""

    differs: str = ""
    no_answer: str = ""
    empty: str = ""
    refuses: str = ""
    form: bool = False  # whether the prompt asks for a form
    formless: str = ""  # answers that need none, such as those that call no tool
    invalid: str = ""  # answers that do not have it
    cut: str = ""
    quick: str = ""  # answered in 1 ms
    looped: str = ""  # answers that end in a repetition loop
    plain: str = ""  # answers without an anomaly; of all others it is not known
    once: bool | None = None  # the baseline was asked once
    judged: str | None = None
    judged_itself: str | None = None
    judge_error: str | None = None
    unread: str | None = None  # why its similarity is missing
    lost: bool = False  # it is not there at all


def _shadow(words: Plain) -> ShadowObservation:
    """Return `prompts` prompts, `of_all` how each is answered, and `rows` how those at some positions are.

    With `facts: false` the digests of the answers alone are known.
    """
    assert words.keys() <= {"prompts", "of_all", "rows", "facts", "fault"}, f"keys of prompts: {sorted(words)}"
    recipes: list[Plain] = [dict(words.get("of_all", {})) for _ in range(words["prompts"])]
    for group in words.get("rows", []):
        for i in _rows(group["at"]):
            recipes[i] |= {key: value for key, value in group.items() if key != "at"}
    prompts = [Prompt(**one) for one in recipes]
    items = [_shadow_item(i, one, facts=words.get("facts", True)) for i, one in enumerate(prompts) if not one.lost]
    return ShadowObservation(tuple(items), len(prompts), words.get("fault"))


def _shadow_item(number: int, prompt: Prompt, *, facts: bool) -> ShadowItem:
    digests: dict[str, str | None] = {}
    answers: dict[str, AnswerFacts | None] = {}
    for who in ("primary", "secondary", "candidate"):
        answered = who not in prompt.no_answer and not (who == "secondary" and prompt.once)
        digests[who] = (
            None if not answered or who in prompt.empty else f"other {who}" if who in prompt.differs else "same"
        )
        took_ns = (1 if who in prompt.quick else 900) * MS
        valid = who not in prompt.invalid if prompt.form and who not in prompt.formless else None
        looped = who in prompt.looped if who in prompt.looped + prompt.plain else None
        replaced = None if looped is None else False
        known = AnswerFacts(40, took_ns, who in prompt.refuses, 50, valid, looped, replaced)
        answers[who] = known if answered and facts else None

    def pair(one: str, other: str) -> PairFacts | None:
        if not facts or digests[one] is None or digests[other] is None:
            return None
        return _EQUAL if digests[one] == digests[other] else _OTHER

    return ShadowItem(
        prompt_id=f"{number:04}",
        prompt_sha256=f"{number}",
        primary=digests["primary"],
        secondary=digests["secondary"],
        candidate=digests["candidate"],
        primary_finish="length" if "primary" in prompt.cut else "stop",
        secondary_finish="length" if "secondary" in prompt.cut else "stop",
        candidate_finish="length" if "candidate" in prompt.cut else "stop",
        error="made up" if prompt.no_answer else None,
        once=prompt.once,
        primary_facts=answers["primary"],
        secondary_facts=answers["secondary"],
        candidate_facts=answers["candidate"],
        with_primary=pair("candidate", "primary"),
        with_secondary=pair("candidate", "secondary"),
        own=pair("secondary", "primary"),
        judged=None if prompt.judged is None else JudgeVerdict(prompt.judged),
        judged_itself=None if prompt.judged_itself is None else JudgeVerdict(prompt.judged_itself),
        judge_error=prompt.judge_error,
        similarity_error=prompt.unread,
    )


@dataclass(frozen=True, kw_only=True)
class Texts:
    """How both models read fixed texts. A set of positions is written as `_rows` reads it."""

    pieces: int = 20
    each: int = 10  # positions of a piece
    kld: float = 0.01  # mean of the divergences, which are distributed exponentially
    other_top: Any = 0  # positions at which the candidate finds another token the most probable
    worse: float = 0.0  # nats by which the candidate finds the text less probable
    spread: float = 0.05  # of that
    floor_kld: float | None = None  # the same of the baseline asked again, where it was
    floor_other_top: Any = 0
    floor_missing: Any = 0
    no_common_token: Any = 0  # positions at which the arms list no token in common
    unreported: Any = 0  # positions of whose own token no probability is known
    negative: Any = 0  # positions with a divergence that cannot be
    repeated: bool = False  # all positions of a piece are one
    bound: bool = False  # only a lower bound of the divergence is known
    expected: int | None = None
    fault: str | None = None
    way: Any = "n_probs"


def _divergence(texts: Texts) -> DivergenceObservation:
    count = texts.pieces * texts.each
    points, deviations = uniform(0, count), normal(9, count)
    amounts = -np.log1p(-points)
    names = ("other_top", "floor_other_top", "floor_missing", "no_common_token", "unreported", "negative")
    of = {name: _rows(getattr(texts, name)) for name in names}
    items = []
    for i in range(count):
        baseline_ln = -1.5 - float(points[i])
        candidate_ln = min(0.0, baseline_ln - texts.worse - texts.spread * float(deviations[i]))
        again = texts.floor_kld is not None and i not in of["floor_missing"]
        item = DivergenceItem(
            text_id=f"t{i // texts.each}",
            piece=0,
            position=0 if texts.repeated else i % texts.each,
            kld=-0.5 if i in of["negative"] else float(texts.kld * amounts[i]),
            same_top1=i not in of["other_top"],
            bound=texts.bound,
            shared=0 if i in of["no_common_token"] else 20,
            baseline_ln=None if i in of["unreported"] else baseline_ln,
            candidate_ln=None if i in of["unreported"] else candidate_ln,
            floor_kld=float((texts.floor_kld or 0.0) * amounts[count - 1 - i]) if again else None,
            floor_same_top1=i not in of["floor_other_top"] if again else None,
        )
        items.append(item)
    expected = count if texts.expected is None else texts.expected
    top = 20 if texts.bound else 264
    return DivergenceObservation(tuple(items), expected, texts.fault, texts.way, top, not texts.bound)
