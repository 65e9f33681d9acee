"""Verification of a statement against its report, its suite, its run in the store, and its signature.

Every comparison has one of three answers. What was not compared is "not checked", which is never "holds". A signature
is a sigstore bundle, checked without a network: a certificate that names the signer and who vouched for them, a
signature over a DSSE envelope, and the proof that a public log has it. sigstore (the extra `sign`) checks those; the
content of the envelope is checked here.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from benchgate.errors import BenchgateError, EvidenceError, ExitCode, SuiteError, UsageError
from benchgate.escape import one_line
from benchgate.model.deployment import Arm
from benchgate.model.run import start_day
from benchgate.model.verdict import Waivers
from benchgate.pipeline.judge import Decision, decide_stored, report_html
from benchgate.release.attest import PREDICATE_TYPE, TYPE, Statement, statement_of
from benchgate.release.eligibility import IMPORTED_EVALS, ObstacleKind, measured_forms, purpose_obstacles
from benchgate.report.document import policy_parts_sha256
from benchgate.store.repository import Store
from benchgate.suite.loader import parse_suite
from benchgate.suite.schema import Suite
from benchgate.system import lacking


class Part(StrEnum):
    """Part that a statement can be compared with."""

    REPORT = "report"
    SUITE = "suite"
    STORE = "store"
    SIGNATURE = "signature"


class Answer(StrEnum):
    """Result of a comparison."""

    HOLDS = "holds"
    BROKEN = "does not hold"
    UNCHECKED = "not checked"


@dataclass(frozen=True, slots=True)
class Line:
    """A comparison: a description of it, and what to do if it does not hold."""

    part: str
    answer: Answer
    text: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """Parts to compare a statement with; None skips one. `policy` and `waivers` are those that it was judged by.

    `run`, `candidate` and `revision` are about to be deployed: a true statement may be about something else. `against`
    is the stored run that it was compared with.
    """

    run: str | None = None
    candidate: str | None = None
    revision: str | None = None
    report: Path | None = None
    suite: Path | None = None
    store: Store | None = None
    signer: Signer | None = None
    policy: Suite | None = None
    waivers: Waivers | None = None
    against: str | None = None


@dataclass(frozen=True, slots=True)
class Verified:
    """A statement with its comparisons."""

    statement: Statement
    lines: Sequence[Line]

    @property
    def holds(self) -> bool:
        """True if something was compared, and all of that holds."""
        compared = [line for line in self.lines if line.answer is not Answer.UNCHECKED]
        return bool(compared) and all(line.answer is Answer.HOLDS for line in compared)

    @property
    def vouched(self) -> bool:
        """True if store or signature hold, which cannot be forged like a statement."""
        return any(line.part in (Part.STORE, Part.SIGNATURE) and line.answer is Answer.HOLDS for line in self.lines)

    @property
    def exit_code(self) -> ExitCode:
        """The exit code stated if the statement holds, else 12."""
        return self.statement.exit_code if self.holds else ExitCode.INVALID


def verify(statement: Statement, data: bytes, request: VerifyRequest) -> Verified:
    """Compare a statement, whose bytes are `data`, with all parts of the request.

    Raises UsageError for a file that cannot be read, and where policy or waivers are missing that it was judged by.
    """
    lines = (
        *_subject_lines(statement, request),
        *_policy_lines(statement, request),
        *_reference_lines(statement, request.against),
        *_report_lines(statement, request.report),
        *_suite_lines(statement, request.suite),
        *_store_lines(statement, request),
        *_signature_lines(statement, data, request.signer),
    )
    return Verified(statement, lines)


def _subject_lines(statement: Statement, request: VerifyRequest) -> Iterator[Line]:
    """Compare its subject with what is to be deployed, and refuse imported evals."""
    candidate = statement.arms["candidate"]
    for part, expected, stated in (
        ("run", request.run, statement.run.id),
        ("candidate", request.candidate, candidate.name),
        ("revision", request.revision, candidate.revision),
    ):
        if expected is not None and expected == stated:
            yield Line(part, Answer.HOLDS, f"it is of {expected}")
        elif expected is not None:
            text = f"it is of {stated or 'weights that nothing pins'}, and not of {expected}"
            yield Line(part, Answer.BROKEN, text, "take the statement of what is to be deployed")
    if statement.run.imported and statement.exit_code is ExitCode.OK:
        remedy = "measure it with `benchgate run`: `promote` refuses such a run, too"
        yield Line("evals", Answer.BROKEN, IMPORTED_EVALS, remedy)


def _policy_lines(statement: Statement, request: VerifyRequest) -> Iterator[Line]:
    """Require a replaced policy to be given: its author may have known the numbers."""
    if not statement.policy_replaced:
        if request.policy is not None:
            raise UsageError("--policy: the run was judged by its own suite's policy; leave it out")
        return
    if request.policy is None:
        yield Line(
            "policy",
            Answer.BROKEN,
            "the run was judged by another policy than it was measured under",
            "read that policy, and give it with --policy SUITE, or judge the run by its own: `benchgate gate`",
        )
        return
    found, stated = policy_parts_sha256(request.policy), statement.policy_parts_sha256
    yield _compared("policy", "gate, SLO and error budget of the policy", found, stated, "give the one it names")


def _reference_lines(statement: Statement, run: str | None) -> Iterator[Line]:
    """Require the stored run that another one was compared with to be named: whoever compares chooses it."""
    reference = statement.against
    if reference is None:
        if run is not None:
            raise UsageError("--against: the run was compared with its own baseline; leave it out")
    elif run is None:
        yield Line(
            "reference",
            Answer.BROKEN,
            f"the run was compared with another stored run, {reference.id}, and not with its own baseline",
            "see what that run's own verdict is, and name it with --against RUN, or judge the run by itself: "
            "`benchgate gate`",
        )
    elif run == reference.id:
        yield Line("reference", Answer.HOLDS, f"it was compared with {run}")
    else:
        text = f"it was compared with {reference.id}, and not with {run}"
        yield Line("reference", Answer.BROKEN, text, "use the statement of the intended comparison")


def _report_lines(statement: Statement, file: Path | None) -> Iterator[Line]:
    if file is None:
        yield Line(Part.REPORT, Answer.UNCHECKED, "no file was given", "add --report FILE")
        return
    found = hashlib.sha256(read_file(file)).hexdigest()
    if statement.report is None:
        yield Line(
            Part.REPORT,
            Answer.BROKEN,
            "the statement is of no report: none was written with it",
            "judge the run again with a report: `benchgate gate RUN --report FILE`, and take the statement beside it",
        )
        return
    remedy = "it was changed, or is of another verdict: take the file that was written beside the statement"
    yield _compared(Part.REPORT, str(file), found, statement.report.sha256, remedy)


def _suite_lines(statement: Statement, file: Path | None) -> Iterator[Line]:
    if file is None:
        yield Line(Part.SUITE, Answer.UNCHECKED, "no file was given", "add --suite FILE")
        return
    data = read_file(file)
    if statement.suite_file_sha256 is None:
        yield Line(Part.SUITE, Answer.UNCHECKED, "the statement has no hash of the file's bytes, only of its meaning")
    else:
        found = hashlib.sha256(data).hexdigest()
        remedy = "check out the suite as it was when the run was measured"
        yield _compared(Part.SUITE, f"the bytes of {file}", found, statement.suite_file_sha256, remedy)
    yield _suite_content_line(statement, file, data)


def _suite_content_line(statement: Statement, file: Path, data: bytes) -> Line:
    """Compare the parsed suite, with its defaults and the prices of the run's day."""
    expected, day = statement.run.suite_sha256, start_day(statement.run.id)
    names = {Arm.CANDIDATE: statement.arms["candidate"].name}
    if statement.against is None:  # else only the store knows the baseline of the run's own suite
        names[Arm.BASELINE] = statement.arms["baseline"].name
    try:
        suite = parse_suite(data.decode(), str(file))
        forms = measured_forms(suite, file.parent, day, names)
    except (SuiteError, UnicodeDecodeError) as error:
        return _not_measured(file, error)
    found = [form for form in forms if form.sha256 == expected]
    if found and all(form.is_only_part for form in found):
        text = f"only one part of {file} was measured, and judged by its checks alone"
        return Line(Part.SUITE, Answer.BROKEN, text, "take the statement of a run of the whole suite")
    if not found and isinstance(forms[-1].suite, SuiteError):
        return _not_measured(file, forms[-1].suite)
    sha256 = expected if found else next(form.sha256 for form in forms if form.sha256 is not None)
    tool = f"benchgate {statement.run.tool_version}"
    remedy = f"another suite, or {tool} read it otherwise: use that version"
    if suite.prices is not None:
        same_bytes = hashlib.sha256(data).hexdigest() == statement.suite_file_sha256
        cause = "the suite's own bytes are as they were, so" if same_bytes else "another suite, or"
        prices = f"{file.parent / suite.prices} has other prices for the run's day"
        remedy = f"{cause} {prices}, or {tool} read them otherwise: check out both files as they were"
    return _compared(Part.SUITE, f"the content of {file}", sha256, expected, remedy)


