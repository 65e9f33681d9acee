"""The pages of a site as HTML: plain tables and pictures. A short script adds filters; all works without it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchgate.escape import one_line
from benchgate.model.deployment import Arm
from benchgate.model.history import Promotion, PromotionAction, current_promotions, promotion_labels
from benchgate.model.run import MetricRow, RunStatus
from benchgate.model.verdict import Outcome, Unit
from benchgate.pipeline.compare_runs import newest_of_each, read_stored
from benchgate.report import display
from benchgate.report.charts import Figure
from benchgate.report.display import MARKS, minute, with_limits
from benchgate.report.frontier import frontier_figure, frontier_table, last_line, reasons
from benchgate.report.html import csp_hash, page_environment, suite_folder
from benchgate.report.table import Column, Table
from benchgate.site.badges import Badge
from benchgate.site.folder import ID_SHOWN, INDEX, LONGEST_NAME, NO_VERDICT, Entry, name_of, run_file
from benchgate.site.trends import Trends
from benchgate.sizing.candidates import CandidateRow, CandidateTable, compare_candidates
from benchgate.store.queries import RunSummary
from benchgate.store.repository import Store


@dataclass(frozen=True, slots=True)
class SuitePart:
    """Content of a suite's pages. `runs` are newest first; `newest` judges a candidate, None if none does.

    `in_service` is the newest run of its baseline series (`in_series`); without a series, the newest promoted one.
    """

    name: str
    runs: Sequence[ListedRun]
    promotions: Sequence[ListedPromotion]
    newest: ListedRun | None
    in_service: ListedRun | None
    in_series: bool

    @property
    def size(self) -> int:
        """Return the number of runs."""
        return len(self.runs)

    @property
    def folder(self) -> str:
        """Return the path of its folder."""
        return suite_folder(self.name)

    @property
    def file(self) -> str:
        """Return the path of its page."""
        return f"{self.folder}/{INDEX}"

    @property
    def anchor(self) -> str:
        """Return its anchor on the first page."""
        return f"suite-{self.folder.removeprefix('suites/')}"


def index_page(suites: Sequence[SuitePart], promotions: Sequence[ListedPromotion]) -> bytes:
    """Render the first page: every suite, promotion and run."""
    return _page("site/index.html.j2", {"suites": suites, "promotions": promotions, "up": ""})


def suite_page(suite: SuitePart, trends: Trends, frontier: Frontier | None = None) -> bytes:
    """Render the page of one suite, with a comparison of its candidates if it has several."""
    return _page("site/suite.html.j2", {"suite": suite, "trends": trends, "frontier": frontier, "up": "../../"})


def run_page(run: ListedRun, suite: SuitePart, numbers: NumbersPage) -> bytes:
    """Render the page of a run without a report."""
    return _page("site/run.html.j2", {"run": run, "suite": suite, "numbers": numbers, "up": "../"})


def badge_svg(badge: Badge) -> bytes:
    """Render a badge."""
    return page_environment().get_template("site/badge.svg.j2").render(badge=badge).encode()


def _page(template: str, values: Mapping[str, object]) -> bytes:
    """Render a template; `up` is the relative path to the first page."""
    environment = page_environment()
    hashes = {
        "style_hash": csp_hash(environment.get_template("site/site.css").render()),
        "script_hash": csp_hash(environment.get_template("site/filter.js").render()),
    }
    return environment.get_template(template).render(**values, **hashes).encode()


_NO_MARK = "○"
_COMMIT_SHOWN = 12


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run in a list. `tone` is the outcome's style; `other_verdict` describes a report with another outcome.

    `remarks` are facts such as interrupted, a calibration, a file of another tool. `promoted` describes
    its promotion, and `stands` is True if that is current.
    """

    run_id: str
    suite: str
    file: str
    name: str
    when: str
    started_at: str
    baseline: str
    candidate: str
    outcome: str
    mark: str
    tone: str
    reason: str
    other_verdict: str
    remarks: tuple[str, ...]
    promoted: str
    stands: bool


@dataclass(frozen=True, slots=True)
class ListedPromotion:
    """A promotion or a withdrawal in a list; `stands` is True if it is current."""

    when: str
    suite: str
    file: str
    run: str
    candidate: str
    deed: str
    stands: bool
    by: str
    ref: str
    outcome: str
    reason: str


def listed_runs(
    runs: Sequence[RunSummary], promotions: Sequence[Promotion], reports: Mapping[str, Entry]
) -> dict[str, ListedRun]:
    """Return every run by its id, in the order given; `reports` are the entries of their reports."""
    recorded, stands = promotion_labels(promotions), current_promotions(promotions)
    found = {}
    for summary in runs:
        run_id = summary.run.id
        found[run_id] = _listed_run(summary, recorded.get(run_id, ""), run_id in stands, reports.get(run_id, Entry()))
    return found


