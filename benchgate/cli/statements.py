"""Where the statement of a verdict is written (docs/verify.md), and that it is."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchgate.cli.places import refuse_device, refuse_unwritable, remove_old
from benchgate.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from benchgate.pipeline.judge import Decision

SUFFIX = ".intoto.json"


@dataclass(frozen=True, slots=True)
class StatementPlace:
    """Where a command leaves the statement: at `file`, else beside the report, else in the run's own folder.

    A stored run that is judged again without a report has no `work_dir`, and leaves none unless a file is named.
    `suite_file_sha256` is over the bytes of the suite's file, where the command read one.
    """

    file: Path | None = None
    work_dir: Path | None = None
    suite_file_sha256: str | None = None

    def path(self, report: Path | None, run_id: str) -> Path | None:
        """The file of one verdict; None where none is left."""
        if self.file is not None:
            return self.file
        if report is not None:
            return report.with_name(f"{report.name}{SUFFIX}")
        return None if self.work_dir is None else self.work_dir / run_id / f"verdict{SUFFIX}"

    def of(self, candidate: str) -> StatementPlace:
        """For one of several candidates: `statement.json` → `statement-q8_0.json`."""
        if self.file is None:
            return self
        return replace(self, file=self.file.with_name(f"{self.file.stem}-{candidate}{self.file.suffix}"))

    def clear(self, report: Path | None) -> None:
        """Remove the report and the statement of an earlier command: both are true, and of another run than this."""
        if report is not None:
            remove_old(report, "--report")
            remove_old(report.with_name(f"{report.name}{SUFFIX}"), "the statement")
        if self.file is not None:
            remove_old(self.file, "--statement")


NOWHERE = StatementPlace()


def statement_place(
    file: Path | None, report: Path | None, *, work_dir: Path | None = None, suite: Path | None = None
) -> StatementPlace:
    """Return the place that the command line names, before anything is measured. Touches no file.

    Raises UsageError for files that could not be written, and for one file named twice.
    """
    refuse_unwritable(file)
    named = (("--statement", file), ("--report", report), ("the suite", suite))
    taken: dict[Path, str] = {}
    for what, one in named:
        if one is not None and one is not suite:
            refuse_device(one, what)
        if one is not None and taken.setdefault(one.resolve(), what) != what:
            raise UsageError(f"{taken[one.resolve()]} and {what} both name {one}; give each a file of its own")
    return StatementPlace(file, work_dir, None if suite is None else _sha256(suite))


def write_statement(
    decision: Decision, code: ExitCode, place: StatementPlace, path: Path, report: tuple[Path, str] | None
) -> None:
    """Write it for a process that ends with this code. `report` is the one that was written, with its SHA-256.

    Raises PublishError when it cannot be written.
    """
    from benchgate.integrations.ci import run_url
    from benchgate.pipeline.judge import write_whole
    from benchgate.release.attest import StatedFile, statement_of

    stated = statement_of(
        decision,
        code,
        report=None if report is None else StatedFile(report[0].name, report[1]),
        suite_file_sha256=place.suite_file_sha256,
        url=run_url(os.environ),
    )
    write_whole(path, stated.data(), "the statement")


def _sha256(suite: Path) -> str:
    try:
        return hashlib.sha256(suite.read_bytes()).hexdigest()
    except OSError as error:
        raise UsageError(f"the suite {suite} cannot be read: {error.strerror}") from error
