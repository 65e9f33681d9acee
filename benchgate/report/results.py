"""A verdict as a list of results, for hosts that know tests, alerts and messages.

Every text here is one line that no terminal and no CI runner obeys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING

from benchgate.errors import ExitCode
from benchgate.escape import one_line, terminal_line
from benchgate.gate.policy import concrete_checks
from benchgate.model.run import Evidence, Run
from benchgate.model.verdict import GuardResult, Outcome, Verdict
from benchgate.report.checks import check_rows
from benchgate.report.document import OWN, Terms
from benchgate.report.text import row_numbers
from benchgate.suite.schema import Suite, arms_of_stored
from benchgate.suite.yaml import read_text

if TYPE_CHECKING:
    from benchgate.report.view import Report


@dataclass(frozen=True, slots=True)
class SuiteLines:
    """A suite's file and its lines, from 1. `path` is relative to the root of the repository, with `/`.

    `by_check` has the line of each check that the file writes; `gate` that of its policy, or the file's first.
    """

    path: str
    by_check: Mapping[str, int]
    gate: int

    def line(self, check: str | None) -> int:
        """Return the line of a check; the policy's line for a check that the file does not spell out."""
        return self.by_check.get(check, self.gate) if check is not None else self.gate


def suite_lines(text: str, path: str, suite: Suite, evidence: Evidence) -> SuiteLines:
    """Find the lines of the checks in a suite's text. Raises SuiteError for malformed YAML."""
    document = read_text(text, path)
    gate = document.keys.get(("gate",)) or document.values.get(("gate",))
    written = [document.values.get(("gate", "checks", i)) for i in range(len(suite.gate.checks))]
    by_check: dict[str, int] = {}
    for spec in concrete_checks(suite, evidence):
        place = written[suite.gate.checks.index(spec.check)]
        if place is not None:
            by_check.setdefault(spec.id, place.line)
    return SuiteLines(path, by_check, gate.line if gate is not None else 1)


_LONGEST = 1000


class Kind(StrEnum):
    """The subject of a result."""

    VERDICT = "verdict"
    CHECK = "check"
    GUARD = "guard"


class Level(StrEnum):
    """Effect of a result on the promotion: only HOLDS and WARNS let a candidate through."""

    FAILS = "fails"  # shown to be broken
    ERRS = "errs"  # nothing could be shown: as far from good as a failure
    WARNS = "warns"
    UNKNOWN = "unknown"  # a guard that had nothing to look at
    HOLDS = "holds"

    @property
    def stops(self) -> bool:
        """True if a candidate with such a result is not promoted."""
        return self in (Level.FAILS, Level.ERRS)


@dataclass(frozen=True, slots=True)
class Result:
    """A result. `id` identifies a check in `--explain` and `waive`, `anchor` its place in the HTML report.

    `family` is a check's kind of evidence. `details` are further lines: numbers, notes, the waiver.
    """

    kind: Kind
    id: str
    title: str
    family: str
    outcome: str  # an Outcome, maybe with `(not promoted)`; WAIVED; of a guard `held`, `warned`, `tripped`, `unknown`
    level: Level
    required: bool
    reason: str
    advice: str
    details: tuple[str, ...]
    anchor: str = ""

    @property
    def name(self) -> str:
        """Its unique name among the results of a verdict."""
        return f"guard:{self.id}" if self.kind is Kind.GUARD else self.id

    @property
    def line(self) -> str:
        """Outcome and reason."""
        return f"{self.outcome}: {self.reason}"


