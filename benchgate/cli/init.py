"""`benchgate init` and `benchgate schema`: first files of a repository, and the JSON Schema of each language."""

from __future__ import annotations

import difflib
import os
import shlex
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from benchgate.cli.options import shipped_suites_dir
from benchgate.cli.saying import inform, log, say, say_escaped, say_json, stdout_screen
from benchgate.errors import UsageError
from benchgate.init.purpose import Purpose
from benchgate.report.screen import fitting_table


def init(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="File to write [default: standard output].")
    ] = None,
    drill: Annotated[str | None, typer.Option(help="Write this drill instead.")] = None,
    list_drills: Annotated[bool, typer.Option("--list", help="List the drills.")] = False,
    baseline: Annotated[str | None, typer.Option(help="Address of the accepted deployment.")] = None,
    candidate: Annotated[str | None, typer.Option(help="Address of the deployment to judge.")] = None,
    model: Annotated[list[str] | None, typer.Option(help="Model name; twice if the two differ.")] = None,
    api_key_env: Annotated[
        list[str] | None, typer.Option(help="Environment variable with the API key; twice for two keys.")
    ] = None,
    purpose: Annotated[
        Purpose | None, typer.Option("--for", help="What the candidate changes, for two endpoints.")
    ] = None,
    folder: Annotated[Path | None, typer.Option("--dir", help="Repository folder to write into.")] = None,
) -> None:
    """Write a first suite

    For two endpoints it also writes what CI needs; without them, a commented template.

    Example: benchgate init --baseline http://old:8000 --candidate URL --for quantisation
    """
    if baseline is not None or candidate is not None:
        if drill is not None or list_drills:
            raise UsageError("a drill has its own deployments; leave out --baseline and --candidate, or the drill")
        _init_from_endpoints(file, (baseline, candidate), model or [], api_key_env or [], folder or Path(), purpose)
        return
    probing: dict[str, object] = {"--model": model, "--api-key-env": api_key_env, "--for": purpose, "--dir": folder}
    for option, value in probing.items():
        if value:
            raise UsageError(f"{option} is for endpoints; add --baseline URL and --candidate URL")
    drills = {path.stem: path for path in sorted((shipped_suites_dir() / "drills").glob("*.yaml"))}
    if list_drills:
        if file is not None or drill is not None:
            given = f"the file {str(file)!r}" if file is not None else "--drill"
            raise UsageError(f"--list only prints the drills; leave out {given}, or leave out --list")
        rows = [(name, path.read_text(encoding="utf-8").partition("\n")[0][2:]) for name, path in drills.items()]
        say_escaped("".join(f"{line}\n" for line in fitting_table(stdout_screen(), ("drill", "what it shows"), rows)))
        return
    template = shipped_suites_dir() / "templates" / "first.yaml"
    if drill is not None:
        if drill not in drills:
            near = difflib.get_close_matches(drill, drills, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(drills)}"
            raise UsageError(f"there is no drill {drill!r}; {hint}")
        template = drills[drill]
    text = template.read_text(encoding="utf-8")
    if file is None:
        say(text)
        return
    if file.exists():
        raise UsageError(f"{file} is there already; name another file")
    from benchgate.init.files import write_files  # its rendering is slow to import

    write_files({file: text})
    inform(f"wrote {file}; `benchgate plan {file}` shows what it would measure")


def _init_from_endpoints(
    file: Path | None,
    urls: tuple[str | None, str | None],
    models: list[str],
    keys: list[str],
    folder: Path,
    purpose: Purpose | None,
) -> None:
    """Write a suite for two endpoints with its evals, a waiver file and a workflow, once both have responded."""
    first, second = urls
    if first is None or second is None:
        missing = "--baseline" if first is None else "--candidate"
        raise UsageError(f"a comparison needs two deployments; add {missing} URL")
    suite = file or Path("suite.yaml")
    if suite.is_absolute() or ".." in suite.parts:
        raise UsageError(f"{suite} is not inside the folder that is written into; choose that with --dir")
    from benchgate.init.files import CALLED, new_paths, render_files, write_files  # slow to import
    from benchgate.init.probe import EndpointOption, probe_endpoints
    from benchgate.model.deployment import Arm

    new_paths(folder, suite)  # before any request
    model, key = _baseline_and_candidate("--model", models), _baseline_and_candidate("--api-key-env", keys)
    named = (
        EndpointOption(Arm.BASELINE, first, model[0], key[0]),
        EndpointOption(Arm.CANDIDATE, second, model[1], key[1]),
    )
    files = render_files(folder, suite, *probe_endpoints(named, os.environ), purpose)
    write_files(files)
    say("".join(f"{path}\n" for path in files))
    quoted = shlex.quote(str(folder / suite))
    log(
        f"both responded; for CI, replace {CALLED} in the workflow by the repository and commit that you trust",
        f"next: benchgate doctor {quoted}",
    )


def _baseline_and_candidate(option: str, given: list[str]) -> tuple[str | None, str | None]:
    """Return the values of both deployments, from one for both or one for each."""
    if len(given) > 2:
        raise UsageError(f"{option} is given {len(given)} times, and there are two deployments; give it once or twice")
    return (given[0], given[-1]) if given else (None, None)


class Language(StrEnum):
    """Language of a schema."""

    SUITE = "suite"
    WAIVERS = "waivers"
    PRICES = "prices"
    DEMAND = "demand"


def schema(
    language: Annotated[
        Language, typer.Argument(metavar="LANGUAGE", help="suite, waivers, prices or demand.")
    ] = Language.SUITE,
) -> None:
    """Print the JSON Schema of a file

    Editors complete keys by it and mark mistakes.

    Example: benchgate schema suite > suite.schema.json
    """
    from benchgate.suite.json_schema import json_schema

    say_json(json_schema(language.value), ensure_ascii=False)
