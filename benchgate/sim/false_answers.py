"""Answers that say something else than they should, while tokens, usage and times stay as they were."""

from __future__ import annotations

from dataclasses import replace

from benchgate.sim.asks import Ask
from benchgate.sim.faults import Behaviour
from benchgate.sim.shapes import json_pieces
from benchgate.sim.words import Saying

_TOKENS = {"blank": (" ", "\n"), "zero-width": ("\u200b",)}
_CALL = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
_TOOL = "lookup"


def falsify(ask: Ask, behaviour: Behaviour) -> Ask:
    """Return the request with the answer that the behaviour makes of it.

    Answers that call a tool, embeddings and rankings keep their text. Completions have no reasoning and no tools, and
    responses have no choices: there these faults change nothing.
    """
    if behaviour.text is None or not ask.output_tokens or ask.saying.tool is not None:
        return ask
    saying, kind = ask.saying, behaviour.text
    thought, tokens = saying.thought_tokens, ask.output_tokens
    if kind == "reasoning":
        return ask if ask.endpoint == "completions" else replace(ask, saying=Saying(saying.key, tokens))
    if kind == "second-choice":
        return ask if ask.endpoint == "responses" else replace(ask, saying=replace(saying, second_from=tokens // 2))
    if kind == "call":
        if ask.endpoint == "completions":
            return ask
        pieces = json_pieces(_CALL, saying.key, tokens - thought, cut=True)
        return replace(ask, saying=replace(saying, pieces=pieces, tool=_TOOL), finish_reason="tool_calls")
    if kind == "half":
        shown = ("" if at % 2 else saying.text(thought + at, 1) for at in range(tokens - thought))
    else:
        written = _TOKENS.get(kind, (behaviour.repeated,))
        shown = (written[at % len(written)] for at in range(tokens - thought))
    return replace(ask, saying=replace(saying, pieces=tuple(shown)))
