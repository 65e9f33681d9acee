"""KServe's model server with a text model: `infer` of the second protocol, and OpenAI's routes below /openai.

    python kserve_model.py MODEL_FOLDER MODEL_NAME PORT

The class is built as that of KServe's runtime for Hugging Face models, which no package registry has.
"""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

from kserve import InferOutput, InferRequest, InferResponse, Model, ModelServer
from kserve.errors import InvalidInput
from kserve.protocol.rest.openai import ChatPrompt, OpenAIChatAdapterModel
from kserve.protocol.rest.openai.types import Completion, CompletionChunk, CompletionRequest, UsageInfo
from tiny_text import TinyText


class OpenAIText(OpenAIChatAdapterModel):
    """Completions; KServe makes chat of them."""

    def __init__(self, name: str, text: TinyText) -> None:
        super().__init__(name)
        self.text = text

    def apply_chat_template(self, request: Any) -> ChatPrompt:
        return ChatPrompt(prompt=self.text.chat_prompt(request.messages))

    async def create_completion(self, request: CompletionRequest, raw_request: Any = None, context: Any = None) -> Any:
        head = {"id": f"cmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": request.model}
        count = request.max_tokens or 16
        try:
            given = len(self.text.encode(request.prompt))
        except ValueError as exc:
            raise InvalidInput(str(exc)) from exc
        usage = UsageInfo(prompt_tokens=given, completion_tokens=count, total_tokens=given + count)
        pieces = self.text.pieces(request.prompt, count)

        async def events() -> AsyncIterator[str]:
            for number in range(1, count + 1):
                piece = await asyncio.to_thread(next, pieces, None)
                reason = "length" if number == count else None
                choice = {"index": 0, "text": piece or "", "finish_reason": reason}
                yield f"data: {CompletionChunk(**head, choices=[choice]).model_dump_json()}\n\n"
            if request.stream_options and request.stream_options.include_usage:
                yield f"data: {CompletionChunk(**head, choices=[], usage=usage).model_dump_json()}\n\n"
            yield "data: [DONE]\n\n"

        if request.stream:
            return events()
        text = await asyncio.to_thread("".join, pieces)
        return Completion(**head, choices=[{"index": 0, "text": text, "finish_reason": "length"}], usage=usage)


class TensorText(Model):
    """Text in a tensor, for `infer`."""

    def __init__(self, name: str, text: TinyText) -> None:
        super().__init__(name)
        self.text, self.ready = text, True

    def predict(self, payload: InferRequest, headers: Any = None, response_headers: Any = None) -> InferResponse:
        given = {tensor.name: tensor.data for tensor in payload.inputs}
        if "text_input" not in given:
            raise InvalidInput("the input tensor text_input is missing")
        text = "".join(self.text.pieces(given["text_input"][0], int(given.get("max_tokens", [16])[0])))
        output = InferOutput(name="text_output", shape=[1], datatype="BYTES", data=[text])
        return InferResponse(response_id=payload.id, model_name=self.name, infer_outputs=[output])


def main(folder: str, model: str, port: str) -> None:
    text = TinyText(folder)
    ModelServer(http_port=int(port), enable_grpc=False).start([OpenAIText(model, text), TensorText("tensors", text)])


if __name__ == "__main__":
    main(*sys.argv[1:])
