"""Shows two stored runs by their numbers, where raw records that a decision needs were removed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from benchgate.cli.options import Format
from benchgate.cli.saying import say, say_json_text, say_markdown
from benchgate.errors import UsageError

if TYPE_CHECKING:
    from benchgate.store.repository import Store


def end_with_numbers(
    store: Store,
    run_id: str,
    against: str,
    output: Format,
    *,
    report: Path | None,
    explain: str | None,
    statement: Path | None = None,
    write: Sequence[str] | None = None,
) -> None:
    """Prints the numbers of both and leaves with the code of INCONCLUSIVE; does nothing where both have their records.

    Raises UsageError for what only a decision could give.
    """
    from benchgate import deciding
    from benchgate.report.document import document_json
    from benchgate.report.stored_numbers import OUTCOME, numbers_document, numbers_markdown, numbers_text

    numbers = deciding.stored_numbers(store, run_id, against)
    if numbers is None:
        return
    said = (("--report", report), ("--statement", statement), ("--write", write or None), ("--explain", explain))
    for option, asked in said:
        if asked is not None:
            raise UsageError(f"{option} is of a decision, and there is none: {numbers.reason}; leave it out")
    if output in (Format.JUNIT, Format.GITHUB, Format.GITLAB):
        raise UsageError(f"--format {output} is of a decision, and there is none: {numbers.reason}; leave it out")
    if output is Format.JSON:
        say_json_text(document_json(numbers_document(numbers)))
    elif output is Format.MARKDOWN:
        say_markdown(numbers_markdown(numbers))
    else:
        say(numbers_text(numbers))
    raise typer.Exit(int(OUTCOME.exit_code()))
