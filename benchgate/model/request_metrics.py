"""Request metrics of docs/reference/metrics.md, computed from the packed records of one stage.

Array functions return float64 seconds, one element per request in row order unless stated otherwise. A failed request
is +inf, so it never leaves a denominator. NaN means "does not apply" (TPOT of a one-token answer): drop or count those.
The module also measures texts: visible characters and redundancy, signs of blank or looping answers.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from weakref import WeakKeyDictionary

import numpy as np

from benchgate.model.metric import Slo
from benchgate.model.records import (
    ABSENT,
    ACCEPTED_FINISH,
    BoolArray,
    FloatArray,
    IntArray,
    RequestColumns,
    TokenSource,
)
from benchgate.units import show_percent

MISCOUNTED_SHARE = 0.01  # of the successful answers
_LEAST_MISCOUNTED = 3  # of them: fewer are exceptions
WITHHELD = 1  # allowed pieces of text beyond the tokens counted: a server may end a stream with part of a token
_NS = 1e-9


def succeeded(columns: RequestColumns) -> BoolArray:
    """Return which requests succeeded: sent, HTTP 200, no error, output, an end, an accepted finish reason. Read-only.

    The status alone is no proof: servers report failures inside a stream that began with 200. An embedding or a ranking
    has no tokens and no finish reason; any failure of it is an error.
    """
    known = _SUCCEEDED.get(columns)  # cached: nearly every metric and guard needs it
    if known is None:
        tokenless = columns.tokenless == 1
        accepted, unharmed = columns.finish_reason.are(ACCEPTED_FINISH), columns.error.are((None,))
        timed: BoolArray = (columns.sent_ns != ABSENT) & (columns.end_ns != ABSENT)
        answered = (columns.http_status == 200) & (_chunk_counts(columns) > 0)
        ended: BoolArray = tokenless | (accepted & (columns.output_tokens > 0))
        known = _SUCCEEDED[columns] = ended & unharmed & timed & answered
        known.flags.writeable = False
    return known


_SUCCEEDED: WeakKeyDictionary[RequestColumns, BoolArray] = WeakKeyDictionary()


def count_failed(*parts: RequestColumns) -> int:
    """Count the requests that did not succeed."""
    return sum(int(np.count_nonzero(~succeeded(rows))) for rows in parts)


def ttft_s(columns: RequestColumns) -> FloatArray:
    """Return first output chunk minus *intended* send; +inf for a failed request."""
    return _latency(columns, _edge(columns, first=True) - columns.intended_ns)


def ttft_sent_s(columns: RequestColumns) -> FloatArray:
    """Return first output chunk minus actual send; the difference to `ttft_s` is the client's own delay."""
    return _latency(columns, _edge(columns, first=True) - columns.sent_ns)


def ttfot_s(columns: RequestColumns) -> FloatArray:
    """Return first chunk with output beyond reasoning minus intended send; +inf for a failed request.

    It is +inf too for a success whose tokens were all reasoning. All are NaN if requests of the stage succeeded and
    none has such a chunk: runs before 0.2.0 did not record it.
    """
    if not (columns.first_answer_ns != ABSENT).any() and succeeded(columns).any():
        return np.full(len(columns), np.nan)
    return ttfot_of_some_s(columns)


def ttfot_of_some_s(columns: RequestColumns) -> FloatArray:
    """Return TTFOT of a part of a stage: +inf for requests without an answer chunk, since others may have one."""
    there: BoolArray = columns.first_answer_ns != ABSENT
    return np.where(there, _latency(columns, columns.first_answer_ns - columns.intended_ns), np.inf)


def tpot_s(columns: RequestColumns) -> FloatArray:
    """Return (last output chunk - first output chunk) / (output tokens - 1); +inf for a failed request.

    NaN below 2 tokens, and when all chunks came at one instant, which shows no pace.
    """
    tokens = columns.output_tokens.astype(np.float64)
    span = (_edge(columns, first=False) - _edge(columns, first=True)).astype(np.float64)
    per_token = np.full(len(columns), np.nan)
    np.divide(span * _NS, tokens - 1, out=per_token, where=(tokens >= 2) & (span > 0))
    return np.where(succeeded(columns), per_token, np.inf)


