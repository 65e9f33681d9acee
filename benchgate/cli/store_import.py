"""`benchgate store import` of files that other tools wrote."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import typer

from benchgate.adopting import Told, adopt
from benchgate.errors import UsageError
from benchgate.imports.formats import kind_of, require_known
from benchgate.report.untrusted import terminal_line


def of_tools(files: Sequence[Path], said: str | None) -> dict[Path, str]:
    """The files that are no bundles, each with its format: as it is said, or as the file's own marks tell."""
    if said is None:
        kinds = {file: kind_of(file) for file in files if file.is_file()}
        return {file: kind for file, kind in kinds.items() if kind is not None}
    require_known(said)
    if missing := [file for file in files if not file.is_file()]:
        raise UsageError(f"there is no file {missing[0]}; with --from name the files themselves")
    return dict.fromkeys(files, said)


def import_of_tools(store: str, files: Mapping[Path, str], told: Told) -> None:
    """Takes each file in and prints its run, what was taken and how much was not, with the reasons on stderr.

    Raises UsageError for the first file that is wrong; those before it are stored.
    """
    for file, kind in files.items():
        adopted = adopt(store, file, told, kind)
        if adopted.known:
            typer.echo(f"{adopted.run_id} known")
            continue
        reading = adopted.reading
        taken = f"{len(reading.rows)} numbers of {reading.tool}, {len(reading.unmapped)} fields not taken"
        typer.echo(terminal_line(f"{adopted.run_id} new: {taken}"))
        for field, why in reading.unmapped.items():
            sys.stderr.write(terminal_line(f"  {field}: {why}") + "\n")
