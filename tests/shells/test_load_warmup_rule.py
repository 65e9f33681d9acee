"""When a warm-up ends, by the records of its rounds alone, and what service time it learns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest

from benchgate.load.results import ClassResult, StageResult
from benchgate.load.warmup import (
    MOST_ROUNDS,
    WarmedUp,
    WarmupClass,
    mean_service_s,
    ramp_service_s,
    ttft_falls,
    warm_up,
)
from benchgate.model.records import RequestColumns
from benchgate.model.run import ClientUse
from tests.fakes.blocks import record

CLOSED = WarmupClass("", 12, None)


def rows(*ttft_s: float | None) -> RequestColumns:
    """Requests in order, with these times to their first token; None failed."""
    return RequestColumns.pack([record(index, one) for index, one in enumerate(ttft_s)])


def result(**classes: RequestColumns) -> StageResult:
    client = ClientUse(cpu_s=0.0, wall_s=1.0, workers=1)
    return StageResult(tuple(ClassResult(name, found, 1.0) for name, found in classes.items()), client)


class Server:
    """Answers each round by a function of its number and size, and remembers what it was asked."""

    def __init__(self, answer: Callable[[int, int], RequestColumns]) -> None:
        self.answer = answer
        self.sizes: list[int] = []
        self.told: list[Mapping[str, float]] = []

    def __call__(self, number: int, sizes: Mapping[str, int], service_s: Mapping[str, float]) -> StageResult:
        self.sizes.append(sizes[""])
        self.told.append(dict(service_s))
        return result(**{"": self.answer(number, sizes[""])})


@pytest.mark.parametrize(
    ("ttft_s", "falls"),
    [
        ([0.1] * 12, False),  # flat
        ([0.9] * 4 + [0.5] * 4 + [0.1] * 4, True),
        ([0.9] * 4 + [0.1] * 8, False),  # cold at first, and warm for long
        ([0.1] * 4 + [0.2] * 4 + [0.3] * 4, False),  # it rises
        ([0.9] * 4 + [0.1] * 4 + [0.0951] * 4, False),  # above 95 % of the third before
        ([0.9] * 4 + [0.1] * 4 + [0.0949] * 4, True),  # below
        ([0.1] * 4 + [0.1, 0.1, 0.1, 9.0] + [0.1] * 4, False),  # one outlier is no fall
        ([None] * 8 + [0.1] * 4, True),  # it begins to answer
        ([0.9] * 6 + [0.1] * 6, True),  # two waves through six slots
        ([0.9] * 5 + [0.1] * 7, False),  # of which the first one ended before the middle third did
        ([0.1] * 4 + [None] * 4 + [None] * 4, False),
        ([0.1] * 8 + [None] * 4, False),
        ([0.1, 0.1], True),  # too few to tell
        ([], True),
    ],
)
def test_ttft_falls_while_the_upper_quartile_of_the_last_third_is_below_that_of_the_third_before(
    ttft_s: Sequence[float | None], falls: bool
) -> None:
    assert ttft_falls([rows(*ttft_s)]) is falls
    assert ttft_falls([rows(*ttft_s[:5]), rows(*ttft_s[5:])]) is falls  # however many rounds they came in


def test_requests_are_compared_in_the_order_in_which_they_were_sent() -> None:
    found = rows(*[0.9] * 4, *[0.5] * 4, *[0.1] * 4)
    assert ttft_falls([found])
    found.sent_ns[:] = np.arange(12)[::-1]  # the first of the plan was sent last
    assert not ttft_falls([found])


def test_a_flat_server_is_warm_after_one_round() -> None:
    server = Server(lambda number, size: rows(*[0.1] * size))
    warmed = warm_up([CLOSED], server)
    assert (warmed.requests, warmed.rounds, warmed.settled, warmed.note) == (12, 1, True, None)
    assert server.sizes == [12]


class Learning:
    """The TTFT of one request after the other: each takes nine tenths of the one before, down to a least."""

    def __init__(self, least_s: float) -> None:
        self.least_s, self.now_s = least_s, 1.0

    def __call__(self, number: int, size: int) -> RequestColumns:
        return rows(*[self.next() for _ in range(size)])

    def next(self) -> float:
        self.now_s = max(self.least_s, self.now_s * 0.9)
        return self.now_s


def test_a_server_that_gets_faster_is_asked_until_it_does_not() -> None:
    server = Server(Learning(least_s=0.2))  # after 16 requests
    warmed = warm_up([CLOSED], server)
    assert (warmed.rounds, warmed.settled, warmed.note) == (3, True, None)
    assert server.sizes == [12] * 3


def test_a_server_that_never_settles_is_asked_five_rounds_and_the_note_says_so() -> None:
    warmed = warm_up([CLOSED], Server(Learning(least_s=0.0)))
    assert (warmed.rounds, warmed.requests, warmed.settled) == (MOST_ROUNDS, MOST_ROUNDS * 12, False)
    assert warmed.note == "TTFT still fell after 5 rounds (60 requests); the measurement begins"


def test_a_dead_server_is_asked_one_round() -> None:
    server = Server(lambda number, size: rows(*[None] * size))
    warmed = warm_up([CLOSED], server)
    assert (warmed.rounds, warmed.answered, warmed.service_s) == (1, False, {})
    assert warmed.note == "no request of the last round succeeded (12 sent)"


def test_a_server_that_dies_in_the_warm_up_is_not_asked_again() -> None:
    server = Server(lambda number, size: rows(*([None] * size if number else [0.1 * 0.9**i for i in range(size)])))
    warmed = warm_up([CLOSED], server)
    assert (warmed.rounds, warmed.answered) == (2, False)
    assert warmed.service_s[""] > 0  # of the round in which it was there


def test_a_number_of_requests_is_sent_once_whatever_the_ttft_does() -> None:
    server = Server(lambda number, size: rows(*[0.9 * 0.5**i for i in range(size)]))
    warmed = warm_up([CLOSED], server, most_rounds=1)
    assert (warmed.rounds, warmed.requests, warmed.settled, warmed.note) == (1, 12, True, None)


def test_an_open_loop_sends_as_many_as_arrive_in_two_service_times() -> None:
    server = Server(lambda number, size: rows(*[0.1] * size))
    service_s = mean_service_s(rows(0.1))
    assert service_s is not None
    rate_rps = 99.9 / service_s
    warmed = warm_up([WarmupClass("", 8, rate_rps)], server)
    assert server.sizes == [8, 200]
    assert (warmed.requests, warmed.settled) == (208, True)
    assert server.told == [{}, {"": pytest.approx(service_s)}]
    slow = Server(lambda number, size: rows(*[0.1] * size))
    assert warm_up([WarmupClass("", 8, 0.5 / service_s)], slow).rounds == 1  # eight are enough


def test_every_class_but_those_in_the_background_must_be_warm() -> None:
    batch, beside = Learning(least_s=0.2), Learning(least_s=0.0)

    def send(number: int, sizes: Mapping[str, int], service_s: Mapping[str, float]) -> StageResult:
        return result(people=rows(*[0.1] * 9), batch=batch(number, 9), beside=beside(number, 9))

    of_two = [WarmupClass("people", 9, None), WarmupClass("batch", 9, None)]
    both = warm_up(of_two, send)
    assert (both.rounds, both.settled) == (4, True)
    assert both.requests == 4 * 27
    assert set(both.service_s) == {"people", "batch", "beside"}
    assert warm_up(of_two[:1], send).rounds == 1


def test_noise_alone_does_not_keep_a_warm_up_going_to_its_bound() -> None:
    """TTFT with a spread of 30 % about one median: most warm-ups end after a round or two."""
    random = np.random.default_rng(5)
    found: list[WarmedUp] = []
    for _ in range(200):
        server = Server(lambda number, size: rows(*random.lognormal(-2, 0.3, size)))
        found.append(warm_up([WarmupClass("", 32, None)], server))
    assert np.mean([one.rounds for one in found]) < 2.5
    assert np.mean([not one.settled for one in found]) < 0.1


def test_service_time_is_the_mean_of_send_to_end_of_successes() -> None:
    found = rows(0.1, 0.3, None)
    ok = found.end_ns[:2] - found.sent_ns[:2]
    assert mean_service_s(found) == pytest.approx(float(ok.mean()) * 1e-9)
    assert mean_service_s(rows(None)) is None
    assert mean_service_s(rows()) is None


def test_ramps_of_an_overloaded_stage_stop_growing() -> None:
    """200 requests/s at a server that answers 90: each second of the ramp makes later requests wait another second."""
    unloaded_s, rate_rps, served_rps, ramp_service_times = 0.1, 200.0, 90.0, 5

    def mean_s(ramp_s: float) -> float:
        return unloaded_s + (ramp_s + 1.0) * (rate_rps - served_rps) / served_rps

    by_latest_s = bounded_s = least_s = unloaded_s
    for _ in range(40):
        by_latest_s = mean_s(ramp_service_times * by_latest_s)
        latest_s = mean_s(ramp_service_times * bounded_s)
        least_s = min(least_s, latest_s)
        bounded_s = ramp_service_s(latest_s, least_s)
    assert by_latest_s > 1e6
    assert bounded_s == pytest.approx(2 * unloaded_s)


def test_the_next_ramp_follows_the_latest_mean_of_a_stage_that_keeps_up() -> None:
    assert ramp_service_s(1.2, 1.0) == 1.2
    assert ramp_service_s(0.9, 0.9) == 0.9
