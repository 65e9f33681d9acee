"""Log-probabilities of given texts from a server, and multiple choice by them, item by item.

By an echoed prompt (vLLM, SGLang) or by llama.cpp's `n_probs`. `score_continuations` is for multiple choice,
`text_positions` for fixed texts, and `next_token` for servers that report log-probabilities of generated tokens alone.
They raise TargetError for an answer that cannot be trusted. Natural logarithms throughout: a missing, infinite or
positive value is refused.

By `echo`, texts are sent and never token ids: servers put their first token (BOS) before a text and not before ids. A
continuation begins at the first token that differs from the context's own tokens. The offsets that servers report are
not used: they count characters of single decoded tokens, and are wrong after a first token, half a character or a
swallowed space. The generated token is dropped by the number of prompt tokens, never as "the last one": some servers
leave it out if it ends the text.

llama.cpp ignores `echo`. It is sent every beginning of the text for its next token, with a bias that forces the token
of the text: it reports that token's log-probability without the bias. One short answer is thereby exact for any token
of any vocabulary. Beginnings are sent as the ids that the server made of the whole text, BOS included.

All options of an item are scored together: they share a context, which the server then reads once, and only equal
scores of all options show a server that does not read them.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, Protocol

from benchgate.errors import TargetError
from benchgate.model.deployment import Arm
from benchgate.model.request import ENDPOINTS, Endpoint
from benchgate.model.run import CANNOT_SCORE
from benchgate.plan.items import PlannedTask
from benchgate.quality.protocol import GIVE_UP_AFTER, ItemAnswered, SpoolWriter
from benchgate.suite.schema import Limits
from benchgate.targets.answers import input_count
from benchgate.targets.client import RETRY, AsyncJsonClient
from benchgate.targets.dialect import Target

# A completion that echoes its prompt, or llama.cpp's `n_probs` after every beginning of the text.
Way = Literal["echo", "n_probs"]
_MAX_LOGPROB = 1e-4  # a probability of 1 after summing a vocabulary in single precision
_VLLM_MINUS_INFINITY = -9999.0  # JSON has no infinity
_MINUS_INFINITY = -1e3  # other servers' stand-ins are at or below
_MIN_TOKENS = 2  # that a server must list for the next one
_HALF_CHARACTER = "\ufffd"  # servers show it for a token that is not whole characters
_SHOWN_CHARACTERS = 40
_IGNORES_ECHO = "it seems to ignore `echo`, so it cannot score a given text"
_NEEDS_CONTEXT = "the first token of a text has no log-probability on this server, so a continuation needs a context"

COMPLETION, TOKENIZE, _MODELS = "/completion", "/tokenize", "/v1/models"
_FORCE = 1e4  # above every difference of logits
_WHOLE_CHARACTER = "a"
_LONGER_LISTS = (4_096, 100_000)  # 100,000 tokens are some 9 MB
_LISTED = 64  # the tokens of a few options are then mostly answered by one request
_LOG_OF_ZERO = -1e30  # llama.cpp writes -3.4e38
_MAX_N_PROBS_MASS = 1.001  # of the listed probabilities, each rounded


@dataclass(frozen=True, slots=True)
class Position:
    """A token of a text after everything before it.

    `place` counts the server's tokens of the text from 0. Tokens are named `#id` if the server reports ids, else by
    their text. `top` has the most probable tokens, best first; `logprob` belongs to the token of the text, which need
    not be among them.
    """

    place: int
    token: str
    logprob: float
    top: Mapping[str, float]

    @property
    def is_greedy(self) -> bool:
        """Return True if greedy decoding would have chosen this token."""
        return self.logprob >= max(self.top.values())


@dataclass(frozen=True, slots=True)
class Score:
    """Log-probability of a continuation after its context, summed over its tokens."""

    logprob: float
    is_greedy: bool
    tokens: int


def score_of(positions: Sequence[Position]) -> Score:
    """Sum the positions of a continuation. Raises TargetError without any."""
    if not positions:
        raise TargetError("the continuation adds no token to its context, so it has no log-probability")
    total = math.fsum(position.logprob for position in positions)
    return Score(total, all(position.is_greedy for position in positions), len(positions))


def tied(scores: Sequence[Score]) -> bool:
    """Return True if all continuations have the same score, in total or per token: the server does not read them."""
    totals = {score.logprob for score in scores}
    per_token = {round(score.logprob / score.tokens, 9) for score in scores}
    return len(scores) > 1 and 1 in (len(totals), len(per_token))


def log_probability(value: object, of: str) -> float:
    """Check a log-probability. Raises TargetError naming `of` for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TargetError(f"the log-probability of {of} is {value!r}, not a number")
    if not math.isfinite(value) or value <= _VLLM_MINUS_INFINITY:
        raise TargetError(f"the log-probability of {of} is {value}, which is not finite")
    if value > _MAX_LOGPROB:
        raise TargetError(f"the log-probability of {of} is {value}, which is above zero")
    return min(float(value), 0.0)


