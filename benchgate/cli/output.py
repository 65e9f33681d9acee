"""Output of a verdict: its options, its files, its text on standard output and the exit code of the command."""

from __future__ import annotations

import difflib
import functools
import hashlib
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

import typer

from benchgate.cli.commands import spelled
from benchgate.cli.interruption import interrupted_code
from benchgate.cli.options import Format, StrictOption, files_read, refuse_unwritable
from benchgate.cli.saying import inform, log, say, say_escaped, say_json_text, say_markdown, stdout_screen
from benchgate.errors import ExitCode, PublishError, SuiteError, UsageError
from benchgate.escape import terminal_text
from benchgate.integrations import ci
from benchgate.integrations.ci import report_link, run_url
from benchgate.report.formats import Output, rendered
from benchgate.report.screen import PLAIN, Screen
from benchgate.system import read_text_file

if TYPE_CHECKING:
    from benchgate.pipeline.judge import Decision
    from benchgate.report.results import SuiteLines, VerdictContext

STATEMENT_FORMAT = "intoto"
STATEMENT_SUFFIX = ".intoto.json"
_PANEL = "Output"
_CHECKOUT_VARIABLES = ("GITHUB_WORKSPACE", "CI_PROJECT_DIR")  # repository root on GitHub and GitLab
_WORST_FIRST = (ExitCode.PUBLISH_FAILED, ExitCode.BLOCK, ExitCode.INVALID, ExitCode.INCONCLUSIVE, ExitCode.OK)

