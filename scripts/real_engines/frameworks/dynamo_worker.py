"""A worker of NVIDIA Dynamo: gets tokens from Dynamo's frontend and gives tokens back.

    python dynamo_worker.py MODEL_FOLDER MODEL_NAME

The frontend applies the chat template, counts, and speaks HTTP.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import uvloop
from dynamo.llm import ModelInput, ModelType, WorkerType, register_model
from dynamo.runtime import DistributedRuntime, dynamo_worker
from tiny_text import TinyText


@dynamo_worker()
async def serve(runtime: DistributedRuntime, folder: str, model: str) -> None:
    text = TinyText(folder)
    endpoint = runtime.endpoint("dynamo.backend.generate")
    await register_model(
        *(ModelInput.Tokens, ModelType.Chat | ModelType.Completions, endpoint, folder, model),
        worker_type=WorkerType.Aggregated,
    )

    async def generate(request: dict[str, Any], context: object) -> AsyncIterator[dict[str, Any]]:
        count = request["stop_conditions"]["max_tokens"]
        tokens = text.continuation(request["token_ids"], count)
        for number in range(1, count + 1):
            token = await asyncio.to_thread(next, tokens)
            yield {"token_ids": [token], "finish_reason": "length" if number == count else None}

    await endpoint.serve_endpoint(generate)


if __name__ == "__main__":
    uvloop.run(serve(*sys.argv[1:]))