def common_length(one: Sequence[object], other: Sequence[object]) -> int:
    """Return the length of the common prefix."""
    for place, (ours, theirs) in enumerate(zip(one, other, strict=False)):
        if ours != theirs:
            return place
    return min(len(one), len(other))


def target_of(client: AsyncJsonClient) -> Target:
    """Return the deployment that a client sends to."""
    assert client.target is not None, "log-probabilities come from a deployment"
    return client.target


def _body(client: AsyncJsonClient, **fields: object) -> dict[str, object]:
    """Return a completions body in the target's dialect. The fields override the suite's `extra`."""
    target = target_of(client)
    if "max_tokens" in fields:
        fields[target.dialect.max_tokens_field] = fields.pop("max_tokens")
    body = {"model": target.model, **target.dialect.extra, **fields}
    return {name: value for name, value in body.items() if name not in target.dialect.leave_out}


def way_of(target: Target) -> Way:
    """Return the way that suits the target's engine."""
    return "n_probs" if target.dialect.engine == "llamacpp" else "echo"


async def score_continuations(
    client: AsyncJsonClient, way: Way, context: str, continuations: Sequence[str]
) -> list[Score]:
    """Return the score of each continuation after the same context, in order."""
    score = score_by_n_probs if way == "n_probs" else score_by_echo
    return await score(client, context, continuations)


async def text_positions(
    client: AsyncJsonClient, way: Way, text: str, *, top: int, choose: Callable[[int], Sequence[int]]
) -> list[Position]:
    """Return the positions of a text that `choose` selects from the number n of tokens: places 1 to n - 1, in order.

    Each has the log-probabilities of its token and of the `top` most probable ones. `echo` needs one request for a
    text, `n_probs` one for each place.
    """
    read = positions_by_n_probs if way == "n_probs" else positions_by_echo
    return await read(client, text, top, lambda count: sorted(set(choose(count))))


async def next_token(client: AsyncJsonClient, beginning: str, *, top: int) -> Mapping[str, float]:
    """Return about `top` of the most probable tokens after the beginning of a text, by their texts, best first.

    Works with any completions server, in OpenAI's old and new form of log-probabilities. Stand-ins for minus infinity
    and tokens of half a character are left out. Of tokens with the same text (some tokenizers swallow a leading space)
    the most probable one counts. Raises TargetError for fewer than two.
    """
    # At temperature 0 some servers report probabilities of 1 and 0; at 1 all report the model's own.
    body = _body(client, prompt=beginning, max_tokens=1, temperature=1, logprobs=top)
    document = await client.post(ENDPOINTS["completions"].path, body)
    choices = document.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    logprobs = choice.get("logprobs") if isinstance(choice, dict) else None
    listed = _first_token_top(logprobs) if isinstance(logprobs, dict) else []
    named = [
        (name, log_probability(value, f"{name!r}, listed for the next token"))
        for name, value in listed
        if _HALF_CHARACTER not in name and not (isinstance(value, int | float) and value <= _MINUS_INFINITY)
    ]
    found = dict(sorted(named, key=lambda entry: entry[1]))  # the most probable last: it replaces the others
    if len(found) < _MIN_TOKENS:
        raise TargetError(
            f"the server lists {len(found)} probable tokens for the next one (`logprobs`), of {top} requested"
        )
    return dict(sorted(found.items(), key=lambda entry: -entry[1]))


