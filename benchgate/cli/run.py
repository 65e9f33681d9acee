"""Commands that measure: `benchgate run`, `calibrate` and `demo`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchgate.cli import options
from benchgate.cli.commands import resume_command, run_command, spelled
from benchgate.cli.completion import complete_runs
from benchgate.cli.options import Format, Part, ResultFormat, find_suite, waivers_for_run
from benchgate.cli.output import STATEMENT_FORMAT, OutputOptions, conclude_each, finish, with_output
from benchgate.cli.progress import make_progress
from benchgate.cli.saying import log, say, say_json
from benchgate.errors import ExitCode, RunInterrupted, StoreError, UsageError
from benchgate.store.missing import require_new_run, require_stored

if TYPE_CHECKING:
    from benchgate.model.verdict import Waivers
    from benchgate.pipeline.judge import Decision
    from benchgate.pipeline.progress import Progress
    from benchgate.pipeline.run import RunOptions
    from benchgate.pipeline.suite_file import SuiteFile
    from benchgate.suite.schema import Suite

DEMO_EXPECTED = {"q8_0": ("PASS", "WARN"), "q2_k": ("BLOCK",), "padded": ("BLOCK",)}


@with_output
def run(
    suite: options.SuiteArgument,
    output: OutputOptions,
    baseline: options.BaselineOption = None,
    candidate: options.CandidateOption = None,
    only: Annotated[
        Part | None, typer.Option(help="Measure and judge this part of the suite alone; it never passes.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Measure less, in about three minutes; it never passes.")
    ] = False,
    samples: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="ARM=DIR...",
            help="baseline=DIR candidate=DIR: judge samples of lm-eval, inspect_ai or NeMo Evaluator; send nothing.",
        ),
    ] = None,
    store: options.StoreOption = options.STORE,
    work_dir: options.WorkDirOption = options.WORK_DIR,
    cluster: options.ClusterOption = None,
    allow_actions: options.AllowActionsOption = False,
    allow_code: options.AllowCodeOption = False,
    waivers: options.WaiversOption = None,
    wait: options.WaitOption = False,
    serve_metrics: options.ServeMetricsOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume an interrupted run.")] = False,
    resumed: Annotated[
        str | None,
        typer.Option(
            "--run", metavar="RUN", help="Run to resume.", show_default="the newest", autocompletion=complete_runs
        ),
    ] = None,
    ignore_missing_spool: Annotated[
        bool, typer.Option("--ignore-missing-spool", help="Resume although the records beside the store are lost.")
    ] = False,
    label: options.LabelOption = None,
) -> None:
    """Measure both deployments, judge the candidate

    Of several candidates each has its own run and report, and the worst verdict decides the exit code.

    Example: benchgate run suite.yaml --report report.html
    """
    if label is not None:
        from benchgate.store.missing import require_spelling

        require_spelling(label)
    path = find_suite(suite)
    arguments = RunArguments(
        store,
        work_dir,
        cluster,
        allow_actions,
        allow_code,
        label,
        baseline,
        candidate,
        only,
        quick,
        waiver_file=waivers,
        wait=wait,
        serve_metrics=serve_metrics,
        output=output.of_run(path, work_dir, store=store, waivers=waivers),
    )
    if quick and only is not None:
        raise UsageError("--quick shortens the whole suite, and --only leaves parts of it out; choose one of them")
    if samples is not None:
        _refuse_beside_samples(
            arguments, {"--resume": resume, "--run": resumed, "--ignore-missing-spool": ignore_missing_spool}
        )
        code = _judge_samples(path, samples, arguments)
    elif resume or resumed is not None or ignore_missing_spool:
        if not resume:
            option = "--run" if resumed is not None else "--ignore-missing-spool"
            raise UsageError(f"{option} is about the run that --resume continues; add --resume, or leave it out")
        code = _resume(path, arguments, resumed, ignore_missing_spool=ignore_missing_spool)
    else:
        code = _measure_all(path, arguments)
    raise typer.Exit(int(code))


def calibrate(
    suite: options.SuiteArgument,
    times: Annotated[
        int | None, typer.Option(help="Pairs of blocks.", show_default="the suite's blocks, at least 10")
    ] = None,
    only: Annotated[Part | None, typer.Option(help="Calibrate this part of the suite alone.")] = None,
    baseline: options.BaselineOption = None,
    store: options.StoreOption = options.STORE,
    work_dir: options.WorkDirOption = options.WORK_DIR,
    cluster: options.ClusterOption = None,
    allow_actions: options.AllowActionsOption = False,
    allow_code: options.AllowCodeOption = False,
    wait: options.WaitOption = False,
    label: options.LabelOption = None,
    output: options.ResultFormatOption = ResultFormat.TEXT,
) -> None:
    """Measure the noise of a suite's baseline

    The noise profile tells `plan` which regressions a run can detect.

    Example: benchgate calibrate suite.yaml --times 20
    """
    from benchgate.pipeline.suite_file import load_suite

    file = load_suite(find_suite(suite), baseline)
    from benchgate.pipeline.calibrate import calibrate as measure_noise  # slow to import, and a wrong suite needs none
    from benchgate.report.sections.noise import noise_lines

    run_options = RunArguments(store, work_dir, cluster, allow_actions, allow_code, label, wait=wait).options()
    with file.located_errors(), make_progress(f"{file.suite.baseline} vs itself") as progress:
        found = measure_noise(file.suite, file.folder, run_options, progress, times=times, only=only)
    if found.profile is None:
        fault = found.evidence.target_faults[0] if found.evidence.target_faults else None
        why = f": {fault.reason}" if fault is not None else ""
        log(f"benchgate: no noise profile, because the measurement is incomplete{why}")
        raise typer.Exit(int(ExitCode.INVALID))
    if output is ResultFormat.JSON:
        say_json(found.profile.to_json(), sort_keys=True)
        return
    say("".join(f"{line}\n" for line in noise_lines(found.profile, found.profile.measured_at)))


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the store and the reports.")] = Path("benchgate-demo"),
    candidate: Annotated[list[str] | None, typer.Option(help="Judge only these of q8_0, q2_k, padded.")] = None,
) -> None:
    """Try benchgate on three small models

    One quantised candidate passes, one has broken weights, one answers too late.

    Example: benchgate demo --candidate q2_k
    """
    from benchgate.pipeline.suite_file import read_suite

    chosen = candidate or list(DEMO_EXPECTED)
    unknown = [name for name in chosen if name not in DEMO_EXPECTED]
    if unknown:
        raise UsageError(f"the demo has no candidate {unknown[0]!r}; it has {', '.join(DEMO_EXPECTED)}")
    file = read_suite(find_suite("demo"))
    arguments = RunArguments(str(out / "benchgate.db"), out / "work")
    rows, surprises, lost = [], 0, False
    for name in chosen:
        decision = _measure(file.with_arms(None, name).priced_today(), replace(arguments, candidate=name))
        report = out / f"report-{name}.html"
        code = finish(decision, OutputOptions(report=report))
        outcome = decision.verdict.outcome
        surprises += outcome not in DEMO_EXPECTED[name]
        lost |= code is ExitCode.PUBLISH_FAILED
        rows.append(f"{name:8} {outcome.value:12} exit {int(code):<3} {report}")
    say("\n" + "\n".join(rows) + "\n")
    if surprises:
        expected = ", ".join(f"{name} {' or '.join(DEMO_EXPECTED[name])}" for name in chosen)
        log(
            f"benchgate: these are not the expected verdicts ({expected}). Other work on this machine slows the load "
            "generator and the engines: stop it and run the demo again, or see the reports"
        )
    if surprises or lost:
        raise typer.Exit(int(ExitCode.PUBLISH_FAILED if lost else ExitCode.INVALID))


@dataclass(frozen=True, slots=True)
class RunArguments:
    """Arguments of the command line that every run of a suite shares."""

    store: str
    work_dir: Path
    cluster: str | None = None
    allow_actions: bool = False
    allow_code: bool = False
    label: str | None = None
    baseline: str | None = None
    candidate: str | None = None
    only: Part | None = None
    quick: bool = False
    waivers: Waivers | None = None
    waiver_file: Path | None = None
    wait: bool = False
    serve_metrics: str | None = None
    output: OutputOptions = field(default_factory=OutputOptions)
    before_measuring: Callable[[], None] = lambda: None

    def load(self, path: Path) -> SuiteFile:
        """Read the suite, and return it as these arguments change it."""
        from benchgate.pipeline.suite_file import load_suite
        from benchgate.suite.rules.suite import only_part, quick_look

        file, only = load_suite(path, self.baseline, self.candidate), self.only
        if self.quick:
            return file.changed(quick_look)
        return file if only is None else file.changed(lambda suite: only_part(suite, only.value))

    def require_ready(self, file: SuiteFile) -> None:
        """Raise UsageError or SuiteError for what cannot be measured, without importing what measures."""
        from benchgate.pipeline.preflight import require_ready

        with file.located_errors():
            require_ready(
                file.suite,
                file.folder,
                cluster=self.cluster,
                allow_actions=self.allow_actions,
                allow_code=self.allow_code,
            )

    def options(self) -> RunOptions:
        """Return the pipeline's options of one run."""
        from benchgate.model.run import QUICK_LOOK
        from benchgate.pipeline.run import RunOptions

        part = None if self.only is None else self.only.value
        return RunOptions(
            store=self.store,
            work_dir=self.work_dir.resolve(),
            label=self.label,
            cluster=self.cluster,
            allow_actions=self.allow_actions,
            allow_code=self.allow_code,
            waivers=self.waivers,
            only=QUICK_LOOK if self.quick else part,
            wait=self.wait,
            before_measuring=self.before_measuring,
        )

    def command(self, path: Path) -> str:
        """Return the command that measures such a run, judges it alike and writes the same files."""
        output = self.output
        values = (
            ("--baseline", self.baseline),
            ("--candidate", self.candidate),
            ("--only", self.only),
            ("--work-dir", None if self.work_dir == options.WORK_DIR else str(self.work_dir)),
            ("--cluster", self.cluster),
            ("--waivers", None if self.waiver_file is None else str(self.waiver_file)),
            ("--report", None if output.report is None else str(output.report)),
            ("--write", None if output.statement is None else f"{STATEMENT_FORMAT}={output.statement}"),
            *(("--write", f"{form}={file}") for form, file in output.files),
            ("--report-url", output.report_url),
            ("--format", None if output.format is Format.TEXT else output.format),
        )
        flags = (
            ("--quick", self.quick),
            ("--allow-actions", self.allow_actions),
            ("--allow-code", self.allow_code),
            ("--strict", output.strict),
        )
        return run_command(path, store=self.store, options=values, flags=flags)


