"""What is written beside the verdict for CI systems and other tools: `--write FORMAT=FILE` (docs/outputs.md)."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchgate.cli.places import refuse_device, refuse_unwritable, remove_old
from benchgate.cli.saying import log
from benchgate.cli.statements import StatementPlace
from benchgate.errors import ExitCode, PublishError, SuiteError, UsageError
from benchgate.report.formats import Output, rendered

if TYPE_CHECKING:
    from benchgate.pipeline.judge import Decision
    from benchgate.report.results import SuiteLines, VerdictContext


@dataclass(frozen=True, slots=True)
class Outputs:
    """The files that are asked for, each in its form. `suite` is the file in which checks are pointed at, if any."""

    files: tuple[tuple[Output, Path], ...] = ()
    report_url: str | None = None
    suite: Path | None = None

    def of(self, candidate: str) -> Outputs:
        """For one of several candidates: `junit.xml` → `junit-q8_0.xml`."""
        files = ((form, file.with_name(f"{file.stem}-{candidate}{file.suffix}")) for form, file in self.files)
        return replace(self, files=tuple(files))

    def clear(self) -> None:
        """Remove what earlier commands left there."""
        for form, file in self.files:
            remove_old(file, f"--write {form}")


NOTHING = Outputs()
_CHECKED_OUT = ("GITHUB_WORKSPACE", "CI_PROJECT_DIR")  # the root of the repository, as GitHub and GitLab name it


def asked_outputs(
    write: Sequence[str] | None, report_url: str | None, report: Path | None, suite: Path | None = None
) -> Outputs:
    """Return the files that the command line names, before anything is measured. Touches none of them.

    Raises UsageError for an unknown format, two results in one file, a file that could not be written, and links to a
    report without a known address.
    """
    files = tuple(_file(text) for text in write or ())
    taken = {one.resolve(): what for one, what in ((report, "--report"), (suite, "the suite")) if one is not None}
    for form, file in files:
        place = file.resolve()
        if place in taken:
            raise UsageError(f"--write {form}={file}: {taken[place]} names that file too; give each its own")
        taken[place] = f"--write {form}"
        refuse_device(file, f"--write {form}")
        refuse_unwritable(file)
    require_link([form for form, _ in files], report_url, report)
    return Outputs(files, report_url, suite)


@contextmanager
def clear_old_results(
    report: Path | None, statement: StatementPlace, outputs: Outputs = NOTHING
) -> Iterator[Callable[[], None]]:
    """Remove what earlier commands left in the files of results, once the command is known to be right.

    Yields the function that removes them, for a command that measures to call before it does. Otherwise they are
    removed at the block's end. A mistake in the command line or the suite (exit 2) leaves them alone; after any other
    failure an old result would stand for a command that came to none.
    """

    def clear() -> None:
        statement.clear(report)
        outputs.clear()

    try:
        yield clear
    except (UsageError, SuiteError):
        raise
    except BaseException:
        clear()
        raise
    clear()


def require_link(forms: Sequence[Output], report_url: str | None, report: Path | None) -> None:
    """Raises UsageError for a `--report-url` that is none, and for links where nobody says the report's address."""
    from benchgate.integrations.ci import report_link

    link = report_link(os.environ, report_url, report) if forms or report_url is not None else None
    if link is None and Output.GITLAB_ANNOTATIONS in forms:
        raise UsageError(
            f"{Output.GITLAB_ANNOTATIONS} are links to the report, and nobody says where it will be found: add "
            "--report-url, or run it in a CI that says where its jobs are"
        )


def write_outputs(outputs: Outputs, decision: Decision, code: ExitCode, report: Path | None) -> Iterator[str]:
    """Write each, of a process that ends with this code; the reason for each that could not be written."""
    from benchgate.pipeline.judge import write_whole

    if not outputs.files:
        return
    told = told_of(decision, code, report_url=outputs.report_url, report=report, suite=outputs.suite)
    for form, file in outputs.files:
        try:
            write_whole(file, rendered(form, told, decision.report).encode(), f"the verdict as {form}")
            log(f"{form}: {file}")
        except PublishError as error:
            yield str(error)


def told_of(
    decision: Decision, code: ExitCode, *, report_url: str | None, report: Path | None, suite: Path | None
) -> VerdictContext:
    """The decision as every form of it is made from, of a process that ends with this code."""
    from benchgate.integrations.ci import report_link
    from benchgate.report.results import VerdictContext

    return VerdictContext(
        evidence=decision.evidence,
        verdict=decision.verdict,
        exit_code=code,
        against=decision.reference,
        terms=decision.terms,
        link=report_link(os.environ, report_url, report),
        lines=None if suite is None else _lines(decision, suite),
    )


def suite_of(file: Path, decision: Decision) -> Path:
    """The file, of the suite that was judged by. Raises UsageError, or SuiteError, for another one."""
    from benchgate.cli.suite_files import read_suite
    from benchgate.model.verdict import policy_sha256

    if policy_sha256(read_suite(file).to_stored()["gate"]) != decision.verdict.policy_sha256:
        raise UsageError(f"--suite {file}: its gate is not the one that this verdict was reached by; leave it out")
    return file


def _file(text: str) -> tuple[Output, Path]:
    word, equals, file = text.partition("=")
    if word not in list(Output):
        near = difflib.get_close_matches(word, list(Output), n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(Output)}"
        raise UsageError(f"--write {text}: there is no form {word!r}; {hint}")
    if not equals or not file:
        raise UsageError(f"--write {text}: expected FORMAT=FILE, like {word}={Output(word).file_name}")
    return Output(word), Path(file)


def _lines(decision: Decision, suite: Path) -> SuiteLines | None:
    """Where the checks stand in a file of the repository that a CI checked out, or below this folder; else None."""
    from benchgate.report.results import suite_lines
    from benchgate.system import read_text_file

    root = next((os.environ[name] for name in _CHECKED_OUT if os.environ.get(name)), ".")
    try:
        path = suite.resolve().relative_to(Path(root).resolve())
        text = read_text_file(suite)
        return suite_lines(text, path.as_posix(), decision.terms.suite(decision.evidence.run), decision.evidence)
    except (ValueError, OSError, SuiteError):  # it was read before: whatever became of it since costs the lines alone
        return None
