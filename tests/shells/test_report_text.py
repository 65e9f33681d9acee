from __future__ import annotations

import re
from dataclasses import replace

import pytest

from benchgate.errors import ExitCode
from benchgate.escape import terminal_line
from benchgate.gate.error_budget import spent_checks
from benchgate.gate.judge import doubted, judge
from benchgate.model.run import BudgetReading
from benchgate.model.verdict import GuardResult, Outcome, Verdict
from benchgate.report.document import Terms
from benchgate.report.screen import Screen
from benchgate.report.text import render_text
from benchgate.report.view import report_view
from benchgate.suite.error_budget import ErrorBudget
from tests.fakes import evidence as fake
from tests.fakes import hostile
from tests.fakes.drills import drill
from tests.fakes.measured import SuiteText, measured
from tests.fakes.rendered import render_markdown
from tests.golden import assert_golden

MINUS = "\N{MINUS SIGN}"
DASH = "\N{EN DASH}"


def test_a_blocked_run_renders_as_it_did() -> None:
    assert_golden("report-block.txt", render_text(fake.verdict(), fake.run()))
    for columns in (80, 120):
        text = render_text(fake.verdict(), fake.run(), screen=Screen(columns))
        assert_golden(f"report-block-{columns}.txt", text)
        assert max(map(len, text.splitlines())) <= columns


def test_colours_are_of_outcomes_and_leave_the_text_as_it_is() -> None:
    plain = render_text(fake.verdict(), fake.run(), screen=Screen(80))
    coloured = render_text(fake.verdict(), fake.run(), screen=Screen(80, colour=True))
    assert coloured.startswith("\x1b[1;31m■ BLOCK\x1b[0m: ")
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == plain


def test_a_candidate_that_passes_is_promoted_next_and_a_part_of_a_suite_is_not() -> None:
    run = fake.run()
    assert f"next: benchgate promote {run.id}\n" in render_text(fake.verdict(Outcome.PASS), run)
    part = replace(run, environment={**run.environment, "only": "load"})
    assert "next:" not in render_text(fake.verdict(Outcome.PASS), part)


def test_a_left_out_block_says_why_once_below_the_table() -> None:
    why = "1 of 4 blocks were left out: block 3, baseline: send lag p99 8 ms"
    check = replace(fake.check("ttft-p50@c4", Outcome.PASS), n=3, n_of=4, notes=(why,))
    verdict = Verdict(Outcome.PASS, "held", (check, replace(check, id="e2e-p50@c4")), (), 0.05)
    text = render_text(verdict, fake.run())
    assert text.count("3 of 4 blocks") == 2
    assert text.count(f"  left out: {why}\n") == 1


@pytest.mark.parametrize("outcome", list(Outcome))
def test_the_first_line_is_the_verdict_and_its_reason(outcome: Outcome) -> None:
    verdict = fake.verdict(outcome)
    first = render_text(verdict, fake.run()).splitlines()[0]
    assert first.endswith(f" {outcome.value}: {verdict.reason}")


@pytest.mark.parametrize("text", hostile.TEXTS, ids=range(len(hostile.TEXTS)))
def test_hostile_text_is_no_command_to_a_runner_or_a_terminal(text: str) -> None:
    lines = render_text(hostile.verdict(text), hostile.run(text)).split("\n")
    benign = render_text(hostile.verdict(hostile.BENIGN), hostile.run(hostile.BENIGN)).split("\n")
    assert len(lines) == len(benign)
    assert "\n".join(lines).encode()
    for line in lines:
        assert not line.lstrip().startswith("::")
        assert "##" not in line
        assert not re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]", line)


@pytest.mark.parametrize("command", ["::error::x", "  ::add-mask::x", "\t::stop-commands::x"])
def test_a_line_that_begins_like_a_command_is_interrupted(command: str) -> None:
    assert not terminal_line(command).lstrip().startswith("::")
    assert terminal_line("a::b is a name") == "a::b is a name"


def test_infinite_and_missing_numbers_are_words_and_never_nan() -> None:
    infinity = float("inf")
    unbounded = replace(
        fake.check(outcome=Outcome.BLOCK), candidate=infinity, harm=infinity, lower=-infinity, upper=infinity
    )
    verdict = Verdict(Outcome.BLOCK, "unbounded", (unbounded, fake.check(outcome=Outcome.INVALID)), (), 0.05)
    text = render_text(verdict, fake.run())
    assert f"∞  +∞ ({MINUS}100 % to +∞)   +10 %" in text
    assert re.search(rf"36.0 ms +\? +{DASH} ", text)
    assert "nan" not in re.findall("[a-z]+", text.lower())


def test_tripped_guards_say_what_to_do_and_the_others_are_silent() -> None:
    text = render_text(hostile.verdict("saturated"), fake.run())
    assert text.count("  what to do first: saturated\n") == text.count("  guard saturated: saturated\n") == 1


def test_what_a_guard_says_of_every_check_is_said_once() -> None:
    guard = GuardResult("same-measurement", True, "load.blocks is 4 in the first", "measure both alike", ("load",))
    invalid = replace(fake.check(outcome=Outcome.INVALID), reason=guard.reason, advice=guard.remedy)
    verdict = Verdict(Outcome.INVALID, "Nothing can be said", (invalid,) * 3, (guard,), 0.05)
    text = render_text(verdict, fake.run())
    assert text.count(guard.reason) == 1
    assert text.count("      see the guard same-measurement\n") == 1
    assert text.count("measure both alike") == 1


