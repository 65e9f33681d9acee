"""The verdict as lines for terminals and the logs of CI jobs: a sentence, a table of checks, and what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchgate.errors import ExitCode
from benchgate.escape import one_line
from benchgate.gate.error_budget import SPENT
from benchgate.model.deployment import Arm
from benchgate.model.run import Run
from benchgate.model.verdict import Outcome, Verdict
from benchgate.report import display
from benchgate.report.checks import CheckRow, check_rows, waiver_lines
from benchgate.report.comparability import deployments, status_of
from benchgate.report.display import limits_sentence
from benchgate.report.document import OTHER_POLICY, OWN, Terms
from benchgate.report.screen import PLAIN, STYLES, Screen, Style, table_lines, table_width
from benchgate.report.sections.provenance import promotion_command, reproduce
from benchgate.suite.schema import arms_of_stored

_REASON_CHARACTERS = 1000
_DIFFERENCES = 8
_HEADINGS = ("CHECK", "BASELINE", "CANDIDATE", "DIFFERENCE", "MARGIN", "USED", "N")
_NUMBERS_ALONE = ("neither ", ", beyond the margin", "not shown to stay inside", " breaks the ", "outside the margin")
_ONE_LINE = 80  # characters of a reason that is written twice
_NAMED_CHECKS = 3  # beside a piece of advice
_INDENT = "  "


def render_text(
    verdict: Verdict,
    run: Run,
    *,
    screen: Screen = PLAIN,
    against: Run | None = None,
    terms: Terms = OWN,
    exit_code: ExitCode | None = None,
    quality: Sequence[str] = (),
    load: Sequence[str] = (),
    cautions: Sequence[str] = (),
    suite: Path | None = None,
) -> str:
    """Render the verdict, its checks (failing first), the guards that tripped or warn, and the next command, escaped.

    `quality` and `load` are the short forms of these sections; `cautions` come before the checks. `suite` is the file
    that was measured, if known; `exit_code` is the process's, by default the verdict's own.
    """
    refusal = terms.refusal(verdict, terms.exit_code(verdict) if exit_code is None else exit_code)
    alone = against is None and len(arms_of_stored(run.suite)) == 1
    lines = [*_head(verdict, run, against, screen, alone=alone, promotes=refusal is None)]
    for line in cautions:
        lines += _remark(screen, "caution", line, Style.YELLOW)
    lines += ["", *_checks(verdict, screen), *_todo(verdict, screen), ""]
    for guard in verdict.guards:
        if guard.tripped or guard.warns:
            stands_above = guard.remedy == verdict.next_step
            remedy = f"; what to do: {one_line(guard.remedy)}" if guard.remedy and not stands_above else ""
            name, style = ("guard", Style.MAGENTA) if guard.tripped else ("warning of guard", Style.YELLOW)
            told_above = len(guard.reason) > _ONE_LINE and guard.reason.rstrip(".") in verdict.reason
            reason = "see the first sentence" if told_above else one_line(guard.reason, _REASON_CHARACTERS)
            lines += _remark(screen, f"{name} {one_line(guard.id)}", f"{reason}{remedy}", style)
    remarks = [("differs", line) for line in _differences(verdict)]
    remarks += [("waiver", line) for line in waiver_lines(verdict)]
    if refusal is not None:
        remarks.append(("note", refusal))
    if terms.policy_replaced(run, verdict):
        remarks.append(("note", OTHER_POLICY))
    remarks += [("note", line) for line in verdict.notes]
    remarks += [("load", line) for line in load]
    remarks += [("quality", line) for line in quality]
    if (doubt := terms.reference_doubt()) and not verdict.outcome.promotes:  # else its first words are these
        remarks.append(("note", doubt))
    for name, text in remarks:
        lines += _remark(screen, name, text)
    again = reproduce(run, verdict, against, terms)
    command = _next_command(verdict, run, against, terms, again, suite, promotes=refusal is None)
    if command is not None:
        lines.append(screen.paint(f"next: {command}", Style.BOLD))  # not wrapped, so that it can be copied
    lines.append(screen.paint(f"again (same --store): {again}"))
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _next_command(
    verdict: Verdict,
    run: Run,
    against: Run | None,
    terms: Terms,
    again: str,
    suite: Path | None,
    *,
    promotes: bool,
) -> str | None:
    """Return the command that examines what a guard reports, explains the first failing check, or promotes."""
    if verdict.outcome is Outcome.INVALID and any(guard.tripped for guard in verdict.guards) and not run.imported:
        return f"benchgate doctor {'SUITE' if suite is None else shlex.quote(one_line(str(suite)))}"
    failing = [check for check in verdict.failing() if check.steps]
    if failing and (not verdict.outcome.promotes or verdict.outcome is Outcome.WARN):
        return f"{again} --explain {shlex.quote(one_line(failing[0].id))}"
    is_own = against is None and not terms.policy_replaced(run, verdict) and not run.imported
    if verdict.outcome is Outcome.PASS and promotes and is_own and run.judges_candidate and run.scope is None:
        return promotion_command(run, verdict)
    return None


def _remark(screen: Screen, name: str, text: str, style: Style | None = None) -> Iterator[str]:
    yield from screen.labelled(f"{_INDENT}{name}: ", one_line(text, _REASON_CHARACTERS), _INDENT * 2, style)


def _head(
    verdict: Verdict, run: Run, against: Run | None, screen: Screen, *, alone: bool, promotes: bool
) -> Iterator[str]:
    arms = deployments(run, against)
    (reference, baseline), (_, candidate) = arms[Arm.BASELINE], arms[Arm.CANDIDATE]
    of_run = f" of run {one_line(reference.id)}" if against is not None else ""
    one = one_line(candidate.name)
    scope = ", imported evals" if run.imported else f", {run.scope}" if run.scope else ""
    compared = f"{one} alone" if alone else f"candidate {one} against {one_line(baseline.name)}{of_run}"
    refused = "" if promotes else " (not promoted)"
    title = f"{display.MARKS[verdict.outcome]} {verdict.outcome}{refused}"
    sentence = f"{title}: {one_line(verdict.reason, _REASON_CHARACTERS)}"
    first, *rest = screen.wrapped(sentence, _INDENT, first="")
    word, colon, begin = first.partition(":")
    yield screen.paint(word, Style.BOLD, STYLES[verdict.outcome]) + colon + begin
    yield from rest
    if verdict.next_step is not None:
        todo = one_line(verdict.next_step, _REASON_CHARACTERS)
        yield from screen.labelled(f"{_INDENT}what to do first: ", todo, _INDENT * 2, Style.BOLD)
    about = f"suite {one_line(run.suite_name)}: {compared}, run {one_line(run.id)}{scope}"
    yield from screen.wrapped(about, _INDENT * 2, first=_INDENT)


def _checks(verdict: Verdict, screen: Screen) -> Iterator[str]:
    """Yield the table: failing checks by severity, with reasons that their numbers do not tell, then passing ones."""
    found = check_rows(verdict)
    rows = found.all
    if not rows:
        yield f"{_INDENT}no check could be evaluated"
        return
    heading, *lines = _table(rows, screen)
    yield heading
    outcomes = [check.counted for check in verdict.failing()]
    for at, (row, line) in enumerate(zip(rows, lines, strict=True)):
        passed = at >= len(found.failing)
        before, after = (rows[at - 1] if at else None), (rows[at + 1] if at + 1 < len(found.failing) else None)
        if passed and at == len(found.failing):
            yield screen.paint(_number(len(found.passing), "check") + " passed", Style.DIM)
        elif not passed and (before is None or _group(before) != _group(row)):
            number = sum(_group(row) == _group(one) for one in found.failing)
            kind = _number(number, "check" if row.required else "advisory check")
            yield screen.paint(f"{row.outcome}: {kind}", Style.BOLD, STYLES[outcomes[at]])
        yield line
        told_below = after is not None and (after.reason, _group(after)) == (row.reason, _group(row))
        if not (passed or told_below or (row.strip and any(words in row.reason for words in _NUMBERS_ALONE))):
            yield from screen.wrapped(one_line(row.reason, _REASON_CHARACTERS), _INDENT * 3)
    left_out = dict.fromkeys(note for row in rows for note in row.notes if "were left out" in note)
    for note in left_out:
        yield from _remark(screen, "left out", note)
    yield from screen.wrapped(limits_sentence(verdict), "", Style.DIM)
    for level in dict.fromkeys(row.level for row in rows if row.level):
        ids = ", ".join(one_line(row.id) for row in rows if row.level == level)
        yield from screen.wrapped(f"at {level}: {ids}", _INDENT * 2, Style.DIM, first=_INDENT)


def _group(row: CheckRow) -> tuple[str, bool]:
    return row.outcome, row.required


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _table(rows: Sequence[CheckRow], screen: Screen) -> list[str]:
    """Return the heading and a line for each check, with as many columns as the screen has room for."""
    whole = [_cells(row) for row in rows]
    layouts = (
        (_HEADINGS, whole),
        ((*_HEADINGS[:5], _HEADINGS[6]), [(*one[:5], one[6]) for one in whole]),
        ((*_HEADINGS[:5], _HEADINGS[6]), [(*one[:5], one[6].partition(" ")[0]) for one in whole]),
        (
            (_HEADINGS[0], "BASE → CANDIDATE", *_HEADINGS[3:5], _HEADINGS[6]),
            [(one[0], _change(one[1], one[2]), *one[3:5], one[6].partition(" ")[0]) for one in whole],
        ),
    )
    fitting = [one for one in layouts if screen.columns is None or table_width(*one) <= screen.columns]
    headings, cells = fitting[0] if fitting else layouts[-1]
    styled = [
        [(cell, _style(row) if at == 0 or row.outcome == Outcome.PASS else None) for at, cell in enumerate(line)]
        for line, row in zip(cells, rows, strict=True)
    ]
    return list(table_lines(screen, headings, styled, right=range(1, len(headings)), shrink=(0,)))


def _style(row: CheckRow) -> Style | None:
    if row.outcome == Outcome.PASS:
        return Style.DIM
    return STYLES.get(Outcome(row.outcome)) if row.outcome in list(Outcome) else Style.YELLOW


def _cells(row: CheckRow) -> tuple[str, ...]:
    """Return mark and id, both values, the change with its interval, the margin, the used share and the count."""
    interval = row.interval
    if row.change != display.NOT_APPLICABLE:
        unit = row.change.partition(" ")[2]
        ends = interval.removesuffix(f" {unit}") if unit else interval
        interval = row.change if interval == display.NOT_APPLICABLE else f"{row.change} ({ends})"
    values = (row.baseline, row.candidate, interval, row.margin)
    short = [one_line(value).replace(" points", " pt").replace(display.NOT_MEASURED, "?") for value in values]
    return f"{row.mark} {one_line(row.id)}", *short, "" if row.strip is None else row.strip.used, row.n


def _change(baseline: str, candidate: str) -> str:
    """Return `36.0 → 51.0 ms`, with a common unit once."""
    if baseline == display.NOT_APPLICABLE:
        return candidate
    return display.with_unit_once(baseline, candidate, " → ")


def _todo(verdict: Verdict, screen: Screen) -> Iterator[str]:
    """Yield each piece of advice once, with the checks that it is about; not the one that stands at the top."""
    advice: dict[str, list[str]] = {}
    for row in check_rows(verdict).failing:
        if found := row.advice_beside(verdict.reason, verdict.next_step or ""):
            advice.setdefault(found, []).append(one_line(row.id))
    if advice:
        yield "what to do:"
    for text, ids in advice.items():
        more = f" and {len(ids) - _NAMED_CHECKS} more" if len(ids) > _NAMED_CHECKS else ""
        named = f"({', '.join(ids[:_NAMED_CHECKS])}{more})"
        yield from screen.wrapped(f"{one_line(text, _REASON_CHARACTERS)} {named}", _INDENT * 2, first=f"{_INDENT}- ")


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


def _differences(verdict: Verdict) -> list[str]:
    """Return the first differences, undeclared ones first; the report has all."""
    lines = [
        f"{one_line(one.what)}: {one_line(one.baseline)} → {one_line(one.candidate)} ({status_of(one)})"
        for one in verdict.differences
    ]
    more = len(lines) - _DIFFERENCES
    return lines[:_DIFFERENCES] + ([f"{more} more, in the report"] if more > 0 else [])
