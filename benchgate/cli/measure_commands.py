"""Commands that measure, or check what would be measured: demo, run, compare, validate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchgate.cli import options
from benchgate.cli.commands import completed, resume_command, run_command, spelled
from benchgate.cli.conclude import conclude, finish
from benchgate.cli.options import Format
from benchgate.cli.outputs import asked_outputs, clear_old_results
from benchgate.cli.places import find_suite, refuse_unwritable
from benchgate.cli.price_lines import price_lines
from benchgate.cli.progress import make_progress
from benchgate.cli.saying import log, log_text, say
from benchgate.cli.several import conclude_each
from benchgate.cli.statements import statement_place
from benchgate.cli.stored_numbers import end_with_numbers
from benchgate.cli.suite_files import load_suite, missing_files, placed_in, read_suite
from benchgate.cli.waiver_files import waivers_for_run, waivers_for_stored
from benchgate.errors import ExitCode, RunInterrupted, StoreError, SuiteError, UsageError

if TYPE_CHECKING:
    from benchgate.model.verdict import Waivers
    from benchgate.pipeline.judge import Decision
    from benchgate.pipeline.run import RunOptions
    from benchgate.plan.preview import Preview
    from benchgate.suite.schema import Suite

DEMO_EXPECTED = {"q8_0": ("PASS", "WARN"), "q2_k": ("BLOCK",), "padded": ("BLOCK",)}


def run(
    suite: Annotated[str, typer.Argument(help="Suite file, or the name of a shipped suite.")],
    baseline: options.BaselineOption = None,
    candidate: options.CandidateOption = None,
    store: options.StoreOption = options.STORE,
    work_dir: options.WorkDirOption = options.WORK_DIR,
    cluster: options.ClusterOption = None,
    allow_actions: options.AllowActionsOption = False,
    allow_code: options.AllowCodeOption = False,
    waivers: options.WaiversOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was cut short.")] = False,
    resumed: Annotated[str | None, typer.Option("--run", help="The run to go on with; the newest unless said.")] = None,
    without_spool: Annotated[
        bool, typer.Option("--without-spool", help="Go on although what was kept beside the store is lost.")
    ] = False,
    report: options.ReportOption = None,
    statement: options.StatementOption = None,
    write: options.WriteOption = None,
    report_url: options.ReportUrlOption = None,
    label: options.LabelOption = None,
    strict: options.StrictOption = False,
    output: options.FormatOption = Format.TEXT,
) -> None:
    """Measure two deployments and judge the candidate, or each of several; exits with the (worst) verdict's code."""
    path = find_suite(suite)
    refuse_unwritable(report)
    # A run that goes on has the prices of its beginning.
    declared = read_suite(path) if resume else load_suite(path, baseline, candidate)
    place = statement_place(statement, report, work_dir=work_dir, suite=path)
    outputs = asked_outputs(write, report_url, report, path)
    tolerated = waivers_for_run(waivers, declared)
    given = _Given(store, work_dir, cluster, allow_actions, allow_code, tolerated, waivers)
    several = declared.candidates if candidate is None else ()
    if resume or resumed is not None or without_spool:
        _require_one_run(resume, "--run" if resumed is not None else "--without-spool", several, label)
        with clear_old_results(report, place, outputs) as clear:
            given = replace(given, before_measuring=clear)
            decision = _go_on(path, baseline, candidate, given, resumed, without_spool=without_spool)
        conclude(decision, output, strict=strict, report=report, publish=True, statement=place, outputs=outputs)
        return
    if not several:
        with clear_old_results(report, place, outputs) as clear:
            decision = _measure(path, baseline, candidate, replace(given, before_measuring=clear), label)
        conclude(decision, output, strict=strict, report=report, publish=True, statement=place, outputs=outputs)
        return

    def measure(name: str) -> Decision:
        own = None if label is None else f"{label}-{name}"
        return _measure(path, baseline, name, given, own)

    if output in (Format.JUNIT, Format.GITLAB):
        raise UsageError(
            f"--format {output} is of one candidate, and {path} has {len(several)}: use --write, or --candidate"
        )
    _require_all(path, baseline, several, given)
    code = conclude_each(
        several, measure, output, strict=strict, report=report, publish=True, statement=place, outputs=outputs
    )
    raise typer.Exit(int(code))


