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


def render_slack(context: VerdictContext) -> str:
    """Render the message: verdict and reason, both sides, failing checks, a link to the report."""
    verdict, *others = context.results()
    mark = display.MARKS[Outcome.INVALID if context.doubtful else context.verdict.outcome]
    head = f"{mark} {verdict.outcome}: {context.run.suite_name}"
    blocks: list[dict[str, object]] = [{"type": "header", "text": _plain_text(head, _HEADER_CHARACTERS)}]
    doubt = verdict.details[:1] if context.doubtful else ()
    sentences = (verdict.reason, *doubt, verdict.advice and f"What to do first: {verdict.advice}", _compared(context))
    blocks += [_section(text) for text in sentences if text]
    blocks += _attention([one for one in others if one.level.stops or one.level is Level.WARNS])
    if context.link is not None:
        link = quote(context.link, safe=":/?#[]@!$'()*+,;=%-._~&").replace("&", "&amp;")  # no `<`, `>` or `|` is left
        blocks.append({"type": "section", "text": {"type": "mrkdwn", "verbatim": True, "text": f"<{link}|The report>"}})
    fallback = f"benchgate {verdict.outcome}: {verdict.reason} ({_compared(context)})"
    message = {"text": _fitting(fallback, _FALLBACK_CHARACTERS), "blocks": blocks}
    return json.dumps(message, indent=2, sort_keys=True) + "\n"


def _compared(context: VerdictContext) -> str:
    arms = deployments(context.run, context.reference)
    candidate, baseline = arms[Arm.CANDIDATE][1].name, arms[Arm.BASELINE][1].name
    sides = f"{candidate} alone" if context.alone else f"candidate {candidate} against {baseline}"
    return f"{sides}, suite {context.run.suite_name}, run {context.run.id}, exit code {int(context.exit_code)}"


def _attention(some: Sequence[Result]) -> list[dict[str, object]]:
    """Return a block for each of the first failing results."""
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
    """Escape a text and cut it to a number of characters, which escapes count into."""
    limit = most
    while len(escaped := chat_line(text, limit)) > most:
        limit = limit * 3 // 4
    return escaped
