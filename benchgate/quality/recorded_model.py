"""The model that lm-eval evaluates in an eval process: sends requests and records every answer.

lm-eval's own OpenAI client hides what a gate must see: it takes a response without choices for an empty answer, drops
finish reasons, aborts the evaluation on one failure, and loses the server's error messages. Here a failure is recorded
on its own item, and the evaluation goes on until the server is clearly gone.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM

from benchgate.errors import TargetError
from benchgate.model.records import VerifiedAnswer
from benchgate.model.request import ENDPOINTS
from benchgate.plan.items import PlannedTask
from benchgate.quality.logprobs import score_requests
from benchgate.quality.protocol import GIVE_UP_AFTER, REQUEST_SEED, ItemAnswered, ItemPrompt, Job, SpoolWriter
from benchgate.targets.answers import read_answer
from benchgate.targets.client import RETRY, AsyncJsonClient

_CHAT_STOPS = 4  # stop texts that a chat endpoint takes, as OpenAI limits them


class _Messages(NamedTuple):
    """Chat messages in lm-eval's prompts; a task hashes them by `encode`."""

    text: str

    def encode(self, encoding: str) -> bytes:
        """Return the JSON text as bytes, as lm-eval's own backend does."""
        return self.text.encode(encoding)


class RecordedModel(LM):  # type: ignore[misc]  # lm-eval ships no type information
    """A served model. Answers go to the spool as they come; lm-eval scores a failed item as if it were empty."""

    def __init__(self, job: Job, spool: SpoolWriter) -> None:
        super().__init__()
        self._job = job
        self._spool = spool
        self._task: PlannedTask | None = None
        self._ids: Sequence[str] = ()
        self._rows = range(0)
        self._repetition = 0
        self._failures: Counter[str] = Counter()  # of each task, over all rounds

    def begin(self, task: PlannedTask, rows: range, repetition: int) -> None:
        """Set the rows that lm-eval's next requests are for."""
        if self._task is not task:
            self._ids = task.item_ids
        self._task, self._rows, self._repetition = task, rows, repetition

    def _item_id(self, request: Instance) -> str:
        return self._ids[self._rows[int(request.doc_id)]]  # lm-eval counts the rows that it was given, from 0

    @property
    def tokenizer_name(self) -> str:
        """Return no name: the server tokenizes."""
        return ""

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> Any:
        """Return the messages themselves: the server applies its own template."""
        return _Messages(json.dumps(chat_history, ensure_ascii=False))

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Return log-probability and greediness of each continuation; placeholders for failed items."""

        async def score() -> list[tuple[float, bool]]:
            async with self._client() as client:
                return await score_requests(
                    client, self._job.concurrency, requests, self._spool, self._item_id, self._failures
                )

        return asyncio.run(score())

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Refuse: `divergence` measures whole texts, on both arms at the same positions."""
        raise NotImplementedError("whole texts are measured by `divergence`, not by loglikelihood_rolling tasks")

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return one text per request, in order. A failed one is "", with its error in the spool."""
        if self._job.recorded is not None:
            return [self._recorded(request, self._job.recorded) for request in requests]

        async def generate() -> list[str]:
            slots = asyncio.Semaphore(self._job.concurrency)
            async with self._client() as client:
                return await asyncio.gather(*(self._generate(client, slots, request) for request in requests))

        return asyncio.run(generate())

    def _recorded(self, request: Instance, recorded: Mapping[str, Mapping[str, VerifiedAnswer]]) -> str:
        """Return an answer that was given among a load; write the prompt of an item without one."""
        task, item_id = str(request.task_name), self._item_id(request)
        prompt, unsent_stops = self._prompt(request)
        known = recorded.get(task, {}).get(item_id)
        if known is None:
            self._spool.write(prompt)
            return ""
        text, finish_reason = _cut_at(known.answer, known.finish_reason, unsent_stops)
        cut = {"task": task, "answer": text, "finish_reason": finish_reason}
        self._spool.write(ItemAnswered(**{**asdict(known), **cut}))
        return text or ""

    def _client(self) -> AsyncJsonClient:
        job = self._job
        return AsyncJsonClient(
            job.target, connect_s=job.connect_s, total_s=job.total_s, connections=job.concurrency, retry=RETRY
        )

    async def _generate(self, client: AsyncJsonClient, slots: asyncio.Semaphore, request: Instance) -> str:
        async with slots:
            answered = await self._answered(client.with_own_retry_count(), request)
        if answered.error is not None:
            self._failures[answered.task] += 1
        self._spool.write(answered)
        return answered.answer or ""

    async def _answered(self, client: AsyncJsonClient, request: Instance) -> ItemAnswered:
        task, item_id = str(request.task_name), self._item_id(request)
        try:
            if self._failures[task] >= GIVE_UP_AFTER:
                raise TargetError(f"not sent: {GIVE_UP_AFTER} items of the task had failed before")
            prompt, unsent_stops = self._prompt(request)
            body = self._body(prompt)
            path, endpoint = ENDPOINTS[self._job.endpoint].path, self._job.endpoint
            response = await client.send("POST", path, body)
            answer = read_answer(endpoint, response.status, response.body, secret=self._job.target.secrets)
        except TargetError as error:
            return ItemAnswered(task, item_id, error=str(error), retries=client.retries, repetition=self._repetition)
        text, finish_reason = _cut_at(answer.text, answer.finish_reason, unsent_stops)
        return ItemAnswered(
            task=task,
            item_id=item_id,
            answer=text or "",
            finish_reason=finish_reason,
            output_tokens=answer.output_tokens,
            latency_ns=response.latency_ns,
            was_null=answer.text is None,
            retries=client.retries,
            input_tokens=answer.input_tokens,
            repetition=self._repetition,
        )

    def _body(self, prompt: ItemPrompt) -> dict[str, object]:
        """Return the body as lm-eval's backend would send it."""
        dialect = self._job.target.dialect
        body: dict[str, object] = {
            **prompt.content,
            "model": self._job.target.model,
            **prompt.fields,
            dialect.max_tokens_field: prompt.max_tokens,
            **dialect.extra,
        }
        return {name: value for name, value in body.items() if name not in dialect.leave_out}

    def _prompt(self, request: Instance) -> tuple[ItemPrompt, list[str]]:
        """Return an item's request, and the stops beyond a chat endpoint's four."""
        prompt, settings = request.args[0], dict(request.args[1])
        is_chat = self._job.endpoint == "chat"
        settings.pop("do_sample", None)
        until = settings.pop("until", None) or []
        stops = [until] if isinstance(until, str) else list(until)
        sent = stops[:_CHAT_STOPS] if is_chat else stops
        max_tokens = settings.pop("max_gen_toks", self._job.max_tokens)
        max_tokens = settings.pop("max_tokens", max_tokens)
        content = {"messages": json.loads(prompt.text)} if is_chat else {"prompt": prompt}
        fields = {
            "temperature": 0,
            "seed": REQUEST_SEED + self._repetition,
            **({"stop": sent} if sent else {}),  # some servers refuse an empty list
            **settings,
        }
        named = ItemPrompt(
            str(request.task_name), self._item_id(request), self._job.endpoint, content, max_tokens, fields
        )
        return named, stops[len(sent) :]


def _cut_at(text: str | None, finish_reason: str | None, stops: Sequence[str]) -> tuple[str | None, str | None]:
    """Cut an answer at the first of the stops. A server with all stops would have ended it there."""
    ends = [text.find(stop) for stop in stops if stop and stop in text] if text else []
    return (text[: min(ends)], "stop") if text and ends else (text, finish_reason)