def _first_token_top(logprobs: Mapping[str, object]) -> list[tuple[str, object]]:
    """Return texts and log-probabilities listed for the first generated token."""
    content, old = logprobs.get("content"), logprobs.get("top_logprobs")
    if isinstance(content, list) and content and isinstance(content[0], dict):
        listed = content[0].get("top_logprobs")
        parts = listed if isinstance(listed, list) else []
        return [(str(part.get("token")), part.get("logprob")) for part in parts if isinstance(part, dict)]
    if isinstance(old, list) and old and isinstance(old[0], dict):
        return list(old[0].items())
    return []


@dataclass(frozen=True, slots=True)
class Echoed:
    """A prompt's tokens as scored, without the generated one; the first has no value, `lead` are the server's own."""

    tokens: tuple[str, ...]
    logprobs: tuple[float | None, ...]
    tops: tuple[Mapping[str, float], ...]
    lead: int

    def positions(self, begin: int) -> list[Position]:
        """Return the positions from token `begin` on. Raises TargetError for the very first, which has no value."""
        found = []
        for place in range(begin, len(self.tokens)):
            value = self.logprobs[place]
            if value is None:
                raise TargetError(_NEEDS_CONTEXT)
            found.append(Position(place, self.tokens[place], value, self.tops[place]))
        return found


async def score_by_echo(client: AsyncJsonClient, context: str, continuations: Sequence[str]) -> list[Score]:
    """Return the score of each continuation: a request each, and one for the context."""
    known = context.rstrip()
    before = (await echoed(client, known, top=1)).tokens if known else ()
    scores = []
    for continuation in continuations:
        whole = await echoed(client, context + continuation, top=1)
        begin = common_length(before, whole.tokens) if known else whole.lead
        scores.append(score_of(whole.positions(begin)))
    return scores


async def positions_by_echo(
    client: AsyncJsonClient, text: str, top: int, choose: Callable[[int], Sequence[int]]
) -> list[Position]:
    """Return the chosen positions of a text with their `top` most probable tokens, by one request."""
    whole = await echoed(client, text, top=top)
    every = {position.place: position for position in whole.positions(1)}
    return [every[place] for place in choose(len(whole.tokens))]


async def echoed(client: AsyncJsonClient, text: str, top: int) -> Echoed:
    """Return a text's tokens with log-probabilities. Raises TargetError if the answer is about another text."""
    body = _body(client, prompt=text, max_tokens=1, temperature=0, logprobs=top, echo=True)
    return read_echo(await client.post(ENDPOINTS["completions"].path, body), text)


def read_echo(document: Mapping[str, object], text: str) -> Echoed:
    """Read the answer to an echoing completion. Raises TargetError for anything missing or wrong in it."""
    choices = document.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise TargetError("HTTP 200 without choices")
    choice = choices[0]
    echo = choice.get("logprobs")
    count = input_count(document.get("usage"))
    if not isinstance(echo, dict):
        raise TargetError(f"the server returned no log-probabilities; {_IGNORES_ECHO}")
    tokens, values = echo.get("tokens"), echo.get("token_logprobs")
    if not isinstance(tokens, list) or not isinstance(values, list) or not all(isinstance(t, str) for t in tokens):
        raise TargetError(f"the server returned no log-probabilities of the prompt's tokens; {_IGNORES_ECHO}")
    if count is None:
        raise TargetError("the server does not report how many tokens the prompt had (`usage.prompt_tokens`)")
    # llama-cpp-python counts a first token (BOS) and does not list it.
    if len(tokens) in (count - 1, count) and _spells(tokens[: count - 1], text):
        is_exact = "".join(tokens[: count - 1]) == text
        if len(tokens) < count or is_exact or not _spells(tokens, text):
            count -= 1
    if len(tokens) not in (count, count + 1) or len(values) != len(tokens):
        raise TargetError(
            f"the server scored {min(len(tokens), len(values))} tokens of a prompt that has {count}; {_IGNORES_ECHO}"
        )
    lead = next((lead for lead in (0, 1) if _spells(tokens[lead:count], text)), None)
    if lead is None:
        shown, sent = "".join(tokens[:count])[:_SHOWN_CHARACTERS], text[:_SHOWN_CHARACTERS]
        raise TargetError(f"the server scored another text than the one it got: {shown!r} for {sent!r}")
    logprobs = [
        None if place == 0 and value is None else log_probability(value, f"token {place} ({token!r}) of the prompt")
        for place, (token, value) in enumerate(zip(tokens[:count], values, strict=False))
    ]
    tops = _echoed_tops(choice, echo, tokens[:count], logprobs)
    names = tuple(name for name, _ in tops)
    return Echoed(names, tuple(logprobs), tuple(listed for _, listed in tops), lead)


