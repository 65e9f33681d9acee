"""The command line: its commands in groups, their help, and the exit code of every error.

Results go to stdout, progress and problems to stderr. A command's module is imported when the command is called, and
everything heavy inside the command, so that `--help` answers at once.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import sys
from collections.abc import Callable, Iterator, MutableMapping
from enum import StrEnum
from importlib import import_module
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from benchgate import __version__
from benchgate.cli.commands import spelled
from benchgate.cli.interruption import interrupted_code, unwind_on_termination
from benchgate.cli.saying import has_colours, log_text, say, settings
from benchgate.errors import BenchgateError, ExitCode, UsageError
from benchgate.escaped_streams import escape_streams, open_standard_descriptors, raw_stream

COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "Start": {
        "init": ("init:init", "Write a first suite, explained line by line"),
        "demo": ("run:demo", "Try benchgate on three small models"),
        "doctor": ("doctor:doctor", "Check this machine and a suite's servers"),
    },
    "Measure": {
        "plan": ("plan:plan", "Check suites; show what a run would cost"),
        "run": ("run:run", "Measure both deployments, judge the candidate"),
        "calibrate": ("run:calibrate", "Measure the noise of a suite's baseline"),
    },
    "Judge": {
        "gate": ("gate:gate", "Judge a stored run again"),
        "compare": ("gate:compare", "Judge a stored run against another"),
        "report": ("gate:report", "Write the report of a stored run"),
        "waive": ("gate:waive", "Tolerate a failed check until a day"),
    },
    "Release": {
        "publish": ("release:publish", "Post a verdict to GitHub, Slack, a webhook"),
        "promote": ("release:promote", "Record that a candidate is in service"),
        "verify": ("release:verify", "Check a verdict's signed statement"),
        "verdict-server": ("release:verdict_server", "Serve verdicts to Flagger and Argo Rollouts"),
    },
    "History and cost": {
        "runs": ("runs:runs", "List stored runs, newest first"),
        "show": ("runs:show", "Describe a stored run"),
        "trend": ("history:trend", "Plot a metric over past runs"),
        "frontier": ("history:frontier", "Compare candidates by quality and cost"),
        "capacity": ("capacity:capacity", "Size a fleet for a demand"),
        "site": ("history:site", "Write all runs as a static site"),
    },
    "Tools": {
        "load": ("load:load", "Load-test one server"),
        "load merge": ("load:load_merge", "Merge the shards of a load test"),
        "sim": ("sim:sim", "Run a simulated server"),
        "capture": ("capture:capture", "Record a server's answers to send in"),
        "schema": ("init:schema", "Print the JSON Schema of suites"),
        "store": ("store:store_app", "Manage the result store"),
        "shadow": ("shadow:shadow_app", "Draw and check recorded prompts"),
    },
}
"""Module, name and summary of every command, by its section in the help."""

_PANEL = "All commands"
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


class ColorChoice(StrEnum):
    """Choice of coloured output."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


def _set(name: str) -> Callable[..., None]:
    def callback(context: typer.Context, value: Any) -> None:
        # Before the command they count too: after it, only those that are given.
        if context.parent is None or value not in (False, ColorChoice.AUTO):
            setattr(settings, name, value)

    return callback


def _hold(
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet", "-q", help="Print only results and errors.", rich_help_panel=_PANEL, callback=_set("quiet")
        ),
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            "-v",
            help="Log every stage with its time, and why requests failed.",
            rich_help_panel=_PANEL,
            callback=_set("verbose"),
        ),
    ] = False,
    color: Annotated[
        ColorChoice, typer.Option(help="Use of colours.", rich_help_panel=_PANEL, callback=_set("color"))
    ] = ColorChoice.AUTO,
) -> None:
    """Hold the options that every command has; they set `benchgate.cli.saying.settings`."""


@functools.cache
def _output_options() -> list[Any]:
    holder = typer.Typer(add_completion=False)
    holder.command()(_hold)
    found = typer.main.get_command(holder).params
    for one in found:
        one.expose_value = False
    return found


