"""Channels to a server of KServe's inference protocol over gRPC, and one request to find out whether it answers."""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from benchgate.errors import TargetError
from benchgate.model.request import ModelRequest
from benchgate.targets.answers import EMPTY_ANSWER, MAX_BODY_BYTES
from benchgate.targets.dialect import Target
from benchgate.targets.endpoints import request_path, wire_body
from benchgate.targets.grpc_messages import decode, require_grpc

Metadata = tuple[tuple[str, str], ...]

# Nothing from the environment, no repeated requests, a connection of its own for each channel, and quick reconnects.
CHANNEL_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.max_receive_message_length", MAX_BODY_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.primary_user_agent", "benchgate"),
)
_NO_METADATA = frozenset({"host", "user-agent", "content-type", "content-length", "accept-encoding", "connection"})
_NOT_CONNECTED = ("failed to connect", "connections to all backends failing", "DNS resolution failed")
# The status by HTTP that stands for one of gRPC, as its own documentation maps them.
HTTP_STATUS: Mapping[str, int] = MappingProxyType(
    {
        "INVALID_ARGUMENT": 400, "OUT_OF_RANGE": 400, "FAILED_PRECONDITION": 400, "UNAUTHENTICATED": 401,
        "PERMISSION_DENIED": 403, "NOT_FOUND": 404, "ALREADY_EXISTS": 409, "ABORTED": 409, "RESOURCE_EXHAUSTED": 429,
        "UNIMPLEMENTED": 501, "UNAVAILABLE": 503, "DEADLINE_EXCEEDED": 504,
    }
)  # fmt: skip


def open_channel(target: Target, grpc: Any) -> Any:
    """Return a channel to the target's address of gRPC, by `grpc` or `grpc.aio`. Raises TargetError without one."""
    require_grpc()
    if target.grpc is None:
        raise TargetError(f"the {target.arm} has no address of gRPC; write `grpc: host:8001` beside its `url`")
    scheme, _, address = target.grpc.partition("://")
    if scheme == "grpc":
        return grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
    return grpc.secure_channel(address, _credentials(target), options=CHANNEL_OPTIONS)


def _credentials(target: Target) -> Any:
    import grpc

    def content(path: str | None) -> bytes | None:
        return None if path is None else Path(path).read_bytes()

    route = target.route
    trusted = content(route.ca or ssl.get_default_verify_paths().cafile)
    chain = content(route.cert)
    return grpc.ssl_channel_credentials(trusted, content(route.key or route.cert), chain)


def is_unconnected(code: str, details: str) -> bool:
    """Return True for a status that says that there was no connection."""
    return code == "UNAVAILABLE" and details.startswith(_NOT_CONNECTED)


@lru_cache(maxsize=1024)
def called(head: bytes) -> tuple[str, Metadata]:
    """Return the method and the metadata that stand in a request's head."""
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = [(name.strip().lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    return first.split(" ")[1], tuple((name, value) for name, value in pairs if name and name not in _NO_METADATA)


def metadata_of(target: Target) -> Metadata:
    """Return the headers of every request as metadata."""
    return tuple((name, value) for name, value in target.headers().items() if name not in _NO_METADATA)


class InferenceProblem(NamedTuple):
    """The reason why a request got no text: the status of a call that failed, or an answer without one (no `code`)."""

    reason: str
    code: str = ""
    details: str = ""

    @property
    def is_unconnected(self) -> bool:
        """Return True if there was no connection."""
        return is_unconnected(self.code, self.details)

    @property
    def status(self) -> int | None:
        """Return the status by HTTP that stands for the code, where there is one."""
        return HTTP_STATUS.get(self.code)


def inference_problem(target: Target, ask: ModelRequest, within_s: float) -> InferenceProblem | None:
    """Send one request that is answered once. Return the reason why there was no text, None if there was one.

    A server that does not serve the method is asked for a stream: Triton answers a model that may send several
    responses, as its backend of vLLM does, by nothing else.
    """
    require_grpc()
    import grpc

    until_s = time.monotonic() + within_s
    with open_channel(target, grpc) as channel:
        problem = _problem(channel, target, replace(ask, stream=False), until_s)
        if problem is not None and problem.code == "UNIMPLEMENTED":
            streamed = _problem(channel, target, replace(ask, stream=True), until_s)
            return problem if streamed is not None and streamed.code == "UNIMPLEMENTED" else streamed
        return problem


def _problem(channel: Any, target: Target, ask: ModelRequest, until_s: float) -> InferenceProblem | None:
    import grpc

    method, body, metadata = request_path(target, ask), wire_body(target, ask, seed=0), metadata_of(target)
    left_s = max(0.0, until_s - time.monotonic())
    try:
        if ask.stream:
            call = channel.stream_stream(method)(iter([body]), timeout=left_s, metadata=metadata)
            answers = [decode(raw, streamed=True) for raw in call]
        else:
            answers = [decode(channel.unary_unary(method)(body, timeout=left_s, metadata=metadata), streamed=False)]
    except grpc.RpcError as error:
        code, details = error.code().name, target.redact(error.details() or "")
        return InferenceProblem(f"gRPC {code}: {details}", code, details)
    said = next((answer.error for answer in answers if answer is not None and answer.error), None)
    if said is not None:
        return InferenceProblem(target.redact(f"an error in the stream: {said}"))
    texts = [answer.text for answer in answers if answer is not None and answer.text is not None]
    if not texts:
        return InferenceProblem("an answer over gRPC without an output of BYTES in it")
    return None if any(texts) else InferenceProblem(EMPTY_ANSWER)
