"""Show a decision, publish it, and leave with its exit code: the last steps every judging command shares."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from benchgate.cli.options import Format
from benchgate.errors import ExitCode, PublishError

if TYPE_CHECKING:
    from benchgate.pipeline import Decision


def conclude(decision: Decision, output: Format, *, strict: bool, report: Path | None, publish: bool = False) -> None:
    """Print the verdict whatever else fails, then raise typer.Exit with the code of contract: verdict, or 13."""
    code = finish(decision, output, strict=strict, report=report, publish=publish)
    raise typer.Exit(int(code))


def finish(decision: Decision, output: Format, *, strict: bool, report: Path | None, publish: bool = False) -> ExitCode:
    """Print, write the report, publish; the exit code says how all of it went."""
    from benchgate import pipeline

    sys.stdout.write(shown(decision, output, strict=strict))
    sys.stdout.flush()
    code = decision.verdict.outcome.exit_code(strict=strict)
    faults = [decision.store_fault] if decision.store_fault else []
    try:
        if report is not None:
            pipeline.write_report(decision, report)
            sys.stderr.write(f"report: {report}\n")
        if publish:
            pipeline.publish_decision(decision, report, exit_code=ExitCode.PUBLISH_FAILED if faults else code)
    except PublishError as error:
        faults.append(str(error))
    for fault in faults:
        sys.stderr.write(f"benchgate: the verdict stands, but {fault}\n")
    return ExitCode.PUBLISH_FAILED if faults else code


def shown(decision: Decision, output: Format, *, strict: bool = False) -> str:
    """The decision as text for stdout."""
    if output is Format.JSON:
        return decision.json(strict=strict)
    if output is Format.MARKDOWN:
        from benchgate.report.markdown import render_markdown

        return render_markdown(decision.evidence, decision.verdict, against=decision.reference)
    from benchgate.report.text import render_text

    reference = decision.reference.run if decision.reference is not None else None
    return render_text(decision.verdict, decision.evidence.run, against=reference)