class Command(TyperCommand):
    """A command with the options of all; its help is in panels on a terminal, and plain text elsewhere."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the command's own parameters, and those that every command has."""
        *own, help_option = super().get_params(ctx)
        return [*own, *_output_options(), help_option]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print or write the help."""
        if not _print_panels(self, ctx):
            super().format_help(ctx, formatter)


class Commands(TyperGroup):
    """A group of commands: help in sections, and arguments refused with what was found and what was expected."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print or write the help."""
        if not _print_panels(self, ctx):
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

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command; a name may have two words."""
        if " ".join(args[:2]) in self.commands:
            args = [" ".join(args[:2]), *args[2:]]
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Raises typer.BadParameter, which ends it with 2."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as refused:
            if not refused.message and refused.ctx is not None:  # a missing argument or option
                refused.message = " ".join((refused.ctx.command.help or "").partition("\n\nExample: ")[2].split())
                refused.message = refused.message and f"Example: {refused.message}"
            message = _validation_message(refused.__cause__)
            if message is None:
                raise
            raise typer.BadParameter(message, ctx=refused.ctx, param=refused.param) from refused


class LazyCommands(MutableMapping[str, Any]):
    """The commands of COMMANDS, each imported when it is looked up, and `loaded` ones."""

    def __init__(self, loaded: MutableMapping[str, Any]) -> None:
        self._loaded = dict(loaded)
        self._known = {name: (panel, *row) for panel, rows in COMMANDS.items() for name, row in rows.items()}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            panel, target, summary = self._known[name]
            module, attribute = target.split(":")
            found = getattr(import_module(f"benchgate.cli.{module}"), attribute)
            holder = typer.Typer(rich_markup_mode=None)
            if isinstance(found, typer.Typer):
                for info in found.registered_commands:
                    info.cls = Command
                    info.short_help = (info.callback.__doc__ or "").split("\n", 1)[0].removesuffix(".")
                holder.add_typer(found, name=name, cls=Commands, short_help=summary, rich_help_panel=panel)
            else:
                holder.command(name, cls=Command, short_help=summary, rich_help_panel=panel)(found)
                holder.callback()(lambda: None)  # or the command would be all of it
            self._loaded[name] = typer.main.get_group(holder).commands[name]
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        raise TypeError("commands stay")

    def __iter__(self) -> Iterator[str]:
        return iter({**self._known, **self._loaded})

    def __len__(self) -> int:
        return len({**self._known, **self._loaded})


class RootCommands(Commands):
    """All commands, imported one by one; the help has their summaries without importing any."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = LazyCommands(self.commands)

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters before a command, and those that every command has."""
        *own, help_option = super().get_params(ctx)
        return [*own, *_output_options(), help_option]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options before a command. Raises UsageError where the completion cannot be installed."""
        try:
            return super().parse_args(ctx, args)
        except OSError as error:
            reason = f"{error.filename}: {error.strerror}"
            remedy = "write what `benchgate --show-completion` prints to a file that your shell reads"
            raise UsageError(f"the completion cannot be installed ({reason}); {remedy}") from error

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print or write the help."""
        whole = self.commands
        self.commands = {
            name: TyperCommand(name, short_help=summary, rich_help_panel=panel)
            for panel, rows in COMMANDS.items()
            for name, (_, summary) in rows.items()
        }
        try:
            super().format_help(ctx, formatter)
        finally:
            self.commands = whole


def _print_panels(command: Any, ctx: Any) -> bool:
    """Print the help in panels if standard output is a terminal; return True if it was."""
    raw = raw_stream("stdout")
    if raw is None or not raw.isatty():
        return False
    from rich.markup import escape
    from typer import rich_utils

    rich_utils.STYLE_TYPES, rich_utils.STYLE_USAGE = "magenta", "bold"  # yellow cannot be read on white
    rich_utils.STYLE_OPTION_ENVVAR = rich_utils.STYLE_OPTION_DEFAULT
    if not has_colours("stdout"):
        rich_utils.COLOR_SYSTEM = None
    for param in command.get_params(ctx):  # a narrow column of types leaves room for the words
        kind = param.display_type_rich(ctx) or ""
        if getattr(param, "is_flag", False):
            param.metavar = ""
        elif param.metavar is None and "|" in kind:
            param.metavar = "WORD"
            param.help = f"{param.help} One of {', '.join(kind.strip('<>').split('|'))}."
        elif param.metavar is None and "list[" in kind:
            param.metavar = "TEXT"
        if (text := getattr(param, "help", None)) is not None:
            param.help = escape(text)  # `[default: …]` is no markup
    with contextlib.redirect_stdout(raw):  # unescaped: help texts are our own, and colours are control codes
        rich_utils.rich_format_help(obj=command, ctx=ctx, markup_mode="rich")
    return True


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


app = typer.Typer(
    name="benchgate",
    cls=RootCommands,
    help="Measure a baseline and a candidate deployment of an LLM, and decide whether the candidate may be promoted.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["--help", "-h"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # errors quote the user, so they are plain and escaped; help is in panels all the same
    epilog="Begin: benchgate init --baseline URL --candidate URL --for quantisation\n\n"
    "Exit codes: 0 PASS or WARN, 10 BLOCK, 11 INCONCLUSIVE, 12 INVALID, 13 verdict not stored or not published, "
    "2 usage or suite error, 1 a defect of benchgate. Everything but 0 blocks a promotion.",
)


@app.command("action", hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def _action(context: typer.Context) -> None:
    """Run a step of action.yml or of the reusable workflows (docs/guides/ci.md)."""
    from benchgate.cli import action

    raise typer.Exit(action.main(context.args, os.environ))


@app.callback(invoke_without_command=True)
def _root(
    version: bool = typer.Option(False, "--version", "-V", help="Print the version and exit.", is_eager=True),
) -> None:
    if version:
        say(f"benchgate {__version__}\n")
        raise typer.Exit


def main() -> None:
    """Run the command line. The only place that turns exceptions into exit codes; typer makes 130 of Ctrl-C."""
    open_standard_descriptors()
    gc.set_threshold(250_000)  # a command imports and builds 200,000 objects before there is any garbage
    if "OPENBLAS_NUM_THREADS" not in os.environ:
        # Our matrices are small, and numpy and scipy would each start a thread per core, which spins for 30 ms.
        # `putenv` keeps it out of `os.environ`, which the commands of a suite inherit.
        os.putenv("OPENBLAS_NUM_THREADS", "1")
    unwind_on_termination()
    escape_streams()
    try:
        app(prog_name="benchgate")  # with `python -m benchgate` too: completion is installed for this name
    except BenchgateError as error:
        if not isinstance(error.__cause__, BrokenPipeError):  # the reader of standard output has left
            log_text(f"benchgate: {spelled(error)}")
        sys.exit(error.exit_code)
    except SystemExit as left:
        sys.exit(interrupted_code() if left.code == ExitCode.INTERRUPTED else left.code)