def compare(
    baseline: Annotated[str, typer.Argument(help="Stored run (id, prefix, label, @latest, @promoted), or deployment.")],
    candidate: Annotated[str, typer.Argument(help="Stored run, or deployment, to judge.")],
    suite: Annotated[str | None, typer.Option("--suite", help="Measure these two deployments of a suite now.")] = None,
    explain: options.ExplainOption = None,
    store: options.StoreOption = options.STORE,
    work_dir: options.WorkDirOption = options.WORK_DIR,
    cluster: options.ClusterOption = None,
    allow_actions: options.AllowActionsOption = False,
    allow_code: options.AllowCodeOption = False,
    waivers: options.WaiversOption = None,
    as_of: options.AsOfOption = None,
    report: options.ReportOption = None,
    statement: options.StatementOption = None,
    write: options.WriteOption = None,
    report_url: options.ReportUrlOption = None,
    label: options.LabelOption = None,
    strict: options.StrictOption = False,
    output: options.FormatOption = Format.TEXT,
) -> None:
    """Judge the candidate of one stored run against another's; with --suite, measure first."""
    if suite is not None:
        refuse_unwritable(report)
        if explain is not None:
            raise UsageError("--explain is for stored runs; measure first, then `benchgate gate --explain CHECK`")
        if as_of is not None:
            raise UsageError("--as-of is for stored runs: what is measured now is judged now; leave it out")
        path = find_suite(suite)
        tolerated = waivers_for_run(waivers, load_suite(path, baseline, candidate))
        place = statement_place(statement, report, work_dir=work_dir, suite=path)
        outputs = asked_outputs(write, report_url, report, path)
        with clear_old_results(report, place, outputs) as clear:
            given = _Given(store, work_dir, cluster, allow_actions, allow_code, tolerated, waivers, clear)
            decision = _measure(path, baseline, candidate, given, label)
    else:
        from benchgate.pipeline.judge import decide_stored
        from benchgate.store.repository import Store

        of_measuring: dict[str, object] = {
            "--cluster": cluster,
            "--work-dir": work_dir != options.WORK_DIR,
            "--allow-actions": allow_actions,
            "--allow-code": allow_code,
            "--label": label,
        }
        for option, value in of_measuring.items():
            if value:
                raise UsageError(f"{option} is for a run that is measured now; leave it out, or add --suite")
        place = statement_place(statement, report)
        outputs = asked_outputs(write, report_url, report)
        with clear_old_results(report, place, outputs), Store.open(store, create=False) as opened:
            judged = opened.resolve(candidate)
            against = opened.resolve_beside(baseline, judged)
            of_decisions: dict[str, object] = {"--report": report, "--statement": statement, "--write": write}
            of_decisions |= {"--explain": explain, "--waivers": waivers, "--as-of": as_of}
            end_with_numbers(opened, judged, against, output, of_decisions)
            tolerated = waivers_for_stored(waivers, as_of, opened.run(judged))
            decision = decide_stored(opened, judged, against, waivers=tolerated)
    conclude(
        decision,
        output,
        strict=strict,
        report=report,
        publish=suite is not None,
        explain=explain,
        statement=place,
        outputs=outputs,
    )


