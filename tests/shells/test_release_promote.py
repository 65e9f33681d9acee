"""What may be promoted: a run that is judged once more and comes out as it was stored, with a yes."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path

import pytest

from benchgate.errors import ExitCode, SuiteError, UsageError
from benchgate.model.deployment import PinStatus, identity_of
from benchgate.model.history import PromotionAction, PromotionOrigin
from benchgate.model.run import RunStatus
from benchgate.model.verdict import Outcome, Waiver, Waivers
from benchgate.pipeline.deployments import declared_deployment
from benchgate.pipeline.judge import decide_stored, report_html, write_report
from benchgate.release import promote as promotion
from benchgate.release.promote import NotPromoted, withdraw
from benchgate.store.repository import Store
from benchgate.suite.loader import parse_suite
from tests.fakes import quick_command
from tests.fakes.measured import Effect, SuiteText
from tests.fakes.promotable import BLOCKED, CHECK, begun, days_ago, judged, promote

pytestmark = pytest.mark.usefixtures("no_figures")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path / 'runs.sqlite'}") as opened:
        yield opened


MAIN = PromotionOrigin("anna", "refs/heads/main", "c0ffee", protected=True)


def passed(store: Store, *, day: str = "2026-01-01") -> str:
    run_id, outcome = judged(store, day=day)
    assert outcome is Outcome.PASS
    return run_id


@pytest.mark.parametrize(
    ("effect", "outcome", "code"),
    [(BLOCKED, Outcome.BLOCK, ExitCode.BLOCK), (Effect(drop_last=True), Outcome.INVALID, ExitCode.INVALID)],
    ids=["BLOCK", "INVALID"],
)
def test_what_does_not_pass_is_refused_with_its_code_and_overridden_only_out_of_the_series(
    store: Store, effect: Effect, outcome: Outcome, code: ExitCode
) -> None:
    run_id, found = judged(store, effect)
    assert found is outcome
    with pytest.raises(NotPromoted, match="is not promoted") as refused:
        promote(store, run_id, MAIN)
    assert (refused.value.exit_code, store.promotions()) == (code, [])
    kept = promote(store, run_id, MAIN, override="the old one is on fire").promotion
    assert (kept.deed, kept.in_series, kept.reason) == (PromotionAction.OVERRIDDEN, False, "the old one is on fire")
    assert kept.grounds is not None and kept.grounds.outcome is outcome
    with pytest.raises(UsageError, match="@promoted means nothing"):
        store.resolve("@promoted")


def test_run_that_passes_needs_no_override(store: Store) -> None:
    with pytest.raises(UsageError, match="leave --override out"):
        promote(store, passed(store), MAIN, override="to be sure")


def test_warning_is_refused_where_warnings_are_as_bad_as_blocks(store: Store) -> None:
    missed = {"metric": "ttft", "max": "1ms", "required": False}
    run_id, outcome = judged(store, checks=[CHECK, missed])
    assert outcome is Outcome.WARN
    with pytest.raises(NotPromoted) as refused:
        promote(store, run_id, MAIN, strict=True)
    assert refused.value.exit_code is ExitCode.BLOCK
    assert "is not promoted: strict treats WARN like BLOCK" in str(refused.value)
    assert "may be promoted" not in str(refused.value)
    assert promote(store, run_id, MAIN).promotion.in_series


def test_run_that_was_never_judged_or_whose_stored_verdict_says_otherwise_is_refused(store: Store) -> None:
    run_id = begun(store)
    with pytest.raises(NotPromoted, match="its newest stored verdict is not there"):
        promote(store, run_id, MAIN)
    decide_stored(store, run_id)
    (true,) = store.verdicts(run_id)
    store.save_verdict(run_id, {**true.document, "reason": "trust me"}, decided_at="2098-01-01T00:00:00.000Z")
    with pytest.raises(NotPromoted, match="is PASS as judged now, and its newest stored verdict is another") as refused:
        promote(store, run_id, MAIN)
    assert (refused.value.exit_code, store.promotions()) == (ExitCode.PUBLISH_FAILED, [])


def test_a_forged_pass_of_a_blocked_run_promotes_nobody(store: Store) -> None:
    run_id, _ = judged(store, BLOCKED)
    (true,) = store.verdicts(run_id)
    forged = {**true.document, "outcome": "PASS", "exit_code": 0, "promotes": True}
    store.save_verdict(run_id, forged, decided_at="2098-01-01T00:00:00.000Z")
    with pytest.raises(NotPromoted, match="is BLOCK as judged now") as refused:
        promote(store, run_id, MAIN)
    assert refused.value.exit_code is ExitCode.BLOCK
    with pytest.raises(NotPromoted, match="is another"):
        promote(store, run_id, MAIN, override="still")


def test_calibration_import_and_run_that_was_cut_short_are_refused(store: Store) -> None:
    calibration = begun(store, calibration=True)
    imported, _ = judged(store, Effect(facts={"imported": True}))
    short = begun(store, status=RunStatus.PARTIAL)
    for run_id, why in ((calibration, "is a calibration"), (imported, "was imported")):
        with pytest.raises(UsageError, match=why):
            promote(store, run_id, MAIN, override="anyway")
    with pytest.raises(NotPromoted, match="only a complete run") as refused:
        promote(store, short, MAIN, override="anyway")
    assert (refused.value.exit_code, store.promotions()) == (ExitCode.INVALID, [])


def test_run_that_ended_too_long_ago_is_refused_and_an_override_is_no_way_around(store: Store) -> None:
    old, late = passed(store, day=days_ago(40)), passed(store, day=days_ago(20))
    a_month = partial(promotion.promote, store, origin=MAIN, max_age_s=30 * 86_400.0)
    for override in (None, "the old one is on fire"):
        with pytest.raises(NotPromoted, match=r"days ago, more than 30\.0 days; measure it again") as refused:
            a_month(run_id=old, override=override)
        assert (refused.value.exit_code, store.promotions()) == (ExitCode.INVALID, [])
    assert a_month(run_id=late).promotion.in_series


def test_another_policy_promotes_nobody(store: Store) -> None:
    run_id, _ = judged(store, BLOCKED)
    lenient = SuiteText([{"metric": "ttft", "max": "10s"}, {"metric": "error_rate", "max": "10%"}]).suite()
    assert decide_stored(store, run_id, policy=lenient).verdict.outcome.promotes
    own, other = passed(store), passed(store)
    decide_stored(store, own, policy=lenient)
    decide_stored(store, own, other)
    assert promote(store, own, MAIN).new  # nor does it take anything from a run's own verdict
    with pytest.raises(NotPromoted) as refused:
        promote(store, run_id, MAIN)
    assert refused.value.exit_code is ExitCode.BLOCK


def test_report_must_be_the_one_that_the_store_gives_byte_for_byte(store: Store, tmp_path: Path) -> None:
    run_id, page = passed(store), tmp_path / "report.html"
    write_report(decide_stored(store, run_id, keep=False), page)
    page.write_bytes(page.read_bytes().replace(b"PASS", b"pass", 1))
    with pytest.raises(NotPromoted, match="is not the report of run") as refused:
        promote(store, run_id, MAIN, report=page)
    assert (refused.value.exit_code, store.promotions()) == (ExitCode.PUBLISH_FAILED, [])
    with pytest.raises(UsageError, match="cannot be read"):
        promote(store, run_id, MAIN, report=tmp_path)
    decision = decide_stored(store, run_id, keep=False)
    plain = report_html(decision).encode()
    page.write_text(report_html(decision, in_site=True), encoding="utf-8")  # it says the same, and rests on the same
    promoted = promote(store, run_id, MAIN, report=page)
    assert promoted.new and promoted.promotion.grounds is not None
    assert promoted.promotion.grounds.report_sha256 == hashlib.sha256(plain).hexdigest()
    page.write_bytes(plain)
    assert not promote(store, run_id, MAIN, report=page).new, "it was recorded already"


def test_what_a_waiver_let_through_is_promoted_with_it_and_not_without(store: Store) -> None:
    run_id, outcome = judged(store, Effect(slowdown=1.2))
    (check,) = [one.id for one in decide_stored(store, run_id).verdict.checks if one.outcome is Outcome.BLOCK]
    day = date(2026, 1, 5)
    who = {"owner": "anna", "issue": "X-1", "reason": "known", "approved_by": "ben"}
    waiver = Waiver(check, "made-up", "candidate", "50%", day, **who)
    waivers = Waivers((waiver,), day)
    assert (outcome, decide_stored(store, run_id, waivers=waivers).verdict.outcome) == (Outcome.BLOCK, Outcome.WARN)
    with pytest.raises(NotPromoted) as refused:
        promote(store, run_id, MAIN)
    assert refused.value.exit_code is ExitCode.BLOCK
    with pytest.raises(NotPromoted, match="is another"):
        promote(store, run_id, MAIN, waivers=replace(waivers, as_of=date(2026, 1, 4)))
    assert promote(store, run_id, MAIN, waivers=waivers).promotion.in_series


def test_the_next_command_of_a_verdict_with_an_unused_waiver_file_promotes(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_id = passed(store, day=days_ago(1))
    Path("waivers.yaml").write_text("waivers: []\n")
    at = ("--store", f"sqlite:///{tmp_path / 'runs.sqlite'}")
    judged_anew = quick_command.told("gate", run_id, "--waivers", "waivers.yaml", *at)
    assert judged_anew.exit_code == 0
    (line,) = re.findall(r"^next: benchgate (.*)$", judged_anew.stdout, re.MULTILINE)
    words = shlex.split(line.replace("FILE", "waivers.yaml"))
    assert quick_command.told(*words, "--ref", "main", "--protected", *at).exit_code == 0
    assert [one.run_id for one in store.promotions()] == [run_id]


def test_what_people_write_is_one_line_that_no_terminal_obeys(store: Store) -> None:
    run_id = begun(store)
    for said in ("", " ", "a\nb", "\x1b[2J", "x" * 501, "\u202egnp"):
        for tried in (
            partial(promote, store, run_id, replace(MAIN, by=said)),
            partial(promote, store, run_id, MAIN, override=said),
            partial(withdraw, store, run_id, MAIN, said),
        ):
            with pytest.raises(UsageError, match="on one line"):
                tried()


COMMIT = "5f" * 20
ADDRESSES = """
suite: chat
deployments:
  stable: {url: "http://a", model: org/chat}
  awq: {url: "http://b", model: org/chat-awq, revision: REVISION}
