"""Verdicts sent to an address: signed, bounded, tried again where that does no harm, and never showing a secret."""

from __future__ import annotations

import base64
import hashlib
import hmac
import socket
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from benchgate.errors import PublishError, UsageError
from benchgate.integrations import webhook
from benchgate.integrations.webhook import (
    SECRET,
    SLACK_URL,
    addresses,
    destination,
    push_metrics,
    send_slack,
    send_webhook,
    signature,
    slack_destination,
    webhook_key,
)
from tests.fakes import certificates
from tests.fakes.receiver import HANG_UP, Receiver, receiving
from tests.fakes.scripted_server import Received, ScriptedServer

KEY = bytes(range(32))
TOLD = {SECRET: f"whsec_{base64.b64encode(KEY).decode()}"}


def test_the_signature_is_that_of_standard_webhooks() -> None:
    """The vector of the specification's own libraries."""
    key = webhook_key({SECRET: "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"})
    signed = signature(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", b'{"test": 2432232314}')
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_a_webhook_is_signed_anew_for_each_try_and_keeps_its_id() -> None:
    with receiving([503, 500, 204]) as receiver:
        said = send_webhook(receiver.to(), '{"type":"benchgate.verdict"}', KEY, clock=receiver.clock)
    assert receiver.slept == [1.0, 2.0]
    assert {one[:2] for one in receiver.seen} == {("POST", "/hook?key=hidden")}
    assert {one[2]["webhook-id"] for one in receiver.seen} == {said}
    assert [one[2]["webhook-timestamp"] for one in receiver.seen] == ["1700001000", "1700001001", "1700001003"]
    for _, _, headers, body in receiver.seen:
        signed = f"{said}.{headers['webhook-timestamp']}.".encode() + body
        expected = base64.b64encode(hmac.new(KEY, signed, hashlib.sha256).digest()).decode()
        assert headers["webhook-signature"] == f"v1,{expected}"
        assert headers["host"] == f"localhost:{receiver.port}"


def test_the_same_verdict_has_the_same_id_and_another_one_another() -> None:
    with receiving([200]) as receiver:
        ids = [send_webhook(receiver.to(), body, KEY, clock=receiver.clock) for body in ("a", "a", "b")]
    assert ids[0] == ids[1] != ids[2]


@pytest.mark.parametrize(
    ("codes", "tries", "says"),
    [
        ([401], 1, "its key or its signing secret is not the server's"),
        ([404], 1, "is its address right"),
        ([302], 1, "redirects are not followed"),
        ([500], 4, "HTTP 500 (Internal Server Error), again and again"),
        ([HANG_UP], 4, "the connection broke, again and again"),
    ],
)
def test_a_webhook_that_is_not_taken_is_an_error_without_the_secret_part_of_its_address(
    codes: list[int], tries: int, says: str
) -> None:
    with receiving(codes) as receiver:
        with pytest.raises(PublishError) as failed:
            send_webhook(receiver.to(), "{}", KEY, clock=receiver.clock)
        assert len(receiver.seen) == tries
    assert says in str(failed.value)
    assert f"the webhook at http://localhost:{receiver.port}" in str(failed.value)
    assert "hidden" not in str(failed.value)
    assert "hook?" not in str(failed.value)


def test_a_server_that_asks_to_wait_is_waited_for_within_bounds() -> None:
    with receiving([429, 200], retry_after="7") as receiver:
        send_webhook(receiver.to(), "{}", KEY, clock=receiver.clock)
    with receiving([429], retry_after="99999") as patient, pytest.raises(PublishError, match="HTTP 429"):
        send_webhook(patient.to(), "{}", KEY, clock=patient.clock)
    assert receiver.slept == [7.0]
    assert patient.slept == [30.0]  # and no second time: a minute is all there is


def test_slack_is_never_told_twice_where_it_may_have_heard() -> None:
    for code, tries in ((HANG_UP, 1), (500, 1), (503, 4), (429, 4)):
        with receiving([code]) as receiver, pytest.raises(PublishError):
            send_slack(receiver.to("/services/T0/B0/token"), "{}", clock=receiver.clock)
        assert len(receiver.seen) == tries


def test_a_server_that_answers_byte_by_byte_is_not_waited_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "_TRY_S", 0.3)

    def respond(_: Received) -> Iterator[bytes | float]:
        yield b"HTTP/1.1 200 OK\r\nX: "
        while True:
            yield b"x"
            yield 0.02

    with (
        ScriptedServer(respond) as server,
        pytest.raises(PublishError, match="no answer in time; it is unknown if it arrived"),
    ):
        send_slack(destination(f"{server.url}/services/hidden", "Slack"), "{}")


def test_nobody_there_is_tried_again_and_said() -> None:
    with receiving([200]) as receiver:
        pass
    with pytest.raises(PublishError, match="refuses connections, again and again"):
        send_slack(receiver.to("/services/token"), "{}", clock=receiver.clock)
    assert receiver.slept == [1.0, 2.0, 4.0]


def test_metrics_are_put_under_their_suite_whatever_is_in_its_name() -> None:
    with receiving([200]) as receiver:
        push_metrics(receiver.to("/gateway/"), "benchgate_verdict 1\n", "my/../suite?", clock=receiver.clock)
    ((method, path, headers, body),) = receiver.seen
    place, _, encoded = path.rpartition("/")
    assert (method, place) == ("PUT", "/gateway/metrics/job/benchgate/suite@base64")
    assert base64.urlsafe_b64decode(encoded.replace("%3D", "=")) == b"my/../suite?"
    assert headers["content-type"].startswith("text/plain; version=0.0.4")
    assert body == b"benchgate_verdict 1\n"


