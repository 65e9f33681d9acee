"""What log-probabilities are made of here: one position of a text, one scored continuation. Pure, and strict.

Natural logarithms throughout. A value that is missing, not finite or positive is no log-probability and is refused.


What a given text is worth to a served model, by whichever way its server can tell. One door for all who ask.

`score_continuations` is for multiple choice, `text_positions` for fixed texts, `next_token` for servers that tell the
log-probabilities only of what they generate. All raise TargetError with the reason when an answer cannot be trusted.


What a text is worth, by a completion that echoes its prompt (vLLM, SGLang): `echo`, `logprobs`, one token more.

Texts are sent, never token ids: servers put their first token (BOS) before a text and not before ids. Where a
continuation begins is found by comparing the tokens of the text with those of its context alone. The offsets that
servers tell are not used: they count the characters of single decoded tokens, and so go wrong after a first token, a
half character or a swallowed space. The generated token is dropped by the number of tokens that the prompt had, never
as "the last one": it is missing from some servers' answers when it ends the text.


What a text is worth, by llama.cpp's own `/completion` and its `n_probs`: token by token, each forced on the server.

llama.cpp ignores `echo`. So the server is asked, for every beginning of the text, what it would write next; the token
that really comes next is made certain by a bias, for the server tells the log-probability of the token it took as it
was before any bias. One short answer is thereby exact for any token of any vocabulary. Beginnings are sent as ids that
the server itself made of the whole text (so with its first token, BOS), and what its slot still holds costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from benchgate.errors import TargetError
from benchgate.quality.asking import Asker
from benchgate.targets.dialect import PATHS, Target
from benchgate.targets.usage import input_count

Way = Literal["echo", "n_probs"]
"""How a server tells what a given text is worth to its model: a completion that echoes its prompt, or llama.cpp's
`n_probs` after every beginning of the text."""

_ROUNDING = 1e-4  # a probability of one, as sums over a vocabulary in single precision have it
_VLLM_MINUS_INFINITY = -9999.0  # what vLLM sends for minus infinity, which JSON cannot say


@dataclass(frozen=True, slots=True)
class Position:
    """One token of a text after all that stands before it.

    `place` counts the server's tokens of the text from 0. A token is called `#id` where the server tells ids, else by
    its text; the keys of `top`, the most probable tokens here, best first, are of the same kind. `logprob` is that of
    the token which stands in the text, whether it is in `top` or not.
    """

    place: int
    token: str
    logprob: float
    top: Mapping[str, float]

    @property
    def is_greedy(self) -> bool:
        """Whether the model itself would have gone on with this token."""
        return self.logprob >= max(self.top.values())


@dataclass(frozen=True, slots=True)
class Score:
    """A continuation after its context: the sum over its tokens, and whether greedy decoding would have written it."""

    logprob: float
    is_greedy: bool
    tokens: int


def score_of(positions: Sequence[Position]) -> Score:
    """The score of the continuation that these positions are; TargetError when it has none."""
    if not positions:
        raise TargetError("the continuation adds no token to its context, so it has no log-probability")
    total = math.fsum(position.logprob for position in positions)
    return Score(total, all(position.is_greedy for position in positions), len(positions))


def tied(scores: Sequence[Score]) -> bool:
    """Whether several continuations got one and the same value, in all or for each token of theirs.

    That is what a server gives that does not read them.
    """
    in_all = {score.logprob for score in scores}
    each = {round(score.logprob / score.tokens, 9) for score in scores}
    return len(scores) > 1 and 1 in (len(in_all), len(each))


def log_probability(value: object, of: str) -> float:
    """A number that can be the logarithm of a probability; TargetError, which says whose it was, of anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TargetError(f"the log-probability of {of} is {value!r}, not a number")
    if not math.isfinite(value) or value <= _VLLM_MINUS_INFINITY:
        raise TargetError(f"the log-probability of {of} is {value}, which is not finite")
    if value > _ROUNDING:
        raise TargetError(f"the log-probability of {of} is {value}, which is above zero")
    return min(float(value), 0.0)


def common_length(one: Sequence[object], other: Sequence[object]) -> int:
    """How many of the first members two sequences share."""
    for place, (ours, theirs) in enumerate(zip(one, other, strict=False)):
        if ours != theirs:
            return place
    return min(len(one), len(other))


def without_trailing_space(context: str) -> str:
    """The context whose tokens stay what they are when a continuation follows; as lm-eval has it.

    A space at the end belongs to the token that follows it, so it is counted with the continuation.
    """
    return context.rstrip()


__all__ = [
    "Position", "Score", "Way", "next_token", "score_continuations", "text_positions", "tied", "vocabulary_tokens",
    "way_of",
]  # fmt: skip

