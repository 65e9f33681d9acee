"""`benchgate frontier` over a store: what is left out of the table, and what passes no more whatever its verdict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchgate.errors import UsageError
from benchgate.gate.summary.metric_rows import metric_rows
from benchgate.model.history import Promotion, PromotionAction
from benchgate.model.run import ONLY_PART, QUICK_LOOK
from benchgate.pipeline.compare_runs import newest_of_each, read_stored, select_runs
from benchgate.store.repository import Store
from tests.fakes.promotable import begun
from tests.fakes.quick_command import answer
from tests.fakes.right_sized import candidate, write
from tests.fakes.site_runs import MAIN, promote


def test_a_run_whose_suite_a_newer_benchgate_stored_is_left_out_by_name() -> None:
    known, strange = candidate("q4").run, candidate("q2").run
    strange = replace(strange, suite={**strange.suite, "from_tomorrow": 1})
    for runs in ((strange, known), (known, strange)):
        found = newest_of_each(runs)
        assert [run.id for run in found.runs] == [known.id]
        (note,) = found.notes
        assert note.startswith(
            f"the newest whole run of q2, {strange.id}, is left out: this version of benchgate cannot read"
        )
    assert newest_of_each([strange]).runs == ()


@pytest.mark.parametrize("part", ["load", "quality", "shadow", QUICK_LOOK])
def test_a_run_of_a_part_of_the_suite_stands_for_no_candidate(tmp_path: Path, part: str) -> None:
    """The complete run before it stays the candidate's newest, and is held back by none of its verdicts."""
    whole, other = candidate("q4"), candidate("q8", started_at="2026-01-02T04:00:00Z")
    later = candidate(
        "q4", started_at="2026-01-03T03:04:05Z", environment={ONLY_PART: part}, measurement_sha256="p" * 64
    )
    with Store.open(str(tmp_path / "b.db")) as store:
        ids = [write(store, whole, "BLOCK"), write(store, other, "PASS")]
        part_id = write(store, later, "PASS")
        found = select_runs(store, [])
        assert {run.id for run in found.runs} == set(ids)
        assert (found.notes, found.newer) == ((), {})
        assert select_runs(store, ids).newer == {}
        with pytest.raises(UsageError, match=f"{part_id}.* by the whole suite"):
            select_runs(store, [ids[0], part_id])


def test_a_promotion_that_was_withdrawn_is_known_with_its_reason_until_it_is_promoted_again(tmp_path: Path) -> None:
    with Store.open(str(tmp_path / "b.db")) as store:
        run = store.run(write(store, candidate("q4"), "PASS"))

        def withdrawn() -> str | None:
            return read_stored(store, run, from_records=False).withdrawn

        promote(store, run.id, "2026-01-05T00:00:00.000Z")
        assert withdrawn() is None
        back = Promotion(
            "w", run.id, "2026-01-06T00:00:00.000Z", run.suite_name, PromotionAction.WITHDRAWN, MAIN, None, "it leaks"
        )
        store.save_promotion(back)
        assert withdrawn() == "it leaks"
        promote(store, run.id, "2026-01-07T00:00:00.000Z")
        assert withdrawn() is None


POLICY = """
suite: made-up
deployments:
  baseline: {url: "http://b", model: m}
  candidate: {url: "http://c", model: m}
load:
  workload: {input: 8, output: 10}
  blocks: 8
  sweep: [{stage: c4, concurrency: 4, requests: 20}]
gate: {checks: [{metric: ttft, margin: 10%}, {metric: error_rate, max: 20%}]}
"""


def test_what_a_policy_lets_through_is_priced_by_its_records_though_its_own_verdict_was_none(tmp_path: Path) -> None:
    """Its stored figures are a hundredth of what it cost: $2 an hour, 200 tokens in about 2.03 s."""
    (tmp_path / "policy.yaml").write_text(POLICY)
    with Store.open(str(tmp_path / "b.db")) as store:
        run_id = begun(store)
        made = metric_rows(store.evidence(run_id))
        store.save_metrics(run_id, [replace(row, value=row.value / 100, lower=None, upper=None) for row in made])
    said = ["frontier", run_id, "--policy", str(tmp_path / "policy.yaml"), "--store", str(tmp_path / "b.db")]
    code, told, _ = answer(*said)
    assert code == 0
    assert "The cheapest that passes is candidate (PASS): $5.65 (" in told
