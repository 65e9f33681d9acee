"""A whole site from a store: reports first, then the pages that lead to them, each only if its inputs changed.

The same store gives the same bytes, whatever was in the folder before.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path

from benchgate.model.deployment import sha256_of
from benchgate.model.history import baseline_series, current_promotions
from benchgate.pipeline.compare_runs import read_stored
from benchgate.report.frontier import frontier_document
from benchgate.report.html import TEMPLATES, suite_folder
from benchgate.site.badges import badge_json, badge_of, cost_badge, newest_judging
from benchgate.site.folder import BADGES, INDEX, NO_JEKYLL, Changes, Entry, OutputFolder, opened, run_file
from benchgate.site.pages import (
    ListedRun,
    SuitePart,
    badge_svg,
    compared_candidates,
    frontier_section,
    index_page,
    listed_promotions,
    listed_runs,
    numbers_page,
    reason_without_report,
    run_page,
    suite_page,
)
from benchgate.site.reports import ReportJob, rendered
from benchgate.site.trends import Points, chart_inputs, drawn_runs, points_by_suite, trends
from benchgate.store.queries import Overview, RunSummary
from benchgate.store.repository import Store

Progress = Callable[[int, int], object]
"""Function that receives the number of reports made, and of all to be made."""


@dataclass(frozen=True, slots=True)
class Built:
    """Result of a build; `faults` are the reasons why runs have no report, by run id."""

    changes: Changes
    faults: Mapping[str, str]


def build(address: str, folder: Path, progress: Progress) -> Built:
    """Build the site of a store in a folder that is empty or has an earlier one.

    Raises UsageError for another folder, PublishError where a file cannot be written, and StoreError or EvidenceError
    where the store cannot be read; what was made by then is kept, and the next build continues from there.
    """
    with Store.open(address, create=False) as store, opened(folder) as output:
        overview = store.overview()
        suites: dict[str, list[RunSummary]] = {}
        for summary in sorted(overview.runs, key=lambda one: one.run.suite_name):  # a stable sort
            suites.setdefault(summary.run.suite_name, []).append(summary)
        suite_files = [f"{suite_folder(name)}/{file}" for name in suites for file in (INDEX, *BADGES)]
        output.claim([INDEX, NO_JEKYLL, *suite_files, *(run_file(one.run.id) for one in overview.runs)])
        faults = _reports(store, address, overview, output, progress)
        reported = [summary.run.id for summary in overview.runs if reason_without_report(summary) is None]
        made = {run_id: output.entries[run_file(run_id)] for run_id in reported}
        listed = listed_runs(overview.runs, overview.promotions, made)
        parts = _parts(overview, suites, listed)
        for summary in overview.runs:
            if summary.run.id not in made or summary.run.id in faults:
                _numbers(store, summary, listed[summary.run.id], parts[summary.run.suite_name], output, faults)
        points = points_by_suite(store)
        for name, part in parts.items():
            _suite(store, part, suites[name], points.get(name, {}), output)
        newest_first = sorted(parts.values(), key=lambda one: one.runs[0].started_at, reverse=True)
        output.put(NO_JEKYLL, b"")
        promotions = listed_promotions(overview.promotions, {summary.run.id: summary for summary in overview.runs})
        output.put(INDEX, index_page(newest_first, promotions))
        output.tidy()
    return Built(output.changes, faults)


def _reports(
    store: Store, address: str, overview: Overview, output: OutputFolder, progress: Progress
) -> dict[str, str]:
    """Make the missing and outdated reports; return the reasons why runs have none."""
    inputs, outdated, faults = ReportInputs.of(overview), dict[str, str](), dict[str, str]()
    for summary in overview.runs:
        file = run_file(summary.run.id)
        if reason_without_report(summary) is not None:
            continue
        made_from = inputs.sha256(summary)
        if output.entry(file, made_from) is None:
            outdated[summary.run.id] = made_from
        else:
            output.keep(file)
    files = [ReportJob(run_id, output.place(run_file(run_id))) for run_id in outdated]
    for number, one in enumerate(rendered(store, address, files), 1):
        if one.fault is not None:
            faults[one.run_id] = one.fault
            file = run_file(one.run_id)
            output.entries[file] = replace(output.entries[file], outcome=None, fault=one.fault)
        else:
            made = Entry(outdated[one.run_id], one.n_bytes, one.outcome)
            output.written(run_file(one.run_id), made)
        progress(number, len(files))
    return faults


def _parts(
    overview: Overview, suites: Mapping[str, Sequence[RunSummary]], listed: Mapping[str, ListedRun]
) -> dict[str, SuitePart]:
    parts = {}
    known = {summary.run.id: summary for summary in overview.runs}
    for name, runs in suites.items():
        of_suite = [one for one in overview.promotions if one.suite == name]
        newest, stands = newest_judging(runs), list(current_promotions(of_suite).values())
        in_series = baseline_series(of_suite)
        service = (in_series or stands)[-1].run_id if stands else None
        parts[name] = SuitePart(
            name,
            [listed[summary.run.id] for summary in reversed(runs)],
            listed_promotions(of_suite, known),
            newest=listed[newest.run.id] if newest is not None else None,
            in_service=listed.get(service) if service is not None else None,
            in_series=bool(in_series),
        )
    return parts


def _numbers(
    store: Store, summary: RunSummary, run: ListedRun, part: SuitePart, output: OutputFolder, faults: Mapping[str, str]
) -> None:
    """Make the page of a run without a report. Its numbers never change, but other facts on the page may."""
    file, fault = run_file(summary.run.id), faults.get(summary.run.id)
    inputs = sha256_of([tool_sha256(), asdict(run), [verdict.sha256 for verdict in summary.outcomes], summary.n_kept])
    if fault is None and output.entry(file, inputs) is not None:
        output.keep(file)
        return
    page = run_page(run, part, numbers_page(store, summary, Entry(fault=fault)))
    output.put(file, page, None if fault is not None else inputs, fault)


def _suite(store: Store, part: SuitePart, runs: Sequence[RunSummary], points: Points, output: OutputFolder) -> None:
    """Make a suite's page and badges."""
    served = part.in_service.run_id if part.in_service and part.in_series else None
    badge = badge_of(part.name, runs, served)
    output.put(f"{part.folder}/badge.svg", badge_svg(badge))
    output.put(f"{part.folder}/badge.json", badge_json(badge))
    in_service = next((summary.run for summary in runs if summary.run.id == served), None)
    cost = cost_badge(None if in_service is None else read_stored(store, in_service, from_records=False))
    output.put(f"{part.folder}/badge-cost.svg", badge_svg(cost))
    drawn = chart_inputs(drawn_runs(runs, points), points)
    candidates = compared_candidates(store, runs)
    frontier_json = None if candidates is None else frontier_document(candidates)
    inputs = sha256_of([tool_sha256(), part.name, _plain(part), drawn, frontier_json])
    if output.entry(part.file, inputs) is not None:
        output.keep(part.file)
        return
    promoted = frozenset(run.run_id for run in part.runs if run.stands)
    output.put(part.file, suite_page(part, trends(runs, points, promoted), frontier_section(candidates)), inputs)


