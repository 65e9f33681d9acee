"""Every run of a store at a glance: what became of each, and what else a report of it rests on; no raw records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import Connection, Select, func, select

from benchgate.model.history import Promotion
from benchgate.model.run import Run
from benchgate.model.verdict import Outcome
from benchgate.store import promotions, results, rows, tables
from benchgate.store.engine import fetch
from benchgate.store.history import MEASURED
from benchgate.store.tombstones import Removal


@dataclass(frozen=True, slots=True)
class Said:
    """A verdict of the run itself; `decided_at` is None where an older schema kept no instant."""

    outcome: Outcome
    reason: str
    sha256: str
    decided_at: str | None


@dataclass(frozen=True, slots=True, eq=False)
class Glance:
    """One run. `said` are the verdicts of the run itself, oldest first; `removed` tells when its raw records went.

    `evidence_sha256` is None while the run is not over; then `n_kept` is how many rows of it there are by now, which is
    0 of every other run, and `measured` whether anything was measured, which is True of every other run. `noise_sha256`
    is of the noise profile that a calibration gave.
    """

    run: Run
    said: tuple[Said, ...]
    evidence_sha256: str | None
    n_kept: int
    measured: bool
    removed: Removal | None
    noise_sha256: str | None


@dataclass(frozen=True, slots=True, eq=False)
class Overview:
    """All runs and all promotions, oldest first; of the noise profiles when each was measured and its SHA-256."""

    runs: tuple[Glance, ...]
    promotions: tuple[Promotion, ...]
    noise: tuple[tuple[str, str], ...]


def overview(connection: Connection) -> Overview:
    """The whole store. EvidenceError where a verdict or a promotion is not what was written."""
    run, profile = tables.run, tables.noise_profile.c
    found = fetch(connection, select(run).order_by(run.c.started_at, run.c.id))
    arms: dict[str, list[rows.Row]] = {row["id"]: [] for row in found}
    for arm in fetch(connection, select(tables.arm)):
        arms[arm["run_id"]].append(arm)
    said: dict[str, list[Said]] = {row["id"]: [] for row in found}
    for one in _own_verdicts(connection):
        said[one[0]].append(one[1])
    profiles = connection.execute(select(profile.run_id, profile.measured_at, profile.sha256)).all()
    removed, kept, measured = _removed(connection), _kept(connection), _measured(connection)
    noise = {run_id: sha256 for run_id, _, sha256 in profiles}
    return Overview(
        runs=tuple(
            Glance(
                run=rows.read_run(row, arms[row["id"]]),
                said=tuple(said[row["id"]]),
                evidence_sha256=row["evidence_sha256"],
                n_kept=kept[row["id"]],
                measured=row["evidence_sha256"] is not None or row["id"] in measured,
                removed=removed.get(row["id"]),
                noise_sha256=noise.get(row["id"]),
            )
            for row in found
        ),
        promotions=tuple(promotions.promotions(connection)),
        noise=tuple(sorted((measured_at, sha256) for _, measured_at, sha256 in profiles)),
    )


def _own_verdicts(connection: Connection) -> Iterator[tuple[str, Said]]:
    for one in results.all_verdicts(connection):
        if one.of_the_run_itself:
            yield one.run_id, Said(one.outcome, str(one.document.get("reason", "")), one.sha256, one.decided_at)


def _removed(connection: Connection) -> dict[str, Removal]:
    stone = tables.tombstone.c
    counted = func.max(stone.removed_at), func.max(stone.reason), func.count(), func.sum(stone.n_bytes)
    found = connection.execute(select(stone.run_id, *counted).group_by(stone.run_id)).all()
    return {run_id: Removal(at, reason, n_rows, int(n_bytes)) for run_id, at, reason, n_rows, n_bytes in found}


def _going_on() -> Select[str]:
    return select(tables.run.c.id).where(tables.run.c.evidence_sha256.is_(None))


def _measured(connection: Connection) -> set[str]:
    """Of the runs that are not over, those of which something was measured."""
    seen = tables.observation.c
    wanted = select(seen.run_id).where(seen.run_id.in_(_going_on()), seen.kind.in_(MEASURED))
    return set(connection.scalars(wanted.distinct()))


def _kept(connection: Connection) -> Counter[str]:
    """How many rows there are of each run that is not over."""
    kept: Counter[str] = Counter()
    for table in (tables.observation, tables.telemetry, tables.event):
        counted = select(table.c.run_id, func.count()).where(table.c.run_id.in_(_going_on())).group_by(table.c.run_id)
        kept.update({run_id: int(count) for run_id, count in connection.execute(counted)})
    return kept
