"""How servers answer, as columns of plain numbers: nothing here knows benchgate.

No random numbers are drawn. Where a recipe says `spread` or `noise`, the values are quantiles of a normal distribution
at the points of a golden-ratio sequence (`normal`), so a recipe gives the same records everywhere, to the nanosecond.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

Columns = dict[str, Any]
Floats = npt.NDArray[np.float64]
Truths = npt.NDArray[np.bool_]

MS = 1_000_000
_ABSENT = -1
_GOLDEN, _SILVER = 0.6180339887498949, 0.7548776662466927
_STATUS = {"http_4xx": 400, "http_429": 429, "http_5xx": 500}


@dataclass(frozen=True, kw_only=True)
class Server:
    """How one arm answers in one place. A number of requests means the first so many that did not fail.

    All times are multiplied by `slower` and by the block's factor, exp(`noise` * z), or what `factors` lists by block.
    `spread` is the standard deviation of ln TTFT from request to request. `answers` lists groups of requests with
    answers of their own length, `failed` the number of failures of each class. In a closed loop a request is sent when
    an earlier one of its client has ended, on average; in an open loop at the stage's rate.
    """

    slower: float = 1.0
    ttft_ms: float = 50.0
    step_ms: float = 10.0  # from token to token
    spread: float = 0.1
    noise: float = 0.02
    factors: Sequence[float] = ()
    requests: int | None = None  # of a class in the background, which has as many as fit
    window_s: float | None = None
    tokens: int = 10  # unless the workload asks for another number
    pieces: int | None = None  # chunks of an answer; one for each token
    merged: int = 0  # requests whose answers come in half as many chunks
    at_once: int = 0  # requests whose chunks all come at one instant
    answers: Sequence[Columns] = ()  # {requests, tokens, finish}
    finish: str = "length"
    usage: float = 1.0  # times the tokens of the answer are what the server counts
    counted_by: str | None = "usage"
    uncounted: int = 0  # requests without a count by the server
    input_tokens: int | None = 8
    no_prompt_count: int = 0
    cached_tokens: int | None = None
    reasoning: int = 1  # tokens before the first one of the answer
    invalid: int | None = None  # requests whose answers have not the form asked for; None: no form was
    tokenless: bool = False  # embeddings
    text: Columns | None = None  # what is known of the text: see `_texts`
    model_names: Sequence[str] = ()
    failed: Mapping[str, int] = field(default_factory=dict)
    unsent: int = 0
    client_errors: int = 0  # failures of the load generator's machine
    resent: int = 0
    lag_ms: float = 0.0  # lateness of every send
    late: int = 0  # requests sent 60 ms late, the last ones
    early: int = 0  # requests that were answered before they were sent
    drop: int = 0  # requests without a record, the last ones
    ramp: Columns | None = None  # words of the ramp's requests, `requests` among them
    cancelled: int = 0  # requests that the client broke off
    client: Columns = field(default_factory=dict)


def uniform(seed: int, count: int) -> Floats:
    """Return the points frac(seed * silver + k * golden) for k = 1 to count, which fill the interval from 0 to 1."""
    points: Floats = np.mod(seed * _SILVER + np.arange(1, count + 1) * _GOLDEN, 1.0)
    return points


def normal(seed: int, count: int) -> Floats:
    """Return the quantiles of the standard normal distribution at the points of `uniform`."""
    values: Floats = ndtri(np.clip(uniform(seed, count), 1e-4, 1 - 1e-4))
    return values


def request_columns(
    s: Server, requests: int, every_ms: float, factor: float, seed: int, *, ramp: bool = False
) -> Columns:
    """Return so many requests of one execution, one sent every `every_ms`, in the columns of a stored run.

    -1 stands for what is not there. The chunks of request i are `chunk_ns[chunk_start[i] : chunk_start[i + 1]]`.
    """
    n = requests - s.drop
    errors = _errors(s, n)
    ok: Truths = np.array([error is None for error in errors], dtype=np.bool_)
    good = int(np.argmax(ok)) if ok.any() else n

    def first_good(count: int) -> Truths:
        rows = np.arange(n)
        marked: Truths = (rows >= good) & (rows < good + count)
        return marked

    def known(values: Any, where: Any = True) -> Any:
        return np.where(ok & where, _ABSENT if values is None else values, _ABSENT).astype(np.int64)

    tokens, finish = _answers(s, n, good)
    pieces = np.where(ok, tokens if s.pieces is None else np.minimum(tokens, s.pieces), 0)
    pieces = np.where(first_good(s.merged), (pieces + 1) // 2, pieces)
    intended = np.rint(np.arange(n) * every_ms * MS)
    sent = intended + np.where(np.arange(n) >= n - s.late, 60.0, s.lag_ms) * MS
    first = np.rint(sent + s.ttft_ms * factor * np.exp(s.spread * normal(seed, n)) * MS)
    span_ms = np.where(first_good(s.at_once), 0.0, s.step_ms * factor * (tokens - 1))
    gap, steps = np.rint(span_ms * MS / np.maximum(pieces - 1, 1)), np.maximum(pieces - 1, 0)
    late = np.rint(gap * 0.1)  # of every second chunk, so that no two gaps in a row are equal
    start = np.concatenate([[0], np.cumsum(pieces)]).astype(np.int64)
    step = np.arange(start[-1]) - np.repeat(start[:-1], pieces)
    end = first + gap * steps + late * (steps % 2)
    sent = np.where(first_good(s.early), end + 5 * MS, sent)
    streamed = ok & (not s.tokenless)
    text = s.text or {}
    early = np.where(first_good(text.get("begun", 0)), text.get("begun_ms", 0.0) * MS, 0.0)
    usage = streamed & ~first_good(s.uncounted) & (s.counted_by == "usage")
    status = [200 if error is None else _STATUS.get(error, _ABSENT) for error in errors]
    names: Sequence[str | None] = s.model_names or [None]
    return {
        "index": np.arange(n, dtype=np.int64) + (requests if ramp else 0),
        "intended_ns": intended.astype(np.int64),
        "sent_ns": np.where(np.arange(n) < s.unsent, _ABSENT, sent).astype(np.int64),
        "end_ns": known(end),
        "input_tokens": known(s.input_tokens, ~first_good(s.no_prompt_count)),
        "output_tokens": known(np.where(s.tokenless, 0, np.where(usage, np.rint(tokens * s.usage), tokens))),
        "http_status": np.array(status, dtype=np.int64),
        "reconnects": first_good(s.resent).astype(np.int64),
        "chunk_start": start,
        "chunk_ns": (
            np.repeat(first, pieces)
            + step * np.repeat(gap, pieces)
            + np.repeat(late, pieces) * (step % 2)
            - np.repeat(early, pieces) * (step == 0)
        ).astype(np.int64),
        "first_answer_ns": known(first + gap * np.minimum(s.reasoning, steps), streamed & (s.reasoning < tokens)),
        "cached_tokens": known(s.cached_tokens),
        "valid": known(None if s.invalid is None else ~first_good(s.invalid)).astype(np.int8),
        "left": np.zeros(n, dtype=np.int8),
        "tokenless": np.full(n, s.tokenless, dtype=np.int8),
        "ramp": np.full(n, ramp, dtype=np.int8),
        "token_source": [
            ("usage" if counted else "chunks") if there else None
            for counted, there in zip(usage, streamed, strict=True)
        ],
        "finish_reason": [why if there else None for why, there in zip(finish, streamed, strict=True)],
        "error": errors,
        "error_detail": [None if error is None else "made up" for error in errors],
        "answer_model": [names[i % len(names)] if there else None for i, there in enumerate(ok)],
        **_texts(s, ok, pieces, first_good),
    }


def _errors(s: Server, n: int) -> list[str | None]:
    """Return the error of each request, failures first; those that were never sent are the first of all."""
    failed = ["client"] * (s.unsent + s.client_errors) + [
        name for name, count in s.failed.items() for _ in range(count)
    ]
    return [*failed, *[None] * n][:n]


def _answers(s: Server, n: int, good: int) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Return how many tokens each answer has and why it ended, group after group from the first good request."""
    tokens, finish, at = np.full(n, s.tokens, dtype=np.int64), [s.finish] * n, good
    for group in s.answers:
        rows = range(at, min(at + group["requests"], n))
        tokens[rows.start : rows.stop] = group.get("tokens", s.tokens)
        finish[rows.start : rows.stop] = [group.get("finish", s.finish)] * len(rows)
        at = rows.stop
    return tokens, finish


