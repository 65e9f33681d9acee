"""A whole site from a store: reports first, then the pages that lead to them, each only where it must be made anew.

The same store gives the same bytes, whatever of the site was there before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchgate.model.deployment import sha256_of
from benchgate.model.history import baseline_series, current_promotions
from benchgate.pipeline.compare_runs import read_stored
from benchgate.report.frontier import frontier_document
from benchgate.report.html import suite_folder
from benchgate.site.badge import badge_json, badge_of, newest_judging
from benchgate.site.cost_badge import cost_badge
from benchgate.site.frontier import frontier, lined_up
from benchgate.site.inputs import ReportInputs, tool_sha256
from benchgate.site.listed import ListedRun, listed_promotions, listed_runs
from benchgate.site.names import BADGES, INDEX, NO_JEKYLL, run_file
from benchgate.site.numbers_page import numbers_page, reason_without_report
from benchgate.site.pages import SuitePart, badge_svg, index_page, run_page, suite_page, suite_part
from benchgate.site.reports import Wanted, rendered
from benchgate.site.shelf import Changes, Entry, Shelf, opened
from benchgate.site.trends import Points, drawn_runs, points_by_suite, told_of, trends
from benchgate.store.queries import Overview, RunSummary
from benchgate.store.repository import Store

Tell = Callable[[int, int], object]
"""How many reports are there by now, of how many that must be made."""


@dataclass(frozen=True, slots=True)
class Built:
    """What a build did; `faults` are the runs, by id, of which no report can be made, and why not."""

    changes: Changes
    faults: Mapping[str, str]


def build(address: str, folder: Path, tell: Tell) -> Built:
    """Makes the site of the store at this address in a folder that is empty or was made by this.

    Raises UsageError for another folder, PublishError where a file cannot be written, and StoreError or EvidenceError
    where the store cannot be read; what was made by then is kept, and the next build goes on from there.
    """
    with Store.open(address, create=False) as store, opened(folder) as shelf:
        seen = store.overview()
        suites = _by_suite(seen.runs)
        shelf.claim(_files(seen, suites))
        faults = _reports(store, address, seen, shelf, tell)
        reported = [glance.run.id for glance in seen.runs if reason_without_report(glance) is None]
        made = {run_id: shelf.entries[run_file(run_id)] for run_id in reported}
        listed = listed_runs(seen.runs, seen.promotions, made)
        parts = _parts(seen, suites, listed)
        for glance in seen.runs:
            if glance.run.id not in made or glance.run.id in faults:
                _numbers(store, glance, listed[glance.run.id], parts[glance.run.suite_name], shelf, faults)
        points = points_by_suite(store)
        for name, part in parts.items():
            _suite(store, part, suites[name], points.get(name, {}), shelf)
        newest_first = sorted(parts.values(), key=lambda one: one.runs[0].started_at, reverse=True)
        shelf.put(NO_JEKYLL, b"")
        promotions = listed_promotions(seen.promotions, {glance.run.id: glance for glance in seen.runs})
        shelf.put(INDEX, index_page(newest_first, promotions))
        shelf.tidy()
    return Built(shelf.changes, faults)


def _by_suite(runs: Sequence[RunSummary]) -> dict[str, list[RunSummary]]:
    found: dict[str, list[RunSummary]] = {}
    for glance in runs:
        found.setdefault(glance.run.suite_name, []).append(glance)
    return dict(sorted(found.items()))


def _files(seen: Overview, suites: Mapping[str, object]) -> list[str]:
    of_suites = [f"{suite_folder(name)}/{file}" for name in suites for file in (INDEX, *BADGES)]
    return [INDEX, NO_JEKYLL, *of_suites, *(run_file(glance.run.id) for glance in seen.runs)]


def _reports(store: Store, address: str, seen: Overview, shelf: Shelf, tell: Tell) -> dict[str, str]:
    """Makes the reports that are not there as they must be; the runs of which there can be none, and why."""
    inputs, wanted, faults = ReportInputs.of(seen), dict[str, str](), dict[str, str]()
    for glance in seen.runs:
        file = run_file(glance.run.id)
        if reason_without_report(glance) is not None:
            continue
        made_from = inputs.sha256(glance)
        if shelf.entry(file, made_from) is None:
            wanted[glance.run.id] = made_from
        else:
            shelf.keep(file)
    files = [Wanted(run_id, shelf.place(run_file(run_id))) for run_id in wanted]
    for number, one in enumerate(rendered(store, address, files), 1):
        if one.fault is not None:
            faults[one.run_id] = one.fault
            file = run_file(one.run_id)
            shelf.entries[file] = replace(shelf.entries[file], outcome=None, fault=one.fault)
        else:
            made = Entry(wanted[one.run_id], one.n_bytes, one.outcome)
            shelf.written(run_file(one.run_id), made)
        tell(number, len(files))
    return faults


def _parts(
    seen: Overview, suites: Mapping[str, Sequence[RunSummary]], listed: Mapping[str, ListedRun]
) -> dict[str, SuitePart]:
    parts = {}
    known = {glance.run.id: glance for glance in seen.runs}
    for name, runs in suites.items():
        of_suite = [one for one in seen.promotions if one.suite == name]
        newest, stands = newest_judging(runs), list(current_promotions(of_suite).values())
        in_series = baseline_series(of_suite)
        service = (in_series or stands)[-1].run_id if stands else None
        parts[name] = suite_part(
            name,
            [listed[glance.run.id] for glance in reversed(runs)],
            listed_promotions(of_suite, known),
            newest=newest.run.id if newest is not None else None,
            in_service=service,
            in_series=bool(in_series),
        )
    return parts


def _numbers(
    store: Store, glance: RunSummary, run: ListedRun, part: SuitePart, shelf: Shelf, faults: Mapping[str, str]
) -> None:
    """The page of a run without a report. Its numbers stay what they are, so it is made again for what else it says."""
    file, fault = run_file(glance.run.id), faults.get(glance.run.id)
    inputs = sha256_of([tool_sha256(), asdict(run), [said.sha256 for said in glance.outcomes], glance.n_kept])
    if fault is None and shelf.entry(file, inputs) is not None:
        shelf.keep(file)
        return
    page = run_page(run, part, numbers_page(store, glance, Entry(fault=fault)))
    shelf.put(file, page, None if fault is not None else inputs, fault)


def _suite(store: Store, part: SuitePart, runs: Sequence[RunSummary], points: Points, shelf: Shelf) -> None:
    """A suite's page and badges."""
    served = part.in_service.run_id if part.in_service and part.in_series else None
    badge = badge_of(part.name, runs, served)
    shelf.put(f"{part.folder}/badge.svg", badge_svg(badge))
    shelf.put(f"{part.folder}/badge.json", badge_json(badge))
    in_service = next((glance.run for glance in runs if glance.run.id == served), None)
    cost = cost_badge(None if in_service is None else read_stored(store, in_service, from_records=False))
    shelf.put(f"{part.folder}/badge-cost.svg", badge_svg(cost))
    drawn = told_of(drawn_runs(runs, points), points)
    side_by_side = lined_up(store, runs)
    told = None if side_by_side is None else frontier_document(side_by_side)
    inputs = sha256_of([tool_sha256(), part.name, _plain(part), drawn, told])
    if shelf.entry(part.file, inputs) is not None:
        shelf.keep(part.file)
        return
    promoted = frozenset(run.run_id for run in part.runs if run.stands)
    shelf.put(part.file, suite_page(part, trends(runs, points, promoted), frontier(side_by_side)), inputs)


def _plain(part: SuitePart) -> list[object]:
    """All of a part that its page shows, but its runs' places in the store."""
    service = part.in_service.run_id if part.in_service is not None else None
    newest = part.newest.run_id if part.newest is not None else None
    return [service, part.in_series, newest, *map(asdict, part.runs), *map(asdict, part.promotions)]
