"""Obstacles to a promotion, and the forms of a suite that a run may have measured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from benchgate.errors import ExitCode
from benchgate.model.deployment import Arm
from benchgate.model.run import RunStatus
from benchgate.model.verdict import Outcome
from benchgate.release.eligibility import ObstacleKind as Kind
from benchgate.release.eligibility import (
    Requirements,
    measured_forms,
    promotion_obstacles,
    run_obstacles,
    verdict_obstacles,
)
from benchgate.store.repository import Store
from benchgate.suite.loader import parse_suite
from tests.fakes.promotable import begun, judged, write_record

COMMIT = "5f" * 20
NOW = "2026-01-04T00:00:00.000Z"  # three days after a run of 2026-01-01
PINNED: Mapping[str, object] = {"settings": {"revision": COMMIT}}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(str(tmp_path / "runs.sqlite")) as opened:
        yield opened


def kinds(store: Store, run_id: str, requirements: Requirements) -> list[Kind]:
    return [one.kind for one in run_obstacles(store.run(run_id), NOW, requirements)]


def test_every_obstacle_of_a_run_is_listed_in_a_fixed_order(store: Store) -> None:
    any_age = Requirements(math.inf)
    assert kinds(store, begun(store), any_age) == []
    partial = begun(store, calibration=True, status=RunStatus.PARTIAL, candidate={"settings": {"revision": "main"}})
    assert kinds(store, partial, Requirements(3600)) == [
        Kind.CALIBRATION, Kind.INCOMPLETE, Kind.TOO_OLD, Kind.NOT_PINNED,
    ]  # fmt: skip
    assert kinds(store, begun(store, candidate={"facts": {"imported": True}}), any_age) == [Kind.IMPORTED]
    assert kinds(store, begun(store, only="load"), any_age) == [Kind.PART]
    pinned, unpinned = begun(store, candidate=PINNED), begun(store)
    assert kinds(store, pinned, Requirements(math.inf, require_pinned=True, revision=COMMIT)) == []
    assert kinds(store, pinned, Requirements(math.inf, revision="a3" * 20)) == [Kind.OTHER_REVISION]
    assert kinds(store, unpinned, Requirements(math.inf, require_pinned=True)) == [Kind.NOT_PINNED]
    assert kinds(store, unpinned, Requirements(math.inf, revision=COMMIT)) == [Kind.OTHER_REVISION]


@pytest.mark.parametrize(
    ("outcome", "strict", "code"),
    [
        (Outcome.PASS, True, None),
        (Outcome.WARN, False, None),
        (Outcome.WARN, True, ExitCode.BLOCK),
        (Outcome.BLOCK, False, ExitCode.BLOCK),
        (Outcome.INCONCLUSIVE, False, ExitCode.INCONCLUSIVE),
        (Outcome.INVALID, False, ExitCode.INVALID),
    ],
)
def test_a_verdict_is_an_obstacle_with_its_own_code(outcome: Outcome, strict: bool, code: ExitCode | None) -> None:
    found = [one.exit_code for one in verdict_obstacles(outcome, "it failed", strict=strict)]
    assert found == ([] if code is None else [code])


def test_a_required_promotion_must_be_recorded(store: Store, tmp_path: Path) -> None:
    run_id, _ = judged(store)
    run = store.run(run_id)
    assert list(promotion_obstacles(run, [])) == []
    assert [one.kind for one in promotion_obstacles(run, [], required=True)] == [Kind.NOT_PROMOTED]
    write_record(str(tmp_path / "runs.sqlite"), run_id, "2026-01-02T00:00:00.000Z")
    assert list(promotion_obstacles(run, store.promotions(), required=True)) == []


SUITE = """suite: two
deployments: {old: {url: "http://a", model: m}, new: {url: "http://b", model: m}, other: {url: "http://c", model: m}}
baseline: old
candidate: new
shadow: {prompts: prompts.jsonl}
load: {workload: {input: 8 tokens, output: 8 tokens}, blocks: 4, sweep: [{stage: c1, concurrency: 1, requests: 2}]}
"""


def test_a_suite_is_measured_whole_for_two_deployments_or_in_part(tmp_path: Path) -> None:
    suite = parse_suite(SUITE, "suite.yaml")
    whole, arms, *parts = measured_forms(suite, tmp_path, None, {Arm.BASELINE: "old", Arm.CANDIDATE: "other"})
    assert len({form.sha256 for form in (whole, arms, *parts)}) == 2 + len(parts)
    assert [whole.is_only_part, arms.is_only_part] == [False, False] and all(form.is_only_part for form in parts)
    unknown = measured_forms(suite, tmp_path, None, {Arm.CANDIDATE: "gone"})
    assert unknown[0].sha256 == unknown[1].sha256 == whole.sha256
    unpriced = measured_forms(suite.model_copy(update={"prices": "prices.yaml"}), tmp_path, None, {})
    assert {form.sha256 for form in unpriced} == {None}
