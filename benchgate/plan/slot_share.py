"""Share of a stage that one worker sends: the single requests, or whole conversations, of its slots."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, cycle, islice
from typing import TypeVar, overload

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class SlotShare:
    """Slots `worker`, `worker` + `workers`, … of all `slots`. Unit i of a stage belongs to slot i modulo `slots`.

    A unit is a single request or a whole conversation. So each slot of a closed loop gets equally many, also where some
    workers have more slots than others. In an open loop there are as many `slots` as workers.
    """

    worker: int
    workers: int
    slots: int

    @property
    def is_even(self) -> bool:
        """Return True if all workers have equally many slots: then every `workers`-th unit belongs to each."""
        return self.slots % self.workers == 0

    def owner(self, unit: int) -> int:
        """Return the number of the worker that sends a unit."""
        return unit % self.slots % self.workers

    def select(self, units: Iterable[_T]) -> Iterator[_T]:
        """Yield the worker's units of a whole stage, in their order."""
        if self.is_even:
            return islice(units, self.worker, None, self.workers)
        if self.worker >= self.slots:  # of endless units, none would ever come
            return iter(())
        return compress(units, cycle([self.owner(slot) == self.worker for slot in range(self.slots)]))

    def numbers(self, units: int) -> Sequence[int]:
        """Return the numbers of the worker's units of a stage with so many `units`, without listing them."""
        return range(self.worker, units, self.workers) if self.is_even else _SlotNumbers(self, units)


WHOLE = SlotShare(0, 1, 1)  # the share of a worker that sends everything


@dataclass(frozen=True, slots=True)
class _SlotNumbers(Sequence[int]):
    """Numbers below `units` that belong to a share. Some requests of a stage are too many to list."""

    share: SlotShare
    units: int

    def __len__(self) -> int:
        rounds, rest = divmod(self.units, self.share.slots)
        return rounds * self._in_a_round(self.share.slots) + self._in_a_round(rest)

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[int, ...]: ...
    def __getitem__(self, place: int | slice) -> int | tuple[int, ...]:
        if isinstance(place, slice):
            return tuple(self[one] for one in range(len(self))[place])
        share = self.share
        rounds, slot = divmod(range(len(self))[place], self._in_a_round(share.slots))
        return rounds * share.slots + share.worker + slot * share.workers

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and 0 <= number < self.units and self.share.owner(number) == self.share.worker

    def __iter__(self) -> Iterator[int]:
        share = self.share
        for first in range(0, self.units, share.slots):
            yield from range(first + share.worker, min(first + share.slots, self.units), share.workers)

    def _in_a_round(self, slots: int) -> int:
        return len(range(self.share.worker, slots, self.share.workers))
