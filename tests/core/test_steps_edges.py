"""Steps of a check's arithmetic where there is little to add up: what is not there is left out and makes nothing up."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchgate.gate.derivation import own_share_steps, scores_steps
from benchgate.gate.evidence.shares import Counts
from benchgate.stats.distributions import Limits
from benchgate.stats.evals import ScorePairs

ALPHA = 0.05


def test_scores_in_clusters_show_the_error_over_their_clusters() -> None:
    """Deviations from the mean loss of 0.1 add up to -0.2, 0.1, 0.2 and -0.1: sqrt(4/3 * 0.1) / 6."""
    ours, theirs = np.array([0.5, 0.3] * 3), np.full(6, 0.5)
    steps = scores_steps(ScorePairs(theirs, ours, ("a", "b", "a", "c", "d", "c")), ALPHA)
    assert float(steps[0].value) == pytest.approx(math.sqrt(4 / 3 * 0.1) / 6, rel=1e-5)
    assert [step.what for step in steps[-2:]] == ["lower limit", "upper limit"]
    single = scores_steps(ScorePairs(theirs, ours), ALPHA)
    assert single[0].what == "baseline's score minus the candidate's, of each item"


def test_scores_of_one_cluster_have_no_error_and_no_limits() -> None:
    assert scores_steps(ScorePairs(np.array([1.0, 0.5]), np.array([0.5, 0.5]), ("a", "a")), ALPHA) == ()


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
