"""Loads without a suite, stored as runs with metrics alone: results of other tools, and of `benchgate load`.

They are never judged and never promoted.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from benchgate import __version__
from benchgate.errors import EvidenceError, UsageError
from benchgate.importers.formats import ReadFile, read_file
from benchgate.importers.reading import Measured, Reading, spelled
from benchgate.model.deployment import Arm, Deployment, canonical_json, sha256_of, usd_per_million_tokens
from benchgate.model.run import MEASURED_BY, MetricRow, Run, RunStatus
from benchgate.pipeline.environment import fresh_run_id, utc_now
from benchgate.store.missing import require_spelling
from benchgate.store.repository import Store
from benchgate.targets.address import show_address

_NAME = "imported"
_CLOCKS_APART = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class ImportMetadata:
    """Metadata of an imported file: names, price, and time of measurement (RFC 3339 with a zone). None: not given."""

    suite: str | None = None
    deployment: str | None = None
    model: str | None = None
    label: str | None = None
    price_usd_per_hour: float | None = None  # of one accelerator
    accelerators: int | None = None
    measured_at: str | None = None


@dataclass(frozen=True, slots=True)
class ImportedFile:
    """Result of an import. `is_known` is True if the store had the file; `measured` is None without a known time.

    A run without a known time begins at its import.
    """

    run_id: str
    is_known: bool
    reading: Reading
    measured: Measured | None


def import_file(
    store_address: str, path: Path, metadata: ImportMetadata, file_format: str | None = None
) -> ImportedFile:
    """Read a file and store it as a run. Raises UsageError for mistakes in it, before anything is stored.

    A file that the store has already stays as it was imported. Raises UsageError for other metadata than then.
    """
    require_sane(metadata)
    found = read_file(path, file_format)
    now = utc_now()
    measured = _measured(found.reading, metadata, now)
    run, plan = _run(found, metadata, now if measured is None else min(measured.at, now))
    note = {
        "format": found.format,
        "tool": found.reading.tool,
        "version": found.reading.version,
        "sha256": found.sha256,
        "mapped": dict(found.reading.mapped),
        "unmapped": dict(found.reading.unmapped),
        "measured": None if measured is None else {"at": run.started_at, "by": measured.by},
    }
    numbers = [*found.reading.rows, *_prices(found.reading, metadata)]
    with Store.open(store_address) as store:
        source = ascii(path.name)[1:-1]
        run_id = store.save_import(run, plan, numbers, note, source=source, at=now)
        if run_id != run.id:
            _require_nothing_else(path, store.run(run_id), metadata)
    return ImportedFile(run_id, run_id != run.id, found.reading, measured)


LOAD_TOOL = "benchgate load"


def save_load(store_address: str, document: Mapping[str, Any], label: str | None) -> str:
    """Store the result of a load test as a run, and return its id. Loads of one description are one workload.

    Any two salts are alike, but not a load with and one without: only the latter finds its prompts in a cache.
    Of the server's address only scheme, host and port are kept.
    """
    server, now = show_address(document["url"]), utc_now()
    level = {name: value for name, value in document["load"].items() if name != "salt"}
    level["salted"] = bool(document["load"]["salt"])
    workload = {MEASURED_BY: LOAD_TOOL, "endpoint": document["endpoint"], "load": level, "slo": document["slo"]}
    suite = {"suite": "load", MEASURED_BY: LOAD_TOOL}
    deployment = Deployment(
        name=server,
        model=document["model"],
        engine=document["engine"],
        url=server,
        facts={MEASURED_BY: LOAD_TOOL},
    )
    run = Run(
        id=fresh_run_id(),
        suite_name="load",
        suite=suite,
        suite_sha256=sha256_of(suite),
        measurement_sha256=sha256_of(workload),
        plan_sha256=sha256_of(workload),
        seed=document["load"]["seed"],
        tool_version=__version__,
        label=label,
        status=RunStatus.RUNNING,
        started_at=now,
        finished_at=None,
        environment={MEASURED_BY: LOAD_TOOL, "version": __version__},
        arms={Arm.CANDIDATE: deployment},
    )
    parts = (document, *document.get("regions", {}).values())
    rows = [
        MetricRow(Arm.CANDIDATE, stage=part["stage"], task=None, **{k: v for k, v in metric.items() if k != "unit"})
        for part in parts
        for metric in part["metrics"]
    ]
    note = {
        "format": LOAD_TOOL,
        "tool": LOAD_TOOL,
        "version": __version__,
        "sha256": sha256_of({"run": run.id}),  # every load is a run of its own
        "mapped": {},
        "unmapped": {},
        "measured": {"at": now, "by": LOAD_TOOL},
        "workload": workload,
    }
    with Store.open(store_address) as store:
        return store.save_import(run, canonical_json(workload), rows, note, source=LOAD_TOOL, at=now)


def require_sane(metadata: ImportMetadata) -> None:
    """Raise UsageError for impossible metadata, and for names with control characters: terminals would obey those."""
    for option in ("suite", "deployment", "model", "label"):
        name = getattr(metadata, option)
        if name is not None and (not name.strip() or any(unicodedata.category(char) == "Cc" for char in name)):
            raise UsageError(f"--{option} is {ascii(name)[:60]}; expected a name without control characters")
    if metadata.label is not None:
        require_spelling(metadata.label)
    price = metadata.price_usd_per_hour
    if price is not None and not 0 <= price < math.inf:
        raise UsageError(f"--price is {price}; expected dollars per hour of one accelerator, 0 or more")
    if metadata.measured_at is not None:
        _instant(metadata.measured_at)


def _instant(text: str) -> datetime:
    found: datetime | None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise UsageError(
            f"--measured-at is {ascii(text)[:60]}; expected an instant with its time zone, like 2026-11-01T10:15:00Z"
        )
    return found


def _measured(reading: Reading, metadata: ImportMetadata, now: str) -> Measured | None:
    """Return the time of measurement from the metadata or the file. Raises UsageError for one in the future."""
    measured = reading.measured
    if metadata.measured_at is not None:
        measured = Measured(spelled(_instant(metadata.measured_at)), "--measured-at", zone_known=True)
    if measured is None:
        return None
    ahead = datetime.fromisoformat(measured.at) - datetime.fromisoformat(now)
    if ahead > max(measured.may_be_ahead, _CLOCKS_APART):
        raise UsageError(
            f"it was measured at {measured.at} by {measured.by}, and now it is {now}: one of the clocks is wrong; "
            "say when it was by --measured-at; nothing was imported"
        )
    return measured


def _require_nothing_else(path: Path, known: Run, metadata: ImportMetadata) -> None:
    """Raise UsageError if the metadata differ from those of the first import, which never changes."""
    of = known.arms.get(Arm.CANDIDATE)
    if of is None:
        raise EvidenceError(
            f"run {known.id} is said to be {path} by its hash, and has no candidate: the store is damaged"
        )
    started = None if metadata.measured_at is None else spelled(_instant(metadata.measured_at))
    other = [
        f"--{option} is {value!r}, and was {'none' if kept is None else repr(kept)}"
        for option, value, kept in (
            ("suite", metadata.suite, known.suite_name),
            ("deployment", metadata.deployment, of.name),
            ("model", metadata.model, of.model),
            ("label", metadata.label, known.label),
            ("price", metadata.price_usd_per_hour, of.price_usd_per_hour),
            ("accelerators", metadata.accelerators, of.accelerators),
            ("measured-at", started, known.started_at),
        )
        if value is not None and value != kept
    ]
    if other:
        raise UsageError(
            f"{path} is run {known.id} already, which stays as it was imported: {'; '.join(other)}; "
            "import it into another store to keep it otherwise"
        )


def _run(found: ReadFile, metadata: ImportMetadata, started_at: str) -> tuple[Run, bytes]:
    """Return the run and plan of a file. It measured its file alone, so it is comparable with no other run."""
    plan = canonical_json({MEASURED_BY: found.format, "sha256": found.sha256})
    suite_name = metadata.suite if metadata.suite is not None else _NAME
    suite = {"suite": suite_name, MEASURED_BY: found.format}
    deployment = Deployment(
        name=metadata.deployment if metadata.deployment is not None else _NAME,
        model=metadata.model or found.reading.model or "unknown",
        engine="unknown",
        url=None,
        facts={MEASURED_BY: found.reading.tool},
        price_usd_per_hour=metadata.price_usd_per_hour,
        accelerators=_accelerators(metadata),
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
        label=metadata.label,
        status=RunStatus.RUNNING,
        started_at=started_at,
        finished_at=None,
        environment={MEASURED_BY: found.reading.tool, "version": found.reading.version},
        arms={Arm.CANDIDATE: deployment},
    )
    return run, plan


def _accelerators(metadata: ImportMetadata) -> int:
    return metadata.accelerators if metadata.accelerators is not None else 1


def _prices(reading: Reading, metadata: ImportMetadata) -> list[MetricRow]:
    """Return the cost of a million output tokens at every stage with a known token rate."""
    if metadata.price_usd_per_hour is None:
        return []
    rates = [one for one in reading.rows if one.name == "output_throughput"]
    costs = [usd_per_million_tokens(metadata.price_usd_per_hour, _accelerators(metadata), one.value) for one in rates]
    return [
        replace(one, name="usd_per_million_output_tokens", value=cost)
        for one, cost in zip(rates, costs, strict=True)
        if cost is not None
    ]
