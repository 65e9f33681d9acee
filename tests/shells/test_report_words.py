"""What a report says in words beside its numbers: which price counts, what not to use, what it means, what to do."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchgate.gate.summary.figures import Estimate
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence
from benchgate.model.verdict import GuardResult, Outcome, Scale, Unit, Verdict
from benchgate.report.comparability import sides, unusable
from benchgate.report.display import GLOSSARY
from benchgate.report.html import SITE_INDEX, page_of, suite_page
from benchgate.report.markdown import markdown_of
from benchgate.report.sections.cost import cost_lines, cost_table, price_and_use
from benchgate.report.sections.stages import StageRow, stage_rows
from benchgate.report.view import ReportView, report_view
from benchgate.stats.distributions import Limits
from benchgate.suite.schema import Suite
from tests.fakes import evidence as fake

DOCS = Path(__file__).parents[2] / "docs"
LATE = GuardResult("client-keeps-up", True, "the client was late", "lower the load", ("speed",))
CACHED = GuardResult("not-cached", True, "answers came from a cache", "switch it off", ("quality",))
AWAY = GuardResult("targets-up", True, "the candidate was not there", "start it")

UNPRICED: dict[str, Any] = {"usd_per_million_output": None, "usd_per_million_good": None}

pytestmark = pytest.mark.usefixtures("no_figures")


def rows_of(evidence: Evidence) -> tuple[StageRow, ...]:
    return stage_rows(sides(evidence, None), Suite.from_stored(evidence.run.suite))


def test_the_level_whose_price_counts_is_the_one_with_most_tokens_where_the_slo_is_shown_to_hold() -> None:
    first, second, saved = cost_lines(rows_of(fake.evidence()))
    # c4 has more tokens per second, but most of the candidate's answers are late there.
    # At c1: 1.5 / (3600 * 192 / 2.362) * 1e6, and the baseline's 2 / (3600 * 192 / 2.361) * 1e6.
    assert first.startswith("at c1 (1 in flight), the level with the highest throughput at which the SLO")
    assert first.endswith(
        "the candidate $5.13 per 1M output tokens ($5.12 to $5.14), $5.13 per 1M good ones, "
        "the baseline $6.83 per 1M output tokens ($6.82 to $6.84), $6.83 per 1M good ones"
    )
    assert second == "this assumes 1 in flight at any time"
    # The baseline holds c4 as well, where its tokens cost a third of what they do at c1: by c1 it would be 25.0 % less.
    assert saved == (
        "1M good tokens on the candidate cost 126 % more than on the baseline (125 % to 127 %); "
        "the baseline's best level is c4, $2.27"
    )


def test_what_the_change_does_to_the_bill_is_told_with_its_interval() -> None:
    costs = {Arm.BASELINE: Estimate(8.0, Limits(7.9, 8.1)), Arm.CANDIDATE: Estimate(6.0, Limits(5.9, 6.1))}

    def told(costs: dict[Arm, Estimate]) -> str:
        rows = [
            replace(row, figures=replace(row.figures, usd_per_million_good=costs[row.role]))
            for row in rows_of(fake.evidence())
            if row.figures is not None and row.stage == "c1"
        ]
        return next(line for line in cost_lines(rows) if "than on the baseline" in line)

    # The errors of both are taken as independent: 0.75 and 0.75 * (1 -+ sqrt(2) * about 1.5 %).
    assert told(costs).endswith("cost 25.0 % less than on the baseline (23.4 % to 26.6 %)")
    wide = costs | {Arm.CANDIDATE: Estimate(6.0, Limits(3.0, 9.0))}
    assert told(wide).endswith("which includes no change")
    unsure = costs | {Arm.CANDIDATE: Estimate(6.0, None)}
    assert told(unsure).endswith("cost 25.0 % less than on the baseline (no interval, so not shown)")


def test_a_cost_of_good_tokens_is_unknown_where_some_requests_were_good() -> None:
    for good_ratio, shown in ((0.0, "no tokens"), (0.6, "unknown")):
        (row, *_) = rows_of(fake.evidence())
        assert row.figures is not None
        figures = replace(row.figures, usd_per_million_good=None, goodput_ratio=Estimate(good_ratio, None))
        table = cost_table([replace(row, figures=figures)])
        assert table is not None and table.rows[0][6] == shown


def test_a_cost_that_is_unknown_is_not_one_of_no_tokens() -> None:
    def cells(rate: float | None) -> list[str]:
        tokens = None if rate is None else Estimate(rate, None)
        rows = [
            replace(row, figures=replace(row.figures, output_tokens_per_s=tokens, **UNPRICED))
            for row in rows_of(fake.evidence())
            if row.figures is not None
        ]
        table = cost_table(rows)
        assert table is not None
        return sorted({row[column] for row in table.rows for column in (4, 6)})

    assert cells(0.0) == ["no tokens"]
    assert cells(None) == cells(120.0) == ["unknown"]


def test_a_bill_is_held_against_no_level_at_which_the_baseline_misses_its_slo() -> None:
    rows = [
        replace(row, target_ratio=1.0) if row.role is Arm.BASELINE else row for row in rows_of(fake.evidence())
    ]  # of 1.0 no number of requests shows that it holds
    lines = cost_lines(rows)
    assert "no saving is known: the SLO is not shown to hold at any level on the baseline" in lines
    assert not any("than on the baseline" in line for line in lines)


@pytest.mark.parametrize(
    ("role", "paid", "told"),
    [
        (Arm.CANDIDATE, 1, "not of what ran: the candidate is paid for 1 accelerator, and its server reports 2"),
        (Arm.BASELINE, 1, "not of what ran: the baseline is paid for 1 accelerator, and its server reports 2"),
        (Arm.BASELINE, 4, "the baseline is paid for 4 accelerators, and its server reports 2, so the candidate"),
    ],
)
def test_a_bill_of_other_accelerators_than_ran_is_not_told_as_a_saving(role: Arm, paid: int, told: str) -> None:
    facts: dict[str, object] = {"accelerator_names": ["NVIDIA H100"] * 2}
    lines = cost_lines(
        [
            replace(row, deployment=replace(row.deployment, facts=facts, accelerators=paid))
            if row.role is role
            else row
            for row in rows_of(fake.evidence())
        ]
    )
    assert any(told in line for line in lines)
    assert any("than on the baseline" in line for line in lines) is (paid > 2)


def test_a_price_that_moved_between_two_runs_is_not_told_as_a_saving() -> None:
    def costs(then: float) -> tuple[list[str], set[str]]:
        stored = fake.evidence("run-a")
        candidate = replace(stored.run.arms[Arm.CANDIDATE], price_usd_per_hour=then)
        held = replace(stored, run=replace(stored.run, arms={**stored.run.arms, Arm.CANDIDATE: candidate}))
        section = report_view(fake.evidence("run-b"), fake.verdict(), against=held).section("cost")
        assert section is not None
        told = [line for line in section.sentences if "saving" in line or "than on the baseline" in line]
        return told, {row[-1] for row in section.tables[0].rows if row[1] == "candidate"}

    same, changes = costs(1.5)
    assert "0 % more" in same[0] or "0 % less" in same[0]
    assert all("%" in change for change in changes)
    moved, changes = costs(3.0)
    assert len(moved) == 1 and moved[0].startswith("no saving is known: ")
    assert "$3/h on 2026-01-02 and $1.5/h on 2026-01-02" in moved[0]
    assert not any("%" in change for change in changes)


USUAL: dict[str, object] = {"list_usd_per_hour": 1.5, "overhead_ratio": 0.0, "utilisation_ratio": 1.0}
HALF = USUAL | {"utilisation_ratio": 0.5}


def used(candidate: dict[str, object], baseline: dict[str, object]) -> list[str]:
    """What is told of the bill as both are used, at the one level that both hold."""
    said = {
        arm: {"price_terms": terms} if "input" not in terms else {"token_prices": terms, "price_usd_per_hour": None}
        for arm, terms in ((Arm.CANDIDATE, candidate), (Arm.BASELINE, baseline))
    }
    rows = [
        replace(row, deployment=replace(row.deployment, **said[row.role]))
        for row in rows_of(fake.evidence())
        if row.stage == "c1"
    ]
    return [line for line in cost_lines(rows) if "at actual use" in line]


def test_a_change_of_the_bill_is_told_as_used_too_where_the_two_are_used_unlike() -> None:
    (told,) = used(HALF, USUAL)  # 2 * 5.126 / 6.831 at c1
    assert told.startswith("at actual use, 1M good tokens cost 50.1 % more than")
    assert used(HALF, HALF) == used({}, {}) == []


def test_a_bill_as_used_is_not_known_where_one_of_the_two_says_nothing_of_its_use() -> None:
    assert used(HALF, {}) == ["no saving at actual use is known: the baseline has no `price_terms`"]
    assert used({}, USUAL) == ["no saving at actual use is known: the candidate has no `price_terms`"]


def test_tokens_that_are_paid_one_by_one_are_all_used() -> None:
    hosted: dict[str, object] = {"input": 0.15, "cached_input": 0.15, "output": 0.6}
    (told,) = used(HALF, hosted)
    assert told.startswith("at actual use, 1M good tokens cost 50.1 % more than")
    assert used(USUAL, hosted) == []


def test_the_level_that_a_fleet_is_sized_by_is_named_where_it_is_another_one() -> None:
    rows = [replace(row, target_ratio=0.0) for row in rows_of(fake.evidence())]
    offered = [replace(row, closed_loop=row.stage != "c1") for row in rows]
    assert any(" is that of c1 (" in line and "`benchgate capacity`" in line for line in cost_lines(offered))
    assert not any("sizes a fleet" in line for line in cost_lines(rows))


def test_a_price_at_a_rate_that_was_offered_is_not_said_to_be_of_full_use() -> None:
    rows = [replace(row, closed_loop=False, level="10/s poisson") for row in rows_of(fake.evidence())]
    first, second, _ = cost_lines(rows)
    assert "c1 (10/s poisson)" in first
    assert "may idle" in second


def test_without_an_slo_that_is_shown_to_hold_no_level_counts_before_another() -> None:
    rows = rows_of(fake.evidence())
    never = [replace(row, target_ratio=1.0) for row in rows]
    (unheld,) = cost_lines(never)
    assert unheld == "no single price: the SLO is not shown to hold at any level on the candidate"
    (none,) = cost_lines([replace(row, slo=None, target_ratio=None) for row in rows])
    assert "the suite has no SLO with a target" in none
    free = [replace(row, deployment=replace(row.deployment, price_usd_per_hour=None)) for row in rows]
    assert cost_lines(free) == ()


def test_a_class_of_traffic_is_no_level_and_its_price_is_said_to_be_the_whole_one() -> None:
    rows = [replace(row, part_of_stage=row.stage == "c1") for row in rows_of(fake.evidence())]
    *_, last = cost_lines(rows)
    assert last.startswith("traffic classes of one stage share a deployment")
    assert not any(line.startswith("at c1") for line in cost_lines(rows))


def test_a_price_with_terms_is_told_with_what_it_comes_to_in_use() -> None:
    arms = dict(fake.run().arms)
    terms = {"list_usd_per_hour": 1.2, "commitment": "spot", "overhead_ratio": 0.25, "utilisation_ratio": 0.5}
    arms[Arm.CANDIDATE] = replace(arms[Arm.CANDIDATE], price_terms=terms)
    rows = rows_of(replace(fake.evidence(), run=replace(fake.run(), arms=arms)))
    *_, last = cost_lines(rows)
    # 2.5 times the $5.126 that it costs at full use
    assert last.startswith("at the actual use of the candidate, at 50 % of its paid time and with 25 % of overhead: ")
    assert last.endswith("$12.8 per 1M output tokens")
    table = cost_table(rows)
    assert table is not None
    assert any("$1.50/h ($1.20/h, spot)" in row for row in table.rows)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"overhead_ratio": 0.0, "utilisation_ratio": 1.0}, "$1.50/h (reserved)"),
        (
            {"overhead_ratio": 0.25, "utilisation_ratio": 0.5},
            "$1.50/h (reserved), used at 50 % of its paid time and with 25 % of overhead",
        ),
    ],
)
def test_a_price_that_its_terms_leave_as_it_is_stands_once_beside_its_use(said: dict[str, object], told: str) -> None:
    terms = {"list_usd_per_hour": 1.5, "commitment": "reserved", **said}
    paid = replace(fake.run().arms[Arm.CANDIDATE], price_usd_per_hour=1.5, accelerators=1, price_terms=terms)
    assert price_and_use(paid) == told


def test_a_model_that_is_paid_by_the_token_has_its_prices_and_no_full_use() -> None:
    arms = dict(fake.run().arms)
    prices = {"input": 0.15, "cached_input": 0.075, "output": 0.6}
    arms[Arm.CANDIDATE] = replace(arms[Arm.CANDIDATE], price_usd_per_hour=None, token_prices=prices)
    rows = rows_of(replace(fake.evidence(), run=replace(fake.run(), arms=arms)))
    told = cost_lines(rows)
    assert any(line.startswith("the candidate is paid by the token") for line in told)
    assert not any("full use" in line for line in told)
    table = cost_table(rows)
    assert table is not None
    assert any("per 1M tokens: input $0.150, cached input $0.0750, output $0.600" in row for row in table.rows)


def test_an_arm_without_a_price_has_none_beside_the_other() -> None:
    arms = dict(fake.run().arms)
    arms[Arm.BASELINE] = replace(arms[Arm.BASELINE], price_usd_per_hour=None)
    first, _ = cost_lines(rows_of(replace(fake.evidence(), run=replace(fake.run(), arms=arms))))
    assert first.endswith("the baseline has no price")


def view(outcome: Outcome = Outcome.INVALID, *guards: GuardResult, **changes: object) -> ReportView:
    verdict = replace(fake.verdict(outcome), guards=guards, **changes)  # type: ignore[arg-type]  # fields of its own
    return report_view(fake.evidence(), verdict)


@pytest.mark.parametrize(
    ("guards", "load", "quality", "shadow"),
    [
        ((LATE,), "client-keeps-up", "", ""),
        ((CACHED,), "", "not-cached", ""),
        ((AWAY, LATE), "targets-up, client-keeps-up", "targets-up", "targets-up"),
        ((replace(LATE, tripped=False),), "", "", ""),
    ],
)
def test_what_a_tripped_guard_spoils_is_not_to_be_used_and_nothing_else(
    guards: tuple[GuardResult, ...], load: str, quality: str, shadow: str
) -> None:
    found = unusable(Verdict(Outcome.INVALID, "", (), guards, alpha=0.05))
    assert (found.load, found.quality, found.shadow) == (load, quality, shadow)


def test_what_speaks_against_comparisons_alone_says_so_of_the_load() -> None:
    unlike = GuardResult("arms-alike", True, "the arms differ", "declare it", ("compared-speed",))
    found = unusable(Verdict(Outcome.INVALID, "", (), (unlike,), alpha=0.05))
    assert (found.load, found.parts) == (
        "arms-alike, where they are compared,", ("speed under load against the baseline",)
    )  # fmt: skip
    both = unusable(Verdict(Outcome.INVALID, "", (), (unlike, LATE), alpha=0.05))
    assert (both.load, both.parts) == ("arms-alike, client-keeps-up", ("speed under load",))
    nothing = unusable(Verdict(Outcome.PASS, "", (), (), alpha=0.05))
    assert (nothing.load, nothing.parts) == ("", ())


@pytest.mark.parametrize("outcome", [one for one in Outcome if one is not Outcome.INVALID])
def test_a_regression_is_spoken_of_only_where_a_check_that_decides_compares_the_arms(outcome: Outcome) -> None:
    compared = fake.check(outcome=outcome)
    bound = replace(compared, scale=Scale.ABSOLUTE, unit=Unit.RATIO, metric="goodput", margin=0.95)
    advisory = replace(compared, required=False)
    held = replace(fake.check(), id="held")
    assert "regression" in view(outcome, checks=(compared, bound)).banner.meaning
    assert "regression" not in view(outcome, checks=(bound, advisory)).banner.meaning
    rests_on_held = outcome.promotes
    assert ("regression" in view(outcome, checks=(bound, held)).banner.meaning) is rests_on_held


@pytest.mark.parametrize(("lower", "upper", "beyond"), [(-0.5, -0.3, True), (-0.5, -0.05, False), (0.3, 0.5, True)])
def test_a_change_either_way_is_said_to_be_beyond_its_margin_by_its_limit_nearer_to_no_change(
    lower: float, upper: float, beyond: bool
) -> None:
    check = replace(
        fake.check(outcome=Outcome.BLOCK),
        two_sided=True,
        harm=(lower + upper) / 2,
        lower=lower,
        upper=upper,
        margin=0.1,
    )
    assert ("beyond the allowed margin" in view(Outcome.BLOCK, checks=(check,)).banner.meaning) is beyond


def test_an_invalid_page_says_in_its_head_what_that_means_which_guard_objects_and_what_to_do() -> None:
    seen = view(Outcome.INVALID, LATE, next_step="lower the load")
    head, _, rest = page_of(seen).partition("<main")
    assert "says nothing about the candidate" in head
    assert "Guard client-keeps-up failed: ignore speed under load" in head
    assert "lower the load" in head
    parts = dict(re.findall(r'<section id="(\w+)">(.*?)</section>', rest, re.DOTALL))
    assert {"load", "cost", "quality", "shadow"} <= set(parts)
    for part, text in parts.items():
        of_load = ("load", "distributions", "attainment", "blocks", "cost")
        assert ("do not use" in text) is (part in of_load), part
    summary = markdown_of(seen)
    assert "Guard client-keeps-up failed" in summary.partition("###")[0]
    assert summary.count("**Do not use these numbers:** client-keeps-up failed.") == 2  # load and cost
    assert "**The measurement is unsound.**" in summary


def test_harm_that_is_shown_stands_though_a_guard_says_that_something_is_missing() -> None:
    missing = GuardResult("all-measured", True, "a task was not run", "run it")
    seen = view(Outcome.BLOCK, missing)
    head, _, rest = page_of(seen).partition("<main")
    assert "Guard all-measured failed: this run cannot promote anything, but its regressions count" in head
    assert "do not use" not in head + rest and "is unsound" not in rest
    assert "<b>The measurement cannot promote anything, but the regressions that it shows count:</b>" in rest
    assert "Do not use" not in markdown_of(seen)
    assert "do not use" in page_of(view(Outcome.INVALID, missing))


def test_a_page_on_which_no_guard_objects_marks_nothing() -> None:
    seen = view(Outcome.BLOCK)
    assert seen.banner.objecting == ""
    assert "do not use" not in page_of(seen) and "Do not use" not in markdown_of(seen)


def test_what_the_banner_says_is_not_said_again_beside_its_check() -> None:
    check = replace(fake.check(outcome=Outcome.BLOCK), reason="rose by 41.6 %, beyond 10 %", advice="look at the queue")
    other = replace(check, id="other", title="Another", reason="rose by 20 %, beyond 10 %")
    reason = "q4 must not be promoted: TTFT p50 at c4 rose by 41.6 %, beyond 10 % (36 ms → 51 ms, 4 blocks)."
    seen = view(Outcome.BLOCK, checks=(check, other), reason=reason, next_step="look at the queue")
    for told in (markdown_of(seen), page_of(seen).partition('id="document"')[0]):
        assert told.count("rose by 41.6 %".replace(" %", "\N{NO-BREAK SPACE}%" if "<main" in told else " %")) == 1
        assert told.count("look at the queue") == 1
        assert "Another" in told and re.search("rose by 20.%, beyond", told)


def test_advice_that_several_checks_share_is_told_once_in_a_summary() -> None:
    checks = [replace(fake.check(name, Outcome.WARN), advice="weigh the loss") for name in ("one", "two")]
    told = markdown_of(view(Outcome.WARN, checks=tuple(checks), next_step=None, reason="with care"))
    assert told.count("weigh the loss") == 1


def test_a_verdict_that_several_checks_leave_open_says_how_many_more() -> None:
    checks = tuple(fake.check(name, Outcome.INCONCLUSIVE) for name in ("one", "two", "three"))
    todo = view(Outcome.INCONCLUSIVE, checks=checks, next_step="measure more blocks").banner.todo
    assert todo == "measure more blocks; 2 more inconclusive checks, see below"
    alone = view(Outcome.INCONCLUSIVE, checks=checks[:1], next_step="measure more blocks").banner.todo
    assert alone == "measure more blocks"


def test_only_the_check_that_the_verdict_names_is_told_by_it_and_not_another_with_the_same_reason() -> None:
    check = replace(fake.check(outcome=Outcome.INCONCLUSIVE), title="Goodput at c1", reason="100 % is not sure")
    other = replace(check, id="other", title="Goodput at c16")
    seen = view(
        Outcome.INCONCLUSIVE, checks=(check, other), reason="q4 is not promoted: Goodput at c16: 100 % is not sure."
    )
    first, second = page_of(seen).partition("<main")[2].split('<tr class="why">')[1:3]
    assert "see the verdict above" not in first and "see the verdict above" in second


def test_every_check_that_is_open_says_what_would_settle_it_though_the_first_has_said_the_same() -> None:
    check = replace(fake.check(outcome=Outcome.INCONCLUSIVE), title="Goodput at c1", advice="about 59 would settle it")
    other = replace(check, id="other", title="Goodput at c4")
    reason = f"q4 is not promoted: Goodput at c1: {check.reason}; and 1 more check."
    seen = view(Outcome.INCONCLUSIVE, checks=(check, other), reason=reason, next_step=check.advice)
    head, _, rest = page_of(seen).partition('id="document"')[0].partition("<main")
    assert (head.count("about 59"), rest.count("about 59")) == (1, 1)
    assert "about 59" in rest.partition("Goodput at c4</a>")[2]
    assert markdown_of(seen).partition("Failing checks")[2].count("about 59") == 1


def test_who_is_blocked_is_told_to_keep_the_baseline_first_and_on_a_line_of_its_own() -> None:
    seen = view(Outcome.BLOCK, next_step="mend it")
    assert seen.banner.todo == "keep the baseline; mend it"
    assert '<p class="todo"><strong>What to do:</strong> keep the baseline; mend it.</p>' in page_of(seen)
    assert "\n\n**What to do:** keep the baseline; mend it.\n\n" in markdown_of(seen)


def test_a_report_of_a_site_differs_in_its_ways_back_alone_which_no_name_can_bend() -> None:
    seen = view(Outcome.BLOCK)
    seen = replace(seen, banner=replace(seen.banner, suite='x/../"a>'))
    name = "x/../&#34;a&gt;"
    links = f'<a href="{SITE_INDEX}">benchgate · history</a> · <a href="{suite_page(seen.banner.suite)}">{name}</a>'
    assert page_of(seen, in_site=True).replace(links, f"benchgate · {name}", 1) == page_of(seen)
    assert 'href=".."' not in page_of(seen) and SITE_INDEX not in page_of(seen)
    assert re.fullmatch(r"\.\./suites/[0-9a-f]{32}/index\.html", suite_page(seen.banner.suite))


def test_the_words_of_the_page_are_those_of_the_documentation() -> None:
    words = [word.lower() for name, _ in GLOSSARY for word in name.split(", ")]
    pages = ("concepts.md", "reference/metrics.md", "reference/verdict.md")
    documented = "".join((DOCS / name).read_text(encoding="utf-8").lower() for name in pages)
    missing = [word for word in words if word not in documented]
    assert len(set(words)) == len(words)
    assert missing == []
    assert {"ttft", "tpot", "itl", "goodput", "margin", "block", "knee"} <= set(words)
