"""The whole report as one value: evidence and verdict in, finished text out. No clock, no file, no markup."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from benchgate import units
from benchgate.errors import ExitCode
from benchgate.gate.comparison import compare
from benchgate.gate.evidence.client_strain import paced_by_client
from benchgate.gate.evidence.costs import price_list_mismatch
from benchgate.gate.guards.server import telemetry_notices
from benchgate.model.run import Evidence
from benchgate.model.verdict import WAIVED, CheckResult, Outcome, Scale, Verdict
from benchgate.report import display
from benchgate.report.checks import CheckRows, check_rows, waiver_lines
from benchgate.report.comparability import Fairness, Sides, client_care, fairness, sides, unusable
from benchgate.report.document import OTHER_POLICY, OWN, Terms, verdict_document
from benchgate.report.numbers import Numbers, numbers
from benchgate.report.section import Section
from benchgate.report.sections.capacity import capacity_section
from benchgate.report.sections.cost import cost_section
from benchgate.report.sections.divergence import divergence_section
from benchgate.report.sections.history import history_section
from benchgate.report.sections.latency import attainment_section, latency_section
from benchgate.report.sections.load import client_section, load_section, slo_sentence
from benchgate.report.sections.noise import noise_section
from benchgate.report.sections.paired import paired_section
from benchgate.report.sections.provenance import Provenance, promotion_command, provenance
from benchgate.report.sections.quality import quality_section
from benchgate.report.sections.servers import servers_section
from benchgate.report.sections.shadow import shadow_section
from benchgate.report.sections.stages import executions_of, stage_rows
from benchgate.suite.schema import Suite

_MEANING = {
    Outcome.PASS: "A regression beyond the allowed margins is ruled out.",
    Outcome.WARN: "A regression beyond the allowed margins is ruled out; read the warnings first.",
    Outcome.BLOCK: "A regression beyond the allowed margin was demonstrated.",
    Outcome.INCONCLUSIVE: "A regression beyond the allowed margins is neither demonstrated nor ruled out.",
    Outcome.INVALID: "The measurement is unsound, so it says nothing about the candidate: no promotion.",
}
_MEANING_OF_ONE = {
    Outcome.PASS: "Every bound is shown to hold.",
    Outcome.WARN: "Every bound holds; read the warnings.",
    Outcome.BLOCK: "A bound is shown to be broken.",
    Outcome.INCONCLUSIVE: "The evidence shows neither that every bound holds nor that one is broken.",
    Outcome.INVALID: "The measurement is unsound, so it says nothing about the deployment.",
}
_REGRESSED = "A regression was demonstrated, and it is not shown to stay inside the allowed margin."
_WIDE_MARGIN = 0.5


@dataclass(frozen=True, slots=True)
class Tally:
    """The number of checks with one outcome, and how many of these are advisory."""

    outcome: str  # an Outcome, or WAIVED
    mark: str
    count: int
    advisory: int


@dataclass(frozen=True, slots=True)
class Banner:
    """The verdict in short, for readers who read nothing else."""

    outcome: Outcome
    refused: bool  # the process promotes nothing by a verdict that would
    mark: str
    meaning: str
    objecting: str  # tripped guards and the numbers they invalidate; may be empty
    todo: str
    reason: str
    suite: str
    baseline: str
    candidate: str
    baseline_run: str  # empty when both sides are of one run
    run: str
    when: str
    exit_code: int
    tally: tuple[Tally, ...]
    alone: bool  # one deployment was measured, and compared with nothing
    notice: str  # that the evals were imported, or that one part of the suite was measured; else empty

    @property
    def title(self) -> str:
        """The outcome, and that it does not count where the process refuses it."""
        return f"{self.outcome} (not promoted)" if self.refused else self.outcome.value


@dataclass(frozen=True, slots=True)
class ReportView:
    """Everything a report says; `sections` in reading order, without those that have nothing to display."""

    banner: Banner
    checks: CheckRows
    limits_sentence: str  # without its full stop
    fairness: Fairness
    waivers: tuple[str, ...]  # empty where all were used and hold for long
    notes: tuple[str, ...]  # facts beyond this comparison
    sections: tuple[Section, ...]
    provenance: Provenance
    numbers: Numbers

    def section(self, anchor: str) -> Section | None:
        """Return the section with this anchor."""
        return next((section for section in self.sections if section.anchor == anchor), None)


class Report:
    """A run's report, or that of a run `against` the candidate of a stored reference run; each part is made once."""

    def __init__(
        self,
        evidence: Evidence,
        verdict: Verdict,
        *,
        against: Evidence | None = None,
        terms: Terms = OWN,
        document: dict[str, object] | None = None,
    ) -> None:
        self.evidence, self.verdict, self.against, self.terms = evidence, verdict, against, terms
        self.suite: Suite = terms.suite(evidence.run)
        reference = None if against is None else against.run
        self.document = document or verdict_document(evidence.run, verdict, against=reference, terms=terms)

    @cached_property
    def quality(self) -> Section | None:
        """The quality section."""
        return quality_section(compare(self.evidence, self.against), self.verdict, self.suite)

    @cached_property
    def cautions(self) -> tuple[str, ...]:
        """Bounds of the load generator that the policy widens."""
        return client_care(self.suite, self.evidence, self.against)

    @cached_property
    def view(self) -> ReportView:
        """The whole report, of a process that ends with the verdict's own exit code."""
        evidence, verdict, against, terms = self.evidence, self.verdict, self.against, self.terms
        both = sides(evidence, against)
        rows, executions = stage_rows(both, self.suite), executions_of(both)
        spoilt = unusable(verdict)
        paired = paired_section(evidence, verdict, self.suite) if against is None else None
        unlike = None if against is None else price_list_mismatch(evidence.run, against.run)
        paced = paced_by_client(self.suite, *((evidence,) if against is None else (evidence, against)))
        sections = (
            (load_section(rows, both, self.suite, paired=paired is not None), spoilt.load),
            (latency_section(rows, executions, verdict), spoilt.load),
            (attainment_section(rows, executions, slo_sentence(self.suite)), spoilt.load),
            (paired, spoilt.load),
            (client_section(rows, both), ""),
            (servers_section(both, self.suite, verdict, paced), ""),
            (capacity_section(evidence, against, self.suite, alone=both.alone), spoilt.load),
            (cost_section(rows, unlike), spoilt.load),
            (self.quality, spoilt.quality),
            (divergence_section(evidence, stored=against is not None), spoilt.divergence),
            (shadow_section(evidence, verdict.alpha) if against is None else None, spoilt.shadow),
            (history_section(evidence, verdict, self.suite) if against is None else None, ""),
            (noise_section(evidence, verdict), ""),
        )
        doubt = terms.reference_doubt()
        cautions = (*([doubt] if doubt else []), *self.cautions, *telemetry_notices(evidence, self.suite))
        return ReportView(
            banner=_banner(both, verdict, terms, terms.exit_code(verdict)),
            checks=check_rows(verdict),
            limits_sentence=display.limits_sentence(verdict),
            fairness=fairness(both, verdict, cautions),
            waivers=tuple(waiver_lines(verdict)),
            notes=(
                *([OTHER_POLICY] if terms.policy_replaced(evidence.run, verdict) else []),
                *verdict.notes,
                *_wide_margins(both, verdict),
            ),
            sections=tuple(replace(one, invalidated_by=guards) for one, guards in sections if one is not None),
            provenance=provenance(
                evidence, both, rows, executions, verdict, None if against is None else against.run, terms
            ),
            numbers=numbers(self.document, rows, executions, evidence, against, terms),
        )

    def view_of(self, code: ExitCode) -> ReportView:
        """Return the whole report of a process that ends with this code."""
        if code is self.terms.exit_code(self.verdict):
            return self.view
        both = sides(self.evidence, self.against)
        return replace(self.view, banner=_banner(both, self.verdict, self.terms, code))


