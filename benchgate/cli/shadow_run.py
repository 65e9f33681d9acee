"""`benchgate shadow run`: the shadow comparison of a suite alone, on the same road as a whole run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from benchgate.cli import options
from benchgate.cli.conclude import conclude
from benchgate.cli.options import Format
from benchgate.cli.outputs import clear_old_results
from benchgate.cli.places import find_suite, refuse_unwritable
from benchgate.cli.progress import make_progress
from benchgate.cli.several import conclude_each
from benchgate.cli.statements import statement_place
from benchgate.cli.suite_files import load_suite, placed_in

if TYPE_CHECKING:
    from benchgate.pipeline.judge import Decision


def run(
    suite: Annotated[str, typer.Argument(help="Suite file, or the name of a shipped suite.")],
    baseline: options.BaselineOption = None,
    candidate: options.CandidateOption = None,
    store: options.StoreOption = options.STORE,
    work_dir: options.WorkDirOption = options.WORK_DIR,
    report: options.ReportOption = None,
    statement: options.StatementOption = None,
    label: options.LabelOption = None,
    strict: options.StrictOption = False,
    output: options.FormatOption = Format.TEXT,
) -> None:
    """Ask both deployments the recorded prompts of a suite, and judge by its shadow checks alone."""
    from benchgate.pipeline.run import RunOptions, run_suite
    from benchgate.suite.rules.suite import only_shadow, with_arms

    path = find_suite(suite)
    refuse_unwritable(report)
    narrowed = only_shadow(load_suite(path, baseline, candidate))
    place = statement_place(statement, report, work_dir=work_dir, suite=path)

    def measure(
        name: str | None, own_label: str | None, before_measuring: Callable[[], None] = lambda: None
    ) -> Decision:
        armed = with_arms(narrowed, baseline, name)
        run_options = RunOptions(store, work_dir.resolve(), own_label, part=True, before_measuring=before_measuring)
        with placed_in(path), make_progress(f"{armed.baseline} vs {armed.candidate}") as progress:
            return run_suite(armed, path.parent, run_options, progress)

    if candidate is not None or not narrowed.candidates:
        with clear_old_results(report, place) as clear:
            decision = measure(candidate, label, clear)
        conclude(decision, output, strict=strict, report=report, publish=True, statement=place)
        return
    code = conclude_each(
        narrowed.candidates,
        lambda name: measure(name, None if label is None else f"{label}-{name}"),
        output,
        strict=strict,
        report=report,
        publish=True,
        statement=place,
    )
    raise typer.Exit(int(code))
