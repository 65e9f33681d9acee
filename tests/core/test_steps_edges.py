"""Steps of a check's arithmetic where there is little to add up: what is not there is left out and makes nothing up."""

from __future__ import annotations

from benchgate.gate.derivation import own_share_steps

from benchgate.gate.evidence.shares import Counts
from benchgate.stats.distributions import Limits

ALPHA = 0.05


def test_a_share_of_one_block_has_no_effective_number_of_requests() -> None:
    limits = Limits(0.0, 0.1)
    for counts, there in (
        (Counts((2, 3), (60, 60)), True),
        (Counts((0, 0), (60, 60)), True),
        (Counts((5,), (60,)), False),
    ):
        told = [step.what for step in own_share_steps(counts, limits, ALPHA)]
        assert any("effective number" in what for what in told) is there
        assert told[-2:] == ["lower limit", "upper limit"]
