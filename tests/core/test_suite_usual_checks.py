"""A suite that writes no checks: what it is held to then, and that nothing of it goes unjudged."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchgate.errors import SuiteError
from benchgate.gate.checks.shares import widened
from benchgate.gate.evidence.shares import Counts
from benchgate.gate.judge import judge
from benchgate.model.deployment import Arm
from benchgate.model.run import LoadObservation
from benchgate.model.verdict import Outcome
from benchgate.stats.means import paired_t
from benchgate.stats.sequential import look_alphas
from benchgate.suite.loader import default_checks, line_of, parse_suite
from benchgate.suite.schema import Suite
from tests.fakes.measured import measured

DEPLOYMENTS = """\
suite: usual
deployments:
  old: {url: "http://one:8000", model: m}
  new: {url: "http://two:8000", model: m}
baseline: old
candidate: new
"""
CHAT = "{input: 64 tokens, output: 32 tokens}"
LOAD = """\
load:
  workload: WORKLOAD
  blocks: 10
  sweep:
    - {stage: c4, concurrency: 4, requests: 40}
    - {stage: c8, concurrency: 8, requests: 150}
"""


MIXED = """\
load:
  workload: WORKLOAD
  sweep:
    - stage: mix
      classes: {chat: {rate: 4/s, requests: 400}, batch: {concurrency: 8, background: true}}
    - {stage: c4, concurrency: 4, requests: 40}
"""
ERRORS = "    - {{metric: error_rate, margin: 1 point}}\n"
ACCURACY = """\
gate:
  checks:
    - {{metric: accuracy, margin: 2 points}}
    - {{metric: error_rate, margin: 1 point}}
    - {{metric: accuracy, stage: {}, margin: 5 points}}
"""


def suite_of(*sections: str, workload: str = CHAT) -> Suite:
    return parse_suite(DEPLOYMENTS + "".join(sections).replace("WORKLOAD", workload), "s.yaml")


def lines(*sections: str, workload: str = CHAT) -> list[str]:
    return [line_of(check) for check in suite_of(*sections, workload=workload).gate.checks]


def test_without_a_gate_every_stage_is_held_to_what_a_promotion_should_be() -> None:
    assert lines(LOAD) == [
        "{metric: error_rate, margin: 1 point}",
        "{metric: ttft, margin: 5%}",
        "{metric: ttft, statistic: p95, margin: 10%}",
        "{metric: tpot, margin: 5%}",
        "{metric: tpot, statistic: p95, margin: 10%}",
        "{metric: output_throughput, margin: 5%}",
        "{metric: ttft, statistic: p99, stage: c8, margin: 10%, required: false}",
    ]


def test_at_an_operating_stage_few_checks_are_required_and_elsewhere_none() -> None:
    suite = suite_of(LOAD, "gate: {operating: c8}\n")
    at = {stage: [check for check in suite.gate.checks if check.stage == stage] for stage in ("c4", "c8")}
    assert len(at["c4"]) + len(at["c8"]) == len(suite.gate.checks)
    assert not any(check.required for check in at["c4"])
    assert [check.metric for check in at["c8"] if check.required] == [
        "error_rate", "ttft", "ttft", "tpot", "tpot", "output_throughput",
    ]  # fmt: skip
    assert {check.metric for check in at["c4"]} == {"error_rate", "ttft", "tpot", "output_throughput"}


@pytest.mark.parametrize(
    ("workload", "metrics"),
    [
        ("{input: 64 tokens, output: 32 tokens, stream: false}", ["e2e", "e2e", "output_throughput"]),
        ("{input: 64 tokens, output: 1 tokens}", ["ttft", "ttft", "output_throughput"]),
        ("{input: 64 tokens, endpoint: embeddings}", ["e2e", "e2e", "request_throughput"]),
        ('{input: 64 tokens, output: 32 tokens, schema: {type: object}}',
         ["ttft", "ttft", "tpot", "tpot", "output_throughput", "validity"]),
    ],
)  # fmt: skip
def test_only_what_the_answers_have_is_judged(workload: str, metrics: list[str]) -> None:
    checks = suite_of(LOAD, workload=workload).gate.checks
    assert [check.metric for check in checks if check.required] == ["error_rate", *metrics]


def test_an_slo_is_held_and_a_tail_that_cannot_be_shown_is_not_asked_for() -> None:
    few = LOAD.replace("requests: 150", "requests: 29")
    assert "{metric: goodput}" in lines(LOAD, "slo: {ttft: 1s}\n")
    of_a_part = [line for line in lines(few) if "statistic" in line]
    assert sorted(of_a_part) == [
        "{metric: tpot, statistic: mean, stage: c8, margin: 5%}",
        "{metric: tpot, statistic: p95, stage: c4, margin: 10%}",
        "{metric: ttft, statistic: mean, stage: c8, margin: 5%}",
        "{metric: ttft, statistic: p95, stage: c4, margin: 10%}",
    ]
    whole = lines(few, workload="{input: 64 tokens, output: 32 tokens, stream: false}")
    assert "{metric: e2e, statistic: mean, stage: c8, margin: 5%}" in whole


def test_classes_of_traffic_are_judged_each_and_the_background_may_not_fail() -> None:
    mix = """\
