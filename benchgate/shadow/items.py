"""From three replies to one prompt to what is kept of them: digests, facts about each, facts about each pair. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from benchgate.model.records import AnswerFacts, JudgeVerdict, PairFacts, ShadowItem
from benchgate.plan.items import ShadowPrompt, text_sha256
from benchgate.shadow.asking import Reply
from benchgate.shadow.compare import Rules, Said, compared, digest, settled
from benchgate.shadow.form import has_form
from benchgate.shadow.json_rules import JsonRules
from benchgate.shadow.refusal import refuses
from benchgate.suite.shadow import Shadow

Pair = tuple[str, str]
WITH_PRIMARY: Pair = ("candidate", "primary")
WITH_SECONDARY: Pair = ("candidate", "secondary")
OWN: Pair = ("secondary", "primary")
PAIRS = (WITH_PRIMARY, WITH_SECONDARY, OWN)


@dataclass(slots=True)
class Answered:
    """One prompt and what came back: `replies` by name, without `secondary` where the baseline was asked once.

    `similarities` and the verdicts of a judge come later, as far as they come; the errors say why they do not.
    """

    prompt: ShadowPrompt
    replies: Mapping[str, Reply]
    similarities: dict[Pair, float] = field(default_factory=dict)
    similarity_error: str | None = None
    judged: JudgeVerdict | None = None
    judged_itself: JudgeVerdict | None = None
    judge_error: str | None = None

    def said(self, name: str) -> Said | None:
        """What one of the answers comes to; None where it failed, is not there, or says nothing at all."""
        reply = self.replies.get(name)
        return None if reply is None else said_by(reply)

    @property
    def in_any_order(self) -> bool:
        """Whether calls of one answer are made at once, so that their order means nothing."""
        return self.prompt.fields.get("parallel_tool_calls") is not False


def said_by(reply: Reply) -> Said | None:
    """What an answer comes to; None for an error, and for one that says nothing: two of those would agree."""
    answer = reply.answer
    if answer is None:
        return None
    text = answer.text if answer.text and answer.text.strip() else answer.refusal or ""
    if not text.strip() and not answer.calls and not refuses(answer):
        return None
    return Said(text, answer.calls)


def rules_of(settings: Shadow) -> Rules:
    """What decides whether two answers differ, as a suite says it."""
    compare, similarity = settings.compare, settings.similarity
    json = JsonRules.of(compare.ignore_paths, compare.tolerance, case=compare.case)
    return Rules(compare.by, json, None if similarity is None else similarity.same_above)


def item_of(answered: Answered, settings: Shadow, rules: Rules) -> ShadowItem:
    """What is kept of one prompt; its texts only where the suite says so."""
    prompt, said = answered.prompt, {name: answered.said(name) for name in answered.replies}
    pairs = _pairs(answered, rules)
    keep = settings.store_text
    return ShadowItem(
        prompt_id=prompt.id,
        prompt_sha256=text_sha256(prompt.prompt),
        primary=_digest(said.get("primary")),
        secondary=_digest(said.get("secondary")),
        candidate=_digest(said.get("candidate")),
        primary_finish=_finish(answered, "primary"),
        secondary_finish=_finish(answered, "secondary"),
        candidate_finish=_finish(answered, "candidate"),
        error="; ".join(_errors(answered)) or None,
        prompt_text=prompt.prompt if keep else None,
        primary_text=_shown(said.get("primary")) if keep else None,
        secondary_text=_shown(said.get("secondary")) if keep else None,
        candidate_text=_shown(said.get("candidate")) if keep else None,
        stratum=prompt.stratum,
        once=prompt.once or None,
        primary_facts=_facts(answered, "primary", settings),
        secondary_facts=_facts(answered, "secondary", settings),
        candidate_facts=_facts(answered, "candidate", settings),
        with_primary=pairs.get(WITH_PRIMARY),
        with_secondary=pairs.get(WITH_SECONDARY),
        own=pairs.get(OWN),
        judged=answered.judged,
        judged_itself=answered.judged_itself,
        judge_error=answered.judge_error,
        similarity_error=None if rules.by == "exact" else answered.similarity_error,  # by which nothing is near
    )


def problem_with(reply: Reply) -> str | None:
    """Why a reply is no answer; None when it is one."""
    answer = reply.answer
    if answer is None:
        return reply.error
    if said_by(reply) is not None:
        return None
    if answer.text is None:
        return "the content of the answer is null"
    return "an empty answer" + ("" if answer.finish_reason == "stop" else f" with finish reason {answer.finish_reason}")


def in_words(said: Said) -> str:
    """An answer as a person or a judge reads it: its text, then its calls, each on a line of its own."""
    return "\n".join([*([said.text] if said.text else []), *(f"{call.name}({call.arguments})" for call in said.calls)])


def _pairs(answered: Answered, rules: Rules) -> dict[Pair, PairFacts]:
    """Of every two answers that are there."""
    found = {}
    for one, other in PAIRS:
        first, second = answered.said(one), answered.said(other)
        if first is not None and second is not None:
            similarity = answered.similarities.get((one, other))
            found[one, other] = compared(
                first, second, rules, in_any_order=answered.in_any_order, similarity=similarity
            )
    return dict(zip(found, settled(*found.values()), strict=True))


def _facts(answered: Answered, name: str, settings: Shadow) -> AnswerFacts | None:
    """Of an answer that came, be it empty."""
    reply = answered.replies.get(name)
    if reply is None or reply.answer is None:
        return None
    said = said_by(reply) or Said("")
    return AnswerFacts(
        characters=len(said.text),
        latency_ns=reply.latency_ns,
        refusal=refuses(reply.answer, settings.compare.refusals),
        tokens=reply.answer.output_tokens,
        valid=has_form(answered.prompt, said),
    )


def _errors(answered: Answered) -> list[str]:
    problems = {name: problem_with(reply) for name, reply in answered.replies.items()}
    return [f"{name}: {problem}" for name, problem in problems.items() if problem is not None]


def _finish(answered: Answered, name: str) -> str | None:
    reply = answered.replies.get(name)
    return None if reply is None or reply.answer is None else reply.answer.finish_reason


def _digest(said: Said | None) -> str | None:
    return None if said is None else digest(said)


def _shown(said: Said | None) -> str | None:
    return None if said is None else in_words(said)
