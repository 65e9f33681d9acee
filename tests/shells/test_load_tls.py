"""The measured path over TLS, against real servers with real certificates."""

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from benchgate.load.results import StageResult
from benchgate.load.workers import run_stage
from benchgate.model.records import ErrorClass
from benchgate.targets.address import Route, tls_context
from tests.fakes.certificates import CA, CLIENT_CERT, CLIENT_KEY, STRANGER_CA, TLS, serving
from tests.fakes.scripted_server import DONE, LAST_CHUNK, ScriptedServer, finish, stream_head, token
from tests.shells.load_helpers import WHOLE, closed, limits, target_at

OURS = Route(ca=CA, cert=CLIENT_CERT, key=CLIENT_KEY)
VERSIONS = pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=lambda v: v.name)


def run(url: str, route: Route, count: int = 2) -> StageResult:
    target = replace(target_at(url), route=route)
    return run_stage(target, closed(count), limits=limits())


def test_server_vouched_for_by_the_given_ca_is_measured_over_one_kept_connection() -> None:
    with ScriptedServer(lambda _: [WHOLE], tls=serving()) as server:
        columns = run(server.url, Route(ca=CA), 3).requests
        assert server.connections == 1
    assert (set(columns.error), columns.output_tokens.tolist()) == ({None}, [3, 3, 3])


@pytest.mark.parametrize("ca", [CA, str(TLS / "server.pem")], ids=["its CA", "its own certificate"])
def test_server_asked_by_its_address_is_checked_by_it(ca: str) -> None:
    with ScriptedServer(lambda _: [WHOLE], tls=serving()) as server:
        columns = run(server.url.replace("localhost", "127.0.0.1"), Route(ca=ca)).requests
    assert set(columns.error) == {None}


@pytest.fixture
def system_trusts_ours(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Our CA is what the system trusts, and nothing else; no context outlives that."""
    monkeypatch.setenv("SSL_CERT_FILE", CA)
    tls_context.cache_clear()
    yield
    tls_context.cache_clear()


@pytest.mark.usefixtures("system_trusts_ours")
def test_server_vouched_for_by_what_the_system_trusts_needs_no_ca_given() -> None:
    with ScriptedServer(lambda _: [WHOLE], tls=serving()) as server:
        columns = run(server.url, Route()).requests
    assert (set(columns.error), columns.output_tokens.tolist()) == ({None}, [3, 3])


@pytest.mark.usefixtures("system_trusts_ours")
def test_what_the_system_trusts_counts_no_more_where_a_ca_is_given() -> None:
    with ScriptedServer(lambda _: [WHOLE], tls=serving()) as server:
        columns = run(server.url, Route(ca=STRANGER_CA)).requests
        assert server.requests == []
    assert set(columns.error) == {ErrorClass.TLS}


def test_response_over_tls_is_cut_at_its_cap_while_it_still_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would end well, were it waited for: seven times as long as what is read there between two looks at it."""
    monkeypatch.setattr("benchgate.load.http.exchange.LARGEST_RESPONSE_BYTES", 20_000)
    too_long = [stream_head(), *[token("x" * 500)] * 12_000, finish("stop") + DONE + LAST_CHUNK]
    with ScriptedServer(lambda _: too_long, tls=serving()) as server:
        columns = run(server.url, Route(ca=CA), 1).requests
    assert columns.error == (ErrorClass.PROTOCOL,)
    assert "longer than 20000 bytes" in str(columns.error_detail[0])


def test_environment_does_not_have_the_keys_of_sessions_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "keys"))
    tls_context.cache_clear()
    with ScriptedServer(lambda _: [WHOLE], tls=serving()) as server:
        run(server.url, Route(ca=CA))
    assert not (tmp_path / "keys").exists()


def test_server_is_told_its_name_and_that_http_1_is_spoken() -> None:
    asked: list[str | None] = []
    context = serving()

    def note_name(ssl_object: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        asked.append(name)

    context.sni_callback = note_name
    with ScriptedServer(lambda _: [WHOLE], tls=context) as server:
        columns = run(server.url, Route(ca=CA)).requests
    assert (set(columns.error), asked) == ({None}, ["localhost"])


@pytest.mark.parametrize(
    ("certificate", "route", "reason"),
    [
        ("server", Route(), "unable to get local issuer certificate"),
        ("server", Route(ca=STRANGER_CA), "unable to get local issuer certificate"),
        ("elsewhere", Route(ca=CA), "Hostname mismatch"),
        ("expired", Route(ca=CA), "certificate has expired"),
    ],
)
def test_certificate_that_does_not_hold_fails_every_request_as_tls(certificate: str, route: Route, reason: str) -> None:
    with ScriptedServer(lambda _: [WHOLE], tls=serving(certificate)) as server:
        columns = run(server.url, route).requests
        assert server.requests == []
    assert columns.error == (ErrorClass.TLS, ErrorClass.TLS)
    assert reason in str(columns.error_detail[0])


@VERSIONS
def test_server_that_asks_for_our_certificate_gets_it(version: ssl.TLSVersion) -> None:
    with ScriptedServer(lambda _: [WHOLE], tls=serving(asks_for_ours=True, up_to=version)) as server:
        columns = run(server.url, OURS).requests
    assert set(columns.error) == {None}


@VERSIONS
def test_server_that_asks_for_a_certificate_we_have_not_fails_every_request_as_tls(version: ssl.TLSVersion) -> None:
    with refusing_server(serving(asks_for_ours=True, up_to=version)) as url:
        columns = run(url, Route(ca=CA), 6).requests
    assert set(columns.error) == {ErrorClass.TLS}, columns.error_detail
    assert all("asks for a" in str(told) and "--cert and --key" in str(told) for told in columns.error_detail)


def test_server_that_hangs_up_in_the_handshake_fails_as_tls() -> None:
    context = serving(asks_for_ours=True, up_to=ssl.TLSVersion.TLSv1_2)
    with ScriptedServer(lambda _: [WHOLE], tls=context) as server:  # asyncio's servers close without an alert
        columns = run(server.url, Route(ca=CA)).requests
    assert set(columns.error) == {ErrorClass.TLS}, columns.error_detail


class _Silent(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        raise AssertionError("a request came through without the certificate asked for")


class _Refusing(HTTPServer):
    """Reads on after a failed handshake: closing with a request unread would reset the connection under the alert."""

    tls: ssl.SSLContext

    def get_request(self) -> tuple[ssl.SSLSocket, object]:
        plain, address = self.socket.accept()
        with plain.dup() as kept:
            try:
                return self.tls.wrap_socket(plain, server_side=True), address
            except ssl.SSLError:
                kept.settimeout(5)
                while kept.recv(4096):
                    pass
                raise


@contextmanager
def refusing_server(tls: ssl.SSLContext) -> Iterator[str]:
    """A server that tells in an alert why it refuses, as OpenSSL does on its own."""
    server = _Refusing(("127.0.0.1", 0), _Silent)
    server.tls = tls
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"https://localhost:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
