"""A whole sigstore of our own keys: a certificate authority, its log of certificates, and a log of signatures.

What a public instance would sign, this one signs; its `trusted_root.json` says so. Formats: RFC 6962 for SCT and
Merkle leaf, the DSSE envelope v1, and sigstore's bundle v0.3 with a `dsse` entry 0.0.1 of the log.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID

REPOSITORY, REF = "https://github.com/org/models", "refs/heads/main"
ISSUER = "https://token.actions.githubusercontent.com"
IDENTITY = "https://github.com/org/models/.github/workflows/gate.yml@refs/heads/main"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
_AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
_SCT_LIST = x509.ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")
_ISSUER_OID = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.1")
_REF_OID = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.14")  # its branch or tag
_REPOSITORY_OID = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.12")  # whose run it was that signed


def _key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _spki(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _id(key: ec.EllipticCurvePrivateKey) -> bytes:
    return hashlib.sha256(_spki(key)).digest()


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _sign(key: ec.EllipticCurvePrivateKey, data: bytes) -> bytes:
    return key.sign(data, ec.ECDSA(hashes.SHA256()))


@dataclass(frozen=True)
class SigstoreWorld:
    """The keys of everybody whom a verifier has to trust."""

    authority: ec.EllipticCurvePrivateKey = field(default_factory=_key)
    certificate_log: ec.EllipticCurvePrivateKey = field(default_factory=_key)
    log: ec.EllipticCurvePrivateKey = field(default_factory=_key)

    def trusted_root(self) -> str:
        """What a verifier is given with --trust-root."""
        start = {"start": "2026-01-01T00:00:00Z"}
        logs = {
            name: [
                {
                    "baseUrl": f"https://{name}.example",
                    "hashAlgorithm": "SHA2_256",
                    "publicKey": {
                        "rawBytes": _b64(_spki(key)),
                        "keyDetails": "PKIX_ECDSA_P256_SHA_256",
                        "validFor": start,
                    },
                    "logId": {"keyId": _b64(_id(key))},
                }
            ]
            for name, key in (("tlogs", self.log), ("ctlogs", self.certificate_log))
        }
        authority = {
            "subject": {"organization": "test", "commonName": "test"},
            "uri": "https://authority.example",
            "certChain": {"certificates": [{"rawBytes": _b64(self._root().public_bytes(Encoding.DER))}]},
            "validFor": start,
        }
        kind = "application/vnd.dev.sigstore.trustedroot+json;version=0.1"
        return json.dumps(
            {"mediaType": kind, "certificateAuthorities": [authority], **logs, "timestampAuthorities": []}
        )

    def bundle(
        self,
        payload: bytes,
        *,
        identity: str = IDENTITY,
        issuer: str = ISSUER,
        kind: str = PAYLOAD_TYPE,
        repository: str | None = REPOSITORY,
        ref: str | None = REF,
    ) -> dict[str, Any]:
        """A bundle over the payload, by a signer known as `identity`, in a run of `repository` at `ref`."""
        signer = _key()
        certificate = self._certificate(signer, identity, issuer, repository, ref)
        signature = _sign(signer, b"DSSEv1 %d %s %d %s" % (len(kind), kind.encode(), len(payload), payload))
        return {
            "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
            "verificationMaterial": {
                "certificate": {"rawBytes": _b64(certificate.public_bytes(Encoding.DER))},
                "tlogEntries": [self._entry(payload, signature, certificate)],
                "timestampVerificationData": {"rfc3161Timestamps": []},
            },
            "dsseEnvelope": {"payload": _b64(payload), "payloadType": kind, "signatures": [{"sig": _b64(signature)}]},
        }

    def _root(self) -> x509.Certificate:
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test root")])
        builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).serial_number(1)
        builder = builder.not_valid_before(_AT - timedelta(days=1)).not_valid_after(_AT + timedelta(days=3650))
        builder = builder.public_key(self.authority.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
        identifier = x509.SubjectKeyIdentifier.from_public_key(self.authority.public_key())
        return builder.add_extension(identifier, critical=False).sign(self.authority, hashes.SHA256())

    def _certificate(
        self, signer: ec.EllipticCurvePrivateKey, identity: str, issuer: str, repository: str | None, ref: str | None
    ) -> x509.Certificate:
        """As Fulcio makes them: short-lived, the identity as its subject's other name, logged before it is issued."""
        extensions: list[tuple[x509.ExtensionType, bool]] = [
            (_usage(signs_certificates=False), True),
            (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), False),
            (x509.AuthorityKeyIdentifier.from_issuer_public_key(self.authority.public_key()), False),
            (x509.SubjectAlternativeName([x509.UniformResourceIdentifier(identity)]), True),
            (x509.UnrecognizedExtension(_ISSUER_OID, issuer.encode()), False),
        ]
        for oid, text in ((_REPOSITORY_OID, repository), (_REF_OID, ref)):
            if text is not None:
                told = bytes([0x0C, len(text)]) + text.encode()  # a UTF8String of DER
                extensions.append((x509.UnrecognizedExtension(oid, told), False))
        builder = x509.CertificateBuilder().subject_name(x509.Name([])).issuer_name(self._root().subject)
        builder = builder.serial_number(2).public_key(signer.public_key())
        builder = builder.not_valid_before(_AT - timedelta(minutes=1)).not_valid_after(_AT + timedelta(minutes=9))
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical=critical)
        logged = builder.sign(self.authority, hashes.SHA256()).tbs_certificate_bytes
        stamp = x509.UnrecognizedExtension(_SCT_LIST, self._stamp(logged))
        return builder.add_extension(stamp, critical=False).sign(self.authority, hashes.SHA256())

    def _stamp(self, certificate: bytes) -> bytes:
        """The list of one SCT over a certificate that is still to be issued (RFC 6962, 3.2 and 3.3)."""
        at = struct.pack("!Q", int(_AT.timestamp() * 1000))
        entry = _id(self.authority) + len(certificate).to_bytes(3, "big") + certificate
        signature = _sign(self.certificate_log, b"\x00\x00" + at + b"\x00\x01" + entry + b"\x00\x00")
        signed = b"\x04\x03" + struct.pack("!H", len(signature)) + signature
        stamp = b"\x00" + _id(self.certificate_log) + at + b"\x00\x00" + signed
        listed = struct.pack("!HH", len(stamp) + 2, len(stamp)) + stamp
        return b"\x04" + bytes([len(listed)] if len(listed) < 128 else [0x81, len(listed)]) + listed

    def _entry(self, payload: bytes, signature: bytes, certificate: x509.Certificate) -> dict[str, Any]:
        """The entry of a log that holds nothing else, so that its hash is the root of the tree."""
        digests = {"algorithm": "sha256", "value": hashlib.sha256(payload).hexdigest()}
        verifier = _b64(certificate.public_bytes(Encoding.PEM))
        spec = {
            "envelopeHash": digests,
            "payloadHash": digests,
            "signatures": [{"signature": _b64(signature), "verifier": verifier}],
        }
        body = _canonical({"apiVersion": "0.0.1", "kind": "dsse", "spec": spec})
        root, at = hashlib.sha256(b"\x00" + body).digest(), int(_AT.timestamp())
        promised = {"body": _b64(body), "integratedTime": at, "logID": _id(self.log).hex(), "logIndex": 0}
        note = f"log.example\n1\n{_b64(root)}\n"
        checkpoint = f"{note}\n\u2014 log.example {_b64(_id(self.log)[:4] + _sign(self.log, note.encode()))}\n"
        return {
            "logIndex": "0",
            "logId": {"keyId": _b64(_id(self.log))},
            "kindVersion": {"kind": "dsse", "version": "0.0.1"},
            "integratedTime": str(at),
            "inclusionPromise": {"signedEntryTimestamp": _b64(_sign(self.log, _canonical(promised)))},
            "inclusionProof": {
                "logIndex": "0",
                "rootHash": _b64(root),
                "treeSize": "1",
                "hashes": [],
                "checkpoint": {"envelope": checkpoint},
            },
            "canonicalizedBody": _b64(body),
        }


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
