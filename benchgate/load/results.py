"""Results of a stage: spools decoded to columns, duplicate and unanswered requests, workers merged, lost workers.

Unanswered: when a stage ends, background requests are cancelled, which is no failure. But a slot that never gets an
answer holds one request to the end. Counted as cancelled, a server that hangs would have no failure.

Duplicates: a server or proxy that sends an answer again answers somebody else's request with it. In a closed loop the
copy is there as soon as the next request leaves. A model that answers the same twice does so under two ids. Some
servers draw their ids from few: equal answers of theirs take as long as the first one did.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Self

import numpy as np

from benchgate.load.decode.record import decode_named
from benchgate.load.shards import ClassShare, Shard
from benchgate.load.spool import Phase, read_spool
from benchgate.model.columns import ColumnBuilder, concatenate_columns, split_by_use
from benchgate.model.records import ABSENT, ErrorClass, IntArray, RequestColumns, RequestRecord
from benchgate.model.request import ModelRequest
from benchgate.model.request_metrics import succeeded
from benchgate.model.run import ClientUse
from benchgate.targets.dialect import Target


def no_rows() -> RequestColumns:
    """Columns of no request."""
    return RequestColumns.pack([])


@dataclass(frozen=True, slots=True, eq=False)
class ClassResult:
    """A class of traffic. `requests` are the measured ones, `left` those broken off on purpose.

    `ramp` are those that were sent to bring the stage into steady state and to hold it there. `window_s` runs from the
    first intended send to the last end or intended send of `requests`. Where `in_steady_state`, for a closed loop that
    was held full, it is the time in which the measured requests began: up to the first intended send after them.
    """

    name: str  # "" when the stage has no other
    requests: RequestColumns
    window_s: float
    left: RequestColumns = field(default_factory=no_rows)
    ramp: RequestColumns = field(default_factory=no_rows)
    in_steady_state: bool = False

    @property
    def recorded(self) -> int:
        """Return the number of requests with a record."""
        return len(self.requests) + len(self.left) + len(self.ramp)


@dataclass(frozen=True, slots=True, eq=False)
class StageResult:
    """A stage, class by class.

    `down_after_s`: how long after the start the target stopped accepting connections, when it was given up for that.
    What was due later was not even tried, and in a closed loop for a time is in no record.
    """

    classes: tuple[ClassResult, ...]
    client: ClientUse
    down_after_s: float | None = None

    @classmethod
    def of(
        cls, requests: RequestColumns, window_s: float, client: ClientUse, down_after_s: float | None = None
    ) -> Self:
        """Return the result of a stage with one class of traffic and no cancellations."""
        return cls((ClassResult("", requests, window_s),), client, down_after_s)

    @property
    def only(self) -> ClassResult:
        """The one class of a stage that has no other; ValueError for a stage of several."""
        if len(self.classes) != 1:
            raise ValueError(f"the stage has {len(self.classes)} classes of traffic, not one")
        return self.classes[0]

    @property
    def requests(self) -> RequestColumns:
        """Return those of the only class."""
        return self.only.requests

    @property
    def window_s(self) -> float:
        """Return that of the only class."""
        return self.only.window_s


_PATIENCE = 2  # times as long as any answer of the class was silent: a queue may have grown since
_LEAST_NS = 250_000_000  # what a pause of a machine may take
_HUNG = (
    "still unanswered when the stage was over, and silent for far longer than any whole answer of its class ever was"
)


def unanswered_requests(
    columns: RequestColumns, cancelled_at_ns: Mapping[int, int], unstreamed: Mapping[int, int] | None = None
) -> frozenset[int]:
    """Return the cancelled requests, by number, that count as timeouts.

    They were silent for more than twice the longest silence of any completed request of the class, and in flight longer
    than all of them. `cancelled_at_ns` holds when each was cancelled. An unstreamed answer is silent while it is
    written: `unstreamed` holds the token limit of each such request, and its silence may be longer in proportion where
    all completed ones went to their limit. Empty without a completed request to compare with.
    """
    if not cancelled_at_ns:
        return frozenset()
    whole = np.flatnonzero(succeeded(columns) & (columns.left != 1)).tolist()
    if not whole:
        return frozenset()
    ages = columns.end_ns[whole] - columns.sent_ns[whole]
    bound_ns = max(_LEAST_NS, _PATIENCE * max(_silence_ns(columns, row, int(columns.end_ns[row])) for row in whole))
    oldest_ns = int(ages.max())
    most_tokens = max(1, int(columns.output_tokens[whole].max()))
    to_the_limit = bool(columns.finish_reason.are(("length",))[whole].all())
    to_have = unstreamed if unstreamed is not None and to_the_limit else {}
    found = set()
    for row, number in enumerate(columns.index.tolist()):
        over_ns, sent_ns = cancelled_at_ns.get(number), int(columns.sent_ns[row])
        if over_ns is None or sent_ns == ABSENT or columns.error[row] is not None or over_ns - sent_ns <= oldest_ns:
            continue
        times_as_long = max(1.0, to_have.get(number, 0) / most_tokens)
        if over_ns - _last_sign_ns(columns, row) > bound_ns * times_as_long:
            found.add(number)
    return frozenset(found)


def with_timeouts(columns: RequestColumns, numbers: frozenset[int]) -> RequestColumns:
    """The same, where these requests are time-outs instead of left."""
    if not numbers:
        return columns
    are = np.isin(columns.index, sorted(numbers))
    error, detail = columns.error.but(are, ErrorClass.TIMEOUT), columns.error_detail.but(are, _HUNG)
    left = np.where(are, np.int8(0), columns.left)
    return replace(columns, left=left, error=error, error_detail=detail)


def _silence_ns(columns: RequestColumns, row: int, over_ns: int) -> int:
    """The longest time without output from the send to the end."""
    chunks = columns.chunk_ns[columns.chunk_start[row] : columns.chunk_start[row + 1]]
    return int(np.diff([int(columns.sent_ns[row]), *chunks.tolist(), over_ns]).max())


def _last_sign_ns(columns: RequestColumns, row: int) -> int:
    """The last output, or the send where there was none."""
    begin, end = columns.chunk_start[row], columns.chunk_start[row + 1]
    return int(columns.chunk_ns[end - 1] if end > begin else columns.sent_ns[row])


NO_NAME = 0
_FASTER = 4  # times
_AT_ONCE_NS = 5_000_000  # all of an answer: a copy comes in one piece, and so does what is made faster than this


def duplicate_responses(columns: RequestColumns, names: IntArray, bodies: Callable[[IntArray], IntArray]) -> IntArray:
    """The rows of answers that had come before, byte for byte and under the same id, and came in no time now.

    From its sending to its end that is much less than the one that it repeats, and than nearly any answer that was the
    first under its id; from first output to last it is much less than the one that it repeats. So neither an answer
    that did not have to wait nor a short one of a server that is now slow and now quick is a copy.
    `names` tells the ids of all rows apart; `NO_NAME` is a row without one, and one that failed. `bodies` gives for
    some rows what tells their bytes apart. It is asked once, and only when an id came again in much less time, which it
    seldom does: to read so much costs time.
    """
    rows = _shared(names)
    _, group = np.unique(names[rows], return_inverse=True)
    took = columns.end_ns[rows] - columns.sent_ns[rows]
    slowest = np.zeros(len(rows), dtype=np.int64)
    np.maximum.at(slowest, group, took)
    quick = took * _FASTER < slowest[group]
    if not quick.any():
        return rows[quick]
    suspects = np.isin(group, group[quick])
    rows, took = rows[suspects], took[suspects]
    _, first, group = np.unique(bodies(rows), return_index=True, return_inverse=True)
    first = first[group]
    spoke = _spoke_ns(columns, rows)
    in_no_time = took * _FASTER < np.minimum(took[first], _quick_first_ns(columns, names))
    at_once = spoke <= np.maximum(spoke[first] // _FASTER, _AT_ONCE_NS)
    again: IntArray = rows[in_no_time & at_once]
    return again


def _shared(names: IntArray) -> IntArray:
    """The rows whose name another one has too, in order."""
    order = np.argsort(names, kind="stable")
    same = np.flatnonzero(names[order[1:]] == names[order[:-1]])
    shared = np.zeros(len(names), dtype=np.bool_)
    shared[order[same]] = shared[order[same + 1]] = True
    return np.flatnonzero(shared & (names != NO_NAME))


def _quick_first_ns(columns: RequestColumns, names: IntArray) -> int:
    """Return the 10th percentile latency of first-time responses; a tenth of them may be copies themselves."""
    told, first = np.unique(names, return_index=True)
    first = first[told != NO_NAME]
    took = np.sort(columns.end_ns[first] - columns.sent_ns[first])
    return int(took[(len(took) + 4) // 10])


def _spoke_ns(columns: RequestColumns, rows: IntArray) -> IntArray:
    """Return the time from first to last output of these rows; each has output."""
    return columns.chunk_ns[columns.chunk_start[rows + 1] - 1] - columns.chunk_ns[columns.chunk_start[rows]]


_NS = 1_000_000_000
_PLAIN = ModelRequest("chat", {}, None)
_TWICE = "the same answer, byte for byte, under the same id as that of an earlier request, in no time"


def read_class(part: ClassShare, spool: Path, target: Target) -> ClassResult:
    """Decode the spool of one class; of an interrupted one what had ended, of a missing one nothing."""
    if not spool.exists():
        return ClassResult(part.name, no_rows(), 0.0)
    find, secret = part.find(), target.secrets
    builder, names = ColumnBuilder(), array("q")
    first_ns, last_ns, tail_ns = None, 0, None
    cancelled_at_ns, unstreamed = dict[int, int](), dict[int, int]()
    for number, intended_ns, epoch_ns, response, phase in read_spool(spool):
        request = find(number)
        leaves = response.left or (request is not None and request.leave is not None)
        ask = _PLAIN if request is None else request.ask
        record, name = decode_named(
            number, intended_ns, epoch_ns, response, ask=ask, leaves=leaves, secret=secret, target=target
        )
        whole = record.error is None and record.end_ns is not None
        ended_ns = record.end_ns if whole and record.end_ns is not None else response.over_ns - epoch_ns
        if part.background and response.left and (request is None or request.leave is None):
            cancelled_at_ns[number] = response.over_ns - epoch_ns
            if not ask.stream and ask.output_tokens is not None:
                unstreamed[number] = ask.output_tokens
        if phase is Phase.TAIL:
            tail_ns = intended_ns if tail_ns is None else min(tail_ns, intended_ns)
        if phase is Phase.MEASURED and (part.holds_slots or not leaves):
            last_ns = max(last_ns, ended_ns, intended_ns)  # what was given up was due all the same
            first_ns = intended_ns if first_ns is None else min(first_ns, intended_ns)
        builder.add(record if phase is Phase.MEASURED else replace(record, ramp=True))
        answered = whole and not leaves and len(record.chunk_ns) > 0
        names.append(hash(name) or 1 if answered and name is not None else NO_NAME)
    columns = _without_repeats(builder.columns(), np.frombuffer(names, dtype=np.int64), spool)
    unanswered = unanswered_requests(columns, cancelled_at_ns, unstreamed)
    last_ns = max([last_ns, *(cancelled_at_ns[number] for number in unanswered)])
    parts = split_by_use(with_timeouts(columns, unanswered))
    if part.holds_slots and tail_ns is not None:
        last_ns = tail_ns
    window_s = max(0, last_ns - (first_ns or 0)) / _NS
    return ClassResult(part.name, parts.measured, window_s, parts.left, parts.ramp, part.holds_slots)


def _without_repeats(columns: RequestColumns, names: IntArray, spool: Path) -> RequestColumns:
    """The same, where an answer that came twice is a failure; rows and names are in the order of the spool."""

    def bodies(rows: IntArray) -> IntArray:
        wanted = set(rows.tolist())
        answers = (spooled.response for row, spooled in enumerate(read_spool(spool)) if row in wanted)
        # of the payload: the head (a date) and the chunks may differ between two copies
        digests = [hash(b"".join([data for _, data in response.body])) for response in answers]
        return np.array(digests, dtype=np.int64)

    again = duplicate_responses(columns, names, bodies)
    if not len(again):
        return columns
    repeated = np.zeros(len(names), dtype=np.bool_)
    repeated[again] = True
    error, detail = columns.error.but(repeated, ErrorClass.PROTOCOL), columns.error_detail.but(repeated, _TWICE)
    return replace(columns, error=error, error_detail=detail)


def merged(results: Sequence[StageResult]) -> StageResult:
    """The results of workers that shared one start, as if one had done it all; rows in order of their index.

    Read delay and the busiest share are those of the worker that was worst off.
    """
    down_after_s = min((result.down_after_s for result in results if result.down_after_s is not None), default=None)
    if not results:
        return StageResult.of(no_rows(), 0.0, _use_of([]))
    classes = tuple(_class(group) for group in zip(*(result.classes for result in results), strict=True))
    return StageResult(classes, _use_of([result.client for result in results]), down_after_s)


def _class(shares: Sequence[ClassResult]) -> ClassResult:
    """The shares of one class, which stands in the same place with every worker."""
    return ClassResult(
        shares[0].name,
        concatenate_columns([share.requests for share in shares]),
        _window_s([share for share in shares if len(share.requests)]),
        concatenate_columns([share.left for share in shares]),
        concatenate_columns([share.ramp for share in shares]),
        any(share.in_steady_state for share in shares),
    )


def _window_s(shares: Sequence[ClassResult]) -> float:
    """The window of all shares; 0 without one.

    Each worker of a closed loop is in steady state for a time of its own, and the rate is the sum of theirs: the window
    is that in which all requests began at this rate.
    """
    if not shares:
        return 0.0
    if all(share.in_steady_state and share.window_s > 0 for share in shares):
        return sum(len(share.requests) for share in shares) / sum(len(s.requests) / s.window_s for s in shares)
    first_s = [int(share.requests.intended_ns.min()) / _NS for share in shares]
    return max(first + share.window_s for first, share in zip(first_s, shares, strict=True)) - min(first_s)


def _use_of(uses: Sequence[ClientUse]) -> ClientUse:
    by = {use.read_delay_by for use in uses if use.read_delay_by is not None}
    return ClientUse(
        cpu_s=sum(use.cpu_s for use in uses),
        wall_s=max((use.wall_s for use in uses), default=0.0),
        workers=len(uses),
        busiest_share=_worst(use.busiest_share for use in uses),
        read_delay_p50_s=_worst(use.read_delay_p50_s for use in uses),
        read_delay_p99_s=_worst(use.read_delay_p99_s for use in uses),
        read_delay_max_s=_worst(use.read_delay_max_s for use in uses),
        read_delay_by=None if not by else "kernel" if by == {"kernel"} else "canary",
        unasked=sum(use.unasked for use in uses),
        closed_early=sum(use.closed_early for use in uses),
        faults=tuple(chain.from_iterable(use.faults for use in uses)),
    )


def _worst(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


_UNKNOWN = ClientUse(cpu_s=0.0, wall_s=0.0, workers=1)


def read_result(shard: Shard, spool: Path, use: ClientUse, down_after_s: float | None = None) -> StageResult:
    """Decode the spools of a shard; of an interrupted one what had ended by then."""
    pairs = zip(shard.parts, shard.spools(spool), strict=True)
    return StageResult(tuple(read_class(part, place, shard.target) for part, place in pairs), use, down_after_s)


def salvage(shard: Shard) -> StageResult:
    """Decode what is left of a shard's spools; nothing when it had no answers."""
    if shard.spool is None:
        return StageResult(tuple(ClassResult(part.name, no_rows(), 0.0) for part in shard.parts), _UNKNOWN)
    return read_result(shard, shard.spool, _UNKNOWN)


