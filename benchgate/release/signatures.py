"""Whether a statement was signed by whom it should be: a sigstore bundle over it, checked without a network.

A bundle has a certificate that says who signed and who vouched for them, a signature over a DSSE envelope, and the
proof that a public log took it in. sigstore (the extra `sign`) checks those; what the envelope holds, and that it is
this statement, is checked here.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchgate.errors import BenchgateError, ExitCode, UsageError, lacking
from benchgate.escape import one_line
from benchgate.report.statement import PREDICATE_TYPE, TYPE, Statement

PAYLOAD_TYPE = "application/vnd.in-toto+json"
_WORKFLOW = re.compile(r"(https://[^/]+/.+?)/(?:\.github/workflows)?/")  # of GitHub, and of GitLab


@dataclass(frozen=True, slots=True)
class Signer:
    """Who should have signed: the identity in the certificate, whole, and the issuer who vouched for it.

    `repository` is the address of the one for which a workflow signed. A workflow that others may call signs under its
    own name for all of them, so without one it must be that in which the workflow itself lies.
    `trust_root` is a file of trusted keys and certificates (sigstore's `trusted_root.json`); None takes the one of the
    public instance that sigstore keeps on this machine or carries with it.
    """

    bundle: Path
    identity: str
    issuer: str
    trust_root: Path | None = None
    repository: str | None = None


class NotSigned(BenchgateError):
    """The bundle does not show that this statement was signed by whom it should be; the message says why."""

    exit_code = ExitCode.INVALID


def require_sigstore() -> None:
    """Raises UsageError where the extra is missing, with what to install."""
    try:
        import sigstore.verify  # noqa: F401  (whether it is there is all that is asked)
    except ImportError as error:
        raise UsageError(lacking("checking a signature needs sigstore", "sign")) from error


def verify_signature(statement: Statement, data: bytes, signer: Signer) -> None:
    """Raises NotSigned unless the bundle's signature is the signer's and covers the statement, whose bytes `data` are.

    UsageError where sigstore is missing, or a file cannot be read.
    """
    require_sigstore()
    payload = _signed_payload(read_file(signer.bundle), signer)
    reason = _uncovered(payload, statement, data)
    if reason is not None:
        raise NotSigned(reason)


def _signed_payload(bundle: bytes, signer: Signer) -> bytes:
    """What the signer signed. Raises NotSigned."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.x509 import ExtensionNotFound
    from sigstore.errors import Error
    from sigstore.models import Bundle
    from sigstore.verify.policy import AllOf, Identity, OIDCSourceRepositoryURI, VerificationPolicy

    trusted = _trusted(signer.trust_root)
    try:
        policies: list[VerificationPolicy] = [Identity(identity=signer.identity, issuer=signer.issuer)]
        if (repository := _repository(signer)) is not None:
            policies.append(OIDCSourceRepositoryURI(repository))
        kind, payload = trusted.verify_dsse(Bundle.from_json(bundle), AllOf(policies))
    except (Error, ValueError, TypeError, ExtensionNotFound, InvalidSignature) as error:
        raise NotSigned(f"sigstore refuses the bundle: {one_line(str(error), 300)}") from error
    if kind != PAYLOAD_TYPE:
        raise NotSigned(f"the bundle is over {kind!r}, and a statement is {PAYLOAD_TYPE}")
    return bytes(payload)


def _repository(signer: Signer) -> str | None:
    """For which repository must have been signed; None where the signer is no workflow of one."""
    if signer.repository is not None:
        return signer.repository
    own = _WORKFLOW.match(signer.identity)
    return None if own is None else own[1]


def _trusted(trust_root: Path | None) -> Any:
    """sigstore's verifier. Nothing is fetched: without a file the roots are those that this machine has."""
    from sigstore.errors import Error
    from sigstore.models import TrustedRoot
    from sigstore.verify import Verifier

    if trust_root is not None:
        read_file(trust_root)  # that it is there
    try:
        if trust_root is None:
            return Verifier.production(offline=True)
        return Verifier(trusted_root=TrustedRoot.from_file(str(trust_root)))
    except (Error, ValueError, TypeError, OSError) as error:
        what = "sigstore's own roots cannot be read" if trust_root is None else f"{trust_root} is no trusted root"
        raise UsageError(f"{what}: {ascii(str(error))[:200]}; give a `trusted_root.json` with --trust-root") from error


def _uncovered(payload: bytes, statement: Statement, data: bytes) -> str | None:
    """Why what was signed is not this statement; None where it is.

    Either the whole of it was signed, or (as actions/attest does) its predicate, for subjects that are the statement's
    own or its file.
    """
    if payload == data:
        return None
    try:
        signed = json.loads(payload)
        own = statement.document()
        if signed == own:
            return None
        if (signed["_type"], signed["predicateType"]) != (TYPE, PREDICATE_TYPE):
            return f"what was signed is a {signed['predicateType']!r}, and no result of a test"
        if signed["predicate"] != own["predicate"]:
            return "the predicate that was signed is another: the statement was changed, or is of another run"
        known = {_digest(one) for one in own["subject"]} | {("sha256", hashlib.sha256(data).hexdigest())}
        subjects = {_digest(one) for one in signed["subject"]}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return "what was signed is no in-toto statement"
    if not subjects or not subjects <= known:
        return "what was signed is about another file than the report or the statement"
    return None


def _digest(subject: dict[str, Any]) -> tuple[str, str]:
    """The digest that a subject is known by. KeyError for one without any that is taken."""
    digest = subject["digest"]
    name = "sha256" if "sha256" in digest else "gitCommit"
    return name, digest[name]


def read_file(file: Path) -> bytes:
    """All of it. Raises UsageError where it cannot be read."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error