def _listed_run(summary: RunSummary, promoted: str, stands: bool, entry: Entry) -> ListedRun:
    run, own = summary.run, summary.outcomes[-1] if summary.outcomes else None
    names = _arm_names(summary)
    # A stored verdict may rest on waivers or an older benchgate, unlike the report.
    reported, stored = entry.outcome, own.outcome.value if own is not None else None
    return ListedRun(
        run_id=run.id,
        suite=run.suite_name,
        file=run_file(run.id),
        name=name_of(summary),
        when=minute(run.started_at),
        started_at=run.started_at,
        baseline=names[Arm.BASELINE],
        candidate=names[Arm.CANDIDATE],
        outcome=own.outcome.value if own is not None else NO_VERDICT,
        mark=MARKS[own.outcome] if own is not None else _NO_MARK,
        tone=own.outcome.value.lower() if own is not None else Outcome.INVALID.value.lower(),
        reason=own.reason if own is not None else "",
        other_verdict=f"its report says {reported}" if reported not in (None, stored) else "",
        remarks=tuple(_remarks(summary, entry)),
        promoted=promoted,
        stands=stands,
    )


def _arm_names(summary: RunSummary) -> dict[Arm, str]:
    arms = summary.run.arms
    return {arm: one_line(arms[arm].name, LONGEST_NAME) if arm in arms else "" for arm in Arm}


def _remarks(summary: RunSummary, entry: Entry) -> list[str]:
    run = summary.run
    known = []
    if run.status is not RunStatus.COMPLETE:
        known.append("cut short" if run.status is RunStatus.PARTIAL else "not over yet")
    if run.calibrates:
        known.append("a calibration")
    if run.measured_by is not None:
        known.append(f"a file of {one_line(run.measured_by, LONGEST_NAME)}")
    if summary.removed is not None:
        known.append("without raw records")
    if entry.fault is not None:
        known.append("no report can be made of it")
    return known


def listed_promotions(promotions: Sequence[Promotion], runs: Mapping[str, RunSummary]) -> list[ListedPromotion]:
    """Return every promotion and withdrawal, newest first."""
    stands = {one.id for one in current_promotions(promotions).values()}
    return [_listed_promotion(one, runs.get(one.run_id), one.id in stands) for one in reversed(promotions)]


def _listed_promotion(promotion: Promotion, summary: RunSummary | None, stands: bool) -> ListedPromotion:
    origin = promotion.origin
    at = f"{origin.ref or ''} {(origin.commit or '')[:_COMMIT_SHOWN]}".strip()
    still = stands or promotion.deed is PromotionAction.WITHDRAWN
    return ListedPromotion(
        when=minute(promotion.promoted_at),
        suite=promotion.suite,
        file=run_file(promotion.run_id),
        run=name_of(summary) if summary is not None else one_line(promotion.run_id[:ID_SHOWN]),
        candidate=_arm_names(summary)[Arm.CANDIDATE] if summary is not None else "",
        deed=promotion.status if still else f"{promotion.status}; no longer stands",
        stands=stands,
        by=one_line(origin.by, LONGEST_NAME),
        ref=one_line(at, LONGEST_NAME),
        outcome=promotion.grounds.outcome.value if promotion.grounds is not None else "",
        reason=promotion.reason or "",
    )


_LONGEST_REASON = 120


@dataclass(frozen=True, slots=True)
class NumbersPage:
    """Page of a run without a report. `why` is the reason; `decided` is the time of the stored verdict."""

    file: str
    why: str
    decided: str
    checks: Table | None
    numbers: Table | None


def reason_without_report(summary: RunSummary) -> str | None:
    """Return why a run has no report; None if it has one."""
    run = summary.run
    if run.measured_by is not None:
        return (
            f"This run was imported from a file of {one_line(run.measured_by, _LONGEST_REASON)}: it has numbers but no "
            "records, so it cannot be judged"
        )
    if run.status is RunStatus.RUNNING:
        return "This run is still running: it is judged when it has ended"
    if summary.removed is not None:
        return (
            f"The raw records of this run were removed on {summary.removed.removed_at[:10]} by "
            f"{one_line(summary.removed.reason, _LONGEST_REASON)}, so it cannot be judged again; this page has "
            "the stored results"
        )
    return None


