"""Units of a stage dealt to the slots of load generator workers."""

from __future__ import annotations

from collections import Counter
from itertools import count, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchgate.plan.slot_share import SlotShare

SIZES = st.integers(1, 40)


@given(units=st.integers(0, 200), slots=SIZES, workers=SIZES)
def test_every_unit_is_dealt_once_and_every_slot_gets_equally_many(units: int, slots: int, workers: int) -> None:
    shares = [SlotShare(worker, workers, slots) for worker in range(workers)]
    dealt = [list(share.select(range(units))) for share in shares]
    assert Counter(unit for units_of_one in dealt for unit in units_of_one) == Counter(range(units))
    least, most = units // slots, -(-units // slots)
    for worker, units_of_one in enumerate(dealt):
        own_slots = len(range(worker, slots, workers))
        assert own_slots * least <= len(units_of_one) <= own_slots * most
        assert units_of_one == sorted(units_of_one)


@given(units=st.integers(0, 200), slots=SIZES, workers=SIZES, data=st.data())
def test_numbers_of_a_share_are_a_sequence_of_what_it_selects(
    units: int, slots: int, workers: int, data: st.DataObject
) -> None:
    share = SlotShare(data.draw(st.integers(0, workers - 1)), workers, slots)
    listed, numbers = list(share.select(range(units))), share.numbers(units)
    assert (list(numbers), len(numbers)) == (listed, len(listed))
    assert [numbers[place] for place in range(-len(listed), len(listed))] == listed * 2
    assert list(numbers[1::3]) == listed[1::3]
    assert [number for number in range(-3, units + 3) if number in numbers] == listed
    with pytest.raises(IndexError):
        numbers[len(listed)]


def test_a_share_of_endless_units_is_endless_or_empty() -> None:
    shares = [SlotShare(worker, 4, 3) for worker in range(4)]
    assert [list(islice(share.select(count()), 2)) for share in shares] == [[0, 3], [1, 4], [2, 5], []]
