"""What the deployments of a suite cost by its price file, on the day on which the run begins.

The suite is filled in before anything else is made of it, and the run keeps it so: a line of costs never changes with
the file. Whoever holds a run against its suite later takes the prices of that run's day.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

from benchgate.errors import Problem, SuiteError, UsageError
from benchgate.suite.deployment import DeploymentSpec
from benchgate.suite.price_file import Prices, parse_prices
from benchgate.suite.rules.suite import rule_problems
from benchgate.suite.schema import Suite
from benchgate.system import read_text_file

_OF_MONEY = frozenset({"price", "price_terms", "token_prices"})


def with_prices(suite: Suite, folder: Path, day: date | None) -> Suite:
    """The suite with the prices of a day, in UTC, where its deployments say none themselves; as it is without a file.

    `folder` is the suite's. None is a day that is not known, on which nothing has a price. A deployment that is no arm
    needs none. Raises SuiteError for a file that cannot be read, an arm without a price on that day, and prices that
    the suite's rules do not allow.
    """
    if suite.prices is None:
        return suite
    if day is None:
        raise SuiteError([Problem("", None, None, "prices", "which day's they are to be is not known")])
    prices, problems, deployments = read_prices(folder / suite.prices), list[Problem](), dict[str, DeploymentSpec]()
    for name, spec in suite.deployments.items():
        listed = None if spec.is_priced else prices.on(day, name, spec.accelerator)
        if listed is not None:
            spec = spec.priced(listed.as_keys, {"file": suite.prices, **prices.entry_of(listed)})
        deployments[name] = spec
        if not spec.is_priced and name in _arms(suite):
            problems.append(prices.lacking(day, name, spec.accelerator))
    if problems:
        raise SuiteError(problems)
    filled = suite.model_copy(update={"deployments": deployments})
    broken = [Problem("", None, None, problem.path, problem.message) for problem in rule_problems(filled)]
    if broken:
        raise SuiteError(broken)
    return filled


def require_priced(suite: Suite, day: date | None = None) -> None:
    """The file's prices are filled in, and are those of the `day` where that matters. Raises UsageError.

    A run without them would keep none, and one that was begun before midnight those of another day than its own.
    """
    arms = {name: suite.deployments[name] for name in _arms(suite)}
    lacking = [name for name, spec in arms.items() if not spec.is_priced]
    if suite.prices is not None and lacking:
        raise UsageError(f"the prices of {', '.join(lacking)} stand in {suite.prices}, which was not read")
    over = [name for name, spec in arms.items() if day and str(spec.price_entry.get("until", day)) < str(day)]
    if over:
        told = f"the price of {', '.join(over)} in {suite.prices} ended at midnight (UTC), before the run began"
        raise UsageError(f"{told}; begin it again, and it takes that of {day}")


def other_prices(kept: Mapping[str, Any], suite: Suite) -> str | None:
    """Whose prices of its file are others than a run kept with its suite, where nothing else is; None otherwise."""
    now = suite.to_stored()
    if suite.prices is None or _without_prices(kept) != _without_prices(now):
        return None
    then = kept["deployments"]
    moved = [name for name, spec in now["deployments"].items() if spec != then[name]]
    return f"{suite.prices} has another price of {', '.join(moved)} for its day than the run kept" if moved else None


def read_prices(file: Path) -> Prices:
    """The prices of a file. Raises SuiteError for every mistake in it, and for what is no file of that size."""
    try:
        text = read_text_file(file)
    except (OSError, UnicodeDecodeError) as exc:
        reason = f"the file of prices cannot be read ({exc}); `prices` names one beside the suite"
        raise SuiteError([Problem(str(file), None, None, "", reason)]) from exc
    return parse_prices(text, str(file))


def _arms(suite: Suite) -> tuple[str, ...]:
    return tuple(dict.fromkeys((suite.baseline, *(suite.candidates or (suite.candidate,)))))


def _without_prices(stored: Mapping[str, Any]) -> dict[str, Any]:
    """What a suite says beside the prices of its deployments."""
    deployments = {
        name: {key: value for key, value in spec.items() if key not in _OF_MONEY}
        for name, spec in stored["deployments"].items()
    }
    return {**stored, "deployments": deployments}
