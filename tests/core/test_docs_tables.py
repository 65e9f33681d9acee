"""Tables of the docs that the code generates."""

from __future__ import annotations

from benchgate.model.metric import metric_table
from tests.golden import assert_generated


def test_the_docs_list_every_metric_as_the_gate_knows_it() -> None:
    assert_generated("suites.md", "metrics", metric_table())