def report_view(
    evidence: Evidence, verdict: Verdict, *, against: Evidence | None = None, terms: Terms = OWN
) -> ReportView:
    """Return the whole report."""
    return Report(evidence, verdict, against=against, terms=terms).view


def _banner(both: Sides, verdict: Verdict, terms: Terms, code: ExitCode) -> Banner:
    run = both.candidate.run
    refusal = terms.refusal(verdict, code)
    other = both.baseline.run
    notice = f"Only {run.only_part} was measured (--only): this run cannot be promoted." if run.only_part else ""
    if run.is_quick_look:
        notice = "A quick look, with fewer blocks and items than the suite: this run cannot be promoted."
    if run.imported or other.imported:
        notice = "The evals were imported: benchgate did not measure the servers that answered."
    return Banner(
        outcome=verdict.outcome,
        refused=refusal is not None,
        mark=display.MARKS[verdict.outcome],
        meaning=_meaning(verdict, alone=both.alone) if refusal is None else f"Nothing is promoted: {refusal}.",
        objecting=_objecting(verdict),
        todo=_todo(both, verdict, terms, promotes=verdict.outcome.promotes and refusal is None),
        reason=verdict.reason,
        suite=run.suite_name,
        baseline=both.baseline.deployment.name,
        candidate=both.candidate.deployment.name,
        baseline_run="" if other is run else other.id,
        run=run.id,
        when=display.minute(run.started_at),
        exit_code=int(code),
        tally=_tally(verdict),
        alone=both.alone,
        notice=notice,
    )


