"""Publish a decision, show it, and leave with its exit code: the last steps every judging command shares."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from benchgate.cli.interruption import interrupted_code
from benchgate.cli.options import Format
from benchgate.cli.saying import say
from benchgate.errors import ExitCode, PublishError, UsageError

if TYPE_CHECKING:
    from benchgate.deciding import Decision


def conclude(
    decision: Decision,
    output: Format,
    *,
    strict: bool,
    report: Path | None,
    publish: bool = False,
    explain: str | None = None,
) -> None:
    """Print the verdict whatever else fails, then raise typer.Exit with the verdict's code, or 13.

    `explain` is the id of a check whose arithmetic is printed: instead of the text, or in the JSON. Raises UsageError
    where there is no such check.
    """
    if explain is not None:
        _require_explainable(decision, explain, output)
    code = finish(decision, output, strict=strict, report=report, publish=publish, explain=explain)
    raise typer.Exit(int(code))


def _require_explainable(decision: Decision, check: str, output: Format) -> None:
    from benchgate.report.explained import find_check

    if output is Format.MARKDOWN:
        raise UsageError("--explain prints text or json; leave --format markdown out")
    find_check(decision.verdict, check)


def finish(
    decision: Decision,
    output: Format,
    *,
    strict: bool,
    report: Path | None,
    publish: bool = False,
    show: Callable[[str], object] | None = None,
    explain: str | None = None,
) -> ExitCode:
    """Write the report, publish, show; the exit code, which stands in what is shown, says how all of it went.

    `show` gets the text; standard output unless given. Where that takes nothing the verdict stands on stderr.
    """
    decision = decision.asked(strict=strict)
    code = ExitCode.CRASH  # what it is when something below fails in a way that nobody foresaw
    try:
        faults = [*_faults(decision, report, publish=publish)]
        code = ExitCode.PUBLISH_FAILED if faults else decision.exit_code
    except KeyboardInterrupt:
        code = interrupted_code()
        raise
    finally:
        text = shown(decision, output, code) if explain is None else _explained(decision, output, code, explain)
        lost = say_or_tell(text, [decision], show or say, publish=publish)
    for fault in (*faults, *lost):
        sys.stderr.write(f"benchgate: the verdict stands, but {fault}\n")
    return ExitCode.PUBLISH_FAILED if lost else code


def say_or_tell(text: str, decisions: Iterable[Decision], show: Callable[[str], object], *, publish: bool) -> list[str]:
    """Shows the text; where that fails the verdicts go to stderr, and the reason is given back.

    What a CI system was told by then is withdrawn: it says that the command ends with the verdict's code.
    """
    try:
        show(text)
    except PublishError as error:
        for one in decisions:
            sys.stderr.write(f"benchgate: {one.verdict.outcome.value}: {one.verdict.reason}\n")
        return [str(error), *(_withdrawn() if publish else ())]
    return []


def _withdrawn() -> list[str]:
    from benchgate.publish import github

    try:
        github.withdraw_outputs(os.environ)
    except PublishError as error:
        return [str(error)]
    return []


def _faults(decision: Decision, report: Path | None, *, publish: bool) -> Iterator[str]:
    """Write the report and publish what the verdict is; every way in which it could not be kept or published."""
    from benchgate import deciding

    code = decision.exit_code
    if decision.store_fault is not None:
        code = ExitCode.PUBLISH_FAILED
        yield decision.store_fault
    try:
        if report is not None:
            deciding.write_report(decision, report)
            sys.stderr.write(f"report: {report}\n")
        if publish:
            deciding.publish_decision(decision, report, exit_code=code)
    except PublishError as error:
        yield str(error)


def _explained(decision: Decision, output: Format, code: ExitCode, name: str) -> str:
    from benchgate.report.document import document_json, with_exit_code
    from benchgate.report.explained import find_check, render_explanation, with_steps

    check = find_check(decision.verdict, name)
    if output is Format.JSON:
        return document_json(with_exit_code(with_steps(decision.document, check), code))
    return render_explanation(decision.verdict, check)


def shown(decision: Decision, output: Format, code: ExitCode) -> str:
    """The decision as text for stdout, of a process that ends with this code."""
    if output is Format.JSON:
        return decision.json(code)
    if output is Format.MARKDOWN:
        from benchgate.report.markdown import render_markdown

        return render_markdown(decision.evidence, decision.verdict, against=decision.reference, terms=decision.terms)
    from benchgate.report.client_care import client_care
    from benchgate.report.load_end import load_end_lines
    from benchgate.report.quality_section import quality_lines
    from benchgate.report.text import render_text

    reference = decision.reference.run if decision.reference is not None else None
    quality = quality_lines(decision.evidence, decision.verdict, against=decision.reference, terms=decision.terms)
    return render_text(
        decision.verdict,
        decision.evidence.run,
        against=reference,
        terms=decision.terms,
        quality=quality,
        load=load_end_lines(decision.evidence, decision.verdict),
        cautions=client_care(decision.terms.suite(decision.evidence.run), decision.evidence, decision.reference),
    )
