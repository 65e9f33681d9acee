"""What the deployments of a suite cost by its price file, on the day on which the run begins.

The suite is filled in before anything else is made of it, and the run keeps it so: a line of costs never changes with
the file. Whoever holds a run against its suite later takes the prices of that run's day.
"""

from __future__ import annotations

from datetime import date
from pathlib import Path

from benchgate.errors import Problem, SuiteError, UsageError
from benchgate.suite.price_file import Prices, parse_prices
from benchgate.suite.rules import rule_problems
from benchgate.suite.schema import DeploymentSpec, Suite


def with_prices(suite: Suite, folder: Path, day: date | None) -> Suite:
    """The suite with the prices of a day, in UTC, where its deployments say none themselves; as it is without a file.

    `folder` is the suite's. None is a day that is not known, on which nothing has a price. Raises SuiteError for a file
    that cannot be read, a deployment without a price on that day, and prices that the suite's rules do not allow.
    """
    if suite.prices is None:
        return suite
    if day is None:
        raise SuiteError([Problem("", None, None, "prices", "which day's they are to be is not known")])
    prices = _read(folder / suite.prices)
    lacking = [name for name, spec in suite.deployments.items() if not _is_priced(spec)]
    kinds = {name: suite.deployments[name].accelerator for name in lacking}
    found = {name: prices.on(day, name, kind) for name, kind in kinds.items()}
    problems = [prices.lacking(day, name, kinds[name]) for name, listed in found.items() if listed is None]
    if problems:
        raise SuiteError(problems)
    said = {name: listed.said for name, listed in found.items() if listed is not None}
    deployments = {name: spec.model_copy(update=said.get(name, {})) for name, spec in suite.deployments.items()}
    filled = suite.model_copy(update={"deployments": deployments})
    broken = [Problem("", None, None, problem.path, problem.message) for problem in rule_problems(filled)]
    if broken:
        raise SuiteError(broken)
    return filled


def require_priced(suite: Suite) -> None:
    """The file's prices are filled in: a run without them would keep none. Raises UsageError."""
    lacking = [name for name, spec in suite.deployments.items() if not _is_priced(spec)]
    if suite.prices is not None and lacking:
        raise UsageError(f"the prices of {', '.join(lacking)} stand in {suite.prices}, which was not read")


def _is_priced(spec: DeploymentSpec) -> bool:
    return spec.price is not None or spec.token_prices is not None


def _read(file: Path) -> Prices:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        reason = f"the file of prices cannot be read ({exc}); `prices` names one beside the suite"
        raise SuiteError([Problem(str(file), None, None, "", reason)]) from exc
    return parse_prices(text, str(file))
