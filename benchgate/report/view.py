"""The whole report as one value: evidence and verdict in, finished texts out. No clock, no file, no markup."""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import dataclass

from benchgate.errors import ExitCode
from benchgate.gate.comparison import compare
from benchgate.gate.evidence.client_strain import paced_by_client
from benchgate.gate.guards.server import telemetry_notices
from benchgate.model.run import Evidence
from benchgate.model.verdict import WAIVED, Outcome, Verdict
from benchgate.report import show
from benchgate.report.attainment_section import AttainmentSection, attainment_section
from benchgate.report.capacity_section import CapacitySection, capacity_section
from benchgate.report.check_rows import CheckRows, check_rows
from benchgate.report.client_care import client_care
from benchgate.report.distribution_section import Distributions, distributions
from benchgate.report.divergence_section import DivergenceSection, divergence_section
from benchgate.report.document import document_json, verdict_document
from benchgate.report.fairness import Fairness, fairness
from benchgate.report.history_section import HistorySection, history_section
from benchgate.report.levels import limits_told
from benchgate.report.load_section import LoadSection, load_section
from benchgate.report.noise_section import NoiseSection, noise_section
from benchgate.report.numbers import Numbers, numbers
from benchgate.report.paired_section import PairedSection, paired_section
from benchgate.report.provenance import Provenance, provenance
from benchgate.report.quality_section import QualitySection, quality_section
from benchgate.report.shadow_section import ShadowSection, shadow_section
from benchgate.report.sides import Sides, sides
from benchgate.report.stage_rows import executions_of
from benchgate.report.telemetry_section import TelemetrySection, telemetry_section, told_rows
from benchgate.report.terms import OTHER_POLICY, OWN, Terms
from benchgate.report.timeline_section import TimelineSection, timeline_section
from benchgate.report.unusable import Unusable, unusable
from benchgate.report.waivers import waiver_lines
from benchgate.suite.schema import Suite

_MEANING = {
    Outcome.PASS: "More harm than the suite allows is ruled out.",
    Outcome.WARN: "More harm than the suite allows is ruled out; read the warnings first.",
    Outcome.BLOCK: "Harm that the suite does not allow is shown.",
    Outcome.INCONCLUSIVE: "More harm than the suite allows is neither shown nor ruled out.",
    Outcome.INVALID: "The measurement itself is not sound, so it speaks neither for nor against: no promotion.",
}
_MEANING_OF_ONE = {
    Outcome.PASS: "Every bound is shown to hold.",
    Outcome.WARN: "Every bound holds; read the warnings.",
    Outcome.BLOCK: "A bound is shown to be broken.",
    Outcome.INCONCLUSIVE: "What was measured shows neither that every bound holds nor that one is broken.",
    Outcome.INVALID: "The measurement itself is not sound, so it speaks neither for nor against.",
}
_STRICT_WARNING = "The candidate is not promoted: warnings were asked to block."


@dataclass(frozen=True, slots=True)
class Tally:
    """How many checks came out one way, and how many of these are advisory."""

    outcome: str  # an Outcome, or WAIVED
    mark: str
    count: int
    advisory: int


@dataclass(frozen=True, slots=True)
class Banner:
    """The answer, for someone who reads nothing else."""

    outcome: Outcome
    mark: str
    meaning: str
    objecting: str  # which guards object and what is not to be used; empty where none does
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


@dataclass(frozen=True, slots=True)
class ReportView:
    """Everything a report says, in reading order; a section is None when there is nothing of its kind."""

    banner: Banner
    checks: CheckRows
    limits_told: str  # a sentence without its end
    fairness: Fairness
    unusable: Unusable  # the parts whose numbers are not to be used
    waivers: tuple[str, ...]  # what there is to say of them; nothing where they were used and hold for long
    notes: tuple[str, ...]  # what to know beyond this comparison
    load: LoadSection | None
    distributions: Distributions | None
    attainment: AttainmentSection | None
    paired: PairedSection | None
    telemetry: TelemetrySection | None
    timeline: TimelineSection | None
    capacity: CapacitySection | None
    quality: QualitySection | None
    divergence: DivergenceSection | None
    shadow: ShadowSection | None
    history: HistorySection | None
    noise: NoiseSection | None
    provenance: Provenance
    document_json: str
    numbers: Numbers


def report_view(
    evidence: Evidence, verdict: Verdict, *, against: Evidence | None = None, terms: Terms = OWN
) -> ReportView:
    """The report of a run, or of a run against the candidate of a stored reference run."""
    both = sides(evidence, against)
    runs = (evidence,) if against is None else (evidence, against)
    reference = None if against is None else against.run
    suite = terms.suite(evidence.run)
    load = load_section(both, suite)
    rows = load.rows if load is not None else ()
    seen = executions_of(both)
    told = told_rows(both, suite)
    document = verdict_document(evidence.run, verdict, against=reference, terms=terms)
    return ReportView(
        banner=_banner(both, verdict, terms),
        checks=check_rows(verdict),
        limits_told=limits_told(verdict),
        fairness=fairness(both, verdict, _cautions(evidence, suite, against, terms)),
        unusable=unusable(verdict),
        waivers=tuple(waiver_lines(verdict)),
        notes=((OTHER_POLICY, *verdict.notes) if terms.policy_replaced(evidence.run, verdict) else verdict.notes),
        load=load,
        distributions=distributions(rows, seen, verdict),
        attainment=attainment_section(rows, seen),
        paired=paired_section(evidence, verdict, suite) if against is None else None,
        telemetry=telemetry_section(both, told),
        timeline=timeline_section(told, verdict, paced_by_client(suite, *runs)),
        capacity=capacity_section(evidence, against, suite, alone=both.alone),
        quality=quality_section(compare(evidence, against), verdict, suite),
        divergence=divergence_section(evidence, stored=against is not None),
        shadow=shadow_section(evidence, verdict.alpha) if against is None else None,
        history=history_section(evidence, verdict) if against is None else None,
        noise=noise_section(evidence, verdict),
        provenance=provenance(evidence, both, load, verdict, reference, terms),
        document_json=document_json(document),
        numbers=numbers(document, rows, seen, evidence, against, terms),
    )


