"""What a text is worth, by a completion that echoes its prompt (vLLM, SGLang): `echo`, `logprobs`, one token more.

Texts are sent, never token ids: servers put their first token (BOS) before a text and not before ids. Where a
continuation begins is found by comparing the tokens of the text with those of its context alone. The offsets that
servers tell are not used: they count the characters of single decoded tokens, and so go wrong after a first token, a
half character or a swallowed space. The generated token is dropped by the number of tokens that the prompt had, never
as "the last one": it is missing from some servers' answers when it ends the text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from benchgate.targets.answers import input_count
from benchgate.targets.dialect import PATHS

_HALF_CHARACTER = "\ufffd"  # what servers show of a token that is not whole characters
_SHOWN = 40


@dataclass(frozen=True, slots=True)
class Echoed:
    """The tokens of a prompt as the server scored them, without the generated one.

    The first has no log-probability (None, nothing in `tops`), unless the server put a token of its own before it.
    `lead` is the number of such tokens. `ids` are the tokens' names with ids where the server tells them.
    """

    tokens: tuple[str, ...]
    logprobs: tuple[float | None, ...]
    tops: tuple[Mapping[str, float], ...]
    lead: int

    def positions(self, begin: int) -> list[Position]:
        """Every position from the token `begin` on; TargetError when that is the very first, which has no value."""
        found = []
        for place in range(begin, len(self.tokens)):
            value = self.logprobs[place]
            if value is None:
                raise TargetError(
                    "the first token of a text has no log-probability on this server, so a continuation needs a context"
                )
            found.append(Position(place, self.tokens[place], value, self.tops[place]))
        return found


async def score_by_echo(asker: Asker, context: str, continuations: Sequence[str]) -> list[Score]:
    """The score of each continuation after one context: a request each, and one for the context."""
    known = without_trailing_space(context)
    before = (await echoed(asker, known, top=1)).tokens if known else ()
    scores = []
    for continuation in continuations:
        whole = await echoed(asker, context + continuation, top=1)
        begin = common_length(before, whole.tokens) if known else whole.lead
        scores.append(score_of(whole.positions(begin)))
    return scores


async def positions_by_echo(
    asker: Asker, text: str, top: int, choose: Callable[[int], Sequence[int]]
) -> list[Position]:
    """The chosen positions of a text, with the `top` most probable tokens of each; one request."""
    whole = await echoed(asker, text, top=top)
    every = {position.place: position for position in whole.positions(1)}
    return [every[place] for place in choose(len(whole.tokens))]


async def echoed(asker: Asker, text: str, top: int) -> Echoed:
    """The tokens of a text with their log-probabilities; TargetError when the answer is not about this text."""
    body = asker.body(prompt=text, max_tokens=1, temperature=0, logprobs=top, echo=True)
    return read_echo(await asker.ask(PATHS["completions"], body), text)


def read_echo(document: Mapping[str, object], text: str) -> Echoed:
    """The answer to an echoing completion of a text. Raises TargetError with what is missing or wrong in it."""
    choice = _first(document.get("choices"), "choices")
    told = choice.get("logprobs")
    usage = document.get("usage")
    count = input_count(usage)
    if not isinstance(told, dict):
        raise TargetError(f"the server returned no log-probabilities; {IGNORES_ECHO}")
    tokens, values = told.get("tokens"), told.get("token_logprobs")
    if not isinstance(tokens, list) or not isinstance(values, list) or not all(isinstance(t, str) for t in tokens):
        raise TargetError(f"the server returned no log-probabilities of the prompt's tokens; {IGNORES_ECHO}")
    if count is None:
        raise TargetError("the server does not tell how many tokens the prompt had (`usage.prompt_tokens`)")
    if len(tokens) not in (count, count + 1) or len(values) != len(tokens):
        raise TargetError(
            f"the server scored {min(len(tokens), len(values))} tokens of a prompt that has {count}; {IGNORES_ECHO}"
        )
    lead = _lead(tokens[:count], text)
    logprobs = [_value(values, place, tokens) for place in range(count)]
    tops = _listed(choice, told, tokens[:count], logprobs)
    names = tuple(name for name, _ in tops)
    return Echoed(names, tuple(logprobs), tuple(listed for _, listed in tops), lead)


IGNORES_ECHO = "it seems to ignore `echo`, so it cannot score a given text"


def _lead(tokens: Sequence[str], text: str) -> int:
    """How many tokens stand before those of the text; TargetError when the tokens are not those of the text at all."""
    for lead in (0, 1):
        if _spells(tokens[lead:], text):
            return lead
    shown = "".join(tokens)[:_SHOWN]
    raise TargetError(f"the server scored another text than the one it got: {shown!r} for {text[:_SHOWN]!r}")


def _spells(tokens: Sequence[str], text: str) -> bool:
    """Whether the tokens are a way to write the text, as far as single tokens can be shown.

    Space is left out, because some servers swallow it, and a token of half a character stands for anything.
    """
    shown = "".join(_HALF_CHARACTER if token.startswith("bytes:") else token for token in tokens)
    begin, *middle = "".join(shown.split()).split(_HALF_CHARACTER)
    left = "".join(text.split())
    if not middle:
        return left == begin
    end = middle.pop()
    if not left.startswith(begin) or not left[len(begin) :].endswith(end):
        return False
    left = left[len(begin) : len(left) - len(end)]
    for piece in middle:
        _, found, left = left.partition(piece) if piece else ("", True, left)
        if not found:
            return False
    return True


def _value(values: Sequence[object], place: int, tokens: Sequence[str]) -> float | None:
    if place == 0 and values[0] is None:
        return None
    return log_probability(values[place], f"token {place} ({tokens[place]!r}) of the prompt")


def _listed(
    choice: Mapping[str, object], told: Mapping[str, object], tokens: Sequence[str], logprobs: Sequence[float | None]
) -> list[tuple[str, Mapping[str, float]]]:
    """Name of each token and the most probable ones in its place: by id where the server tells them, else by text."""
    by_text, by_id = told.get("top_logprobs"), choice.get("prompt_logprobs")
    found: list[tuple[str, Mapping[str, float]]] = []
    for place, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True)):
        entry = by_text[place] if isinstance(by_text, list) and place < len(by_text) else None
        listed = by_id[place] if isinstance(by_id, list) and place < len(by_id) else None
        if logprob is None:
            found.append((token, {}))
        elif isinstance(listed, dict) and listed:
            found.append(_named(listed, token, logprob, place))
        elif isinstance(entry, dict) and entry:
            top = {name: log_probability(value, f"{name!r}, listed at token {place}") for name, value in entry.items()}
            found.append((token, _best_first(top)))
        else:
            raise TargetError(f"the server lists no probable tokens at token {place} of the prompt (`top_logprobs`)")
    return found


def _named(listed: Mapping[str, object], token: str, logprob: float, place: int) -> tuple[str, Mapping[str, float]]:
    """vLLM's own list, which tells ids: texts of different tokens may look alike."""
    top, equal = {}, []
    for key, entry in listed.items():
        if not isinstance(entry, dict):
            raise TargetError(f"the server's `prompt_logprobs` at token {place} are not what vLLM sends")
        value = log_probability(entry.get("logprob"), f"token id {key}, listed at token {place}")
        top[f"#{key}"] = value
        if value == logprob:
            equal.append((entry.get("decoded_token") != token, f"#{key}"))
    if not equal:
        raise TargetError(f"the server's `prompt_logprobs` at token {place} do not list {token!r}, which stands there")
    return min(equal)[1], _best_first(top)


def _best_first(top: Mapping[str, float]) -> Mapping[str, float]:
    return dict(sorted(top.items(), key=lambda entry: -entry[1]))


def _first(found: object, what: str) -> Mapping[str, object]:
    if not isinstance(found, list) or not found or not isinstance(found[0], dict):
        raise TargetError(f"HTTP 200 without {what}")
    return found[0]
