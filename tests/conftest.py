"""What holds for every test."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The same examples every time and no time limit of their own: a shared machine must not decide what a test says.
_SAME_EVERY_TIME = settings(derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("all", _SAME_EVERY_TIME)
settings.register_profile("quick", _SAME_EVERY_TIME, max_examples=25)


def pytest_configure(config: pytest.Config) -> None:
    """Try fewer examples in the quick tier, and undo settings of the shell that began the tests.

    Tests that interrupt themselves work in the background too, where a shell makes a command ignore SIGINT. Processes
    that tests start keep what they compile: benchgate and lm-eval are large, and there are hundreds of processes.
    """
    settings.load_profile("quick" if "not slow" in config.option.markexpr else "all")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.fixture(scope="session", autouse=True)
def own_state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the locks of servers out of the user's home, and those of tests in other processes apart."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True)
def no_credential_is_known() -> Iterator[None]:
    """Let a test know no credential that another one in this process has used."""
    from benchgate import credentials

    yield
    credentials.forget_all()


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages without charts, which have tests of their own and cost most of a rendering's time."""
    from benchgate.report.charts import Figure

    monkeypatch.setattr(Figure, "svg", "")


@pytest.fixture(scope="module", params=["compiled", "not compiled"])
def compiled_and_not(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test twice: by what the installation compiled of the load engine, and by the Python in its place."""
    from benchgate.load.http.library import DISABLED_BY, library

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(DISABLED_BY, "0" if request.param == "not compiled" else "1")
        if request.param == "compiled" and library() is None:
            pytest.skip("no compiler was there at the installation")
        yield


SAMPLES_ARE_OVER = "2098-01-02T00:00:00.000Z"
_MEASURE = Path(__file__).parent / "e2e"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep the garbage collector from what collecting makes, nearly all of which stays.

    To look through it would take a fifth of the collecting, and half a second of every full collection in a test.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        frozen = gc.get_freeze_count()
        # To count them is to go through them all, and the load generator asks after every stage.
        pytest.MonkeyPatch().setattr(gc, "get_freeze_count", lambda: frozen)
        gc.enable()


# What only `./scripts/test --all` runs: long measurements and simulations, and whole runs that take long.
_LONG = frozenset({
    "test_adapters", "test_calibrate", "test_capacity", "test_capacity_run", "test_drill", "test_embedded_server",
    "test_embedded_weights", "test_error_budgets", "test_error_rates", "test_fewer_accelerators",
    "test_gate_quality_rates", "test_grafana_dashboard", "test_import", "test_key_canaries", "test_live",
    "test_lm_eval_internals", "test_load_cluster", "test_looks", "test_noise", "test_quality_choice",
    "test_quality_ending", "test_quality_verdict", "test_replica_counts", "test_replicas",
    "test_report_browser_script", "test_salted_runs", "test_schedules", "test_shadow_drift", "test_sim_drills",
    "test_sim_fleet", "test_sim_grpc", "test_sim_process", "test_site_browser", "test_smoke", "test_started_servers",
    "test_stats_item_harm", "test_store_away", "test_store_going_on", "test_telemetry_replicas", "test_warmup",
    "test_wheel", "test_work_once", "test_workers",
})  # fmt: skip
_QUICK_DRILL = "prefix-cache"
# Tests of the store run on SQLite and Postgres. In the quick tier these alone do so on Postgres.
_ON_POSTGRES = ("test_store_contract", "test_store_lost", "test_store_open", "test_store_owning")


def _is_slow(item: pytest.Item) -> bool:
    """Return True for a test that the quick tier leaves out."""
    module, given = item.path.stem, item.callspec.params if hasattr(item, "callspec") else {}
    if module in _LONG or (module == "test_drills" and given.get("name", _QUICK_DRILL) != _QUICK_DRILL):
        return True
    databases = {given.get("store_address"), given.get("shared_address")} - {None, "sqlite"}
    return given.get("compiled_and_not") == "not compiled" or bool(databases and module not in _ON_POSTGRES)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark whole runs `alone`, and what the quick tier leaves out `slow`.

    Whole runs are judged by what they measured; with another test the load generator would be the bottleneck.
    """
    for item in items:
        if _MEASURE in item.path.parents and item.get_closest_marker("beside") is None:
            item.add_marker(pytest.mark.alone)
        if _is_slow(item):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session", autouse=True)
def the_samples_are_of_the_past() -> Iterator[None]:
    """Samples have fixed days, and a store takes nothing of a time to come: by its clock they are over on any day."""
    from benchgate.store import clock

    by_the_database = clock.latest
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(clock, "latest", lambda connection: max(by_the_database(connection), SAMPLES_ARE_OVER))
        yield


@pytest.fixture(scope="session", autouse=True)
def stores_are_quick() -> Iterator[None]:
    """See `quick_store`; `test_store_open` has its stores as users have them."""
    from alembic import command

    from tests.fakes import quick_store

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(command, "upgrade", quick_store.upgrade)
        patched.setattr("benchgate.store.database._SQLITE_PRAGMAS", quick_store.HURRIED_PRAGMAS)
        yield


@pytest.fixture(scope="session", autouse=True)
def load_workers_start_quickly() -> Iterator[None]:
    """See `quick_workers`."""
    from tests.fakes import quick_workers

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("benchgate.load.workers.multiprocessing", quick_workers.Multiprocessing())
        yield
