"""A statement held against report, suite and store: what was changed is found, and nothing unchecked holds."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from benchgate.cli.options import ResultFormat
from benchgate.cli.release import verify as command
from benchgate.errors import BenchgateError, ExitCode, UsageError
from benchgate.model.deployment import sha256_of
from benchgate.model.verdict import ChecksByResult, Outcome, Waiver, Waivers
from benchgate.pipeline.judge import Decision, decide_stored, write_report
from benchgate.release.attest import StatedArm, StatedFile, Statement, read_statement, statement_of
from benchgate.release.verify import (
    Answer,
    Line,
    NotSigned,
    Signer,
    Verified,
    VerifyRequest,
    require_sigstore,
    verify,
    verify_signature,
)
from benchgate.report.document import OWN, verdict_document
from benchgate.store.repository import Store
from benchgate.suite.error_budget import ErrorBudget
from benchgate.suite.loader import parse_suite
from benchgate.suite.rules.suite import only_part, with_arms
from benchgate.suite.stages import SloSpec
from tests.fakes import evidence as fake
from tests.fakes.measured import HEALTHY, Effect, SuiteText
from tests.fakes.promotable import BLOCKED, begun, judged
from tests.fakes.sigstore_world import IDENTITY, ISSUER, REF, REPOSITORY, SigstoreWorld

SUITE = """suite: two  # measured nightly
deployments:
  old: {url: "http://old", model: m}
  new: {url: "http://new", model: m}
  other: {url: "http://other", model: m}
baseline: old
candidate: new
shadow: {prompts: prompts.jsonl}
load: {workload: {input: 8 tokens, output: 8 tokens}, blocks: 4, sweep: [{stage: c1, concurrency: 1, requests: 2}]}
gate: {checks: [{metric: error_rate, max: 1%}, {metric: shadow_excess, margin: 3 points}]}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("verify")