load:
  workload: {input: 64 tokens, output: 32 tokens}
  sweep:
    - stage: mix
      classes:
        chat: {rate: 4/s, requests: 40, slo: {ttft: 200ms}}
        bulk: {rate: 1/s, requests: 40}
        batch: {concurrency: 8, background: true}
"""
    assert "{metric: error_rate, margin: 1 point}" in lines(mix)
    assert "{metric: goodput, stage: mix/chat}" in lines(mix)
    operating = suite_of(mix, "gate: {operating: mix/chat}\n")
    assert line_of(operating.gate.checks[0]) == "{metric: error_rate, stage: mix, margin: 1 point}"
    assert {c.stage for c in operating.gate.checks if c.required} == {"mix", "mix/chat"}


def test_evals_texts_prompts_and_searches_have_usual_checks_of_their_own() -> None:
    sections = (
        "quality: {tasks: [gsm8k, {task: mine, metric: quaint, scale: continuous}, arc_easy], repeat_baseline: true}\n",
        "divergence: {texts: t.jsonl}\n",
        'shadow: {prompts: p.jsonl, judge: {url: "http://j", model: j, send_text: true}}\n',
        "slo: {ttft: 1s}\n",
        "load: {workload: WORKLOAD, capacity: {over: rate, from: 1/s, to: 8/s, resolution: 5%}}\n",
    )
    assert lines(*sections) == [
        "{metric: capacity, margin: 12.5%}",
        "{metric: accuracy, margin: 2 points}",
        "{metric: accuracy, task: each, margin: 5 points, required: false}",
        "{metric: score, task: mine, margin: 2 points}",
        "{metric: flips, margin: 5 points}",
        "{metric: perplexity, margin: 2%}",
        "{metric: shadow_excess, margin: 5 points, block_when: breach}",
        "{metric: judge_loss, margin: 5 points}",
    ]
    assert lines("quality: {tasks: [gsm8k], stop_early: true}\n") == ["{metric: accuracy, margin: 2 points}"]


def test_answers_among_the_load_have_a_usual_check_at_their_stage() -> None:
    verified = LOAD.replace("requests: 40}", "requests: 40, verify: 10%}").replace(
        "requests: 150}", "requests: 150, verify: 5%}"
    )
    evals = "quality: {tasks: [gsm8k]}\n"
    assert lines(verified, evals)[-3:] == [
        "{metric: accuracy, margin: 2 points}",
        "{metric: accuracy, stage: c4, margin: 5 points}",
        "{metric: accuracy, stage: c8, margin: 5 points}",
    ]
    assert lines(verified, evals, "gate: {operating: c4}\n")[-2:] == [
        "{metric: accuracy, stage: c4, margin: 5 points}",
        "{metric: accuracy, stage: c8, margin: 5 points, required: false}",
    ]


def test_tails_have_their_requests_in_each_region() -> None:
    regions = (
        "  regions: {a: 'tcp://a:1', b: 'tcp://b:1', c: 'tcp://c:1', d: 'tcp://d:1', e: 'tcp://e:1', f: 'tcp://f:1'}\n"
    )
    load = LOAD.replace("blocks: 10", "blocks: 20").replace("150", "75")
    load = load.replace("concurrency: 4", "concurrency: 6").replace("concurrency: 8", "concurrency: 12")
    assert any("p99" in line for line in lines(load))
    assert not any("p95" in line or "p99" in line for line in lines(load + regions))


def test_search_too_coarse_for_a_usual_check_needs_one_of_its_own() -> None:
    load = "load: {workload: WORKLOAD, capacity: {over: rate, from: 1/s, to: 8/s, resolution: 40%}}\n"
    with pytest.raises(SuiteError) as refused:
        suite_of("slo: {ttft: 1s}\n", load)
    (problem,) = refused.value.problems
    assert (problem.path, problem.line) == ("load.capacity.resolution", 8)
    own = suite_of("slo: {ttft: 1s}\n", load, "gate: {checks: [{metric: capacity, margin: 60%}]}\n")
    assert default_checks(own) == ()
    alone = "quality: {tasks: [{task: mine, metric: quaint, scale: continuous}]}\n"
    assert lines(alone) == ["{metric: score, task: mine, margin: 2 points}"]


def test_the_stored_suite_shows_them_and_reads_back_as_it_is() -> None:
    suite = suite_of(LOAD, "gate: {operating: c4}\n")
    stored = suite.to_stored()
    assert len(stored["gate"]["checks"]) == len(suite.gate.checks) > 0
    assert Suite.from_stored(stored) == suite


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ([LOAD, "gate: {operating: c9}\n"],
         's.yaml:13:19: gate.operating: no stage of the sweep is named "c9"; expected one of c4, c8'),
        ([LOAD, "gate: {operating: c4, checks: [{metric: error_rate, max: 1%}]}\n"],
         "`operating` is for the usual checks; a check that is written names its own `stage`"),
        (["quality: {tasks: [gsm8k]}\n", "gate: {operating: c4}\n"], "gate.operating: is a stage of `load.sweep`"),
        ([LOAD, "gate: {checks: []}\n"], "gate.checks: found an empty list; expected a list with at least one entry"),
        ([LOAD, "gate: {opperating: c4}\n"], "did you mean `operating`?"),
        ([MIXED, "gate: {operating: mix/batch}\n"], "gate.operating: runs in the background"),
        (["divergence: {texts: t.jsonl, way: cut}\n", "gate: {checks: [{metric: perplexity, margin: 2%}]}\n"],
         "gate.checks[0].metric: `divergence.way: cut` gives no perplexity"),
        (["divergence: {texts: t.jsonl, way: cut}\n"], "gate: what this suite measures has no usual checks"),
        (["quality: {tasks: [gsm8k]}\n", ACCURACY.replace(ERRORS, "").format("c4")],
         '"c4" sends no eval items; name a stage with `verify`'),
        ([MIXED, "quality: {tasks: [gsm8k]}\n", ACCURACY.format("mix/chat")], '"mix/chat" sends no eval items'),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_with_its_place(sections: list[str], says: str) -> None:
    with pytest.raises(SuiteError) as caught:
        suite_of(*sections)
    (problem,) = caught.value.problems
    assert says in str(problem)


def test_what_only_an_author_can_bound_needs_checks_of_his_own() -> None:
    text = DEPLOYMENTS.replace('{url: "http://one:8000", model: m}', "{embedded: {}}")
    text = text.replace('{url: "http://two:8000", model: m}', "{embedded: {weights: q8_0}}")
    with pytest.raises(SuiteError, match=r"s\.yaml:1:1: gate: what this suite measures has no usual checks"):
        parse_suite(f"{text}start: {{times: 3}}\n", "s.yaml")


def test_a_suite_that_is_wrong_elsewhere_is_not_told_of_checks_it_never_wrote() -> None:
    broken = 'shadow: {prompts: p.jsonl, judge: {url: "http://j", model: j, send_text: true}, limit: 0}\n'
    with pytest.raises(SuiteError) as caught:
        suite_of(broken, "quality: {tasks: [gsm8k], stop_early: true}\n")
    (problem,) = caught.value.problems
    assert "shadow.limit" in str(problem)


@pytest.mark.parametrize(("requests", "seen_by"), [(60, "tpot-p95"), (14, "tpot-mean")])
def test_a_part_of_the_answers_that_slows_thirty_times_is_not_promoted(requests: int, seen_by: str) -> None:
    """Two answers of five: every median stays where it was."""
    suite = suite_of(LOAD.replace("requests: 150", f"requests: {requests}").replace("requests: 40", "requests: 60"))
    evidence = measured(suite)
    evidence = replace(evidence, load=tuple(map(_spread, evidence.load)))
    assert {one.outcome for one in judge(suite, evidence).checks if one.metric == "tpot"} == {Outcome.PASS}
    slowed = replace(evidence, load=tuple(map(_slowed, evidence.load)))
    verdict = judge(suite, slowed)
    assert verdict.outcome is Outcome.BLOCK
    outcomes = {check.id: check.outcome for check in verdict.checks}
    assert outcomes["tpot-p50@c8"] is not Outcome.BLOCK
    assert outcomes[f"{seen_by}@c8"] is Outcome.BLOCK


def _spread(execution: LoadObservation) -> LoadObservation:
    """The requests another two seconds apart: the last one ends last, also where others are slowed."""
    requests = execution.requests
    later = np.arange(len(requests), dtype=np.int64) * 2_000_000_000
    times = {name: getattr(requests, name) + later for name in ("intended_ns", "sent_ns", "end_ns")}
    chunks = requests.chunk_ns + np.repeat(later, np.diff(requests.chunk_start))
    window_s = float(times["end_ns"].max() - times["intended_ns"].min()) / 1e9
    return replace(execution, requests=replace(requests, chunk_ns=chunks, **times), window_s=window_s)


def _slowed(execution: LoadObservation) -> LoadObservation:
    """The candidate's first two requests of every five at a thirtieth of their pace; the window as it was."""
    if execution.arm is Arm.BASELINE:
        return execution
    requests = execution.requests
    chunks = requests.chunk_ns.reshape(len(requests), -1)
    factor = np.where(np.arange(len(requests)) % 5 < 2, 30, 1)[:, None]
    chunks = chunks[:, :1] + (chunks - chunks[:, :1]) * factor
    return replace(execution, requests=replace(requests, chunk_ns=chunks.reshape(-1), end_ns=chunks[:, -1].copy()))


