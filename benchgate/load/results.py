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
from typing import NamedTuple, Self

import numpy as np

from benchgate.load.decode.record import decode, failure_and_content
from benchgate.load.http.exchange import Failure, Response
from benchgate.load.shards import ClassShare, Shard
from benchgate.load.spool import Phase, read_spool
from benchgate.model.columns import ColumnBuilder, concatenate_columns, split_by_use, with_region
from benchgate.model.records import ABSENT, ErrorClass, IntArray, RequestColumns, RequestRecord, VerifiedAnswer
from benchgate.model.request import ModelRequest
from benchgate.model.request_metrics import succeeded
from benchgate.model.run import ClientUse, merged_addresses
from benchgate.plan.model import VerifiedItem
from benchgate.targets.dialect import Target

_NS = 1_000_000_000


def no_rows() -> RequestColumns:
    """Columns of no request."""
    return RequestColumns.pack([])


@dataclass(frozen=True, slots=True, eq=False)
class ClassResult:
    """A class of traffic. `requests` are the measured ones, `left` those broken off on purpose.

    `ramp` are those that were sent to bring the stage into steady state and to hold it there, and the eval items.
    `window_s` runs from the first intended send to the last end or intended send of `requests`. Where
    `in_steady_state`, for a closed loop that was held full, it is the time in which the measured requests began: up to
    the first intended send after them.
    """

    name: str  # "" when the stage has no other
    requests: RequestColumns
    window_s: float
    left: RequestColumns = field(default_factory=no_rows)
    ramp: RequestColumns = field(default_factory=no_rows)
    in_steady_state: bool = False
    answers: tuple[VerifiedAnswer, ...] = ()  # to the eval items, which are in `ramp`

    @property
    def recorded(self) -> int:
        """Return the number of requests with a record."""
        return len(self.requests) + len(self.left) + len(self.ramp)

    @property
    def measured_until_s(self) -> float:
        """Return the end of its window after the start of the stage: a window begins with the first request."""
        first_ns = int(self.requests.intended_ns.min()) if len(self.requests) else 0
        return first_ns / _NS + self.window_s


@dataclass(frozen=True, slots=True, eq=False)
class StageResult:
    """A stage, class by class. `region` is that of a single share of a labelled shard.

    `down_after_s`: how long after the start the target stopped accepting connections, when it was given up for that.
    What was due later was not even tried, and in a closed loop for a time is in no record.
    """

    classes: tuple[ClassResult, ...]
    client: ClientUse
    down_after_s: float | None = None
    region: str | None = None

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

    @property
    def last_answer_s(self) -> float:
        """Return the time of the last answer after the start of the stage, ramps included."""
        ended_ns = [part.end_ns.max() for one in self.classes for part in (one.requests, one.ramp) if len(part)]
        return max([*(int(end_ns) / _NS for end_ns in ended_ns), *(one.measured_until_s for one in self.classes)])


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
    silence_ns = 0  # the longest time without output from the send to the end of any of them
    for row in whole:
        chunks = columns.chunk_ns[columns.chunk_start[row] : columns.chunk_start[row + 1]].tolist()
        silence_ns = max(silence_ns, *np.diff([columns.sent_ns[row], *chunks, columns.end_ns[row]]).tolist())
    bound_ns = max(_LEAST_NS, _PATIENCE * silence_ns)
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
        begin, end = columns.chunk_start[row], columns.chunk_start[row + 1]
        if over_ns - int(columns.chunk_ns[end - 1] if end > begin else columns.sent_ns[row]) > bound_ns * times_as_long:
            found.add(number)
    return frozenset(found)


NO_NAME = 0
_FASTER = 4  # times
_AT_ONCE_NS = 5_000_000  # all of an answer: a copy comes in one piece, and so does what is made faster than this