def _plain(part: SuitePart) -> list[object]:
    """Return all that a suite's page shows of a part."""
    service = part.in_service.run_id if part.in_service is not None else None
    newest = part.newest.run_id if part.newest is not None else None
    return [service, part.in_series, newest, *map(asdict, part.runs), *map(asdict, part.promotions)]


_LIBRARIES = ("jinja2", "numpy", "scipy", "vl-convert-python")  # whose own changes may change a page
_PACKAGE = Path(__file__).parent.parent


@cache
def tool_sha256() -> str:
    """Return the hash of benchgate's code, its templates, and the libraries that make pages."""
    folders = [(_PACKAGE, "*.py"), *((folder, "*") for folder in TEMPLATES if folder.is_dir())]
    found = [file for folder, pattern in folders for file in sorted(folder.rglob(pattern)) if file.is_file()]
    digest = hashlib.sha256(json.dumps([[name, version(name)] for name in _LIBRARIES]).encode())
    for file in found:
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class _History:
    """State of a suite's runs, verdicts and promotions at any instant, as running hashes."""

    instants: Sequence[str]
    hashes: Sequence[str]

    def by(self, instant: str) -> str:
        at = bisect_right(self.instants, instant)
        return self.hashes[at - 1] if at else ""


@dataclass(frozen=True, slots=True, eq=False)
class ReportInputs:
    """Hashes of the inputs of each run's report.

    The inputs are the run itself and what was known when it began (runs, verdicts and promotions of its suite) or ended
    (noise profiles). Later facts change no report, so a new run does not make old ones outdated.
    """

    suites: Mapping[str, _History]
    noise: _History

    @classmethod
    def of(cls, overview: Overview) -> ReportInputs:
        """Collect the inputs of all runs of a store."""
        facts: dict[str, list[tuple[str, str]]] = {}
        stored = {verdict.sha256 for summary in overview.runs for verdict in summary.outcomes}
        for summary in overview.runs:
            facts.setdefault(summary.run.suite_name, []).extend(_facts(summary))
        for promotion in overview.promotions:
            rests = promotion.grounds is None or promotion.grounds.verdict_sha256 in stored
            fact = sha256_of([promotion.to_json(), rests])
            facts.setdefault(promotion.suite, []).append((promotion.promoted_at, fact))
        return cls({suite: _history(fact) for suite, fact in facts.items()}, _history(overview.noise))

    def sha256(self, summary: RunSummary) -> str:
        """Return the hash of one run's inputs."""
        run = summary.run
        removed = None if summary.removed is None else summary.removed.removed_at
        return sha256_of(
            [
                tool_sha256(),
                [run.id, run.status.value, run.finished_at, run.label, run.tool_version],
                [summary.evidence_sha256, summary.n_kept, removed, summary.noise_sha256],
                [verdict.sha256 for verdict in summary.outcomes],
                self.suites[run.suite_name].by(run.started_at),
                self.noise.by(run.finished_at or run.started_at),
            ]
        )


def _facts(summary: RunSummary) -> Iterator[tuple[str, str]]:
    """Yield the facts of a run with their instants: that it measured something, its end, and its verdicts."""
    run = summary.run
    yield run.started_at, sha256_of([run.id, run.label, summary.measured])
    if run.finished_at is None:
        return
    yield run.finished_at, sha256_of([run.id, run.status.value, run.started_at, summary.evidence_sha256])
    for verdict in summary.outcomes:
        yield max(verdict.decided_at or "", run.finished_at), sha256_of([run.id, verdict.sha256])


def _history(facts: Sequence[tuple[str, str]]) -> _History:
    instants, hashes, digest = list[str](), list[str](), hashlib.sha256()
    for instant, fact in sorted(facts):
        digest.update(fact.encode())
        instants.append(instant)
        hashes.append(digest.hexdigest())
    return _History(instants, hashes)
