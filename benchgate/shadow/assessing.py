"""What others say of answers that are already there: how near they are by their embeddings, and which one is better.

Neither is part of the measurement of the two arms: all of their answers are there before the first of these requests.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

import httpx2

from benchgate.model.records import NO_VERDICT, UNFIT_JUDGE, JudgeVerdict
from benchgate.shadow.asking import Asking, ask, client_of
from benchgate.shadow.compare import Said, are_plain_texts
from benchgate.shadow.helpers import Helpers
from benchgate.shadow.items import OWN, PAIRS, WITH_PRIMARY, Answered, Pair, in_words
from benchgate.shadow.judge_prompt import BUILT_IN, Choice, judge_message, judged, read_choice
from benchgate.shadow.similarity import cosine, embedded
from benchgate.targets.dialect import Target, request_body

_GIVE_UP_AFTER = 10
"""Prompts in a row for which a helper had no answer: it is gone, and what it says of the rest stays missing."""

_UNLIKE = ("Bread rises because yeast turns sugar into gas.", "Parliament voted on the tax bill late on Tuesday.")
_QUESTION = "What is the capital of France, and on which river does it lie?"
_ANSWER, _NONSENSE = "The capital of France is Paris, on the Seine.", "zzz qux zzz, 7 7 7 blah of blah."


async def assess(
    answers: Sequence[Answered],
    helpers: Helpers,
    asking: Asking,
    concurrency: int,
    on_done: Callable[[int], None] | None = None,
    *,
    same_above: float | None = None,
) -> None:
    """Fill in, prompt by prompt, what the helpers say. A helper's failure leaves its word missing and stops nothing.

    Each is tried first: on two unlike texts, which must not be `same_above` near, and on nonsense beside an answer. All
    that one says which fails that is missing, too. One that says nothing then is asked all the same.
    """
    async with AsyncExitStack() as stack:
        works: list[Callable[[Answered], Awaitable[None]]] = []
        if helpers.similarity is not None:
            client = await stack.enter_async_context(client_of(helpers.similarity, asking.limits, concurrency))
            similarity = _Similarity(client, helpers.similarity, asking)
            await similarity.try_out(same_above)
            works.append(similarity.compare)
        if helpers.judge is not None:
            client = await stack.enter_async_context(client_of(helpers.judge, asking.limits, 4 * concurrency))
            judge = _Judge(client, helpers.judge, helpers, asking)
            await judge.try_out()
            works.append(judge.judge)
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
        self._error = ""  # the last one
        self._unfit = False

    async def try_out(self, same_above: float | None) -> None:
        """An endpoint for which everything is alike would make every candidate the same as its baseline."""
        vectors = await embedded(self._client, self._target, _UNLIKE, self._asking)
        if same_above is None or isinstance(vectors, str) or cosine(*vectors) < same_above:
            return
        self._unfit = True
        near = f"two texts that have nothing in common have a cosine of {cosine(*vectors):.3f}"
        self._error = f"{near}, and from {same_above:g} on texts count as the same"

    async def compare(self, answered: Answered) -> None:
        """Only texts that differ are embedded: a JSON value or a call with another number in it would be near, too."""
        pairs = {pair: both for pair in PAIRS if (both := _texts(answered, pair)) is not None}
        texts = list(dict.fromkeys(text for both in pairs.values() for text in both))
        if not texts:
            return
        if self._unfit or self._missed >= _GIVE_UP_AFTER:
            answered.similarity_error = self._error
            return
        vectors = await embedded(self._client, self._target, texts, self._asking)
        if isinstance(vectors, str):
            self._missed, self._error = self._missed + 1, vectors
            answered.similarity_error = vectors
            return
        self._missed, found = 0, dict(zip(texts, vectors, strict=True))
        answered.similarities = {pair: cosine(found[one], found[other]) for pair, (one, other) in pairs.items()}


class _Judge:
    """Asks which of two answers is better, in both positions: of the candidate's, and of the baseline's second one."""

    def __init__(self, client: httpx2.AsyncClient, target: Target, helpers: Helpers, asking: Asking) -> None:
        self._client = client
        self._target = target
        self._helpers = helpers
        self._asking = asking
        self._missed = 0  # in a row
        self._unfit: str | None = None

    async def try_out(self) -> None:
        """Nonsense is worse than an answer. A suite's own prompt may ask for something of which neither has any."""
        if self._helpers.judge_prompt != BUILT_IN:
            return
        verdict, _ = await self._both(_QUESTION, _ANSWER, _NONSENSE)
        if verdict not in (JudgeVerdict.LOSS, JudgeVerdict.MISSING):
            said = (
                "that is decided by the position" if verdict is JudgeVerdict.INCONSISTENT else f"its verdict: {verdict}"
            )
            self._unfit = f"{UNFIT_JUDGE} ({said})"

    async def judge(self, answered: Answered) -> None:
        """An answer that is not there is worse than one that is, and two that are one are a tie: nobody is asked."""
        primary = answered.said("primary")
        if primary is None:
            return
        candidate, secondary = answered.said(WITH_PRIMARY[0]), answered.said(OWN[0])
        if candidate is None:
            answered.judged = JudgeVerdict.LOSS
        else:
            answered.judged = await self._verdict(answered, primary, candidate)
        if secondary is not None:
            answered.judged_itself = await self._verdict(answered, primary, secondary)

    async def _verdict(self, answered: Answered, primary: Said, other: Said) -> JudgeVerdict:
        if primary == other:
            return JudgeVerdict.TIE
        if self._unfit is not None or self._missed >= _GIVE_UP_AFTER:
            answered.judge_error = answered.judge_error or self._unfit
            return JudgeVerdict.MISSING
        verdict, error = await self._both(answered.prompt.prompt, in_words(primary), in_words(other))
        answered.judge_error = answered.judge_error or error
        self._missed = self._missed + 1 if verdict is JudgeVerdict.MISSING else 0
        return verdict

    async def _both(self, prompt: str, first: str, second: str) -> tuple[JudgeVerdict, str | None]:
        """The verdict on the second answer beside the first, asked in both positions, and why it is missing."""
        said = await asyncio.gather(self._choice(prompt, first, second), self._choice(prompt, second, first))
        (one, error), (other, another) = said
        return judged(one, other), error or another

    async def _choice(self, prompt: str, answer_a: str, answer_b: str) -> tuple[Choice | None, str | None]:
        message = judge_message(self._helpers.judge_prompt, prompt, answer_a, answer_b)
        seed = int.from_bytes(hashlib.sha256(message.encode("utf-8", "surrogatepass")).digest()[:4]) >> 1
        body = request_body(self._target, "chat", message, self._helpers.judge_tokens, stream=False, seed=seed)
        reply = await ask(self._client, self._target, "chat", body, self._asking)
        choice = None if reply.answer is None else read_choice(reply.answer.text)
        return choice, None if choice is not None else reply.error or NO_VERDICT


def _texts(answered: Answered, pair: Pair) -> tuple[str, str] | None:
    """The texts of a pair that only their words could make one."""
    one, other = answered.said(pair[0]), answered.said(pair[1])
    if one is None or other is None or one == other or not are_plain_texts(one, other):
        return None
    return (one.text, other.text) if one.text and other.text else None