def _spells(tokens: Sequence[str], text: str) -> bool:
    """Return True if the tokens can spell the text but for spaces; half a character matches anything."""
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


def _echoed_tops(
    choice: Mapping[str, object], echo: Mapping[str, object], tokens: Sequence[str], logprobs: Sequence[float | None]
) -> list[tuple[str, Mapping[str, float]]]:
    """Return each token's name and its most probable alternatives: by id if the server reports ids, else by text."""
    by_text, by_id = echo.get("top_logprobs"), choice.get("prompt_logprobs")
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
    # vLLM's own list has ids: different tokens may have the same text.
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


@dataclass(frozen=True, slots=True)
class Next:
    """Token that a server took after a beginning, and the most probable ones, best first."""

    taken: int
    logprob: float
    top: dict[int, float]


async def misplaced_values(client: AsyncJsonClient) -> str | None:
    """Return a fault if a server echoes the log-probability of another place than the token's own, or None.

    llama-cpp-python does so for models without a first token (BOS): it lists each token as likely after itself. The
    likeliest next token of a text must have about the same log-probability when it stands there and is echoed. Servers
    that list no next tokens, or cut the longer text otherwise, cannot be compared.
    """
    try:
        name, expected = next(iter((await next_token(client, _PROBE_CONTEXT, top=2)).items()))
        before = await echoed(client, _PROBE_CONTEXT, top=1)
        whole = await echoed(client, _PROBE_CONTEXT + name, top=1)
    except TargetError:
        return None
    begin = common_length(before.tokens, whole.tokens)
    value = whole.logprobs[begin] if begin == len(before.tokens) == len(whole.tokens) - 1 else None
    if value is None or abs(value - expected) <= _SAME_PLACE_NATS:
        return None
    return (
        f"the log-probability of {name!r} after {_PROBE_CONTEXT!r} is {expected:.3g} as the next token and {value:.3g} "
        "in an echo: it seems to report the values of other places"
    )


async def score_by_n_probs(client: AsyncJsonClient, context: str, continuations: Sequence[str]) -> list[Score]:
    """Return the score of each continuation: a request for each token, shared by equal beginnings."""
    before = await token_ids(client, context.rstrip())
    texts = [await token_ids(client, context + continuation) for continuation in continuations]
    begins = [common_length(before, ids) for ids in texts]
    if 0 in begins:
        raise TargetError(_NEEDS_CONTEXT)
    needed: dict[tuple[int, ...], set[int]] = {}
    for ids, begin in zip(texts, begins, strict=True):
        for place in range(begin, len(ids)):
            needed.setdefault(ids[:place], set()).add(ids[place])
    known = {
        beginning: await _next_logprobs(client, beginning, tokens, _LISTED) for beginning, tokens in needed.items()
    }
    return [
        score_of([_n_probs_position(known[ids[:place]], ids, place) for place in range(begin, len(ids))])
        for ids, begin in zip(texts, begins, strict=True)
    ]


