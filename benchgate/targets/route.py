"""How a server is reached beyond its address: whose certificates are trusted, which one is shown, through which proxy.

Holds paths and no key, so that it can be passed to another process, which makes a context of its own of it. There is
no way to switch verification off: a server with a certificate of its own making is trusted by giving that as `ca`.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from benchgate.errors import UsageError


@dataclass(frozen=True, slots=True)
class Route:
    """The way to a server. Paths are of PEM files; `key` may be None when it stands in the file of `cert`.

    `ca` is trusted instead of what the system trusts. `proxy` is an address like `http://proxy:3128`; without one a
    server is asked directly, whatever the environment says.
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    proxy: str | None = None


DIRECT = Route()


class _KeyIsEncrypted(Exception):
    """OpenSSL asks for a passphrase, which would be read from the terminal in the middle of a run."""


@lru_cache(maxsize=16)
def tls_context(route: Route) -> ssl.SSLContext:
    """What a client of this server checks and shows, read from the files once in each process.

    Certificate and host name are always verified. Raises UsageError, which names the file and never quotes it.
    """
    for what, path in (("CA certificates", route.ca), ("client certificate", route.cert), ("key", route.key)):
        if path is not None:
            _require_readable(what, path)
    # Not `ssl.create_default_context`: it writes session keys where the environment says, and differs between Pythons.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["http/1.1"])
    if route.ca is None:
        context.load_default_certs()
    else:
        _trust(context, route.ca)
    if route.cert is not None:
        _show_certificate(context, route.cert, route.key)
    return context


def _trust(context: ssl.SSLContext, ca: str) -> None:
    """Trust these certificates, whether or not somebody else vouches for them in turn."""
    try:
        context.load_verify_locations(ca)
    except ssl.SSLError as exc:
        raise UsageError(f"the CA certificates in {ca} are none in PEM form: {_reason(exc)}") from exc
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


def _show_certificate(context: ssl.SSLContext, cert: str, key: str | None) -> None:
    where = cert if key is None else f"{cert} with the key in {key}"
    try:
        context.load_cert_chain(cert, key, password=_refuse)
    except _KeyIsEncrypted:
        raise UsageError(f"the key in {key or cert} is encrypted; give one without a passphrase") from None
    except ssl.SSLError as exc:
        raise UsageError(f"the client certificate {where} cannot be used: {_reason(exc)}") from exc


def _refuse() -> str:
    raise _KeyIsEncrypted


def _require_readable(what: str, path: str) -> None:
    try:
        with Path(path).open("rb") as file:
            file.read(1)
    except OSError as exc:
        raise UsageError(f"the {what} in {path} could not be read: {exc.strerror}") from exc


def tls_fault(error: ssl.SSLError) -> str:
    """A broken handshake in words, with what to do where a client certificate is what the server misses."""
    told = str(error)
    if "CERTIFICATE_REQUIRED" in told:
        return f"the server asks for a client certificate, and none was shown: {_SHOW_ONE}"
    if "HANDSHAKE_FAILURE" in told:  # all that TLS 1.2 says of it, and of much else
        return f"the server refused the TLS handshake ({_reason(error)}); if it asks for a certificate, {_SHOW_ONE}"
    return told


_SHOW_ONE = "give one by `tls: {cert, key}` of the deployment, or --cert and --key"


def _reason(error: ssl.SSLError) -> str:
    """OpenSSL's word for it, without the place in its source."""
    return (error.reason or "it is not in PEM form").lower().replace("_", " ")