def _cautions(evidence: Evidence, suite: Suite, against: Evidence | None, terms: Terms) -> tuple[str, ...]:
    doubt = terms.reference_doubt()
    return (*((doubt,) if doubt else ()), *client_care(suite, evidence, against), *telemetry_notices(evidence, suite))


def _banner(both: Sides, verdict: Verdict, terms: Terms) -> Banner:
    run = both.candidate.run
    code = terms.exit_code(verdict)
    strictly_blocked = verdict.outcome.promotes and code is not ExitCode.OK
    other = both.baseline.run
    meaning = _MEANING_OF_ONE if both.alone else _MEANING
    return Banner(
        outcome=verdict.outcome,
        mark=show.MARKS[verdict.outcome],
        meaning=_STRICT_WARNING if strictly_blocked else meaning[verdict.outcome],
        objecting=_objecting(verdict),
        todo=_todo(both, verdict, terms),
        reason=verdict.reason,
        suite=run.suite_name,
        baseline=both.baseline.deployment.name,
        candidate=both.candidate.deployment.name,
        baseline_run="" if other is run else other.id,
        run=run.id,
        when=show.minute(run.started_at),
        exit_code=int(code),
        tally=_tally(verdict),
        alone=both.alone,
    )


def _todo(both: Sides, verdict: Verdict, terms: Terms) -> str:
    """What to do first about a verdict that is not PASS, then how a candidate that may be promoted is."""
    keeping = "keep the baseline" if verdict.outcome is Outcome.BLOCK and not both.alone else ""
    first = verdict.next_step or _mending(verdict)
    steps = (keeping, first, _others_open(verdict), _promoting(both, verdict, terms))
    return "; ".join(filter(None, steps))


def _objecting(verdict: Verdict) -> str:
    """`The guard client-keeps-up objects: the numbers of load are not to be used`."""
    tripped = [guard.id for guard in verdict.guards if guard.tripped]
    if not tripped:
        return ""
    who = f"The guard {tripped[0]} objects" if len(tripped) == 1 else f"The guards {', '.join(tripped)} object"
    parts = unusable(verdict).parts
    if not parts and verdict.outcome is Outcome.BLOCK:
        return f"{who}: nothing could be promoted by this run, but harm that it shows counts"
    return f"{who}: the numbers of {' and of '.join(parts)} are not to be used" if parts else who


def _others_open(verdict: Verdict) -> str:
    """That more than one check must be settled, of which each says how much more that takes."""
    if verdict.outcome is not Outcome.INCONCLUSIVE:
        return ""
    more = sum(check.required and check.counted is Outcome.INCONCLUSIVE for check in verdict.checks) - 1
    told = "1 more check is open, and says" if more == 1 else f"{more} more checks are open, and each says"
    return f"{told} in its row what would settle it" if more > 0 else ""


def _mending(verdict: Verdict) -> str:
    """A tripped guard's remedy, or the worst check's advice."""
    remedies = [guard.remedy for guard in verdict.guards if guard.tripped and guard.remedy]
    advice = [check.advice for check in verdict.failing() if check.counted is verdict.outcome and check.advice]
    chosen = [*remedies, *advice] if verdict.outcome is Outcome.INVALID else advice
    return chosen[0] if chosen else ""


def _promoting(both: Sides, verdict: Verdict, terms: Terms) -> str:
    """The command that records the promotion; nothing where it would refuse."""
    run = both.candidate.run
    lets_through = verdict.outcome.promotes and terms.exit_code(verdict) is ExitCode.OK
    own = both.baseline.run is run and not terms.policy_replaced(run, verdict)
    if not lets_through or not own or run.calibrates or run.imported:
        return ""
    waivers = f" --waivers FILE --as-of {verdict.as_of}" if verdict.as_of is not None else ""
    command = f"`benchgate promote {shlex.quote(run.id)}{waivers}`"
    return f"when it goes into service, record that with {command} (by hand add --ref REF --protected, where REF is)"


def _tally(verdict: Verdict) -> tuple[Tally, ...]:
    worst_first = sorted(Outcome, key=lambda outcome: -outcome.severity)
    marks = {outcome.value: show.MARKS[outcome] for outcome in worst_first} | {WAIVED: show.WAIVED_MARK}
    required = Counter(check.shown for check in verdict.checks if check.required)
    advisory = Counter(check.shown for check in verdict.checks if not check.required)
    counts = ((shown, mark, required[shown] + advisory[shown]) for shown, mark in marks.items())
    return tuple(Tally(shown, mark, count, advisory[shown]) for shown, mark, count in counts if count)
