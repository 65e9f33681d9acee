"""The knee of ideal, noisy and bent curves; and the curves that have none."""

from __future__ import annotations

import numpy as np
import pytest

from benchgate.stats.knee import Curve, Knee, NoKnee, ServerKnee, find_knee, find_server_knee

LEVELS = (1, 2, 4, 8, 16, 32)


def slots_curve(slots: int, levels: tuple[int, ...] = LEVELS) -> list[float]:
    """A server that serves so many at once, each at 100 tokens/s, and lets the others wait."""
    return [100.0 * min(level, slots) for level in levels]


def waits(slots: int, levels: tuple[int, ...] = LEVELS) -> list[float]:
    return [max(1.0, level / slots) for level in levels]


@pytest.mark.parametrize("slots", [2, 4, 8])
def test_knee_of_an_ideal_server_is_its_number_of_slots(slots: int) -> None:
    knee = find_knee(LEVELS, slots_curve(slots), waits(slots))
    assert isinstance(knee, Knee)
    assert knee.level == slots
    assert (knee.slope_before, knee.slope_after) == pytest.approx((1, 0), abs=1e-9)
    assert knee.gain == pytest.approx(1)


@pytest.mark.parametrize("slots", [2, 4, 8])
def test_knee_stays_where_it_is_under_five_per_cent_of_noise(slots: int) -> None:
    generator = np.random.default_rng(slots)
    noisy = [
        find_knee(LEVELS, [value * np.exp(0.05 * generator.standard_normal()) for value in slots_curve(slots)])
        for _ in range(200)
    ]
    found = [knee.level for knee in noisy if isinstance(knee, Knee)]
    assert len(found) >= 195
    assert np.mean(np.array(found) == slots) >= 0.95


def test_knee_of_a_batch_that_slows_as_it_fills_is_where_it_is_full() -> None:
    knee = find_knee(LEVELS, [100, 175, 280, 390, 392, 388])
    assert isinstance(knee, Knee)
    assert knee.level == 8


def test_throughput_that_falls_beyond_the_knee_is_a_knee_too() -> None:
    knee = find_knee(LEVELS, [100, 200, 400, 400, 380, 350])
    assert isinstance(knee, Knee)
    assert (knee.level, knee.slope_after < 0) == (4, True)


@pytest.mark.parametrize(
    ("curve", "says"),
    [
        ([100, 200, 400, 800, 1600, 3200], "evenly"),
        ([100, 100, 100, 100, 100, 100], "never grows"),
        ([100, 150, 225, 340, 510, 760], "evenly|no bend"),
        ([100, 110, 90, 105, 95, 100], "no bend|noise"),
        ([100, 200, 400, 800, 1200, 1700], "no bend"),  # still growing, more slowly
    ],
)
def test_curve_without_a_knee_says_why(curve: list[float], says: str) -> None:
    found = find_knee(LEVELS, curve)
    assert isinstance(found, NoKnee)
    assert any(part in found.reason for part in says.split("|")), found.reason


def test_levels_that_end_at_the_slots_show_no_knee() -> None:
    assert isinstance(find_knee((1, 2, 4, 8, 16), slots_curve(16, (1, 2, 4, 8, 16))), NoKnee)


def test_flat_throughput_with_flat_latency_is_no_knee() -> None:
    found = find_knee(LEVELS, slots_curve(4), [1.0] * 6)
    assert isinstance(found, NoKnee)
    assert "latency does not grow" in found.reason


def test_four_levels_are_too_few() -> None:
    found = find_knee((1, 2, 4, 8), [100, 200, 200, 200])
    assert isinstance(found, NoKnee)
    assert "at least 5" in found.reason


def test_order_of_the_levels_does_not_matter() -> None:
    backwards = find_knee(LEVELS[::-1], slots_curve(4)[::-1], waits(4)[::-1])
    assert backwards == find_knee(LEVELS, slots_curve(4), waits(4))


@pytest.mark.parametrize(
    ("levels", "curve"), [(LEVELS, [0.0, 1, 2, 3, 4, 5]), ((1, 1, 2, 3, 4), [1.0] * 5), (LEVELS, [1.0] * 5)]
)
def test_values_that_are_no_curve_are_refused(levels: tuple[int, ...], curve: list[float]) -> None:
    with pytest.raises(ValueError, match=r"finite and above 0|repeat|one of each"):
        find_knee(levels, curve)


def held(slots: int) -> list[float]:
    """Requests decoding at once: as many as there are, until the slots are taken."""
    return [0.95 * min(level, slots) for level in LEVELS]


@pytest.mark.parametrize("slots", [2, 4, 8])
@pytest.mark.parametrize("tokens", [[3494, 3955, 3800, 3261, 2825, 3314], [2940, 3660, 3510, 3240, 2165, 1900]])
def test_server_whose_batch_costs_what_it_brings_has_its_knee_where_its_slots_are_taken(
    slots: int, tokens: list[float]
) -> None:
    """The tokens per second are those of a compute-bound engine, and show nothing."""
    knee = find_server_knee(LEVELS, tokens, held(slots), waits(slots))
    assert isinstance(knee, ServerKnee)
    assert (knee.level, knee.curve) == (slots, Curve.DECODING)


def test_machine_that_is_spent_before_its_slots_are_has_its_knee_there() -> None:
    knee = find_server_knee(LEVELS, slots_curve(4), held(16), waits(4))
    assert isinstance(knee, ServerKnee)
    assert (knee.level, knee.curve) == (4, Curve.TOKENS)


@pytest.mark.parametrize("decoding", [None, held(64)])
def test_tokens_per_second_are_what_is_left_where_decoding_shows_no_bend(decoding: list[float] | None) -> None:
    knee = find_server_knee(LEVELS, slots_curve(8), decoding, waits(8))
    assert isinstance(knee, ServerKnee)
    assert (knee.level, knee.curve) == (8, Curve.TOKENS)


def test_server_that_neither_curve_bends_for_has_no_knee() -> None:
    found = find_server_knee(LEVELS, slots_curve(64), held(64), waits(64))
    assert isinstance(found, NoKnee)
    assert "evenly" in found.reason
