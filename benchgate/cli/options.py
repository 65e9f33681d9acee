"""Options that several commands share, and the files that they name: suites, results, waivers as of a day."""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import replace
from datetime import UTC, date, datetime
from enum import StrEnum
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from benchgate.cli.completion import complete_checks, complete_runs
from benchgate.cli.saying import inform
from benchgate.errors import UsageError, suggestion
from benchgate.store.missing import is_absent, require_stored, sqlite_file

if TYPE_CHECKING:
    from benchgate.model.run import Run
    from benchgate.model.verdict import Waivers
    from benchgate.store.repository import Store
    from benchgate.suite.schema import Suite
    from benchgate.suite.waivers import WaiverFile

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


class ResultFormat(StrEnum):
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
    typer.Argument(
        metavar="RUN",
        help="Stored run: id, unique prefix, label, @latest, @previous or @promoted.",
        autocompletion=complete_runs,
    ),
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
ResultFormatOption = Annotated[ResultFormat, typer.Option("--format", help="Format of standard output.")]
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
WaitOption = Annotated[
    bool, typer.Option("--wait", help="Wait while another run measures the same servers.", show_default="refused")
]
ServeMetricsOption = Annotated[
    str | None,
    typer.Option("--serve-metrics", metavar="PORT", help="Serve the progress to Prometheus on PORT or HOST:PORT."),
]
WaiversOption = Annotated[Path | None, typer.Option("--waivers", metavar="FILE", help="File of reviewed waivers.")]
AsOfOption = Annotated[
    str | None,
    typer.Option("--as-of", metavar="DAY", help="Evaluate waivers as of this UTC day.", show_default="today"),
]
ExplainOption = Annotated[
    str | None,
    typer.Option(
        "--explain",
        metavar="CHECK",
        help="Show how this check was decided, step by step.",
        autocompletion=complete_checks,
    ),
]


def open_store(address: str, *runs: str | None) -> Store:
    """Open a store that exists. Raises UsageError, before anything slow is imported, for a missing store or run."""
    require_stored(address, *(run for run in runs if run is not None))
    from benchgate.store.repository import Store

    return Store.open(address, create=False)


def open_store_as_is(address: str) -> Store:
    """Open a store that exists, without upgrading it. Raises UsageError."""
    if is_absent(address):
        raise UsageError(f"there is no file {sqlite_file(address)}; check the address (--store, BENCHGATE_STORE)")
    from benchgate.store.database import Address
    from benchgate.store.repository import Store

    found = Store.open_as_is(address)
    if found is not None:
        return found
    where = Address.parse(address)
    raise UsageError(
        f"there is no store of this benchgate's schema at {where.shown}; check the address, or bring an older one to "
        f"it with `benchgate store upgrade --store {quote(where.shown)}`"
    )


def find_run(store: Store, reference: str) -> str:
    """Return the id of the run that a reference names; log which newer runs @latest and @previous skip."""
    run_id = store.resolve(reference)
    if reference in ("@latest", "@previous") and (skipped := store.skipped_runs(run_id)):
        which = f"the newer run {skipped[0]} is" if len(skipped) == 1 else f"{len(skipped)} newer runs are"
        inform(f"benchgate: {reference} is run {run_id}: {which} not complete and skipped; see `benchgate runs`")
    return run_id


def shipped_suites_dir() -> Path:
    """Return the folder of shipped suites: inside the wheel, or beside the package in a checkout."""
    return _PACKAGED if _PACKAGED.is_dir() else _CHECKOUT


def files_read(**inputs: str | Path | None) -> dict[Path, str]:
    """Return the files that a command reads, each with its name in a message. `store` may be any address."""
    given = {name: text for name, text in inputs.items() if text is not None}
    files = {name: sqlite_file(str(text)) if name == "store" else Path(text) for name, text in given.items()}
    return {file.resolve(): f"the {name}" for name, file in files.items() if file is not None}


def refuse_unwritable(file: Path | None, **inputs: str | Path | None) -> None:
    """Raise UsageError for a result's file that cannot be written, or is one of the command's `inputs`.

    Makes its folder, and leaves the file alone. Called before anything is measured, so that a mistyped folder does not
    cost hours of load.
    """
    if file is None:
        return
    if (name := files_read(**inputs).get(file.resolve())) is not None:
        raise UsageError(f"{file} is {name}, which the result would replace; name another file")
    if file.is_dir():
        raise UsageError(f"{file} is a folder; name a file in it")
    is_new = not file.parent.exists()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        is_file = isinstance(error, FileExistsError | NotADirectoryError)
        reason = f"{file.parent} is no folder" if is_file else f"{file.parent}: {error.strerror}"
        raise UsageError(f"{file} cannot be written: {reason}; name a file in a folder you may write to") from error
    if is_new:
        inform(f"benchgate: made the folder {file.parent} for {file.name}")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise UsageError(f"{file} cannot be written: permission denied; name a file where you may write")