async def positions_by_n_probs(
    client: AsyncJsonClient, text: str, top: int, choose: Callable[[int], Sequence[int]]
) -> list[Position]:
    """Return the chosen positions of a text with their `top` most probable tokens, by a request each."""
    ids = await token_ids(client, text)
    return [
        _n_probs_position(await _next_logprobs(client, ids[:place], {ids[place]}, top), ids, place)
        for place in sorted(choose(len(ids)))
    ]


async def token_ids(client: AsyncJsonClient, text: str) -> tuple[int, ...]:
    """Return the token ids of a text as the server reads it, with BOS and special tokens."""
    return read_token_ids(await client.post(TOKENIZE, tokenize_fields(text)))


def tokenize_fields(text: str) -> dict[str, object]:
    """Return the fields of llama.cpp's `/tokenize`."""
    return {"content": text, "add_special": True, "parse_special": True}


def read_token_ids(document: Mapping[str, object]) -> tuple[int, ...]:
    """Read llama.cpp's list of token ids. Raises TargetError for anything else."""
    ids = document.get("tokens")
    if not isinstance(ids, list) or not all(isinstance(token, int) for token in ids):
        raise TargetError(f"{TOKENIZE} did not answer with the ids of the text's tokens")
    return tuple(ids)


async def vocabulary_tokens(client: AsyncJsonClient) -> int | None:
    """Return the size of the vocabulary if the server reports it as llama.cpp does."""
    try:
        models = (await client.get(_MODELS)).get("data")
    except TargetError:
        return None
    meta = models[0].get("meta") if isinstance(models, list) and models and isinstance(models[0], dict) else None
    count = meta.get("n_vocab") if isinstance(meta, dict) else None
    return count if isinstance(count, int) and count > 0 else None


async def _next_logprobs(
    client: AsyncJsonClient, beginning: tuple[int, ...], needed: Iterable[int], top: int
) -> Mapping[int, float]:
    """Return ln p of the `top` most probable tokens after a beginning, best first, and of all `needed` ones."""
    known: dict[int, float] = {}
    listed: dict[int, float] = {}
    for token in sorted(needed):
        if token in known:
            continue
        found = await _next(client, beginning, token, top)
        listed = listed or found.top
        if token not in found.top and found.taken != token:
            raise TargetError(
                f"the server could not be made to take token {token}, which is not among the {len(found.top)} most "
                "probable ones it lists, so its log-probability is unknown"
            )
        known |= {found.taken: found.logprob} | found.top
    return {**listed, **{token: known[token] for token in needed if token not in listed}}


async def _next(client: AsyncJsonClient, beginning: tuple[int, ...], token: int, top: int) -> Next:
    """Return the `top` most probable tokens after a beginning, and `token` with its log-probability as the one taken.

    llama.cpp shows nothing of a token that ends inside a character. It is then looked up in longer lists; what is taken
    is another token if none has it.
    """

    async def complete(taken: int, size: int) -> dict[str, Any]:
        return await client.post(COMPLETION, _body(client, **n_probs_fields(beginning, taken, size)))

    document = await complete(token, top)
    if document.get("completion_probabilities"):
        return read_next(document, len(beginning), top)
    whole = (await token_ids(client, _WHOLE_CHARACTER))[-1]
    found = read_next(await complete(whole, top), len(beginning), top)
    for size in _LONGER_LISTS:
        if size > top and token not in found.top:
            found = read_next(await complete(whole, size), len(beginning), size)
    logprob = found.top.get(token)
    return found if logprob is None else Next(token, logprob, dict(islice(found.top.items(), top)))


def n_probs_fields(beginning: Sequence[int], token: int, top: int) -> dict[str, object]:
    """Return the fields of llama.cpp's `/completion` that make it take one token and list the `top` most probable."""
    return {
        "prompt": list(beginning),
        "n_predict": 1,
        "n_probs": top,
        "post_sampling_probs": False,
        "temperature": 0,
        "cache_prompt": True,
        "logit_bias": [[token, _FORCE]],
        "stream": False,
    }


