"""The command line: parse, call the pipeline, print, exit with the code of what happened.

Results go to stdout, progress and problems to stderr. Everything heavy is imported inside the commands, so that
`--help` answers at once.
"""

from __future__ import annotations

import os
import sys

import typer

from benchgate import __version__
from benchgate.cli import (
    action,
    calibrate_command,
    capacity_command,
    doctor_command,
    frontier_command,
    import_command,
    init_command,
    measure_commands,
    plan_command,
    promote_command,
    publish_command,
    result_commands,
    schema_command,
    shadow_commands,
    shadow_run,
    sim_command,
    site_command,
    store_check,
    store_commands,
    store_gc,
    store_import,
    store_recover,
    tool_commands,
    verdict_server_command,
    verify_command,
    waive_command,
)
from benchgate.cli.arguments import Commands
from benchgate.cli.interruption import interrupted_code, unwind_when_told
from benchgate.cli.saying import log_text, say
from benchgate.errors import BenchgateError, ExitCode
from benchgate.escaped_streams import escape_streams

app = typer.Typer(
    name="benchgate",
    cls=Commands,
    help="Measure a baseline and a candidate deployment of an LLM, and decide whether the candidate may be promoted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich would double the time --help takes
    epilog="Exit codes: 0 PASS or WARN, 10 BLOCK, 11 INCONCLUSIVE, 12 INVALID, 13 verdict reached but not kept or "
    "published, 2 usage or suite error, 1 a defect of benchgate's own. Everything but 0 blocks a promotion.",
)
app.command()(measure_commands.demo)
app.command()(init_command.init)
app.command()(measure_commands.run)
app.command()(measure_commands.compare)
app.command("import")(import_command.import_samples)
app.command()(result_commands.gate)
app.command()(result_commands.report)
app.command()(measure_commands.validate)
app.command()(plan_command.plan)
app.command()(calibrate_command.calibrate)
app.command()(publish_command.publish)
app.command()(promote_command.promote)
app.command()(verify_command.verify)
app.command("verdict-server")(verdict_server_command.verdict_server)
app.command()(waive_command.waive)
app.command()(doctor_command.doctor)
app.command()(result_commands.trend)
app.command()(site_command.site)
app.command()(capacity_command.capacity)
app.command()(frontier_command.frontier)
app.command()(schema_command.schema)
app.command()(tool_commands.load)
app.command()(sim_command.sim)
store_app = typer.Typer(help="Care for the store.", no_args_is_help=True)
store_app.command()(store_commands.upgrade)
store_app.command()(store_commands.export)
store_app.command("import")(store_import.import_files)
store_app.command()(store_commands.copy)
store_app.command()(store_recover.recover)
store_app.command()(store_check.check)
store_app.command()(store_check.info)
store_app.command()(store_gc.gc)
app.add_typer(store_app, name="store")
shadow_commands.shadow_app.command()(shadow_run.run)
app.add_typer(shadow_commands.shadow_app, name="shadow")


@app.command("action", hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def _action(context: typer.Context) -> None:
    """Run a step of action.yml or of the reusable workflows (docs/github-actions.md)."""
    raise typer.Exit(action.main(context.args, os.environ))


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version and leave.", is_eager=True)) -> None:
    if version:
        say(f"benchgate {__version__}\n")
        raise typer.Exit


def main() -> None:
    """Entry point: the one place that turns exceptions into exit codes. Ctrl-C is 130 by typer's own hand."""
    unwind_when_told()
    escape_streams()
    try:
        app()
    except BenchgateError as error:
        if not isinstance(error.__cause__, BrokenPipeError):  # whoever read standard output has seen enough
            log_text(f"benchgate: {error}")
        sys.exit(error.exit_code)
    except SystemExit as left:
        sys.exit(interrupted_code() if left.code == ExitCode.INTERRUPTED else left.code)
