"""What a level is shown to be: how often that is wrong, what it takes, and what is never said."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from benchgate.stats.capacity_search import LOOK_SHARES, Backlog, LevelStatus, LookCounts, evaluate_probe

STILL = Backlog(1, 1, 1.0, 1.0, residence_s=1.0)


def look(
    good: tuple[int, ...],
    scheduled: tuple[int, ...],
    *,
    backlog: tuple[int, int] | None = (1, 1),
    risen: float = 0.0,
    window_s: float = 60.0,
    used: tuple[float, ...] | None = None,
) -> LookCounts:
    """Latencies that do not vary unless said, of 1 s; None for a backlog: a closed loop."""
    means = used if used is not None else (0.5,) * len(good)
    squares = sum(n * mean**2 for n, mean in zip(scheduled, means, strict=True)) + 0.01 * sum(scheduled)
    in_flight = None if backlog is None else Backlog(*backlog, middle=10.0, last=10.0 + risen, residence_s=1.0)
    return LookCounts(good, scheduled, 0, means, squares, in_flight, window_s)


def test_clean_requests_pass_once_there_are_enough_of_them() -> None:
    # The first look has an eighth of 5 %, 0.625 %: 0.95**98 is 0.66 %, 0.95**99 is 0.62 %.
    assert evaluate_probe([look((49, 49), (49, 49))], 0.95, 0.05).standing is LevelStatus.OPEN
    assert evaluate_probe([look((50, 49), (50, 49))], 0.95, 0.05).standing is LevelStatus.PASS


def test_latencies_that_move_together_tell_as_little_as_few_requests() -> None:
    """Ten stretches of 100 with means 0.1 apart and a spread of 0.1 inside: as good as all requests of one moving."""
    moving = tuple(0.5 + 0.05 * (-1) ** number for number in range(10))
    still = evaluate_probe([look((100,) * 10, (100,) * 10)], 0.95, 0.05)
    moved = evaluate_probe([look((100,) * 10, (100,) * 10, used=moving)], 0.95, 0.05)
    assert (still.standing, moved.standing) == (LevelStatus.PASS, LevelStatus.OPEN)
    # Variance of a mean 0.05², of one request 0.05² + 0.1²; 100 * 0.0025 / 0.0125 * 10/9 = 22.2 requests count as one.
    assert moved.limits is not None
    assert moved.limits.lower == pytest.approx(0.00625 ** (22.2 / 1000), abs=1e-3)


def test_bursts_of_misses_widen_the_limits_and_even_misses_do_not() -> None:
    assert evaluate_probe([look((50, 50), (50, 50), backlog=None)], 0.95, 0.05).standing is LevelStatus.PASS
    bursty = evaluate_probe([look((100, 100, 100, 100, 78), (100,) * 5, backlog=None)], 0.95, 0.05)
    even = evaluate_probe([look((96, 96, 95, 96, 95), (100,) * 5, backlog=None)], 0.89, 0.05)
    assert bursty.limits is not None
    assert bursty.limits.lower < 0.7
    assert even.standing is LevelStatus.PASS


def test_no_success_never_passes_however_few_were_wanted() -> None:
    found = evaluate_probe([look((0, 0), (100, 100))], 0.05, 0.05)
    assert (found.standing, found.share) == (LevelStatus.FAIL, 0.0)
    assert evaluate_probe([look((0, 0), (100, 100))], 0.01, 0.05).standing is LevelStatus.OPEN


def test_nothing_scheduled_says_nothing() -> None:
    found = evaluate_probe([], 0.95, 0.05)
    assert (found.standing, found.share, found.limits) == (LevelStatus.OPEN, None, None)


def test_requests_that_were_cut_stay_in_the_denominator() -> None:
    whole = evaluate_probe([look((50, 50), (50, 50))], 0.95, 0.05)
    found = evaluate_probe([replace(look((50, 50), (50, 80)), cut=30)], 0.95, 0.05)
    assert whole.standing is LevelStatus.PASS
    assert (found.standing, found.cut, found.share) == (LevelStatus.OPEN, 30, 100 / 130)


def test_backlog_that_grows_fails_though_every_request_was_good() -> None:
    found = evaluate_probe([look((500, 500), (500, 500), backlog=(4, 150))], 0.95, 0.05)
    assert (found.standing, found.unstable, found.share) == (LevelStatus.FAIL, True, 1.0)


def test_backlog_that_wanders_is_not_called_growth() -> None:
    found = evaluate_probe([look((500, 500), (500, 500), backlog=(5, 25))], 0.95, 0.05)
    assert (found.standing, found.unstable) == (LevelStatus.PASS, False)


@pytest.mark.parametrize(
    ("window_s", "risen", "passes"), [(10.0, 16.0, True), (9.9, 0.0, False), (60.0, 17.0, False), (60.0, -17.0, True)]
)
def test_good_requests_pass_only_where_the_look_was_long_and_nothing_more_was_left(
    window_s: float, risen: float, *, passes: bool
) -> None:
    """Ten times the second that a request stays; a third of 1,000 requests, of which 5 % are 16.7."""
    found = evaluate_probe([look((500, 500), (500, 500), risen=risen, window_s=window_s)], 0.95, 0.05)
    assert (found.standing, found.unsteady) == ((LevelStatus.PASS, False) if passes else (LevelStatus.OPEN, True))


def test_level_that_was_looked_at_too_briefly_says_how_many_requests_would_be_long_enough() -> None:
    found = evaluate_probe([look((100, 100), (100, 100), window_s=4.0)] * len(LOOK_SHARES), 0.95, 0.05)
    assert (found.standing, found.unsteady, found.needs) == (LevelStatus.UNRESOLVED, True, 1500)
    leaning = evaluate_probe([look((100, 100), (100, 100), risen=9.0)] * len(LOOK_SHARES), 0.95, 0.05)
    assert (leaning.standing, leaning.unsteady, leaning.needs) == (LevelStatus.UNRESOLVED, True, None)


def test_level_that_misses_its_target_fails_however_brief_the_look() -> None:
    assert evaluate_probe([look((0, 0), (100, 100), window_s=0.1, risen=90.0)], 0.95, 0.05).standing is LevelStatus.FAIL


def test_last_look_leaves_unresolved_with_what_it_would_take() -> None:
    looks = [look((19, 18), (20, 20))] * len(LOOK_SHARES)
    assert evaluate_probe(looks[:-1], 0.9, 0.05).standing is LevelStatus.OPEN
    found = evaluate_probe(looks, 0.9, 0.05)
    assert found.standing is LevelStatus.UNRESOLVED
    assert found.needs is not None
    times = math.ceil((200 + found.needs) / 200)
    enough = [look((19 * times, 18 * times), (20 * times, 20 * times))] * len(LOOK_SHARES)
    assert evaluate_probe(enough, 0.9, 0.05).standing is LevelStatus.PASS


def test_share_on_the_target_itself_is_resolved_by_no_number() -> None:
    found = evaluate_probe([look((19, 19), (20, 20))] * len(LOOK_SHARES), 0.95, 0.05)
    assert (found.standing, found.needs) == (LevelStatus.UNRESOLVED, None)


@pytest.mark.parametrize("burst", [1, 10])
def test_level_exactly_at_its_target_is_called_wrongly_no_more_often_than_stated(burst: int) -> None:
    """Five looks at a true share of 90 %; requests apart, or ten at a time with one latency. Allowed: 10 % each way."""
    standings: Counter[LevelStatus] = Counter()
    for seed in range(300):
        generator = np.random.default_rng([burst, seed])
        taken: list[LookCounts] = []
        standing = LevelStatus.OPEN
        for share in LOOK_SHARES:
            used = np.repeat(generator.random(round(1600 * share) // burst) / 0.9, burst)
            parts = np.array_split(used, 5)
            good, scheduled = tuple(int((part <= 1).sum()) for part in parts), tuple(len(part) for part in parts)
            means = tuple(float(part.mean()) for part in parts)
            taken.append(LookCounts(good, scheduled, 0, means, float((used**2).sum()), STILL, window_s=60.0))
            standing = evaluate_probe(taken, 0.9, 0.1).standing
            if standing is not LevelStatus.OPEN:
                break
        standings[standing] += 1
    assert standings[LevelStatus.PASS] <= 30
    assert standings[LevelStatus.FAIL] <= 30
    assert standings[LevelStatus.UNRESOLVED] >= 240


@pytest.mark.parametrize(("target", "alpha"), [(0.0, 0.05), (1.0, 0.05), (0.95, 0.0), (0.95, 0.5)])
def test_target_or_alpha_out_of_range_is_refused(target: float, alpha: float) -> None:
    with pytest.raises(ValueError, match="expected"):
        evaluate_probe([], target, alpha)


def test_p_value_of_a_resolved_level_stays_within_the_alpha_that_was_spent() -> None:
    passed = evaluate_probe([look((50, 49), (50, 49))], 0.95, 0.05)
    failed = evaluate_probe([look((0, 0), (5, 5))], 0.5, 0.05)
    assert passed.p_value == pytest.approx(0.95**99 * 8)
    assert failed.p_value == pytest.approx(0.5**10 * 8)
    assert evaluate_probe([look((5, 5), (5, 5))], 0.95, 0.05).p_value is None
