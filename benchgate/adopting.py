"""A file of another tool as a run: its numbers, and nothing that could be judged."""

from __future__ import annotations

import math
import unicodedata
from dataclasses import dataclass, replace
from pathlib import Path

from benchgate import __version__
from benchgate.circumstances import fresh_run_id, utc_now
from benchgate.cost.prices import usd_per_million_tokens
from benchgate.errors import UsageError
from benchgate.imports.formats import ReadFile, read_file
from benchgate.imports.reading import Reading
from benchgate.model.deployment import Arm, Deployment, canonical_json, sha256_of
from benchgate.model.run import MEASURED_BY, MetricRow, Run, RunStatus
from benchgate.store.repository import Store


@dataclass(frozen=True, slots=True)
class Told:
    """What the file does not say of itself: under which names its numbers are kept, and what the deployment costs."""

    suite: str
    deployment: str
    model: str | None = None
    label: str | None = None
    price_usd_per_hour: float | None = None  # of one accelerator
    accelerators: int = 1


@dataclass(frozen=True, slots=True)
class Adopted:
    """What became of a file: the run, whether the store had it already, and what was read."""

    run_id: str
    known: bool
    reading: Reading


def adopt(store_address: str, path: Path, told: Told, said: str | None = None) -> Adopted:
    """Reads the file whole, then stores it as a run. UsageError for what is wrong in it; nothing is stored then."""
    _require_sane(told)
    found = read_file(path, said)
    run, plan = _run(found, told)
    note = {
        "format": found.format,
        "tool": found.reading.tool,
        "version": found.reading.version,
        "sha256": found.sha256,
        "mapped": dict(found.reading.mapped),
        "unmapped": dict(found.reading.unmapped),
    }
    numbers = [*found.reading.rows, *_prices(found.reading, told)]
    with Store.open(store_address) as store:
        run_id = store.save_import(run, plan, numbers, note, source=ascii(path.name)[1:-1])
    return Adopted(run_id, run_id != run.id, found.reading)


def _require_sane(told: Told) -> None:
    """Names are shown on terminals and in the logs of CI systems, which a line break or an escape would command."""
    for option in ("suite", "deployment", "model", "label"):
        said = getattr(told, option)
        if said is not None and (not said.strip() or any(unicodedata.category(char) == "Cc" for char in said)):
            raise UsageError(f"--{option} is {ascii(said)[:60]}; expected a name without control characters")
    price = told.price_usd_per_hour
    if price is not None and not 0 <= price < math.inf:
        raise UsageError(f"--price is {price}; expected dollars per hour of one accelerator, 0 or more")


def _run(found: ReadFile, told: Told) -> tuple[Run, bytes]:
    """A run that measured what no other did: its file. So it is in no history, and comparable with none."""
    plan = canonical_json({MEASURED_BY: found.format, "sha256": found.sha256})
    suite = {"suite": told.suite, MEASURED_BY: found.format}
    now = utc_now()
    deployment = Deployment(
        name=told.deployment,
        model=told.model or found.reading.model or "unknown",
        engine="unknown",
        url=None,
        facts={MEASURED_BY: found.reading.tool},
        price_usd_per_hour=told.price_usd_per_hour,
        accelerators=told.accelerators,
    )
    run = Run(
        id=fresh_run_id(),
        suite_name=told.suite,
        suite=suite,
        suite_sha256=sha256_of(suite),
        measurement_sha256=sha256_of({"file": found.sha256, MEASURED_BY: found.format}),
        plan_sha256=sha256_of({MEASURED_BY: found.format, "sha256": found.sha256}),
        seed=0,
        tool_version=__version__,
        label=told.label,
        status=RunStatus.RUNNING,
        started_at=now,
        finished_at=None,
        environment={MEASURED_BY: found.reading.tool, "version": found.reading.version},
        arms={Arm.CANDIDATE: deployment},
    )
    return run, plan


def _prices(reading: Reading, told: Told) -> list[MetricRow]:
    """What a million output tokens cost, at every stage whose rate of tokens is known."""
    if told.price_usd_per_hour is None:
        return []
    rates = [one for one in reading.rows if one.name == "output_tokens_per_s"]
    costs = [usd_per_million_tokens(told.price_usd_per_hour, told.accelerators, one.value) for one in rates]
    return [
        replace(one, name="usd_per_million_output_tokens", value=cost)
        for one, cost in zip(rates, costs, strict=True)
        if cost is not None
    ]
