"""A handler of TorchServe: OpenAI's routes below /predictions/MODEL/VERSION, like its own for vLLM, and plain texts.

TorchServe's handler for vLLM needs a vLLM of 2024, so this one takes the same paths and answers in the same shapes.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from typing import Any

from tiny_text import TinyText
from ts.handler_utils.utils import send_intermediate_predict_response
from ts.service import PredictionException
from ts.torch_handler.base_handler import BaseHandler

_OBJECTS = {"v1/chat/completions": "chat.completion", "v1/completions": "text_completion"}


class TextHandler(BaseHandler):
    """One request at a time, streamed or whole."""

    def initialize(self, context: Any) -> None:
        settings = context.model_yaml_config["handler"]
        self.model, self.text = settings["name"], TinyText(settings["folder"])
        self.initialized = True

    def handle(self, data: list[dict[str, Any]], context: Any) -> list[Any]:
        [row] = data
        path = context.get_request_header(0, "url_path")
        if path == "v1/models":
            return [{"object": "list", "data": [{"id": self.model, "object": "model", "owned_by": "vllm"}]}]
        body = row.get("body", row.get("data"))
        request: dict[str, Any] = json.loads(body) if isinstance(body, bytes | bytearray) else body or {}
        try:
            whole, pieces = self._answer(path, request)
        except (LookupError, ValueError) as exc:  # with HTTP 200, as its handler for vLLM has it
            code = 404 if isinstance(exc, LookupError) else 400
            return [{"object": "error", "message": str(exc), "type": "BadRequestError", "param": None, "code": code}]
        if not request.get("stream"):
            return [whole()]
        last = ""
        for piece in pieces:
            if last:
                send_intermediate_predict_response([last], context.request_ids, "Result", 200, context)
            last = piece
        return [last]

    def _answer(self, path: str | None, request: dict[str, Any]) -> tuple[Any, Iterator[str]]:
        if not path:
            pieces = self.text.pieces(request["prompt"], request.get("max_new_tokens", 16))
            return lambda: "".join(pieces), pieces
        if path not in _OBJECTS:
            raise PredictionException(f"Unknown API endpoint: {path}", 404)
        if request["model"] != self.model:
            raise LookupError(f"The model `{request['model']}` does not exist.")
        is_chat = path == "v1/chat/completions"
        prompt = self.text.chat_prompt(request["messages"]) if is_chat else request["prompt"]
        count, tokens = request.get("max_tokens", 16), len(self.text.encode(prompt))
        usage = {"prompt_tokens": tokens, "completion_tokens": count, "total_tokens": tokens + count}
        head = {"id": f"cmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": self.model}

        def whole() -> dict[str, Any]:
            text = "".join(self.text.pieces(prompt, count))
            output = {"message": {"role": "assistant", "content": text}} if is_chat else {"text": text}
            choice = {"index": 0, **output, "finish_reason": "length"}
            return {**head, "object": _OBJECTS[path], "choices": [choice], "usage": usage}

        def events() -> Iterator[str]:
            kind = _OBJECTS[path] + (".chunk" if is_chat else "")

            def event(choices: list[dict[str, Any]], **fields: Any) -> str:
                return f"data: {json.dumps({**head, 'object': kind, 'choices': choices, **fields})}\n\n"

            for number, piece in enumerate(self.text.pieces(prompt, count)):
                delta = {"role": "assistant", "content": piece} if number == 0 else {"content": piece}
                yield event([{"index": 0, **({"delta": delta} if is_chat else {"text": piece}), "finish_reason": None}])
            yield event([{"index": 0, **({"delta": {}} if is_chat else {"text": ""}), "finish_reason": "length"}])
            if (request.get("stream_options") or {}).get("include_usage"):
                yield event([], usage=usage)
            yield "data: [DONE]\n\n"

        return whole, events()
