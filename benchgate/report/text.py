"""The verdict as plain lines, for terminals and the logs of CI jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchgate.errors import ExitCode
from benchgate.escape import one_line, terminal_line
from benchgate.gate.error_budget import SPENT
from benchgate.model.deployment import Arm
from benchgate.model.run import Run
from benchgate.model.verdict import Verdict
from benchgate.report import display
from benchgate.report.checks import CheckRow, check_rows, waiver_lines
from benchgate.report.comparability import deployments, status_of
from benchgate.report.display import limits_sentence
from benchgate.report.document import OTHER_POLICY, OWN, Terms
from benchgate.report.sections.provenance import reproduce
from benchgate.suite.schema import arms_of_stored

_REASON_CHARACTERS = 1000
_DIFFERENCES = 8
_STRICT = "--strict treats WARN like BLOCK: the candidate is not promoted"


def render_text(
    verdict: Verdict,
    run: Run,
    *,
    against: Run | None = None,
    terms: Terms = OWN,
    quality: Sequence[str] = (),
    load: Sequence[str] = (),
    cautions: Sequence[str] = (),
) -> str:
    """Render the verdict, the checks (failing first), and the guards that tripped or warn, without control characters.

    `quality` and `load` are the short forms of these sections; `cautions` come before the checks.
    """
    alone = against is None and len(arms_of_stored(run.suite)) == 1
    lines = [*_head(verdict, run, against, alone=alone)]
    lines += [f"  caution: {one_line(line, _REASON_CHARACTERS)}" for line in cautions]
    lines += ["", *_checks(verdict, alone=alone), *_guards(verdict)]
    lines += _differences(verdict)
    lines += [f"  waiver: {one_line(line, _REASON_CHARACTERS)}" for line in waiver_lines(verdict)]
    if verdict.outcome.promotes and terms.exit_code(verdict) is not ExitCode.OK:
        lines.append(f"  note: {_STRICT}")
    if terms.policy_replaced(run, verdict):
        lines.append(f"  note: {OTHER_POLICY}")
    lines += [f"  note: {one_line(line, _REASON_CHARACTERS)}" for line in verdict.notes]
    lines += [f"  load: {one_line(line, _REASON_CHARACTERS)}" for line in load]
    lines += [f"  quality: {one_line(line, _REASON_CHARACTERS)}" for line in quality]
    if (doubt := terms.reference_doubt()) and not verdict.outcome.promotes:  # else its first words are these
        lines.append(f"  note: {doubt}")
    lines.append(f"same verdict again, with the same --store: {reproduce(run, verdict, against, terms)}")
    return "".join(f"{terminal_line(line).rstrip()}\n" for line in lines)


def _head(verdict: Verdict, run: Run, against: Run | None, *, alone: bool) -> Iterator[str]:
    arms = deployments(run, against)
    (reference, baseline), (_, candidate) = arms[Arm.BASELINE], arms[Arm.CANDIDATE]
    of_run = f" of run {one_line(reference.id)}" if against is not None else ""
    one = one_line(candidate.name)
    scope = ", imported evals" if run.imported else f", {run.only_part} only" if run.only_part else ""
    compared = f"{one} alone" if alone else f"candidate {one} against {one_line(baseline.name)}{of_run}"
    yield f"{display.MARKS[verdict.outcome]} {verdict.outcome}: {one_line(verdict.reason, _REASON_CHARACTERS)}"
    if verdict.next_step is not None:
        yield f"  what to do first: {one_line(verdict.next_step, _REASON_CHARACTERS)}"
    yield f"  suite {one_line(run.suite_name)}: {compared}, run {one_line(run.id)}{scope}"


def _checks(verdict: Verdict, *, alone: bool) -> Iterator[str]:
    rows = check_rows(verdict).all
    if not rows:
        yield "  no check could be evaluated"
    width = max((len(row.outcome) for row in rows), default=0)
    given = [verdict.next_step or ""]
    for row in rows:
        advisory = "" if row.required else " (advisory)"
        yield f"  {row.mark} {row.outcome:<{width}}  {one_line(row.title)}{advisory}  [{one_line(row.id)}]"
        yield f"      {row_numbers(row, alone=alone)}"
        yield f"      {one_line(row.reason, _REASON_CHARACTERS)}"
        if advice := row.advice_beside(verdict.reason, given[0]):
            yield f"      what to do: {'as above' if advice in given else one_line(advice, _REASON_CHARACTERS)}"
            given.append(advice)
    if rows:
        yield f"  limits: {limits_sentence(verdict)[0].lower()}{limits_sentence(verdict)[1:]}"
    yield ""


def row_numbers(row: CheckRow, *, alone: bool) -> str:
    """Return a check's values, difference, interval, allowance and n in a line; `alone`: of one deployment."""
    values = row.candidate if alone or row.id == SPENT else f"candidate {row.candidate}"
    if row.baseline != display.NOT_APPLICABLE:
        values = f"baseline {row.baseline}, {values}"
    if row.change != display.NOT_APPLICABLE:
        values += f", {row.change} {row.direction}"
    level = f" (at {row.level})" if row.level else ""
    used = f", used {row.strip.used}" if row.strip is not None else ""
    return f"{values}, interval {row.interval}{level}, allowed {row.allowed}{used}, n = {row.n}"


def _guards(verdict: Verdict) -> Iterator[str]:
    for guard in verdict.guards:
        if guard.tripped or guard.warns:
            remedy = f"; what to do: {one_line(guard.remedy)}" if guard.remedy else ""
            does = "guard" if guard.tripped else "warning of guard"
            yield f"  {does} {one_line(guard.id)}: {one_line(guard.reason, _REASON_CHARACTERS)}{remedy}"


def _differences(verdict: Verdict) -> list[str]:
    """Return the first differences, undeclared ones first; the report has all."""
    lines = [
        f"  differs: {one_line(one.what)}: {one_line(one.baseline)} → {one_line(one.candidate)} ({status_of(one)})"
        for one in verdict.differences
    ]
    more = len(lines) - _DIFFERENCES
    return lines[:_DIFFERENCES] + ([f"  differs: {more} more, in the report"] if more > 0 else [])
