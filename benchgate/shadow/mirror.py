"""Asks the same prompts of the baseline, of the baseline again, and of the candidate, all three at the same moment.

The second baseline call is the noise floor: what differs between it and the first, sampling and batching made, not the
candidate. So the three go out together, in equal load; a second call on an idle server would understate the noise.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import httpx2

from benchgate.errors import TargetError
from benchgate.model.deployment import Arm
from benchgate.model.records import ShadowItem
from benchgate.model.run import ShadowObservation
from benchgate.plan.schedule import ShadowPrompt
from benchgate.shadow.compare import answer_digest
from benchgate.suite.schema import Limits, Shadow
from benchgate.targets.answer import MAX_BODY_BYTES, read_answer
from benchgate.targets.clients import async_client_of
from benchgate.targets.dialect import PATHS, Target, request_body
from benchgate.units import show_duration

_GIVE_UP_AFTER = 10
"""Prompts in a row that one arm does not answer: the deployment is gone, and asking on only costs time."""


@dataclass(frozen=True, slots=True)
class _Call:
    """What came of one of the three calls: a text and its finish reason, or an error."""

    text: str | None
    finish_reason: str | None
    error: str | None


def mirror(
    baseline: Target,
    candidate: Target,
    prompts: Sequence[ShadowPrompt],
    settings: Shadow,
    limits: Limits,
    *,
    on_progress: Callable[[int], None] | None = None,
) -> Iterator[ShadowObservation]:
    """Exactly one observation: the answers of both deployments to every prompt, in the order of the prompts.

    `settings.concurrency` prompts are in flight at once, each asked three times: greedy, not streamed, with one seed
    per prompt, never retried. A call that fails is data: its digest is None and the item's `error` says which call and
    why. `on_progress` gets the number of prompts done. `fault` is set when one deployment left 10 prompts in a row
    unanswered (the rest is then not asked and has no item) or when no prompt at all was answered by all three. An
    interrupt is a fault too, beside the items answered until then; it is raised again once the observation is taken.
    """
    comparison = _Mirror(baseline, candidate, prompts, settings, limits, on_progress)
    try:
        asyncio.run(comparison.run())
    except (KeyboardInterrupt, SystemExit):
        yield comparison.observation("interrupted")
        raise
    yield comparison.observation()


class _Mirror:
    """One shadow comparison under way."""

    def __init__(
        self,
        baseline: Target,
        candidate: Target,
        prompts: Sequence[ShadowPrompt],
        settings: Shadow,
        limits: Limits,
        on_progress: Callable[[int], None] | None,
    ) -> None:
        self._baseline = baseline
        self._candidate = candidate
        self._prompts = prompts
        self._settings = settings
        self._limits = limits
        self._on_progress = on_progress
        self._items: dict[int, ShadowItem] = {}
        self._unanswered = dict.fromkeys(Arm, 0)  # prompts in a row
        self._fault: str | None = None

    def observation(self, fault: str | None = None) -> ShadowObservation:
        """What has come so far."""
        items = tuple(self._items[position] for position in sorted(self._items))
        return ShadowObservation(items, expected_n=len(self._prompts), fault=fault or self._fault or _all_lost(items))

    async def run(self) -> None:
        """Ask until every prompt has its item, or one deployment is gone."""
        queue = iter(enumerate(self._prompts))
        timeout = httpx2.Timeout(self._limits.total_s, connect=self._limits.connect_s, pool=None)
        pool = httpx2.Limits(max_connections=None, max_keepalive_connections=3 * self._settings.concurrency)
        async with (
            async_client_of(self._baseline, timeout, pool) as baseline,
            async_client_of(self._candidate, timeout, pool) as candidate,
        ):

            async def work() -> None:
                for position, prompt in queue:
                    if self._fault is not None:
                        return
                    self._items[position] = await self._ask_thrice(baseline, candidate, prompt)
                    if self._on_progress is not None:
                        self._on_progress(len(self._items))

            await asyncio.gather(*(work() for _ in range(min(self._settings.concurrency, len(self._prompts)))))

    async def _ask_thrice(
        self, to_baseline: httpx2.AsyncClient, to_candidate: httpx2.AsyncClient, prompt: ShadowPrompt
    ) -> ShadowItem:
        primary, secondary, candidate = await asyncio.gather(
            self._ask(to_baseline, self._baseline, prompt),
            self._ask(to_baseline, self._baseline, prompt),
            self._ask(to_candidate, self._candidate, prompt),
        )
        self._watch(Arm.BASELINE, primary.error or secondary.error)
        self._watch(Arm.CANDIDATE, candidate.error)
        calls = {"primary": primary, "secondary": secondary, "candidate": candidate}
        errors = [f"{name}: {call.error}" for name, call in calls.items() if call.error is not None]
        keep = self._settings.store_text
        return ShadowItem(
            prompt_id=prompt.id,
            prompt_sha256=hashlib.sha256(prompt.prompt.encode("utf-8", "surrogatepass")).hexdigest(),
            primary=_digest(primary),
            secondary=_digest(secondary),
            candidate=_digest(candidate),
            primary_finish=primary.finish_reason,
            secondary_finish=secondary.finish_reason,
            candidate_finish=candidate.finish_reason,
            error="; ".join(errors) or None,
            prompt_text=prompt.prompt if keep else None,
            primary_text=primary.text if keep else None,
            secondary_text=secondary.text if keep else None,
            candidate_text=candidate.text if keep else None,
        )

    def _watch(self, arm: Arm, error: str | None) -> None:
        """Give up on a deployment that has stopped answering."""
        self._unanswered[arm] = self._unanswered[arm] + 1 if error is not None else 0
        if self._unanswered[arm] >= _GIVE_UP_AFTER and self._fault is None:
            self._fault = f"the {arm.value} left {_GIVE_UP_AFTER} prompts in a row unanswered: {error}"

    async def _ask(self, client: httpx2.AsyncClient, target: Target, prompt: ShadowPrompt) -> _Call:
        """One call. Every way in which it can fail ends as an error in the result."""
        body = request_body(target, "chat", prompt.prompt, self._settings.max_tokens, stream=False, seed=_seed(prompt))
        total_s = self._limits.total_s
        try:
            async with asyncio.timeout(total_s):
                status, raw = await _post(client, body)
            answer = read_answer("chat", status, raw, secret=target.secrets)
        except httpx2.ConnectTimeout:
            return _Call(None, None, f"no connection within {show_duration(self._limits.connect_s)}")
        except (TimeoutError, httpx2.TimeoutException):
            return _Call(None, None, f"no answer within {show_duration(total_s)}")
        except httpx2.ConnectError as exc:
            return _Call(None, None, f"could not connect: {exc}")
        except (httpx2.HTTPError, httpx2.InvalidURL) as exc:
            return _Call(None, None, f"{type(exc).__name__}: {exc}")
        except TargetError as exc:
            # Servers like to repeat what they refuse, and that is the prompt.
            said = str(exc) if self._settings.store_text else str(exc).partition(":")[0]
            return _Call(None, None, said)
        if answer.text is None:
            return _Call(None, answer.finish_reason, "the content of the answer is null")
        if not answer.text.strip():  # else two deployments that say nothing would agree on everything
            said = "" if answer.finish_reason == "stop" else f" with finish reason {answer.finish_reason}"
            return _Call(None, answer.finish_reason, f"an empty answer{said}")
        return _Call(answer.text, answer.finish_reason, None)


async def _post(client: httpx2.AsyncClient, body: dict[str, object]) -> tuple[int, bytes]:
    """Status and body of one request; TargetError when the body is larger than any answer."""
    raw = bytearray()
    async with client.stream("POST", PATHS["chat"], json=body) as response:
        async for piece in response.aiter_raw():
            raw += piece
            if len(raw) > MAX_BODY_BYTES:
                raise TargetError(f"the body of the response is larger than {MAX_BODY_BYTES} bytes")
        return response.status_code, bytes(raw)


def _seed(prompt: ShadowPrompt) -> int:
    """The same for all three calls and in every run; different from prompt to prompt."""
    return int.from_bytes(hashlib.sha256(prompt.id.encode("utf-8", "surrogatepass")).digest()[:4]) >> 1


def _digest(call: _Call) -> str | None:
    return None if call.text is None else answer_digest(call.text)


def _all_lost(items: Sequence[ShadowItem]) -> str | None:
    if items and all(item.error is not None for item in items):
        return f"no prompt was answered by all three: {items[0].error}"
    return None