def _not_measured(file: Path, error: Exception) -> Line:
    text = f"{file} is not what was measured: {str(error).splitlines()[0]}"
    return Line(Part.SUITE, Answer.BROKEN, text, "check out the one that was")


def _store_lines(statement: Statement, request: VerifyRequest) -> Iterator[Line]:
    store = request.store
    if store is None:
        yield Line(Part.STORE, Answer.UNCHECKED, "no store was given", "add --store URL")
        return
    if statement.waivers_as_of is not None and request.waivers is None:
        raise UsageError(
            f"the verdict rests on waivers as of {statement.waivers_as_of}; add --waivers FILE to judge it again"
        )
    if statement.waivers_as_of is None and request.waivers is not None:
        raise UsageError("--waivers: the verdict rests on none; leave it out")
    against = None if statement.against is None else statement.against.id
    try:
        decision = decide_stored(
            store, statement.run.id, against, policy=request.policy, waivers=request.waivers, keep=False
        ).with_strict(strict=statement.strict)
    except (UsageError, EvidenceError) as error:
        text = f"run {statement.run.id} cannot be judged again: {error}"
        yield Line(Part.STORE, Answer.BROKEN, text, "name the store that has it; `benchgate store check` examines one")
        return
    yield from _decision_lines(statement, decision)


