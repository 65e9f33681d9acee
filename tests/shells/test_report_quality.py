"""The quality part of a report: what each table says, where its limits come from, and what the plot draws."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import replace

import pytest

from benchgate.gate.comparison import compare
from benchgate.gate.judge import judge
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence
from benchgate.model.verdict import Scale, Verdict
from benchgate.report.charts import Figure
from benchgate.report.section import Facts, Section, walk
from benchgate.report.sections.quality import flips_table, forest_figure, headline_of, quality_section, scores_table
from benchgate.report.sections.tasks import Estimate, TaskRow, count_answers, pooled_tasks, summarise_task, task_rows
from benchgate.suite.quality import TaskEntry
from benchgate.suite.schema import Suite
from tests.fakes import evidence as fake
from tests.fakes import hostile
from tests.fakes.evals import Answers, evidence_of, suite_of
from tests.fakes.measured import Effect, SuiteText, measured

MINUS = "\N{MINUS SIGN}"
DASH = "\N{EN DASH}"
MARGIN: dict[str, object] = {"metric": "accuracy", "margin": "5 points"}


def judged(
    *checks: dict[str, object], wrong: tuple[int, ...] = (1, 2, 3), items: int = 300
) -> tuple[Evidence, Verdict]:
    suite = SuiteText([*checks, {"metric": "error_rate", "margin": "5 points"}]).suite()
    evidence = measured(suite, Effect(wrong=wrong), items=items)
    return evidence, judge(suite, evidence)


def section_of(evidence: Evidence, verdict: Verdict) -> Section:
    section = quality_section(compare(evidence), verdict, Suite.from_stored(evidence.run.suite))
    assert section is not None
    return section


def rows_of(evidence: Evidence, verdict: Verdict) -> tuple[TaskRow, ...]:
    return task_rows(compare(evidence), verdict, Suite.from_stored(evidence.run.suite))


def forest_of(rows: Sequence[TaskRow]) -> Figure | None:
    return forest_figure(rows, scores_table(rows))


def facts_of(section: Section) -> tuple[tuple[str, str], ...]:
    return next(part.pairs for part in walk(section.parts) if isinstance(part, Facts))


def texts(figure: Figure) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(figure.svg).iter("text")]


def test_lost_and_gained_items_are_counted_by_id() -> None:
    add, sort = (
        summarise_task(name, *(o for o in fake.quality() if o.task == name)) for name in ("tiny_add", "tiny_sort")
    )
    assert (add.paired, add.lost, add.gained) == (40, 3, 1)
    assert (add.baseline_ratio, add.candidate_ratio) == (38 / 40, 36 / 40)
    both = pooled_tasks([add, sort], "all tasks")
    assert (both.paired, both.lost, both.gained) == (80, 5, 1)
    assert both.flipped_ratio == pytest.approx(6 / 80)
    assert both.recovery_ratio == pytest.approx(73 / 77)


def test_unscored_items_are_missing_from_the_pairs_and_seen_in_the_expected() -> None:
    baseline, candidate = fake.quality()[:2]
    unscored = replace(
        candidate, items=(replace(candidate.items[0], score=None), *candidate.items[1:]), fault="cut off"
    )
    summary = summarise_task("tiny_add", baseline, unscored)
    assert (summary.paired, summary.expected, summary.faults) == (39, 40, ("candidate: cut off",))


def test_a_task_that_one_arm_never_ran_has_no_accuracy() -> None:
    summary = summarise_task("tiny_add", fake.quality()[0], None)
    assert (summary.paired, summary.candidate_ratio, summary.recovery_ratio) == (0, None, None)
    assert summary.faults == ("candidate: not measured",)


def test_an_empty_run_has_no_section() -> None:
    assert quality_section(compare(replace(fake.evidence(), quality=())), fake.verdict(), fake.suite()) is None


def test_wrong_answers_that_differ_are_counted_where_answers_are_known() -> None:
    baseline, candidate = (
        replace(o, items=tuple(replace(item, choice=choice) for item, choice in zip(o.items, choices, strict=True)))
        for o, choices in zip(fake.quality()[:2], (["1"] * 40, ["1"] * 39 + ["2"]), strict=True)
    )
    assert summarise_task("tiny_add", baseline, candidate).other_wrong == 1
    assert summarise_task("tiny_add", *fake.quality()[:2]).other_wrong is None


def test_continuous_scores_are_means_and_have_no_flips() -> None:
    baseline, candidate = (
        replace(o, items=tuple(replace(item, score=score) for item in o.items), harness={"scale": "continuous"})
        for o, score in zip(fake.quality()[:2], (0.5, 0.4), strict=True)
    )
    task = summarise_task("rouge", baseline, candidate)
    assert (task.lost, task.gained, task.flipped_ratio) == (None, None, None)
    assert task.baseline_ratio == pytest.approx(0.5)
    assert task.recovery_ratio == pytest.approx(0.8)


def test_a_large_task_weighs_no_more_than_a_small_one() -> None:
    small, large = (summarise_task(name, *(o for o in fake.quality() if o.task == name)) for name in fake.TASKS)
    large = replace(large, paired=4000, expected=4000)
    pooled = pooled_tasks([small, large], "all tasks")
    assert pooled.baseline_ratio == pytest.approx((38 / 40 + 39 / 40) / 2)


def test_answers_are_counted_by_what_was_wrong_with_them() -> None:
    observation = fake.quality()[0]
    first, second, third, *others = observation.items
    items = (
        replace(first, answer=" ", choice="[invalid]"),
        replace(second, finish_reason="length", choice="7"),
        replace(third, error="HTTP 500", score=None),
        *others,
    )
    counts = count_answers(replace(observation, items=items))
    assert (counts.answered, counts.failed, counts.empty, counts.cut, counts.unread) == (39, 1, 1, 1, 1)
    assert counts.output_tokens == 2.0


def test_a_judged_task_is_shown_with_the_limits_of_its_check() -> None:
    evidence, verdict = judged(MARGIN, MARGIN | {"task": "each", "margin": "8 points"})
    rows = rows_of(evidence, verdict)
    by_task = {check.task: check for check in verdict.checks if check.metric == "accuracy"}
    for row in rows:
        check = by_task[None if row.pooled else row.task]
        assert check.harm is not None
        assert check.upper is not None
        assert row.change is not None
        assert (row.change.value, row.change.lower) == (-check.harm, -check.upper)
        assert row.margin == check.margin
    assert [row.outcome for row in rows] == [by_task[name].outcome for name in ("add", "sort", None)]


def test_the_only_task_is_allowed_what_the_check_over_all_tasks_allows() -> None:
    evidence, verdict = judged(MARGIN)
    one = replace(evidence, quality=tuple(o for o in evidence.quality if o.task == "add"))
    suite = Suite.from_stored(evidence.run.suite)
    assert suite.quality is not None
    tasks = [entry for entry in suite.quality.tasks if entry.task == "add"]
    narrowed = suite.model_copy(update={"quality": suite.quality.model_copy(update={"tasks": tasks})})
    (row,) = task_rows(compare(one), verdict, narrowed)
    (check,) = (check for check in verdict.checks if check.metric == "accuracy")
    assert check.task is None
    assert (row.margin, row.outcome) == (0.05, check.outcome)


def test_a_task_that_a_check_of_all_tasks_alone_judges_is_allowed_what_it_allows() -> None:
    suite = suite_of([{"metric": "score", "margin": "2 points"}, MARGIN], ["a", "chrf"])
    right, points = Answers([1.0] * 80), Answers([40.0 + i % 3 for i in range(60)], harness={"scale": "continuous"})
    evidence = evidence_of(suite, {"a": (right, right), "chrf": (points, points)})
    verdict = judge(suite, evidence)
    checks = {check.metric: check for check in verdict.checks}
    assert (checks["accuracy"].task, checks["score"].task) == (None, "chrf")
    shown = {row.task: (row.margin, row.outcome) for row in task_rows(compare(evidence), verdict, suite)}
    assert shown == {
        "a": (0.05, checks["accuracy"].outcome),
        "chrf": (checks["score"].margin, checks["score"].outcome),
    }


def test_a_task_without_a_check_has_an_interval_and_no_allowance() -> None:
    evidence, verdict = judged({"metric": "shadow_excess", "margin": "5 points"})
    rows = rows_of(evidence, verdict)
    assert [row.margin for row in rows] == [None] * 3
    assert all(row.change is not None and row.change.lower < -0.01 < row.change.upper for row in rows)
    table = scores_table(rows)
    allowed = [column.title for column in table.columns].index("allowed")
    assert {row[allowed] for row in table.rows} == {DASH}


def test_the_scores_say_lost_gained_and_change_with_its_sign() -> None:
    evidence, verdict = judged(MARGIN)
    add = scores_table(rows_of(evidence, verdict)).rows[0]
    assert add[:5] == ("add", "300", "100 %", "99.0 %", f"{MINUS}1.00 points")
    assert add[-2:] == ("3", "0")


def test_the_short_form_names_recovery_flips_and_the_worst_task() -> None:
    lines = section_of(fake.evidence(), fake.verdict()).lines
    assert lines[0].startswith("recovery 94.8 %")
    assert "over 2 tasks, 80 items" in lines[0]
    assert lines[1].startswith("6 answers flipped (7.50 %)")
    assert lines[2].startswith(f"worst task tiny_add: {MINUS}5.00 points (")


def test_the_short_form_counts_the_tasks_and_items_that_it_speaks_of() -> None:
    alike, one_lost = (Answers([1.0] * 80), Answers([1.0] * 80)), (Answers([1.0] * 80), Answers([0.0] + [1.0] * 79))
    points = Answers([40.0] * 60, harness={"scale": "continuous"})
    lines = _short_form({"a": alike, "b": one_lost, "chrf": (points, points)})
    assert lines[0].endswith(" over 2 tasks, 160 items")
    assert lines[1].startswith("1 answer flipped (")
    assert _short_form({"a": alike, "b": alike})[-1] == "no task scores lower"


def test_flips_over_all_tasks_weigh_each_task_equally_as_their_check_does() -> None:
    large = (Answers([1.0] * 400), Answers([0.0] * 20 + [1.0] * 380))
    small = (Answers([1.0] * 40), Answers([1.0] * 40))
    assert "20 answers flipped (2.50 %, the mean of the tasks)" in _short_form({"large": large, "small": small})


def test_a_task_that_was_not_measured_is_named_and_counts_as_no_gain() -> None:
    alike, unmeasured = (Answers([1.0] * 80), Answers([1.0] * 80)), (Answers([1.0] * 80), Answers([None] * 80))
    *_, known, unknown = _short_form({"a": alike, "b": unmeasured})
    assert known == "no task that could be compared scores lower"
    assert unknown == "not compared: b"


def test_a_change_and_its_limits_are_not_rounded_onto_the_margin() -> None:
    (row, *_) = rows_of(*judged(MARGIN))
    near = replace(row, margin=0.02, change=Estimate(-0.0101, -0.02004, 0.001))
    assert near.shown_limits == f"{MINUS}2.004 to +0.100 points"
    assert near.shown_limits in scores_table([near]).rows[0]
    figure = forest_of([near])
    assert figure is not None and figure.title.endswith(f"({near.shown_limits})")


def _short_form(tasks: dict[str, tuple[Answers, Answers]]) -> tuple[str, ...]:
    suite = suite_of([{**MARGIN, "task": "a"}], list(tasks))
    found = evidence_of(suite, tasks)
    return section_of(found, judge(suite, found)).lines


def test_how_the_tasks_were_asked_is_told_once_where_it_is_the_same_and_counts_are_no_setting() -> None:
    evidence = fake.evidence()
    told = [
        replace(o, harness={"lm_eval": "0.4.13", "num_fewshot": 5 if o.task == "tiny_add" else 0, "retries": i})
        for i, o in enumerate(evidence.quality)
    ]
    facts = dict(facts_of(section_of(replace(evidence, quality=tuple(told)), fake.verdict())))
    assert facts == {"lm_eval": "0.4.13", "num_fewshot": "tiny_add: 5; tiny_sort: 0"}


def test_arms_that_were_asked_otherwise_are_told_apart() -> None:
    evidence = fake.evidence()
    told = [
        replace(o, harness={"endpoint": "chat" if o.arm is Arm.BASELINE else "completions"}) for o in evidence.quality
    ]
    facts = dict(facts_of(section_of(replace(evidence, quality=tuple(told)), fake.verdict())))
    assert facts["endpoint"] == "tiny_add: chat / completions; tiny_sort: chat / completions"


def test_a_second_baseline_is_no_task_of_its_own() -> None:
    evidence = fake.evidence()
    again = tuple(replace(o, repeat=1) for o in evidence.quality if o.arm is Arm.BASELINE)
    twice = rows_of(replace(evidence, quality=(*again, *evidence.quality)), fake.verdict())
    assert [row.task for row in twice] == ["tiny_add", "tiny_sort", "all tasks"]
    assert scores_table(twice) == scores_table(rows_of(evidence, fake.verdict()))


def test_a_group_of_tasks_stands_below_its_tasks_and_the_check_on_it_beside_it() -> None:
    evidence, _ = judged(MARGIN | {"task": "mmlu"}, wrong=())
    suite = Suite.from_stored(evidence.run.suite)
    assert suite.quality is not None
    named = suite.model_copy(
        update={"quality": suite.quality.model_copy(update={"tasks": (entry("mmlu"), entry("arc"))})}
    )
    renamed = {"add": "mmlu/mmlu_law", "sort": "mmlu/mmlu_art"}
    quality = [replace(o, task=renamed[o.task]) for o in evidence.quality]
    quality += [replace(o, task="arc") for o in evidence.quality if o.task == "add"]
    check = replace(fake.check(), metric="accuracy", task="mmlu", stage=None, margin=0.05, scale=Scale.DIFFERENCE)
    verdict = replace(fake.verdict(), checks=(check,))
    rows = task_rows(compare(replace(evidence, quality=tuple(quality))), verdict, named)
    assert [(row.task, row.pooled) for row in rows] == [
        ("mmlu/mmlu_law", False), ("mmlu/mmlu_art", False), ("mmlu", True), ("arc", False), ("all tasks", True)
    ]  # fmt: skip
    assert [row.margin for row in rows] == [None, None, 0.05, None, None]
    assert rows[2].counts.paired == 600


def test_a_group_is_one_task_of_all_its_items_in_every_number_of_its_row() -> None:
    suite = suite_of([MARGIN], ["mmlu", "arc"])
    tasks = {"mmlu/law": (100, 90, 60), "mmlu/art": (900, 450, 450), "arc": (200, 150, 150)}
    evidence = evidence_of(
        suite,
        {
            task: (Answers([1.0] * was + [0.0] * (n - was)), Answers([1.0] * now + [0.0] * (n - now)))
            for task, (n, was, now) in tasks.items()
        },
    )
    for verdict in (judge(suite, evidence), replace(fake.verdict(), checks=())):
        rows = {cells[0]: cells[1:5] for cells in scores_table(task_rows(compare(evidence), verdict, suite)).rows}
        assert rows["mmlu"] == ("1,000", "54.0 %", "51.0 %", f"{MINUS}3.00 points")
        assert rows["all tasks"] == ("1,200", "64.5 %", "63.0 %", f"{MINUS}1.50 points")


def entry(name: str) -> TaskEntry:
    return TaskEntry(task=name)


def test_flips_beyond_the_baselines_own_have_their_floor_and_limits() -> None:
    evidence, verdict = judged(MARGIN, wrong=tuple(range(20)))
    again = tuple(
        replace(o, repeat=1, items=tuple(replace(x, score=0.0) if i < 6 else x for i, x in enumerate(o.items)))
        for o in evidence.quality
        if o.arm is Arm.BASELINE
    )
    rows = rows_of(replace(evidence, quality=(*evidence.quality, *again)), verdict)
    row = rows[0]
    assert row.floor_ratio == pytest.approx(6 / 300)
    # 14 differ from both answers of the baseline, 6 from one of them, and the baseline itself in those 6.
    assert row.excess is not None
    assert row.excess.value == pytest.approx((14 + 6 / 2 - 6) / 300)
    assert row.excess.lower < row.excess.value < row.excess.upper
    assert "beyond the baseline's own" in list(headline_of(rows))[1]
    flips = flips_table(rows)
    titles = [column.title for column in flips.columns]
    assert flips.rows[0][titles.index("beyond its own")] == "+3.67 points"
    once = rows_of(evidence, verdict)
    assert once[0].excess is None
    assert "beyond its own" not in [column.title for column in flips_table(once).columns]


def test_a_task_that_was_stopped_early_says_after_how_many_items() -> None:
    evidence, verdict = judged(MARGIN, wrong=tuple(range(40)))
    cut = tuple(
        replace(o, items=o.items[:40], harness={"stopped_early": {"items": 40}}) if o.task == "add" else o
        for o in evidence.quality
    )
    rows = rows_of(replace(evidence, quality=cut), replace(verdict, checks=()))
    assert list(headline_of(rows))[-1] == "stopped early, because a regression was certain: add after 40 of 300 items"
    assert scores_table(rows).rows[0][1] == "40 of 300"


def test_recovery_has_an_interval_around_it() -> None:
    evidence, verdict = judged(MARGIN, wrong=tuple(range(30)))
    row = rows_of(evidence, verdict)[0]
    assert row.recovery_ratio == pytest.approx(0.9)
    assert row.recovery is not None
    assert 0.86 < row.recovery.lower < 0.9 < row.recovery.upper < 0.94


def test_items_that_cannot_be_paired_have_no_interval_and_say_why() -> None:
    evidence, verdict = judged(MARGIN)
    first, *others = evidence.quality
    other = replace(first, items=tuple(replace(item, prompt_hash="other") for item in first.items))
    unlike = replace(evidence, quality=(other, *others))
    assert rows_of(unlike, replace(verdict, checks=()))[0].change is None
    assert "different prompts" in section_of(unlike, replace(verdict, checks=())).sentences[0]


def test_of_two_stored_runs_the_candidates_are_compared() -> None:
    better, _ = judged(MARGIN, wrong=())
    worse, verdict = judged(MARGIN, wrong=tuple(range(30)))
    suite = Suite.from_stored(worse.run.suite)
    rows = task_rows(compare(better, worse), replace(verdict, checks=()), suite)
    assert scores_table(rows).rows[0][2:5] == ("90.0 %", "100 %", "+10.0 points")
    assert flips_table(rows).rows[0][1] == "10.0 %"


def test_the_plot_names_every_task_and_draws_shapes_that_differ() -> None:
    evidence, verdict = judged(MARGIN, MARGIN | {"task": "each", "margin": "8 points"})
    figure = forest_of(rows_of(evidence, verdict))
    assert figure is not None
    assert {"add", "sort", "all tasks", "change, points"} <= set(texts(figure))
    paths = ElementTree.fromstring(figure.svg).iter("path")
    assert len({path.get("d") for path in paths if path.get("fill") == "#3d7dd8"}) == 2
    assert "Short line: margin." in figure.caption
    assert not any(word in figure.svg for word in ("http", "url(", "style=", "<script", "<image", "href", "#010203"))


def test_a_task_without_an_interval_is_named_and_not_drawn() -> None:
    evidence = fake.evidence()
    partial = replace(
        evidence, quality=tuple(o for o in evidence.quality if o.task == "tiny_add" or o.arm is Arm.BASELINE)
    )
    figure = forest_of(rows_of(partial, replace(fake.verdict(), checks=())))
    assert figure is not None
    assert "tiny_sort" not in texts(figure)
    assert "Not drawn, because there is no interval: tiny_sort" in figure.caption


def test_hostile_task_names_stay_text_in_the_plot() -> None:
    template = fake.quality()[:2]
    named = tuple(replace(o, task=text) for text in hostile.TEXTS for o in template)
    figure = forest_of(rows_of(replace(fake.evidence(), quality=named), replace(fake.verdict(), checks=())))
    assert figure is not None
    root = ElementTree.fromstring(figure.svg)
    assert not [name for element in root.iter() for name in element.attrib if name.startswith("on")]
    assert {element.tag.rpartition("}")[2] for element in root.iter()} <= {
        "svg",
        "g",
        "path",
        "text",
        "title",
        "line",
        "rect",
    }
    assert any("<script>" in text for text in texts(figure))


def test_of_very_many_tasks_those_that_lost_most_are_drawn() -> None:
    pair = fake.quality()[:2]
    many = tuple(replace(o, task=f"t{i:02}") for i in range(60) for o in pair)
    bad = replace(many[-1], items=tuple(replace(item, score=0.0) for item in many[-1].items))
    rows = rows_of(replace(fake.evidence(), quality=(*many[:-1], bad)), replace(fake.verdict(), checks=()))
    figure = forest_of(rows)
    assert figure is not None
    drawn = [text for text in texts(figure) if text.startswith("t") and text[1:].isdigit()]
    assert (len(drawn), drawn[0]) == (39, "t59")
    assert "The 40 of 61 rows with the largest losses are drawn." in figure.caption
    assert len(figure.table.rows) == 61