ReportUrlOption = Annotated[
    str | None,
    typer.Option(
        "--report-url",
        metavar="URL",
        envvar="BENCHGATE_REPORT_URL",
        help="Address of the published HTML report.",
        rich_help_panel=_PANEL,
    ),
]


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """Standard output and files of a verdict.

    The in-toto statement goes to `statement`, else beside the report, else to the run's folder in `work_dir`. Only
    commands that measure have a `work_dir`; only they `publish` to the CI system. `suite` is the file whose lines
    failed checks point at, and `candidates` the number that share the command's output.
    """

    format: Format = Format.TEXT
    strict: bool = False
    explain: str | None = None
    report: Path | None = None
    statement: Path | None = None
    files: tuple[tuple[Output, Path], ...] = ()
    report_url: str | None = None
    suite: Path | None = None
    suite_file_sha256: str | None = None
    work_dir: Path | None = None
    publish: bool = False
    candidates: int = 1

    @classmethod
    def parse(
        cls,
        *,
        report: Annotated[
            Path | None, typer.Option(metavar="FILE", help="Write the HTML report to FILE.", rich_help_panel=_PANEL)
        ] = None,
        write: Annotated[
            list[str] | None,
            typer.Option(
                metavar="FORMAT=FILE",
                help=f"Write another format to FILE; repeatable. Formats: {', '.join((*Output, STATEMENT_FORMAT))}.",
                rich_help_panel=_PANEL,
            ),
        ] = None,
        report_url: ReportUrlOption = None,
        strict: StrictOption = False,
        format: Annotated[
            Format, typer.Option(help="Format of standard output.", rich_help_panel=_PANEL)
        ] = Format.TEXT,
    ) -> Self:
        """Check the files that the command line names: its options are these parameters. Touches no file.

        Raises UsageError for an unknown format, two results in one file, a file that cannot be written, and links to a
        report without a known address.
        """
        statement, files = None, []
        for text in write or ():
            word, equals, name = text.partition("=")
            known = (*Output, STATEMENT_FORMAT)
            if word not in known:
                near = difflib.get_close_matches(word, known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(known)}"
                raise UsageError(f"--write {text}: unknown format {word!r}; {hint}")
            if not equals or not name:
                usual = f"verdict{STATEMENT_SUFFIX}" if word == STATEMENT_FORMAT else Output(word).file_name
                raise UsageError(f"--write {text}: expected FORMAT=FILE, like {word}={usual}")
            file = Path(name)
            if word == STATEMENT_FORMAT and statement is None:
                statement = file
            elif word == STATEMENT_FORMAT:
                raise UsageError(f"--write {text}: there is one statement, and {statement} is its file already")
            elif word == Output.HTML and report is None:
                report = file
            else:
                files.append((Output(word), file))
        options = cls(format, strict, None, report, statement, tuple(files), report_url)
        for option, file in options._named():
            if file.absolute().is_relative_to("/dev"):
                raise UsageError(f"{option} {file}: a device would be replaced by the result; name a file")
            refuse_unwritable(file)
        options._refuse_shared()
        require_link([form for form, _ in files], report_url, report)
        return options

    def of_run(self, suite: Path, work_dir: Path, **inputs: str | Path | None) -> OutputOptions:
        """Return the options of a command that measures this suite.

        Raises UsageError if a result would replace it, or another of the `inputs`.
        """
        self._refuse_shared(suite=suite, **inputs)
        try:
            sha256 = hashlib.sha256(suite.read_bytes()).hexdigest()
        except OSError as error:
            raise UsageError(f"the suite {suite} cannot be read: {error.strerror}") from error
        return replace(self, suite=suite, suite_file_sha256=sha256, work_dir=work_dir, publish=True)

    def of_policy(self, suite: Path | None, **inputs: str | Path | None) -> OutputOptions:
        """Return the options of a stored run that is judged by another suite's gate.

        Raises UsageError if a result would replace it, or another of the `inputs`.
        """
        self._refuse_shared(suite=suite, **inputs)
        return replace(self, suite=suite)

    def of_candidate(self, name: str) -> OutputOptions:
        """Return the options of one of several candidates: `junit.xml` becomes `junit-q8_0.xml`."""

        def own(file: Path) -> Path:
            return file.with_name(f"{file.stem}-{name}{file.suffix}")

        return replace(
            self,
            report=None if self.report is None else own(self.report),
            statement=None if self.statement is None else own(self.statement),
            files=tuple((form, own(file)) for form, file in self.files),
        )

    def statement_path(self, run_id: str) -> Path | None:
        """Return the file of the statement; None where a stored run is judged without a report."""
        if self.statement is not None:
            return self.statement
        if self.report is not None:
            return _beside(self.report)
        return None if self.work_dir is None else self.work_dir / run_id / f"verdict{STATEMENT_SUFFIX}"

    def clear(self, run_id: str | None = None) -> None:
        """Remove the results of earlier commands: true, but of another run. Raises UsageError where that fails.

        With `run_id` those of this run are removed, which include a statement that no option names.
        """
        beside = [("the statement", _beside(self.report))] if self.report is not None else []
        if run_id is not None and (statement := self.statement_path(run_id)) is not None:
            beside.append(("the statement", statement))
        faults = []
        for option, file in (*self._named(), *beside):
            try:
                if file.is_file():
                    file.unlink()
            except OSError as error:
                faults.append(f"{option} {file}: the file that is there cannot be removed: {error.strerror}")
        if faults:
            raise UsageError("\n".join(faults))

    @contextmanager
    def cleared_on_failure(self) -> Iterator[Callable[[], None]]:
        """Remove earlier results if the command fails, except for mistakes in the command line or suite (exit 2).

        Yields `clear`, which a command that measures calls before it does.
        """
        try:
            yield self.clear
        except (UsageError, SuiteError):
            raise
        except BaseException:
            self.clear()
            raise

    def _named(self) -> list[tuple[str, Path]]:
        named = [("--report", self.report), (f"--write {STATEMENT_FORMAT}", self.statement)]
        named += [(f"--write {form}", file) for form, file in self.files]
        return [(option, file) for option, file in named if file is not None]

    def _refuse_shared(self, **inputs: str | Path | None) -> None:
        taken, named = files_read(**inputs), self._named()
        if self.report is not None and self.statement is None:
            named.append(("the statement beside the report", _beside(self.report)))
        for option, file in named:
            if (other := taken.setdefault(file.resolve(), option)) is not option:
                raise UsageError(f"{other} and {option} both name {file}; give each a file of its own")


