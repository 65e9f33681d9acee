"""The pages of a site as HTML: plain tables and pictures; a short script adds filters, and nothing depends on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchgate.report.html import csp_hash, page_environment, suite_folder
from benchgate.site.badge import Badge
from benchgate.site.frontier import Frontier
from benchgate.site.listed import ListedPromotion, ListedRun
from benchgate.site.names import INDEX
from benchgate.site.numbers_page import NumbersPage
from benchgate.site.trends import Trends


@dataclass(frozen=True, slots=True)
class SuitePart:
    """What the pages say of a suite. `runs` are newest first; `newest` judges a candidate, None where none does.

    `in_service` is the newest run of its baseline series (`in_series`); where that has none, the newest promoted one.
    """

    name: str
    folder: str
    runs: Sequence[ListedRun]
    promotions: Sequence[ListedPromotion]
    newest: ListedRun | None
    in_service: ListedRun | None
    in_series: bool

    @property
    def size(self) -> int:
        """How many runs it has."""
        return len(self.runs)

    @property
    def file(self) -> str:
        """Its page."""
        return f"{self.folder}/{INDEX}"

    @property
    def anchor(self) -> str:
        """Its place on the first page."""
        return f"suite-{self.folder.removeprefix('suites/')}"


def suite_part(
    name: str,
    runs: Sequence[ListedRun],
    promotions: Sequence[ListedPromotion],
    *,
    newest: str | None,
    in_service: str | None,
    in_series: bool,
) -> SuitePart:
    """The part of a suite, of whose runs (newest first) `newest` and `in_service` are two by their ids."""
    known = {run.run_id: run for run in runs}
    return SuitePart(
        name=name,
        folder=suite_folder(name),
        runs=runs,
        promotions=promotions,
        newest=known[newest] if newest is not None else None,
        in_service=known.get(in_service) if in_service is not None else None,
        in_series=in_series,
    )


def index_page(suites: Sequence[SuitePart], promotions: Sequence[ListedPromotion]) -> bytes:
    """The first page: every suite, promotion and run."""
    return _page("site/index.html.j2", {"suites": suites, "promotions": promotions, "up": ""})


def suite_page(suite: SuitePart, trends: Trends, frontier: Frontier | None = None) -> bytes:
    """The page of one suite, with its candidates side by side where it has several."""
    return _page("site/suite.html.j2", {"suite": suite, "trends": trends, "frontier": frontier, "up": "../../"})


def run_page(run: ListedRun, suite: SuitePart, numbers: NumbersPage) -> bytes:
    """The page of a run that has no report."""
    return _page("site/run.html.j2", {"run": run, "suite": suite, "numbers": numbers, "up": "../"})


def badge_svg(badge: Badge) -> bytes:
    """The badge as a picture."""
    return page_environment().get_template("site/badge.svg.j2").render(badge=badge).encode()


def _page(template: str, shown: Mapping[str, object]) -> bytes:
    """`up` is the way from the page to the first one; every other way is from there."""
    environment = page_environment()
    hashes = {
        "style_hash": csp_hash(environment.get_template("site/site.css").render()),
        "script_hash": csp_hash(environment.get_template("site/filter.js").render()),
    }
    return environment.get_template(template).render(**shown, **hashes).encode()