def validate(
    suites: Annotated[list[str], typer.Argument(help="Suite files, or names of shipped suites.")],
    allow_code: options.AllowCodeOption = False,
) -> None:
    """Check suites, and their data once they are right: every problem of either at once, with its place."""
    from benchgate.pipeline.error_budget import budget_lines
    from benchgate.pipeline.preflight import check_suite
    from benchgate.suite.default_checks import default_checks, line_of
    from benchgate.suite.rules.suite import each_candidate

    problems: list[str] = []
    for reference in suites:
        try:
            path = find_suite(reference)
            try:
                suite = load_suite(path)
            except SuiteError as error:
                raise SuiteError([*error.problems, *missing_files(path)]) from error
            with placed_in(path):
                each = [
                    check_suite(one, path.parent, str(path), allow_code=allow_code) for one in each_candidate(suite)
                ]
        except (SuiteError, UsageError) as error:
            problems.append(str(error))
            continue
        refused = dict.fromkeys(line for one in each for line in one.refused)
        if refused:
            problems += [f"{path}: `run` refuses this suite: {line}" for line in refused]
            continue
        found = each[0]
        times = f" for each of {len(suite.candidates)} candidates" if suite.candidates else ""
        lines = [f"{path}: valid; {_asked(found)}{times}; plan {found.plan_sha256[:12]}"]
        lines += [f"  {line}" for line in (*budget_lines(suite), *price_lines(suite))]
        if suite.gate.checks == default_checks(suite):
            lines += ["  held to the usual checks:", *(f"    - {line_of(c)}" for c in suite.gate.checks)]
        lines += [f"  {line}" for line in found.underpowered]
        say(completed("".join(f"{line}\n" for line in lines), suite=path, store=None))
        warn(suite, path)
    if problems:
        log_text("\n".join(problems))
        raise typer.Exit(int(ExitCode.USAGE))


def warn(suite: Suite, path: Path) -> None:
    """Write what is measured less well than it looks to stderr, a line for each with its place in the suite."""
    from benchgate.suite.rules.load import suite_warnings
    from benchgate.system import read_text_file

    log(*(str(warning) for warning in suite_warnings(suite, read_text_file(path), str(path))))


def _asked(found: Preview) -> str:
    """What a run would ask, in one line."""
    starts = f"{found.starts:,} starts, " if found.starts else ""
    ramp = f" and about {found.ramp_requests:,} for the ramp" if found.ramp_requests else ""
    load = f"{found.load_requests:,} load requests ({found.warmup_told}){ramp}"
    unknown = found.to_fetch and not found.eval_items
    items = "eval items of unknown number" if unknown else f"{found.eval_items:,} eval items"
    asked = f"{load}, {items}, {found.shadow_requests:,} shadow requests"
    texts = f", {found.text_positions:,} positions of fixed texts" if found.text_positions else ""
    unread = f" (and those of {len(found.to_fetch)} data sets that were not looked into)" if found.to_fetch else ""
    return f"{starts}{found.blocks_told}, {asked}{texts}{unread}"


def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for the store and the reports.")] = Path("benchgate-demo"),
    candidate: Annotated[
        list[str] | None, typer.Option("--candidate", help="Judge only these of q8_0, q2_k, padded.")
    ] = None,
) -> None:
    """Judge three real quantised candidates here: one promoted, two blocked."""
    chosen = candidate or list(DEMO_EXPECTED)
    unknown = [name for name in chosen if name not in DEMO_EXPECTED]
    if unknown:
        raise UsageError(f"the demo has no candidate {unknown[0]!r}; it has {', '.join(DEMO_EXPECTED)}")
    path = find_suite("demo")
    rows, surprises, lost = [], 0, False
    for name in chosen:
        decision = _measure(path, None, name, _Given(str(out / "benchgate.db"), out / "work"), f"demo-{name}")
        report = out / f"report-{name}.html"
        code = finish(decision, Format.TEXT, strict=False, report=report)
        outcome = decision.verdict.outcome
        surprises += outcome not in DEMO_EXPECTED[name]
        lost |= code is ExitCode.PUBLISH_FAILED
        rows.append(f"{name:8} {outcome.value:12} exit {int(code):<3} {report}")
    say("\n" + "\n".join(rows) + "\n")
    if surprises:
        expected = ", ".join(f"{name} {' or '.join(DEMO_EXPECTED[name])}" for name in chosen)
        log(
            f"benchgate: not what this demo shows on a calm machine ({expected}). Other work on this machine slows the "
            "load generator and the engines: stop it and run the demo again, or see why in the reports"
        )
    if surprises or lost:
        raise typer.Exit(int(ExitCode.PUBLISH_FAILED if lost else ExitCode.INVALID))


