"""What a text is worth, by llama.cpp's own `/completion` and its `n_probs`: token by token, each forced on the server.

llama.cpp ignores `echo`. So the server is asked, for every beginning of the text, what it would write next; the token
that really comes next is made certain by a bias, for the server tells the log-probability of the token it took as it
was before any bias. One short answer is thereby exact for any token of any vocabulary. Beginnings are sent as ids that
the server itself made of the whole text (so with its first token, BOS), and what its slot still holds costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchgate.errors import TargetError
from benchgate.quality.asking import Asker
from benchgate.quality.positions import (
    Position,
    Score,
    common_length,
    log_probability,
    score_of,
    without_trailing_space,
)

_COMPLETION, _TOKENIZE, _MODELS = "/completion", "/tokenize", "/v1/models"
_FORCE = 1e4  # above every difference of logits
_LISTED = 64  # enough that the tokens of a few options are mostly answered by one request
_NOTHING = -1e30  # at or below: the logarithm of 0, as llama.cpp writes it (-3.4e38)
_MOST_MASS = 1.001  # of listed probabilities, each rounded


@dataclass(frozen=True, slots=True)
class Next:
    """What a server told of the token after one beginning: the one it took, and the most probable, best first."""

    taken: int
    logprob: float
    top: dict[int, float]


async def score_by_n_probs(asker: Asker, context: str, continuations: Sequence[str]) -> list[Score]:
    """The score of each continuation after one context: a request for each token, and one where they begin alike."""
    before = await token_ids(asker, without_trailing_space(context))
    texts = [await token_ids(asker, context + continuation) for continuation in continuations]
    begins = [_begin(before, ids) for ids in texts]
    wanted: dict[tuple[int, ...], set[int]] = {}
    for ids, begin in zip(texts, begins, strict=True):
        for place in range(begin, len(ids)):
            wanted.setdefault(ids[:place], set()).add(ids[place])
    told = {beginning: await _after(asker, beginning, tokens, _LISTED) for beginning, tokens in wanted.items()}
    return [
        score_of([_position(told[ids[:place]], ids, place) for place in range(begin, len(ids))])
        for ids, begin in zip(texts, begins, strict=True)
    ]


async def positions_by_n_probs(
    asker: Asker, text: str, top: int, choose: Callable[[int], Sequence[int]]
) -> list[Position]:
    """The chosen positions of a text, with the `top` most probable tokens of each; a request each."""
    ids = await token_ids(asker, text)
    return [
        _position(await _after(asker, ids[:place], {ids[place]}, top), ids, place) for place in sorted(choose(len(ids)))
    ]


async def token_ids(asker: Asker, text: str) -> tuple[int, ...]:
    """The ids of a text as the server reads it, with the token it puts before texts, and special tokens as such."""
    body = {"content": text, "add_special": True, "parse_special": True}
    ids = (await asker.ask(_TOKENIZE, body)).get("tokens")
    if not isinstance(ids, list) or not all(isinstance(token, int) for token in ids):
        raise TargetError(f"{_TOKENIZE} did not answer with the ids of the text's tokens")
    return tuple(ids)


async def vocabulary_tokens(asker: Asker) -> int | None:
    """How many tokens the model knows, as llama.cpp tells it; None when it does not."""
    try:
        models = (await asker.get(_MODELS)).get("data")
    except TargetError:
        return None
    meta = models[0].get("meta") if isinstance(models, list) and models and isinstance(models[0], dict) else None
    count = meta.get("n_vocab") if isinstance(meta, dict) else None
    return count if isinstance(count, int) and count > 0 else None


def _begin(before: Sequence[int], ids: Sequence[int]) -> int:
    """Where a continuation begins: at the first token that is not the context's own. The very first has no value."""
    begin = common_length(before, ids)
    if begin == 0:
        raise TargetError(
            "the first token of a text has no log-probability on this server, so a continuation needs a context"
        )
    return begin


async def _after(asker: Asker, beginning: tuple[int, ...], wanted: Iterable[int], top: int) -> Mapping[int, float]:
    """ln p of the `top` most probable tokens after a beginning, best first, and of the wanted ones in any case."""
    told: dict[int, float] = {}
    listed: dict[int, float] = {}
    for token in sorted(wanted):
        if token in told:
            continue
        found = read_next(await asker.ask(_COMPLETION, _body(asker, beginning, token, top)), len(beginning), top)
        listed = listed or found.top
        if token not in found.top and found.taken != token:
            raise TargetError(
                f"the server could not be made to take token {token}, which is not among the {len(found.top)} most "
                "probable ones it lists, so its log-probability is unknown"
            )
        told |= {found.taken: found.logprob} | found.top
    return {**listed, **{token: told[token] for token in wanted if token not in listed}}


def _body(asker: Asker, beginning: tuple[int, ...], token: int, top: int) -> dict[str, object]:
    return asker.body(
        prompt=list(beginning),
        n_predict=1,
        n_probs=top,
        post_sampling_probs=False,
        temperature=0,
        cache_prompt=True,
        logit_bias=[[token, _FORCE]],
        stream=False,
    )


def _position(told: Mapping[int, float], ids: Sequence[int], place: int) -> Position:
    top = {f"#{token}": value for token, value in told.items()}
    return Position(place, f"#{ids[place]}", told[ids[place]], top)


def read_next(document: Mapping[str, object], sent_tokens: int, top: int) -> Next:
    """llama.cpp's answer about one token. Raises TargetError with what is missing or wrong in it."""
    if document.get("truncated") is True or document.get("tokens_evaluated", sent_tokens) != sent_tokens:
        raise TargetError(f"the server did not read all of the {sent_tokens} tokens that it was sent")
    entries = document.get("completion_probabilities")
    entry = entries[0] if isinstance(entries, list) and entries else None
    listed = entry.get("top_logprobs") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or not isinstance(listed, list) or not listed:
        raise TargetError(
            "the server returned no `completion_probabilities` with `top_logprobs`: it is no llama.cpp server, or one "
            "from before December 2024"
        )
    if len(listed) > top:
        raise TargetError(f"the server lists {len(listed)} tokens where {top} were asked for")
    found = dict(_listed(part) for part in listed if not _computed_as_nothing(part))
    if math.fsum(map(math.exp, found.values())) > _MOST_MASS:
        raise TargetError("the probabilities of the tokens that the server lists add up to more than one")
    taken, logprob = _listed(entry)
    best_first = dict(sorted(found.items(), key=lambda pair: -pair[1]))
    return Next(taken, found.get(taken, logprob), best_first)


def _computed_as_nothing(part: object) -> bool:
    """Whether a probability is so small that the server's arithmetic made it 0, which it tells as the least number."""
    value = part.get("logprob") if isinstance(part, dict) else None
    return isinstance(value, int | float) and not isinstance(value, bool) and value <= _NOTHING


def _listed(part: object) -> tuple[int, float]:
    if not isinstance(part, dict) or not isinstance(part.get("id"), int):
        raise TargetError("the server lists a token without its id")
    return part["id"], log_probability(part.get("logprob"), f"token {part['id']}")