@dataclass(frozen=True, eq=False)
class VerdictContext:
    """A verdict with its evidence and the exit code of the process that publishes it.

    `against` is the stored run that it was compared with. `link` is the address of the HTML report, `lines` are the
    places of the checks in the suite's file; None where unknown. `candidates` is the number that
    share the process's output.
    """

    evidence: Evidence
    verdict: Verdict
    exit_code: ExitCode
    against: Evidence | None = None
    terms: Terms = OWN
    link: str | None = None
    lines: SuiteLines | None = None
    candidates: int = 1

    @cached_property
    def report(self) -> Report:
        """The report of the verdict."""
        from benchgate.report.view import Report

        return Report(self.evidence, self.verdict, against=self.against, terms=self.terms)

    @property
    def run(self) -> Run:
        """The judged run."""
        return self.evidence.run

    @property
    def reference(self) -> Run | None:
        """The run that it was held against, where that is another one."""
        return None if self.against is None else self.against.run

    @property
    def alone(self) -> bool:
        """True if one deployment was measured and compared with nothing."""
        return self.against is None and len(arms_of_stored(self.run.suite)) == 1

    @property
    def doubtful(self) -> bool:
        """True if the verdict promotes while the process does not end with 0."""
        return self.verdict.outcome.promotes and self.exit_code is not ExitCode.OK

    def results(self) -> tuple[Result, ...]:
        """Return the verdict, its checks (failing first) and its guards (tripped first, then warnings).

        Unless the process ends with 0, the first result stops the promotion.
        """
        guards = sorted(self.verdict.guards, key=lambda guard: (not guard.tripped, not guard.warns))
        strict = self.terms.strict
        return (
            _of_verdict(self.verdict, self.terms, self.exit_code),
            *_of_checks(self.verdict, alone=self.alone, strict=strict),
            *(_of_guard(guard, strict=strict) for guard in guards),
        )


def plain(text: str, limit: int = _LONGEST) -> str:
    """Return one line of visible text that is no command to a terminal or a CI runner."""
    return terminal_line(one_line(text, limit))


def level_of(outcome: Outcome, *, strict: bool) -> Level:
    """Return the level of a verdict's or required check's outcome; `strict` makes a WARN fail."""
    if outcome is Outcome.PASS:
        return Level.HOLDS
    if outcome is Outcome.WARN:
        return Level.FAILS if strict else Level.WARNS
    return Level.FAILS if outcome is Outcome.BLOCK else Level.ERRS


def _of_verdict(verdict: Verdict, terms: Terms, exit_code: ExitCode) -> Result:
    level, notes = level_of(verdict.outcome, strict=terms.strict), verdict.notes
    if (refusal := terms.refusal(verdict, exit_code)) is not None:
        level, notes = level if level.stops else Level.ERRS, (refusal, *notes)
    return Result(
        kind=Kind.VERDICT,
        id="verdict",
        title="Verdict",
        family="verdict",
        outcome=f"{verdict.outcome} (not promoted)" if verdict.outcome.promotes and level.stops else verdict.outcome,
        level=level,
        required=True,
        reason=plain(verdict.reason),
        advice=plain(verdict.next_step or ""),
        details=tuple(plain(note) for note in notes),
    )


def _of_checks(verdict: Verdict, *, alone: bool, strict: bool) -> Iterator[Result]:
    passing = [check for check in verdict.checks if check.outcome is Outcome.PASS]
    for check, row in zip((*verdict.failing(), *passing), check_rows(verdict).all, strict=True):
        level = level_of(check.counted, strict=strict)
        if not check.required and level is not Level.HOLDS:
            level = Level.WARNS
        details = [row_numbers(row, alone=alone)]
        if not check.required:
            details.append("advisory: it can warn, but never block")
        if (waiver := check.waiver) is not None:
            details.append(
                f"{check.outcome} by itself, waived up to {waiver.ceiling} until {waiver.expires}: "
                f"owner {waiver.owner} ({waiver.issue}), approved by {waiver.approved_by}: {waiver.reason}"
            )
        details += check.notes
        yield Result(
            kind=Kind.CHECK,
            id=plain(check.id),
            title=plain(check.title),
            family=plain(check.family),
            outcome=row.outcome,
            level=level,
            required=check.required,
            reason=plain(row.reason),
            advice=plain(row.advice),
            details=tuple(plain(line) for line in details),
            anchor=row.anchor,
        )


def _of_guard(guard: GuardResult, *, strict: bool) -> Result:
    if guard.tripped:
        outcome, level = "tripped", Level.ERRS
    elif guard.warns:
        outcome, level = "warned", level_of(Outcome.WARN, strict=strict)
    else:
        outcome, level = ("held", Level.HOLDS) if guard.known else ("unknown", Level.UNKNOWN)
    return Result(
        kind=Kind.GUARD,
        id=plain(guard.id),
        title=plain(guard.id),
        family="guards",
        outcome=outcome,
        level=level,
        required=True,
        reason=plain(guard.reason),
        advice=plain(guard.remedy or ""),
        details=(),
    )
