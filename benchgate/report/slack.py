"""The verdict as a message for Slack's incoming webhooks, and for what speaks their language (Mattermost, Discord).

Every text of others stands in `plain_text` blocks, in which there are no mentions and no links, and is broken up where
it would be either elsewhere: some readers show the fallback `text` alone, as Markdown. A header holds 150 characters,
a text 3,000.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from urllib.parse import quote

from benchgate.escape import chat_line
from benchgate.model.deployment import Arm
from benchgate.model.verdict import Outcome
from benchgate.report import display
from benchgate.report.comparability import deployments
from benchgate.report.results import Kind, Level, Result, VerdictContext

_HEADER_CHARACTERS = 150
_TEXT_CHARACTERS = 3000
_FALLBACK_CHARACTERS = 3000
_MOST_CHECKS = 10


def render_slack(told: VerdictContext) -> str:
    """The message: verdict and reason, what was compared, what needs attention, where the report is."""
    verdict, *others = told.results()
    mark = display.MARKS[Outcome.INVALID if told.doubtful else told.verdict.outcome]
    head = f"{mark} {verdict.outcome}: {told.run.suite_name}"
    blocks: list[dict[str, object]] = [{"type": "header", "text": _plain_text(head, _HEADER_CHARACTERS)}]
    doubt = verdict.details[:1] if told.doubtful else ()
    said = (verdict.reason, *doubt, verdict.advice and f"What to do first: {verdict.advice}", _compared(told))
    blocks += [_section(text) for text in said if text]
    blocks += _attention([one for one in others if one.level.stops or one.level is Level.WARNS])
    if told.link is not None:
        link = quote(told.link, safe=":/?#[]@!$'()*+,;=%-._~&").replace("&", "&amp;")  # no `<`, `>` or `|` is left
        blocks.append({"type": "section", "text": {"type": "mrkdwn", "verbatim": True, "text": f"<{link}|The report>"}})
    fallback = f"benchgate {verdict.outcome}: {verdict.reason} ({_compared(told)})"
    message = {"text": _fitting(fallback, _FALLBACK_CHARACTERS), "blocks": blocks}
    return json.dumps(message, indent=2, sort_keys=True) + "\n"


def _compared(told: VerdictContext) -> str:
    arms = deployments(told.run, told.reference)
    candidate, baseline = arms[Arm.CANDIDATE][1].name, arms[Arm.BASELINE][1].name
    sides = f"{candidate} alone" if told.alone else f"candidate {candidate} against {baseline}"
    return f"{sides}, suite {told.run.suite_name}, run {told.run.id}, exit code {int(told.exit_code)}"


def _attention(some: Sequence[Result]) -> list[dict[str, object]]:
    """A section for each of the first; what is advisory is said to be."""
    blocks = []
    for one in some[:_MOST_CHECKS]:
        kind = "guard " if one.kind is Kind.GUARD else ""
        advisory = "" if one.required else " (advisory)"
        numbers = f"; {one.details[0]}" if one.details else ""
        blocks.append(_section(f"{one.outcome}: {kind}{one.title}{advisory}: {one.reason}{numbers}"))
    if len(some) > _MOST_CHECKS:
        blocks.append(_section(f"and {len(some) - _MOST_CHECKS} more, which the report has"))
    return blocks


def _section(text: str) -> dict[str, object]:
    return {"type": "section", "text": _plain_text(text, _TEXT_CHARACTERS)}


def _plain_text(text: str, most: int) -> dict[str, object]:
    return {"type": "plain_text", "emoji": False, "text": _fitting(text, most)}


def _fitting(text: str, most: int) -> str:
    """The text as it is sent, which escapes make longer, in at most so many characters."""
    limit = most
    while len(said := chat_line(text, limit)) > most:
        limit = limit * 3 // 4
    return said
