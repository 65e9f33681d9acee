"""Shows two stored runs by their numbers, where raw records that a decision needs were removed."""

from __future__ import annotations

from collections.abc import Mapping
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
    decision_options: Mapping[str, object],
) -> None:
    """Print the numbers of both runs and exit as INCONCLUSIVE; do nothing where both have their raw records.

    Raises UsageError for any of `decision_options`, by their names, that was given.
    """
    from benchgate.pipeline.judge import stored_numbers
    from benchgate.report.document import document_json
    from benchgate.report.stored_numbers import OUTCOME, numbers_document, numbers_markdown, numbers_text

    numbers = stored_numbers(store, run_id, against)
    if numbers is None:
        return
    for option, value in decision_options.items():
        if value:
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