def e2e_s(columns: RequestColumns) -> FloatArray:
    """Return finish event (or `[DONE]`) minus intended send; +inf for a failed request."""
    return _latency(columns, columns.end_ns - columns.intended_ns)


def itl_s(columns: RequestColumns) -> FloatArray:
    """Return every gap between consecutive output chunks in row order, then one +inf per failed request."""
    gaps = np.diff(columns.chunk_ns)
    inside = np.ones(len(gaps), dtype=np.bool_)
    borders = columns.chunk_start[1:-1]
    borders = borders[(borders > 0) & (borders <= len(gaps))]
    inside[borders - 1] = False  # from one request's last chunk to the next one's first
    failed = int(np.count_nonzero(~succeeded(columns)))
    return np.concatenate([gaps[inside] * _NS, np.full(failed, np.inf)])


def _session_rows(columns: RequestColumns) -> tuple[IntArray, BoolArray]:
    """Return the session of each row that has one, from 0 in order of their numbers, and which rows those are."""
    member: BoolArray = columns.session != ABSENT
    _, places = np.unique(columns.session[member], return_inverse=True)
    return places.astype(np.int64), member


def session_succeeded(columns: RequestColumns) -> BoolArray:
    """Return which sessions succeeded: all their requests did. One element per session."""
    places, member = _session_rows(columns)
    passed: BoolArray = np.bincount(places, weights=~succeeded(columns)[member]) == 0
    return passed


def session_e2e_s(columns: RequestColumns) -> FloatArray:
    """Return last answer minus the intended send of the first request, waits included; +inf for a failed session.

    One element per session.
    """
    places, member = _session_rows(columns)
    passed = session_succeeded(columns)
    first = np.full(len(passed), np.iinfo(np.int64).max)
    last = np.full(len(passed), np.iinfo(np.int64).min)
    np.minimum.at(first, places, columns.intended_ns[member])
    np.maximum.at(last, places, columns.end_ns[member])
    return np.where(passed, (last - first).astype(np.float64) * _NS, np.inf)


def send_lag_s(columns: RequestColumns) -> FloatArray:
    """Return actual minus intended send: client delay plus any wait for a connection; +inf if never sent."""
    lag = (columns.sent_ns - columns.intended_ns).astype(np.float64) * _NS
    return np.where(columns.sent_ns == ABSENT, np.inf, lag)


def client_lag_s(columns: RequestColumns) -> FloatArray:
    """Return the send lag without the time to open a connection, which is the server's and the network's."""
    return send_lag_s(columns) - np.maximum(columns.connecting_ns, 0) * _NS  # ABSENT counts as 0


def quantile(values: FloatArray, q: float) -> float | None:
    """Return the smallest observation with at least a share q at or below it (inverse ECDF); None if there are none.

    As an order statistic it treats +inf (a failure) as a value. NaN ("does not apply") is dropped.
    """
    return quantiles(values, (q,))[0]


def quantiles(values: FloatArray, shares: Sequence[float]) -> tuple[float | None, ...]:
    """Return several quantiles, for shares above 0 and at most 1, at little more cost than one."""
    missing = np.isnan(values)
    applicable = values[~missing] if missing.any() else values
    n = len(applicable)
    if n == 0:
        return (None,) * len(shares)
    ranks = [max(math.ceil(n * share - 1), 0) for share in shares]
    placed = np.partition(applicable, sorted(set(ranks)))
    return tuple(float(placed[rank]) for rank in ranks)


def meets_slo(columns: RequestColumns, slo: Slo) -> BoolArray:
    """Return which requests succeed and meet every bound; a bound that does not apply (TPOT of one chunk) is met.

    A server that holds back the whole answer meets a TPOT bound this way. The wait is in TTFT and E2E, so bound one of
    them too.
    """
    passed = succeeded(columns).copy()
    for bound, values in ((slo.ttft_s, ttft_s), (slo.tpot_s, tpot_s), (slo.e2e_s, e2e_s)):
        if bound is not None:
            measured = values(columns)
            passed &= np.isnan(measured) | (measured <= bound)
    return passed


