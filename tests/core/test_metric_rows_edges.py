"""Which numbers of a run are kept for trends, and which it does not have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from benchgate.gate.checks.capacity import most_looks, search_of
from benchgate.gate.judge import judge
from benchgate.gate.summary.metric_rows import metric_rows
from benchgate.model.deployment import Arm
from benchgate.model.records import ABSENT, AnswerFacts
from benchgate.model.run import Evidence, MetricRow
from benchgate.suite.loader import parse_suite
from tests.core.test_gate_capacity import IN_FLIGHT, searched_run
from tests.fakes import evidence as fake
from tests.fakes import shadow_rows

EVIDENCE = fake.evidence()
# The stage of one request at a time on the baseline: its rate is the mean of those of its blocks.
_WINDOWS_S = [o.window_s for o in EVIDENCE.load if (o.stage, o.arm) == ("c1", Arm.BASELINE)]
WINDOW_S = len(_WINDOWS_S) / sum(1 / window_s for window_s in _WINDOWS_S)


def rows(evidence: Evidence, name: str) -> dict[tuple[Arm, str | None], MetricRow]:
    """The rows of one name by arm and place; one of each."""
    found = [row for row in metric_rows(evidence) if row.name == name]
    by_place = {(row.arm, row.stage or row.task): row for row in found}
    assert len(by_place) == len(found)
    return by_place


def with_suite(stored: Mapping[str, object]) -> Evidence:
    return replace(EVIDENCE, run=replace(EVIDENCE.run, suite=stored))


def test_a_calibration_leaves_no_number() -> None:
    assert metric_rows(with_suite({**EVIDENCE.run.suite, "calibration": True})) == ()


def test_what_has_no_price_has_no_cost_and_all_else() -> None:
    arms = {arm: replace(one, price_usd_per_hour=None) for arm, one in EVIDENCE.run.arms.items()}
    free = replace(EVIDENCE, run=replace(EVIDENCE.run, arms=arms))
    assert not [row for row in metric_rows(free) if row.name.startswith("usd")]
    assert rows(free, "output_throughput") == rows(EVIDENCE, "output_throughput")
    # 8 tokens for each of 24 requests in 2.36 s are 81.3/s; at $2 an hour a million of them cost some $6.83.
    cost = rows(EVIDENCE, "usd_per_million_output_tokens")[Arm.BASELINE, "c1"]
    assert cost.value == pytest.approx(2 / 3600 * 1e6 / (8 * 24) * WINDOW_S)


def test_goodput_is_of_a_run_with_an_slo() -> None:
    suite = fake.suite()
    checks = tuple(check for check in suite.gate.checks if check.metric != "goodput")
    gate = suite.gate.model_copy(update={"checks": checks})
    without = with_suite(suite.model_copy(update={"slo": None, "gate": gate}).to_stored())
    assert rows(without, "goodput") == rows(without, "usd_per_million_good_tokens") == {}
    # Two of four times 24 requests failed on the candidate at c4.
    assert rows(without, "error_rate")[Arm.CANDIDATE, "c4"].value == pytest.approx(2 / 96)


def test_an_answer_that_is_neither_right_nor_wrong_leaves_no_accuracy() -> None:
    first, *others = EVIDENCE.quality
    torn = replace(first, items=(replace(first.items[0], score=None, error="no answer"), *first.items[1:]))
    found = rows(replace(EVIDENCE, quality=(torn, *others)), "accuracy")
    assert (first.arm, first.task) not in found
    assert len(found) == 3
    assert rows(EVIDENCE, "accuracy")[Arm.CANDIDATE, "tiny_add"].value == pytest.approx(36 / 40)


def test_a_task_of_one_arm_has_no_recovery() -> None:
    alone = replace(EVIDENCE, quality=tuple(seen for seen in EVIDENCE.quality if seen.task != "tiny_add")[:1])
    assert rows(alone, "recovery") == rows(alone, "flips") == {}
    assert rows(EVIDENCE, "recovery")[Arm.CANDIDATE, "tiny_add"].value == pytest.approx(36 / 38)


def test_evals_that_were_stopped_early_leave_no_recovery_and_no_flips() -> None:
    stopped = tuple(replace(seen, harness={**seen.harness, "stopped_early": True}) for seen in EVIDENCE.quality)
    early = replace(EVIDENCE, quality=stopped)
    assert rows(early, "recovery") == rows(early, "flips") == {}


def test_items_that_go_together_make_the_interval_wider() -> None:
    seen = tuple(
        replace(one, items=tuple(replace(item, cluster=f"page {at // 10}") for at, item in enumerate(one.items)))
        for one in EVIDENCE.quality
    )
    together = rows(replace(EVIDENCE, quality=seen), "accuracy")[Arm.CANDIDATE, "tiny_add"]
    apart = rows(EVIDENCE, "accuracy")[Arm.CANDIDATE, "tiny_add"]
    assert together.value == apart.value
    assert (together.lower, together.upper) != (apart.lower, apart.upper)
    assert rows(replace(EVIDENCE, quality=seen), "flips")[Arm.CANDIDATE, "tiny_add"].lower is None


def test_a_prompt_asked_once_says_nothing_of_the_noise() -> None:
    assert EVIDENCE.shadow is not None
    name = "shadow_disagreement"
    # Two of 20 differ from both answers of the baseline, and one more from its second alone.
    assert rows(EVIDENCE, name)[Arm.CANDIDATE, None].value == pytest.approx((2 + 3) / 2 / 20)
    once = tuple(replace(item, once=True, secondary=None) for item in EVIDENCE.shadow.items)
    found = rows(replace(EVIDENCE, shadow=replace(EVIDENCE.shadow, items=once)), name)
    assert set(found) == {(Arm.CANDIDATE, None)}
    assert found[Arm.CANDIDATE, None].value == pytest.approx(2 / 20)


def test_shadow_excess_is_net_of_the_baselines_own_noise() -> None:
    found = rows(EVIDENCE, "shadow_excess")
    assert set(found) == {(Arm.CANDIDATE, None)}
    one = found[Arm.CANDIDATE, None]
    # Two of 20 prompts count 1, the one on which the baseline differs from itself, and the candidate sides, -1/2.
    assert one.value == pytest.approx(1.5 / 20) and one.n == 20
    assert one.lower is not None and one.upper is not None and one.lower < one.value < one.upper
    assert EVIDENCE.shadow is not None
    assert rows(replace(EVIDENCE, shadow=replace(EVIDENCE.shadow, fault="interrupted")), "shadow_excess") == {}
    mute = tuple(replace(item, primary=None, secondary=None) for item in EVIDENCE.shadow.items)
    assert rows(replace(EVIDENCE, shadow=replace(EVIDENCE.shadow, items=mute)), "shadow_excess") == {}


def test_shadow_excess_of_answers_that_nobody_could_compare_is_not_kept() -> None:
    unread = {"similarity_error": "HTTP 503"}
    asked, differing = shadow_rows.suite(shadow_rows.EXCESS), shadow_rows.range_of(shadow_rows.different, 0, 30)
    few = shadow_rows.items(*differing, *shadow_rows.range_of(shadow_rows.different, 40, 50, **unread))
    kept = rows(shadow_rows.evidence(asked, few), "shadow_excess")[Arm.CANDIDATE, None]
    assert kept.value == pytest.approx(30 / 290) and kept.n == 290  # the ten that could not be read are left out
    many = shadow_rows.items(*differing, *shadow_rows.range_of(shadow_rows.different, 40, 70, **unread))
    assert rows(shadow_rows.evidence(asked, many), "shadow_excess") == {}


def test_capacity_is_the_middle_of_its_bracket_and_missing_while_an_end_is_open() -> None:
    found = rows(searched_run(2, 4), "capacity")
    # A server answers in 100 ms: two of them carry 20 requests a second, four carry 40.
    for arm, truth in ((Arm.BASELINE, 20.0), (Arm.CANDIDATE, 40.0)):
        one = found[arm, None]
        assert one.lower is not None and one.upper is not None
        assert one.lower <= one.value <= one.upper and one.value == pytest.approx(truth, rel=0.15)
    beyond = rows(searched_run(2, 12), "capacity")  # 120 a second, and the search ends at 64
    assert set(beyond) == {(Arm.BASELINE, None)}
    assert rows(EVIDENCE, "capacity") == rows(EVIDENCE, "capacity_in_flight") == {}
    in_flight = rows(searched_run(2, 4, capacity=IN_FLIGHT), "capacity_in_flight")
    assert in_flight[Arm.CANDIDATE, None].value > in_flight[Arm.BASELINE, None].value


def test_validity_is_of_the_answers_that_were_looked_at() -> None:
    assert EVIDENCE.shadow is not None
    valid = [AnswerFacts(8, 1, False, valid=said) for said in (True, False, None)]
    items = tuple(
        replace(item, primary_facts=None, candidate_facts=[*valid, None][at % 4])
        for at, item in enumerate(EVIDENCE.shadow.items)
    )
    found = rows(replace(EVIDENCE, shadow=replace(EVIDENCE.shadow, items=items)), "shadow_validity")
    assert set(found) == {(Arm.CANDIDATE, None)}
    assert (found[Arm.CANDIDATE, None].value, found[Arm.CANDIDATE, None].n) == (0.5, 10)


def test_shadow_numbers_are_of_the_prompts_that_checks_judge() -> None:
    """A missing answer of the candidate is not valid; a prompt that the baseline did not answer is left out."""
    valid = replace(shadow_rows.FACTS, valid=True)
    both = shadow_rows.range_of(shadow_rows.item, 0, 238, primary_facts=valid, candidate_facts=valid)
    silent = {"candidate": None, "candidate_facts": None, "with_primary": None, "with_secondary": None}
    lost = shadow_rows.range_of(shadow_rows.item, 238, 298, primary_facts=valid, **silent)
    unasked = shadow_rows.range_of(shadow_rows.item, 298, 300, primary=None, primary_facts=None, candidate_facts=valid)
    asked = shadow_rows.suite(shadow_rows.EXCESS, shadow_rows.VALIDITY)
    run = shadow_rows.evidence(asked, shadow_rows.items(*both, *lost, *unasked))
    excess, validity = judge(asked, run).checks
    for check, name in ((excess, "shadow_disagreement"), (validity, "shadow_validity")):
        one = rows(run, name)[Arm.CANDIDATE, None]
        assert one.value == pytest.approx(check.candidate)
        assert one.n == check.n == 298
    broken = shadow_rows.range_of(shadow_rows.item, 0, 10, primary=None, primary_facts=None)
    unusable = shadow_rows.evidence(asked, shadow_rows.items(*broken))
    assert [row for row in metric_rows(unusable) if row.name.startswith("shadow")] == []


def test_a_search_counts_each_of_its_looks() -> None:
    text = """
