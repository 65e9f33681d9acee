"""Can whoever knows what production has spent of a suite's error budget be asked? Found out before a run needs it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchgate.doctor.machine import State, Symptom
from benchgate.errors import BudgetError, SuiteError, UsageError
from benchgate.model.run import BudgetReading
from benchgate.pipeline.environment import utc_now
from benchgate.pipeline.error_budget import read_spent
from benchgate.suite.schema import Suite
from benchgate.units import as_written, show_percent

_NAME = "error budget"


def examine_budget(suite: Suite, folder: Path, environment: Mapping[str, str]) -> Symptom:
    """Asks as a run would, once: a Prometheus must be reachable and answer with one number. Keeps nothing.

    `folder` is where the suite stands.
    """
    try:
        spent = read_spent(suite, folder, environment, utc_now())
    except BudgetError as error:
        remedy = "correct `error_budget.spent.prometheus`, or what its query asks; until then `run` ends with 12"
        return Symptom(_NAME, State.FAIL, str(error), remedy)
    except (SuiteError, UsageError) as error:
        remedy = "correct `error_budget.spent`, or what it names; until then `run` ends with 2"
        return Symptom(_NAME, State.FAIL, str(error), remedy)
    return Symptom(_NAME, State.OK, f"{suite.suite} has none") if spent is None else _found(suite, spent)


def _found(suite: Suite, spent: BudgetReading) -> Symptom:
    budget = suite.error_budget
    assert budget is not None, "something of it is spent"
    found = f"{as_written(show_percent(spent.spent_ratio))} of the {budget.shown} is spent, by {spent.source}"
    if not spent.blown:
        return Symptom(_NAME, State.OK, found)
    remedy = "nothing but a clean PASS is promoted"
    if budget.when_blown == "warn":
        remedy = "every candidate warns"
    return Symptom(_NAME, State.WARN, found, f"it is blown: {remedy} until it has recovered")
