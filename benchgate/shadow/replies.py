"""Replies of both deployments to one prompt, and the digests and facts kept of them.

Servers repeat the requests that they reject, and requests hold text of users. So unless texts are stored, an error is
reported in benchgate's own words alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from benchgate.model.records import ACCEPTED_FINISH, AnswerFacts, JudgeVerdict, ShadowItem
from benchgate.model.request import ModelRequest
from benchgate.plan.items import ShadowPrompt, text_sha256
from benchgate.shadow.compare import (
    CONTENT_FILTER,
    AnswerContent,
    ComparisonRules,
    JsonRules,
    compare_answers,
    is_refusal,
    make_transitive,
)
from benchgate.suite.schema import Limits
from benchgate.suite.shadow import Shadow
from benchgate.targets.answers import Answer, read_answer
from benchgate.targets.client import AsyncJsonClient, TlsError
from benchgate.targets.dialect import PATHS, Target, ask_body
from benchgate.targets.error_messages import RequestError
from benchgate.targets.validity import form_of_fields

Pair = tuple[str, str]
WITH_PRIMARY: Pair = ("candidate", "primary")
WITH_SECONDARY: Pair = ("candidate", "secondary")
OWN: Pair = ("secondary", "primary")
PAIRS = (WITH_PRIMARY, WITH_SECONDARY, OWN)


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, or the reason why there is none."""

    answer: Answer | None
    error: str | None
    latency_ns: int = 0

    @property
    def content(self) -> AnswerContent | None:
        """The answer's content. None for an error and for an empty answer: two empty ones would agree."""
        answer = self.answer
        if answer is None:
            return None
        text = answer.text if answer.text and answer.text.strip() else answer.refusal or ""
        if not text.strip() and not answer.calls and not is_refusal(answer):
            return None
        return AnswerContent(text, answer.calls)

    @property
    def problem(self) -> str | None:
        """The reason why there is no content. None if there is."""
        answer = self.answer
        if answer is None:
            return self.error
        if self.content is not None:
            return None
        if answer.text is None:
            return "the content of the answer is null"
        ending = "" if answer.finish_reason == "stop" else f" with finish reason {answer.finish_reason}"
        return f"an empty answer{ending}"


def client_of(target: Target, limits: Limits, connections: int) -> AsyncJsonClient:
    """Return a client that never retries: a shadow comparison sends every request once."""
    return AsyncJsonClient(target, connect_s=limits.connect_s, total_s=limits.total_s, connections=connections)


async def request_reply(client: AsyncJsonClient, target: Target, ask: ModelRequest, seed: int, *, quote: bool) -> Reply:
    """Send one request for text. A refusal by the server's content filter is an answer."""
    accepted = ACCEPTED_FINISH | {CONTENT_FILTER}
    try:
        response = await client.send("POST", PATHS[ask.endpoint], ask_body(target, ask, seed=seed))
        answer = read_answer(ask.endpoint, response.status, response.body, secret=target.secrets, accepted=accepted)
    except RequestError as error:
        return Reply(None, show_error(error, quote=quote))
    return Reply(answer, None, response.latency_ns)


def seed_of(text: str) -> int:
    """Return a seed that is the same for a text in every run, and differs from text to text."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:4]) >> 1


def show_error(error: RequestError, *, quote: bool) -> str:
    """Return an error's message, without anything that the server wrote unless `quote`."""
    return str(error) if quote or isinstance(error, TlsError) else error.summary


@dataclass(slots=True)
class PromptReplies:
    """The replies to one prompt by name, without `secondary` if the baseline got it once.

    The assessors fill in the similarities and verdicts, or the errors why they are missing.
    """

    prompt: ShadowPrompt
    replies: Mapping[str, Reply]
    similarities: dict[Pair, float] = field(default_factory=dict)
    similarity_error: str | None = None
    judged: JudgeVerdict | None = None
    judged_itself: JudgeVerdict | None = None
    judge_error: str | None = None

    def content(self, name: str) -> AnswerContent | None:
        """Return the content of a reply. None if it is missing, failed or empty."""
        reply = self.replies.get(name)
        return None if reply is None else reply.content


def comparison_rules(settings: Shadow) -> ComparisonRules:
    """Return the rules of a suite by which two answers differ."""
    compare, similarity = settings.compare, settings.similarity
    json = JsonRules.of(compare.ignore_paths, compare.tolerance, case=compare.case)
    return ComparisonRules(compare.by, json, None if similarity is None else similarity.same_above)


def item_of(answered: PromptReplies, settings: Shadow, rules: ComparisonRules) -> ShadowItem:
    """Return the record of one prompt, with texts only if the suite stores them."""
    prompt, replies = answered.prompt, answered.replies
    in_any_order = answered.prompt.fields.get("parallel_tool_calls") is not False
    found = {}
    for one, other in PAIRS:
        first, second = answered.content(one), answered.content(other)
        if first is not None and second is not None:
            similarity = answered.similarities.get((one, other))
            found[one, other] = compare_answers(first, second, rules, in_any_order=in_any_order, similarity=similarity)
    pairs = dict(zip(found, make_transitive(*found.values()), strict=True))
    digests, finishes, texts, facts = {}, {}, {}, {}
    for name, reply in replies.items():
        content = reply.content
        digests[name] = None if content is None else content.digest
        finishes[name] = None if reply.answer is None else reply.answer.finish_reason
        texts[name] = str(content) if content is not None and settings.store_text else None
        facts[name] = _facts(reply, prompt, settings)
    problems = {name: reply.problem for name, reply in replies.items()}
    return ShadowItem(
        prompt_id=prompt.id,
        prompt_sha256=text_sha256(prompt.prompt),
        primary=digests.get("primary"),
        secondary=digests.get("secondary"),
        candidate=digests.get("candidate"),
        primary_finish=finishes.get("primary"),
        secondary_finish=finishes.get("secondary"),
        candidate_finish=finishes.get("candidate"),
        error="; ".join(f"{name}: {problem}" for name, problem in problems.items() if problem is not None) or None,
        prompt_text=prompt.prompt if settings.store_text else None,
        primary_text=texts.get("primary"),
        secondary_text=texts.get("secondary"),
        candidate_text=texts.get("candidate"),
        stratum=prompt.stratum,
        once=prompt.once or None,
        primary_facts=facts.get("primary"),
        secondary_facts=facts.get("secondary"),
        candidate_facts=facts.get("candidate"),
        with_primary=pairs.get(WITH_PRIMARY),
        with_secondary=pairs.get(WITH_SECONDARY),
        own=pairs.get(OWN),
        judged=answered.judged,
        judged_itself=answered.judged_itself,
        judge_error=answered.judge_error,
        similarity_error=None if rules.by == "exact" else answered.similarity_error,  # `exact` needs no similarity
    )


def _facts(reply: Reply, prompt: ShadowPrompt, settings: Shadow) -> AnswerFacts | None:
    if reply.answer is None:
        return None
    content = reply.content or AnswerContent("")
    calls = [(call.name, call.arguments) for call in content.calls]
    return AnswerFacts(
        characters=len(content.text),
        latency_ns=reply.latency_ns,
        refusal=is_refusal(reply.answer, settings.compare.refusals),
        tokens=reply.answer.output_tokens,
        valid=form_of_fields(prompt.fields).is_met(content.text, calls),
    )
