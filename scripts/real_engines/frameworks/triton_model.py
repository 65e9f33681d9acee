"""A model of Triton's Python backend, decoupled or not, with the tensors of its backends of vLLM and TensorRT-LLM.

TINY_MODEL is the folder of the model.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import triton_python_backend_utils as backend
from tiny_text import TinyText


class TritonPythonModel:
    """Text of one tensor, whole or token by token."""

    def initialize(self, arguments: dict[str, str]) -> None:
        config = json.loads(arguments["model_config"])
        self.is_decoupled = config.get("model_transaction_policy", {}).get("decoupled", False)
        self.text = TinyText(os.environ["TINY_MODEL"])

    def execute(self, requests: list[Any]) -> list[Any] | None:
        if not self.is_decoupled:
            return [_response("".join(self._pieces(request))) for request in requests]
        for request in requests:
            sender = request.get_response_sender()
            pieces = self._pieces(request)
            for piece in pieces if _value(request, "stream", False) else ["".join(pieces)]:
                sender.send(_response(piece))
            sender.send(flags=backend.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None

    def _pieces(self, request: Any) -> Iterator[str]:
        yield from self.text.pieces(_value(request, "text_input", b"").decode(), int(_value(request, "max_tokens", 16)))


def _value(request: Any, name: str, default: Any) -> Any:
    tensor = backend.get_input_tensor_by_name(request, name)
    return default if tensor is None else tensor.as_numpy().reshape(-1)[0]


def _response(text: str) -> Any:
    return backend.InferenceResponse([backend.Tensor("text_output", np.array([text.encode()], dtype=object))])