@dataclass(frozen=True, slots=True)
class _Given:
    """What the command line says of every run of a suite."""

    store: str
    work_dir: Path
    cluster: str | None = None
    allow_actions: bool = False
    allow_code: bool = False
    waivers: Waivers | None = None
    waiver_file: Path | None = None
    before_measuring: Callable[[], None] = lambda: None

    def options(self, label: str | None) -> RunOptions:
        """The options of one run."""
        from benchgate.pipeline.run import RunOptions

        return RunOptions(
            store=self.store,
            work_dir=self.work_dir.resolve(),
            label=label,
            cluster=self.cluster,
            allow_actions=self.allow_actions,
            allow_code=self.allow_code,
            waivers=self.waivers,
            before_measuring=self.before_measuring,
        )

    def command(self, suite: Path, baseline: str | None, candidate: str | None) -> str:
        """The command that measures such a run."""
        said = (
            ("--baseline", baseline),
            ("--candidate", candidate),
            ("--work-dir", None if self.work_dir == options.WORK_DIR else str(self.work_dir)),
            ("--cluster", self.cluster),
            ("--waivers", None if self.waiver_file is None else str(self.waiver_file)),
        )
        flags = (("--allow-actions", self.allow_actions), ("--allow-code", self.allow_code))
        return run_command(suite, store=self.store, said=said, flags=flags)


def _require_all(path: Path, baseline: str | None, candidates: Sequence[str], given: _Given) -> None:
    """Whatever stands against measuring any of the candidates, told before the first of them is measured."""
    from benchgate.pipeline.run import require_runnable

    for name in candidates:
        suite = load_suite(path, baseline, name)
        with placed_in(path):
            require_runnable(suite, path.parent, given.options(None))


def _measure(path: Path, baseline: str | None, candidate: str | None, given: _Given, label: str | None) -> Decision:
    from benchgate.pipeline.run import run_suite

    suite = load_suite(path, baseline, candidate)
    with placed_in(path), make_progress(f"{suite.baseline} vs {suite.candidate}") as progress:
        command = given.command(path, baseline, candidate)
        try:
            decision = run_suite(suite, path.parent, given.options(label), progress)
        except RunInterrupted as interrupted:
            again = resume_command(command, interrupted.run_id)
            progress.note(f"run {interrupted.run_id} was interrupted; resume it with `{again}`")
            raise
        if (fault := decision.store_fault) is None:
            return decision
        return replace(decision, store_fault=StoreError(spelled(fault, begun_by=command)))


def _require_one_run(resume: bool, said: str, several: Sequence[str], label: str | None) -> None:
    """Of what is said beside --resume. Raises UsageError."""
    if not resume:
        raise UsageError(f"{said} is about the run that --resume goes on with; add --resume, or leave it out")
    if several:
        raise UsageError(
            f"--resume goes on with one run, and this suite has {len(several)} candidates: name its candidate with "
            f"--candidate, one of {', '.join(several)}"
        )
    if label is not None:
        raise UsageError("a run that goes on has its label, or none, from its beginning; leave --label out")


def _go_on(
    path: Path, baseline: str | None, candidate: str | None, given: _Given, run: str | None, *, without_spool: bool
) -> Decision:
    from benchgate.pipeline.resume import resume_suite
    from benchgate.suite.rules.suite import with_arms

    suite = with_arms(read_suite(path), baseline, candidate)
    with placed_in(path), make_progress(f"{suite.baseline} vs {suite.candidate}") as progress:
        return resume_suite(suite, path.parent, given.options(None), progress, run, without_spool=without_spool)
