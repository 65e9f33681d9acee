"""What a suite's page draws of its runs, and which changes between them it marks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from benchgate.gate.summary.metric_rows import metric_rows
from benchgate.model.deployment import Arm
from benchgate.model.run import ONLY_PART, QUICK_LOOK, Run, RunStatus, TrendPoint
from benchgate.model.verdict import Outcome
from benchgate.report.trend import MOST_SERIES, TrendChart, trend_spec
from benchgate.site import folder
from benchgate.site.badges import badge_of, cost_badge
from benchgate.site.build import ReportInputs
from benchgate.site.trends import METRICS, MOST_DRAWN, Kind, Trends, trends
from benchgate.sizing.candidates import StoredRun
from benchgate.store.queries import Overview, RunSummary, StoredOutcome
from tests.fakes import evidence as fake
from tests.fakes.right_sized import candidate

TTFT, THROUGHPUT, GOODPUT = METRICS[0], METRICS[3], METRICS[4]


def glance(number: int, outcome: Outcome | None = Outcome.PASS, **changes: Any) -> RunSummary:
    run = replace(fake.run(f"run-{number:04}"), label=f"pr-{number}", **changes)
    said = () if outcome is None else (StoredOutcome(outcome, "because", "0" * 64, None),)
    return RunSummary(run, said, "e" * 64, 0, True, None, None)


def with_facts(run: Run, **facts: object) -> dict[Arm, Any]:
    return {arm: replace(of, url="http://a", facts=facts) for arm, of in run.arms.items()}


def points(values: Sequence[float], stage: str = "c4") -> list[TrendPoint]:
    fields: dict[str, Any] = {"label": None, "suite": "s", "deployment": "q4", "outcome": None, "task": None}
    where: dict[str, Any] = {"started_at": "2026-01-01T00:00:00Z", "arm": Arm.CANDIDATE, "n": 9}
    return [
        TrendPoint(
            run_id=f"run-{at:04}", stage=stage, value=value, lower=value * 0.9, upper=value * 1.1, **fields, **where
        )
        for at, value in enumerate(values)
    ]


def changed(runs: Sequence[RunSummary], of: dict[Kind, list[TrendPoint]]) -> list[tuple[str, str, str]]:
    found = trends(runs, of, frozenset())
    return [(change.letter, change.run, change.description) for change in found.changes]


def test_two_levels_that_differ_are_not_shown_as_one() -> None:
    values = np.exp(np.random.default_rng(1).normal(0, 1e-5, 24)) * ([0.02] * 12 + [0.02003] * 12)
    ((_, _, told),) = changed([glance(at) for at in range(24)], {TTFT: points(values.tolist())})
    assert told == "TTFT p50 of c4 went from 20.0 ms to 20.03 ms"


def test_a_level_that_changed_is_marked_with_its_run_and_both_levels() -> None:
    values = np.exp(np.random.default_rng(1).normal(0, 0.01, 24)) * ([0.1] * 12 + [0.15] * 12)
    ((letter, run, told),) = changed([glance(at) for at in range(24)], {TTFT: points(values.tolist())})
    assert (letter, run) == ("L", "pr-12")
    assert told.startswith("TTFT p50 of c4 went from 1") and " to 1" in told and "ms" in told
    assert changed([glance(at) for at in range(12)], {TTFT: points(values[:12].tolist())}) == []


def test_other_hardware_engine_and_questions_are_marked_and_level_is_looked_for_after_them() -> None:
    values = np.exp(np.random.default_rng(2).normal(0, 0.01, 24)) * ([0.1] * 12 + [0.3] * 12)
    old = with_facts(fake.run(), engine_version="1", accelerator_names=["A100"])
    new = with_facts(fake.run(), engine_version="2", accelerator_names=["H100", "H100"])
    runs = [glance(at, arms=old if at < 12 else new) for at in range(24)]
    assert changed(runs, {TTFT: points(values.tolist())}) == [
        ("H", "pr-12", "hardware of the candidate: 1 x A100 → 2 x H100"),
        ("E", "pr-12", "engine of the candidate: llamacpp 1 → llamacpp 2"),
    ]
    asked = [glance(at, measurement_sha256="a" * 64 if at < 12 else "b" * 64) for at in range(24)]
    (only,) = changed(asked, {TTFT: points(values.tolist())})
    assert only == ("S", "pr-12", "the suite measures something else than before")


def test_another_slo_ends_the_lines_of_good_requests_alone() -> None:
    values = np.random.default_rng(3).normal(0, 0.002, 24) + ([0.97] * 12 + [0.8] * 12)
    slos = [{"ttft_s": 0.5, "target_ratio": 0.95}, {"ttft_s": 0.2, "target_ratio": 0.95}]
    runs = [glance(at, suite={**fake.run().suite, "slo": slos[at >= 12]}) for at in range(24)]
    found = trends(runs, {TTFT: points([0.1] * 24), GOODPUT: points(values.tolist())}, frozenset())
    assert [(one.letter, one.run, one.description) for one in found.changes] == [
        ("S", "pr-12", "another `slo` than before, and with it which requests are good")
    ]
    assert [">S</text>" in figure.svg for figure in found.figures] == [False, True]
    same = [glance(at) for at in range(24)]
    assert [letter for letter, _, _ in changed(same, {GOODPUT: points(values.tolist())})] == ["L"]


@pytest.mark.parametrize(
    ("measured", "says", "parts"),
    [
        ((0, 1, 2, 3), "newest 100 ms", 1),
        ((0, 1, 3), "newest 100 ms", 2),
        ((0, 1, 2), "100 ms, and no number in the newest run", 1),
        ((0, 1), "100 ms, and no number in the 2 newest runs", 1),
    ],
)
def test_a_run_without_the_number_ends_the_line_and_is_not_passed_over(
    measured: tuple[int, ...], says: str, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    charts = list[TrendChart]()

    def drawn(chart: TrendChart) -> object:
        charts.append(chart)
        return trend_spec(chart)

    monkeypatch.setattr("benchgate.site.trends.trend_spec", drawn)
    latencies = [point for at, point in enumerate(points([0.1] * 4)) if at in measured]
    runs = [glance(at) for at in range(4)]
    figure, _ = trends(runs, {TTFT: latencies, THROUGHPUT: points([9.0] * 4)}, frozenset()).figures
    assert figure.title == f"TTFT p50 at c4: {says}"
    (line,) = charts[0].series
    values = [value.at for value in line.values]
    assert 1 + sum(any(a < at < b for at in line.breaks) for a, b in pairwise(values)) == parts


@pytest.mark.parametrize(
    ("old", "new", "ends_lines", "told"),
    [
        ({"url": "http://a"}, {"url": "http://b"}, False, "A: another address, hardware not reported"),
        ({"url": "http://a"}, {"url": "http://b", "facts": {"accelerator_names": ["A100"]}}, False, "A: another"),
        ({"facts": {"accelerator_names": ["A100"]}}, {"url": "http://b"}, False, "A: another address"),
        ({"url": "http://a"}, {"url": "http://a", "accelerators": 2}, True, "accelerators 1 → accelerators 2"),
        ({"url": None}, {"url": "http://b"}, True, " → not reported, at an address"),
        (*({"url": where, "facts": {"accelerator_names": ["A100"]}} for where in ("http://a", "http://b")), False, ""),
    ],
)
def test_an_address_alone_is_no_other_hardware(
    old: dict[str, Any], new: dict[str, Any], ends_lines: bool, told: str
) -> None:
    arms = [
        {arm: replace(of, **{"url": "http://a", "facts": {}, **place}) for arm, of in fake.run().arms.items()}
        for place in (old, new)
    ]
    runs = [glance(at, arms=some) for at, some in enumerate(arms)]
    found = trends(runs, {TTFT: points([0.1, 0.1])}, frozenset())
    said = [
        f"{one.letter}: {one.description}" for one in found.changes if one.letter != "P"
    ]  # twice as many are paid for
    assert [told in one for one in said] == [True] * bool(told)
    (figure,) = found.figures
    assert (">H</text>" in figure.svg, ">A</text>" in figure.svg) == (ends_lines, False)
    assert ('stroke-dasharray="3,3"' in figure.svg) == ends_lines  # the rule at which lines end


def test_hardware_is_held_against_what_was_last_told_and_addresses_are_one_line_of_the_list() -> None:
    names = ["A100", None, None, "H100"]
    arms = [
        {
            arm: replace(of, url=f"http://{at}", facts={} if name is None else {"accelerator_names": [name]})
            for arm, of in fake.run().arms.items()
        }
        for at, name in enumerate(names)
    ]
    assert changed([glance(at, arms=some) for at, some in enumerate(arms)], {TTFT: points([0.1] * 4)}) == [
        ("H", "pr-3", "hardware of the candidate: 1 x A100 → 1 x H100"),
        ("A", "pr-3", "another address, hardware not reported, as with 2 of the runs before it"),
    ]


def test_a_quick_run_or_one_of_a_part_ends_no_line_and_hides_no_level_change() -> None:
    values = np.exp(np.random.default_rng(1).normal(0, 0.01, 25)) * ([0.1] * 12 + [0.15] * 13)
    runs = [glance(at) for at in range(24)]
    for part in (QUICK_LOOK, "load"):
        other = glance(24, environment={ONLY_PART: part}, measurement_sha256="b" * 64)
        found = trends([*runs, other], {TTFT: points(values.tolist())}, frozenset())
        assert [(one.letter, one.run) for one in found.changes] == [("L", "pr-12")]
        assert (found.drawn, found.measured) == (24, 24)


def test_only_the_newest_runs_are_drawn_and_all_are_counted() -> None:
    many = MOST_DRAWN + 5
    found = trends([glance(at) for at in range(many)], {TTFT: points([0.1] * many)}, frozenset())
    assert (found.drawn, found.measured) == (MOST_DRAWN, many)
    (figure,) = found.figures
    assert [row[0] for row in figure.table.rows] == [f"pr-{at}" for at in range(many - 1, 4, -1)]


def test_lines_beyond_what_can_be_told_apart_are_in_the_table() -> None:
    stages = [f"c{number}" for number in range(MOST_SERIES + 2)]
    of = {THROUGHPUT: [point for stage in stages for point in points([10.0, 20.0], stage)]}
    (figure,) = trends([glance(0), glance(1)], of, frozenset()).figures
    assert "4 of 6 lines are drawn" in figure.caption
    assert [column.title for column in figure.table.columns] == ["run", "began", *stages]
    assert figure.table.rows[0] == ("pr-1", "2026-01-02 03:04 UTC", *["20.0 tok/s (18.0 to 22.0)"] * 6)


def test_candidates_have_lines_of_their_own_and_are_held_against_themselves_alone() -> None:
    """Two candidates in turn, of other engines and hardware, with levels far apart; one gets another engine."""
    fp8, fast = (
        with_facts(fake.run(), engine_version=version, accelerator_names=[name])
        for version, name in (("1", "A100"), ("2", "H100"))
    )
    runs, of = [], []
    for at, one in enumerate(points([0.1, 0.3] * 12)):
        name, arms = (("fp8", fp8), ("fast", fast))[at % 2]
        facts = {**arms[Arm.CANDIDATE].facts, **({"engine_version": "3"} if at == 23 else {})}
        arms = {**arms, Arm.CANDIDATE: replace(arms[Arm.CANDIDATE], name=name, facts=facts)}
        runs.append(glance(at, arms=arms))
        of.append(one._replace(deployment=name))
    assert changed(runs, {TTFT: of}) == [("E", "pr-23", "engine of the candidate fast: llamacpp 2 → llamacpp 3")]
    (figure,) = trends(runs, {TTFT: of}, frozenset()).figures
    assert [column.title for column in figure.table.columns[2:]] == ["fast c4", "fp8 c4"]
    assert ">fast c4</text>" in figure.svg and ">fp8 c4</text>" in figure.svg


def test_a_suite_without_numbers_has_no_charts() -> None:
    assert trends([glance(0)], {}, frozenset()) == Trends((), (), 0, 0)


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([glance(0), glance(1, Outcome.BLOCK)], "■ BLOCK"),
        ([glance(0), glance(1, None)], "no verdict"),  # an older run's verdict is not the newest
        ([glance(0), glance(1, suite={"calibration": True})], "● PASS"),
        ([glance(0), glance(1, environment={"measured_by": "vllm"})], "● PASS"),
        ([glance(0, Outcome.BLOCK), glance(1, environment={ONLY_PART: "load"})], "■ BLOCK"),
        ([glance(0), glance(1, Outcome.INCONCLUSIVE, environment={ONLY_PART: QUICK_LOOK})], "● PASS"),
        ([], "no verdict"),
    ],
)
def test_a_badge_is_of_the_newest_run_that_judges(runs: list[RunSummary], message: str) -> None:
    assert badge_of("chat", runs).message == message


def test_a_badge_is_of_what_is_in_service_where_that_is_recorded_and_says_so() -> None:
    runs = [glance(0), glance(1, Outcome.WARN), glance(2, Outcome.BLOCK)]
    served = badge_of("chat", runs, "run-0001")
    assert (served.message, served.title) == ("▲ WARN", "what is in service, pr-1")
    newest = badge_of("chat", runs)
    assert (newest.message, newest.title) == ("■ BLOCK", "the newest run, pr-2")
    assert badge_of("chat", runs, "gone").title == newest.title
    assert badge_of("chat", []).title == "no run judges a candidate"


def test_files_are_called_by_ids_and_hashes_alone() -> None:
    uuid = "0190b2c4-7d1e-7a3b-9c5f-2e8d6a4b1f03"
    assert folder.run_file(uuid) == f"runs/{uuid}.html"
    for odd in ("../../etc/passwd", uuid.upper(), "nul", "", "\ud800", f"{uuid}/x"):
        assert folder.is_ours(folder.run_file(odd)) and folder.run_file(odd) != f"runs/{odd}.html"
    assert not any(map(folder.is_ours, ("runs/../index.html", "/index.html", "CNAME", "runs/_x.html", "index.html\n")))


def test_a_report_rests_on_what_was_known_when_its_run_began_and_on_nothing_later() -> None:
    first = glance(1, started_at="2026-01-01T00:00:00Z", finished_at="2026-01-01T01:00:00Z")
    second = glance(2, started_at="2026-01-02T00:00:00Z", finished_at="2026-01-02T01:00:00Z")

    def hashed(*runs: RunSummary, noise: tuple[tuple[str, str], ...] = ()) -> str:
        return ReportInputs.of(Overview(runs, (), noise)).sha256(second)

    def decided(at: str) -> RunSummary:
        return replace(first, outcomes=(StoredOutcome(Outcome.PASS, "", "1" * 64, at),))

    alone = hashed(second)
    known = hashed(decided("2026-01-01T02:00:00Z"), second)
    assert known != hashed(decided("2026-01-03T00:00:00Z"), second) != alone
    later = glance(3, started_at="2026-01-03T00:00:00Z", finished_at="2026-01-03T01:00:00Z")
    assert hashed(decided("2026-01-01T02:00:00Z"), second, later) == known
    begun = replace(later, run=replace(later.run, started_at="2026-01-01T12:00:00Z", finished_at=None))
    assert hashed(begun, second) != hashed(replace(begun, measured=False), second) != alone
    elsewhere = replace(first, run=replace(first.run, suite_name="other"))
    assert hashed(elsewhere, second) == alone
    assert hashed(second, noise=(("2026-01-02T00:30:00Z", "n"),)) != alone
    assert hashed(second, noise=(("2026-01-02T02:00:00Z", "n"),)) == alone


COST = next(kind for kind in METRICS if kind.metric == "usd_per_million_output_tokens")
SPOT: dict[str, Any] = {
    "list_usd_per_hour": 2.0,
    "commitment": "spot",
    "overhead_ratio": 0.25,
    "utilisation_ratio": 0.5,
}


def paid(*prices: dict[str, Any]) -> list[Any]:
    found = []
    for at, said in enumerate(prices):
        arms = dict(glance(at).run.arms)
        arms[Arm.CANDIDATE] = replace(arms[Arm.CANDIDATE], **{"price_usd_per_hour": None, **said})
        found.append(glance(at, arms=arms))
    return found


def told(*prices: dict[str, Any]) -> list[tuple[str, str, str]]:
    return changed(paid(*prices), {COST: points([1.0] * len(prices))})


def test_another_price_is_told_with_both_and_drawn_on_costs_alone() -> None:
    runs = paid({"price_usd_per_hour": 4.0}, {"price_usd_per_hour": 2.6})
    found = trends(runs, {COST: points([2.0, 1.3]), TTFT: points([0.1, 0.1])}, frozenset())
    assert [(one.letter, one.run, one.description) for one in found.changes] == [
        ("P", "pr-1", "price of the candidate: $4.00/h → $2.60/h")
    ]
    drawn = {figure.anchor: (">P</text>" in figure.svg) for figure in found.figures}
    assert drawn == {"ttft-p50": False, "usd-per-million-output-tokens": True}


def test_other_terms_of_one_price_and_of_tokens_are_other_prices() -> None:
    terms = {"price_usd_per_hour": 2.5, "price_terms": SPOT}
    ((_, _, said),) = told(terms, {**terms, "price_terms": {**SPOT, "utilisation_ratio": 0.8}})
    assert "used at 50 % of its paid time" in said and "used at 80 % of its paid time" in said
    tokens = {"token_prices": {"input": 1.0, "cached_input": 1.0, "output": 2.0}}
    ((_, _, said),) = told(tokens, {"price_usd_per_hour": 2.0})
    assert said.startswith("price of the candidate: per 1M tokens: input $1")


@pytest.mark.parametrize(
    "prices",
    [
        [{"price_usd_per_hour": 2.0}] * 2,
        [{"price_usd_per_hour": 2.0}, {}, {"price_usd_per_hour": 2.0}],  # in between nobody said
        [{}, {}],
    ],
)
def test_no_price_is_no_other_price(prices: Sequence[dict[str, Any]]) -> None:
    assert told(*prices) == []


def test_another_number_of_accelerators_is_another_bill_whatever_its_server_tells() -> None:
    told_by_server = {"facts": {"accelerator_names": ["H200"] * 8}, "price_usd_per_hour": 2.0}
    assert told({**told_by_server, "accelerators": 8}, {**told_by_server, "accelerators": 4}) == [
        ("P", "pr-1", "price of the candidate: 8 accelerators at $2.00/h → 4 accelerators at $2.00/h")
    ]


def test_a_price_is_held_against_what_was_last_told() -> None:
    assert [run for _, run, _ in told({"price_usd_per_hour": 2.0}, {}, {"price_usd_per_hour": 3.0})] == ["pr-2"]


def in_service(outcome: str = "PASS", guards: Sequence[dict[str, Any]] = (), **changes: Any) -> StoredRun:
    found = candidate("q4")
    run: Run = replace(found.run, label="<b>one</b>", **changes)
    return StoredRun(run, metric_rows(found), {"outcome": outcome, "guards": guards}, "not looked at")


def test_the_badge_is_the_cost_of_what_is_in_service_with_its_day() -> None:
    """$1.50 an hour, 24 answers of 8 tokens in about 2.36 s."""
    badge = cost_badge(in_service())
    assert (badge.label, badge.message) == ("1M good tokens", "$5.12 on 2026-01-02")
    assert badge.title.startswith("what is in service, <b>one</b>, at full use at stage c1, $5.")


def of_eight_accelerators() -> StoredRun:
    one = in_service()
    ours = replace(one.run.arms[Arm.CANDIDATE], facts={"accelerator_names": ["NVIDIA H200"] * 8})
    return replace(one, run=replace(one.run, arms={**one.run.arms, Arm.CANDIDATE: ours}))


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (None, "no run is in the baseline series"),
        (in_service("INVALID"), "the run is INVALID"),
        (in_service(status=RunStatus.PARTIAL), "the run was cut short"),
        (
            in_service(guards=[{"tripped": True, "spoils": ["load"], "reason": "the client was late"}]),
            "client was late",
        ),
        (replace(in_service(), verdict=None), "has no verdict yet"),
        (of_eight_accelerators(), "its price is not of what ran: it is paid for 1 accelerator"),
        (replace(in_service(), rows=()), "no load metrics of the candidate"),
        (in_service(suite={"of": "tomorrow"}), "this version of benchgate cannot read the run's suite"),
    ],
)
def test_what_nobody_can_count_on_is_unknown_and_the_title_says_why(run: StoredRun | None, why: str) -> None:
    badge = cost_badge(run)
    assert badge.message == "unknown" and why in badge.title