@contextmanager
def _progress(suite: Suite, arguments: RunArguments) -> Iterator[Progress]:
    """Show the progress of a run during the block, to Prometheus too if the arguments say so."""
    with make_progress(f"{suite.baseline} vs {suite.candidate}") as progress:
        if arguments.serve_metrics is None:
            yield progress
            return
        from benchgate.cli.progress_metrics import serve_metrics

        with serve_metrics(progress, arguments.serve_metrics) as url:
            progress.note(f"metrics for Prometheus at {url}")
            yield progress


def _measure(file: SuiteFile, arguments: RunArguments) -> Decision:
    from benchgate.pipeline.run import run_suite

    command, suite = arguments.command(file.path), file.suite
    try:
        with file.located_errors(), _progress(suite, arguments) as progress:
            decision = run_suite(suite, file.folder, arguments.options(), progress)
    except RunInterrupted as interrupted:  # told once nothing is renewed on the terminal any more
        log("benchgate: the run was interrupted; resume it with:", f"  {resume_command(command, interrupted.run_id)}")
        raise
    if (fault := decision.store_fault) is None:
        return decision
    return replace(decision, store_fault=StoreError(spelled(fault, begun_by=command)))


def _measure_all(path: Path, arguments: RunArguments) -> ExitCode:
    """Measure and judge the suite's candidate, or each of several."""
    file, output = arguments.load(path), arguments.output
    candidates = file.suite.candidates
    arguments = replace(arguments, waivers=waivers_for_run(arguments.waiver_file, file.suite))
    if candidates and output.format in (Format.JUNIT, Format.GITLAB):
        raise UsageError(
            f"--format {output.format} is of one candidate, and {path} has {len(candidates)}: use --write, "
            "or --candidate"
        )
    labels = {name: arguments.label and f"{arguments.label}-{name}" for name in candidates}
    for label in labels.values() or [arguments.label]:
        require_new_run(arguments.store, label)
    options.log_new_store(arguments.store)
    each = {name: file.of_candidate(name) for name in candidates}
    for one in each.values() or [file]:  # what cannot be measured is refused before anything is
        arguments.require_ready(one)
    if not candidates:
        with output.cleared_on_failure() as clear:
            decision = _measure(file, replace(arguments, before_measuring=clear))
        return finish(decision, output)

    def measure(name: str) -> Decision:
        # Another run may have taken the baseline's server between two candidates. An earlier candidate may have taken
        # the night, and prices hold for one day.
        wait = arguments.wait or name != candidates[0]
        own = replace(arguments, candidate=name, label=labels[name], wait=wait, output=output.of_candidate(name))
        return _measure(each[name].priced_today(), own)

    return conclude_each(candidates, measure, output)


