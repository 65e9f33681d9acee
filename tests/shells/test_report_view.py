from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from datetime import date

import numpy as np
import pytest

from benchgate import units
from benchgate.cli.options import Format
from benchgate.cli.output import OutputOptions, shown
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence
from benchgate.model.verdict import CheckResult, GuardResult, Outcome, Scale, Unit
from benchgate.pipeline.judge import Decision, report_html
from benchgate.report import view as view_module
from benchgate.report.checks import CheckRow, Strip, check_rows
from benchgate.report.comparability import sides
from benchgate.report.document import OWN, Terms, verdict_document
from benchgate.report.section import Example, Examples, walk
from benchgate.report.sections.load import load_figures, slo_sentence
from benchgate.report.sections.stages import stage_rows
from benchgate.report.table import Table
from benchgate.report.view import ReportView, report_view
from benchgate.suite.schema import Suite
from tests.fakes import evidence as fake

MINUS = "\N{MINUS SIGN}"
DASH = "\N{EN DASH}"


def row(**changes: object) -> CheckRow:
    check: CheckResult = replace(fake.check(), **changes)  # type: ignore[arg-type]  # named by each test
    return check_rows(replace(fake.verdict(), checks=(check,))).all[0]


def test_more_latency_is_a_rise_and_worse() -> None:
    shown = row(harm=math.log(1.25), lower=math.log(1.1), upper=math.log(1.5))
    assert (shown.change, shown.direction, shown.interval) == ("+25.0 %", "worse", "+10.0 to +50.0 %")
    assert shown.allowed == "a rise of at most 10 %"


def test_less_throughput_is_a_fall_and_worse() -> None:
    shown = row(
        metric="output_throughput",
        harm=-math.log(0.8),
        lower=-math.log(0.9),
        upper=-math.log(0.7),
        margin=-math.log(0.95),
    )
    assert (shown.change, shown.direction, shown.interval) == (
        f"{MINUS}20.0 %",
        "worse",
        f"{MINUS}30.0 to {MINUS}10.0 %",
    )
    assert shown.allowed == "a fall of at most 5 %"


@pytest.mark.parametrize(
    ("metric", "margin", "said"),
    [
        ("ttft", math.log1p(0.6), "60 %"),
        ("output_throughput", -math.log1p(-0.6), "60 %"),
        ("output_throughput", -math.log1p(-0.4), None),  # ln(1 / 0.6), which is a rise by two thirds
    ],
)
def test_wide_margins_are_named_as_the_suite_wrote_them(metric: str, margin: float, said: str | None) -> None:
    check = replace(fake.check(), metric=metric, margin=margin)
    notes = report_view(fake.evidence(), replace(fake.verdict(), checks=(check,))).notes
    wide = [note for note in notes if note.startswith("Margins of up to")]
    assert wide == [] if said is None else wide[0].startswith(f"Margins of up to {said} are wide")


def test_lost_accuracy_is_a_fall_in_points() -> None:
    shown = row(
        metric="accuracy", scale=Scale.DIFFERENCE, unit=Unit.RATIO, harm=0.03, lower=-0.01, upper=0.05, margin=0.02
    )
    assert (shown.change, shown.interval, shown.allowed) == (
        f"{MINUS}3.00 points",
        f"{MINUS}5.00 to +1.00 points",
        "a fall of at most 2 points",
    )


def test_more_errors_are_a_rise_in_points() -> None:
    shown = row(
        metric="error_rate", scale=Scale.DIFFERENCE, unit=Unit.RATIO, harm=0.03, lower=0.01, upper=0.05, margin=0.02
    )
    assert (shown.change, shown.direction, shown.allowed) == ("+3.00 points", "worse", "a rise of at most 2 points")


def test_an_slo_shows_the_candidates_own_value_and_no_baseline() -> None:
    shown = row(scale=Scale.ABSOLUTE, baseline=None, candidate=0.4, harm=0.4, lower=0.3, upper=0.6, margin=0.5)
    assert (shown.baseline, shown.candidate, shown.change, shown.direction) == (DASH, "400 ms", DASH, "")
    assert (shown.interval, shown.allowed) == ("300 to 600 ms", "at most 500 ms")


def test_what_was_not_measured_says_so_and_has_no_strip() -> None:
    shown = row(baseline=None, candidate=None, harm=None, lower=None, upper=None)
    assert (shown.baseline, shown.candidate, shown.change) == ("not measured", "not measured", DASH)
    assert shown.strip is None


def strip(**changes: object) -> Strip:
    drawn = row(**changes).strip
    assert drawn is not None
    return drawn


