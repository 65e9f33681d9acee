"""Which release came from which, by releases and not by addresses: every way back, the newest first."""

from __future__ import annotations

from benchgate.gate.cumulative import Gap, PastRelease, Promotion, judged_baseline, same_pair, steps_back
from benchgate.model.history import PastArm, PastRun


def at(release: str, address: str = "one") -> PastArm:
    """A release, measured at some address."""
    return PastArm(release.lower(), f"{release} at {address}", release, "here")


def run(number: int, baseline: PastArm, candidate: PastArm) -> PastRun:
    return PastRun(f"run-{number}", f"2026-01-{number + 1:02}T00:00:00Z", None, baseline, candidate, {})


def promotions(history: tuple[PastRun, ...], place: PastRelease) -> list[tuple[str, str, int]]:
    """Which runs promoted it, over which release, and how many of the oldest runs may come before that."""
    found = [step for step in steps_back(history, place) if isinstance(step, Promotion)]
    return [(one.run.run_id, one.older.release, one.older.older_runs) for one in found]


def test_a_release_is_the_same_at_another_address() -> None:
    promoted = run(0, at("A"), at("B"))
    place = judged_baseline((promoted,), at("B", "two"), at("C"))
    assert place == PastRelease("B", 1)
    assert promotions((promoted,), place) == [("run-0", "A", 0)]
    assert same_pair((at("A"), at("B")), (at("A", "two"), at("B", "two")))
    assert not same_pair((at("A"), at("B")), (at("B"), at("A")))
    assert not same_pair((at("A"), at("B")), (at("A"), at("C")))


def test_of_one_release_at_two_addresses_the_address_tells() -> None:
    moved = run(0, at("A", "one"), at("A", "two"))
    assert judged_baseline((moved,), at("A", "two"), at("A", "three")) == PastRelease("A at two", 1)
    assert promotions((moved,), PastRelease("A at two", 1)) == [("run-0", "A at one", 0)]
    assert not same_pair((at("A", "one"), at("A", "two")), (at("A", "two"), at("A", "one")))


def test_every_run_that_promoted_a_release_is_a_way_back_the_newest_first_and_none_that_came_later() -> None:
    history = (run(0, at("A"), at("C")), run(1, at("B"), at("C")), run(2, at("A"), at("B")), run(3, at("D"), at("C")))
    assert promotions(history, PastRelease("C", 3)) == [("run-1", "B", 1), ("run-0", "A", 0)]
    assert len(steps_back(history, PastRelease("C", 3))) == 2


def test_a_release_that_no_run_promoted_leaves_a_gap_to_each_that_was_in_service_before() -> None:
    history = (run(0, at("A"), at("X")), run(1, at("B"), at("X")), run(2, at("A"), at("Y")), run(3, at("C"), at("Z")))
    found = [one for one in steps_back(history, PastRelease("C", 4)) if isinstance(one, Gap)]
    assert [(one.before.run_id, one.older.release, one.older.older_runs) for one in found] == [
        ("run-2", "A", 3),
        ("run-1", "B", 2),
    ]
    assert [one.after.run_id if one.after else None for one in found] == ["run-3", "run-3"]
    unseen = [one for one in steps_back(history[:3], PastRelease("C", 3)) if isinstance(one, Gap)]
    assert [one.after for one in unseen] == [None, None]
    assert steps_back((), PastRelease("C", 0)) == ()