def _resume(
    path: Path,
    arguments: RunArguments,
    run: str | None,
    *,
    ignore_missing_spool: bool,
) -> ExitCode:
    """Resume an interrupted run: the newest one unless `run` names it."""
    if arguments.label is not None:
        raise UsageError("a resumed run keeps its label, or none; leave --label out")
    if arguments.only is not None or arguments.quick:
        raise UsageError(
            "a run of one part, or a quick one, cannot be resumed; run it again, or leave --only and --quick out"
        )
    require_stored(arguments.store, *([run] if run is not None else []))
    from benchgate.pipeline.suite_file import read_suite  # slow to import, and not needed to refuse a run

    file = read_suite(path)  # a resumed run has the prices of the day on which it began
    several = file.suite.candidates if arguments.candidate is None else ()
    if several:
        raise UsageError(
            f"--resume continues one run, and this suite has {len(several)} candidates: name its candidate with "
            f"--candidate, one of {', '.join(several)}"
        )
    waivers, output = waivers_for_run(arguments.waiver_file, file.suite), arguments.output
    with output.cleared_on_failure() as clear:
        file = file.with_arms(arguments.baseline, arguments.candidate)
        from benchgate.pipeline.resume import resume_suite  # slow to import, and not needed to refuse an argument

        suite, run_options = file.suite, replace(arguments, waivers=waivers, before_measuring=clear).options()
        with file.located_errors(), _progress(suite, arguments) as progress:
            decision = resume_suite(suite, file.folder, run_options, progress, run, without_spool=ignore_missing_spool)
    return finish(decision, output)


