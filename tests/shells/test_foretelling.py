"""What a store knows of a run that is planned: its baseline's noise, an earlier run's, and how long one took."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchgate.model.deployment import Arm
from benchgate.model.noise import NoiseProfile, NoiseSpread, noise_key
from benchgate.model.run import LOAD_ENDED, LOOK, Resumption, Run, RunStatus
from benchgate.pipeline.deployments import declared_deployment
from benchgate.pipeline.environment import environment_facts
from benchgate.pipeline.forecast import known_noise, known_noise_at
from benchgate.plan.check_power import NO_KNOWN_NOISE
from benchgate.plan.schedule import make_plan, measurement_sha256
from benchgate.store.repository import Store
from benchgate.store.retention import RemovableRun
from benchgate.suite.schema import Suite
from tests.fakes.measured import Noise, measured

SUITE = Suite.model_validate(
    {
        "suite": "planned",
        "deployments": {"baseline": {"url": "http://b", "model": "m"}, "candidate": {"url": "http://c", "model": "m"}},
        "load": {
            "workload": {"input": "8 tokens", "output": "10 tokens"},
            "looks": [2, 4],
            "sweep": [{"stage": "c4", "concurrency": 4, "requests": 6}],
        },
        "gate": {"checks": [{"metric": "ttft", "margin": "5%"}, {"metric": "error_rate", "max": "50%"}]},
    }
)
PLAN = make_plan(SUITE)
FINISHED = "2026-11-20T12:10:00.000Z"


def run_of(run_id: str, **changes: Any) -> Run:
    """A run of the suite, as one that has just begun."""
    evidence = measured(SUITE, run_id=run_id)
    arms = {
        arm: declared_deployment(SUITE, name)
        for arm, name in ((Arm.BASELINE, "baseline"), (Arm.CANDIDATE, "candidate"))
    }
    fields = {
        "arms": arms,
        "measurement_sha256": measurement_sha256(SUITE, PLAN),
        "plan_sha256": PLAN.sha256,
        "status": RunStatus.RUNNING,
        "started_at": "2026-11-20T12:00:00.000Z",
        "finished_at": None,
        "environment": environment_facts(),
    }
    return replace(evidence.run, **{**fields, **changes})


def stored(
    store: Store,
    run: Run,
    status: RunStatus = RunStatus.COMPLETE,
    *,
    blocks: int | None = None,
    resumed_at: str | None = None,
) -> Run:
    """The run with its load, kept and finished."""
    writer = store.begin_run(run, PLAN.canonical)
    if resumed_at is not None:
        writer.resume(Resumption(resumed_at, 1, (), ()), ())
    for observation in measured(SUITE, noise=Noise(cv=0.05)).load:
        writer.add(observation)
    if blocks is not None:
        writer.event(LOOK, {"blocks": blocks, "after_s": 60.5})
        writer.event(LOAD_ENDED, {"blocks": blocks, "of": 4, "why": "decided"})
    writer.finish(status, FINISHED)
    return run


def profile_of(run: Run, measured_at: str = FINISHED) -> NoiseProfile:
    key = noise_key(run.arms[Arm.BASELINE], run.environment, measurement_sha256(SUITE, PLAN))
    return NoiseProfile(key, measured_at, run.id, 10, (NoiseSpread("ttft", "p50", "c4", 0.02, 0.03, 10),))


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with Store.open(str(tmp_path / "store.db")) as opened:
        yield opened


def test_an_empty_store_and_none_at_all_know_nothing(store: Store, tmp_path: Path) -> None:
    assert known_noise(store, SUITE, PLAN, read_runs=True) == NO_KNOWN_NOISE
    assert known_noise_at(str(tmp_path / "none.db"), SUITE, PLAN) == NO_KNOWN_NOISE
    (tmp_path / "broken.db").write_text("no database")
    assert known_noise_at(str(tmp_path / "broken.db"), SUITE, PLAN) == NO_KNOWN_NOISE


def test_an_earlier_run_tells_how_its_pairs_varied_and_how_long_it_took(store: Store, tmp_path: Path) -> None:
    run = stored(store, run_of("run-1"), blocks=2)
    known = known_noise_at(str(tmp_path / "store.db"), SUITE, PLAN)
    assert known.noise is not None
    assert (known.noise_from, known.noise.run_id, known.calibrated) == ("run", run.id, False)
    spread = known.spread("ttft", "p50", "c4")
    assert spread is not None
    assert 0.02 < spread.sd_paired < 0.3  # drawn with √2 · 5 %, four blocks of it
    assert known.earlier is not None
    assert (known.earlier.blocks, known.earlier.took_s, known.earlier.load_s) == (2, 600.0, 60.5)
    unread = known_noise(store, SUITE, PLAN, read_runs=False)
    assert unread.noise is None
    assert unread.earlier == known.earlier


def test_a_run_that_was_paused_tells_no_duration_and_leaves_it_to_the_one_before(store: Store) -> None:
    stored(store, run_of("run-1", started_at="2026-11-20T12:05:00.000Z"))
    stored(store, run_of("run-2", started_at="2026-11-20T12:06:00.000Z"), resumed_at="2026-11-20T12:09:00.000Z")
    known = known_noise(store, SUITE, PLAN, read_runs=False)
    assert known.earlier is not None
    assert (known.earlier.run_id, known.earlier.took_s) == ("run-1", 300.0)


def test_a_run_whose_records_were_removed_leaves_it_to_the_one_before(store: Store) -> None:
    older = stored(store, run_of("run-1", started_at="2026-11-19T12:00:00.000Z"))
    newer = stored(store, run_of("run-2"))
    bared = RemovableRun(newer.id, newer.suite_name, None, FINISHED, FINISHED, 0, 0, 0)
    assert store.remove_raw([bared], now=FINISHED, reason="benchgate store gc").stayed == ()
    known = known_noise(store, SUITE, PLAN, read_runs=True)
    assert known.noise is not None
    assert known.noise.run_id == older.id
    assert known.earlier is not None
    store.remove_raw([replace(bared, run_id=older.id)], now=FINISHED, reason="benchgate store gc")
    assert known_noise(store, SUITE, PLAN, read_runs=True).noise is None


def test_a_run_of_all_its_blocks_is_of_as_many_as_its_suite_says(store: Store) -> None:
    stored(store, run_of("run-1"))
    known = known_noise(store, SUITE, PLAN, read_runs=False)
    assert known.earlier is not None
    assert known.earlier.blocks == 4


def test_runs_of_other_things_tell_nothing(store: Store) -> None:
    stored(store, run_of("run-1", measurement_sha256="0" * 64))
    stored(store, run_of("run-2"), RunStatus.PARTIAL)
    other = replace(declared_deployment(SUITE, "baseline"), name="another")
    stored(store, run_of("run-3", arms={Arm.BASELINE: other, Arm.CANDIDATE: declared_deployment(SUITE, "candidate")}))
    assert known_noise(store, SUITE, PLAN, read_runs=True) == NO_KNOWN_NOISE


def test_the_newest_profile_goes_before_any_run_and_may_be_too_old(store: Store) -> None:
    run = stored(store, run_of("run-1"))
    store.save_noise_profile(profile_of(run))
    long_ago = run_of("run-0", measurement_sha256="1" * 64)
    store.save_noise_profile(profile_of(stored(store, long_ago), "2001-01-01T00:00:00.000Z"))
    patient = SUITE.model_copy(update={"gate": SUITE.gate.model_copy(update={"noise_max_age_s": 1e12})})
    known = known_noise(store, patient, PLAN, read_runs=True)
    assert (known.noise_from, known.noise and known.noise.run_id) == ("calibration", "run-1")
    hasty = SUITE.model_copy(update={"gate": SUITE.gate.model_copy(update={"noise_max_age_s": 1.0})})
    assert known_noise(store, hasty, PLAN, read_runs=True).noise_from == "stale calibration"


def test_a_profile_is_found_on_the_hardware_that_only_a_run_has_told(store: Store) -> None:
    told = replace(declared_deployment(SUITE, "baseline"), facts={"accelerator_names": ["H200"]})
    calibration = run_of("run-1", measurement_sha256="1" * 64, arms={Arm.BASELINE: told, Arm.CANDIDATE: told})
    store.save_noise_profile(profile_of(stored(store, calibration)))
    known = known_noise(store, SUITE, PLAN, read_runs=True)
    assert known.noise is not None
    assert known.noise.key.hardware == "1 x H200"
