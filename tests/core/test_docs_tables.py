"""The table of metrics in docs/suites.md is generated from the metrics themselves."""

from __future__ import annotations

from pathlib import Path

from benchgate.model.metric import metric_table
from tests.golden import assert_section

PAGE = Path(__file__).parents[2] / "docs" / "suites.md"


def test_the_docs_list_every_metric_as_the_gate_knows_it() -> None:
    assert_section(PAGE, "metrics", metric_table())