def test_the_strip_puts_no_harm_and_the_margin_in_the_same_places_for_every_check() -> None:
    latency = strip(harm=0.0, lower=-0.01, upper=0.02)
    goodput = strip(
        metric="goodput", unit=Unit.RATIO, scale=Scale.ABSOLUTE, harm=0.95, lower=0.9, upper=0.99, margin=0.95
    )
    rate = strip(
        metric="output_throughput",
        unit=Unit.TOKENS_PER_S,
        scale=Scale.ABSOLUTE,
        harm=200.0,
        lower=100.0,
        upper=400.0,
        margin=100.0,
    )
    assert latency.estimate == latency.zero
    assert goodput.estimate == goodput.limit
    assert (rate.lower, rate.estimate, rate.upper) == (75.0, 100.0, rate.limit)


def test_an_estimate_past_the_strip_is_marked_as_beyond_it() -> None:
    assert strip(harm=math.inf, lower=-math.inf, upper=math.inf).beyond == 1
    assert strip(harm=-5.0, lower=-6.0, upper=-4.0).beyond == -1
    assert strip(harm=0.0, lower=-6.0, upper=4.0).beyond == 0


@pytest.mark.parametrize(
    ("measured", "shown"),
    [
        ("95.0 %", "95 %"),
        ("12.50 ms", "12.5 ms"),
        ("100 %", "100 %"),
        ("0.200 points", "0.2 points"),
        ("5.00 s", "5 s"),
    ],
)
def test_a_bound_is_shown_without_the_zeros_of_a_measurement(measured: str, shown: str) -> None:
    assert units.without_zeros(measured) == shown


def table(view: ReportView, anchor: str, caption: str) -> Table:
    section = view.section(anchor)
    assert section is not None
    return next(table for table in section.tables if table.caption.startswith(caption))


def examples(view: ReportView) -> tuple[Example, ...]:
    section = view.section("shadow")
    assert section is not None
    return tuple(one for part in walk(section.parts) if isinstance(part, Examples) for one in part.examples)


def test_a_stage_that_was_planned_and_never_measured_is_in_the_table() -> None:
    evidence = replace(fake.evidence(), load=fake.load(stages=("c1",)))
    speed = table(report_view(evidence, fake.verdict()), "load", "Speed")
    assert speed.rows[2][:5] == ("c4", "baseline", "4 in flight", "not measured", DASH)


def test_the_order_of_the_blocks_is_what_was_observed() -> None:
    client = report_view(fake.evidence(), fake.verdict()).section("client")
    assert client is not None
    assert client.sentences[-1].endswith(": B C · C B · B C · C B")


def test_cost_follows_price_and_throughput_and_is_left_out_without_a_price() -> None:
    evidence = fake.evidence()
    cost = table(report_view(evidence, fake.verdict()), "cost", "Cost")
    level, price, output, _, good, *_ = cost.rows[0][2:]
    # 2 / (3600 * 192 / 2.361) * 1e6
    assert (level, price, output, good) == ("1 in flight", "$2.00/h", "$6.83", "$6.83")
    free = {arm: replace(deployment, price_usd_per_hour=None) for arm, deployment in evidence.run.arms.items()}
    section = report_view(replace(evidence, run=replace(evidence.run, arms=free)), fake.verdict()).section("cost")
    assert section is not None and not section.tables


def test_an_arm_without_a_price_says_so_beside_one_that_has() -> None:
    evidence = fake.evidence()
    arms = dict(evidence.run.arms)
    arms[Arm.BASELINE] = replace(arms[Arm.BASELINE], price_usd_per_hour=None)
    cost = table(report_view(replace(evidence, run=replace(evidence.run, arms=arms)), fake.verdict()), "cost", "Cost")
    assert cost.rows[0] == ("c1", "baseline", "1 in flight", "no price", *[DASH] * 5)


def test_what_differs_between_the_arms_is_listed_and_what_is_equal_counted() -> None:
    fairness = report_view(fake.evidence(), fake.verdict()).fairness
    assert [(d.name, d.baseline, d.candidate) for d in fairness.differences] == [
        ("declared: weights", "f16", "q4_0"),
        ("reported: meta.size", "4200000", "1250000"),
    ]
    assert fairness.equal == 7
    assert fairness.fair


def test_a_fault_that_a_guard_already_tells_is_not_told_twice() -> None:
    guard = GuardResult("targets-up", True, "the candidate q4 did not answer at the start: connection refused", None)
    told = report_view(fake.faults_only(), replace(fake.verdict(), guards=(guard,))).fairness
    untold = report_view(fake.faults_only(), fake.verdict()).fairness
    assert (told.faults, told.fair) == ((), False)
    assert untold.faults == ("candidate q4 was unreachable at the start: connection refused",)


