"""A verdict to whoever asked for it by an address: a signed webhook, Slack's kind of it, a Pushgateway.

The webhook is signed as Standard Webhooks 1.0.0 says (symmetric, `v1`): over id, instant of the try and body. Its id is
made of the body, so that the same verdict sent twice, by this process or a later one, is told once by a receiver that
goes by ids. Secrets come from the environment by name and are in no message, error or command line.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from urllib.parse import quote

from benchgate.errors import UsageError
from benchgate.integrations.delivery import CLOCK, Clock, deliver
from benchgate.integrations.destination import Destination, destination

SECRET = "BENCHGATE_WEBHOOK_SECRET"
SLACK_URL = "BENCHGATE_SLACK_URL"
_LEAST_KEY, _MOST_KEY = 24, 64  # bytes, as the specification asks
_EXPECTED = f"expected `whsec_` and {_LEAST_KEY} to {_MOST_KEY} random bytes as base64"


def webhook_key(environment: Mapping[str, str]) -> bytes:
    """The signing key by BENCHGATE_WEBHOOK_SECRET: `whsec_` and base64. Raises UsageError where there is none."""
    told = environment.get(SECRET, "").strip()
    if not told:
        raise UsageError(f"{SECRET} is not set, and a webhook is signed; {_EXPECTED}")
    try:
        key = base64.b64decode(told.removeprefix("whsec_"), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not told.startswith("whsec_") or not _LEAST_KEY <= len(key) <= _MOST_KEY:
        raise UsageError(f"{SECRET} is no signing secret; {_EXPECTED}")
    return key


def send_webhook(to: Destination, body: str, key: bytes, *, clock: Clock = CLOCK) -> str:
    """Send a signed body, and the id under which it went. Raises PublishError."""
    data = body.encode()
    message_id = f"msg_{hashlib.sha256(data).hexdigest()[:32]}"

    def headers() -> dict[str, str]:
        at = str(int(clock.unix()))
        return {
            "Content-Type": "application/json",
            "webhook-id": message_id,
            "webhook-timestamp": at,
            "webhook-signature": signature(key, message_id, at, data),
        }

    deliver("POST", to, data, headers, repeatable=True, clock=clock)
    return message_id


def signature(key: bytes, message_id: str, at: str, body: bytes) -> str:
    """What a receiver holds against its own: `v1,` and the HMAC-SHA256 of `id.instant.body` as base64."""
    signed = b".".join((message_id.encode(), at.encode(), body))
    return f"v1,{base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()}"


def slack_destination(environment: Mapping[str, str]) -> Destination:
    """Where messages go, by BENCHGATE_SLACK_URL, which is a secret itself. Raises UsageError where there is none."""
    told = environment.get(SLACK_URL, "").strip()
    if not told:
        raise UsageError(f"{SLACK_URL} is not set; expected the address of an incoming webhook, as a secret of the CI")
    return destination(told, SLACK_URL)


def send_slack(to: Destination, message: str, *, clock: Clock = CLOCK) -> None:
    """Post a message; never twice where the first may have come. Raises PublishError."""
    headers = {"Content-Type": "application/json; charset=utf-8"}
    deliver("POST", to, message.encode(), lambda: headers, repeatable=False, clock=clock)


def push_metrics(to: Destination, text: str, suite: str, *, clock: Clock = CLOCK) -> None:
    """Put a suite's metrics to a Pushgateway, in place of those it had of it. `to` is the gateway's own address.

    Raises PublishError.
    """
    encoded = base64.urlsafe_b64encode(suite.encode(errors="replace")).decode()
    path, _, query = to.target.partition("?")
    target = f"{path.rstrip('/')}/metrics/job/benchgate/suite@base64/{quote(encoded)}" + (f"?{query}" if query else "")
    group = Destination(to.what, to.scheme, to.host, to.port, target)
    headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
    deliver("PUT", group, text.encode(), lambda: headers, repeatable=True, clock=clock)
