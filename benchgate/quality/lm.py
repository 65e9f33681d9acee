"""The model that lm-eval asks: its own OpenAI backend makes the requests' content, this sends and records them.

Imported only in an eval process. lm-eval's own sending is not used, because it hides what a gate must see: it takes an
answer without choices for an empty one, forgets finish reasons, gives up the whole evaluation on one failure, and
reports failures without the server's words. Every failure here is recorded on its own item, and the evaluation goes on
until the server has clearly gone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import aiohttp
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI

from benchgate.errors import TargetError
from benchgate.plan.evals import PlannedTask
from benchgate.quality.loglikelihood import score_requests
from benchgate.quality.spool import REQUEST_SEED, Answered, Job, SpoolWriter
from benchgate.targets.address import tls_context
from benchgate.targets.answers import MAX_BODY_BYTES, Answer, read_answer
from benchgate.targets.dialect import secrets_in
from benchgate.units import show_duration

_RETRY_PAUSES_S = (0.25, 1.0)
_RETRIED_STATUS = frozenset({429, 500, 502, 503, 504})
_GIVE_UP_AFTER = 5  # items of a task that failed for good


class _AttemptFailed(Exception):
    """One request came to nothing; `may_pass` says whether asking again makes sense."""

    def __init__(self, reason: str, may_pass: bool) -> None:
        super().__init__(reason)
        self.may_pass = may_pass


class RecordedModel(LM):  # type: ignore[misc]  # lm-eval ships no type information
    """lm-eval's model over one target. Answers go to the spool as they come; a failed item scores as if empty."""

    def __init__(self, job: Job, credentials: dict[str, str], spool: SpoolWriter) -> None:
        super().__init__()
        self._job = job
        self._credentials = credentials
        self._headers = {**job.headers, **credentials}
        self._secrets = secrets_in(credentials)
        self._spool = spool
        self._task: PlannedTask | None = None
        self._ids: Sequence[str] = ()
        self._places = range(0)
        self._asking = 0
        self._failures = 0
        backend = LocalChatCompletion if job.endpoint == "chat" else LocalCompletionsAPI
        self._backend = backend(
            base_url=job.url,
            model=job.model,
            num_concurrent=job.concurrency,
            max_gen_toks=job.max_tokens,
            seed=REQUEST_SEED,
            tokenizer_backend=None,
            tokenized_requests=False,
        )

    def begin(self, task: PlannedTask, places: range, asking: int = 0) -> None:
        """What is asked next: the rows of a task at some places, and for which time."""
        if self._task is not task:
            self._failures, self._ids = 0, task.item_ids
        self._task, self._places, self._asking = task, places, asking

    def _item_id(self, request: Instance) -> str:
        """The id of a request's row; lm-eval counts the rows that it was given, from 0."""
        return self._ids[self._places[int(request.doc_id)]]

    @property
    def tokenizer_name(self) -> str:
        """No tokenizer is involved: the server applies its own template."""
        return str(self._backend.tokenizer_name)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> Any:
        """The messages themselves: the server applies its own template."""
        return self._backend.apply_chat_template(chat_history, add_generation_prompt)

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Log-probability and greediness of each continuation; what stands for a failed item is in no score."""
        return asyncio.run(score_requests(self._job, self._credentials, requests, self._spool, self._item_id))

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Refused: what whole texts are worth is measured by `divergence`, on both arms at the same places."""
        raise NotImplementedError("whole texts are measured by `divergence`, not by loglikelihood_rolling tasks")

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """One text per request, in order; "" stands for a failed one, whose record carries the error."""
        return asyncio.run(self._ask_all(requests))

    async def _ask_all(self, requests: Sequence[Instance]) -> list[str]:
        slots = asyncio.Semaphore(self._job.concurrency)
        timeout = aiohttp.ClientTimeout(total=self._job.total_s, sock_connect=self._job.connect_s)
        # As the measured path talks: no proxy but the deployment's own, nothing else from the environment either.
        async with aiohttp.ClientSession(timeout=timeout, connector=_connector(self._job), trust_env=False) as session:
            return await asyncio.gather(*(self._ask(session, slots, request) for request in requests))

    async def _ask(self, session: aiohttp.ClientSession, slots: asyncio.Semaphore, request: Instance) -> str:
        async with slots:
            answered = await self._answer(session, request)
        if answered.error is not None:
            self._failures += 1
        self._spool.write(answered)
        return answered.answer or ""

    async def _answer(self, session: aiohttp.ClientSession, request: Instance) -> Answered:
        """Ask, and ask again after what may pass; the result is an answer or the last failure, never an exception."""
        if self._failures >= _GIVE_UP_AFTER:
            return self._failed(request, f"not asked: {_GIVE_UP_AFTER} items of the task had failed before")
        payload, unsent_stops = self._payload(request)
        retries = 0
        while True:
            started_ns = time.perf_counter_ns()
            try:
                answer = await self._attempt(session, payload)
            except _AttemptFailed as failure:
                if retries == len(_RETRY_PAUSES_S) or not failure.may_pass:
                    return self._failed(request, str(failure), retries)
                await asyncio.sleep(_RETRY_PAUSES_S[retries])
                retries += 1
            else:
                latency_ns = time.perf_counter_ns() - started_ns
                return self._answered(request, answer, latency_ns, retries, unsent_stops)

    async def _attempt(self, session: aiohttp.ClientSession, payload: dict[str, object]) -> Answer:
        """One request; _AttemptFailed with the true reason when no answer came of it."""
        may_pass = False
        try:
            status, body = await self._post(session, payload)
            may_pass = status in _RETRIED_STATUS
            return read_answer(self._job.endpoint, status, body, secret=self._secrets)
        except TargetError as exc:
            raise _AttemptFailed(str(exc), may_pass) from exc
        except aiohttp.ConnectionTimeoutError as exc:
            raise _AttemptFailed(f"no connection within {show_duration(self._job.connect_s)}", False) from exc
        except TimeoutError as exc:
            raise _AttemptFailed(f"no answer within {show_duration(self._job.total_s)}", False) from exc
        except aiohttp.ClientSSLError as exc:
            raise _AttemptFailed(f"no TLS with the server: {exc}", False) from exc
        except aiohttp.ClientConnectorError as exc:
            raise _AttemptFailed(f"could not connect: {exc.os_error.strerror or exc.os_error}", True) from exc
        except aiohttp.ClientError as exc:
            raise _AttemptFailed(f"{type(exc).__name__}: {exc}", True) from exc

    async def _post(self, session: aiohttp.ClientSession, payload: dict[str, object]) -> tuple[int, bytes]:
        posting = session.post(
            self._job.url, json=payload, headers=self._headers, proxy=self._job.route.proxy, allow_redirects=False
        )
        async with posting as response:
            body = bytearray()
            async for piece in response.content.iter_any():
                body += piece
                if len(body) > MAX_BODY_BYTES:
                    raise TargetError(f"the body of the response is larger than {MAX_BODY_BYTES} bytes")
            return response.status, bytes(body)

    def _payload(self, request: Instance) -> tuple[dict[str, object], list[str]]:
        """The body that lm-eval's own backend would send, plus what the engine's dialect asks for.

        Beside it the stop texts that it does not hold, because a chat endpoint takes only four.
        """
        context, settings = request.args
        messages = self._backend.create_message([context])
        seed = REQUEST_SEED + self._asking
        made = self._backend._create_payload(messages, generate=True, gen_kwargs=dict(settings), seed=seed)
        limit = made.pop("max_tokens")
        payload: dict[str, object] = {**made, self._job.max_tokens_field: limit, **self._job.extra}
        stops = payload.get("stop")
        sent = stops if isinstance(stops, list) else [stops]
        asked = settings.get("until") or []
        unsent = [stop for stop in ([asked] if isinstance(asked, str) else asked) if stop not in sent]
        if not stops:
            payload.pop("stop", None)  # some servers refuse an empty list
        return {name: value for name, value in payload.items() if name not in self._job.leave_out}, unsent

    def _answered(
        self, request: Instance, answer: Answer, latency_ns: int, retries: int, unsent_stops: Sequence[str]
    ) -> Answered:
        text = answer.text or ""
        for stop in unsent_stops:
            text = text.split(stop)[0] if stop else text
        return Answered(
            task=str(request.task_name),
            item_id=self._item_id(request),
            answer=text,
            finish_reason=answer.finish_reason,
            output_tokens=answer.output_tokens,
            latency_ns=latency_ns,
            error=None,
            was_null=answer.text is None,
            retries=retries,
            input_tokens=answer.input_tokens,
            asking=self._asking,
        )

    def _failed(self, request: Instance, error: str, retries: int = 0) -> Answered:
        return Answered(
            task=str(request.task_name),
            item_id=self._item_id(request),
            answer=None,
            finish_reason=None,
            output_tokens=None,
            latency_ns=None,
            error=error,
            was_null=False,
            retries=retries,
            asking=self._asking,
        )


def _connector(job: Job) -> aiohttp.BaseConnector:
    if job.socket is not None:
        return aiohttp.UnixConnector(job.socket, limit=job.concurrency)
    return aiohttp.TCPConnector(limit=job.concurrency, ssl=tls_context(job.route))