def test_the_same_deployment_on_both_sides_is_pointed_out() -> None:
    evidence = fake.evidence()
    twice = dict.fromkeys(Arm, evidence.run.arms[Arm.BASELINE])
    fairness = report_view(replace(evidence, run=replace(evidence.run, arms=twice)), fake.verdict()).fairness
    assert fairness.cautions == ("both arms are the same deployment: any difference is noise",)


def test_examples_are_the_prompts_where_only_the_candidate_differs() -> None:
    found = examples(report_view(fake.evidence(), fake.verdict()))
    assert [example.prompt_id for example in found] == [
        "prompt-003",
        "prompt-009",
    ]


def test_without_texts_there_are_no_examples_and_the_limits_say_why() -> None:
    view = report_view(replace(fake.evidence(), shadow=fake.shadow(texts=False)), fake.verdict())
    assert examples(view) == ()
    assert any("were not stored" in limit for limit in view.provenance.limits)


def test_a_run_id_that_is_a_shell_word_trap_is_quoted_in_the_command() -> None:
    view = report_view(fake.evidence("$(reboot)"), fake.verdict(Outcome.PASS))
    assert view.provenance.command == "benchgate gate '$(reboot)'"


def test_a_reference_that_was_blocked_itself_is_a_limit_of_the_comparison() -> None:
    terms = Terms(reference_outcome=Outcome.BLOCK)
    view = report_view(fake.evidence("run-b"), fake.verdict(), against=fake.evidence("run-a"), terms=terms)
    assert any("The reference run's own verdict was BLOCK" in limit for limit in view.provenance.limits)
    passed = report_view(fake.evidence("run-b"), fake.verdict(), against=fake.evidence("run-a"))
    assert not any("own verdict" in limit for limit in passed.provenance.limits)


def test_a_strict_warning_has_one_answer_everywhere() -> None:
    view = report_view(fake.evidence(), fake.verdict(Outcome.WARN), terms=Terms(strict=True))
    assert (view.banner.exit_code, "not promoted" in view.banner.title) == (10, True)
    assert '"promotes":false' in view.numbers.text


def test_only_a_candidate_that_may_be_promoted_is_told_how() -> None:
    def todo(evidence: Evidence, outcome: Outcome = Outcome.PASS, **changes: object) -> str:
        verdict = replace(fake.verdict(outcome), next_step="ask more", **changes)  # type: ignore[arg-type]  # a field's
        return report_view(evidence, verdict).banner.todo

    measured = fake.evidence("run-b")
    command = "`benchgate promote run-b`"
    assert todo(measured).startswith(f"ask more; promote it, and record that with {command} (outside CI")
    assert command in todo(measured, Outcome.WARN)
    assert "promote run-b --waivers FILE --as-of 2026-01-02`" in todo(measured, as_of=date(2026, 1, 2))
    others = [todo(measured, one) for one in Outcome if not one.promotes]
    calibrated = replace(measured.run, suite={**measured.run.suite, "calibration": True})
    others += [todo(replace(measured, run=calibrated)), todo(measured, policy_sha256="0" * 64)]
    partly = replace(measured, run=replace(measured.run, environment={"only": "load"}))
    assert report_view(partly, fake.verdict(Outcome.PASS)).banner.notice.startswith("Only load was measured")
    others.append(todo(partly))
    strictly = report_view(measured, replace(fake.verdict(Outcome.WARN), next_step=None), terms=Terms(strict=True))
    compared = report_view(measured, fake.verdict(), against=fake.evidence("run-a"))
    others += [strictly.banner.todo, compared.banner.todo]
    assert not [one for one in others if "promote" in one]


def test_a_replaced_slo_is_the_one_that_is_shown() -> None:
    evidence = fake.evidence()
    own = Suite.from_stored(evidence.run.suite)
    assert own.slo is not None
    policy = own.model_copy(update={"slo": own.slo.model_copy(update={"target_ratio": 0.5})})
    view = report_view(evidence, fake.verdict(), terms=Terms(policy=policy))
    assert {row.target_ratio for row in stage_rows(sides(evidence, None), policy)} == {0.5}
    assert any("the target is 50 % of" in line for section in view.sections for line in section.sentences)
    assert view.provenance.command.endswith(" --policy SUITE")
    assert any("another policy" in limit for limit in view.provenance.limits)