def remove_spools(shard: Shard) -> None:
    """Remove what is kept of a shard's answers: its result is where it belongs, or nobody wants it."""
    for spool in () if shard.spool is None else shard.spools(shard.spool):
        spool.unlink(missing_ok=True)


def lost_worker(shard: Shard) -> StageResult:
    """Return what a lost worker had answered, and the rest of its share as never sent.

    A request in flight with the worker counts as never sent too. In a closed loop for a time, and in the background,
    it is unknown what it would have sent.
    """
    fault = f"{shard.name} was lost"
    left = salvage(shard)
    classes = tuple(
        read
        if part.requests.endless
        else replace(read, requests=concatenate_columns([read.requests, _unsent(part, read, fault)]))
        for part, read in zip(shard.parts, left.classes, strict=True)
    )
    return replace(left, classes=classes, client=replace(_UNKNOWN, faults=(fault,)))


def _unsent(part: ClassShare, read: ClassResult, fault: str) -> RequestColumns:
    answered = {*read.requests.index.tolist(), *read.left.index.tolist(), *read.ramp.index.tolist()}
    builder = ColumnBuilder()
    for request in part.requests:
        if request.index not in answered:
            builder.add(
                RequestRecord(
                    index=request.index,
                    intended_ns=request.offset_ns or 0,
                    sent_ns=None,
                    chunk_ns=(),
                    end_ns=None,
                    input_tokens=None,
                    output_tokens=None,
                    token_source=None,
                    finish_reason=None,
                    http_status=None,
                    error=ErrorClass.CLIENT,
                    error_detail=f"{fault} before this request was over",
                )
            )
    return builder.columns()
