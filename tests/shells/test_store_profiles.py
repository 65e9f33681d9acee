"""Curves of the load generator in the store: kept by machine, the newest counts, none ever changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import text

from benchgate.errors import EvidenceError, StoreError
from benchgate.model.client import ClientProfile, ClientStep
from benchgate.store.database import Address, Database
from benchgate.store.repository import Store

pytest_plugins = ["tests.shells.store_databases"]

STEP = ClientStep(
    streams=50,
    offered_rps=24.0,
    offered_tokens_per_s=2400.0,
    delivered_ratio=0.999,
    cpu_us_per_token=9.5,
    read_delay_p99_s=None,
    ttft_error_p99_s=0.0003,
    client_bound=(),
)
BOUND = replace(STEP, streams=100, offered_tokens_per_s=4800.0, client_bound=("too busy",))
RATE = replace(STEP, streams=None, offered_rps=500.0, offered_tokens_per_s=500.0)
PROFILE = ClientProfile("2025-11-20T12:00:00.000Z", {"cpu": "EPYC", "cpus": 2, "uvloop": None}, (STEP, BOUND, RATE))


def test_a_profile_comes_back_as_it_was_written(store: Store) -> None:
    store.save_client_profile(PROFILE)
    assert store.client_profile(PROFILE.fingerprint) == PROFILE


def test_the_newest_profile_of_a_machine_counts_and_other_machines_have_none(store: Store) -> None:
    later = replace(PROFILE, measured_at="2025-11-21T12:00:00.000Z", steps=(STEP,))
    for profile in (later, PROFILE):
        store.save_client_profile(profile)
    assert store.client_profile(PROFILE.fingerprint) == later
    other = replace(PROFILE, machine={**PROFILE.machine, "cpus": 4})
    assert store.client_profile(other.fingerprint) is None


def test_a_profile_of_a_clock_that_was_ahead_does_not_count_until_its_time_has_come(store: Store) -> None:
    for profile in (PROFILE, replace(PROFILE, measured_at="2999-01-01T00:00:00.000Z", steps=(STEP,))):
        store.save_client_profile(profile)
    assert store.client_profile(PROFILE.fingerprint) == PROFILE


def test_a_profile_never_changes(store: Store, store_address: str) -> None:
    store.save_client_profile(PROFILE)
    database = Database.connect(Address.parse(store_address))
    for statement in ("UPDATE client_profile SET document = '{}'", "DELETE FROM client_profile"):
        with pytest.raises(StoreError, match="never change"), database.writing() as connection:
            connection.execute(text(statement))
    database.close()
    assert store.client_profile(PROFILE.fingerprint) == PROFILE


def alter(store_address: str, change: str) -> None:
    database = Database.connect(Address.parse(store_address))
    with database.writing() as connection:
        if connection.dialect.name == "sqlite":
            connection.execute(text("DROP TRIGGER client_profile_no_update"))
        else:
            connection.execute(text("ALTER TABLE client_profile DISABLE TRIGGER USER"))
        connection.execute(text(f"UPDATE client_profile SET {change}"))
    database.close()


def test_a_damaged_profile_is_refused(store: Store, store_address: str) -> None:
    store.save_client_profile(PROFILE)
    alter(store_address, "document = replace(document, '9.5', '0.5')")
    with pytest.raises(EvidenceError, match="does not hash"):
        store.client_profile(PROFILE.fingerprint)


def test_a_profile_that_is_listed_as_another_machine_s_is_found(store: Store, store_address: str) -> None:
    store.save_client_profile(PROFILE)
    assert not store.check().findings
    alter(store_address, "fingerprint = '0'")
    assert "it is listed as another" in {finding.problem for finding in store.check().findings}