def _decision_lines(statement: Statement, decision: Decision) -> Iterator[Line]:
    for obstacle in purpose_obstacles(decision.evidence.run) if statement.exit_code is ExitCode.OK else ():
        if obstacle.kind is not ObstacleKind.IMPORTED:  # the statement says that
            text = f"the run promotes nothing: {obstacle.reason}"
            yield Line(
                Part.STORE,
                Answer.BROKEN,
                text,
                "use the statement of a run that judged its candidate by the whole suite",
            )
    again = statement_of(
        decision,
        statement.exit_code,
        report=statement.report,
        suite_file_sha256=statement.suite_file_sha256,
        url=statement.url,
        tool_version=statement.tool_version,
    )
    if statement.run.evidence_sha256 is None:
        yield Line(Part.STORE, Answer.UNCHECKED, "the evidence: the statement has no hash of it")
    else:
        remedy = "the run in this store is another one than was judged: `benchgate store check`"
        stated = statement.run.evidence_sha256
        yield _compared(Part.STORE, "the evidence of the run", again.run.evidence_sha256, stated, remedy)
    other = [field.name for field in fields(Statement) if getattr(again, field.name) != getattr(statement, field.name)]
    day = decision.evidence.run.started_at.partition("T")[0]
    text = f"the run of {day} judged again is {decision.verdict.outcome}"
    if other:
        remedy = f"judged then by benchgate {statement.tool_version}: use that version, or reject the statement"
        yield Line(Part.STORE, Answer.BROKEN, f"{text}, and differs in {', '.join(other)}", remedy)
    else:
        yield Line(Part.STORE, Answer.HOLDS, f"{text}, with every check and number as stated")
    if statement.report is not None:
        found = hashlib.sha256(report_html(decision).encode()).hexdigest()
        remedy = f"the report was changed, or benchgate {statement.tool_version} lays it out otherwise"
        yield _compared(Part.STORE, "the report as the store gives it", found, statement.report.sha256, remedy)


def _signature_lines(statement: Statement, data: bytes, signer: Signer | None) -> Iterator[Line]:
    if signer is None:
        text = "nothing shows who made this statement: anybody can write one"
        yield Line(Part.SIGNATURE, Answer.UNCHECKED, text, "add --bundle, --identity and --issuer")
        return
    try:
        verify_signature(statement, data, signer)
    except NotSigned as error:
        remedy = "give the bundle of this statement, and the identity that signed it"
        yield Line(Part.SIGNATURE, Answer.BROKEN, str(error), remedy)
        return
    yield Line(Part.SIGNATURE, Answer.HOLDS, f"signed by {signer.identity}, whom {signer.issuer} vouched for")


def unchecked(lines: Iterable[Line], required: Iterable[Part]) -> tuple[Part, ...]:
    """Return the required parts of which nothing was compared."""
    compared = {line.part for line in lines if line.answer is not Answer.UNCHECKED}
    return tuple(part for part in required if part not in compared)


def _compared(part: str, subject: str, found: str | None, stated: str | None, remedy: str) -> Line:
    if found is not None and found == stated:
        return Line(part, Answer.HOLDS, f"{subject}: sha256 {found}")
    return Line(part, Answer.BROKEN, f"{subject}: sha256 {found}, and the statement says {stated}", remedy)


PAYLOAD_TYPE = "application/vnd.in-toto+json"
_WORKFLOW = re.compile(r"(https://[^/]+/.+?)/(?:\.github/workflows)?/")  # of GitHub, and of GitLab


