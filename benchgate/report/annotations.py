"""The verdict as workflow commands of GitHub Actions, which its runner turns into annotations.

A file of them is shown by printing it in a step. GitHub keeps ten of a kind a step and drops the rest without a word,
so the verdict comes first, and the tenth of a kind says how many there would be more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchgate.report.results import Kind, Level, Result, Told, plain
from benchgate.report.suite_lines import SuiteLines

MOST_OF_A_KIND = 10
"""What GitHub keeps of a step."""


def render_annotations(told: Told) -> str:
    """A command a line: `::error` for what stops the promotion, `::warning` for what warns, `::notice` for a PASS."""
    every = told.results()
    stops = [one for one in every if one.level.stops]
    warns = [one for one in every if one.level is Level.WARNS]
    holds = [one for one in every if one.kind is Kind.VERDICT and one.level is Level.HOLDS]
    kinds = (("error", stops), ("warning", warns), ("notice", holds))
    return "".join(f"{line}\n" for word, some in kinds for line in _commands(word, some, told.lines))


def _commands(word: str, some: Sequence[Result], lines: SuiteLines | None) -> Iterator[str]:
    shown = some if len(some) <= MOST_OF_A_KIND else some[: MOST_OF_A_KIND - 1]
    for one in shown:
        sentences = (one.line, *one.details[:1], one.advice and f"What to do: {one.advice}")
        said = ". ".join(sentence.removesuffix(".") for sentence in sentences if sentence)
        yield _command(word, f"benchgate {one.name}", said, lines, one.id if one.kind is Kind.CHECK else None)
    if len(shown) < len(some):
        left = len(some) - len(shown)
        yield _command(word, "benchgate", f"{left} more: the report has all of them", None, None)


def _command(word: str, title: str, message: str, lines: SuiteLines | None, check: str | None) -> str:
    place = {} if lines is None else {"file": plain(lines.path), "line": str(lines.line(check))}
    properties = ",".join(f"{key}={_property(value)}" for key, value in {**place, "title": title}.items())
    return f"::{word} {properties}::{_data(message)}"


def _data(text: str) -> str:
    """As the runner reads a message back (actions/toolkit, `escapeData`)."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """As it reads a property back (`escapeProperty`)."""
    return _data(text).replace(":", "%3A").replace(",", "%2C")
