"""What a plan is told of prices that were taken from a file: which of its entries each deployment has today."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchgate.model.deployment import Deployment
    from benchgate.suite.schema import Suite


def price_lines(suite: Suite) -> list[str]:
    """A line for each arm whose price is of a file; none where the suite says its prices itself."""
    from benchgate.report.sections.cost import price_and_use, price_source

    return [f"{one.name}: {price_and_use(one)}, the price {price_source(one)}" for one in _of_a_file(suite)]


def price_documents(suite: Suite) -> dict[str, dict[str, object]]:
    """The same as plain JSON, by the names of deployments."""
    from benchgate.report.document import price_document

    return {one.name: price_document(one) for one in _of_a_file(suite)}


def _of_a_file(suite: Suite) -> list[Deployment]:
    from benchgate.pipeline.deployments import declared_deployment

    arms = dict.fromkeys((suite.baseline, *(suite.candidates or (suite.candidate,))))
    return [deployment for name in arms if (deployment := declared_deployment(suite, name)).price_entry]
