"""Where the command line finds and keeps things: suites by path or name, the store, the working folder."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path

from benchgate.errors import UsageError

DEFAULT_STORE = ".benchgate/benchgate.db"
DEFAULT_WORK_DIR = Path(".benchgate")

_PACKAGED = Path(__file__).parent.parent / "_suites"
_CHECKOUT = Path(__file__).parent.parent.parent / "suites"


def shipped_suites_dir() -> Path:
    """The suites that ship with benchgate: inside the wheel, or beside the package in a checkout."""
    return _PACKAGED if _PACKAGED.is_dir() else _CHECKOUT


def refuse_unwritable(file: Path | None) -> None:
    """Raise UsageError for a result's file that could not be written; its folder is made where there is none.

    Called before anything is measured: hours of load for a mistyped folder help nobody. The file itself is not touched.
    """
    if file is None:
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {file.parent}: {error.strerror}") from error
    if file.is_dir():
        raise UsageError(f"{file} is a folder; name a file in it")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise UsageError(f"{file} cannot be written: permission denied; name a file where you may write")


def refuse_device(file: Path, option: str) -> None:
    """Raise UsageError for a result's file that is a device."""
    if file.absolute().is_relative_to("/dev"):
        raise UsageError(f"{option} {file}: it is a device, which the result would take the place of; name a file")


def remove_old(file: Path, option: str) -> None:
    """Remove what an earlier command left in a result's file: where this one comes to no verdict, nothing says it did.

    Raises UsageError where it cannot be removed.
    """
    try:
        if file.is_file():
            file.unlink()
    except OSError as error:
        raise UsageError(f"{option} {file}: what is there cannot be replaced: {error.strerror}") from error


def suites_called(name: str) -> list[Path]:
    """The suites of a name in this folder and in `suites` below it; else the shipped one, if it is one."""
    first = re.compile(rf"""^suite:[ ]*(["']?){re.escape(name)}\1[ ]*(#.*)?$""", re.MULTILINE)
    near = [path for path in sorted([*Path().glob("*.yaml"), *Path("suites").glob("*.yaml")]) if path.is_file()]
    found = [path for path in near if first.search(path.read_text(encoding="utf-8", errors="replace"))]
    shipped = shipped_suites_dir() / f"{name}.yaml"
    return found or ([Path(name)] if shipped.is_file() else [])


def find_suite(reference: str) -> Path:
    """A suite file: a path, or the name of a shipped suite. UsageError with the nearest name otherwise."""
    path = Path(reference)
    if path.is_file():
        return path
    folder = shipped_suites_dir()
    files = sorted([*folder.glob("*.yaml"), *folder.glob("drills/*.yaml")])
    shipped = {file.relative_to(folder).with_suffix("").as_posix(): file for file in files}
    if reference in shipped:
        return shipped[reference]
    near = difflib.get_close_matches(reference, shipped, n=1)
    hint = f"; did you mean the shipped suite {near[0]!r}?" if near else f"; shipped suites: {', '.join(shipped)}"
    raise UsageError(f"there is no suite file {reference!r}{hint}")