suite: found
deployments: {a: {url: "http://a", model: m, engine: vllm}, b: {url: "http://b", model: m, engine: vllm}}
baseline: a
candidate: b
slo: {ttft: 1s, target: 90%}
load: {workload: {input: 8, output: 8}, capacity: {over: rate, from: 1/s, to: 8/s}}
gate: {checks: [{metric: capacity, margin: 20%}]}
"""
    search = search_of(parse_suite(text, "s.yaml"))
    assert search is not None
    assert most_looks(search.settings) == 5 * search.settings.most_probes  # a probe ends after five looks at the latest


def test_cost_by_input_and_by_all_tokens_is_of_what_was_counted_alone() -> None:
    """At $2 an hour, 24 requests in 2.36 s: 8 output tokens each, and 32 of input."""
    load = tuple(
        replace(o, requests=replace(o.requests, input_tokens=o.requests.input_tokens * 0 + 32)) for o in EVIDENCE.load
    )
    counted = replace(EVIDENCE, load=load)
    assert rows(counted, "usd_per_million_input_tokens")[Arm.BASELINE, "c1"].value == pytest.approx(
        2 / 3600 * 1e6 / (24 * 32) * WINDOW_S
    )
    assert rows(counted, "usd_per_million_total_tokens")[Arm.BASELINE, "c1"].value == pytest.approx(
        2 / 3600 * 1e6 / (24 * 40) * WINDOW_S
    )
    first = load[0]
    unknown = first.requests.input_tokens.copy()
    unknown[0] = ABSENT
    lost = replace(counted, load=(replace(first, requests=replace(first.requests, input_tokens=unknown)), *load[1:]))
    place = (first.arm, first.stage)
    for name in ("usd_per_million_input_tokens", "usd_per_million_total_tokens"):
        assert place in rows(counted, name) and place not in rows(lost, name)
    assert place in rows(lost, "usd_per_million_output_tokens")
