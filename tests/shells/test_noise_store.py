"""Noise profiles in the store: the newest of a key, what was known when a run ended, and nothing that changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from benchgate.errors import EvidenceError, StoreError, UsageError
from benchgate.model.deployment import Arm
from benchgate.model.noise import SelfDisagreement
from benchgate.model.run import Run, RunStatus
from benchgate.store.database import Address, Database
from benchgate.store.repository import Store
from tests.shells.store_samples import DONE_AT, PLAN, make_noise, make_run

pytest_plugins = ["tests.shells.store_databases"]


def finished(store: Store, at: str = DONE_AT, **changes: Any) -> Run:
    run = make_run(**changes)
    store.begin_run(run, PLAN).finish(RunStatus.COMPLETE, at)
    return run


def test_profile_comes_back_as_it_was_saved(store: Store) -> None:
    profile = make_noise(finished(store))
    store.save_noise_profile(profile)
    assert store.noise_profile(profile.key) == profile


def test_newest_of_a_key_counts_and_an_older_one_for_what_was_before(store: Store) -> None:
    first, second = (make_noise(finished(store), at) for at in ("2026-11-01T00:00:00Z", "2026-11-10T00:00:00Z"))
    store.save_noise_profile(second)
    store.save_noise_profile(first)
    assert store.noise_profile(first.key) == second
    assert store.noise_profile(first.key, before="2026-11-05T00:00:00Z") == first
    assert store.noise_profile(first.key, before="2026-10-05T00:00:00Z") is None


def test_calibration_of_one_part_hides_no_other_part(store: Store) -> None:
    days = ("2026-11-01T00:00:00Z", "2026-11-10T00:00:00Z", "2026-11-12T00:00:00Z")
    whole, evals, shadow = (make_noise(finished(store), at) for at in days)
    alone: dict[str, Any] = {"blocks": 0, "spreads": (), "false_block": None}
    again = SelfDisagreement("task", "add", 0.5, 8)
    evals = replace(evals, disagreement=(again,), **alone)
    shadow = replace(shadow, disagreement=(SelfDisagreement("shadow", "shadow", 0.3, 50),), **alone)
    for one in (whole, evals, shadow):
        store.save_noise_profile(one)
    assert store.noise_profile(whole.key) == replace(whole, disagreement=(again, *shadow.disagreement))
    load = replace(make_noise(finished(store), "2026-11-13T00:00:00Z"), disagreement=())
    store.save_noise_profile(load)
    assert store.noise_profile(load.key) == replace(load, disagreement=(again, *shadow.disagreement))


@pytest.mark.parametrize("changed", ["hardware", "engine", "model", "measurement_sha256"])
def test_profile_of_another_key_is_none(store: Store, changed: str) -> None:
    profile = make_noise(finished(store))
    store.save_noise_profile(profile)
    assert store.noise_profile(replace(profile.key, **{changed: "another"})) is None


def test_run_knows_the_profile_of_its_baseline_that_was_there_when_it_ended(store: Store) -> None:
    early = finished(store, at="2026-11-20T13:00:00Z")
    profile = make_noise(finished(store, at="2026-11-20T14:00:00Z"), "2026-11-20T14:00:00Z")
    late = finished(store, at="2026-11-20T15:00:00Z")
    other = finished(store, at="2026-11-20T15:00:00Z", measurement_sha256="c" * 64)
    store.save_noise_profile(profile)
    assert store.evidence(late.id).noise == profile
    assert store.evidence(early.id).noise is None
    assert store.evidence(other.id).noise is None


def test_calibration_shows_its_own_profile(store: Store) -> None:
    own = finished(store, at="2026-11-10T00:00:00Z", measurement_sha256="c" * 64)
    profile = make_noise(replace(own, measurement_sha256="b" * 64), "2026-11-10T00:00:00Z")
    store.save_noise_profile(profile)
    assert store.evidence(own.id).noise == profile


def test_run_that_knows_no_baseline_has_no_profile(store: Store) -> None:
    run = finished(store, arms={})
    assert store.evidence(run.id).noise is None


def test_profile_of_a_run_that_is_not_there_is_refused(store: Store) -> None:
    with pytest.raises(UsageError, match="no run with the id"):
        store.save_noise_profile(make_noise(make_run()))


def test_second_profile_of_one_calibration_is_refused(store: Store) -> None:
    profile = make_noise(finished(store))
    store.save_noise_profile(profile)
    with pytest.raises(StoreError):
        store.save_noise_profile(replace(profile, blocks=3))
    assert store.noise_profile(profile.key) == profile


def test_profiles_never_change(store: Store, store_address: str) -> None:
    store.save_noise_profile(make_noise(finished(store)))
    database = Database.connect(Address.parse(store_address))
    for statement in ("UPDATE noise_profile SET document = '{}'", "DELETE FROM noise_profile"):
        with pytest.raises((StoreError, DBAPIError), match="never change"), database.writing() as connection:
            connection.execute(text(statement))
    database.close()


def test_damaged_profile_is_told_of_and_not_used(tmp_path: Path) -> None:
    address = str(tmp_path / "benchgate.db")
    with Store.open(address) as store:
        run = finished(store)
        profile = make_noise(run)
        store.save_noise_profile(profile)
        database = Database.connect(Address.parse(address))
        with database.writing() as connection:
            connection.execute(text("DROP TRIGGER noise_profile_no_update"))
            connection.execute(text("UPDATE noise_profile SET document = replace(document, '0.01', '0.00')"))
        database.close()
        with pytest.raises(EvidenceError, match="does not hash"):
            store.noise_profile(profile.key)
        with pytest.raises(EvidenceError, match="does not hash"):
            store.evidence(run.id)
    assert Arm.BASELINE in run.arms