def log_new_store(address: str) -> None:
    """Log that a store named for a run does not exist yet: after a typo, earlier runs and promotions are not in it."""
    path = sqlite_file(address)
    if address != STORE and path is not None and not path.exists():
        inform(
            f"benchgate: --store {address} is a new store, without earlier runs; check the name if you expected some"
        )


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
    if path.is_dir():
        raise UsageError(f"{reference!r} is a folder; expected a suite file, like {str(path / 'suite.yaml')!r}")
    here = {file.stem: str(file) for file in sorted(path.parent.glob("*.y*ml"))}
    if near := difflib.get_close_matches(path.stem, here, n=1):
        hint = f"did you mean {here[near[0]]!r}?"
    elif near := difflib.get_close_matches(reference, shipped, n=1):
        hint = f"did you mean the shipped suite {near[0]!r}?"
    else:
        named = ", ".join(name for name in shipped if "/" not in name)
        hint = f"write one with `benchgate init`, or name a shipped one: {named}, or a drill like drills/burst"
    raise UsageError(f"there is no suite file {reference!r}; {hint}")


def today() -> date:
    """Return the current day in UTC."""
    return datetime.now(UTC).date()


def require_waivers(path: Path | None) -> None:
    """Raise UsageError or SuiteError for a file of waivers with a mistake, before a store is opened."""
    if path is not None:
        read_waivers(path, today())


def waivers_for_run(path: Path | None, suite: Suite) -> Waivers | None:
    """Return the waivers for a new run; log those that do not fit the suite."""
    if path is None:
        return None
    file = read_waivers(path, today())
    _log_misfits(file, suite)
    return file.waivers


def waivers_for_stored(
    path: Path | None, as_of: str | None, run: Run, *, remedy: str = "leave --as-of out"
) -> Waivers | None:
    """Return the waivers for a stored run, as of a day between its measurement and today.

    Raises UsageError, with a `remedy`, for a day outside, and for one that would revive a waiver that has expired by
    today.
    """
    if path is None:
        if as_of is not None:
            raise UsageError("--as-of is the day as of which waivers are evaluated; add --waivers, or leave it out")
        return None
    from benchgate.model.deployment import Arm
    from benchgate.suite.schema import Suite
    from benchgate.suite.types import parse_day

    now = day = today()
    if as_of is not None:
        try:
            day = parse_day(as_of)
        except ValueError as error:
            raise UsageError(f"--as-of: {error}") from error
        if not run.day <= day <= now:
            raise UsageError(
                f"--as-of {day}: expected a day from {run.day}, when the run was measured, to {now}, today"
            )
    # Every entry is held to the rules of today: one that was added since may end later than `day` allowed.
    file, candidate = read_waivers(path, now), run.arms[Arm.CANDIDATE].name
    for waiver, (line, column) in zip(file.waivers.entries, file.places, strict=True):
        if waiver.names(run.suite_name, candidate) and waiver.days_left(day) >= 0 > waiver.days_left(now):
            where = f"{file.source}:{line}:{column}"
            raise UsageError(
                f"--as-of {day}: the waiver of {waiver.check} ({where}) expired at the end of {waiver.expires}, and an "
                f"earlier day does not revive it; {remedy}"
            )
    _log_misfits(file, Suite.from_stored(run.suite))
    return replace(file.waivers, as_of=day)


def read_waivers(path: Path, as_of: date) -> WaiverFile:
    """Read a file of waivers. UsageError where it cannot be read, SuiteError with every mistake in it."""
    from benchgate.suite.waivers import parse_waivers
    from benchgate.system import read_text_file

    try:
        text = read_text_file(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or error
        remedy = "--waivers names a YAML file, which `benchgate waive` writes"
        raise UsageError(f"the file of waivers {path} cannot be read: {reason}; {remedy}") from error
    return parse_waivers(text, str(path), as_of)


def _log_misfits(file: WaiverFile, suite: Suite) -> None:
    """Log a file's notes, and each waiver whose check or deployment the suite does not have, with the nearest."""
    from benchgate.gate.policy import specs_over

    tasks = suite.quality.names if suite.quality is not None else ()
    ids = [spec.id for scored in (False, True) for spec in specs_over(suite, dict.fromkeys(tasks, scored))]
    lines = [f"{file.source}: {note}" for note in file.notes]
    for waiver, (line, column) in zip(file.waivers.entries, file.places, strict=True):
        if waiver.suite != suite.suite:
            continue
        where = f"{file.source}:{line}:{column}"
        if waiver.deployment not in suite.deployments:
            near = suggestion(waiver.deployment, suite.deployments)
            lines.append(f'{where}: {suite.suite} has no deployment "{waiver.deployment}"; {near}')
        if waiver.check not in ids:
            lines.append(f'{where}: {suite.suite} has no check "{waiver.check}"; {suggestion(waiver.check, ids)}')
    inform(*(f"benchgate: {line}" for line in lines))