def _n_probs_position(logprobs: Mapping[int, float], ids: Sequence[int], place: int) -> Position:
    top = {f"#{token}": value for token, value in logprobs.items()}
    return Position(place, f"#{ids[place]}", logprobs[ids[place]], top)


def read_next(document: Mapping[str, object], sent_tokens: int, top: int) -> Next:
    """Read llama.cpp's answer about one token. Raises TargetError for anything missing or wrong in it."""
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
        raise TargetError(f"the server lists {len(listed)} tokens where {top} were requested")
    found = {}
    for part in listed:
        value = part.get("logprob") if isinstance(part, dict) else None
        # A probability that underflowed to 0 on the server has no logarithm.
        if isinstance(value, bool) or not isinstance(value, int | float) or value > _LOG_OF_ZERO:
            token, logprob = _token_logprob(part)
            found[token] = logprob
    if math.fsum(map(math.exp, found.values())) > _MAX_N_PROBS_MASS:
        raise TargetError("the probabilities of the tokens that the server lists add up to more than one")
    taken, logprob = _token_logprob(entry)
    best_first = dict(sorted(found.items(), key=lambda pair: -pair[1]))
    return Next(taken, found.get(taken, logprob), best_first)


def _token_logprob(part: object) -> tuple[int, float]:
    if not isinstance(part, dict) or not isinstance(part.get("id"), int):
        raise TargetError("the server lists a token without its id")
    return part["id"], log_probability(part.get("logprob"), f"token {part['id']}")


_NO_SCORE = (0.0, False)  # placeholder that lm-eval gets for an option of a failed item, whose score is dropped
_PROBE_TEXT = "One, two, three, four, five. The sky is blue."
_PROBE_CONTEXT, _PROBE_CONTINUATIONS = "One, two, three,", (" four", " qzx", " sky is")
_SAME_PLACE_NATS = 1.0  # far above what batching and 16 bits change
_PROBE_POSITIONS = 6  # enough to see that they differ

_LLAMA_CPP_ADVICE = "of a llama.cpp server say `engine: llamacpp`, and its own interface is used"
_OTHER_ADVICE = "otherwise use tasks that generate text (`output_type: generate_until`)"


class Request(Protocol):
    """The part of lm-eval's `Instance` that scoring needs."""

    task_name: str | None
    doc_id: int | None
    doc: dict[str, Any]

    @property
    def args(self) -> tuple[Any, ...]:
        """Context and continuation."""


async def score_requests(
    client: AsyncJsonClient,
    concurrency: int,
    requests: Sequence[Request],
    spool: SpoolWriter,
    item_id: Callable[[Request], str],
    failures: Counter[str],
) -> list[tuple[float, bool]]:
    """Return log-probability and greediness of each request's continuation after its context, in order.

    `concurrency` items are under way at once; requests of one item follow each other, so that the server still has its
    context cached. Each item is written to the spool as soon as it is done. `failures` counts those of each task, over
    all calls.
    """
    items: dict[tuple[str, int | None], list[int]] = {}
    for place, request in enumerate(requests):
        items.setdefault((str(request.task_name), request.doc_id), []).append(place)
    results: list[tuple[float, bool]] = [_NO_SCORE] * len(requests)
    queue = iter(items.values())

    async def work() -> None:
        for places in queue:
            options = [requests[place] for place in places]
            own = client.with_own_retry_count()
            began_ns = time.perf_counter_ns()
            task, name = str(options[0].task_name), item_id(options[0])
            try:
                if failures[task] >= GIVE_UP_AFTER:
                    raise TargetError(f"not sent: {GIVE_UP_AFTER} items of the task had failed before")
                scores = await _scores(own, options)
            except TargetError as error:
                failures[task] += 1
                spool.write(ItemAnswered(task, name, error=str(error), retries=own.retries))
                continue
            best = max(range(len(scores)), key=lambda number: scores[number].logprob)
            answered = ItemAnswered(
                task=task,
                item_id=name,
                answer=str(options[best].args[1]).strip(),
                latency_ns=time.perf_counter_ns() - began_ns,
                retries=own.retries,
                tied=len({option.args for option in options}) > 1 and tied(scores),
            )
            spool.write(answered)
            for place, score in zip(places, scores, strict=True):
                results[place] = (score.logprob, score.is_greedy)

    await asyncio.gather(*(work() for _ in range(min(concurrency, len(items)))))
    return results


