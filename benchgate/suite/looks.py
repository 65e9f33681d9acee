"""How often the load is looked at before it ends, and what it may cost to go on."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, Self

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from benchgate.suite.fields import Duration, Money, StrictSection, Whole

USUAL_LOOKS = (5, 10, 20)
"""After how many blocks, where a suite says nothing: the first settles much, each next one doubles what there is."""
Blocks = Annotated[Whole, Field(ge=2, le=200)]
_BLOCKS = TypeAdapter(Blocks)
_MOST_LOOKS = 6
_WITHOUT_SWEEP = 10  # a search alone has no blocks, and a number all the same: it stands in stored suites


class LoadLimit(StrictSection):
    """What the load may take: no next look is begun that would pass it. The first one is always taken."""

    time_s: Duration | None = Field(default=None, alias="time")
    cost_usd: Money | None = Field(default=None, alias="cost")  # by the prices of all deployments that are measured

    @model_validator(mode="after")
    def _limits_something(self) -> Self:
        if self.time_s is None and self.cost_usd is None:
            raise ValueError("a limit needs at least one of `time` and `cost`")
        return self


def with_blocks(load: Mapping[str, Any]) -> dict[str, Any]:
    """A load's plain data in which the most blocks stand: the last look's, and the usual looks where none are said."""
    if "looks" not in load and "blocks" not in load:
        if not load.get("sweep"):
            return {**load, "blocks": _WITHOUT_SWEEP}
        return {**load, "looks": list(USUAL_LOOKS), "blocks": USUAL_LOOKS[-1]}
    looks = load.get("looks")
    if "blocks" in load or not isinstance(looks, list | tuple) or not all(_is_number_of_blocks(one) for one in looks):
        return dict(load)
    return {**load, "blocks": looks[-1]} if looks else dict(load)


def checked_looks(looks: tuple[int, ...], blocks: int | None) -> tuple[int, ...]:
    """The looks, none where there is but one: that is a fixed number of blocks. ValueError for what cannot be.

    `blocks` is the most there may be; None where that is wrong itself.
    """
    if not looks:
        raise ValueError("an empty list looks at nothing; write rising numbers of blocks like [5, 10, 20]")
    if len(looks) > _MOST_LOOKS:
        raise ValueError(
            f"{len(looks)} looks; each one costs a little of what can be shown, so write {_MOST_LOOKS} at most"
        )
    if any(before >= after for before, after in pairwise(looks)):
        raise ValueError("looks are numbers of blocks in all, each more than the one before, like [5, 10, 20]")
    if blocks is not None and blocks != looks[-1]:
        raise ValueError(f"the last look is after {looks[-1]} blocks, and `blocks` says {blocks}; keep one of the two")
    return looks if len(looks) > 1 else ()


def _is_number_of_blocks(found: object) -> bool:
    try:
        _BLOCKS.validate_python(found)
    except ValidationError:
        return False
    return True