def with_output(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a verdict's output to a command, which gets them as its argument `output`."""
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "output"]
    shared = inspect.signature(OutputOptions.parse, eval_str=True).parameters

    @functools.wraps(command)
    def run(**given: object) -> None:
        output = OutputOptions.parse(**{name: given.pop(name) for name in shared if name in given})  # type: ignore[arg-type]  # typer converted them
        command(**given, output=output)

    parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in (*own, *shared.values())]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what inspect reads first
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def require_link(forms: Sequence[Output], report_url: str | None, report: Path | None) -> None:
    """Raise UsageError for a malformed `--report-url`, and for links to a report without an address."""
    if not forms and report_url is None:
        return
    link = report_link(os.environ, report_url, report)
    if link is None and Output.GITLAB_ANNOTATIONS in forms:
        raise UsageError(
            f"{Output.GITLAB_ANNOTATIONS} are links to the report, and its address is unknown: add --report-url, or "
            "run in a CI system that publishes the addresses of its jobs"
        )


def finish(decision: Decision, output: OutputOptions, *, show: Callable[[str], object] | None = None) -> ExitCode:
    """Write the files, publish, and show the verdict; return the exit code, which is part of what is shown.

    `show` gets the text; standard output unless given. Where that fails the verdict goes to stderr. What was written
    before a step that fails claims success, so everything is written once more; after an interruption it is removed.
    Raises UsageError for an unknown check to explain.
    """
    decision = decision.with_strict(strict=output.strict)
    if output.explain is not None:
        from benchgate.report.checks import find_check

        if output.format not in (Format.TEXT, Format.JSON):
            raise UsageError(f"--explain prints text or json; leave --format {output.format} out")
        find_check(decision.verdict, output.explain)
    output.clear()
    expected = decision.exit_code if decision.store_fault is None else ExitCode.PUBLISH_FAILED
    show, is_shown = show or printer(output.format), False

    def show_once(code: ExitCode) -> list[str]:
        nonlocal is_shown
        text, is_shown = shown(decision, output, code), True
        return show_or_log(text, [decision], show, publish=output.publish)

    try:
        faults = [*_write_all(decision, expected, output, publish=output.publish)]
        code = ExitCode.PUBLISH_FAILED if faults else expected
        lost = show_once(code)
    except BaseException as error:
        code = interrupted_code() if isinstance(error, KeyboardInterrupt) else ExitCode.CRASH
        faults = _withdrawal_faults(code) if output.publish else []
        try:
            output.clear(decision.evidence.run.id)
        except UsageError as kept:
            faults.append(str(kept))
        for one in faults:
            log(f"benchgate: the verdict stands, but {one}")
        if not is_shown:
            show_once(code)
        raise
    code = ExitCode.PUBLISH_FAILED if lost else code
    again = [] if code is expected else [*_write_all(decision, code, output, publish=False)]
    for fault in dict.fromkeys((*faults, *lost, *again)):
        log(f"benchgate: the verdict stands, but {fault}")
    return code


def shown(decision: Decision, output: OutputOptions, code: ExitCode) -> str:
    """Return the text for `printer`, of a process that ends with this code."""
    if output.explain is not None:
        from benchgate.report.checks import find_check, render_explanation, with_steps
        from benchgate.report.document import document_json, with_exit_code

        check = find_check(decision.verdict, output.explain)
        if output.format is Format.JSON:
            return document_json(with_exit_code(with_steps(decision.document, check), code))
        return render_explanation(decision.verdict, check, stdout_screen())
    if output.format is Format.JSON:
        return decision.json(code)
    if output.format is Format.TEXT:
        return _as_text(decision, code, stdout_screen(), output.suite if output.publish else None)
    if output.format is Format.MARKDOWN:
        from benchgate.report.markdown import markdown_of

        return markdown_of(decision.report.view_of(code))
    text = terminal_text(_as_text(decision, code, PLAIN)) if output.format is Format.GITHUB else ""
    context = verdict_context(decision, code, report_url=output.report_url, report=None, suite=output.suite)
    context = replace(context, candidates=output.candidates)
    return text + rendered(Output(output.format.value), context, decision.report)


def printer(format: Format) -> Callable[[str], None]:
    """Return the function that prints the text of this format, escaped for it."""
    if format in (Format.GITHUB, Format.TEXT):
        return say_escaped  # annotations are commands of our own, and a terminal's colours its control codes
    return {Format.JSON: say_json_text, Format.MARKDOWN: say_markdown}.get(format, say)