def test_an_equal_candidate_passes_the_usual_error_rate_as_often_as_the_page_says() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/suite.md").read_text(encoding="utf-8")
    shares = (0.0, 0.001, 0.0025, 0.005, 0.01)
    rows = re.findall(r"^\| ([\d,]+) \| (\d+) \| >?(\d+) \| >?(\d+) \| (\d+) \| (\d+) \|$", page, re.MULTILINE)
    told = {int(first.replace(",", "")): dict(zip(shares, map(int, cells), strict=True)) for first, *cells in rows}
    assert list(told) == [400, 600, 1200, 2240]
    alpha, generator = look_alphas((0.25, 0.5, 1.0), 0.05)[-1], np.random.default_rng(5)

    def passes(requests: int, share: float) -> bool:
        """Limits of the difference over 20 blocks of both arms, as the gate takes them."""
        each = requests // 20
        ours, theirs = (generator.binomial(each, share, 20) for _ in range(2))
        test = paired_t((ours - theirs) / each, alpha)
        assert test is not None
        sides = [Counts(tuple(map(int, side)), (each,) * 20) for side in (ours, theirs)]
        found = widened(test.limits, sides[0], sides[1], alpha)
        return found is not None and found[0].upper < 0.01

    assert (passes(400, 0.0), passes(300, 0.0)) == (True, False)
    for requests, share in ((600, 0.001), (1200, 0.005), (600, 0.01)):
        seen = sum(passes(requests, share) for _ in range(200))
        assert seen / 2 == pytest.approx(told[requests][share], abs=11)  # three standard errors
