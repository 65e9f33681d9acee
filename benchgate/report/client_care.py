"""A policy that lets the load generator be later than usual: a green page must not hide whose times it may show."""

from __future__ import annotations

from benchgate.gate.evidence.client_strain import strained_blocks
from benchgate.model.run import Evidence
from benchgate.suite.schema import Suite, traffic_classes


def widened_line(suite: Suite) -> str | None:
    """Which bounds of the client the policy widens, and what that means; None where it widens none."""
    widened = suite.gate.client.widened()
    return (
        f"the policy widens the client's bounds, so times may be the load generator's own: {widened}"
        if widened
        else None
    )


def client_care(suite: Suite, run: Evidence, reference: Evidence | None = None) -> tuple[str, ...]:
    """One line where the policy widens a bound of the client and load was measured, with the blocks left out even so.

    Nothing where every bound is the usual one or a narrower one.
    """
    line = widened_line(suite)
    runs = [(run, ""), *([(reference, " of the reference run")] if reference is not None else [])]
    if line is None or not any(one.load for one, _ in runs):
        return ()
    seen = [(strained_blocks(one, place, suite), whose) for one, whose in runs for place in traffic_classes(suite)]
    left_out = [f"{found.share}{whose}" for found, whose in seen if found.left_out]
    told = f"; {' and '.join(left_out)} were left out even so" if left_out else ""
    return (f"{line}{told}",)
