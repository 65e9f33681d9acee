"""Curves of the load generator, by machine. They are only ever added; the newest of a machine counts."""

from __future__ import annotations

import json

from sqlalchemy import Connection, insert, select

from benchgate.errors import EvidenceError
from benchgate.model.client import ClientProfile
from benchgate.store import rows, tables


def save_client_profile(connection: Connection, profile: ClientProfile) -> None:
    """Adds a curve."""
    document = rows.to_json(profile.to_json(), "the client profile")
    connection.execute(
        insert(tables.client_profile).values(
            fingerprint=profile.fingerprint,
            measured_at=profile.measured_at,
            document=document,
            sha256=rows.text_sha256(document),
        )
    )


def client_profile(connection: Connection, fingerprint: str) -> ClientProfile | None:
    """The newest curve of a machine; None when there is none. Raises EvidenceError when it is not what was written."""
    table = tables.client_profile
    wanted = select(table).where(table.c.fingerprint == fingerprint).order_by(table.c.measured_at.desc()).limit(1)
    row = connection.execute(wanted).one_or_none()
    if row is None:
        return None
    if rows.text_sha256(row.document) != row.sha256:
        raise EvidenceError(
            f"the client profile of {row.measured_at} does not hash to {row.sha256}: the store is damaged"
        )
    return ClientProfile.from_json(json.loads(row.document))