_MINUS_INFINITY = -1e3  # at or below: minus infinity, as servers write it
_MIN_TOKENS = 2
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
        if _HALF_CHARACTER not in name and not (isinstance(value, int | float) and value <= _MINUS_INFINITY)
    ]
    found = dict(sorted(named, key=lambda entry: entry[1]))  # the most probable last: it stays
    if len(found) < _MIN_TOKENS:
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
    choice = _first_choice(document.get("choices"), "choices")
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
    tops = _echoed_tops(choice, told, tokens[:count], logprobs)
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


def _echoed_tops(
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


def _first_choice(found: object, what: str) -> Mapping[str, object]:
    if not isinstance(found, list) or not found or not isinstance(found[0], dict):
        raise TargetError(f"HTTP 200 without {what}")
    return found[0]


_COMPLETION, _TOKENIZE, _MODELS = "/completion", "/tokenize", "/v1/models"
_FORCE = 1e4  # above every difference of logits
_LISTED = 64  # enough that the tokens of a few options are mostly answered by one request
_NOTHING = -1e30  # at or below: the logarithm of 0, as llama.cpp writes it (-3.4e38)
_MAX_N_PROBS_MASS = 1.001  # of listed probabilities, each rounded


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
    begins = [_continuation_start(before, ids) for ids in texts]
    wanted: dict[tuple[int, ...], set[int]] = {}
    for ids, begin in zip(texts, begins, strict=True):
        for place in range(begin, len(ids)):
            wanted.setdefault(ids[:place], set()).add(ids[place])
    told = {beginning: await _next_logprobs(asker, beginning, tokens, _LISTED) for beginning, tokens in wanted.items()}
    return [
        score_of([_n_probs_position(told[ids[:place]], ids, place) for place in range(begin, len(ids))])
        for ids, begin in zip(texts, begins, strict=True)
    ]


async def positions_by_n_probs(
    asker: Asker, text: str, top: int, choose: Callable[[int], Sequence[int]]
) -> list[Position]:
    """The chosen positions of a text, with the `top` most probable tokens of each; a request each."""
    ids = await token_ids(asker, text)
    return [
        _n_probs_position(await _next_logprobs(asker, ids[:place], {ids[place]}, top), ids, place)
        for place in sorted(choose(len(ids)))
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


def _continuation_start(before: Sequence[int], ids: Sequence[int]) -> int:
    """Where a continuation begins: at the first token that is not the context's own. The very first has no value."""
    begin = common_length(before, ids)
    if begin == 0:
        raise TargetError(
            "the first token of a text has no log-probability on this server, so a continuation needs a context"
        )
    return begin


async def _next_logprobs(
    asker: Asker, beginning: tuple[int, ...], wanted: Iterable[int], top: int
) -> Mapping[int, float]:
    """ln p of the `top` most probable tokens after a beginning, best first, and of the wanted ones in any case."""
    told: dict[int, float] = {}
    listed: dict[int, float] = {}
    for token in sorted(wanted):
        if token in told:
            continue
        found = read_next(
            await asker.ask(_COMPLETION, _n_probs_body(asker, beginning, token, top)), len(beginning), top
        )
        listed = listed or found.top
        if token not in found.top and found.taken != token:
            raise TargetError(
                f"the server could not be made to take token {token}, which is not among the {len(found.top)} most "
                "probable ones it lists, so its log-probability is unknown"
            )
        told |= {found.taken: found.logprob} | found.top
    return {**listed, **{token: told[token] for token in wanted if token not in listed}}


def _n_probs_body(asker: Asker, beginning: tuple[int, ...], token: int, top: int) -> dict[str, object]:
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


def _n_probs_position(told: Mapping[int, float], ids: Sequence[int], place: int) -> Position:
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
    found = dict(_token_logprob(part) for part in listed if not _computed_as_nothing(part))
    if math.fsum(map(math.exp, found.values())) > _MAX_N_PROBS_MASS:
        raise TargetError("the probabilities of the tokens that the server lists add up to more than one")
    taken, logprob = _token_logprob(entry)
    best_first = dict(sorted(found.items(), key=lambda pair: -pair[1]))
    return Next(taken, found.get(taken, logprob), best_first)


def _computed_as_nothing(part: object) -> bool:
    """Whether a probability is so small that the server's arithmetic made it 0, which it tells as the least number."""
    value = part.get("logprob") if isinstance(part, dict) else None
    return isinstance(value, int | float) and not isinstance(value, bool) and value <= _NOTHING


def _token_logprob(part: object) -> tuple[int, float]:
    if not isinstance(part, dict) or not isinstance(part.get("id"), int):
        raise TargetError("the server lists a token without its id")
    return part["id"], log_probability(part.get("logprob"), f"token {part['id']}")
