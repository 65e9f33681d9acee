"""Promotions from a real store, on SQLite and on Postgres: what may be recorded, and what it changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, text

from benchgate.errors import EvidenceError, ExitCode, PublishError, StoreError, UsageError
from benchgate.model.deployment import Arm
from benchgate.model.history import Promotion, PromotionAction, PromotionOrigin
from benchgate.model.run import MetricRow, RunStatus
from benchgate.model.verdict import Outcome
from benchgate.pipeline.environment import utc_now
from benchgate.release.promote import NotPromoted, require_current, withdraw
from benchgate.store import rows, tables
from benchgate.store.merge import copy_store
from benchgate.store.migrate import opened
from benchgate.store.repository import Store
from benchgate.store.results import read_promotion
from tests.fakes.promotable import BLOCKED, begun, judged, promote, write_record
from tests.shells.store_samples import write_run

pytest_plugins = ["tests.shells.store_databases"]

MAIN = PromotionOrigin("anna", "refs/heads/main", "c0ffee", protected=True)
PULL = PromotionOrigin("mallory", "refs/pull/7/merge", "bad")
FAR_AHEAD = "2098-01-01"  # begins after everything that a test records
LONG_AGO, FUTURE = "2020-01-01T00:00:00.000Z", "2099-01-01T00:00:00.000Z"
TAKEN_BACK: dict[str, Any] = {"deed": PromotionAction.WITHDRAWN, "grounds": None, "reason": "so that creep forgets it"}


@pytest.fixture(autouse=True)
def short_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hash of a report is tested in `test_release_promote`; rendering one takes longer than all else here."""
    monkeypatch.setattr("benchgate.pipeline.judge.report_html", lambda decision: decision.evidence.run.id)


def passed(store: Store, *, day: str = "2026-01-01") -> str:
    run_id, outcome = judged(store, day=day)
    assert outcome is Outcome.PASS
    return run_id


def test_promotion_records_who_when_the_verdict_and_what_all_of_it_hashes_to(store: Store) -> None:
    run_id = passed(store)
    found = promote(store, run_id, MAIN)
    (kept,) = store.promotions("made-up")
    assert found.new and kept == found.promotion
    assert (kept.run_id, kept.deed, kept.origin, kept.in_series, kept.reason) == (
        run_id,
        PromotionAction.PROMOTED,
        MAIN,
        True,
        None,
    )
    (verdict,) = store.verdicts(run_id)
    assert kept.grounds is not None and verdict.decided_at is not None
    assert (kept.grounds.outcome, kept.grounds.verdict_sha256) == (Outcome.PASS, verdict.sha256)
    assert kept.grounds.evidence_sha256 == store.evidence_sha256(run_id)
    assert (kept.grounds.suite_sha256, kept.grounds.measurement_sha256) == ("s" * 64, "m" * 64)
    assert kept.grounds.policy_sha256 == verdict.document["policy_sha256"]
    assert kept.promoted_at > verdict.decided_at
    assert store.check().findings == ()


def test_promoting_a_run_twice_says_so_and_records_nothing(store: Store) -> None:
    run_id = passed(store)
    first = promote(store, run_id, MAIN)
    again = promote(store, run_id, replace(MAIN, by="ben"))
    assert not again.new and again.promotion == first.promotion
    assert store.promotions() == [first.promotion]


def test_run_that_was_promoted_off_the_series_enters_it_from_a_protected_ref(store: Store) -> None:
    run_id = passed(store)
    assert not promote(store, run_id, replace(MAIN, protected=False)).promotion.in_series
    with pytest.raises(UsageError, match="no run that was promoted on a protected ref"):
        store.resolve("@promoted")
    assert promote(store, run_id, MAIN).new and store.resolve("@promoted") == run_id


def test_run_of_another_tool_is_refused(store: Store, store_address: str) -> None:
    run_id = passed(store)
    row = {"id": "i", "run_id": run_id, "imported_at": "2026-01-02T00:00:00Z", "source": "x", "source_sha256": "0" * 64}
    with opened(store_address, create=False) as database, database.writing() as connection:
        connection.execute(insert(tables.imported).values(**row, document="{}", sha256=rows.text_sha256("{}")))
    with pytest.raises(UsageError, match="measured by another tool"):
        promote(store, run_id, MAIN)