def _texts(s: Server, ok: Truths, pieces: Any, first_good: Callable[[int], Truths]) -> Columns:
    """Return what is known of the texts. Words: `chars` of a chunk; `hidden` tokens of reasoning that is not sent.

    Numbers of requests whose text is `blank` or `repeated`, of those that reason and do not answer, `silent`, that call
    a tool, `called`, and that begin with blank text, `begun`, which came `begun_ms` early.
    """
    if s.text is None:
        return {}
    words = {"chars": 5, "blank": 0, "repeated": 0, "silent": 0, "called": 0, "begun": 0, "hidden": 0, **s.text}
    silent = first_good(words["silent"])
    chars = np.where(first_good(words["blank"]), 0, pieces * words["chars"])
    columns = {
        "answer_chars": np.where(silent, 0, chars),
        "reasoning_chars": np.where(silent, chars, 0),
        "redundancy_percent": np.where(first_good(words["repeated"]), 95, 20),
        "tool_calls": first_good(words["called"]),
        "first_visible": ~first_good(words["begun"]),
        "reasoning_tokens": np.full(len(ok), words["hidden"]),
    }
    return {name: np.where(ok, column, _ABSENT).astype(np.int32) for name, column in columns.items()}


@functools.lru_cache(maxsize=512)
def queue_columns(requests: int, servers: int, level: float, *, closed: bool) -> Columns:
    """Return requests that wait for the first free of these servers, each of which takes 100 ms, the first token 10 ms.

    Requests come at the rate `level`, or, in a closed loop, from so many clients who wait for their answers.
    """
    due, ends, first = (np.zeros(requests, dtype=np.int64) for _ in range(3))
    for i in range(requests):
        before = ends[i - int(level)] if i >= level else 0
        due[i] = before if closed else round((i + 1) / level * 1e9)
        first[i] = max(due[i], ends[i - servers] if i >= servers else 0) + 10 * MS
        ends[i] = first[i] + 90 * MS
    same = {"input_tokens": 8, "output_tokens": 2, "http_status": 200, "reconnects": 0}
    texts = {"token_source": "usage", "finish_reason": "length", "error": None, "error_detail": None}
    return {
        "index": np.arange(requests, dtype=np.int64),
        "intended_ns": due,
        "sent_ns": due,
        "end_ns": ends,
        "chunk_start": np.arange(0, 2 * requests + 1, 2, dtype=np.int64),
        "chunk_ns": np.column_stack([first, ends]).reshape(-1),
        **{name: np.full(requests, value, dtype=np.int64) for name, value in same.items()},
        **{name: [value] * requests for name, value in texts.items()},
    }
