"""What a given text is worth to a served model, by whichever way its server can tell. One door for all who ask.

`score_continuations` is for multiple choice, `text_positions` for fixed texts, `next_token` for servers that tell the
log-probabilities only of what they generate. All raise TargetError with the reason when an answer cannot be trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from benchgate.errors import TargetError
from benchgate.quality.asking import Asker
from benchgate.quality.echo import positions_by_echo, score_by_echo
from benchgate.quality.n_probs import positions_by_n_probs, score_by_n_probs, vocabulary_tokens
from benchgate.quality.positions import Position, Score, Way, log_probability, tied
from benchgate.targets.dialect import PATHS, Target

__all__ = [
    "Position", "Score", "Way", "next_token", "score_continuations", "text_positions", "tied", "vocabulary_tokens",
    "way_of",
]  # fmt: skip

_STAND_IN = -1e3  # at or below: minus infinity, as servers write it
_FEWEST = 2
_HALF_CHARACTER = "\ufffd"


def way_of(target: Target) -> Way:
    """The way that suits the target's engine."""
    return "n_probs" if target.dialect.engine == "llamacpp" else "echo"


async def score_continuations(asker: Asker, way: Way, context: str, continuations: Sequence[str]) -> list[Score]:
    """The score of every continuation after the same context, in order."""
    score = score_by_n_probs if way == "n_probs" else score_by_echo
    return await score(asker, context, continuations)


async def text_positions(
    asker: Asker, way: Way, text: str, *, top: int, choose: Callable[[int], Sequence[int]]
) -> list[Position]:
    """The positions of a text that `choose` picks, in order; it gets the number n of tokens and gives places 1 … n - 1.

    Each has the log-probability of the token that stands there and of the `top` most probable ones. By `echo` a text
    is one request, by `n_probs` a place is.
    """
    read = positions_by_n_probs if way == "n_probs" else positions_by_echo
    return await read(asker, text, top, lambda count: sorted(set(choose(count))))


async def next_token(asker: Asker, beginning: str, *, top: int) -> Mapping[str, float]:
    """The most probable tokens after the beginning of a text, by their texts, best first: about `top` of them.

    For any completions server: the one token that it generates comes with its rivals. OpenAI's old shape of
    log-probabilities and its newer one are both read. Stand-ins for minus infinity are left out, and so are tokens that
    are no whole characters; of several that are shown by one text (some tokenizers swallow a leading space) the most
    probable has it. TargetError when fewer than two are left.
    """
    # At temperature 0 some servers tell probabilities of one and zero; at 1 all tell the model's own.
    body = asker.body(prompt=beginning, max_tokens=1, temperature=1, logprobs=top)
    document = await asker.ask(PATHS["completions"], body)
    choices = document.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    told = choice.get("logprobs") if isinstance(choice, dict) else None
    listed = _rivals(told) if isinstance(told, dict) else []
    named = [
        (name, log_probability(value, f"{name!r}, listed for the next token"))
        for name, value in listed
        if _HALF_CHARACTER not in name and not (isinstance(value, int | float) and value <= _STAND_IN)
    ]
    found = dict(sorted(named, key=lambda entry: entry[1]))  # the most probable last: it stays
    if len(found) < _FEWEST:
        raise TargetError(
            f"the server lists {len(found)} probable tokens for the next one (`logprobs`), of {top} asked"
        )
    return dict(sorted(found.items(), key=lambda entry: -entry[1]))


def _rivals(told: Mapping[str, object]) -> list[tuple[str, object]]:
    """Text and log-probability of what is listed at the first generated token; empty when there is none."""
    content, old = told.get("content"), told.get("top_logprobs")
    if isinstance(content, list) and content and isinstance(content[0], dict):
        listed = content[0].get("top_logprobs")
        parts = listed if isinstance(listed, list) else []
        return [(str(part.get("token")), part.get("logprob")) for part in parts if isinstance(part, dict)]
    if isinstance(old, list) and old and isinstance(old[0], dict):
        return list(old[0].items())
    return []