def test_a_certificate_is_held_against_the_name_and_not_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", certificates.CA)
    with receiving([200], tls="server") as receiver:
        send_webhook(receiver.to(scheme="https"), "{}", KEY, clock=receiver.clock)
        assert len(receiver.seen) == 1
    with receiving([200], tls="elsewhere") as other:
        with pytest.raises(PublishError, match="its certificate is not trusted here"):
            send_webhook(other.to(scheme="https"), "{}", KEY, clock=other.clock)
        assert other.seen == []


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/hook",
        "ftp://example.com/hook",
        "https://",
        "https://user:password@example.com/hook",
        "https://example.com/hook#here",
        "https://example.com:0/hook",
        "https://example.com:99999/hook",
        "https://example.com/a b",
        "https://example.com/\r\nX: y",
        "hidden",
    ],
)
def test_what_is_no_address_for_a_secret_is_refused_unsaid(url: str) -> None:
    with pytest.raises(UsageError) as refused:
        destination(url, "--webhook")
    assert "example.com" not in str(refused.value)
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254",
        "[fe80::1]",
        "[::ffff:169.254.169.254]",
        "[64:ff9b::a9fe:a9fe]",
        "[64:ff9b:1::a9fe:a9fe]",
        "[::169.254.169.254]",
        "[fd00:ec2::254]",
        "[fd00:ec2::23]",
        "100.100.100.200",
        "168.63.129.16",
        "0.0.0.0",
        "[::]",
        "224.0.0.1",
        "2852039166",  # 169.254.169.254 as one number, which the resolver takes
    ],
)
def test_metadata_services_and_this_link_are_told_nothing(host: str) -> None:
    with pytest.raises(PublishError, match="nothing is sent there"):
        addresses(destination(f"https://{host}/latest", "--webhook"))


def test_a_name_that_leads_to_a_metadata_service_is_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: [(2, 1, 6, "", ("169.254.169.254", 443))])
    with pytest.raises(PublishError, match="nothing is sent there"):
        send_webhook(destination("https://harmless.example/", "--webhook"), "{}", KEY)


def test_a_name_like_this_machine_s_that_is_elsewhere_gets_nothing_in_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: [(2, 1, 6, "", ("203.0.113.7", 80))])
    with pytest.raises(PublishError, match="not on this machine"):
        send_webhook(destination("http://localhost/", "--webhook"), "{}", KEY)


@pytest.mark.parametrize("told", ["", "hidden", "whsec_aGlkZGVu", "whsec_%%%", f"whsec_{'A' * 200}"])
def test_a_key_that_signs_nothing_well_is_refused_and_not_shown(told: str) -> None:
    with pytest.raises(UsageError, match=SECRET) as refused:
        webhook_key({SECRET: told})
    assert not told or told not in str(refused.value)


def test_a_host_that_is_nowhere_is_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr("socket.getaddrinfo", nowhere)
    receiver = Receiver([])
    with pytest.raises(PublishError, match="there is no host of that name, again and again"):
        send_webhook(destination("https://harmless.example/", "--webhook"), "{}", KEY, clock=receiver.clock)
    assert receiver.slept == [1.0, 2.0, 4.0]


def test_a_name_that_no_host_can_have_is_nowhere_too() -> None:
    receiver = Receiver([])
    with pytest.raises(PublishError, match="there is no host of that name"):
        send_webhook(destination(f"https://{'a' * 64}.example/", "--webhook"), "{}", KEY, clock=receiver.clock)


def test_every_address_of_a_host_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving([200]) as receiver:
        there = [(10, 1, 6, "", ("::1", receiver.port, 0, 0)), (2, 1, 6, "", ("127.0.0.1", receiver.port))]
        real = socket.getaddrinfo

        def found(host: str, *rest: Any, **options: Any) -> Any:
            return there if host == "localhost" else real(host, *rest, **options)

        monkeypatch.setattr("socket.getaddrinfo", found)
        send_webhook(receiver.to(), "{}", KEY, clock=receiver.clock)
    assert receiver.slept == []


def test_a_minute_is_all_there_is_for_any_number_of_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    receiver, limits = Receiver([]), list[float]()
    there = [(2, 1, 6, "", (f"192.0.2.{last}", 443)) for last in range(100)]
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: there)

    async def silent(_: object, __: object, limit_s: float) -> None:
        limits.append(limit_s)
        receiver.clock.sleep(min(5.0, max(0.0, limit_s)))
        raise httpx2.ConnectTimeout("nobody") if limit_s > 0 else TimeoutError

    monkeypatch.setattr(webhook, "_send", silent)
    with pytest.raises(PublishError, match="in time"):
        send_webhook(destination("https://harmless.example/", "--webhook"), "{}", KEY, clock=receiver.clock)
    assert sum(min(5.0, max(0.0, one)) for one in limits) == 60.0


def test_slack_s_address_is_a_secret_of_the_environment() -> None:
    with pytest.raises(UsageError, match=f"{SLACK_URL} is not set"):
        slack_destination({})
    to = slack_destination({SLACK_URL: "https://hooks.slack.example/services/T0/B0/hidden\n"})
    assert to.target == "/services/T0/B0/hidden"
    assert "hidden" not in repr(to)
    assert webhook_key(TOLD) == KEY
