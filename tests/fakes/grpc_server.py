"""A server of KServe's inference protocol over gRPC, with Triton's extension for streams, by grpcio."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from benchgate.targets.grpc_messages import FINAL_RESPONSE, _types

SERVICE = "inference.GRPCInferenceService"


@dataclass
class GrpcSim:
    """How it answers: `tokens` words, the first after `ttft_s`, the others `itl_s` apart, unless a fault stops it.

    `fault` is `status:CODE[:MESSAGE]` (instead of an answer), `status-after:N`, `error-after:N` (a message with an
    error), `cut-after:N` (the end in good order, without the last answer), `hang-after:N`, `empty` or `no-text`; it
    meets every `every`-th call. `decoupled`: answers streams alone, as Triton does for a model of several responses.
    """

    tokens: int = 8
    ttft_s: float = 0.01
    itl_s: float = 0.002
    fault: str | None = None
    every: int = 1
    raw: bool = True  # texts behind the message, as Triton sends them; else within it, as KServe does
    states_final: bool = True
    decoupled: bool = False
    url: str = ""
    requests: list[Any] = field(default_factory=list)  # the messages that came, and their metadata
    metadata: list[dict[str, str]] = field(default_factory=list)
    peers: list[str] = field(default_factory=list)  # the connections that they came by
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, message: bytes, context: grpc.ServicerContext) -> tuple[Any, str | None]:
        """Note a request; return it, and the fault that its answer has."""
        request = _types()["ModelInferRequest"].FromString(message)
        with self._lock:
            self.requests.append(request)
            self.metadata.append(dict(context.invocation_metadata()))
            self.peers.append(context.peer())
            faulty = self.fault is not None and len(self.requests) % self.every == 0
        if faulty and str(self.fault).startswith("status:"):
            code, _, said = str(self.fault).removeprefix("status:").partition(":")
            context.abort(grpc.StatusCode[code], said or "as it was told to")
        return request, self.fault if faulty else None

    def answer(self, request: Any, text: str | None, *, last: bool = False) -> Any:
        """Return an answer with a text; None: without any tensor."""
        answer = _types()["ModelInferResponse"](model_name=request.model_name)
        if self.states_final:
            answer.parameters.add(key=FINAL_RESPONSE).value.bool_param = last
        if text is not None:
            tensor = answer.outputs.add(name="text_output", datatype="BYTES")
            tensor.shape.append(1)
            if self.raw:
                answer.raw_output_contents.append(struct.pack("<I", len(text)) + text.encode())
            else:
                tensor.contents.bytes_contents.append(text.encode())
        return answer

    def infer(self, message: bytes, context: grpc.ServicerContext) -> bytes:
        """Answer `ModelInfer`."""
        if self.decoupled:
            said = "ModelInfer RPC doesn't support models with decoupled transaction policy"
            context.abort(grpc.StatusCode.UNIMPLEMENTED, said)
        request, fault = self.take(message, context)
        time.sleep(self.ttft_s + self.itl_s * self.tokens)
        text = None if fault == "no-text" else "" if fault == "empty" else "word " * self.tokens
        return bytes(self.answer(request, text, last=True).SerializeToString())

    def stream(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """Answer `ModelStreamInfer`: every word by itself."""
        outer = _types()["ModelStreamInferResponse"]
        for message in messages:
            request, fault = self.take(message, context)
            kind, _, after = (fault or "").partition("-after:")
            for number in range(0 if fault == "empty" else self.tokens):
                if after and number == int(after):
                    if kind == "status":
                        context.abort(grpc.StatusCode.INTERNAL, "as it was told to")
                    if kind == "hang":
                        time.sleep(30)
                    if kind == "error":
                        yield outer(error_message="as it was told to").SerializeToString()
                    return
                time.sleep(self.itl_s if number else self.ttft_s)
                yield outer(infer_response=self.answer(request, f"word{number} ")).SerializeToString()
            if self.states_final:
                yield outer(infer_response=self.answer(request, None, last=True)).SerializeToString()


@contextmanager
def serving_grpc(sim: GrpcSim | None = None, *, credentials: grpc.ServerCredentials | None = None) -> Iterator[GrpcSim]:
    """Serve at a free port of this machine."""
    sim = sim or GrpcSim()
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=64))
    handlers = {
        "ModelInfer": grpc.unary_unary_rpc_method_handler(sim.infer),
        "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(sim.stream),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    if credentials is None:
        sim.url = f"grpc://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    else:
        sim.url = f"grpcs://localhost:{server.add_secure_port('localhost:0', credentials)}"
    server.start()
    try:
        yield sim
    finally:
        server.stop(0).wait()