def _meaning(verdict: Verdict, *, alone: bool) -> str:
    """Return what the verdict says of the checks that it rests on: margins if some compare the arms, else bounds."""
    outcome = verdict.outcome
    if alone or outcome is Outcome.INVALID:
        return (_MEANING_OF_ONE if alone else _MEANING)[outcome]
    checks = [check for check in verdict.checks if check.required]
    if not outcome.promotes:
        checks = [check for check in checks if check.counted is outcome]
    relative = [check for check in checks if check.scale is not Scale.ABSOLUTE]
    if outcome is Outcome.BLOCK and not any(map(_is_beyond_margin, relative)):
        return _REGRESSED if relative and relative == checks else _MEANING_OF_ONE[outcome]
    return (_MEANING if relative else _MEANING_OF_ONE)[outcome]


def _is_beyond_margin(check: CheckResult) -> bool:
    """Return True if a check that blocks shows a regression beyond its margin; also if it has no interval."""
    if check.harm is None or check.lower is None or check.upper is None:
        return True
    least = -check.upper if check.two_sided and check.harm < 0 else check.lower
    return least > check.margin


def _wide_margins(both: Sides, verdict: Verdict) -> Iterator[str]:
    """Yield why the margins of the load are wide where the servers ran beside the load generator."""
    of_load = [c for c in verdict.checks if c.family == "load" and c.scale is Scale.LOG_RATIO]
    margins = [abs(math.expm1(-c.margin if display.higher_is_better(c.metric) else c.margin)) for c in of_load]
    local = all(side.deployment.url is None for side in both)
    if local and max(margins, default=0.0) >= _WIDE_MARGIN:
        yield (
            f"Margins of up to {units.as_written(units.show_percent, max(margins))} are wide because the servers share "
            "this machine with the load generator: only a large slowdown can be told from its noise. Set narrower "
            "margins for servers of your own."
        )


def _todo(both: Sides, verdict: Verdict, terms: Terms, *, promotes: bool) -> str:
    """Return the first step after a verdict that is not PASS, or how to promote the candidate."""
    steps = ["keep the baseline"] if verdict.outcome is Outcome.BLOCK and not both.alone else []
    remedies = [guard.remedy for guard in verdict.guards if guard.tripped and guard.remedy]
    advice = [check.advice for check in verdict.failing() if check.counted is verdict.outcome and check.advice]
    first = [verdict.next_step] if verdict.next_step else []
    first += [*remedies, *advice] if verdict.outcome is Outcome.INVALID else advice
    steps += first[:1]
    if verdict.outcome is Outcome.INCONCLUSIVE:
        more = sum(check.required and check.counted is Outcome.INCONCLUSIVE for check in verdict.checks) - 1
        steps += [f"{more} more inconclusive check{'s' if more > 1 else ''}, see below"] if more > 0 else []
    run = both.candidate.run
    own = both.baseline.run is run and not terms.policy_replaced(run, verdict)
    refused = run.calibrates or run.imported or run.only_part is not None  # by `promote`
    if promotes and own and not refused:
        command = promotion_command(run, verdict)
        steps.append(f"promote it, and record that with `{command}` (outside CI add --ref REF --protected)")
    return "; ".join(steps)


def _objecting(verdict: Verdict) -> str:
    """Return `Guard client-keeps-up failed: ignore load`."""
    tripped = [guard.id for guard in verdict.guards if guard.tripped]
    if not tripped:
        return ""
    who = f"Guard {tripped[0]} failed" if len(tripped) == 1 else f"Guards {', '.join(tripped)} failed"
    parts = unusable(verdict).parts
    if not parts and verdict.outcome is Outcome.BLOCK:
        return f"{who}: this run cannot promote anything, but its regressions count"
    return f"{who}: ignore {' and '.join(parts)}" if parts else who


def _tally(verdict: Verdict) -> tuple[Tally, ...]:
    worst_first = sorted(Outcome, key=lambda outcome: -outcome.severity)
    marks = {outcome.value: display.MARKS[outcome] for outcome in worst_first} | {WAIVED: display.WAIVED_MARK}
    required = Counter(check.shown for check in verdict.checks if check.required)
    advisory = Counter(check.shown for check in verdict.checks if not check.required)
    counts = ((shown, mark, required[shown] + advisory[shown]) for shown, mark in marks.items())
    return tuple(Tally(shown, mark, count, advisory[shown]) for shown, mark, count in counts if count)
