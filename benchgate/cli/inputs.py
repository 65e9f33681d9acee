"""Files that a command takes beside the suite: waivers, read as of a day, and prices."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from benchgate.cli.saying import log
from benchgate.errors import UsageError

if TYPE_CHECKING:
    from benchgate.model.deployment import Deployment
    from benchgate.model.run import Run
    from benchgate.model.verdict import Waivers
    from benchgate.suite.schema import Suite
    from benchgate.suite.waivers import WaiverFile


def today() -> date:
    """Return the current day in UTC."""
    return datetime.now(UTC).date()


def waivers_for_run(path: Path | None, suite: Suite) -> Waivers | None:
    """Return the waivers for a new run; log those that do not fit the suite."""
    if path is None:
        return None
    file = read_waivers(path, today())
    _log_misfits(file, suite)
    return file.waivers


def waivers_for_stored(path: Path | None, as_of: str | None, run: Run) -> Waivers | None:
    """Return the waivers for a stored run, as of a day between its measurement and today.

    Raises UsageError for a day outside, and for one that would revive a waiver that has expired by today.
    """
    if path is None:
        if as_of is not None:
            raise UsageError("--as-of is the day as of which waivers are evaluated; add --waivers, or leave it out")
        return None
    from benchgate.suite.schema import Suite

    day = _day(as_of, run)
    file = read_waivers(path, day)
    _refuse_revival(file, day, run)
    _log_misfits(file, Suite.from_stored(run.suite))
    return file.waivers


def read_waivers(path: Path, as_of: date) -> WaiverFile:
    """Read a file of waivers. UsageError where it cannot be read, SuiteError with every mistake in it."""
    from benchgate.suite.waivers import parse_waivers
    from benchgate.system import read_text_file

    try:
        text = read_text_file(path)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the file of waivers {path} cannot be read: {error}") from error
    return parse_waivers(text, str(path), as_of)


def _day(as_of: str | None, run: Run) -> date:
    from benchgate.suite.types import parse_day

    if as_of is None:
        return today()
    try:
        day = parse_day(as_of)
    except ValueError as error:
        raise UsageError(f"--as-of: {error}") from error
    measured = date.fromisoformat(run.started_at[:10])
    if not measured <= day <= today():
        raise UsageError(
            f"--as-of {day}: expected a day from {measured}, when the run was measured, to {today()}, today"
        )
    return day


def _refuse_revival(file: WaiverFile, day: date, run: Run) -> None:
    from benchgate.model.deployment import Arm

    now, candidate = today(), run.arms[Arm.CANDIDATE].name
    for waiver, (line, column) in zip(file.waivers.entries, file.places, strict=True):
        if waiver.names(run.suite_name, candidate) and waiver.days_left(day) >= 0 > waiver.days_left(now):
            where = f"{file.source}:{line}:{column}"
            raise UsageError(
                f"--as-of {day}: the waiver of {waiver.check} ({where}) expired at the end of {waiver.expires}, and an "
                "earlier day does not revive it; leave --as-of out"
            )


def _log_misfits(file: WaiverFile, suite: Suite) -> None:
    notes = (f"{file.source}: {note}" for note in file.notes)
    log(*(f"benchgate: {line}" for line in (*notes, *_misfits(file, suite))))


def _misfits(file: WaiverFile, suite: Suite) -> Iterator[str]:
    """Yield a line for each waiver of this suite whose check or deployment it does not have, with the nearest."""
    from benchgate.gate.policy import specs_over
    from benchgate.suite.messages import suggestion

    tasks = suite.quality.names if suite.quality is not None else ()
    ids = [spec.id for scored in (False, True) for spec in specs_over(suite, dict.fromkeys(tasks, scored))]
    for waiver, (line, column) in zip(file.waivers.entries, file.places, strict=True):
        if waiver.suite != suite.suite:
            continue
        where = f"{file.source}:{line}:{column}"
        if waiver.deployment not in suite.deployments:
            near = suggestion(waiver.deployment, suite.deployments)
            yield f'{where}: {suite.suite} has no deployment "{waiver.deployment}"; {near}'
        if waiver.check not in ids:
            yield f'{where}: {suite.suite} has no check "{waiver.check}"; {suggestion(waiver.check, ids)}'


def price_lines(suite: Suite) -> list[str]:
    """Return a line for each arm whose price comes from a file; none where the suite states its prices itself."""
    priced = _priced_by_file(suite)
    if not priced:
        return []
    from benchgate.report.sections.cost import price_and_use, price_source  # slow to import

    return [f"{one.name}: {price_and_use(one)}, the price {price_source(one)}" for one in priced]


def price_documents(suite: Suite) -> dict[str, dict[str, object]]:
    """Return the prices that come from a file as plain JSON, by deployment."""
    from benchgate.report.document import price_document

    return {one.name: price_document(one) for one in _priced_by_file(suite)}


def _priced_by_file(suite: Suite) -> list[Deployment]:
    arms = dict.fromkeys((suite.baseline, *(suite.candidates or (suite.candidate,))))
    priced = [name for name in arms if suite.deployments[name].price_entry]
    if not priced:
        return []
    from benchgate.pipeline.deployments import declared_deployment  # slow to import

    return [declared_deployment(suite, name) for name in priced]
