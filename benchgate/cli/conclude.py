"""Publish a decision, show it, and leave with its exit code: the last steps every judging command shares."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from benchgate.cli.interruption import interrupted_code
from benchgate.cli.options import Format
from benchgate.cli.outputs import NOTHING, Outputs, told_of, write_outputs
from benchgate.cli.saying import log, say, say_escaped, say_json_text, say_markdown
from benchgate.cli.statements import NOWHERE, StatementPlace, write_statement
from benchgate.errors import ExitCode, PublishError, UsageError
from benchgate.escape import terminal_text
from benchgate.report.formats import Output, rendered

if TYPE_CHECKING:
    from benchgate.pipeline.judge import Decision


_FORMS = {Format.JUNIT: Output.JUNIT, Format.GITHUB: Output.ANNOTATIONS, Format.GITLAB: Output.GITLAB_METRICS}


def conclude(
    decision: Decision,
    output: Format,
    *,
    strict: bool,
    report: Path | None,
    publish: bool = False,
    explain: str | None = None,
    statement: StatementPlace = NOWHERE,
    outputs: Outputs = NOTHING,
) -> None:
    """Print the verdict whatever else fails, then raise typer.Exit with the verdict's code, or 13.

    `explain` is the id of a check whose arithmetic is printed: instead of the text, or in the JSON. Raises UsageError
    where there is no such check.
    """
    if explain is not None:
        _require_explainable(decision, explain, output)
    code = finish(
        decision,
        output,
        strict=strict,
        report=report,
        publish=publish,
        explain=explain,
        statement=statement,
        outputs=outputs,
    )
    raise typer.Exit(int(code))


def _require_explainable(decision: Decision, check: str, output: Format) -> None:
    from benchgate.report.checks import find_check

    if output not in (Format.TEXT, Format.JSON):
        raise UsageError(f"--explain prints text or json; leave --format {output} out")
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
    statement: StatementPlace = NOWHERE,
    outputs: Outputs = NOTHING,
) -> ExitCode:
    """Write report, outputs and statement, publish, show; the exit code, which is in what is shown, says how it went.

    `show` gets the text; standard output unless given. Where that takes nothing the verdict stands on stderr. What was
    written before something failed says that all is well, so all of it is written once more.
    """
    decision = decision.asked(strict=strict)
    known = decision.exit_code if decision.store_fault is None else ExitCode.PUBLISH_FAILED
    code = ExitCode.CRASH  # what it is when something below fails in a way that nobody foresaw
    try:
        faults = [*_faults(decision, known, report, statement, outputs, publish=publish)]
        code = ExitCode.PUBLISH_FAILED if faults else known
    except KeyboardInterrupt:
        code = interrupted_code()
        raise
    finally:
        text = (
            shown(decision, output, code, outputs) if explain is None else _explained(decision, output, code, explain)
        )
        lost = say_or_tell(text, [decision], show or say_as(output), publish=publish)
    code = ExitCode.PUBLISH_FAILED if lost else code
    again = [] if code is known else [*_faults(decision, code, report, statement, outputs, publish=False)]
    for fault in dict.fromkeys((*faults, *lost, *again)):
        log(f"benchgate: the verdict stands, but {fault}")
    return code


def say_or_tell(text: str, decisions: Iterable[Decision], show: Callable[[str], object], *, publish: bool) -> list[str]:
    """Shows the text; where that fails the verdicts go to stderr, and the reason is given back.

    What a CI system was told by then is withdrawn: it says that the command ends with the verdict's code.
    """
    try:
        show(text)
    except PublishError as error:
        for one in decisions:
            log(f"benchgate: {one.verdict.outcome.value}: {one.verdict.reason}")
        return [str(error), *(_withdrawn() if publish else ())]
    return []


def say_as(output: Format) -> Callable[[str], None]:
    """Return the function that prints what `shown` makes of a decision in this format, escaped for it."""
    if output is Format.GITHUB:
        return say_escaped  # its annotations are commands of our own
    return {Format.JSON: say_json_text, Format.MARKDOWN: say_markdown}.get(output, say)


def _withdrawn() -> list[str]:
    from benchgate.integrations import github_outputs

    try:
        github_outputs.withdraw_outputs(os.environ)
    except PublishError as error:
        return [str(error)]
    return []


def _faults(
    decision: Decision,
    code: ExitCode,
    report: Path | None,
    statement: StatementPlace,
    outputs: Outputs,
    *,
    publish: bool,
) -> Iterator[str]:
    """Write report, outputs and statement and publish the verdict; every way in which it could not be kept or told.

    What is written says how the process ends as far as that is known by then, which at first is with `code`.
    """
    from benchgate.pipeline import judge as deciding

    if decision.store_fault is not None:
        yield decision.store_fault
    try:
        written = None if report is None else (report, deciding.write_report(decision, report))
    except PublishError as error:
        yield str(error)
        yield from write_outputs(outputs, decision, ExitCode.PUBLISH_FAILED, report)
        return
    if report is not None:
        log(f"report: {report}")
    for fault in write_outputs(outputs, decision, code, report):
        code = ExitCode.PUBLISH_FAILED
        yield fault
    try:
        stated = statement.path(report, decision.evidence.run.id)
        if stated is not None:
            write_statement(decision, code, statement, stated, written)
            log(f"statement: {stated}")
        if publish:
            deciding.publish_decision(decision, report, exit_code=code, statement_path=stated)
    except PublishError as error:
        yield str(error)
        yield from _withdrawn() if publish else ()  # outputs may be told, and the summary not


def _explained(decision: Decision, output: Format, code: ExitCode, name: str) -> str:
    from benchgate.report.checks import find_check, render_explanation, with_steps
    from benchgate.report.document import document_json, with_exit_code

    check = find_check(decision.verdict, name)
    if output is Format.JSON:
        return document_json(with_exit_code(with_steps(decision.document, check), code))
    return render_explanation(decision.verdict, check)


def shown(decision: Decision, output: Format, code: ExitCode, outputs: Outputs = NOTHING) -> str:
    """The decision as text for `say_as`, of a process that ends with this code."""
    if output is Format.JSON:
        return decision.json(code)
    if output in _FORMS:
        told = told_of(decision, code, report_url=outputs.report_url, report=None, suite=outputs.suite)
        text = terminal_text(_shown_as_text(decision)) if output is Format.GITHUB else ""
        return text + rendered(_FORMS[output], told, decision.report)
    if output is Format.MARKDOWN:
        from benchgate.report.markdown import markdown_of

        return markdown_of(decision.report.view)
    return _shown_as_text(decision)


def _shown_as_text(decision: Decision) -> str:
    from benchgate.report.sections.load import load_end_lines
    from benchgate.report.text import render_text

    reference = decision.reference.run if decision.reference is not None else None
    quality = decision.report.quality
    return render_text(
        decision.verdict,
        decision.evidence.run,
        against=reference,
        terms=decision.terms,
        quality=() if quality is None else quality.lines,
        load=load_end_lines(decision.evidence, decision.verdict),
        cautions=decision.report.cautions,
    )
