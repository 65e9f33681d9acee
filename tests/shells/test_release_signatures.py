"""Whose signature a bundle holds, and over what: sigstore itself checks it, against an instance of our own keys."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchgate.errors import ExitCode, UsageError
from benchgate.model.verdict import Outcome
from benchgate.pipeline.judge import Decision
from benchgate.release.attest import StatedFile, Statement, statement_of
from benchgate.release.verify import (
    Answer,
    NotSigned,
    Signer,
    VerifyRequest,
    require_sigstore,
    verify,
    verify_signature,
)
from benchgate.report.document import OWN, verdict_document
from tests.fakes import evidence as fake
from tests.fakes.sigstore_world import IDENTITY, ISSUER, SigstoreWorld


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
    return Signer(folder / "bundle.json", who["identity"], who["issuer"], root, who.get("repository"))


def signed_as_github_does(said: Statement, **changes: object) -> bytes:
    """actions/attest signs a predicate that it is given, about files that it hashes itself."""
    document = said.document()
    subject = [{"name": "report.html", "digest": {"sha256": "ab" * 32}}]
    keys = {"_type": document["_type"], "predicateType": document["predicateType"], "predicate": document["predicate"]}
    return json.dumps({**keys, "subject": subject, **changes}).encode()


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sigstore.verify", None)
    with pytest.raises(UsageError, match=r"needs sigstore.*benchgate\[sign\]"):
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