def goodput_ratio(columns: RequestColumns, slo: Slo) -> float | None:
    """Return good requests over *scheduled* ones; None when none were scheduled."""
    return float(np.mean(meets_slo(columns, slo))) if len(columns) else None


def requests_per_s(columns: RequestColumns, window_s: float, *, slo: Slo | None = None) -> float | None:
    """Return successful requests over the window, with an `slo` good ones (goodput); None without a window."""
    counted = succeeded(columns) if slo is None else meets_slo(columns, slo)
    return float(np.count_nonzero(counted)) / window_s if window_s > 0 else None


def output_tokens_per_s(columns: RequestColumns, window_s: float) -> float | None:
    """Return output tokens per second of successful requests; None without a window."""
    return output_tokens(columns) / window_s if window_s > 0 else None


def output_tokens(columns: RequestColumns, *, slo: Slo | None = None) -> float:
    """Return output tokens of successful requests, with an `slo` of good ones."""
    return float(columns.output_tokens[succeeded(columns) if slo is None else meets_slo(columns, slo)].sum())


def input_tokens(columns: RequestColumns) -> float | None:
    """Return input tokens of successful requests; None unless known for every one of them."""
    tokens = columns.input_tokens[succeeded(columns)]
    return None if bool(np.any(tokens == ABSENT)) else float(tokens.sum())


def total_tokens(columns: RequestColumns) -> float | None:
    """Return input and output tokens of successful requests; None unless the input of every one is known."""
    read = input_tokens(columns)
    return None if read is None else read + output_tokens(columns)


def input_tokens_per_s(columns: RequestColumns, window_s: float) -> float | None:
    """Return input tokens per second of successful requests; None if unknown or without a window."""
    tokens = input_tokens(columns)
    return tokens / window_s if tokens is not None and window_s > 0 else None


def total_tokens_per_s(columns: RequestColumns, window_s: float) -> float | None:
    """Return input and output tokens per second of successful requests; None if unknown or without a window."""
    tokens = total_tokens(columns)
    return tokens / window_s if tokens is not None and window_s > 0 else None


def cached_tokens(columns: RequestColumns) -> float:
    """Return cached input tokens of successful requests, at most the input of each; unreported ones count as 0."""
    answered = succeeded(columns)
    cached = np.minimum(columns.cached_tokens[answered], columns.input_tokens[answered])
    return float(np.maximum(cached, 0).sum())


def reports_cached_tokens(columns: RequestColumns) -> bool:
    """Return True if the server reported cached input tokens for any successful request, even 0."""
    return bool(np.any(columns.cached_tokens[succeeded(columns)] != ABSENT))


def mean_decoding_requests(columns: RequestColumns, window_s: float) -> float | None:
    """Return the mean number of requests between first and last output chunk over the window (Little's law).

    It counts requests being decoded, not waiting ones, so it stops growing when all slots of the server are taken.
    Return None without a window, and when no answer came in more than one piece.
    """
    span_ns = (_edge(columns, first=False) - _edge(columns, first=True))[succeeded(columns)]
    busy_s = float(span_ns.sum()) * _NS
    return busy_s / window_s if window_s > 0 and busy_s > 0 else None


def counted_in_validity(columns: RequestColumns) -> BoolArray:
    """Return which requests count in validity: those with a judged answer and, if there are any, the failed ones."""
    judged: BoolArray = columns.valid != ABSENT
    return judged | ~succeeded(columns) if judged.any() else judged


def validity_ratio(*parts: RequestColumns) -> float | None:
    """Return answers that match their schema or tools, over those `counted_in_validity`; None without any."""
    counted = sum(int(np.count_nonzero(counted_in_validity(part))) for part in parts)
    return sum(int(np.count_nonzero(part.valid == 1)) for part in parts) / counted if counted else None