async def _scores(client: AsyncJsonClient, requests: Sequence[Request]) -> list[Score]:
    """Return the scores of one item's requests in order, each context with all its continuations at once."""
    by_context: dict[str, list[str]] = {}
    for request in requests:
        context, continuation = request.args[:2]
        by_context.setdefault(str(context), []).append(str(continuation))
    found: dict[tuple[str, str], Score] = {}
    for context, continuations in by_context.items():
        scores = await score_continuations(client, way_of(target_of(client)), context, continuations)
        found |= {(context, text): score for text, score in zip(continuations, scores, strict=True)}
    return [found[str(request.args[0]), str(request.args[1])] for request in requests]


def endpoint_fault(tasks: Iterable[PlannedTask], endpoint: Endpoint) -> str | None:
    """Return why no server can score the tasks at this endpoint, or None."""
    named = scored_tasks(tasks)
    if not named or endpoint == "completions":
        return None
    one = f"the task {named[0]} scores given texts" if len(named) == 1 else f"{', '.join(named)} score given texts"
    return (
        f"{one}, and a chat endpoint only scores what it generates: say `endpoint: completions` (few-shot examples "
        "then take the place of a chat template), or use tasks that generate text"
    )


def scored_tasks(tasks: Iterable[PlannedTask]) -> list[str]:
    """Return the names of tasks that need prompt log-probabilities."""
    return [task.name for task in tasks if task.output_type != "generate_until"]


def probe_scoring(targets: Mapping[Arm, Target], tasks: Iterable[PlannedTask], limits: Limits) -> dict[Arm, str]:
    """Return each arm that cannot score given texts, with the reason. Sends nothing if no task needs it."""
    named = scored_tasks(tasks)
    if not named:
        return {}

    async def probe(target: Target) -> str | None:
        async with AsyncJsonClient(
            target, connect_s=limits.connect_s, total_s=limits.total_s, connections=1, retry=RETRY
        ) as client:
            return await scoring_fault(client, way_of(target))

    async def probe_all() -> list[str | None]:
        return await asyncio.gather(*(probe(target) for target in targets.values()))

    faults = zip(targets, asyncio.run(probe_all()), strict=True)
    return {arm: f"{CANNOT_SCORE} of {', '.join(named)}: {fault}" for arm, fault in faults if fault}


async def scoring_fault(client: AsyncJsonClient, way: Way) -> str | None:
    """Return why this server cannot score a given text in this way, or None.

    llama.cpp takes `echo` and returns the log-probabilities of what it generated. Taken for those of the options, they
    are all equal, and the model scores exact chance without any error.
    """

    def probe_places(tokens: int) -> list[int]:
        return [1 + number * (tokens - 1) // _PROBE_POSITIONS for number in range(_PROBE_POSITIONS)]

    advice = f"{_LLAMA_CPP_ADVICE}; {_OTHER_ADVICE}" if way == "echo" else _OTHER_ADVICE
    try:
        positions = await text_positions(client, way, _PROBE_TEXT, top=1, choose=probe_places)
        scores = await score_continuations(client, way, _PROBE_CONTEXT, _PROBE_CONTINUATIONS)
    except TargetError as error:
        return f"{error}; {advice}"
    if way == "echo" and (fault := await misplaced_values(client)) is not None:
        return f"{fault}; {advice}"
    if len({position.logprob for position in positions}) < 2:
        return f"it gives every token of a text the same log-probability, {positions[0].logprob:g}; {advice}"
    if tied(scores):
        count, value = len(scores), scores[0].logprob
        return f"it gives {count} different texts the same log-probability, {value:g}; {advice}"
    return None
