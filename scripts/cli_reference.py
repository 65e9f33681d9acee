"""The reference page of the command line, made from the commands themselves."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from enum import Enum
from typing import Any

import typer

from benchgate.cli.app import app


def commands() -> str:
    """Return every command that is not hidden, with its arguments and options, in Markdown."""
    root = typer.main.get_command(app)
    return "\n".join(_commands(root, "benchgate")).rstrip()


def _commands(group: Any, name: str) -> Iterator[str]:
    for word, command in group.commands.items():
        if command.hidden:
            continue
        path = f"{name} {word}"
        if hasattr(command, "commands"):
            yield f"## {path}\n\n{_text(command.help)}\n"
            yield from _commands(command, path)
        else:
            yield from _command(command, path)


def _command(command: Any, path: str) -> Iterator[str]:
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    options = [param for param in command.params if param.param_type_name == "option" and not param.hidden]
    words = [path, *["[OPTIONS]"] * bool(options), *map(_placeholder, arguments)]
    level = "#" * (2 if path.count(" ") == 1 else 3)
    yield f"{level} {path}\n\n{_text(command.help)}\n\n```\n{' '.join(words)}\n```\n"
    if command.epilog:
        yield f"{_text(command.epilog)}\n"
    rows = [_row(param) for param in [*arguments, *options] if "--help" not in param.opts]
    if rows:
        yield "| argument or option | default | meaning |\n|---|---|---|\n" + "\n".join(rows) + "\n"


def _placeholder(argument: Any) -> str:
    name = argument.name.upper() + ("..." if argument.nargs != 1 else "")
    return name if argument.required else f"[{name}]"


def _row(param: Any) -> str:
    value = f" {param.metavar}" if param.metavar else ""
    names = ", ".join(f"`{name}{value}`" for name in [*param.opts, *param.secondary_opts])
    if param.param_type_name == "argument":
        names = f"`{param.name.upper()}`"
    default = "required" if param.required else _default(param)
    if param.multiple and not param.required:
        default = "repeatable"
    return f"| {names} | {default} | {_cell(param.help or '')}{_choices(param)} |"


def _choices(param: Any) -> str:
    kind = param.type_descriptor.annotation
    if not (isinstance(kind, type) and issubclass(kind, Enum)):
        return ""
    return f" One of {', '.join(f'`{choice.value}`' for choice in kind)}."


def _default(param: Any) -> str:
    value = param.default
    if value is None or value is False or value in ((), []) or callable(value):
        return _cell(param.show_default) if isinstance(param.show_default, str) else ""
    return f"`{getattr(value, 'value', value)}`"


def _text(text: str | None) -> str:
    return inspect.cleandoc(text or "").replace("\b\n", "").replace("\f", "")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
