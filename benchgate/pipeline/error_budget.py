"""Spent part of production's error budget, read from the suite, a file or Prometheus once per session of a run.

A value that cannot be read is an error before anything is measured: it is never assumed to be 0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlencode

from benchgate.errors import BudgetError, Problem, SuiteError, TargetError, UsageError, suggestion
from benchgate.model.deployment import Arm
from benchgate.model.run import BudgetReading
from benchgate.suite.deployment import DeploymentSpec
from benchgate.suite.error_budget import (
    BURN_ALARM,
    MOST_SPENT,
    Prometheus,
    budget_stage,
    fewest_requests,
    parse_spent_ratio,
    worst_share,
)
from benchgate.suite.formats import parse_json
from benchgate.suite.schema import Suite
from benchgate.system import read_text_file
from benchgate.targets.address import ServerAddress, show_address
from benchgate.targets.client import JsonClient
from benchgate.targets.dialect import Target, target_of
from benchgate.targets.error_messages import RequestError, error_text, json_object, one_line
from benchgate.units import show_found

_QUERY = "/api/v1/query"
_CONNECT_S = 10.0
_LONGEST_S = 30.0
_LARGEST_BYTES = 2**20
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_MOST_BARE = 10.0  # of a number without its unit: 40 is a percentage that lacks its sign
_KEY = "error_budget.spent"
_EXPECTED = 'expected {"spent": "40%"}'


def budget_lines(suite: Suite) -> list[str]:
    """Describe a suite's error budget without contacting its source; no lines without one."""
    budget = suite.error_budget
    if budget is None:
        return []
    stage = budget_stage(budget, suite.gate.operating, suite.stage_names)
    needed = fewest_requests(budget.objective_ratio, suite.gate.alpha)
    by = f"is ruled out by {needed:,} requests without a failure, or more with some"
    return [
        f"{budget.shown}, held against the {budget.metric} at {stage}; spent: {budget.spent.shown}",
        f"  a burn of {BURN_ALARM}x {by if worst_share(budget.objective_ratio) < 1 else 'cannot be'}",
    ]


def require_askable(suite: Suite, folder: Path, environment: Mapping[str, str]) -> None:
    """Raise UsageError if a reference to Prometheus is not set. Sends nothing."""
    budget = suite.error_budget
    if budget is not None and budget.spent.prometheus is not None:
        _target(budget.spent.prometheus, folder, environment)


def read_spent(suite: Suite, folder: Path, environment: Mapping[str, str], now: str) -> BudgetReading | None:
    """Return the spent part, read at `now` (RFC 3339 UTC); None for a suite without a budget.

    Raises SuiteError for a file without a valid value, BudgetError if Prometheus gives none.
    """
    budget = suite.error_budget
    if budget is None:
        return None
    spent = budget.spent
    if spent.spent_ratio is not None:
        return BudgetReading(spent.spent_ratio, "the suite itself", now)
    if spent.file is not None:
        return BudgetReading(_from_file(folder / spent.file), f"the file {spent.file}", now)
    assert spent.prometheus is not None, "it is one of the three: the suite was validated"
    target = _target(spent.prometheus, folder, environment)
    where = f"Prometheus at {show_address(target.url)}"
    return BudgetReading(_query_prometheus(spent.prometheus, target, where), where, now)


def _from_file(path: Path) -> float:
    """`{"spent": "40%"}` or `{"spent": 0.4}`."""
    try:
        found = parse_json(read_text_file(path, _LARGEST_BYTES))
    except (OSError, UnicodeDecodeError) as exc:
        reason = f"what is spent cannot be read ({exc}); `{_KEY}.file` names a JSON file beside the suite"
        raise SuiteError([Problem(str(path), None, None, "", reason)]) from exc
    except json.JSONDecodeError as exc:
        raise _wrong(path, f"not JSON: {exc.msg}; {_EXPECTED}", exc.lineno, exc.colno) from None
    except ValueError as exc:
        # It would speak of null, which is no share either.
        why = "holds a number that is not finite" if "finite" in str(exc) else str(exc)
        raise _wrong(path, f"{why}; {_EXPECTED}") from None
    if not isinstance(found, dict):
        raise _wrong(path, f"found {show_found(found)}; {_EXPECTED}")
    unknown = [key for key in found if key != "spent"]
    if unknown:
        raise _wrong(path, f"unknown key {show_found(unknown[0])}; {suggestion(unknown[0], ['spent'])}")
    if not found:
        raise _wrong(path, f"found an empty mapping; {_EXPECTED}")
    spent = found["spent"]
    if isinstance(spent, str):
        try:
            return parse_spent_ratio(spent)
        except ValueError as exc:
            raise _wrong(path, f"`spent`: {exc}") from None
    if isinstance(spent, bool) or not isinstance(spent, int | float) or not 0 <= spent <= MOST_SPENT:
        raise _wrong(path, f"`spent` is {show_found(spent)}; {_EXPECTED}, or the share itself, like 0.4")
    if spent > _MOST_BARE:
        budgets = f"without a unit that is {spent:g} whole budgets"
        raise _wrong(path, f'`spent` is {spent:g}, and {budgets}; write "{spent:g}%", or what else it is in percent')
    return float(spent)


