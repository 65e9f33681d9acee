"""What others say of answers that are already there: how near they are by their embeddings, and which one is better.

Neither is part of the measurement of the two arms: all of their answers are there before the first of these requests.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

import httpx2

from benchgate.model.shadow import Judged
from benchgate.shadow.asking import Asking, ask, client_of
from benchgate.shadow.compare import Said, are_plain_texts
from benchgate.shadow.helpers import Helpers
from benchgate.shadow.items import OWN, PAIRS, WITH_PRIMARY, Answered, Pair, in_words
from benchgate.shadow.judge_prompt import Choice, judge_message, judged, read_choice
from benchgate.shadow.similarity import cosine, embedded
from benchgate.targets.dialect import Target, request_body

_GIVE_UP_AFTER = 10
"""Prompts in a row for which a helper had no answer: it is gone, and what it says of the rest stays missing."""

_NO_VERDICT = "the judge did not reply with a verdict in the form it was asked for"


async def assess(
    answers: Sequence[Answered],
    helpers: Helpers,
    asking: Asking,
    concurrency: int,
    on_done: Callable[[int], None] | None = None,
) -> None:
    """Fill in, prompt by prompt, what the helpers say. A helper's failure leaves its word missing and stops nothing."""
    async with AsyncExitStack() as stack:
        works: list[Callable[[Answered], Awaitable[None]]] = []
        if helpers.similarity is not None:
            client = await stack.enter_async_context(client_of(helpers.similarity, asking.limits, concurrency))
            works.append(_Similarity(client, helpers.similarity, asking).compare)
        if helpers.judge is not None:
            client = await stack.enter_async_context(client_of(helpers.judge, asking.limits, 4 * concurrency))
            works.append(_Judge(client, helpers.judge, helpers, asking).judge)
        if not works:
            return
        queue, done = iter(answers), 0

        async def work() -> None:
            nonlocal done
            for answered in queue:
                await asyncio.gather(*(one(answered) for one in works))
                done += 1
                if on_done is not None:
                    on_done(done)

        await asyncio.gather(*(work() for _ in range(min(concurrency, len(answers)))))


class _Similarity:
    """Embeds the answers of a prompt in one request, where anything is to be learnt from it."""

    def __init__(self, client: httpx2.AsyncClient, target: Target, asking: Asking) -> None:
        self._client = client
        self._target = target
        self._asking = asking
        self._missed = 0  # in a row

    async def compare(self, answered: Answered) -> None:
        """Only texts that differ are embedded: a JSON value or a call with another number in it would be near, too."""
        pairs = {pair: both for pair in PAIRS if (both := _texts(answered, pair)) is not None}
        texts = list(dict.fromkeys(text for both in pairs.values() for text in both))
        if not texts or self._missed >= _GIVE_UP_AFTER:
            return
        vectors = await embedded(self._client, self._target, texts, self._asking)
        self._missed = 0 if vectors is not None else self._missed + 1
        if vectors is not None:
            found = dict(zip(texts, vectors, strict=True))
            answered.similarities = {pair: cosine(found[one], found[other]) for pair, (one, other) in pairs.items()}


class _Judge:
    """Asks which of two answers is better, in both positions: of the candidate's, and of the baseline's second one."""

    def __init__(self, client: httpx2.AsyncClient, target: Target, helpers: Helpers, asking: Asking) -> None:
        self._client = client
        self._target = target
        self._helpers = helpers
        self._asking = asking
        self._missed = 0  # in a row

    async def judge(self, answered: Answered) -> None:
        """An answer that is not there is worse than one that is, and two that are one are a tie: nobody is asked."""
        primary = answered.said("primary")
        if primary is None:
            return
        candidate, secondary = answered.said(WITH_PRIMARY[0]), answered.said(OWN[0])
        if candidate is None:
            answered.judged = Judged.LOSS
        else:
            answered.judged = await self._verdict(answered, primary, candidate)
        if secondary is not None:
            answered.judged_itself = await self._verdict(answered, primary, secondary)

    async def _verdict(self, answered: Answered, primary: Said, other: Said) -> Judged:
        if primary == other:
            return Judged.TIE
        if self._missed >= _GIVE_UP_AFTER:
            return Judged.MISSING
        first, second = in_words(primary), in_words(other)
        said = await asyncio.gather(self._choice(answered, first, second), self._choice(answered, second, first))
        verdict = judged(*said)
        self._missed = self._missed + 1 if verdict is Judged.MISSING else 0
        return verdict

    async def _choice(self, answered: Answered, answer_a: str, answer_b: str) -> Choice | None:
        message = judge_message(self._helpers.judge_prompt, answered.prompt.prompt, answer_a, answer_b)
        seed = int.from_bytes(hashlib.sha256(message.encode("utf-8", "surrogatepass")).digest()[:4]) >> 1
        body = request_body(self._target, "chat", message, self._helpers.judge_tokens, stream=False, seed=seed)
        reply = await ask(self._client, self._target, "chat", body, self._asking)
        choice = None if reply.answer is None else read_choice(reply.answer.text)
        if choice is None:
            answered.judge_error = reply.error or _NO_VERDICT
        return choice


def _texts(answered: Answered, pair: Pair) -> tuple[str, str] | None:
    """The texts of a pair that only their words could make one."""
    one, other = answered.said(pair[0]), answered.said(pair[1])
    if one is None or other is None or one == other or not are_plain_texts(one, other):
        return None
    return (one.text, other.text) if one.text and other.text else None
