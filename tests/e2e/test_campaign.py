"""A case or two of each sort of the campaign: every run ends as its table says, and leaves and loses nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.campaign.__main__ import run_case
from benchmarks.campaign.cases import Case, short_cases
from benchmarks.campaign.forking import Forks
from benchmarks.campaign.surroundings import NotHere

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks() as found:
        yield found


@pytest.mark.parametrize("case", short_cases(), ids=lambda case: case.name)
def test_case_ends_as_stated(case: Case, forks: Forks) -> None:
    try:
        ended = run_case(case, forks)
    except NotHere as reason:
        pytest.skip(str(reason))
    assert case.problems(ended) == [], ended