def _wrong(path: Path, message: str, line: int | None = None, column: int | None = None) -> SuiteError:
    return SuiteError([Problem(str(path), line, column, "", message)])


def _target(spec: Prometheus, folder: Path, environment: Mapping[str, str]) -> Target:
    """Return Prometheus as a target; its arm and model mean nothing. Raises UsageError for an invalid address."""
    known = DeploymentSpec(url=spec.url, model="prometheus", api_key=spec.api_key, headers=spec.headers)
    try:
        target = target_of(Arm.BASELINE, known, environment, folder)
        ServerAddress.of(target.url)
    except UsageError as exc:
        exc.message = f"{_KEY}.prometheus: {exc.message}"
        raise
    except TargetError as exc:
        raise UsageError(f"{_KEY}.prometheus.url: {exc}") from None
    return target


def _query_prometheus(spec: Prometheus, target: Target, where: str) -> float:
    """Return the single number of the query's result. Raises BudgetError without secrets."""
    try:
        with JsonClient(target, connect_s=_CONNECT_S, total_s=_LONGEST_S, max_body_bytes=_LARGEST_BYTES) as client:
            response = client.send("GET", f"{_QUERY}?{urlencode({'query': spec.query})}")
    except RequestError as exc:
        raise _unread(where, f"could not be reached: {exc}") from None
    status, body = response.status, response.body
    if status != 200:
        words = one_line(error_text(body), secret=target.secrets)
        elsewhere = "; redirects are not followed, so write the address it leads to" if 300 <= status < 400 else ""
        raise _unread(where, f"answers HTTP {status}: {words}{elsewhere}")
    try:
        return _number(json_object(body))
    except ValueError as exc:
        raise _unread(where, one_line(str(exc), secret=target.secrets)) from None


def _unread(where: str, reason: str) -> BudgetError:
    message = f"{_KEY}: {where} {reason}; without it nobody knows what production has left, so nothing was measured"
    return BudgetError(message, path=("error_budget", "spent"))


def _number(document: dict[str, object] | None) -> float:
    """Return the value of a response's only series or its scalar. Raises ValueError for any other response."""
    if document is None or document.get("status") != "success":
        raise ValueError("answers HTTP 200 with what is no result of a query; is this Prometheus?")
    warnings = document.get("warnings")
    if warnings:
        first = warnings[0] if isinstance(warnings, list) else warnings
        raise ValueError(f"warns that its answer may not be whole: {first}")
    data = document.get("data")
    kind, result = (data.get("resultType"), data.get("result")) if isinstance(data, dict) else (None, None)
    if kind == "vector" and isinstance(result, list):
        if not result:
            raise ValueError("found no series for the query; an empty answer is not 0")
        if len(result) > 1:
            raise ValueError(f"found {len(result)} series for the query; write one that gives a single number")
        result = result[0].get("value") if isinstance(result[0], dict) else None
    elif kind != "scalar":
        raise ValueError(f"answers with {show_found(kind)}; expected an instant vector of one series, or a scalar")
    sample = result[1] if isinstance(result, list) and len(result) == 2 else None
    if not isinstance(sample, str) or _NUMBER.fullmatch(sample) is None:
        raise ValueError(f"answers with the value {show_found(sample)}, which is no number")
    if not 0 <= float(sample) <= MOST_SPENT:
        raise ValueError(f"answers with the value {sample}, which is no share of a budget; 0.4 means 40 %")
    return float(sample)