@dataclass(frozen=True, slots=True)
class Signer:
    """A bundle and its required signer: the whole identity in the certificate, and the issuer who vouched for it.

    `repository` is the address of the one for which a workflow signed. A reusable workflow signs under its own name for
    every caller, so None means the repository in which the workflow itself lies. `ref` is the branch or tag of that
    repository, like `refs/heads/main`; the identity names only the workflow's own.
    `trust_root` is a file of trusted keys and certificates (sigstore's `trusted_root.json`); None takes the one of the
    public instance that sigstore keeps on this machine or carries with it.
    """

    bundle: Path
    identity: str
    issuer: str
    trust_root: Path | None = None
    repository: str | None = None
    ref: str | None = None


class NotSigned(BenchgateError):
    """The bundle does not show that the required signer signed this statement."""

    exit_code = ExitCode.INVALID


def require_sigstore() -> None:
    """Raise UsageError, with what to install, if the extra is missing."""
    try:
        import sigstore.verify  # noqa: F401  (only its presence matters)
    except ImportError as error:
        raise UsageError(lacking("checking a signature needs sigstore", "sign")) from error


def verify_signature(statement: Statement, data: bytes, signer: Signer) -> None:
    """Raise NotSigned unless the bundle's signature is the signer's and covers the statement, whose bytes `data` are.

    Raises UsageError where sigstore is missing, or a file cannot be read.
    """
    require_sigstore()
    reason = _uncovered(_signed_payload(read_file(signer.bundle), signer), statement, data)
    if reason is not None:
        raise NotSigned(reason)


def _signed_payload(bundle: bytes, signer: Signer) -> bytes:
    """Return the signed content. Raises NotSigned."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.x509 import ExtensionNotFound
    from sigstore.errors import Error
    from sigstore.models import Bundle
    from sigstore.verify.policy import (
        AllOf,
        Identity,
        OIDCSourceRepositoryRef,
        OIDCSourceRepositoryURI,
        VerificationPolicy,
    )

    trusted = _trusted(signer.trust_root)
    try:
        policies: list[VerificationPolicy] = [Identity(identity=signer.identity, issuer=signer.issuer)]
        workflow = _WORKFLOW.match(signer.identity)
        repository = signer.repository or (workflow[1] if workflow is not None else None)
        if repository is not None:
            policies.append(OIDCSourceRepositoryURI(repository))
        if signer.ref is not None:
            policies.append(OIDCSourceRepositoryRef(signer.ref))
        kind, payload = trusted.verify_dsse(Bundle.from_json(bundle), AllOf(policies))
    except (Error, ValueError, TypeError, ExtensionNotFound, InvalidSignature) as error:
        raise NotSigned(f"sigstore refuses the bundle: {one_line(str(error), 300)}") from error
    if kind != PAYLOAD_TYPE:
        raise NotSigned(f"the bundle is over {kind!r}, and a statement is {PAYLOAD_TYPE}")
    return bytes(payload)


def _trusted(trust_root: Path | None) -> Any:
    """Return sigstore's verifier. Nothing is fetched: without a file the roots are those on this machine."""
    from sigstore.errors import Error
    from sigstore.models import TrustedRoot
    from sigstore.verify import Verifier

    if trust_root is not None:
        read_file(trust_root)  # raises UsageError if it is missing
    try:
        if trust_root is None:
            return Verifier.production(offline=True)
        return Verifier(trusted_root=TrustedRoot.from_file(str(trust_root)))
    except (Error, ValueError, TypeError, OSError) as error:
        fault = "sigstore's own roots cannot be read" if trust_root is None else f"{trust_root} is no trusted root"
        raise UsageError(f"{fault}: {ascii(str(error))[:200]}; give a `trusted_root.json` with --trust-root") from error


def _uncovered(payload: bytes, statement: Statement, data: bytes) -> str | None:
    """Return why the signed content is not this statement; None if it is.

    Either the whole statement was signed, or (as actions/attest does) its predicate, for subjects that are the
    statement's own or its file.
    """
    if payload == data:
        return None
    try:
        signed = json.loads(payload)
        own = statement.document()
        if signed == own:
            return None
        if (signed["_type"], signed["predicateType"]) != (TYPE, PREDICATE_TYPE):
            return f"the signed content is a {signed['predicateType']!r}, and no result of a test"
        if signed["predicate"] != own["predicate"]:
            return "the predicate that was signed is another: the statement was changed, or is of another run"
        known = {_digest(one) for one in own["subject"]} | {("sha256", hashlib.sha256(data).hexdigest())}
        subjects = {_digest(one) for one in signed["subject"]}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return "the signed content is no in-toto statement"
    if not subjects or not subjects <= known:
        return "the signed content is about another file than the report or the statement"
    return None


def _digest(subject: dict[str, Any]) -> tuple[str, str]:
    """Return a subject's digest. Raises KeyError for one without a known digest."""
    digest = subject["digest"]
    name = "sha256" if "sha256" in digest else "gitCommit"
    return name, digest[name]


def read_file(file: Path) -> bytes:
    """Return the file's bytes. Raises UsageError if it cannot be read."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error
