"""Noise profiles, by what must be the same for them to hold. They are only ever added; the newest counts."""

from __future__ import annotations

import json
from dataclasses import asdict

from sqlalchemy import Connection, insert, select

from benchgate.errors import EvidenceError
from benchgate.model.deployment import sha256_of
from benchgate.model.noise import NoiseKey, NoiseProfile
from benchgate.store import clock, rows, tables


def save_noise_profile(connection: Connection, profile: NoiseProfile) -> None:
    """Adds a profile."""
    document = rows.to_json(profile.to_json(), "the noise profile")
    connection.execute(
        insert(tables.noise_profile).values(
            key_sha256=_identity(profile.key),
            measured_at=profile.measured_at,
            run_id=profile.run_id,
            document=document,
            sha256=rows.text_sha256(document),
        )
    )


def noise_profile(connection: Connection, key: NoiseKey, *, before: str | None = None) -> NoiseProfile | None:
    """The newest profile of a key, of those measured `before` an instant (RFC 3339 UTC; else now) or at it, or None.

    Raises EvidenceError when it is not what was written.
    """
    table = tables.noise_profile
    wanted = select(table).where(table.c.key_sha256 == _identity(key))
    wanted = wanted.where(table.c.measured_at <= (before or clock.latest(connection)))
    row = connection.execute(wanted.order_by(table.c.measured_at.desc(), table.c.run_id.desc()).limit(1)).one_or_none()
    if row is None:
        return None
    if rows.text_sha256(row.document) != row.sha256:
        raise EvidenceError(
            f"the noise profile of {row.measured_at} does not hash to {row.sha256}: the store is damaged"
        )
    return NoiseProfile.from_json(json.loads(row.document))


def profile_of_run(connection: Connection, run_id: str) -> NoiseProfile | None:
    """The profile that a calibration gave; None for any other run."""
    table = tables.noise_profile
    row = connection.execute(select(table).where(table.c.run_id == run_id)).one_or_none()
    if row is None:
        return None
    if rows.text_sha256(row.document) != row.sha256:
        raise EvidenceError(f"the noise profile of run {run_id} does not hash to {row.sha256}: the store is damaged")
    return NoiseProfile.from_json(json.loads(row.document))


def _identity(key: NoiseKey) -> str:
    return sha256_of(asdict(key))