def duplicate_responses(columns: RequestColumns, names: IntArray, bodies: Callable[[IntArray], IntArray]) -> IntArray:
    """Return the rows of answers that had come before, byte for byte and under the same id, and came in no time now.

    From its sending to its end that is much less than the one that it repeats, and than nearly any answer that was the
    first under its id; from first output to last it is much less than the one that it repeats. So neither an answer
    that did not have to wait nor a short one of a server that is now slow and now quick is a copy.
    `names` tells the ids of all rows apart; `NO_NAME` is a row without one, and one that failed. `bodies` gives for
    some rows what tells their bytes apart. It is called once, and only when an id came again in much less time, which
    it seldom does: to read so much costs time.
    """
    order = np.argsort(names, kind="stable")
    same = np.flatnonzero(names[order[1:]] == names[order[:-1]])
    shared = np.zeros(len(names), dtype=np.bool_)
    shared[order[same]] = shared[order[same + 1]] = True
    rows = np.flatnonzero(shared & (names != NO_NAME))
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
    spoke = columns.chunk_ns[columns.chunk_start[rows + 1] - 1] - columns.chunk_ns[columns.chunk_start[rows]]
    # The 10th percentile latency of first-time responses; a tenth of them may be copies themselves.
    ids, firsts = np.unique(names, return_index=True)
    firsts = firsts[ids != NO_NAME]
    first_took = np.sort(columns.end_ns[firsts] - columns.sent_ns[firsts])
    in_no_time = took * _FASTER < np.minimum(took[first], int(first_took[(len(first_took) + 4) // 10]))
    at_once = spoke <= np.maximum(spoke[first] // _FASTER, _AT_ONCE_NS)
    again: IntArray = rows[in_no_time & at_once]
    return again


_PLAIN = ModelRequest("chat", {}, None)
_TWICE = "the same answer, byte for byte, under the same id as that of an earlier request, in no time"


def read_class(part: ClassShare, spool: Path, target: Target) -> ClassResult:
    """Decode the spool of one class; of an interrupted one what had ended, of a missing one nothing."""
    if not spool.exists():
        return ClassResult(part.name, no_rows(), 0.0)

    def body_hashes(rows: IntArray) -> IntArray:
        chosen = set(rows.tolist())
        answers = (entry.response for row, entry in enumerate(read_spool(spool)) if row in chosen)
        # of the payload: the head (a date) and the chunks may differ between two copies
        return np.array([hash(b"".join([data for _, data in one.body])) for one in answers], dtype=np.int64)

    find, secret = part.find(), target.secrets
    builder, names = ColumnBuilder(), array("q")
    first_ns, last_ns, tail_ns = None, 0, None
    cancelled_at_ns, unstreamed = dict[int, int](), dict[int, int]()
    answers = dict[int, VerifiedAnswer]()
    for number, intended_ns, epoch_ns, response, phase in read_spool(spool):
        request = find(number)
        leaves = response.left or (request is not None and request.leave is not None)
        ask = _PLAIN if request is None else request.ask
        record, name = decode(
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
        item = None if request is None else request.item
        if item is not None:
            text = failure_and_content(response, ask, target)[1].text
            answers[number] = _verified_answer(item, record, text)
        if phase is Phase.MEASURED and (part.holds_slots or not leaves) and item is None:
            last_ns = max(last_ns, ended_ns, intended_ns)  # what was given up was due all the same
            first_ns = intended_ns if first_ns is None else min(first_ns, intended_ns)
        if request is not None and request.turn is not None:
            record = replace(record, session=number - request.turn.turn)
        measured = phase is Phase.MEASURED and item is None
        builder.add(record if measured else replace(record, ramp=True))
        answered = whole and not leaves and len(record.chunk_ns) > 0
        names.append(hash(name) or 1 if answered and name is not None else NO_NAME)
    columns = builder.columns()
    again = duplicate_responses(columns, np.frombuffer(names, dtype=np.int64), body_hashes)
    if len(again):  # an answer that came twice is a failure
        repeated = np.zeros(len(names), dtype=np.bool_)
        repeated[again] = True
        error, detail = columns.error.but(repeated, ErrorClass.PROTOCOL), columns.error_detail.but(repeated, _TWICE)
        columns = replace(columns, error=error, error_detail=detail)
        for number in columns.index[again].tolist():
            if number in answers:
                answers[number] = replace(answers[number], answer=None, error=_TWICE)
    unanswered = unanswered_requests(columns, cancelled_at_ns, unstreamed)
    last_ns = max([last_ns, *(cancelled_at_ns[number] for number in unanswered)])
    if unanswered:  # time-outs instead of cancelled
        are = np.isin(columns.index, sorted(unanswered))
        error, detail = columns.error.but(are, ErrorClass.TIMEOUT), columns.error_detail.but(are, _HUNG)
        columns = replace(columns, left=np.where(are, np.int8(0), columns.left), error=error, error_detail=detail)
    parts = split_by_use(columns)
    if part.holds_slots and first_ns is not None:  # the last request of a single slot is over with its pause
        last_ns = last_ns + int(part.level.think_s * _NS) if tail_ns is None else tail_ns
    window_s = max(0, last_ns - (first_ns or 0)) / _NS
    verified = tuple(answers[number] for number in sorted(answers))
    return ClassResult(part.name, parts.measured, window_s, parts.left, parts.ramp, part.holds_slots, verified)


def _verified_answer(item: VerifiedItem, record: RequestRecord, text: str) -> VerifiedAnswer:
    if record.error is not None or record.end_ns is None or record.sent_ns is None:
        why = f"{record.error or 'unanswered'}: {record.error_detail or 'no whole answer'}"
        return VerifiedAnswer(item.task, item.item_id, error=why)
    return VerifiedAnswer(
        item.task,
        item.item_id,
        text,
        record.finish_reason,
        record.output_tokens,
        record.input_tokens,
        record.end_ns - record.sent_ns,
    )


def merged(results: Sequence[StageResult]) -> StageResult:
    """Merge the results of workers as if one had done it all; read delay and busiest share are the worst worker's."""
    down_after_s = min((result.down_after_s for result in results if result.down_after_s is not None), default=None)
    if not results:
        return StageResult.of(no_rows(), 0.0, _UNKNOWN)  # interrupted before any worker had a share
    classes = tuple(
        ClassResult(
            shares[0].name,
            concatenate_columns([share.requests for share in shares]),
            merged_window_s([ShareWindow.of(share) for share in shares if len(share.requests)]),
            concatenate_columns([share.left for share in shares]),
            concatenate_columns([share.ramp for share in shares]),
            all(share.in_steady_state for share in shares if len(share.requests)),
            tuple(chain.from_iterable(share.answers for share in shares)),
        )
        for shares in zip(*(result.classes for result in results), strict=True)
    )
    return StageResult(classes, merged_use([result.client for result in results]), down_after_s)


class ShareWindow(NamedTuple):
    """Window of a share of a class that has requests."""

    succeeded: int
    first_ns: int  # first intended send
    window_s: float
    in_steady_state: bool

    @classmethod
    def of(cls, share: ClassResult) -> ShareWindow:
        """Return the window of a share with at least one request."""
        ok = int(np.count_nonzero(succeeded(share.requests)))
        return cls(ok, int(share.requests.intended_ns.min()), share.window_s, share.in_steady_state)


def merged_window_s(shares: Sequence[ShareWindow]) -> float:
    """Return the window of all shares; 0 without one.

    The rates of closed loops in steady state add up: theirs is the window in which all that succeeded began at the
    summed rate. Requests that failed, many at once or never sent, would shorten it.
    """
    if not shares:
        return 0.0
    ok = sum(share.succeeded for share in shares)
    if ok and all(share.in_steady_state and share.window_s > 0 for share in shares):
        return ok / sum(share.succeeded / share.window_s for share in shares)
    # In whole nanoseconds, so that the window does not depend on the number of shares.
    last_ns = max(share.first_ns + round(share.window_s * _NS) for share in shares)
    return (last_ns - min(share.first_ns for share in shares)) / _NS


def merged_use(uses: Sequence[ClientUse]) -> ClientUse:
    """Return the use of all workers, at least one: CPU time and counts add up, the worst share and delays count."""

    def worst(values: Iterable[float | None]) -> float | None:
        return max((value for value in values if value is not None), default=None)

    by = {use.read_delay_by for use in uses if use.read_delay_by is not None}
    return ClientUse(
        cpu_s=sum(use.cpu_s for use in uses),
        wall_s=max(use.wall_s for use in uses),
        workers=len(uses),
        by_cluster=any(use.by_cluster for use in uses),
        busiest_share=worst(use.busiest_share for use in uses),
        read_delay_p50_s=worst(use.read_delay_p50_s for use in uses),
        read_delay_p99_s=worst(use.read_delay_p99_s for use in uses),
        read_delay_max_s=worst(use.read_delay_max_s for use in uses),
        read_delay_by=None if not by else "kernel" if by == {"kernel"} else "canary",
        unasked=sum(use.unasked for use in uses),
        closed_early=sum(use.closed_early for use in uses),
        faults=tuple(chain.from_iterable(use.faults for use in uses)),
        start_uncertainty_s=worst(use.start_uncertainty_s for use in uses),
        clock_offset_s=worst(use.clock_offset_s for use in uses),
        addresses=merged_addresses(use.addresses for use in uses),
    )


_UNKNOWN = ClientUse(cpu_s=0.0, wall_s=0.0, workers=1)


def read_result(shard: Shard, spool: Path, use: ClientUse, down_after_s: float | None = None) -> StageResult:
    """Decode the spools of a shard; of an interrupted one what had ended by then."""
    pairs = zip(shard.parts, shard.spools(spool), strict=True)
    classes = (read_class(part, place, shard.target) for part, place in pairs)
    return StageResult(tuple(_in_region(one, shard.region) for one in classes), use, down_after_s)


def _in_region(read: ClassResult, region: str | None) -> ClassResult:
    if region is None:
        return read
    left, ramp = with_region(read.left, region), with_region(read.ramp, region)
    return replace(read, requests=with_region(read.requests, region), left=left, ramp=ramp)


def salvage(shard: Shard) -> StageResult:
    """Decode what is left of a shard's spools; nothing when it had no answers."""
    if shard.spool is None:
        return StageResult(tuple(ClassResult(part.name, no_rows(), 0.0) for part in shard.parts), _UNKNOWN)
    return read_result(shard, shard.spool, _UNKNOWN)


def remove_spools(shard: Shard) -> None:
    """Remove what is kept of a shard's answers: its result is where it belongs, or nobody wants it."""
    for spool in () if shard.spool is None else shard.spools(shard.spool):
        spool.unlink(missing_ok=True)


def lost_worker(shard: Shard, fault: str | None = None) -> StageResult:
    """Return what a lost worker had answered, and the rest of its share as never sent. `fault` says how it was lost.

    A request in flight with the worker counts as never sent too. In a closed loop for a time, and in the background,
    it is unknown what it would have sent. A closed loop that lost its worker did not keep all its slots busy.
    """
    fault = f"{shard.name} was lost" if fault is None else fault
    left = salvage(shard)
    classes = []
    for part, read in zip(shard.parts, left.classes, strict=True):
        read = replace(read, in_steady_state=False)
        if part.requests.endless:
            classes.append(read)
            continue
        answered = {*read.requests.index.tolist(), *read.left.index.tolist(), *read.ramp.index.tolist()}
        begun_ns = int(read.requests.intended_ns.min()) if len(read.requests) else 0  # a closed loop has no schedule
        unsent, answers = ColumnBuilder(), list(read.answers)
        for request in part.requests:
            if request.index not in answered:
                failure = Failure(ErrorClass.CLIENT, f"{fault} before this request was over")
                due_ns = begun_ns if request.offset_ns is None else part.lead_ns + request.offset_ns
                record, _ = decode(request.index, due_ns, 0, Response.unsent(failure))
                if request.turn is not None:
                    record = replace(record, session=request.index - request.turn.turn)
                if request.item is not None:
                    record = replace(record, ramp=True)
                    answers.append(_verified_answer(request.item, record, ""))
                unsent.add(record)
        parts = split_by_use(unsent.columns())
        requests, ramp = ([read.requests, parts.measured], [read.ramp, parts.ramp])
        whole = replace(
            read, requests=concatenate_columns(requests), ramp=concatenate_columns(ramp), answers=tuple(answers)
        )
        classes.append(_in_region(whole, shard.region))
    return replace(left, classes=tuple(classes), client=replace(_UNKNOWN, faults=(fault,)))