def _refuse_beside_samples(arguments: RunArguments, resuming: Mapping[str, object]) -> None:
    given = {
        "--baseline": arguments.baseline,
        "--candidate": arguments.candidate,
        "--only": arguments.only,
        "--quick": arguments.quick,
        "--cluster": arguments.cluster,
        "--allow-actions": arguments.allow_actions,
        "--allow-code": arguments.allow_code,
        "--wait": arguments.wait,
        "--serve-metrics": arguments.serve_metrics,
        **resuming,
    }
    for option, value in given.items():
        if value:
            raise UsageError(f"{option} is of a run that sends requests, and --samples sends none; leave it out")


def _judge_samples(path: Path, samples: tuple[str, str], arguments: RunArguments) -> ExitCode:
    from benchgate.model.deployment import Arm

    folders = dict(text.partition("=")[::2] for text in samples)
    if sorted(folders) != sorted(Arm) or not all(folders.values()):
        raise UsageError(
            f"--samples {' '.join(samples)}: expected a folder of each arm, like baseline=evals/f16 candidate=evals/q8"
        )
    from benchgate.pipeline.import_evals import import_suite
    from benchgate.pipeline.suite_file import load_suite

    file = load_suite(path)
    if file.suite.candidates:
        raise UsageError(f"{path} has several candidates, and --samples are of one; name it as its `candidate`")
    run_options = replace(arguments, waivers=waivers_for_run(arguments.waiver_file, file.suite)).options()
    with arguments.output.cleared_on_failure():
        decision = import_suite(file, {arm: Path(folders[arm]) for arm in Arm}, run_options)
    return finish(decision, arguments.output)
