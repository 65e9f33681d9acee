"""A suite to begin with: the smallest one for two addresses, or one of the drills that ship."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path
from typing import Annotated

import typer

from benchgate.cli.places import shipped_suites_dir
from benchgate.cli.saying import say
from benchgate.errors import UsageError

_DRILLS = "drills"
_FIRST = "first"


def init(
    file: Annotated[Path | None, typer.Argument(help="File to write; standard output unless said.")] = None,
    drill: Annotated[str | None, typer.Option("--drill", help="Write this drill instead of a first suite.")] = None,
    list_drills: Annotated[bool, typer.Option("--list", help="Print every drill and what it shows.")] = False,
) -> None:
    """Write a suite with comments to begin with: for two addresses, or a drill."""
    if list_drills:
        if file is not None or drill is not None:
            given = f"the file {str(file)!r}" if file is not None else "--drill"
            raise UsageError(f"--list only prints the drills there are; leave out {given}, or leave out --list")
        say("".join(f"{name:18} {_shows(path)}\n" for name, path in _drills().items()))
        return
    text = (_template() if drill is None else _drill(drill)).read_text(encoding="utf-8")
    if file is None:
        say(text)
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError:
        raise UsageError(f"{file} is there already; name another file") from None
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}") from error
    sys.stderr.write(f"{file} is written; see what it would ask with `benchgate plan {file}`\n")


def _template() -> Path:
    return shipped_suites_dir() / "templates" / f"{_FIRST}.yaml"


def _drills() -> dict[str, Path]:
    return {path.stem: path for path in sorted((shipped_suites_dir() / _DRILLS).glob("*.yaml"))}


def _drill(name: str) -> Path:
    known = _drills()
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
    raise UsageError(f"there is no drill {name!r}; {hint}")


def _shows(path: Path) -> str:
    """What a drill says of itself in its first line."""
    return path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