def reasoning_ratio(*parts: RequestColumns) -> float | None:
    """Return reasoning over output tokens of successful requests; None unless the server reported both for each."""
    return _token_ratio([(part, part.reasoning_tokens, part.output_tokens) for part in parts])


_OF_PACE = 1 / 20  # of an answer's mean time per token: what comes sooner after a chunk was sent with it
_MOST_APART_NS = 1_000_000  # a model takes longer for a token, also in an answer that stood still for seconds


def paced_arrivals(columns: RequestColumns) -> IntArray:
    """Return the number of distinct arrivals of each request's output chunks, taking those as one that follow closely.

    A server or proxy that holds an answer back sends the rest at once, each event a little after the one before. Closer
    than 1 ms and 1/20 of the answer's mean time per token is no pace.
    """
    span_ns = _edge(columns, first=False) - _edge(columns, first=True)
    mean_ns = span_ns / np.maximum(columns.output_tokens - 1, 1)
    return distinct_arrivals(columns, np.minimum(_OF_PACE * mean_ns, _MOST_APART_NS))


def distinct_arrivals(columns: RequestColumns, apart_ns: FloatArray | None = None) -> IntArray:
    """Return the number of distinct arrival times of each request's output chunks; 0 without a chunk.

    With `apart_ns`, a time per request, an arrival that follows the one before sooner is not distinct.
    """
    if len(columns.chunk_ns) == 0:
        return np.zeros(len(columns), dtype=np.int64)
    gaps_ns = np.diff(columns.chunk_ns)
    distinct = gaps_ns > 0
    if apart_ns is not None:
        distinct &= gaps_ns >= np.repeat(apart_ns, _chunk_counts(columns))[1:]
    steps = np.concatenate([[0], np.cumsum(distinct)])
    starts, ends = columns.chunk_start[:-1], columns.chunk_start[1:] - 1
    last = len(columns.chunk_ns) - 1
    spanned = steps[np.clip(ends, 0, last)] - steps[np.clip(starts, 0, last)] + 1
    return np.where(_chunk_counts(columns) > 0, spanned, 0)


def _token_ratio(counted: Sequence[tuple[RequestColumns, IntArray, IntArray]]) -> float | None:
    parts, wholes = 0, 0
    for columns, part, whole in counted:
        ok = succeeded(columns)
        if not ((part[ok] != ABSENT) & (whole[ok] != ABSENT)).all():
            return None
        parts += int(part[ok].sum())
        wholes += int(whole[ok].sum())
    return parts / wholes if wholes > 0 else None


def _latency(columns: RequestColumns, span_ns: IntArray) -> FloatArray:
    return np.where(succeeded(columns), span_ns.astype(np.float64) * _NS, np.inf)


def _chunk_counts(columns: RequestColumns) -> IntArray:
    return columns.chunk_start[1:] - columns.chunk_start[:-1]


def _edge(columns: RequestColumns, *, first: bool) -> IntArray:
    """Return the time of each row's first (or last) output chunk; ABSENT without chunks."""
    if len(columns.chunk_ns) == 0:
        return np.full(len(columns), ABSENT, dtype=np.int64)
    at = columns.chunk_start[:-1] if first else columns.chunk_start[1:] - 1
    return np.where(_chunk_counts(columns) > 0, columns.chunk_ns.take(at, mode="clip"), ABSENT)


MIN_VISIBLE_CHARACTERS = 24  # least visible characters for measuring redundancy; shorter texts do not compress
_END = 512  # characters at the end of a text, where a loop is found
_BLANKS = bytes(range(0x21)) + b"\x7f"
_UNSEEN = (
    # Default_Ignorable_Code_Point of the Unicode Character Database (DerivedCoreProperties.txt, version 17.0)
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    # Cc; format characters that are neither in that list nor drawn; letters and symbols that are blank
    "\x00-\x1f\x7f-\x9f\ufff9-\ufffb\U00013430-\U0001343f\u2800\U0001d159"
)
_HIGH, _LOW = "\ud800-\udbff", "\udc00-\udfff"  # surrogate halves of one character, counted once
_INVISIBLE = re.compile(f"[{_UNSEEN}{_HIGH}](?:(?<![{_HIGH}])|(?=[{_LOW}]))")