def show_or_log(text: str, decisions: Iterable[Decision], show: Callable[[str], object], *, publish: bool) -> list[str]:
    """Show the text; where that fails, log the verdicts, withdraw what was published, and return the reasons."""
    try:
        show(text)
    except PublishError as error:
        for one in decisions:
            log(f"benchgate: {one.verdict.outcome.value}: {one.verdict.reason}")
        return [str(error), *(_withdrawal_faults(ExitCode.PUBLISH_FAILED) if publish else ())]
    return []


def verdict_context(
    decision: Decision, code: ExitCode, *, report_url: str | None, report: Path | None, suite: Path | None
) -> VerdictContext:
    """Return what every output format is made from, of a process that ends with this code."""
    from benchgate.report.results import VerdictContext

    return VerdictContext(
        evidence=decision.evidence,
        verdict=decision.verdict,
        exit_code=code,
        against=decision.reference,
        terms=decision.terms,
        link=report_link(os.environ, report_url, report),
        lines=None if suite is None else _suite_lines(decision, suite),
    )


def conclude_each(candidates: Sequence[str], measure: Callable[[str], Decision], output: OutputOptions) -> ExitCode:
    """Measure and conclude one candidate after the other; return the worst exit code.

    JSON is one array with the documents of all candidates, whose `exit_code` is each candidate's own. It is printed
    whatever ends the command, with those that were judged by then. The CI system's verdict is withdrawn while a
    candidate is measured: an earlier candidate's must not stand for one without a verdict.
    """
    done: list[tuple[str, Decision, OutputOptions, ExitCode]] = []
    documents: list[str] = []
    own = {name: replace(output.of_candidate(name), candidates=len(candidates)) for name in candidates}
    for one in (output, *own.values()):
        one.clear()
    try:
        for name in candidates:
            if output.publish:
                ci.withdraw_outputs(os.environ)
            decision = measure(name)
            code = finish(decision, own[name], show=documents.append if output.format is Format.JSON else None)
            done.append((name, decision, own[name], code))
    finally:
        array = f"[{','.join(text.rstrip() for text in documents)}]\n"
        decisions = [decision for _, decision, _, _ in done]
        lost = show_or_log(array, decisions, say_json_text, publish=output.publish) if documents else []
        for fault in lost:
            log(f"benchgate: the verdicts stand, but {fault}")
        for _, decision, options, code in done if lost else ():
            if code is ExitCode.OK:
                strict = decision.with_strict(strict=output.strict)
                for fault in _write_all(strict, ExitCode.PUBLISH_FAILED, options, publish=False):
                    log(f"benchgate: the verdicts stand, but {fault}")
    if lost:
        return ExitCode.PUBLISH_FAILED
    if output.format is not Format.JSON:
        width, bullet = max(map(len, candidates)), "- " if output.format is Format.MARKDOWN else ""
        say("\n")
        for name, decision, options, code in done:
            outcome, report = decision.verdict.outcome.value, options.report or ""
            row = f"{bullet}{name:{width}} {outcome:12} exit {int(code):<3} run {decision.evidence.run.id} {report}"
            say(f"{row.rstrip()}\n")
    worst = min((code for *_, code in done), key=_WORST_FIRST.index)
    if not output.publish:
        return worst
    decisive = [(decision, options) for _, decision, options, code in done if code is worst]
    decision, options = max(decisive, key=lambda one: one[0].verdict.outcome.severity)
    run_id = decision.evidence.run.id
    try:
        ci.publish_outputs(
            os.environ,
            verdict=decision.verdict,
            run_id=run_id,
            exit_code=worst,
            report_path=options.report,
            statement_path=options.statement_path(run_id),
        )
    except PublishError as error:
        log(f"benchgate: the verdicts stand, but {error}")
        return ExitCode.PUBLISH_FAILED
    return worst


def _beside(report: Path) -> Path:
    return report.with_name(f"{report.name}{STATEMENT_SUFFIX}")


