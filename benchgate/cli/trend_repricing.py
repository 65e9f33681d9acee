"""`benchgate trend --prices FILE`: the costs of stored runs at other prices; what is stored stays as it is."""

from __future__ import annotations

import sys
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from benchgate.errors import UsageError
from benchgate.model.deployment import Arm

if TYPE_CHECKING:
    from benchgate.model.run import TrendPoint
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
    from benchgate.report.untrusted import terminal_line
    from benchgate.suite.price_file import parse_prices

    if metric not in (_FULL, _IN_USE):
        raise UsageError(f"--prices is of {_FULL} and {_IN_USE}, which a pace and a price make, and not of {metric}")
    try:
        text = prices.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{prices}: cannot be read: {error}") from None
    known, points, without = parse_prices(text, str(prices)), list["TrendPoint"](), dict[str, str]()
    for pace in store.trend(_PACE, suite=suite, stage=stage, arm=Arm.CANDIDATE):
        listed = known.on(pace.deployment, date.fromisoformat(pace.started_at[:10]))
        if listed is None:
            without[pace.run_id] = pace.deployment
            continue
        accelerators = store.run(pace.run_id).arms[Arm.CANDIDATE].accelerators
        factor = listed.price_terms.in_use_factor if metric == _IN_USE else 1.0
        found = repriced(pace, listed.usd_per_hour, accelerators, factor)
        points += [] if found is None else [found]
    if without:
        names = terminal_line(", ".join(dict.fromkeys(without.values())))
        told = f"{prices} has no price on their day for {len(without)} runs, of {names}"
        if not points:
            raise UsageError(f"{told}, and there are no others; write the names that the suites give deployments")
        sys.stderr.write(f"benchgate: {told}: left out\n")
    return points
