"""Sends each prompt to the baseline, to the baseline again and to the candidate, all three at the same moment.

The second baseline answer is the noise floor: sampling and batching make it differ from the first. The three are sent
together, under equal load; a second request to an idle server would understate the noise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from benchgate.model.deployment import Arm
from benchgate.model.run import INTERRUPTED, ShadowObservation
from benchgate.plan.items import ShadowPrompt
from benchgate.shadow.assessors import (
    NO_ASSESSORS,
    Assessors,
    PromptReplies,
    assess,
    client_of,
    item_of,
    request_reply,
    seed_of,
)
from benchgate.suite.quality import Shadow
from benchgate.suite.schema import Limits
from benchgate.targets.client import AsyncJsonClient
from benchgate.targets.dialect import Target

_GIVE_UP_AFTER = 10  # prompts in a row that one deployment leaves unanswered


def mirror(
    baseline: Target,
    candidate: Target,
    prompts: Sequence[ShadowPrompt],
    settings: Shadow,
    limits: Limits,
    *,
    assessors: Assessors = NO_ASSESSORS,
    on_progress: Callable[[int], None] | None = None,
    on_assessed: Callable[[int], None] | None = None,
) -> Iterator[ShadowObservation]:
    """Yield exactly one observation: the answers of both deployments, in the order of the prompts.

    `settings.concurrency` prompts are in flight at once, each sent three times (twice if `once`): greedy, not streamed,
    with one seed per prompt, never retried. A failed request is data: its digest is None, and the item's `error` names
    it and the reason. When all answers are there, the assessors rate them. `on_progress` gets the number of prompts
    answered, `on_assessed` of those assessed.

    `fault` is set if one deployment left 10 prompts in a row unanswered (then the rest has no item), or if no prompt
    was answered by all three. After an interrupt the observation holds the items answered so far, with a fault, and
    the interrupt is raised again once the observation is taken.
    """
    targets = {"primary": baseline, "secondary": baseline, "candidate": candidate}
    comparison = _Comparison(targets, prompts, settings, limits)
    try:
        asyncio.run(comparison.run(assessors, on_progress, on_assessed))
    except (KeyboardInterrupt, SystemExit):
        yield comparison.observation(INTERRUPTED)
        raise
    yield comparison.observation()


@dataclass(slots=True, eq=False)
class _Comparison:
    targets: Mapping[str, Target]
    prompts: Sequence[ShadowPrompt]
    settings: Shadow
    limits: Limits
    answered: dict[int, PromptReplies] = field(default_factory=dict)  # by the index of the prompt
    unanswered: dict[Arm, int] = field(default_factory=lambda: dict.fromkeys(Arm, 0))  # prompts in a row
    fault: str | None = None

    def observation(self, fault: str | None = None) -> ShadowObservation:
        """Return the items answered so far."""
        items = tuple(item_of(self.answered[at], self.settings) for at in sorted(self.answered))
        fault = fault or self.fault
        if fault is None and items and all(item.error is not None for item in items):
            fault = f"no prompt was answered by all three: {items[0].error}"
        return ShadowObservation(items, expected_n=len(self.prompts), fault=fault)

    async def run(
        self,
        assessors: Assessors,
        on_progress: Callable[[int], None] | None,
        on_assessed: Callable[[int], None] | None,
    ) -> None:
        """Send all prompts, then have the answers assessed. Stop early if a deployment does not answer any more."""
        queue, concurrency = iter(enumerate(self.prompts)), self.settings.concurrency
        async with (
            client_of(self.targets["primary"], self.limits, 2 * concurrency) as baseline,
            client_of(self.targets["candidate"], self.limits, concurrency) as candidate,
        ):
            clients = {"primary": baseline, "secondary": baseline, "candidate": candidate}

            async def work() -> None:
                for at, prompt in queue:
                    if self.fault is not None:
                        return
                    self.answered[at] = await self._send(clients, prompt)
                    if on_progress is not None:
                        on_progress(len(self.answered))

            await asyncio.gather(*(work() for _ in range(min(concurrency, len(self.prompts)))))
        if self.fault is None:
            replies = [self.answered[at] for at in sorted(self.answered)]
            await assess(replies, assessors, self.settings, self.limits, on_assessed)

    async def _send(self, clients: dict[str, AsyncJsonClient], prompt: ShadowPrompt) -> PromptReplies:
        names = [name for name in self.targets if not (prompt.once and name == "secondary")]
        ask, seed = prompt.ask(self.settings.max_tokens), seed_of(prompt.id)
        quote = self.settings.store_text
        replies = await asyncio.gather(
            *(request_reply(clients[name], self.targets[name], ask, seed, quote=quote) for name in names)
        )
        answered = PromptReplies(prompt, dict(zip(names, replies, strict=True)))
        problems = {name: reply.problem for name, reply in answered.replies.items()}
        self._count_unanswered(Arm.BASELINE, problems["primary"] or problems.get("secondary"))
        self._count_unanswered(Arm.CANDIDATE, problems["candidate"])
        return answered

    def _count_unanswered(self, arm: Arm, error: str | None) -> None:
        self.unanswered[arm] = self.unanswered[arm] + 1 if error is not None else 0
        if self.unanswered[arm] >= _GIVE_UP_AFTER and self.fault is None:
            self.fault = f"the {arm.value} left {_GIVE_UP_AFTER} prompts in a row unanswered: {error}"
