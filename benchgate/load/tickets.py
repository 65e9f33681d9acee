"""Planned requests as the bytes that go on the wire, made before the clock starts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from benchgate.errors import TargetError
from benchgate.plan.schedule import PlannedRequest
from benchgate.targets.address import ServerAddress, show_address
from benchgate.targets.dialect import PATHS, Endpoint, Target, request_body


class Ticket(NamedTuple):
    """One request ready for the wire. `offset_ns` is its intended send since the start; None in a closed loop."""

    number: int  # the planned request's index
    offset_ns: int | None
    wire: bytes


def tickets_of(
    target: Target, requests: Iterable[PlannedRequest], *, endpoint: Endpoint, ignore_eos: bool
) -> Iterator[Ticket]:
    """The requests as bytes, in order; one at a time, so that endless plans can be ticketed too.

    Raises TargetError when the target's address or key cannot stand in a request.
    """
    head = _request_head(target, endpoint)
    for request in requests:
        body = request_body(
            target,
            endpoint,
            request.prompt,
            request.output_tokens,
            stream=True,
            seed=request.seed,
            ignore_eos=ignore_eos,
        )
        raw = json.dumps(body).encode()
        yield Ticket(request.index, request.offset_ns, b"%bcontent-length: %d\r\n\r\n%b" % (head, len(raw), raw))


def _request_head(target: Target, endpoint: Endpoint) -> bytes:
    """The head of every request of a stage, but for the length of its body."""
    server = ServerAddress.of(target.url)
    headers = {"host": server.netloc, "user-agent": "benchgate", **target.headers()}
    for name, value in headers.items():
        if not (value.isascii() and value.isprintable()):
            raise TargetError(
                f"the {name} header for {show_address(target.url)} has characters that no header may have"
            )
    through_proxy = target.route.proxy is not None and server.scheme == "http"
    path = (server.http_url if through_proxy else server.prefix) + PATHS[endpoint]
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {text}" for name, text in headers.items())]
    return "".join(f"{line}\r\n" for line in lines).encode()
