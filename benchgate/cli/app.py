"""The command line: its commands in groups, their help, and the exit code of every error.

Results go to stdout, progress and problems to stderr. Everything heavy is imported inside the commands, so that
`--help` answers at once.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from benchgate import __version__
from benchgate.cli import capacity_command, doctor, gate, history, init, load, plan, release, run, shadow, sim, store
from benchgate.cli.commands import spelled
from benchgate.cli.interruption import interrupted_code, unwind_on_termination
from benchgate.cli.saying import log_text, say
from benchgate.errors import BenchgateError, ExitCode
from benchgate.escaped_streams import escape_streams, raw_stream

_KINDS = {
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a whole number that is not so large",
    "float_parsing": "a number",
    "bool_parsing": "true or false",
}
_BOUNDS = {
    "greater_than_equal": ("ge", "{} or more"),
    "greater_than": ("gt", "more than {}"),
    "less_than_equal": ("le", "at most {}"),
    "less_than": ("lt", "less than {}"),
}


class Command(TyperCommand):
    """A command whose help is in panels on a terminal, and plain text elsewhere."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print or write the help."""
        with _panels() as on_terminal:
            if on_terminal:
                _print_panels(self, ctx)
            else:
                super().format_help(ctx, formatter)


class Commands(TyperGroup):
    """A group of commands: help in sections, and arguments refused with what was found and what was expected."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print or write the help."""
        with _panels() as on_terminal:
            if on_terminal:
                _print_panels(self, ctx)
            else:
                super().format_help(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands of each section."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            title = getattr(command, "rich_help_panel", None) or "Commands"
            sections.setdefault(title, []).append((name, command.get_short_help_str(formatter.width)))
        width = max(map(len, self.commands))
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), summary) for name, summary in rows])

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Raises typer.BadParameter, which ends it with 2."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as refused:
            message = _validation_message(refused.__cause__)
            if message is None:
                raise
            raise typer.BadParameter(message, ctx=refused.ctx, param=refused.param) from refused


@contextlib.contextmanager
def _panels() -> Iterator[bool]:
    """Yield True on a terminal, with standard output unescaped: help texts are our own, colours are control codes."""
    raw = raw_stream("stdout")
    if raw is None or not raw.isatty():
        yield False
        return
    with contextlib.redirect_stdout(raw):
        yield True


def _print_panels(command: Any, ctx: Any) -> None:
    from typer import rich_utils

    rich_utils.rich_format_help(obj=command, ctx=ctx, markup_mode="rich")


def _validation_message(cause: BaseException | None) -> str | None:
    """Return a validator's error in our words; None where it was none, or where its own words are as good."""
    from pydantic import ValidationError

    if not isinstance(cause, ValidationError):
        return None
    detail = cause.errors(include_url=False)[0]
    kind, found, context = detail["type"], detail["input"], detail.get("ctx", {})
    if kind in _KINDS:
        return f"found {found!r}; expected {_KINDS[kind]}"
    if kind in _BOUNDS:
        bound, words = _BOUNDS[kind]
        return f"found {found!r}; expected {words.format(context[bound])}"
    return str(context["error"]) if kind == "value_error" else None


COMMANDS: dict[str, tuple[Callable[..., None] | tuple[str, typer.Typer], ...]] = {
    "Start": (init.init, run.demo, doctor.doctor),
    "Measure": (plan.plan, run.run, run.calibrate),
    "Judge": (gate.gate, gate.compare, gate.report, gate.waive),
    "Release": (release.publish, release.promote, release.verify, release.verdict_server),
    "History and cost": (history.trend, history.frontier, capacity_command.capacity, history.site),
    "Tools": (load.load, sim.sim, init.schema, ("store", store.store_app), ("shadow", shadow.shadow_app)),
}

app = typer.Typer(
    name="benchgate",
    cls=Commands,
    help="Measure a baseline and a candidate deployment of an LLM, and decide whether the candidate may be promoted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # errors quote the user, so they are plain and escaped; help is in panels all the same
    epilog="Exit codes: 0 PASS or WARN, 10 BLOCK, 11 INCONCLUSIVE, 12 INVALID, 13 verdict not stored or not published, "
    "2 usage or suite error, 1 a defect of benchgate. Everything but 0 blocks a promotion.",
)
for _panel, _commands in COMMANDS.items():
    for _command in _commands:
        if isinstance(_command, tuple):
            for _info in _command[1].registered_commands:
                _info.cls = Command
            app.add_typer(_command[1], name=_command[0], cls=Commands, rich_help_panel=_panel)
        else:
            app.command(cls=Command, rich_help_panel=_panel)(_command)


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version and exit.", is_eager=True)) -> None:
    if version:
        say(f"benchgate {__version__}\n")
        raise typer.Exit


def main() -> None:
    """Run the command line. The only place that turns exceptions into exit codes; typer makes 130 of Ctrl-C."""
    unwind_on_termination()
    escape_streams()
    try:
        app()
    except BenchgateError as error:
        if not isinstance(error.__cause__, BrokenPipeError):  # the reader of standard output has left
            log_text(f"benchgate: {spelled(error)}")
        sys.exit(error.exit_code)
    except SystemExit as left:
        sys.exit(interrupted_code() if left.code == ExitCode.INTERRUPTED else left.code)
