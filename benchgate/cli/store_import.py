"""`benchgate store import`: bundles, and files that other tools wrote, each tried whatever becomes of the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchgate.cli import options
from benchgate.cli.saying import log, log_text, say
from benchgate.cli.store_commands import tell
from benchgate.errors import ExitCode, SuiteError, UsageError
from benchgate.escape import terminal_line

if TYPE_CHECKING:
    from benchgate.pipeline.import_load import Adopted, Told

_MOST_NAMED = 3  # of the fields that were left out for one reason


def import_files(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE|FOLDER...", help="Bundles, files of other tools, folders of them.")
    ],
    tool: Annotated[str | None, typer.Option("--from", help="Whose files they are, where they do not tell.")] = None,
    suite: Annotated[str | None, typer.Option("--suite", help="Suite to keep a tool's numbers under.")] = None,
    deployment: Annotated[str | None, typer.Option("--deployment", help="What a tool measured, by name.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Its model, where the file does not tell.")] = None,
    label: options.LabelOption = None,
    price: Annotated[float | None, typer.Option("--price", help="Dollars per hour of one accelerator.")] = None,
    accelerators: Annotated[
        int | None, typer.Option("--accelerators", min=1, help="How many it is served by; 1 unless said.")
    ] = None,
    measured_at: Annotated[
        str | None, typer.Option("--measured-at", help="When a tool measured, where its file does not tell.")
    ] = None,
    store: options.StoreOption = options.STORE,
) -> None:
    """Take in runs that `store export` wrote, or numbers from files of other tools; what is known stays."""
    from benchgate.importers.formats import require_known
    from benchgate.pipeline.import_load import Told, require_sane
    from benchgate.store.bundle import bundle_files, looks_like_bundle

    told = Told(suite, deployment, model, label, price, accelerators, measured_at)
    require_sane(told)
    if tool is not None:
        require_known(tool)
    refused: Counter[ExitCode] = Counter()
    found: list[Path] = []
    for path in files:
        with _tried(refused):
            found += bundle_files(path)
    bundles = [file for file in found if tool is None and looks_like_bundle(file)]
    foreign = [file for file in found if file not in bundles]
    if bundles and not foreign and told != Told():
        raise UsageError(f"{_given(told)} is of files of other tools, and these are bundles, which say it themselves")
    asked = len(found) + refused.total()
    for file in foreign:
        with _tried(refused):
            _import_of_tool(store, file, told, tool)
    if bundles:
        refused[ExitCode.PUBLISH_FAILED] += _import_bundles(bundles, store)
    _end(asked, refused)


def _given(told: Told) -> str:
    """The first option that says something of a tool's file."""
    named = {"--suite": told.suite, "--deployment": told.deployment, "--model": told.model, "--label": told.label}
    others = {
        "--price": told.price_usd_per_hour,
        "--accelerators": told.accelerators,
        "--measured-at": told.measured_at,
    }
    return next(option for option, said in {**named, **others}.items() if said is not None)


@contextmanager
def _tried(refused: Counter[ExitCode]) -> Iterator[None]:
    """What a file is refused for is told, and keeps no other from being tried."""
    try:
        yield
    except (UsageError, SuiteError) as error:
        log_text(f"benchgate: {error}")
        refused[error.exit_code] += 1


def _import_of_tool(store: str, file: Path, told: Told, tool: str | None) -> None:
    """Takes a file in and prints its run and what was taken; what was not, and why, on stderr."""
    from benchgate.pipeline.import_load import adopt

    adopted = adopt(store, file, told, tool)
    say(terminal_line(_became(adopted)) + "\n")
    if not adopted.known:
        log(*(f"  {line}" for line in _left_out(adopted)))


def _became(adopted: Adopted) -> str:
    if adopted.known:
        return f"{adopted.run_id} known"
    reading, measured = adopted.reading, adopted.measured
    when = "it does not say when it was measured" if measured is None else f"measured {measured.at} by {measured.by}"
    taken = f"{len(reading.rows)} numbers of {reading.tool}, {len(reading.unmapped)} fields not taken"
    return f"{adopted.run_id} new: {taken}; {when}"


def _left_out(adopted: Adopted) -> Iterator[str]:
    """A line a reason, with the first fields that it is of; the store keeps them all."""
    reasons: dict[str, list[str]] = {}
    for field, why in adopted.reading.unmapped.items():
        reasons.setdefault(why, []).append(field)
    for why, fields in reasons.items():
        more = f" and {len(fields) - _MOST_NAMED} more" if len(fields) > _MOST_NAMED else ""
        yield f"not taken: {', '.join(fields[:_MOST_NAMED])}{more}: {why}"
    if adopted.measured is None:
        yield "in `benchgate trend` it stands where it was imported; --measured-at says when it was measured"


def _import_bundles(bundles: Sequence[Path], store: str) -> int:
    """How many were refused. A store is made only once there is something to take in."""
    from benchgate.store.bundle import bundle_sources
    from benchgate.store.merge import import_runs
    from benchgate.store.migrate import opened

    with ExitStack() as stack:
        database = cache(lambda: stack.enter_context(opened(store, create=True)))
        return tell(import_runs(database, bundle_sources(bundles)))["refused"]


def _end(asked: int, refused: Counter[ExitCode]) -> None:
    """Ends with 13 where a bundle was refused, with 2 where only files of other tools were."""
    number = refused.total()
    if not number:
        return
    if asked > 1:
        log(f"benchgate: {number} of {asked} were refused, with nothing of them taken in")
    raise typer.Exit(int(ExitCode.PUBLISH_FAILED if refused[ExitCode.PUBLISH_FAILED] else ExitCode.USAGE))
