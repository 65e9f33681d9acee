"""Commands over what is stored: gate and report. No server is asked anything."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchgate.cli import options
from benchgate.cli.conclude import conclude
from benchgate.cli.options import Format
from benchgate.cli.outputs import asked_outputs, clear_old_results, require_link, suite_of, told_of
from benchgate.cli.places import find_suite
from benchgate.cli.saying import log, say
from benchgate.cli.statements import statement_place
from benchgate.cli.stored_numbers import end_with_numbers
from benchgate.cli.waiver_files import waivers_for_stored
from benchgate.errors import ExitCode, PublishError
from benchgate.report.formats import Output, rendered

RunArgument = Annotated[
    str, typer.Argument(help="Stored run: id, unique prefix, label, @latest, @previous or @promoted.")
]


def gate(
    run: RunArgument = "@latest",
    policy: Annotated[
        str | None, typer.Option("--policy", help="Judge by this suite's gate section instead of the stored one.")
    ] = None,
    against: Annotated[
        str | None, typer.Option("--against", help="Stored run whose candidate it is held against, as in `compare`.")
    ] = None,
    waivers: options.WaiversOption = None,
    as_of: options.AsOfOption = None,
    explain: options.ExplainOption = None,
    store: options.StoreOption = options.STORE,
    strict: options.StrictOption = False,
    report: options.ReportOption = None,
    statement: options.StatementOption = None,
    write: options.WriteOption = None,
    report_url: options.ReportUrlOption = None,
    output: options.FormatOption = Format.TEXT,
) -> None:
    """Judge a stored run again; exits with the verdict's code."""
    from benchgate.cli.suite_files import read_suite
    from benchgate.pipeline import judge as deciding
    from benchgate.store.repository import Store

    policy_file = find_suite(policy) if policy is not None else None
    suite = read_suite(policy_file) if policy_file is not None else None
    place = statement_place(statement, report)
    outputs = asked_outputs(write, report_url, report, policy_file)
    with clear_old_results(report, place, outputs), Store.open(store, create=False) as opened:
        run_id = opened.resolve(run)
        reference = opened.resolve_beside(against, run_id) if against is not None else None
        if reference is not None:
            of_decisions: dict[str, object] = {"--report": report, "--statement": statement, "--write": write}
            of_decisions |= {"--policy": policy, "--explain": explain, "--waivers": waivers, "--as-of": as_of}
            end_with_numbers(opened, run_id, reference, output, of_decisions)
        tolerated = waivers_for_stored(waivers, as_of, opened.run(run_id))
        decision = deciding.decide_stored(opened, run_id, reference, policy=suite, waivers=tolerated)
    conclude(decision, output, strict=strict, report=report, explain=explain, statement=place, outputs=outputs)


def report(
    run: RunArgument = "@latest",
    against: Annotated[str | None, typer.Option("--against", help="Stored run to compare with.")] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Where to write it; report.html unless said.", show_default=False),
    ] = None,
    form: Annotated[Output, typer.Option("--format", help="In which form (docs/outputs.md).")] = Output.HTML,
    report_url: options.ReportUrlOption = None,
    suite: Annotated[
        Path | None, typer.Option("--suite", help="The suite's file, for forms that point at its lines.")
    ] = None,
    waivers: options.WaiversOption = None,
    as_of: options.AsOfOption = None,
    strict: options.StrictOption = False,
    store: options.StoreOption = options.STORE,
) -> None:
    """Write the HTML report of a stored run or comparison, or its verdict in another form."""
    from benchgate.pipeline import judge as deciding
    from benchgate.store.repository import Store

    require_link([form], report_url, None)
    path = out or Path(form.file_name)
    with Store.open(store, create=False) as opened:
        run_id = opened.resolve(run)
        reference = opened.resolve_beside(against, run_id) if against is not None else None
        tolerated = waivers_for_stored(waivers, as_of, opened.run(run_id))
        decision = deciding.decide_stored(opened, run_id, reference, waivers=tolerated, keep=False)
    decision = decision.asked(strict=strict)
    pointed_at = None if suite is None else suite_of(suite, decision)
    try:
        if form is Output.HTML:
            deciding.write_report(decision, path)
        else:
            told = told_of(decision, decision.exit_code, report_url=report_url, report=None, suite=pointed_at)
            deciding.write_whole(path, rendered(form, told, decision.report).encode(), f"the verdict as {form}")
    except PublishError as error:
        log(f"benchgate: {error}")
        raise typer.Exit(int(ExitCode.PUBLISH_FAILED)) from error
    say(f"{path}\n")
