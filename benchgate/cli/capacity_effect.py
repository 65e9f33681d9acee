"""Options of `benchgate capacity` that would do nothing beside the others that are given."""

from __future__ import annotations

from collections.abc import Collection

import typer

from benchgate.errors import UsageError

_REPLAY = "places", "min_replicas", "wait", "target_load", "look", "cooldown", "request_cv", "balance", "seed"
_SCALING = "target_load", "look", "cooldown"
_BELONG = (
    ("run", "is of a stored run: name one", ("arm", "stage", "store")),
    ("max_replicas", "is of a replay: give --max-replicas and --traffic", _REPLAY),
    ("traffic", "is held against how fast the demand rises: give its hours as --traffic", ("cold_start",)),
)
"""The parameter without which each of the others does nothing, and what it is to them."""


def said_in(context: typer.Context) -> frozenset[str]:
    """The parameters that the command line itself says, by their names."""
    said = {name: context.get_parameter_source(name) for name in context.params}
    return frozenset(name for name, source in said.items() if source is not None and source.name == "COMMANDLINE")


def require_effect(said: Collection[str], *, is_fixed: bool) -> None:
    """Raises UsageError for what does nothing beside the rest. `is_fixed`: the fleet that is replayed has one size."""
    for owner, why, options in _BELONG:
        if owner not in said:
            _refuse([name for name in options if name in said], why)
    if is_fixed:
        _refuse([name for name in _SCALING if name in said], "does nothing where --min-replicas is --max-replicas")


def require_use(said: Collection[str], *, in_requests: bool, has_price: bool, has_time: bool) -> None:
    """The same of numbers whose use depends on what else is known, be it said or of the run."""
    if not has_price:
        _refuse(
            [name for name in ("overhead", *(["output_tokens"] if in_requests else [])) if name in said],
            "is of dollars, and no price is known: give --price-per-hour",
        )
    if not in_requests and not has_time:
        _refuse([name for name in ("output_tokens",) if name in said], "is of what is in flight: give --request-time")


def _refuse(idle: Collection[str], why: str) -> None:
    if idle:
        first, *others = (f"--{name.replace('_', '-')}" for name in idle)
        more = f" (and so for {', '.join(others)})" if others else ""
        raise UsageError(f"{first} {why}{more}, or leave it out")
