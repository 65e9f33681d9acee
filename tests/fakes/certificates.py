"""Certificates that only tests trust (tests/fixtures/tls/make.sh), as servers show them."""

import ssl
from pathlib import Path

TLS = Path(__file__).parents[1] / "fixtures" / "tls"
CA = str(TLS / "ca.pem")
STRANGER_CA = str(TLS / "stranger.pem")
CLIENT_CERT = str(TLS / "client.pem")
CLIENT_KEY = str(TLS / "client.key")


def serving(
    certificate: str = "server", *, asks_for_ours: bool = False, up_to: ssl.TLSVersion | None = None
) -> ssl.SSLContext:
    """A server's side: `server` is good for localhost, `elsewhere` for another host, `expired` no more."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / f"{certificate}.pem", TLS / "server.key")
    context.set_alpn_protocols(["h2", "http/1.1"])
    if asks_for_ours:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(CA)
    if up_to is not None:
        context.maximum_version = up_to
    return context