baseline: stable
candidate: awq
load: {workload: {input: 8, output: 8}, sweep: [{stage: c1, concurrency: 1, requests: 8}]}
"""


def test_revision_that_a_suite_declares_is_what_its_runs_remember() -> None:
    suite = parse_suite(ADDRESSES.replace("REVISION", COMMIT), "suite.yaml")
    assert identity_of(declared_deployment(suite, "awq")).revision == COMMIT
    assert identity_of(declared_deployment(suite, "stable")).pin is PinStatus.UNKNOWN
    stored = suite.to_stored()["deployments"]
    assert ("revision" in stored["stable"], stored["awq"]["revision"]) == (False, COMMIT)
    with pytest.raises(SuiteError, match="means nothing for an embedded deployment"):
        parse_suite(ADDRESSES.replace('url: "http://b", model: org/chat-awq', "embedded: {}"), "suite.yaml")


@pytest.mark.parametrize(
    ("candidate", "told"),
    [
        ({"settings": {"revision": "main"}}, "m at main, which is no commit of 40 hex digits"),
        ({"model": "org/chat@v1"}, "org/chat at v1, which is no commit"),
        ({"settings": {"revision": COMMIT}, "facts": {"model_sha": "a3" * 20}}, "by the suite, and at a3a3"),
    ],
    ids=["branch", "tag", "contradicted"],
)
def test_weights_under_a_name_that_may_move_are_promoted_by_nothing(
    store: Store, candidate: dict[str, object], told: str
) -> None:
    run_id = begun(store, candidate=candidate)
    for override in (None, "the old one is on fire"):
        with pytest.raises(NotPromoted, match="may differ from those measured") as refused:
            promote(store, run_id, MAIN, override=override)
        assert (refused.value.exit_code, store.promotions()) == (ExitCode.INVALID, [])
        assert told in str(refused.value)


def test_what_is_not_pinned_is_promoted_and_told_unless_it_must_be(store: Store) -> None:
    run_id = passed(store)
    with pytest.raises(NotPromoted, match="at no stated revision"):
        promote(store, run_id, MAIN, require_pinned=True)
    recorded = promote(store, run_id, MAIN)
    assert recorded.identity is not None and "its identity is not pinned" in recorded.identity.description
    assert recorded.promotion.grounds is not None and recorded.promotion.grounds.revision is None
    assert "revision" not in str(recorded.promotion.to_json())  # as those that were recorded before it was asked


def test_revision_that_was_measured_is_recorded_and_read_back(store: Store) -> None:
    run_id = begun(store, candidate={"settings": {"revision": COMMIT}})
    decide_stored(store, run_id)
    promote(store, run_id, MAIN, require_pinned=True)
    (kept,) = store.promotions()
    assert kept.grounds is not None and kept.grounds.revision == COMMIT