def test_withdrawal_makes_promoted_mean_the_one_before(store: Store) -> None:
    first, second = passed(store), passed(store, day="2026-01-02")
    promote(store, first, MAIN)
    promote(store, second, MAIN)
    assert store.resolve("@promoted") == second
    assert withdraw(store, second, MAIN, "it leaks").promotion.deed is PromotionAction.WITHDRAWN
    assert store.resolve("@promoted") == store.resolve("@promoted", suite="made-up") == first
    with pytest.raises(UsageError, match="not promoted, so there is nothing to withdraw"):
        withdraw(store, second, MAIN, "again")
    with pytest.raises(NotPromoted, match="its promotion was withdrawn; --repeat") as refused:
        promote(store, second, MAIN)  # by a job that is started over, say
    assert (refused.value.exit_code, store.resolve("@promoted")) == (ExitCode.PUBLISH_FAILED, first)
    assert promote(store, second, MAIN, again=True).new and store.resolve("@promoted") == second
    with pytest.raises(UsageError, match="of suite 'other'"):
        store.resolve("@promoted", suite="other")


def test_nothing_follows_a_promotion_that_is_not_the_newest_or_was_made_before(store: Store) -> None:
    first, second = passed(store), passed(store, day="2026-01-02")
    recorded = promote(store, first, MAIN)

    def refused(*, again: bool = True, override: str | None = None) -> str:
        with pytest.raises(PublishError, match=f"no hook runs for the promotion of run {first}") as failed:
            require_current(store, recorded, again=again, override=override)
        return str(failed.value)

    require_current(store, recorded, again=False, override=None)
    assert "the override is not recorded" in refused(override="the old one is on fire")
    recorded = promote(store, first, MAIN)
    assert "was recorded before" in refused(again=False)
    require_current(store, recorded, again=True, override=None)
    promote(store, second, MAIN)
    assert f"run {second} was promoted after it" in refused()  # it would take the place of what is in service
    withdraw(store, second, MAIN, "it leaks")
    require_current(store, recorded, again=True, override=None)
    withdraw(store, first, MAIN, "it leaks too")
    assert "it was withdrawn meanwhile" in refused()


def test_older_run_replaces_a_newer_promoted_one_only_when_asked(store: Store) -> None:
    first, second = passed(store), passed(store, day="2026-01-02")
    promote(store, second, PULL)
    with pytest.raises(NotPromoted, match=f"run {second}, which was measured later, is promoted; --repeat") as refused:
        promote(store, first, PULL)  # by a job that waited, or is started over
    assert refused.value.exit_code is ExitCode.PUBLISH_FAILED
    assert promote(store, first, MAIN).new  # what a pull request promoted does not keep it from the series
    promote(store, second, MAIN)
    assert not promote(store, first, MAIN).new  # recorded before, so nothing changes
    assert store.resolve("@promoted") == second


def test_older_run_does_not_enter_the_series_unasked_after_a_newer_one(store: Store) -> None:
    first, second = passed(store), passed(store, day="2026-01-02")
    promote(store, first, PULL)
    promote(store, second, MAIN)
    with pytest.raises(NotPromoted, match=f"run {second}, which was measured later"):
        promote(store, first, MAIN)
    assert promote(store, first, MAIN, again=True).new and store.resolve("@promoted") == first


def test_run_is_held_against_what_was_promoted_of_its_own_suite(store: Store) -> None:
    run_id, other = passed(store), write_run(store)
    promote(store, run_id, MAIN)
    assert store.resolve_beside("@promoted", begun(store)) == run_id
    with pytest.raises(UsageError, match="of suite 'smoke'"):
        store.resolve_beside("@promoted", other.id)
    assert store.resolve_beside(run_id, other.id) == run_id
    with pytest.raises(UsageError, match=f"@promoted means run {run_id}, which is the one to be judged"):
        store.resolve_beside("@promoted", run_id)


def test_promoted_of_several_suites_is_no_run(store: Store, store_address: str) -> None:
    ids = [write_run(store, suite_name=name).id for name in ("chat", "code")]
    for run_id, name in zip(ids, ("chat", "code"), strict=True):
        write_record(store_address, run_id, LONG_AGO, name)
    with pytest.raises(UsageError, match=f"means 2 runs, one of each suite.* {ids[0]} of 'chat', {ids[1]} of 'code'"):
        store.resolve("@promoted")
    assert [store.resolve("@promoted", suite=name) for name in ("chat", "code")] == ids


def test_series_is_changed_from_protected_refs_alone(store: Store) -> None:
    run_id = passed(store)
    promote(store, run_id, MAIN)
    with pytest.raises(UsageError, match=r"only a protected ref may change.* --ref REF --protected"):
        withdraw(store, run_id, PULL, "so that creep forgets it")
    assert store.resolve("@promoted") == run_id