def test_the_short_form_of_quality_stands_below_the_checks() -> None:
    text = render_text(fake.verdict(), fake.run(), quality=("recovery 97.4 %", "6 answers\x1b[31m flipped"))
    assert "  quality: recovery 97.4 %\n  quality: 6 answers" in text
    assert "\x1b" not in text


def test_one_deployment_alone_is_no_candidate() -> None:
    alone = drill({"metric": "error_rate", "max": "5%"})
    evidence = measured(alone)
    text = render_text(judge(alone, evidence), evidence.run)
    assert "  suite drill: one alone, run run-1\n" in text
    assert "candidate" not in text
    assert "promoted" not in text


def test_a_stored_comparison_names_the_run_of_its_reference() -> None:
    text = render_text(fake.verdict(), fake.run("run-b"), against=fake.run("run-a"))
    assert "candidate q4 against q4 of run run-a, run run-b" in text
    assert text.endswith("again (same --store): benchgate compare run-a run-b\n")
    assert "note:" not in text


@pytest.mark.parametrize("outcome", [Outcome.BLOCK, Outcome.INVALID, Outcome.INCONCLUSIVE])
def test_a_reference_that_was_not_promoted_itself_is_told(outcome: Outcome) -> None:
    terms = Terms(reference_outcome=outcome)
    text = render_text(fake.verdict(), fake.run("run-b"), against=fake.run("run-a"), terms=terms)
    assert f"  note: the reference run's own verdict was {outcome.value}: being no worse than it" in text


@pytest.mark.parametrize("own", [Outcome.PASS, Outcome.WARN])
@pytest.mark.parametrize("outcome", [Outcome.BLOCK, Outcome.INVALID, Outcome.INCONCLUSIVE])
def test_against_a_run_that_was_not_promoted_nothing_passes_and_the_first_words_say_why(
    own: Outcome, outcome: Outcome
) -> None:
    verdict, terms = doubted(fake.verdict(own), outcome), Terms(reference_outcome=outcome)
    doubt = f"The reference run's own verdict was {outcome}"
    assert (verdict.outcome, terms.exit_code(verdict)) == (Outcome.WARN, ExitCode.OK)
    after, before = fake.evidence("run-b"), fake.evidence("run-a")
    text = render_text(verdict, after.run, against=before.run, terms=terms)
    assert text.startswith(f"\u25b2 WARN: {doubt}: being no worse than it does not mean being fit. {own_reason(own)}")
    assert text.lower().count(doubt.lower()) == 1
    view = report_view(after, verdict, against=before, terms=terms)
    assert view.banner.reason.startswith(doubt) and not view.fairness.fair
    assert any(doubt.lower() in caution.lower() for caution in view.fairness.cautions)
    assert doubt in render_markdown(after, verdict, against=before, terms=terms).splitlines()[2]


def own_reason(outcome: Outcome) -> str:
    return fake.verdict(outcome).reason


@pytest.mark.parametrize("outcome", [Outcome.BLOCK, Outcome.INVALID, Outcome.INCONCLUSIVE])
def test_what_is_not_promoted_is_made_no_milder_by_its_reference(outcome: Outcome) -> None:
    for own in (None, *Outcome):
        assert doubted(fake.verdict(outcome), own) == fake.verdict(outcome)
    for promoted in (None, Outcome.PASS, Outcome.WARN):
        assert doubted(fake.verdict(Outcome.PASS), promoted) == fake.verdict(Outcome.PASS)


def test_what_production_spent_is_not_shown_as_the_candidates() -> None:
    budget = ErrorBudget.model_validate({"objective": "99.5%", "window": "30d", "spent": "40%", "stage": "c4"})
    suite = SuiteText([{"metric": "error_rate", "max": "50%"}]).suite().model_copy(update={"error_budget": budget})
    spent = BudgetReading(0.4, "the suite itself", "2026-01-01T00:00:00.000Z")
    lines = spent_checks(suite, spent, (), Outcome.PASS)
    told = render_text(replace(fake.verdict(Outcome.PASS), checks=lines), fake.run())
    assert "  production: 40.0 %  40.0 to 40.0 %  ≤ 100 %  0.4\N{MULTIPLICATION SIGN}  1 reading\n" in told


@pytest.mark.parametrize(
    ("outcome", "strict", "said"),
    [
        (Outcome.WARN, True, True),
        (Outcome.WARN, False, False),
        (Outcome.PASS, True, False),
        (Outcome.BLOCK, True, False),
    ],
)
def test_strict_is_named_where_it_alone_stops_the_candidate(outcome: Outcome, strict: bool, said: bool) -> None:
    told = render_text(fake.verdict(outcome), fake.run(), terms=Terms(strict=strict))
    assert ("note: --strict treats WARN like BLOCK" in told) is said


@pytest.mark.parametrize("columns", range(12, 60))
def test_a_number_and_its_unit_stay_on_one_line(columns: int) -> None:
    text = "TTFT p50 rose by 101 % (95.0 to 106), beyond the margin of 10 %: 51.0 ms → 102 ms in 4 blocks of 2 min"
    lines = list(Screen(columns).wrapped(text, "  "))
    for whole in ("101 %", "10 %:", "51.0 ms", "102 ms", "4 blocks", "2 min"):
        assert any(whole in line for line in lines), lines
    assert " ".join(line.strip() for line in lines) == text
    assert max(map(len, lines)) <= columns