@pytest.mark.parametrize("against", [None, "run-a"])
def test_every_command_that_judges_names_the_policy_that_replaced_the_runs_own(against: str | None) -> None:
    verdict = replace(fake.verdict(), policy_sha256="0" * 64)
    held = None if against is None else fake.evidence(against)
    shown = report_view(fake.evidence("run-b"), verdict, against=held).provenance
    lines = [shown.command, *(one.line for one in shown.more if "benchgate run" not in one.line)]
    assert len(lines) == 3
    assert all(line.startswith(shown.command) and "--policy SUITE" in line for line in lines)
    own = report_view(fake.evidence("run-b"), fake.verdict(), against=held).provenance
    assert not any("--policy" in one.line for one in own.more)


def test_how_the_load_generator_measured_is_told_where_it_was_not_as_usual() -> None:
    usual = fake.evidence()
    assert client_facts(usual) == {"processes": "1", "read delays measured by": "not measured"}
    first, *others = usual.load
    client = replace(first.client, workers=3, read_delay_by="kernel", start_uncertainty_s=0.002)
    requests = replace(first.requests, reconnects=np.array([1, 2, *first.requests.reconnects[2:]]))
    told = client_facts(replace(usual, load=(replace(first, client=client, requests=requests), *others)))
    assert told["processes"] == "1 to 3"
    assert told["read delays measured by"] == "kernel timestamps of every answer, not measured"
    assert told["start skew"].endswith("up to 2.00 ms apart")
    assert told["resent requests"].startswith("baseline 2, candidate 0")


def client_facts(evidence: Evidence) -> dict[str, str]:
    groups = report_view(evidence, fake.verdict()).provenance.groups
    return next(dict(group.facts) for group in groups if group.title == "Load generator")


def test_a_class_with_an_slo_of_its_own_is_shown_with_it_and_with_its_target() -> None:
    evidence = fake.evidence()
    stored = Suite.from_stored(evidence.run.suite).to_stored()
    own = {"ttft_s": 0.1, "tpot_s": None, "e2e_s": None, "target_ratio": 0.9}
    classes = {"people": {"concurrency": 4, "requests": 24, "slo": own}, "batch": {"concurrency": 1, "requests": 24}}
    stored["load"]["sweep"][1] = {"name": "c4", "classes": classes}
    load = tuple(replace(o, stage=f"c4/{name}") for o in evidence.load for name in (classes if o.stage == "c4" else ()))
    measured, suite = replace(evidence, load=load, run=replace(evidence.run, suite=stored)), Suite.from_stored(stored)
    assert slo_sentence(suite) == (
        "A good request succeeds with TTFT ≤ 50 ms, TPOT ≤ 12 ms; the target is 95 % of the requests scheduled. "
        "At c4/people with TTFT ≤ 100 ms; the target is 90 % of the requests scheduled"
    )
    rows = stage_rows(sides(measured, None), suite)
    assert {row.stage: row.target_ratio for row in rows} == {"c1": 0.95, "c4/people": 0.9, "c4/batch": 0.95}
    goodput = load_figures(rows, {})[0][-1]
    assert "Short lines: target of each stage." in goodput.caption


def test_guards_that_had_nothing_to_look_at_stand_apart_from_those_that_hold() -> None:
    blind = GuardResult("cache-cold", False, "not looked at", None, known=False)
    verdict = replace(fake.verdict(), guards=(*fake.verdict().guards, blind))
    view = report_view(fake.evidence(), verdict)
    assert blind not in view.fairness.held
    assert view.fairness.unknown == (blind,)
    assert view.fairness.fair
    assert '"known":false' in view.numbers.text
    assert '"known"' not in report_view(fake.evidence(), fake.verdict()).numbers.text


def test_a_decision_makes_each_part_of_its_report_once_for_all_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Counter[str] = Counter()

    def counted(name: str) -> None:
        made = getattr(view_module, name)

        def count(*args: object, **options: object) -> object:
            calls[name] += 1
            return made(*args, **options)

        monkeypatch.setattr(view_module, name, count)

    parts = ("quality_section", "load_section", "stage_rows", "numbers", "provenance", "check_rows")
    for name in parts:
        counted(name)
    evidence, verdict = fake.evidence(), fake.verdict()
    decision = Decision(evidence, None, verdict, OWN, verdict_document(evidence.run, verdict))
    for output in Format:
        shown(decision, OutputOptions(output), decision.exit_code)
    report_html(decision)
    report_html(decision, in_site=True)
    assert calls == dict.fromkeys(parts, 1)


def test_text_alone_needs_no_more_than_the_quality_section(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(view_module, "load_section")
    evidence, verdict = fake.evidence(), fake.verdict()
    decision = Decision(evidence, None, verdict, OWN, verdict_document(evidence.run, verdict))
    assert "quality: recovery" in shown(decision, OutputOptions(), decision.exit_code)
