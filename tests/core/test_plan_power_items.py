"""What a plan tells of checks that are not of the load: evals, recorded prompts, fixed texts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchgate.model.noise import SelfDisagreement
from benchgate.plan.check_power import CheckPower
from benchgate.plan.items import Piece, PlannedTask, ShadowPrompt
from benchgate.plan.power import shortfalls
from benchgate.plan.schedule import Plan
from benchgate.stats.clusters import mean_share_limits
from benchgate.stats.evals import ScorePairs, accuracy_regression
from benchgate.suite.schema import Suite
from tests.core.test_plan_power import Line, calibrated, only, told
from tests.fakes.evals import suite_of

CONFIG: dict[str, object] = {"test_split": "test", "output_type": "generate_until"}


def task(name: str, n: int, documents: str | None = None, **more: Any) -> PlannedTask:
    ids = (f"{documents or name}-{i}" for i in range(n))
    return PlannedTask(name, CONFIG, tuple({"id": one, "passage": f"p{i // 10}"} for i, one in enumerate(ids)), **more)


def evals(check: Line, *tasks: PlannedTask, **quality: Any) -> CheckPower:
    names = list(dict.fromkeys(one.name.partition("/")[0] for one in tasks))
    suite = suite_of([check], names, **quality)
    return only(suite, Plan(0, (), (), tasks, ()))


@pytest.mark.parametrize(
    ("check", "items", "says"),
    [
        ({"task": "each"}, {"t": 9}, "accuracy@t cannot pass: with 9 items"),
        ({}, {"t": 9, "u": 5}, "accuracy cannot pass: with 14 items"),
        ({"margin": "5 points"}, {"g/a": 400, "g/b": 400}, None),
        ({"task": "g"}, {"g/a": 9, "g/b": 9}, "accuracy@g cannot pass: with 18 items"),
        ({"task": "each", "margin": "15 points"}, {"t": 50}, None),
    ],
)
def test_a_check_that_no_answer_could_pass_is_known_before_the_run(
    check: Line, items: dict[str, int], says: str | None
) -> None:
    row = evals({"metric": "accuracy", "margin": "2 points", **check}, *(task(name, n) for name, n in items.items()))
    (line,) = shortfalls((row,)).certain or (None,)
    assert (line is None) if says is None else (line is not None and line.startswith(says))


def test_items_see_and_need_what_connors_formula_says() -> None:
    row = evals({"metric": "accuracy", "margin": "2 points"}, task("t", 1348))
    assert (row.has, row.needs) == (1348, 1348)
    assert row.sees_95 == pytest.approx(0.02, abs=1e-4)
    assert row.passes == pytest.approx(0.94, abs=0.02)
    small = evals({"metric": "accuracy", "margin": "2 points"}, task("t", 771))
    assert small.sees_80 == pytest.approx(0.02, abs=1e-4)


def test_tasks_of_unlike_sizes_are_worth_what_equal_weights_make_of_them() -> None:
    even = evals({"metric": "accuracy", "margin": "5 points"}, task("t", 500), task("u", 500))
    uneven = evals({"metric": "accuracy", "margin": "5 points"}, task("t", 950), task("u", 50))
    assert even.has == uneven.has == 1000
    assert (uneven.sees_80 or 0) > 2 * (even.sees_80 or 0)


def test_clusters_are_worth_less_and_too_few_are_worth_nothing() -> None:
    alone = evals({"metric": "accuracy", "margin": "5 points"}, task("t", 400))
    together = evals({"metric": "accuracy", "margin": "5 points"}, task("t", 400, cluster_key="passage"))
    assert (together.sees_80 or 0) > (alone.sees_80 or 1)
    assert "worth 108 independent" in (together.note or "")
    few = evals({"metric": "accuracy", "margin": "50 points"}, task("t", 90, cluster_key="passage"))
    assert (few.short, few.passes) == ("certain", 0.0)
    assert "9 clusters" in (few.cannot or "")


def test_one_question_in_several_prompts_of_a_group_is_no_further_question() -> None:
    check: Line = {"metric": "accuracy", "margin": "5 points"}
    alone = evals(check, task("t", 400))
    group = evals(check, *(task(f"g/p{i}", 400, documents="d") for i in range(6)))
    assert "worth 960 independent" in (group.note or "")
    assert (alone.sees_80 or 0) > (group.sees_80 or 1) > (evals(check, task("t", 2400)).sees_80 or 1)
    apart = evals(check, *(task(f"t{i}", 400, documents="d") for i in range(6)))
    assert (apart.note, apart.sees_80) == (group.note, group.sees_80)
    few = evals({**check, "margin": "50 points"}, task("g/a", 9, documents="d"), task("g/b", 9, documents="d"))
    assert "9 clusters" in (few.cannot or "")


def test_a_floor_that_so_few_clusters_do_not_show_though_all_are_right() -> None:
    few = evals({"metric": "accuracy", "min": "95%"}, task("t", 580, cluster_key="passage"))
    assert (few.short, few.passes) == ("certain", 0.0)
    assert "a task with 58 of them" in (few.cannot or "")
    assert evals({"metric": "accuracy", "min": "95%"}, task("t", 590, cluster_key="passage")).short is None


def test_flips_that_so_few_clusters_cannot_exclude_though_none_is_seen() -> None:
    flips: dict[str, object] = {"metric": "flips", "margin": "5 points"}
    few = evals(flips, task("t", 580, cluster_key="passage"), repeat_baseline=True)
    assert (few.short, few.passes) == ("certain", 0.0)
    assert "a task with 58 of them" in (few.cannot or "")
    assert (evals(flips, task("t", 590, cluster_key="passage"), repeat_baseline=True).passes or 0) > 0


def test_tasks_that_share_their_clusters_have_no_more_of_them() -> None:
    both = evals({"metric": "accuracy", "min": "95%"}, task("t", 40, documents="d"), task("u", 40, documents="d"))
    assert (both.short, both.passes) == ("certain", 0.0)
    assert "the 40 that its tasks share" in (both.cannot or "")
    limits = mean_share_limits([np.ones(40)] * 2, [[str(i) for i in range(40)]] * 2, 0.05)
    assert limits is not None and limits[0].lower < 0.95
    flips = {"metric": "flips", "margin": "3 points"}
    three = evals(flips, *(task(name, 60, documents="d") for name in "tuv"), repeat_baseline=True)
    assert (three.short, three.passes) == ("certain", 0.0)


def test_a_margin_that_so_few_clusters_leave_open_where_the_baseline_is_good() -> None:
    margin: Line = {"metric": "accuracy", "margin": "5 points"}
    few = evals(margin, replace(task("t", 4000), rows=cut(100), cluster_key="passage"))
    assert few.passes is None
    assert "a baseline with over 69.3 % right answers cannot pass" in (few.note or "")
    of_clusters = tuple(f"p{i // 100}" for i in range(4000))
    for percent, passes in ((70, False), (69, True)):
        right = np.where(np.arange(4000) % 100 < percent, 1.0, 0.0)  # and no answer of the candidate differs
        limits = accuracy_regression([ScorePairs(right, right, of_clusters)], 0.05).limits
        assert (limits.upper < 0.05) is passes
    assert (evals(margin, task("t", 4000, cluster_key="passage")).passes or 0) > 0


def cut(size: int) -> tuple[dict[str, object], ...]:
    return tuple({"id": str(i), "passage": f"p{i // size}"} for i in range(4000))


def test_of_items_that_are_not_read_yet_nothing_is_foretold() -> None:
    for check in ({"metric": "accuracy", "margin": "5 points"}, {"metric": "accuracy", "min": "50%"}):
        row = evals(check, task("t", 40), task("u", 0, needs="openai/gsm8k"))
        assert row.note == "no forecast: data of its tasks was not read"
        assert row.short is None


def test_a_floor_that_even_all_right_answers_do_not_show() -> None:
    row = evals({"metric": "accuracy", "min": "99%"}, task("t", 298))
    assert (row.short, row.needs) == ("certain", 299)
    assert evals({"metric": "accuracy", "min": "99%"}, task("t", 299)).short is None
    whole = evals({"metric": "accuracy", "min": "100%"}, task("t", 5000))
    assert (whole.short, whole.needs, whole.remedy) == ("certain", None, "give it a lower bound")


def test_a_floor_of_tasks_of_unlike_sizes_is_that_of_the_gates_limits() -> None:
    limits = mean_share_limits([np.ones(20), np.ones(1000)], [None, None], 0.05)
    assert limits is not None
    assert limits[0].lower == pytest.approx(0.9625, abs=1e-4)
    tasks = task("t", 20), task("u", 1000)
    assert evals({"metric": "accuracy", "min": "96.2%"}, *tasks).short is None
    row = evals({"metric": "accuracy", "min": "96.3%"}, *tasks)
    assert row.short == "certain"
    assert "even where all 1,020 items are right, the share may be as low as 96.3 %" in (row.cannot or "")


def test_flips_and_scores() -> None:
    flips = {"metric": "flips", "margin": "5 points", "required": True}
    suite = suite_of([{"metric": "accuracy", "margin": "50 points"}, flips], ["t"], repeat_baseline=True)
    plan = Plan(0, (), (), (task("t", 400),), ())
    row = told(suite, plan).checks[1]
    # 1.645 · (√(0.75 · 0.05 + 0.05 / 2) + √(0.75 · 0.05 + 0.05 - 0.05²)) / 0.05, squared
    assert (row.needs, row.source) == (318, "assumed")
    assert row.passes == pytest.approx(0.99, abs=0.01)
    floor = calibrated(
        disagreement=(SelfDisagreement("task", "t", 0.2, 400), SelfDisagreement("task", "other", 0.9, 400))
    )
    noisy = told(suite, plan, floor).checks[1]
    assert noisy.spread == pytest.approx(0.2)
    assert noisy.measured
    assert (noisy.passes or 1) < (row.passes or 0)
    hopeless = told(suite, Plan(0, (), (), (task("t", 20),), ())).checks[1]
    assert hopeless.short == "certain"
    score = evals({"metric": "score", "margin": "5 points"}, task("t", 30, scale="continuous"))
    assert "score differences" in (score.note or "")


def shadow_suite(check: Line, **shadow: Any) -> Suite:
    return Suite.model_validate(
        {
            "suite": "planned",
            "deployments": {
                "baseline": {"url": "http://b", "model": "m"},
                "candidate": {"url": "http://c", "model": "m"},
            },
            "shadow": {"prompts": "p.jsonl", **shadow},
            "gate": {"checks": [check]},
        }
    )


def prompts(n: int, once: int = 0, forms: int = 0) -> Plan:
    fields = {"response_format": {"type": "json_object"}}
    rows = (ShadowPrompt(str(i), "p", once=i < once, fields=fields if i < forms else {}) for i in range(n))
    return Plan(0, (), (), (), tuple(rows))


def test_recorded_prompts_by_how_their_answers_are_compared() -> None:
    excess = {"metric": "shadow_excess", "margin": "2 points"}
    forms = only(shadow_suite(excess, compare={"by": "json"}), prompts(1000))
    assert (forms.needs, forms.spread) == (1413, 0.05)
    assert only(shadow_suite(excess, compare={"by": "json"}), prompts(1413)).sees_95 == pytest.approx(0.02, abs=1e-5)
    free = only(shadow_suite(excess), prompts(1000))
    assert (free.spread, free.source) == (0.3, "assumed")
    assert (free.passes or 1) < (forms.passes or 0)
    sampled = only(shadow_suite(excess, compare={"by": "json"}, secondary="30%"), prompts(1000, once=700))
    assert (sampled.sees_80 or 0) > (forms.sees_80 or 1)
    assert "300 of the 1,000" in (sampled.note or "")
    seen = only(
        shadow_suite(excess), prompts(1000), calibrated(disagreement=(SelfDisagreement("shadow", "shadow", 0.0, 500),))
    )
    # a difference or two never show an excess
    assert (seen.needs, seen.passes) == (390, 1.0)
    assert (seen.sees_80 or 0) > 3 / 1000
    never_twice = only(shadow_suite(excess, secondary="1%"), prompts(10, once=10))
    assert "twice" in (never_twice.cannot or "")
    quiet = only(
        shadow_suite(excess, secondary="50%"), prompts(100, once=50),
        calibrated(disagreement=(SelfDisagreement("shadow", "shadow", 0.0, 50),)),
    )  # fmt: skip
    assert quiet.passes == 0.0  # without any difference, 50 and 100 prompts leave an excess of 2.6 points possible
    assert (quiet.sees_80 or 0) > 0.03
    assert only(shadow_suite(excess), prompts(0)).note == "no forecast: there are no prompts for it"
    assert only(shadow_suite(excess), prompts(30)).short == "certain"


def test_validity_and_a_judges_losses_are_items_like_any_other() -> None:
    margin = shadow_suite({"metric": "shadow_validity", "margin": "2 points"})
    validity = only(margin, prompts(1348, forms=1348))
    assert (validity.has, validity.needs) == (1348, 1348)
    # only prompts that request a form are judged by it
    few = only(margin, prompts(1348, forms=30))
    assert (few.has, few.short) == (30, "certain")
    assert only(shadow_suite({"metric": "shadow_validity", "min": "99%"}), prompts(500, forms=100)).short == "certain"
    assert only(margin, prompts(500)).note == "no forecast: there are no prompts for it"
    judge_spec = {"url": "http://j", "model": "j", "send_text": True}
    losses = only(shadow_suite({"metric": "judge_loss", "margin": "5 points"}, judge=judge_spec), prompts(400))
    assert losses.spread == pytest.approx(0.136)


def text_plan(pieces: int, positions: int = 20) -> Plan:
    return Plan(0, (), (), (), (), tuple(Piece("t", n, "x", positions) for n in range(pieces)))


def test_fixed_texts_in_too_few_pieces() -> None:
    def rows(plan: Plan) -> dict[str, CheckPower]:
        suite = Suite.model_validate(
            {
                "suite": "planned",
                "deployments": {
                    "baseline": {"url": "http://b", "model": "m"},
                    "candidate": {"url": "http://c", "model": "m"},
                },
                "divergence": {"texts": "t.jsonl"},
                "gate": {"checks": [{"metric": "perplexity", "margin": "2%"}, {"metric": "same_top1", "min": "99.9%"}]},
            }
        )
        return {row.metric: row for row in told(suite, plan).checks}

    assert [row.short for row in rows(text_plan(9)).values()] == ["certain", "certain"]
    enough = rows(text_plan(10))
    assert (enough["perplexity"].short, enough["same_top1"].short) == (None, "certain")  # 200 positions, 2,995 needed
    assert enough["same_top1"].needs == 2995
    assert rows(text_plan(0))["same_top1"].short is None