def _write_all(decision: Decision, code: ExitCode, output: OutputOptions, *, publish: bool) -> Iterator[str]:
    """Write report, files and statement, and publish; yield every fault.

    What is written states the exit code as far as it is known by then, which at first is `code`.
    """
    from benchgate.pipeline.judge import write_report
    from benchgate.report.markdown import SUMMARY_BYTES, markdown_of

    if decision.store_fault is not None:
        yield spelled(decision.store_fault)
    report_sha256 = None
    try:
        if output.report is not None:
            report_sha256 = write_report(decision, output.report)
    except PublishError as error:
        yield str(error)
        yield from _write_files(decision, ExitCode.PUBLISH_FAILED, output)
        return
    if output.report is not None:
        inform(f"report: {output.report}")
    for fault in _write_files(decision, code, output):
        code = ExitCode.PUBLISH_FAILED
        yield fault
    try:
        statement = output.statement_path(decision.evidence.run.id)
        if statement is not None:
            _write_statement(decision, code, output, statement, report_sha256)
            inform(f"statement: {statement}")
        if publish:
            ci.publish_outputs(
                os.environ,
                verdict=decision.verdict,
                run_id=decision.evidence.run.id,
                exit_code=code,
                report_path=output.report,
                statement_path=statement,
            )
            ci.publish_summary(os.environ, lambda: markdown_of(decision.report.view_of(code), SUMMARY_BYTES))
    except PublishError as error:
        yield str(error)
        if publish:  # outputs may be published, and the summary not
            yield from _withdrawal_faults(ExitCode.PUBLISH_FAILED)


def _write_files(decision: Decision, code: ExitCode, output: OutputOptions) -> Iterator[str]:
    from benchgate.pipeline.judge import write_whole

    if not output.files:
        return
    context = verdict_context(decision, code, report_url=output.report_url, report=output.report, suite=output.suite)
    for form, file in output.files:
        try:
            private = form is Output.HTML and decision.keeps_texts
            write_whole(
                file, rendered(form, context, decision.report).encode(), f"the verdict as {form}", private=private
            )
            inform(f"{form}: {file}")
        except PublishError as error:
            yield str(error)


def _write_statement(
    decision: Decision, code: ExitCode, output: OutputOptions, path: Path, report_sha256: str | None
) -> None:
    from benchgate.pipeline.judge import write_whole
    from benchgate.release.attest import StatedFile, statement_of

    statement = statement_of(
        decision,
        code,
        report=StatedFile(output.report.name, report_sha256) if output.report and report_sha256 else None,
        suite_file_sha256=output.suite_file_sha256,
        url=run_url(os.environ),
    )
    write_whole(path, statement.data(), "the statement")


def _withdrawal_faults(code: ExitCode) -> list[str]:
    """Withdraw the CI system's outputs, and say so in the job's summary; return what failed."""
    faults = []
    notice = f"\n**No verdict above promotes: benchgate ended with exit code {int(code)}.**"
    for withdraw in (ci.withdraw_outputs, functools.partial(ci.publish_summary, render_summary=lambda: notice)):
        try:
            withdraw(os.environ)
        except PublishError as error:
            faults.append(str(error))
    return faults


def _as_text(decision: Decision, code: ExitCode, screen: Screen, suite: Path | None = None) -> str:
    from benchgate.report.sections.load import load_end_lines
    from benchgate.report.text import render_text

    quality = decision.report.quality
    return render_text(
        decision.verdict,
        decision.evidence.run,
        screen=screen,
        against=None if decision.reference is None else decision.reference.run,
        terms=decision.terms,
        exit_code=code,
        quality=() if quality is None else quality.lines,
        load=load_end_lines(decision.evidence, decision.verdict),
        cautions=decision.report.cautions,
        suite=suite,
    )


def _suite_lines(decision: Decision, suite: Path) -> SuiteLines | None:
    """Return the lines of the checks in the suite's file, if that lies in the checked-out repository."""
    from benchgate.report.results import suite_lines

    root = next((os.environ[name] for name in _CHECKOUT_VARIABLES if os.environ.get(name)), ".")
    try:
        path = suite.resolve().relative_to(Path(root).resolve())
        text = read_text_file(suite)
        return suite_lines(text, path.as_posix(), decision.terms.suite(decision.evidence.run), decision.evidence)
    except (ValueError, OSError, SuiteError):  # a file that changed since it was parsed costs its lines alone
        return None