def copied(store_address: str, folder: Path) -> tuple[str, str | None]:
    """A copy of the store in another, and what stood against it."""
    elsewhere = str(folder / "elsewhere.db")
    with opened(store_address, create=False) as source, opened(elsewhere, create=True) as target:
        (taken,) = copy_store(source, target)
    return elsewhere, taken.problem


def test_withdrawal_without_the_right_to_be_one_comes_in_and_counts_for_nothing(
    store: Store, store_address: str, tmp_path: Path
) -> None:
    run_id = passed(store)
    promote(store, run_id, MAIN)
    write_record(store_address, run_id, utc_now(), origin=PULL, **TAKEN_BACK)
    elsewhere, problem = copied(store_address, tmp_path)
    assert problem is None
    for address in (store_address, elsewhere):
        with Store.open(address) as there:
            assert (len(there.promotions()), there.resolve("@promoted")) == (2, run_id)


def test_promotion_of_a_time_to_come_is_refused_wherever_it_comes_from(
    store: Store, store_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = passed(store)
    with monkeypatch.context() as clock:
        clock.setattr("benchgate.release.promote.utc_now", lambda: FUTURE)
        with pytest.raises(EvidenceError, match=r"is of 2099-01-01.* set the clock of the machine"):
            promote(store, run_id, MAIN)
    assert store.promotions() == []
    write_record(store_address, run_id, FUTURE, **TAKEN_BACK)
    elsewhere, problem = copied(store_address, tmp_path)
    assert "its promotion is of 2099-01-01" in str(problem)
    with Store.open(elsewhere) as there:
        assert there.runs() == []


def test_promotion_of_a_time_to_come_stops_no_other_and_is_told_by_a_check(store: Store, store_address: str) -> None:
    early, later = write_run(store, suite_name="made-up").id, passed(store, day="2026-11-21")
    write_record(store_address, early, LONG_AGO)
    write_record(store_address, later, FUTURE)  # as by a machine whose clock was wrong once
    assert store.resolve("@promoted") == early
    assert [one.run_id for one in store.promotions()] == [early]
    assert any(f"it is of {FUTURE}, which is still to come" in one.problem for one in store.check().findings)
    assert promote(store, later, MAIN).new and store.resolve("@promoted") == later
    assert withdraw(store, later, MAIN, "it leaks").new


def test_passing_run_of_a_pull_request_does_not_enter_the_history_once_promotions_are_recorded(store: Store) -> None:
    poisoned, promoted = passed(store), passed(store, day="2026-01-02")
    promote(store, poisoned, PULL)
    before = begun(store, day=FAR_AHEAD)
    assert [past.run_id for past in store.evidence(before).history] == [poisoned, promoted]  # by verdicts, as ever
    kept = promote(store, promoted, MAIN).promotion
    (past,) = store.evidence(before).history
    assert (past.run_id, past.decided_at, past.promoted_at) == (promoted, kept.promoted_at, kept.promoted_at)
    assert past.checks


def test_promotion_made_after_a_run_began_is_no_history_of_it(store: Store) -> None:
    first, second = passed(store), passed(store, day="2026-01-02")
    promote(store, first, MAIN)
    promote(store, second, MAIN)
    assert store.evidence(second).history == ()  # it began, and was judged, before either
    assert [past.run_id for past in store.evidence(begun(store, day=FAR_AHEAD)).history] == [first, second]
    withdraw(store, second, MAIN, "it leaks")
    assert [past.run_id for past in store.evidence(begun(store, day=FAR_AHEAD)).history] == [first]


def test_withdrawing_all_of_a_series_wipes_no_history(store: Store) -> None:
    """Else one promotion that is taken back would make all that crept in before it forgotten."""
    ids = [passed(store), passed(store, day="2026-01-02")]
    before = store.evidence(begun(store, day=FAR_AHEAD)).history
    promote(store, ids[0], MAIN)
    assert [past.run_id for past in store.evidence(begun(store, day=FAR_AHEAD)).history] == ids[:1]
    withdraw(store, ids[0], MAIN, "it leaks")
    after = store.evidence(begun(store, day=FAR_AHEAD)).history
    assert [past.run_id for past in after] == [past.run_id for past in before] == ids


def test_trend_tells_what_became_of_each_run(store: Store) -> None:
    ids = [passed(store), passed(store, day="2026-01-02"), judged(store, BLOCKED, day="2026-01-03")[0]]
    for run_id in ids:
        store.save_metrics(run_id, [MetricRow(Arm.CANDIDATE, "goodput", None, None, None, 0.5, 1)])
    promote(store, ids[0], MAIN)
    promote(store, ids[2], MAIN, override="a fire")
    told = [point.promoted for point in store.trend("goodput", arm=Arm.CANDIDATE)]
    assert told == ["promoted, in the baseline series", None, "overridden"]
    withdraw(store, ids[0], MAIN, "it leaks")
    told = [point.promoted for point in store.trend("goodput", suite="made-up")]
    assert told == ["withdrawn", None, "overridden"]


Change = Callable[[Promotion], Promotion]


def _grounds(**changes: Any) -> Change:
    def change(promotion: Promotion) -> Promotion:
        assert promotion.grounds is not None
        return replace(promotion, id="x", promoted_at=utc_now(), grounds=replace(promotion.grounds, **changes))

    return change


MISFITS: tuple[tuple[Change, type[StoreError], str], ...] = (
    (_grounds(evidence_sha256="0" * 64), EvidenceError, "another evidence_sha256"),
    (_grounds(suite_sha256="0" * 64), EvidenceError, "another suite_sha256"),
    (_grounds(measurement_sha256="0" * 64), EvidenceError, "another measurement_sha256"),
    (_grounds(verdict_sha256="0" * 64), EvidenceError, "rests on another verdict"),
    (_grounds(outcome=Outcome.WARN), EvidenceError, "rests on another verdict"),
    (lambda one: replace(one, id="x", promoted_at="2020-01-01T00:00:00.000Z"), StoreError, "clock"),
    (lambda one: replace(_grounds()(one), suite="other"), EvidenceError, "of suite 'other'"),
)


def test_store_takes_no_promotion_that_does_not_fit_its_run(store: Store) -> None:
    outside = promote(store, passed(store), PULL).promotion
    for change, error, says in MISFITS:
        with pytest.raises(error, match=says):
            store.save_promotion(change(replace(outside, origin=MAIN)))
    assert store.promotions() == [outside]


def test_store_takes_no_promotion_of_an_unfinished_run_nor_by_a_verdict_that_was_replaced(store: Store) -> None:
    run_id, short = passed(store), begun(store, status=RunStatus.PARTIAL)
    outside = promote(store, run_id, PULL).promotion
    with pytest.raises(EvidenceError, match="is partial, not complete"):
        store.save_promotion(replace(_grounds()(outside), run_id=short))
    (verdict,) = store.verdicts(run_id)
    store.save_verdict(run_id, {**verdict.document, "outcome": "BLOCK"}, decided_at="2098-01-01T00:00:00.000Z")
    with pytest.raises(EvidenceError, match="rests on another verdict"):
        store.save_promotion(replace(_grounds()(outside), origin=MAIN))
    assert store.promotions() == [outside]


def test_changed_promotion_is_found_wherever_it_is_read(store: Store, store_address: str) -> None:
    run_id = passed(store)
    kept = promote(store, run_id, PULL).promotion
    whole = rows.to_json(kept.to_json(), "it")
    row = {"id": kept.id, "run_id": run_id, "promoted_at": kept.promoted_at, "suite_name": kept.suite, "in_series": 1}
    sealed = row | {"document": whole, "sha256": rows.text_sha256(whole)}
    with pytest.raises(EvidenceError, match="listed as another"):
        read_promotion(sealed)  # lifted into the series by its column
    assert read_promotion(sealed | {"in_series": 0}) == kept
    with pytest.raises(EvidenceError, match="does not hash"):
        read_promotion(sealed | {"document": whole.replace("false", "true")})
    with pytest.raises(EvidenceError, match="is none"):
        read_promotion(row | {"document": "{}", "sha256": rows.text_sha256("{}")})
    with opened(store_address, create=False) as database, database.writing() as connection:
        connection.execute(insert(tables.promotion).values(**sealed | {"id": "lifted"}))
    assert [finding.place for finding in store.check().findings] == ["promotion lifted"]
    for read in (
        store.promotions,
        lambda: store.resolve("@promoted"),
        lambda: store.evidence(begun(store, day=FAR_AHEAD)),
    ):
        with pytest.raises(EvidenceError, match="lifted"):
            read()


def test_promotions_never_change(store: Store, store_address: str) -> None:
    promote(store, passed(store), MAIN)
    for change in ("UPDATE promotion SET in_series = 0", "DELETE FROM promotion"):
        with (
            pytest.raises(StoreError),
            opened(store_address, create=False) as database,
            database.writing() as connection,
        ):
            connection.execute(text(change))
    assert len(store.promotions()) == 1
