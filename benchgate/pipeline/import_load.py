"""A file of another tool as a run: its numbers, and nothing that could be judged."""

from __future__ import annotations

import math
import unicodedata
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from benchgate import __version__
from benchgate.errors import EvidenceError, UsageError
from benchgate.importers.formats import ReadFile, read_file
from benchgate.importers.reading import Measured, Reading, spelled
from benchgate.model.deployment import Arm, Deployment, canonical_json, sha256_of, usd_per_million_tokens
from benchgate.model.run import MEASURED_BY, MetricRow, Run, RunStatus
from benchgate.pipeline.environment import fresh_run_id, utc_now
from benchgate.store.repository import Store
from benchgate.store.run_reference import require_spelling

_NAME = "imported"
_CLOCKS_APART = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Told:
    """What is said of a file beside itself: under which names its numbers are kept, what the deployment costs, and when
    it was measured (RFC 3339 with a time zone). None is what nobody said.
    """

    suite: str | None = None
    deployment: str | None = None
    model: str | None = None
    label: str | None = None
    price_usd_per_hour: float | None = None  # of one accelerator
    accelerators: int | None = None
    measured_at: str | None = None


@dataclass(frozen=True, slots=True)
class Adopted:
    """What became of a file: the run, whether the store had it already, what was read, and when it was measured.

    `measured` is None where nobody says when: the run begins at its import then.
    """

    run_id: str
    known: bool
    reading: Reading
    measured: Measured | None


def adopt(store_address: str, path: Path, told: Told, said: str | None = None) -> Adopted:
    """Reads the file whole, then stores it as a run. UsageError for what is wrong in it; nothing is stored then.

    A file that the store has already stays as it was imported: UsageError where something else is told of it now.
    """
    require_sane(told)
    found = read_file(path, said)
    now = utc_now()
    measured = _measured(found.reading, told, now)
    run, plan = _run(found, told, now if measured is None else min(measured.at, now))
    note = {
        "format": found.format,
        "tool": found.reading.tool,
        "version": found.reading.version,
        "sha256": found.sha256,
        "mapped": dict(found.reading.mapped),
        "unmapped": dict(found.reading.unmapped),
        "measured": None if measured is None else {"at": run.started_at, "by": measured.by},
    }
    numbers = [*found.reading.rows, *_prices(found.reading, told)]
    with Store.open(store_address) as store:
        source = ascii(path.name)[1:-1]
        run_id = store.save_import(run, plan, numbers, note, source=source, at=now)
        if run_id != run.id:
            _require_nothing_else(path, store.run(run_id), told)
    return Adopted(run_id, run_id != run.id, found.reading, measured)


def require_sane(told: Told) -> None:
    """Raise UsageError for what cannot be.

    Names are shown on terminals and in the logs of CI systems, which a line break or an escape would command.
    """
    for option in ("suite", "deployment", "model", "label"):
        said = getattr(told, option)
        if said is not None and (not said.strip() or any(unicodedata.category(char) == "Cc" for char in said)):
            raise UsageError(f"--{option} is {ascii(said)[:60]}; expected a name without control characters")
    if told.label is not None:
        require_spelling(told.label)
    price = told.price_usd_per_hour
    if price is not None and not 0 <= price < math.inf:
        raise UsageError(f"--price is {price}; expected dollars per hour of one accelerator, 0 or more")
    if told.measured_at is not None:
        _instant(told.measured_at)


def _instant(said: str) -> datetime:
    found: datetime | None
    try:
        found = datetime.fromisoformat(said)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise UsageError(
            f"--measured-at is {ascii(said)[:60]}; expected an instant with its time zone, like 2026-11-01T10:15:00Z"
        )
    return found


def _measured(reading: Reading, told: Told, now: str) -> Measured | None:
    """When it was measured, as it is told or as the file says. UsageError for an instant that has not been yet."""
    measured = reading.measured
    if told.measured_at is not None:
        measured = Measured(spelled(_instant(told.measured_at)), "--measured-at", zone_known=True)
    if measured is None:
        return None
    ahead = datetime.fromisoformat(measured.at) - datetime.fromisoformat(now)
    if ahead > max(measured.may_be_ahead, _CLOCKS_APART):
        raise UsageError(
            f"it was measured at {measured.at} by {measured.by}, and now it is {now}: one of the clocks is wrong; "
            "say when it was by --measured-at; nothing was imported"
        )
    return measured


def _require_nothing_else(path: Path, known: Run, told: Told) -> None:
    """An import never changes, and whoever tells something else of it must hear that."""
    of = known.arms.get(Arm.CANDIDATE)
    if of is None:
        raise EvidenceError(
            f"run {known.id} is said to be {path} by its hash, and has no candidate: the store is damaged"
        )
    started = None if told.measured_at is None else spelled(_instant(told.measured_at))
    other = [
        f"--{option} is {said!r}, and was {'none' if kept is None else repr(kept)}"
        for option, said, kept in (
            ("suite", told.suite, known.suite_name),
            ("deployment", told.deployment, of.name),
            ("model", told.model, of.model),
            ("label", told.label, known.label),
            ("price", told.price_usd_per_hour, of.price_usd_per_hour),
            ("accelerators", told.accelerators, of.accelerators),
            ("measured-at", started, known.started_at),
        )
        if said is not None and said != kept
    ]
    if other:
        raise UsageError(
            f"{path} is run {known.id} already, which stays as it was imported: {'; '.join(other)}; "
            "import it into another store to keep it otherwise"
        )


def _run(found: ReadFile, told: Told, started_at: str) -> tuple[Run, bytes]:
    """A run that measured what no other did: its file. So it is in no history, and comparable with none."""
    plan = canonical_json({MEASURED_BY: found.format, "sha256": found.sha256})
    suite_name = told.suite if told.suite is not None else _NAME
    suite = {"suite": suite_name, MEASURED_BY: found.format}
    deployment = Deployment(
        name=told.deployment if told.deployment is not None else _NAME,
        model=told.model or found.reading.model or "unknown",
        engine="unknown",
        url=None,
        facts={MEASURED_BY: found.reading.tool},
        price_usd_per_hour=told.price_usd_per_hour,
        accelerators=_accelerators(told),
    )
    run = Run(
        id=fresh_run_id(),
        suite_name=suite_name,
        suite=suite,
        suite_sha256=sha256_of(suite),
        measurement_sha256=sha256_of({"file": found.sha256, MEASURED_BY: found.format}),
        plan_sha256=sha256_of({MEASURED_BY: found.format, "sha256": found.sha256}),
        seed=0,
        tool_version=__version__,
        label=told.label,
        status=RunStatus.RUNNING,
        started_at=started_at,
        finished_at=None,
        environment={MEASURED_BY: found.reading.tool, "version": found.reading.version},
        arms={Arm.CANDIDATE: deployment},
    )
    return run, plan


def _accelerators(told: Told) -> int:
    return told.accelerators if told.accelerators is not None else 1


def _prices(reading: Reading, told: Told) -> list[MetricRow]:
    """What a million output tokens cost, at every stage whose rate of tokens is known."""
    if told.price_usd_per_hour is None:
        return []
    rates = [one for one in reading.rows if one.name == "output_tokens_per_s"]
    costs = [usd_per_million_tokens(told.price_usd_per_hour, _accelerators(told), one.value) for one in rates]
    return [
        replace(one, name="usd_per_million_output_tokens", value=cost)
        for one, cost in zip(rates, costs, strict=True)
        if cost is not None
    ]
