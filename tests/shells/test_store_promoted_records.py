"""Raw records of promoted runs, on SQLite and on Postgres: they stay as long as a promotion rests on them."""

from __future__ import annotations

import pytest

from benchgate.errors import EvidenceError
from benchgate.model.history import PromotionAction, PromotionOrigin
from benchgate.model.run import RunStatus
from benchgate.pipeline.environment import utc_now
from benchgate.store.repository import Store
from benchgate.store.retention import Policy, older_than
from tests.fakes.promotable import begun, judged, promote, write_record
from tests.shells.store_samples import PLAN, make_load, make_run

pytest_plugins = ["tests.shells.store_databases"]

FAR_AHEAD = "2098-01-01T00:00:00Z"
TEN_DAYS = Policy(older_than_s=10 * 86_400.0)


def ended(store: Store, day: str) -> str:
    """A run with raw records that ended on a day; its id."""
    run = make_run(started_at=f"{day}T00:00:00Z")
    writer = store.begin_run(run, PLAN)
    writer.add(make_load())
    writer.finish(RunStatus.COMPLETE, f"{day}T01:00:00Z")
    return run.id


def test_run_is_not_promoted_once_its_records_went_while_it_was_judged(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id, _ = judged(store)
    begun(store, day="2026-01-02")

    def meanwhile() -> str:
        (gone,) = store.remove_raw(store.expendable(Policy(), FAR_AHEAD), now=FAR_AHEAD, reason="store gc").runs
        assert gone.run_id == run_id
        return utc_now()

    monkeypatch.setattr("benchgate.release.promote.utc_now", meanwhile)
    with pytest.raises(EvidenceError, match="its raw records were removed"):
        promote(store, run_id, PromotionOrigin("anna", "main", protected=True))
    assert store.promotions() == []


def test_records_stay_of_a_run_that_was_promoted_while_others_went(store: Store, store_address: str) -> None:
    run_id, _ = ended(store, "2020-01-01"), ended(store, "2020-01-02")
    chosen = store.expendable(Policy(), FAR_AHEAD)
    write_record(store_address, run_id, "2020-02-01T00:00:00.000Z", "smoke")
    done = store.remove_raw(chosen, now=FAR_AHEAD, reason="store gc")
    assert (done.runs, done.stayed) == ((), ((run_id, "it was promoted a moment ago"),))


def test_records_of_a_withdrawn_run_go_when_it_was_withdrawn_long_enough_ago(store: Store, store_address: str) -> None:
    stands, withdrawn, to_come, _ = (ended(store, f"2020-01-0{day}") for day in range(1, 5))
    for run_id in (stands, withdrawn):
        write_record(store_address, run_id, "2020-02-01T00:00:00.000Z", "smoke")
    taken_back = {"deed": PromotionAction.WITHDRAWN, "grounds": None, "reason": "it leaks"}
    write_record(store_address, withdrawn, "2020-03-01T00:00:00.000Z", "smoke", **taken_back)
    write_record(store_address, to_come, "2099-01-01T00:00:00.000Z", "smoke")

    early, late = "2020-03-10T00:00:00Z", "2020-03-12T00:00:00Z"
    assert store.expendable(TEN_DAYS, early) == []
    assert store.kept_raw(TEN_DAYS, early) == {"promoted": 2, "among the newest of its suite": 1, "not old enough": 1}
    assert [one.run_id for one in store.expendable(TEN_DAYS, late)] == [withdrawn]
    assert store.kept_raw(TEN_DAYS, late) == {"promoted": 2, "among the newest of its suite": 1}
    chosen = store.expendable(Policy(), early)
    assert [older_than(chosen, days * 86_400.0, early) for days in (8, 10)] == [chosen, []]
    assert store.kept_raw(Policy(suite="other"), early) == {}
