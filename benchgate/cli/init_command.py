"""A suite to begin with: for two endpoints that are asked who they are, the smallest one, or a drill that ships."""

from __future__ import annotations

import difflib
import os
import shlex
from pathlib import Path
from typing import Annotated

import typer

from benchgate.cli.places import shipped_suites_dir
from benchgate.cli.saying import log, say
from benchgate.errors import UsageError

_DRILLS = "drills"
_FIRST = "first"


def init(
    file: Annotated[Path | None, typer.Argument(help="File to write; standard output unless said.")] = None,
    drill: Annotated[str | None, typer.Option("--drill", help="Write this drill instead of a first suite.")] = None,
    list_drills: Annotated[bool, typer.Option("--list", help="Print every drill and what it shows.")] = False,
    baseline: Annotated[
        str | None, typer.Option("--baseline", help="Address of the accepted deployment, to be asked what it is.")
    ] = None,
    candidate: Annotated[str | None, typer.Option("--candidate", help="Address of the one to be judged.")] = None,
    model: Annotated[
        list[str] | None, typer.Option("--model", help="Model to ask for; twice where the two have two names.")
    ] = None,
    api_key_env: Annotated[
        list[str] | None, typer.Option("--api-key-env", help="Variable that holds the API key; twice for two keys.")
    ] = None,
    folder: Annotated[Path | None, typer.Option("--dir", help="Folder of the repository to write into.")] = None,
) -> None:
    """Write a suite with comments to begin with: for two endpoints, with all that CI needs, or a drill."""
    if baseline is not None or candidate is not None:
        if drill is not None or list_drills:
            raise UsageError("a drill has its own deployments; leave out --baseline and --candidate, or the drill")
        _begin(file, (baseline, candidate), model or [], api_key_env or [], folder or Path())
        return
    said: tuple[tuple[str, object], ...] = (("--model", model), ("--api-key-env", api_key_env), ("--dir", folder))
    for option, given in said:
        if given:
            raise UsageError(f"{option} is for endpoints that are asked; add --baseline URL and --candidate URL")
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
    log(f"{file} is written; see what it would ask with `benchgate plan {file}`")


def _begin(
    file: Path | None, urls: tuple[str | None, str | None], models: list[str], keys: list[str], folder: Path
) -> None:
    """A suite for two endpoints with its evals, a file of waivers and a workflow, once both have answered."""
    from benchgate.init.files import new_paths, render_files, write_files
    from benchgate.init.probe import EndpointOption, probe_endpoints
    from benchgate.model.deployment import Arm

    first, second = urls
    if first is None or second is None:
        missing = "--baseline" if first is None else "--candidate"
        raise UsageError(f"a comparison needs two deployments; add {missing} URL")
    suite = file or Path("suite.yaml")
    if suite.is_absolute() or ".." in suite.parts:
        raise UsageError(f"{suite} is not inside the folder that is written into; choose that with --dir")
    new_paths(folder, suite)  # before anybody is asked anything
    model, key = _of_both("--model", models), _of_both("--api-key-env", keys)
    named = (
        EndpointOption(Arm.BASELINE, first, model[0], key[0]),
        EndpointOption(Arm.CANDIDATE, second, model[1], key[1]),
    )
    files = render_files(folder, suite, *probe_endpoints(named, os.environ))
    write_files(files)
    say("".join(f"{path}\n" for path in files))
    log(_next_commands(folder / suite))


def _of_both(option: str, given: list[str]) -> tuple[str | None, str | None]:
    """One for both, or one for each: the baseline's first."""
    if len(given) > 2:
        raise UsageError(f"{option} is given {len(given)} times, and there are two deployments; give it once or twice")
    return (given[0], given[-1]) if given else (None, None)


def _next_commands(suite: Path) -> str:
    from benchgate.init.files import CALLED

    said = shlex.quote(str(suite))
    return (
        f"both answered; next: `benchgate doctor --suite {said}` (what could spoil a run), `benchgate plan {said}` "
        f"(what would be asked), `benchgate run {said} --report report.html`. "
        f"The workflow names {CALLED}: put the repository and commit that you trust there"
    )


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