@pytest.fixture(scope="module")
def store(folder: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{folder / 'runs.sqlite'}") as opened:
        yield opened


@pytest.fixture(scope="module")
def passed(store: Store) -> Decision:
    return decide_stored(store, judged(store)[0], keep=False)


@pytest.fixture(scope="module")
def blocked(store: Store) -> Decision:
    return decide_stored(store, judged(store, BLOCKED)[0], keep=False)


@pytest.fixture(scope="module")
def page(folder: Path, passed: Decision) -> tuple[Path, StatedFile]:
    file = folder / "report.html"
    return file, StatedFile(file.name, write_report(passed, file))


def stated(decision: Decision, report: StatedFile | None = None, suite: str | None = None) -> Statement:
    return statement_of(decision, decision.exit_code, report=report, suite_file_sha256=suite)


def held(statement: Statement, asked: VerifyRequest) -> Verified:
    return verify(statement, statement.data(), asked)


def of(found: Verified, part: str) -> list[Line]:
    return [line for line in found.lines if line.part == part]


def answers(found: Verified, part: str) -> list[Answer]:
    return [line.answer for line in of(found, part)]


def test_what_was_written_holds_and_what_was_not_given_is_not_checked(
    store: Store, passed: Decision, page: tuple[Path, StatedFile]
) -> None:
    found = held(stated(passed, page[1]), VerifyRequest(report=page[0], store=store))
    assert (found.holds, found.exit_code) == (True, ExitCode.OK)
    assert answers(found, "report") == [Answer.HOLDS]
    assert answers(found, "store") == [Answer.HOLDS] * 3  # evidence, verdict, and the report made anew
    assert answers(found, "suite") == answers(found, "signature") == [Answer.UNCHECKED]
    assert "anybody can write one" in of(found, "signature")[0].text
    assert not held(stated(passed), VerifyRequest()).holds


def test_verdict_that_does_not_promote_holds_with_its_own_code(store: Store, blocked: Decision) -> None:
    found = held(stated(blocked), VerifyRequest(store=store))
    assert (found.holds, found.exit_code) == (True, ExitCode.BLOCK)


@given(data=st.data())
def test_one_changed_byte_of_the_report_is_found(data: st.DataObject, folder: Path, passed: Decision) -> None:
    page = folder / "report.html"
    true = page.read_bytes()
    report = StatedFile(page.name, hashlib.sha256(true).hexdigest())
    place = data.draw(st.integers(0, len(true) - 1))
    flip = data.draw(st.integers(1, 255))
    changed = folder / "changed.html"
    changed.write_bytes(true[:place] + bytes([true[place] ^ flip]) + true[place + 1 :])
    found = held(stated(passed, report), VerifyRequest(report=changed))
    assert (found.holds, found.exit_code) == (False, ExitCode.INVALID)


def of_suite(decision: Decision, text: str = SUITE, *, shadow: bool = False) -> Statement:
    """As if the suite had been measured, its own arms or those of the decision."""
    suite = parse_suite(text, "suite.yaml")
    measured = with_arms(only_part(suite, "shadow") if shadow else suite, "old", "other")
    made = stated(decision, suite=hashlib.sha256(text.encode()).hexdigest())
    arms = {
        "baseline": replace(made.arms["baseline"], name="old"),
        "candidate": replace(made.arms["candidate"], name="other"),
    }
    return replace(made, run=replace(made.run, suite_sha256=sha256_of(measured.to_stored())), arms=arms)


def test_suite_is_held_by_its_bytes_and_by_what_it_says_of_the_two_that_were_measured(
    tmp_path: Path, passed: Decision
) -> None:
    file = tmp_path / "suite.yaml"
    file.write_text(SUITE)
    assert answers(held(of_suite(passed), VerifyRequest(suite=file)), "suite") == [Answer.HOLDS, Answer.HOLDS]
    part = held(of_suite(passed, shadow=True), VerifyRequest(suite=file))
    assert answers(part, "suite") == [Answer.HOLDS, Answer.BROKEN]
    assert "only one part" in of(part, "suite")[1].text


def test_one_changed_byte_of_the_suite_is_found_a_comment_too(tmp_path: Path, passed: Decision) -> None:
    file, statement, data = tmp_path / "suite.yaml", of_suite(passed), SUITE.encode()
    for place in (*range(0, len(data), 29), data.index(b"nightly"), len(data) - 1):
        file.write_bytes(data[:place] + bytes([data[place] ^ (1 << place % 7)]) + data[place + 1 :])
        assert held(statement, VerifyRequest(suite=file)).exit_code is ExitCode.INVALID
    file.write_text(SUITE.replace("nightly", "daily"))
    assert answers(held(statement, VerifyRequest(suite=file)), "suite") == [Answer.BROKEN, Answer.HOLDS]


def test_where_only_what_a_suite_says_is_stated_another_margin_is_found_and_its_bytes_are_not_checked(
    tmp_path: Path, passed: Decision
) -> None:
    file, statement = tmp_path / "suite.yaml", replace(of_suite(passed), suite_file_sha256=None)
    file.write_text(SUITE)
    assert answers(held(statement, VerifyRequest(suite=file)), "suite") == [Answer.UNCHECKED, Answer.HOLDS]
    file.write_text(SUITE.replace("max: 1%", "max: 9%"))
    assert answers(held(statement, VerifyRequest(suite=file)), "suite") == [Answer.UNCHECKED, Answer.BROKEN]


def test_report_where_none_is_stated_and_a_suite_that_is_none_do_not_hold(tmp_path: Path, passed: Decision) -> None:
    file = tmp_path / "x"
    file.write_bytes(b"\xff")
    found = held(stated(passed), VerifyRequest(report=file, suite=file))
    assert answers(found, "report") == [Answer.BROKEN]
    assert answers(found, "suite") == [Answer.UNCHECKED, Answer.BROKEN]


@pytest.mark.parametrize(
    "changes",
    [
        {"verdict_sha256": "0" * 64},
        {"tests": ChecksByResult((), (), ())},
        {"policy_sha256": "0" * 64},
        {"arms": dict.fromkeys(("baseline", "candidate"), StatedArm("new", "m", "vllm", "0" * 64, None, ()))},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_statement_that_says_otherwise_than_the_store_does_not_hold(
    store: Store, passed: Decision, changes: dict[str, object]
) -> None:
    found = held(replace(stated(passed), **changes), VerifyRequest(store=store))  # type: ignore[arg-type]  # any field
    assert Answer.BROKEN in answers(found, "store") and found.exit_code is ExitCode.INVALID


def test_pass_that_was_forged_of_a_blocked_run_is_found_by_its_store(
    store: Store, passed: Decision, blocked: Decision
) -> None:
    forged = replace(stated(passed), run=stated(blocked).run, arms=stated(blocked).arms)
    assert read_statement(forged.data(), "x").result == "PASSED"  # by itself nothing is wrong with it
    found = held(forged, VerifyRequest(store=store))
    assert found.exit_code is ExitCode.INVALID
    assert "judged again is BLOCK" in of(found, "store")[1].text


def test_run_that_the_store_lacks_or_has_with_other_evidence_does_not_hold(store: Store, passed: Decision) -> None:
    statement = stated(passed)
    absent = replace(statement, run=replace(statement.run, id="gone"))
    assert "the store has no run" in of(held(absent, VerifyRequest(store=store)), "store")[0].text
    other = replace(statement, run=replace(statement.run, evidence_sha256="0" * 64))
    assert answers(held(other, VerifyRequest(store=store)), "store")[0] is Answer.BROKEN


@pytest.mark.parametrize("what", ["run", "candidate", "revision"])
def test_true_statement_of_something_else_than_was_meant_does_not_hold(
    store: Store, passed: Decision, what: str
) -> None:
    made = stated(passed)
    said: dict[str, Any] = {
        "run": made.run.id,
        "candidate": made.arms["candidate"].name,
        "revision": "ab" * 20,
    }
    arms = {**made.arms, "candidate": replace(made.arms["candidate"], revision=said["revision"])}
    meant: dict[str, Any] = {what: said[what]}
    asked = VerifyRequest(store=store, **meant)
    assert answers(held(replace(made, arms=arms) if what == "revision" else made, asked), what) == [Answer.HOLDS]
    for other in ("another", ""):
        unlike: dict[str, Any] = {what: other}
        found = held(made, VerifyRequest(store=store, **unlike))
        assert (found.exit_code, answers(found, what)) == (ExitCode.INVALID, [Answer.BROKEN])


def test_verdict_over_evals_that_were_made_elsewhere_is_none_to_deploy_by(
    passed: Decision, page: tuple[Path, StatedFile]
) -> None:
    made = stated(passed, page[1])
    found = held(replace(made, run=replace(made.run, imported=True)), VerifyRequest(report=page[0]))
    assert (found.exit_code, answers(found, "evals")) == (ExitCode.INVALID, [Answer.BROKEN])


def test_another_policy_holds_only_where_it_is_given(store: Store, blocked: Decision) -> None:
    lenient = SuiteText([{"metric": "ttft", "max": "10s"}, {"metric": "error_rate", "max": "10%"}]).suite()
    decision = decide_stored(store, blocked.evidence.run.id, policy=lenient, keep=False)
    statement = stated(decision)
    assert (decision.verdict.outcome, statement.policy_replaced) == (Outcome.PASS, True)
    assert held(statement, VerifyRequest(store=store)).exit_code is ExitCode.INVALID
    assert held(statement, VerifyRequest(store=store, policy=lenient)).exit_code is ExitCode.OK
    with pytest.raises(UsageError, match="leave it out"):
        held(stated(blocked), VerifyRequest(store=store, policy=lenient))


@pytest.mark.parametrize(
    "other",
    [
        {"slo": SloSpec.model_validate({"ttft": "10s", "target": "50%"})},
        {"slo": None},
        {"error_budget": ErrorBudget.model_validate({"objective": "95%", "window": "28d", "spent": "0%"})},
    ],
)
def test_statement_by_a_policy_with_another_slo_or_error_budget_does_not_hold(
    store: Store, blocked: Decision, other: dict[str, object]
) -> None:
    approved = SuiteText([{"metric": "ttft", "max": "10s"}, {"metric": "error_rate", "max": "10%"}]).suite()
    lax = approved.model_copy(update=other)
    statement = stated(decide_stored(store, blocked.evidence.run.id, policy=lax, keep=False))
    assert answers(held(statement, VerifyRequest(policy=lax)), "policy") == [Answer.HOLDS]
    found = held(statement, VerifyRequest(policy=approved))
    assert (found.exit_code, answers(found, "policy")) == (ExitCode.INVALID, [Answer.BROKEN])


def test_verdict_that_rests_on_waivers_is_judged_again_with_them(store: Store) -> None:
    run_id, _ = judged(store, Effect(slowdown=1.2))
    (check,) = [one.id for one in decide_stored(store, run_id, keep=False).verdict.failing()]
    who = {"owner": "anna", "issue": "X-1", "reason": "known", "approved_by": "ben"}
    waivers = Waivers((Waiver(check, "made-up", "candidate", "50%", date(2026, 1, 5), **who),), date(2026, 1, 5))
    statement = stated(decide_stored(store, run_id, waivers=waivers, keep=False))
    assert (statement.result, statement.waivers_as_of) == ("WARNED", "2026-01-05")
    with pytest.raises(UsageError, match="add --waivers FILE"):
        held(statement, VerifyRequest(store=store))
    assert held(statement, VerifyRequest(store=store, waivers=waivers)).exit_code is ExitCode.OK
    assert (
        held(statement, VerifyRequest(store=store, waivers=Waivers((), date(2026, 1, 5)))).exit_code is ExitCode.INVALID
    )


def test_comparison_with_another_run_is_made_again(store: Store, passed: Decision) -> None:
    against = passed.evidence.run.id
    decision = decide_stored(store, judged(store)[0], against, keep=False)
    statement = stated(decision)
    assert statement.against is not None and statement.against.id == against
    assert held(statement, VerifyRequest(store=store, against=against)).holds
    for named in (None, statement.run.id):
        assert held(statement, VerifyRequest(store=store, against=named)).exit_code is ExitCode.INVALID
    with pytest.raises(UsageError, match="--against"):
        held(stated(passed), VerifyRequest(store=store, against=against))


def test_statement_of_a_part_of_a_suite_promotes_nothing(store: Store) -> None:
    decision = decide_stored(store, begun(store, only="load"), keep=False)
    assert held(stated(decision), VerifyRequest(store=store)).exit_code is ExitCode.INCONCLUSIVE
    statement = replace(stated(decision), exit_code=ExitCode.OK)
    (line, *_) = [line for line in held(statement, VerifyRequest(store=store)).lines if line.answer is Answer.BROKEN]
    assert "only its `load` was measured" in line.text


@pytest.mark.parametrize(("effect", "outcome"), [(HEALTHY, Outcome.PASS), (BLOCKED, Outcome.WARN)])
def test_reference_that_never_got_a_verdict_is_held_to_its_own_policy(
    store: Store, effect: Effect, outcome: Outcome
) -> None:
    reference, run_id = (begun(store, effect) for _ in range(2))
    verdict = decide_stored(store, run_id, reference, keep=False).verdict
    assert verdict.outcome is outcome
    assert ("reference run's own verdict was BLOCK" in verdict.reason) is (effect is BLOCKED)


def left(folder: Path, statement: Statement) -> Path:
    file = folder / "statement.intoto.json"
    file.write_bytes(statement.data())
    return file


def test_command_says_every_line_and_ends_with_the_code(
    folder: Path, passed: Decision, page: tuple[Path, StatedFile], capsys: pytest.CaptureFixture[str]
) -> None:
    file, address = left(folder, stated(passed, page[1])), f"sqlite:///{folder / 'runs.sqlite'}"
    with pytest.raises(typer.Exit) as ended:
        command(file, report=page[0], require="report")
    said = capsys.readouterr().out
    assert ended.value.exit_code == 0
    assert "suite      not checked" in said
    assert said.endswith("and the statement says of itself that the verdict promotes: exit code 0\n")
    with pytest.raises(typer.Exit):
        command(file, store=address)
    assert capsys.readouterr().out.endswith("holds, and the verdict promotes: exit code 0\n")
    with pytest.raises(typer.Exit) as ended:
        command(left(folder, replace(stated(passed), verdict_sha256="0" * 64)), store=address, output=ResultFormat.JSON)
    document = json.loads(capsys.readouterr().out)
    assert (ended.value.exit_code, document["holds"], document["exit_code"]) == (12, False, 12)


def test_warning_that_holds_ends_with_10_where_warnings_are_as_bad(folder: Path, passed: Decision) -> None:
    warned = replace(stated(passed), outcome=Outcome.WARN)
    report = folder / "w.html"
    report.write_bytes(b"w")
    warned = replace(warned, report=StatedFile("w.html", hashlib.sha256(b"w").hexdigest()))
    for strict, code in ((False, 0), (True, 10)):
        with pytest.raises(typer.Exit) as ended:
            command(left(folder, warned), report=report, strict=strict)
        assert ended.value.exit_code == code


@pytest.mark.parametrize(
    ("given_too", "says"),
    [
        ({}, "nothing to hold it against"),
        ({"require": "store"}, "--require store: nothing was compared"),
        ({"require": "reprot"}, "did you mean 'report'"),
        ({"identity": "anna"}, "add --bundle FILE"),
        ({"bundle": Path("b.json")}, "any signature would pass"),
        ({"bundle": Path("b.json"), "identity": "anna", "issuer": ""}, "any signature would pass"),
        ({"waivers": Path("w.yaml")}, "add --store"),
        ({"report": Path("nowhere.html")}, "cannot be read"),
    ],
)
def test_command_refuses_what_it_could_not_answer(
    folder: Path, passed: Decision, page: tuple[Path, StatedFile], given_too: dict[str, object], says: str
) -> None:
    arguments = {"report": page[0], **given_too} if given_too else {}
    with pytest.raises(BenchgateError, match=says) as refused:
        command(left(folder, stated(passed, page[1])), **arguments)  # type: ignore[arg-type]  # any option
    assert refused.value.exit_code is ExitCode.USAGE


def statement(outcome: Outcome = Outcome.PASS) -> Statement:
    evidence, verdict = fake.evidence(), fake.verdict(outcome)
    decision = Decision(evidence, None, verdict, OWN, verdict_document(evidence.run, verdict))
    return statement_of(decision, decision.exit_code, report=StatedFile("report.html", "ab" * 32))


@pytest.fixture(scope="module")
def world() -> SigstoreWorld:
    pytest.importorskip("sigstore.verify", reason="the extra `sign` is not installed")
    return SigstoreWorld()


def signer(folder: Path, world: SigstoreWorld, bundle: object, **changes: str) -> Signer:
    (folder / "bundle.json").write_text(json.dumps(bundle))
    (folder / "root.json").write_text(world.trusted_root())
    who = {"identity": IDENTITY, "issuer": ISSUER} | changes
    root = folder / "root.json"
    return Signer(folder / "bundle.json", who["identity"], who["issuer"], root, who.get("repository"), who.get("ref"))


def signed_as_github_does(said: Statement, **changes: object) -> bytes:
    """actions/attest signs a predicate that it is given, about files that it hashes itself."""
    document = said.document()
    subject = [{"name": "report.html", "digest": {"sha256": "ab" * 32}}]
    keys = {"_type": document["_type"], "predicateType": document["predicateType"], "predicate": document["predicate"]}
    return json.dumps({**keys, "subject": subject, **changes}).encode()


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sigstore.verify", None)
    with pytest.raises(UsageError, match=r"needs sigstore.*\[sign\]"):
        require_sigstore()


def test_whole_statement_that_was_signed_by_whom_it_should_be_holds(tmp_path: Path, world: SigstoreWorld) -> None:
    said = statement()
    asked = VerifyRequest(signer=signer(tmp_path, world, world.bundle(said.data())))
    found = verify(said, said.data(), asked)
    assert [line.answer for line in found.lines if line.part == "signature"] == [Answer.HOLDS]
    assert (found.holds, found.exit_code) == (True, ExitCode.OK)


def test_predicate_that_was_signed_for_its_report_or_for_the_statement_itself_holds(
    tmp_path: Path, world: SigstoreWorld
) -> None:
    said = statement()
    own = [{"name": "s", "digest": {"sha256": hashlib.sha256(said.data()).hexdigest()}}]
    for payload in (signed_as_github_does(said), signed_as_github_does(said, subject=own)):
        verify_signature(said, said.data(), signer(tmp_path, world, world.bundle(payload)))


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (lambda said: statement(Outcome.BLOCK).data(), "the predicate that was signed is another"),
        (
            lambda said: signed_as_github_does(said, predicateType="https://slsa.dev/provenance/v1"),
            "no result of a test",
        ),
        (lambda said: signed_as_github_does(said, subject=[]), "about another file"),
        (lambda said: signed_as_github_does(said, subject=[{"digest": {"sha256": "0" * 64}}]), "about another file"),
        (lambda said: signed_as_github_does(said, subject=[{"name": "x"}]), "no in-toto statement"),
        (lambda said: b"[]", "no in-toto statement"),
        (lambda said: b"\xff", "no in-toto statement"),
    ],
)
def test_signature_over_anything_else_does_not_hold(
    tmp_path: Path, world: SigstoreWorld, payload: Callable[[Statement], bytes], why: str
) -> None:
    said = statement()
    with pytest.raises(NotSigned, match=why):
        verify_signature(said, said.data(), signer(tmp_path, world, world.bundle(payload(said))))


def test_another_identity_issuer_or_root_does_not_hold(tmp_path: Path, world: SigstoreWorld) -> None:
    said = statement()
    bundle = world.bundle(said.data())
    for one in (
        signer(tmp_path, world, bundle, identity=f"{IDENTITY}x"),
        signer(tmp_path, world, bundle, identity=IDENTITY[:-1]),
        signer(tmp_path, world, bundle, issuer="https://accounts.example"),
        signer(tmp_path, SigstoreWorld(), bundle),
    ):
        with pytest.raises(NotSigned, match="sigstore refuses the bundle"):
            verify_signature(said, said.data(), one)


@pytest.mark.parametrize("repository", ["https://github.com/org/models-x", "https://github.com/evil/fork", None])
def test_workflow_that_signs_for_whoever_calls_it_is_taken_at_its_word_for_its_own_repository_alone(
    tmp_path: Path, world: SigstoreWorld, repository: str | None
) -> None:
    said = statement()
    bundle = world.bundle(said.data(), repository=repository)
    with pytest.raises(NotSigned, match="sigstore refuses the bundle"):
        verify_signature(said, said.data(), signer(tmp_path, world, bundle))
    if repository is not None:
        verify_signature(said, said.data(), signer(tmp_path, world, bundle, repository=repository))


def test_signature_for_another_branch_does_not_hold(tmp_path: Path, world: SigstoreWorld) -> None:
    """A reusable workflow signs whatever any branch of a repository hands to it, under one identity."""
    said, theirs = statement(), "https://github.com/org/other"
    for ref, holds in (("refs/heads/main", True), ("refs/heads/forged", False), (None, False)):
        bundle = world.bundle(said.data(), repository=theirs, ref=ref)
        one = signer(tmp_path, world, bundle, repository=theirs, ref="refs/heads/main")
        with nullcontext() if holds else pytest.raises(NotSigned, match="sigstore refuses the bundle"):
            verify_signature(said, said.data(), one)


def test_a_repository_is_required_with_its_branch(tmp_path: Path, world: SigstoreWorld) -> None:
    said = statement()
    one = signer(tmp_path, world, world.bundle(said.data()))
    asked: dict[str, Any] = {"bundle": one.bundle, "identity": IDENTITY, "issuer": ISSUER, "trust_root": one.trust_root}
    file = tmp_path / "s.json"
    file.write_bytes(said.data())
    with pytest.raises(UsageError, match="--repository requires --ref, like refs/heads/main"):
        command(file, **asked, repository=REPOSITORY)
    with pytest.raises(typer.Exit) as ended:
        command(file, **asked, repository=REPOSITORY, ref=REF)
    assert ended.value.exit_code == ExitCode.OK
    with pytest.raises(UsageError, match="--ref is of a signature"):
        command(file, report=file, ref=REF)


def test_signer_that_is_no_workflow_needs_no_repository(tmp_path: Path, world: SigstoreWorld) -> None:
    said, who = statement(), "https://accounts.example/anna"
    bundle = world.bundle(said.data(), identity=who, repository=None)
    verify_signature(said, said.data(), signer(tmp_path, world, bundle, identity=who))


@pytest.mark.parametrize(
    ("identity", "repository"),
    [
        (IDENTITY, "https://github.com/org/models"),
        (
            "https://gitlab.example/group/sub/models//.gitlab-ci.yml@refs/heads/main",
            "https://gitlab.example/group/sub/models",
        ),
    ],
)
def test_repository_of_a_workflow_is_the_one_it_lies_in(
    tmp_path: Path, world: SigstoreWorld, identity: str, repository: str
) -> None:
    said = statement()
    bundle = world.bundle(said.data(), identity=identity, repository=repository)
    verify_signature(said, said.data(), signer(tmp_path, world, bundle, identity=identity))


def _payload(bundle: Any) -> None:
    bundle["dsseEnvelope"]["payload"] = bundle["dsseEnvelope"]["payload"].replace("A", "B", 1)


def _no_log(bundle: Any) -> None:
    bundle["verificationMaterial"]["tlogEntries"] = []


def _other_time(bundle: Any) -> None:
    bundle["verificationMaterial"]["tlogEntries"][0]["integratedTime"] = "1767323046"


def _no_envelope(bundle: Any) -> None:
    del bundle["dsseEnvelope"]


@pytest.mark.parametrize("change", [_payload, _no_log, _other_time, _no_envelope, dict.clear])
def test_bundle_that_was_changed_does_not_hold(
    tmp_path: Path, world: SigstoreWorld, change: Callable[[Any], None]
) -> None:
    said = statement()
    bundle = world.bundle(said.data())
    change(bundle)
    with pytest.raises(NotSigned, match="sigstore refuses the bundle"):
        verify_signature(said, said.data(), signer(tmp_path, world, bundle))


def test_payload_of_another_type_and_files_that_are_none_are_refused(tmp_path: Path, world: SigstoreWorld) -> None:
    said = statement()
    with pytest.raises(NotSigned, match="the bundle is over 'text/plain'"):
        verify_signature(said, said.data(), signer(tmp_path, world, world.bundle(said.data(), kind="text/plain")))
    one = signer(tmp_path, world, world.bundle(said.data()))
    (tmp_path / "root.json").write_text("{}")
    with pytest.raises(UsageError, match="--trust-root"):
        verify_signature(said, said.data(), one)
    (tmp_path / "bundle.json").unlink()
    with pytest.raises(UsageError, match="cannot be read"):
        verify_signature(said, said.data(), one)
