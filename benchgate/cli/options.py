"""Options that several commands share, and the files and folders that they name."""

from __future__ import annotations

import difflib
import os
import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from benchgate.errors import UsageError

STORE = ".benchgate/benchgate.db"
WORK_DIR = Path(".benchgate")
_PACKAGED = Path(__file__).parent.parent / "_suites"
_CHECKOUT = Path(__file__).parent.parent.parent / "suites"


class Format(StrEnum):
    """Formats of a verdict on standard output."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"
    JUNIT = "junit"
    GITHUB = "github"  # the text, and annotations of GitHub Actions
    GITLAB = "gitlab"  # GitLab's metrics report


class CareFormat(StrEnum):
    """Formats of everything but verdicts: for people, or for machines."""

    TEXT = "text"
    JSON = "json"


class Part(StrEnum):
    """A part of a suite that can be measured alone."""

    LOAD = "load"
    QUALITY = "quality"
    SHADOW = "shadow"


SuiteArgument = Annotated[str, typer.Argument(metavar="SUITE", help="Suite file, or name of a shipped suite.")]
RunArgument = Annotated[
    str,
    typer.Argument(metavar="RUN", help="Stored run: id, unique prefix, label, @latest, @previous or @promoted."),
]
StoreOption = Annotated[
    str,
    typer.Option(
        "--store",
        metavar="URL",
        envvar="BENCHGATE_STORE",
        help="SQLite file or database URL.",
        show_default="benchgate.db in .benchgate",
    ),
]
WorkDirOption = Annotated[
    Path, typer.Option("--work-dir", metavar="DIR", help="Folder for logs, statements and made weights.")
]
CareFormatOption = Annotated[CareFormat, typer.Option("--format", help="Format of standard output.")]
StrictOption = Annotated[bool, typer.Option("--strict", help="Treat WARN like BLOCK (exit 10).")]
LabelOption = Annotated[str | None, typer.Option("--label", metavar="NAME", help="Name to find this run by later.")]
BaselineOption = Annotated[
    str | None, typer.Option("--baseline", metavar="NAME", help="Deployment of the suite to use as baseline.")
]
CandidateOption = Annotated[
    str | None, typer.Option("--candidate", metavar="NAME", help="Deployment of the suite to judge.")
]
AllowActionsOption = Annotated[bool, typer.Option("--allow-actions", help="Run the suite's own commands.")]
AllowCodeOption = Annotated[
    bool, typer.Option("--allow-code", help="Let evals execute code (the suite's `allow_unsafe_code`).")
]
ClusterOption = Annotated[
    str | None,
    typer.Option("--cluster", metavar="URL", help="dask scheduler whose workers send the load: tcp://scheduler:8786."),
]
WaiversOption = Annotated[
    Path | None, typer.Option("--waivers", metavar="FILE", help="File of reviewed waivers (docs/guides/release.md).")
]
AsOfOption = Annotated[
    str | None,
    typer.Option("--as-of", metavar="DAY", help="Evaluate waivers as of this UTC day.", show_default="today"),
]
ExplainOption = Annotated[
    str | None,
    typer.Option("--explain", metavar="CHECK", help="Show how this check was decided, step by step."),
]


def shipped_suites_dir() -> Path:
    """Return the folder of shipped suites: inside the wheel, or beside the package in a checkout."""
    return _PACKAGED if _PACKAGED.is_dir() else _CHECKOUT


def refuse_unwritable(file: Path | None) -> None:
    """Raise UsageError for a result's file that cannot be written. Makes its folder, and leaves the file alone.

    Called before anything is measured, so that a mistyped folder does not cost hours of load.
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


def suites_called(name: str) -> list[Path]:
    """Return the suites of a name in this folder and in `suites` below it, else the shipped one."""
    first = re.compile(rf"""^suite:[ ]*(["']?){re.escape(name)}\1[ ]*(#.*)?$""", re.MULTILINE)
    near = [path for path in sorted([*Path().glob("*.yaml"), *Path("suites").glob("*.yaml")]) if path.is_file()]
    found = [path for path in near if first.search(path.read_text(encoding="utf-8", errors="replace"))]
    shipped = shipped_suites_dir() / f"{name}.yaml"
    return found or ([Path(name)] if shipped.is_file() else [])


def find_suite(reference: str) -> Path:
    """Return a suite's file by its path or shipped name. Raises UsageError with the nearest name."""
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
