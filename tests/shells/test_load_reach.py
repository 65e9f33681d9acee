"""The measured path to servers that are reached otherwise: over a Unix socket, through a proxy, with headers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchgate.errors import UsageError
from benchgate.load.results import StageResult
from benchgate.load.standalone.options import LoadOptions
from benchgate.load.standalone.run import run_load_test
from benchgate.load.workers import run_stage
from benchgate.model.records import ErrorClass
from benchgate.targets.address import Route
from benchgate.targets.dialect import Target
from tests.fakes.certificates import CA, CLIENT_CERT, CLIENT_KEY, STRANGER_CA, serving
from tests.fakes.proxy import Proxy
from tests.fakes.scripted_server import CLOSE, Received, ScriptedServer, Step, json_response
from tests.shells.load_helpers import WHOLE, closed, limits, target_at

ENVIRONMENT = ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")


@pytest.fixture(autouse=True)
def dead_proxy_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ENVIRONMENT:
        monkeypatch.setenv(name, "http://127.0.0.1:9")


def measured(target: Target, count: int = 2) -> StageResult:
    return run_stage(target, closed(count), limits=limits())


def test_server_on_a_unix_socket_is_measured_below_its_base_path(tmp_path: Path) -> None:
    with ScriptedServer(lambda _: [WHOLE], socket_path=tmp_path / "s") as server:
        columns = measured(target_at(f"{server.url}:/base"), 3).requests
        assert {(asked.path, asked.headers["host"]) for asked in server.requests} == {
            ("/base/v1/chat/completions", "localhost")
        }
        assert server.connections == 1
    assert set(columns.error) == {None}


def test_socket_that_is_not_there_fails_as_connect(tmp_path: Path) -> None:
    columns = measured(target_at(f"unix:{tmp_path}/none")).requests
    assert set(columns.error) == {ErrorClass.CONNECT}
    assert "No such file" in str(columns.error_detail[0])


def test_connection_over_a_socket_that_the_server_closed_is_replaced(tmp_path: Path) -> None:
    with ScriptedServer(lambda _: [WHOLE, CLOSE], socket_path=tmp_path / "s") as server:
        columns = measured(target_at(server.url), 3).requests
    assert (set(columns.error), columns.reconnects.tolist()) == ({None}, [0, 1, 1])


def test_headers_of_a_target_are_sent_with_every_request() -> None:
    with ScriptedServer(lambda _: [WHOLE]) as server:
        target = replace(
            target_at(server.url), open_headers={"x-team": "ml"}, secret_headers={"x-tenant-key": "t0p-s3cr3t"}
        )
        measured(target)
        assert [(asked.headers["x-team"], asked.headers["x-tenant-key"]) for asked in server.requests] == [
            ("ml", "t0p-s3cr3t")
        ] * 2
    assert "t0p-s3cr3t" not in repr(target)


@pytest.mark.parametrize("said", ["t0p-s3cr3t", "no tenant for Token t0p-s3cr3t"])
def test_secret_header_that_a_server_repeats_is_not_kept(said: str) -> None:
    refusal = json_response({"error": {"message": said}}, status=401)
    with ScriptedServer(lambda _: [refusal]) as server:
        target = replace(target_at(server.url), secret_headers={"authorization": "Token t0p-s3cr3t"})
        columns = measured(target, 1).requests
    assert "s3cr3t" not in str(columns.error_detail)
    assert "[redacted]" in str(columns.error_detail[0])


def test_http_server_is_asked_through_the_proxy_in_absolute_form() -> None:
    with ScriptedServer(lambda _: [WHOLE]) as server, Proxy() as proxy:
        columns = measured(replace(target_at(f"{server.url}/base"), route=Route(proxy=proxy.url)), 3).requests
        assert {asked.path for asked in server.requests} == {"/base/v1/chat/completions"}
        assert set(proxy.asked) == {f"POST {server.url}/base/v1/chat/completions HTTP/1.1"}
        assert len(proxy.asked) == 3
    assert set(columns.error) == {None}


def test_https_server_is_asked_through_a_tunnel_that_shows_the_proxy_nothing() -> None:
    route = Route(CA, CLIENT_CERT, CLIENT_KEY)
    with ScriptedServer(lambda _: [WHOLE], tls=serving(asks_for_ours=True)) as server, Proxy() as proxy:
        target = replace(target_at(server.url, "k3y"), route=replace(route, proxy=proxy.url))
        columns = measured(target, 3).requests
        assert proxy.asked == [f"CONNECT localhost:{server.port} HTTP/1.1"]
        assert "k3y" not in proxy.heads[0]
        assert server.requests[0].headers["authorization"] == "Bearer k3y"
    assert set(columns.error) == {None}


def test_certificate_is_checked_inside_the_tunnel_too() -> None:
    with ScriptedServer(lambda _: [WHOLE], tls=serving()) as server, Proxy() as proxy:
        columns = measured(replace(target_at(server.url), route=Route(STRANGER_CA, proxy=proxy.url))).requests
        assert server.requests == []
    assert set(columns.error) == {ErrorClass.TLS}


def test_proxy_that_opens_no_tunnel_is_named_as_the_reason() -> None:
    with Proxy(refuses="HTTP/1.1 407 Proxy Authentication Required") as proxy:
        columns = measured(replace(target_at("https://localhost:9"), route=Route(CA, proxy=proxy.url))).requests
    assert set(columns.error) == {ErrorClass.CONNECT}
    assert columns.error_detail[0] == "the proxy answered HTTP 407 to the request for a way to the server"


def test_proxy_that_is_not_there_fails_as_connect() -> None:
    columns = measured(replace(target_at("https://localhost:9"), route=Route(CA, proxy="http://127.0.0.1:9"))).requests
    assert set(columns.error) == {ErrorClass.CONNECT}


def options(url: str = "http://127.0.0.1:1", **more: Any) -> LoadOptions:
    given = {"url": url, "model": "m", "engine": "openai", "concurrency": 2, "requests": 4, "warmup": "0"}
    return LoadOptions.parse(**{**given, **more})


def test_bare_load_goes_the_same_way_in_every_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENANT_KEY", "t0p-s3cr3t")
    with ScriptedServer(lambda _: [WHOLE], tls=serving(asks_for_ours=True)) as server:
        document = run_load_test(
            options(
                server.url,
                workers="2",
                headers=["x-team: ml", "x-tenant-key: ${env:TENANT_KEY}"],
                ca=CA,
                cert=CLIENT_CERT,
                key=CLIENT_KEY,
            )
        )
        sent = [(asked.headers["x-team"], asked.headers["x-tenant-key"]) for asked in server.requests]
    requests: Any = document["requests"]
    assert sent == [("ml", "t0p-s3cr3t")] * (4 + requests["ramp"])
    assert (requests["ok"], requests["failed_by_class"]) == (4, {})
    assert "s3cr3t" not in str(document)


def test_bare_load_over_a_socket_finds_the_engine_there(tmp_path: Path) -> None:
    def respond(received: Received) -> list[Step]:
        return [WHOLE] if received.method == "POST" else [json_response({"data": [{"id": "m", "owned_by": "vllm"}]})]

    with ScriptedServer(respond, socket_path=tmp_path / "s") as server:
        document = run_load_test(options(server.url, engine="auto"))
    assert (document["engine"], document["url"]) == ("vllm", server.url)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"headers": ["x-team"]}, "--header: a header is written NAME:VALUE"),
        ({"headers": ["host: s3cr3t"]}, '--header: the header "host" cannot be set'),
        ({"headers": ["authorization: Bearer s3cr3t"]}, '--header: the header "authorization" holds a literal'),
        ({"headers": ["x-team: ml", "X-Team: it"]}, '--header: "x-team" is given twice'),
        ({"headers": ["x-team: ${env:NOWHERE}"]}, "the environment variable NOWHERE is not set"),
        ({"ca": CA}, "--ca and --cert are for https, and the address is http://127.0.0.1:1"),
        ({"url": "https://h", "key": CLIENT_KEY}, "--key belongs to a --cert"),
        ({"url": "https://h", "ca": "none.pem"}, "the CA certificates in .*none.pem could not be read"),
        ({"proxy": "socks5://p"}, "--proxy: is not the address of a proxy"),
        ({"url": "unix:/run/s", "proxy": "http://p"}, "--proxy means nothing for a socket"),
        ({"url": "unix:run/s"}, "a whole path"),
        ({"url": "https://h", "audit": True}, "--audit: what the kernel stamps is still encrypted"),
    ],
)
def test_way_that_does_not_fit_is_refused_before_anything_is_sent(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        options(**wrong)
    assert "s3cr3t" not in str(caught.value)
