"""Asks the same prompts of the baseline, of the baseline again, and of the candidate, all three at the same moment.

The second baseline call is the noise floor: what differs between it and the first, sampling and batching made, not the
candidate. So the three go out together, in equal load; a second call on an idle server would understate the noise.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator, Sequence

import httpx2

from benchgate.model.deployment import Arm
from benchgate.model.records import ShadowItem
from benchgate.model.run import INTERRUPTED, ShadowObservation
from benchgate.plan.items import ShadowPrompt
from benchgate.shadow.asking import Asking, Reply, ask, client_of
from benchgate.shadow.assessing import assess
from benchgate.shadow.helpers import NOBODY, Helpers
from benchgate.shadow.items import Answered, item_of, problem_with, rules_of
from benchgate.suite.schema import Limits
from benchgate.suite.shadow import Shadow
from benchgate.targets.dialect import Target, ask_body

_GIVE_UP_AFTER = 10
"""Prompts in a row that one arm does not answer: the deployment is gone, and asking on only costs time."""


def mirror(
    baseline: Target,
    candidate: Target,
    prompts: Sequence[ShadowPrompt],
    settings: Shadow,
    limits: Limits,
    *,
    helpers: Helpers = NOBODY,
    on_progress: Callable[[int], None] | None = None,
    on_assessed: Callable[[int], None] | None = None,
) -> Iterator[ShadowObservation]:
    """Exactly one observation: the answers of both deployments to every prompt, in the order of the prompts.

    `settings.concurrency` prompts are in flight at once, each asked three times (twice where the baseline is to be
    asked once): greedy, not streamed, with one seed per prompt, never retried. A call that fails is data: its digest is
    None and the item's `error` says which call and why. When all answers are there, the helpers are asked about them.
    `on_progress` gets the number of prompts done, `on_assessed` that of those the helpers were asked about. `fault` is
    set when one deployment left 10 prompts in a row unanswered (the rest is then not asked and has no item) or when no
    prompt at all was answered by all three. An interrupt is a fault too, beside the items answered until then; it is
    raised again once the observation is taken.
    """
    comparison = _Mirror(baseline, candidate, prompts, settings, limits)
    try:
        asyncio.run(comparison.run(helpers, on_progress, on_assessed))
    except (KeyboardInterrupt, SystemExit):
        yield comparison.observation(INTERRUPTED)
        raise
    yield comparison.observation()


class _Mirror:
    """One shadow comparison under way."""

    def __init__(
        self, baseline: Target, candidate: Target, prompts: Sequence[ShadowPrompt], settings: Shadow, limits: Limits
    ) -> None:
        self._targets = {"primary": baseline, "secondary": baseline, "candidate": candidate}
        self._prompts = prompts
        self._settings = settings
        self._asking = Asking(limits, quote=settings.store_text)
        self._answered: dict[int, Answered] = {}
        self._unanswered = dict.fromkeys(Arm, 0)  # prompts in a row
        self._fault: str | None = None

    def observation(self, fault: str | None = None) -> ShadowObservation:
        """What has come so far."""
        rules = rules_of(self._settings)
        items = tuple(item_of(self._answered[place], self._settings, rules) for place in sorted(self._answered))
        return ShadowObservation(items, expected_n=len(self._prompts), fault=fault or self._fault or _all_lost(items))

    async def run(
        self,
        helpers: Helpers,
        on_progress: Callable[[int], None] | None,
        on_assessed: Callable[[int], None] | None,
    ) -> None:
        """Ask until every prompt has its answers, or one deployment is gone; then let the helpers look at them."""
        await self._ask_all(on_progress)
        if self._fault is None:
            answers = [self._answered[place] for place in sorted(self._answered)]
            near, at_once = rules_of(self._settings).same_above, self._settings.concurrency
            await assess(answers, helpers, self._asking, at_once, on_assessed, same_above=near)

    async def _ask_all(self, on_progress: Callable[[int], None] | None) -> None:
        queue, limits = iter(enumerate(self._prompts)), self._asking.limits
        at_once = self._settings.concurrency
        async with (
            client_of(self._targets["primary"], limits, 3 * at_once) as baseline,
            client_of(self._targets["candidate"], limits, 3 * at_once) as candidate,
        ):
            clients = {"primary": baseline, "secondary": baseline, "candidate": candidate}

            async def work() -> None:
                for position, prompt in queue:
                    if self._fault is not None:
                        return
                    self._answered[position] = await self._ask_of_each(clients, prompt)
                    if on_progress is not None:
                        on_progress(len(self._answered))

            await asyncio.gather(*(work() for _ in range(min(at_once, len(self._prompts)))))

    async def _ask_of_each(self, clients: dict[str, httpx2.AsyncClient], prompt: ShadowPrompt) -> Answered:
        """All calls of one prompt, at the same moment."""
        names = [name for name in self._targets if not (prompt.once and name == "secondary")]
        replies = await asyncio.gather(*(self._ask(clients[name], self._targets[name], prompt) for name in names))
        answered = Answered(prompt, dict(zip(names, replies, strict=True)))
        problems = {name: problem_with(reply) for name, reply in answered.replies.items()}
        self._watch(Arm.BASELINE, problems["primary"] or problems.get("secondary"))
        self._watch(Arm.CANDIDATE, problems["candidate"])
        return answered

    async def _ask(self, client: httpx2.AsyncClient, target: Target, prompt: ShadowPrompt) -> Reply:
        asked = prompt.ask(self._settings.max_tokens)
        return await ask(client, target, asked.endpoint, ask_body(target, asked, seed=_seed(prompt)), self._asking)

    def _watch(self, arm: Arm, error: str | None) -> None:
        """Give up on a deployment that has stopped answering."""
        self._unanswered[arm] = self._unanswered[arm] + 1 if error is not None else 0
        if self._unanswered[arm] >= _GIVE_UP_AFTER and self._fault is None:
            self._fault = f"the {arm.value} left {_GIVE_UP_AFTER} prompts in a row unanswered: {error}"


def _seed(prompt: ShadowPrompt) -> int:
    """The same for all three calls and in every run; different from prompt to prompt."""
    return int.from_bytes(hashlib.sha256(prompt.id.encode("utf-8", "surrogatepass")).digest()[:4]) >> 1


def _all_lost(items: Sequence[ShadowItem]) -> str | None:
    if items and all(item.error is not None for item in items):
        return f"no prompt was answered by all three: {items[0].error}"
    return None
