"""`benchgate trend --prices FILE`: the costs of stored runs at other prices; what is stored stays as it is."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchgate.errors import UsageError
from benchgate.model.deployment import Arm

if TYPE_CHECKING:
    from benchgate.model.run import Run, TrendPoint
    from benchgate.store.repository import Store

_PACE = "output_tokens_per_s"
_FULL, _IN_USE = "usd_per_million_output_tokens", "usd_per_million_output_tokens_in_use"


def repriced_trend(
    store: Store, metric: str, prices: Path, *, suite: str | None, stage: str | None
) -> list[TrendPoint]:
    """The points of a cost, made of the pace of each run and the price that the file has for its day.

    Runs that it has no price for are told and left out. Raises UsageError for another metric, SuiteError for the file.
    """
    from benchgate.cost.repricing import repriced
    from benchgate.suite.price_file import parse_prices

    if metric not in (_FULL, _IN_USE):
        raise UsageError(f"--prices is of {_FULL} and {_IN_USE}, which a pace and a price make, and not of {metric}")
    try:
        text = prices.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{prices}: cannot be read: {error}") from None
    known, points = parse_prices(text, str(prices)), list["TrendPoint"]()
    without, by_token = dict[str, str](), dict[str, str]()
    for pace in store.trend(_PACE, suite=suite, stage=stage, arm=Arm.CANDIDATE):
        run = store.run(pace.run_id)
        listed = known.on(run.day, pace.deployment, _kind(run, pace.deployment))
        if listed is None:
            without[pace.run_id] = pace.deployment
            continue
        if listed.usd_per_hour is None:
            by_token[pace.run_id] = pace.deployment
            continue
        factor = listed.in_use_factor if metric == _IN_USE else 1.0
        found = repriced(pace, listed.usd_per_hour, run.arms[Arm.CANDIDATE].accelerators, factor)
        points += [] if found is None else [found]
    told = (
        (without, "has no price on their day"),
        (by_token, "has a price by the token, which no pace makes a cost of,"),
    )
    _tell(prices, [(named, why) for named, why in told if named], none_left=not points)
    return points


def _kind(run: Run, deployment: str) -> str | None:
    """What a deployment of a run is on, where the suite said so."""
    deployments = run.suite.get("deployments")
    spec = deployments.get(deployment) if isinstance(deployments, dict) else None
    kind = spec.get("accelerator") if isinstance(spec, dict) else None
    return kind if isinstance(kind, str) else None


def _tell(prices: Path, left_out: Sequence[tuple[Mapping[str, str], str]], *, none_left: bool) -> None:
    """Which runs are left out, as deployments by run, and why. Raises UsageError where there are no others."""
    from benchgate.report.untrusted import terminal_line

    for named, why in left_out:
        names = terminal_line(", ".join(dict.fromkeys(named.values())))
        told = f"{prices} {why} for {len(named)} runs, of {names}"
        if none_left:
            raise UsageError(f"{told}, and there are no others; write the names that the suites give deployments")
        sys.stderr.write(f"benchgate: {told}: left out\n")
