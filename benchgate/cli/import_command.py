"""`benchgate import`: evals that lm-eval made elsewhere, judged here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchgate.cli import options
from benchgate.cli.conclude import conclude
from benchgate.cli.options import Format
from benchgate.cli.outputs import asked_outputs, clear_old_results
from benchgate.cli.places import find_suite
from benchgate.cli.statements import statement_place
from benchgate.cli.waiver_files import waivers_for_run
from benchgate.errors import UsageError

_FROM = "Folder that `lm_eval --output_path DIR --log_samples` made, or one samples file, of"


def import_samples(
    suite: Annotated[str, typer.Argument(help="Suite file with `quality` and checks of it.")],
    baseline: Annotated[Path, typer.Option("--baseline", help=f"{_FROM} the baseline.")],
    candidate: Annotated[Path, typer.Option("--candidate", help=f"{_FROM} the candidate.")],
    store: options.StoreOption = options.STORE,
    work_dir: Annotated[Path, typer.Option("--work-dir", help="Folder for the statement of a run.")] = options.WORK_DIR,
    waivers: options.WaiversOption = None,
    report: options.ReportOption = None,
    statement: options.StatementOption = None,
    write: options.WriteOption = None,
    report_url: options.ReportUrlOption = None,
    label: options.LabelOption = None,
    strict: options.StrictOption = False,
    output: options.FormatOption = Format.TEXT,
) -> None:
    """Judge evals that lm-eval made elsewhere, as a run of their own; exits with the verdict's code."""
    from benchgate.cli.suite_files import load_suite
    from benchgate.model.deployment import Arm
    from benchgate.pipeline.import_evals import import_suite
    from benchgate.pipeline.run import RunOptions
    from benchgate.suite.yaml import read_text
    from benchgate.system import read_text_file

    path = find_suite(suite)
    declared = load_suite(path)
    place = statement_place(statement, report, work_dir=work_dir, suite=path)
    outputs = asked_outputs(write, report_url, report, path)
    if declared.candidates:
        raise UsageError(f"{path} has several candidates, and an import is of one; name it as its `candidate`")
    document = read_text(read_text_file(path), str(path))
    sides = {Arm.BASELINE: baseline, Arm.CANDIDATE: candidate}
    run_options = RunOptions(store, Path(), label, waivers=waivers_for_run(waivers, declared))
    with clear_old_results(report, place, outputs):
        decision = import_suite(declared, document, sides, run_options)
    conclude(decision, output, strict=strict, report=report, publish=True, statement=place, outputs=outputs)
