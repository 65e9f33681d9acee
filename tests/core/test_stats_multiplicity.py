"""Holm's step-down over the checks that can block."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchgate.stats.sequential import holm

P_VALUES = st.lists(st.floats(0, 1), max_size=12)


def test_holm_multiplies_by_the_hypotheses_left() -> None:
    # R: p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm") gives 0.03 0.06 0.06 0.02
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx((0.03, 0.06, 0.06, 0.02))


def test_one_check_needs_no_correction() -> None:
    assert holm([0.04]) == (0.04,)
    assert holm([]) == ()


@given(P_VALUES)
def test_adjusted_values_keep_the_order_and_never_shrink(p_values: list[float]) -> None:
    adjusted = holm(p_values)
    assert all(before <= after <= 1 for before, after in zip(p_values, adjusted, strict=True))
    ordered = [after for _, after in sorted(zip(p_values, adjusted, strict=True))]
    assert ordered == sorted(ordered)


def test_any_false_block_among_ten_checks_stays_rare() -> None:
    generator = np.random.default_rng(9)
    wrong = [min(holm(list(generator.uniform(size=10)))) <= 0.05 for _ in range(4000)]
    assert np.mean(wrong) == pytest.approx(0.05, abs=0.012)


@pytest.mark.parametrize("bad", [math.nan, -0.1, 1.5])
def test_an_undefined_p_value_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="not a p-value"):
        holm([0.01, bad])