def numbers_page(store: Store, summary: RunSummary, entry: Entry) -> NumbersPage:
    """Make the page of a run without a report; `entry` has the fault if its report failed."""
    why = reason_without_report(summary) or f"No report can be made of this run: {entry.fault or 'it is damaged'}"
    own = store.own_verdict(summary.run.id)
    return NumbersPage(
        file=run_file(summary.run.id),
        why=why,
        decided=display.minute(own.decided_at or "") if own is not None else "",
        checks=None if own is None else _checks_table(own.document.get("checks")),
        numbers=_numbers_table(store.metrics(summary.run.id)),
    )


def _checks_table(checks: Any) -> Table | None:
    rows = []
    for check in checks if isinstance(checks, list) else ():
        title, outcome = str(check.get("title", check.get("id", ""))), str(check.get("outcome", ""))
        sides = [_check_value(check.get(side), check.get("unit")) for side in ("baseline", "candidate")]
        rows.append((title, outcome, *sides, str(check.get("reason") or "")))
    titles = ("check", "outcome", "baseline", "candidate", "why")
    columns = tuple(Column(title, numeric=title in ("baseline", "candidate")) for title in titles)
    return Table("Checks as decided", columns, tuple(rows)) if rows else None


def _check_value(value: object, unit: object) -> str:
    """Format a value of a verdict document, where infinity is a text and an unmeasured value null."""
    number = {"inf": math.inf, "-inf": -math.inf}.get(value) if isinstance(value, str) else value
    if not isinstance(number, int | float) or unit not in set(Unit):
        return display.NOT_MEASURED
    return display.value(float(number), Unit(str(unit)))


def _numbers_table(rows: Sequence[MetricRow]) -> Table | None:
    by_key: dict[tuple[str, ...], dict[Arm, MetricRow]] = {}
    for row in rows:
        key = tuple(part or "" for part in (row.name, row.statistic, row.stage or row.task))
        by_key.setdefault(key, {})[row.arm] = row
    columns = ("metric", "statistic", "stage or task"), tuple(arm.value for arm in Arm)
    titles = (*(Column(name, numeric=False) for name in columns[0]), *map(Column, columns[1]))
    cells = tuple((*key, *(with_limits(both.get(arm)) for arm in Arm)) for key, both in by_key.items())
    return Table("Numbers of this run, with 95 % intervals", titles, cells) if cells else None


_STORED = "figures as stored with each run; `benchgate frontier` computes them from the raw records"
MOST_DRAWN_CANDIDATES = 12
"""Limit of candidates in a chart, the newest first. The table has all of them."""


@dataclass(frozen=True, slots=True)
class Frontier:
    """Comparison on a suite's page; the last of `lines`, below the chart, names the cheapest that passes."""

    figure: Figure
    lines: tuple[str, ...]


def compared_candidates(store: Store, runs: Sequence[RunSummary]) -> CandidateTable | None:
    """Compare the candidates of a suite's `runs` (oldest first); None unless two have both quality and cost.

    Uses stored figures: reading the raw records of every run with every build would take too long.
    """
    picked = newest_of_each([summary.run for summary in reversed(runs)])
    if len(picked.runs) < 2:
        return None
    found = compare_candidates([read_stored(store, run, from_records=False) for run in picked.runs])
    found = replace(found, notes=(*picked.notes, *found.notes, _STORED))
    return found if len([row for row in _drawable(found) if row.arm is Arm.CANDIDATE]) > 1 else None


def frontier_section(found: CandidateTable | None) -> Frontier | None:
    """Make the section of a page; None without a comparison."""
    if found is None:
        return None
    drawable, drawn = _drawable(found), _drawn(found)
    caption = "The newest complete run of each candidate."
    if len(drawn) < len(drawable):
        caption += f" {len(drawn)} of {len(drawable)} deployments are drawn; the table has all."
    figure = frontier_figure(replace(found, rows=drawn), "frontier-chart", caption, frontier_table(found))
    notes = [f"Note: {note}." for note in found.notes]
    return Frontier(figure, (*reasons(found.rows, per_answer=False), *notes, last_line(found)))


def _drawable(found: CandidateTable) -> list[CandidateRow]:
    return [row for row in found.rows if not isinstance(row.quality, str) and not isinstance(row.usd, str)]


def _drawn(found: CandidateTable) -> tuple[CandidateRow, ...]:
    """Return the baseline, the newest candidates, and the cheapest that passes, however old."""
    rows = _drawable(found)
    newest = sorted(rows, key=lambda row: (row.arm is Arm.CANDIDATE, row.run.started_at, row.run.id), reverse=True)
    best = None if found.cheapest is None else found.cheapest.name
    kept = {row.name for row in newest[:MOST_DRAWN_CANDIDATES]}
    return tuple(row for row in rows if row.arm is Arm.BASELINE or row.name in kept or row.name == best)