def visible_characters(text: str) -> int:
    """Count the code points that are not white space, control characters or without a glyph of their own."""
    if text.isascii():
        return len(text.encode().translate(None, _BLANKS))
    return len(_INVISIBLE.sub("", "".join(text.split())))


def redundancy_percent(text: str) -> int:
    """Return the percentage by which raw deflate shrinks the last 512 characters of a text, in UTF-8.

    0 if they do not shrink, and for an empty text. An English sentence gives about 30, a repeated one more than 80, one
    repeated character more than 90. Whisper discards a transcription as a loop when zlib shrinks it by a factor above
    2.4, which is 58% (https://arxiv.org/abs/2212.04356, section 4.5).
    """
    end = text[-_END:].encode("utf-8", "surrogatepass")
    if not end:
        return 0
    deflate = zlib.compressobj(6, zlib.DEFLATED, -12, 4)  # window of 4 KiB, twice the size of 512 characters
    smaller = len(deflate.compress(end)) + len(deflate.flush())
    return max(0, round(100 * (1 - smaller / len(end))))


LATENCIES: Mapping[str, Callable[[RequestColumns], FloatArray]] = MappingProxyType(
    {"ttft": ttft_s, "ttfot": ttfot_s, "tpot": tpot_s, "itl": itl_s, "e2e": e2e_s, "session_e2e": session_e2e_s}
)
"""Latencies in seconds, by the name of the metric: of every request, or of every gap (itl) or session (session_e2e)."""
REQUEST_LATENCIES = MappingProxyType(
    {name: latency for name, latency in LATENCIES.items() if name not in ("itl", "session_e2e")}
)
"""Latencies with one value per request."""
THROUGHPUTS: Mapping[str, Callable[[RequestColumns, float], float | None]] = MappingProxyType(
    {
        "output_throughput": output_tokens_per_s,
        "input_throughput": input_tokens_per_s,
        "total_throughput": total_tokens_per_s,
        "request_throughput": requests_per_s,
    }
)
"""Rates per second over a window, by the name of the metric."""


def undercounted(columns: RequestColumns) -> BoolArray:
    """Mark answers whose usage counts fewer tokens than pieces of text, of which each token makes at most one.

    More tokens than pieces are valid: servers merge tokens into one piece under load, and count withheld ones.
    """
    fewer: BoolArray = columns.output_tokens < np.diff(columns.chunk_start) - WITHHELD
    return fewer & columns.token_source.are((TokenSource.USAGE,))


def miscounted(columns: RequestColumns, requested: int | None = None) -> str | None:
    """Describe why a server's token counts are implausible; None if they are plausible.

    With `requested`, the token limit of every request, usage may exceed neither the limit nor the number of pieces, by
    more than one piece's tokens: a server that passes the limit also sends what it counts. Counted but unsent reasoning
    could fake any throughput.
    """
    share, counts = _token_share(columns, undercounted(columns)), "fewer tokens than there were pieces of text"
    if share is None and requested is not None:
        pieces: IntArray = np.diff(columns.chunk_start)
        most = np.maximum(pieces, requested) + columns.output_tokens / np.maximum(pieces, 1)
        by_usage = columns.token_source.are((TokenSource.USAGE,))
        share = _token_share(columns, (columns.output_tokens > most) & by_usage)
        counts = f"more than {requested} requested tokens, in too few pieces of text"
    if share is None:
        return None
    found = f"in {show_percent(share)} of the answers the server's usage counts {counts}"
    return f"{found} (bound {MISCOUNTED_SHARE:.0%})"


def _token_share(columns: RequestColumns, marked: BoolArray) -> float | None:
    of_ok = marked[succeeded(columns)]
    if np.count_nonzero(of_ok) < _LEAST_MISCOUNTED or float(np.mean(of_ok)) <= MISCOUNTED_SHARE:
        return None
    return float(np.mean(of_ok))
