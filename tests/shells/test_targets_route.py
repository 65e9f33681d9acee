"""Certificates, sockets and headers as every client of a target uses them, and what is said when they are no good."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from benchgate.errors import TargetError, UsageError
from benchgate.model.deployment import Arm
from benchgate.model.run import ShadowObservation
from benchgate.plan.items import ShadowPrompt
from benchgate.shadow.mirror import mirror
from benchgate.suite.deployment import DeploymentSpec
from benchgate.suite.quality import Shadow
from benchgate.suite.schema import Limits
from benchgate.targets.address import DIRECT, Route, tls_context
from benchgate.targets.dialect import DIALECTS, Target, target_of
from benchgate.targets.error_messages import one_line
from benchgate.targets.probe import detect_engine, liveness_problem, wait_ready
from tests.fakes.certificates import CA, CLIENT_CERT, CLIENT_KEY, STRANGER_CA, TLS, serving
from tests.fakes.proxy import Proxy
from tests.fakes.scripted_server import Received, ScriptedServer, Step, answering

OURS = Route(CA, CLIENT_CERT, CLIENT_KEY)
KEY = "k3y-0f-tenant"


@pytest.fixture(autouse=True)
def dead_proxy_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")


def target(url: str, route: Route = DIRECT, arm: Arm = Arm.CANDIDATE) -> Target:
    return Target(
        arm,
        url,
        "scripted",
        DIALECTS["openai"],
        open_headers={"x-team": "ml"},
        secret_headers={"x-tenant-key": KEY},
        route=route,
    )


def asks_all(one: Target, other: Target) -> ShadowObservation:
    """A probe of both, and a shadow comparison between them."""
    for each in (one, other):
        wait_ready(each, endpoint="chat", ready_s=10, connect_s=5)
        assert liveness_problem(each) is None
        assert detect_engine(each) == "openai"
    prompts = tuple(ShadowPrompt(f"p{n}", f"say {n}") for n in range(3))
    [observation] = mirror(one, other, prompts, Shadow(prompts="unused"), Limits())
    return observation


def test_probe_and_shadow_go_the_way_of_their_targets(tmp_path: Path) -> None:
    def answer(received: Received) -> Iterable[Step]:
        below = replace(received, path=received.path.removeprefix("/base"))
        return answering(lambda asked: f"said: {asked.prompt}")(below)

    with (
        Proxy() as proxy,
        ScriptedServer(answer, tls=serving(asks_for_ours=True)) as secure,
        ScriptedServer(answer, socket_path=tmp_path / "s") as local,
    ):
        seen = asks_all(
            target(f"{secure.url}/base", replace(OURS, proxy=proxy.url), Arm.BASELINE), target(f"{local.url}:/base")
        )
        for server in (secure, local):
            posted = [asked for asked in server.requests if asked.method == "POST"]
            assert {asked.path for asked in posted} == {"/base/v1/chat/completions"}
            assert {(a.headers["x-team"], a.headers["x-tenant-key"]) for a in posted} == {("ml", KEY)}
        assert set(proxy.asked) == {f"CONNECT localhost:{secure.port} HTTP/1.1"}
        assert KEY not in "".join(proxy.heads)
    assert (seen.fault, [item.error for item in seen.items]) == (None, [None] * 3)


def test_probe_and_shadow_ask_an_http_server_through_its_proxy() -> None:
    with Proxy() as proxy, ScriptedServer(answering(lambda _: "yes")) as server:
        through = target(server.url, Route(proxy=proxy.url))
        assert asks_all(through, through).fault is None
        assert all(f" {server.url}/" in line for line in proxy.asked)


@pytest.mark.parametrize(
    ("certificate", "route", "reason"),
    [
        ("server", Route(ca=STRANGER_CA), "unable to get local issuer certificate"),
        ("elsewhere", Route(ca=CA), "Hostname mismatch"),
        ("expired", Route(ca=CA), "certificate has expired"),
    ],
)
def test_probe_does_not_wait_for_a_certificate_to_become_good(certificate: str, route: Route, reason: str) -> None:
    with ScriptedServer(answering(lambda _: "yes"), tls=serving(certificate)) as server:
        with pytest.raises(TargetError, match=f"refuses requests: .*{reason}"):
            wait_ready(target(server.url, route), endpoint="chat", ready_s=600, connect_s=5)
        assert server.requests == []


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "empty.pem").write_bytes(b"")
    (tmp_path / "no.pem").write_text("-----BEGIN CERTIFICATE-----\nnonsense s3cr3t\n-----END CERTIFICATE-----\n")
    both = Path(CLIENT_CERT).read_bytes() + Path(CLIENT_KEY).read_bytes()
    (tmp_path / "both.pem").write_bytes(both)
    yield tmp_path


@pytest.mark.parametrize(
    ("route", "said"),
    [
        (Route(ca="{}/none.pem"), "the CA certificates in .*none.pem could not be read: No such file or directory"),
        (Route(ca="{}"), "could not be read: Is a directory"),
        (Route(ca="{}/empty.pem"), "the CA certificates in .*empty.pem are none in PEM form"),
        (Route(ca="{}/no.pem"), "the CA certificates in .*no.pem are none in PEM form"),
        (Route(cert="{}/none.pem"), "the client certificate in .*none.pem could not be read"),
        (Route(cert="{}/no.pem"), "the client certificate .*no.pem cannot be used"),
        (Route(cert=CLIENT_CERT), "the client certificate .*client.pem cannot be used"),
        (Route(cert=CLIENT_CERT, key="{}/none.key"), "the key in .*none.key could not be read"),
        (Route(cert=CLIENT_CERT, key=str(TLS / "server.key")), "cannot be used: key values mismatch"),
        (Route(cert=CLIENT_CERT, key=str(TLS / "client-encrypted.key")), "is encrypted; give one without a passphrase"),
    ],
)
def test_files_that_cannot_be_used_are_named_and_not_quoted(files: Path, route: Route, said: str) -> None:
    placed = replace(
        route,
        **{name: str(getattr(route, name)).format(files) for name in ("ca", "cert", "key") if getattr(route, name)},
    )
    with pytest.raises(UsageError, match=said) as caught:
        tls_context(placed)
    assert "s3cr3t" not in str(caught.value)


def test_certificate_and_key_may_stand_in_one_file(files: Path) -> None:
    tls_context(Route(CA, str(files / "both.pem")))


def deployed(environment: dict[str, str], keys: Mapping[str, object]) -> Target:
    spec = DeploymentSpec.model_validate({"url": "https://localhost:9/base", "model": "m", **keys})
    return target_of(Arm.CANDIDATE, spec, environment, TLS)


def test_target_is_made_of_what_the_suite_says_and_refers_to() -> None:
    made = deployed(
        {"URL": "https://h:9/b/", "TEAM_KEY": "s3cr3t", "PROXY": "http://p:3128/"},
        {
            "url": "${env:URL}",
            "headers": {"X-Team": "ml", "x-team-key": "${env:TEAM_KEY}"},
            "tls": {"ca": "ca.pem", "cert": "client.pem", "key": "client.key"},
            "proxy": "${env:PROXY}",
        },
    )
    assert (made.url, made.route) == ("https://h:9/b", replace(OURS, proxy="http://p:3128"))
    assert made.headers()["x-team"] == "ml"
    assert made.headers()["x-team-key"] == "s3cr3t"
    assert "s3cr3t" not in repr(made)
    assert pickle.loads(pickle.dumps(made)) == made


@pytest.mark.parametrize(
    ("environment", "keys", "said"),
    [
        ({}, {"headers": {"x-key": "${env:KEY}"}}, "the environment variable KEY is not set"),
        ({"KEY": "a\nb"}, {"headers": {"x-key": "${env:KEY}"}}, "KEY holds a line break"),
        ({}, {"proxy": "${env:PROXY}"}, "the environment variable PROXY is not set"),
        ({"PROXY": "socks5://s3cr3t"}, {"proxy": "${env:PROXY}"}, "`proxy` is not the address of a proxy"),
        ({"PROXY": "http://u:s3cr3t@p"}, {"proxy": "${env:PROXY}"}, "`proxy` holds credentials"),
        ({"URL": "http://h"}, {"url": "${env:URL}", "tls": {"ca": "ca.pem"}}, "`tls` is for https"),
        ({}, {"tls": {"ca": "none.pem"}}, "the CA certificates in .*none.pem could not be read"),
    ],
)
def test_what_a_deployment_refers_to_is_checked_before_anything_is_sent(
    environment: dict[str, str], keys: dict[str, object], said: str
) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        deployed(environment, keys)
    assert "s3cr3t" not in str(caught.value)


def test_no_part_of_a_credential_is_repeated() -> None:
    made = replace(target("http://h"), api_key="abc", secret_headers={"cookie": "Basic dXNlcg==", "x-key": "abcdef"})
    said = json.dumps(["bad key abcdef", "dXNlcg==", "Bearer abc", "abc"])
    assert one_line(said, secret=made.secrets) == json.dumps(["bad key [redacted]", *["[redacted]"] * 3])
