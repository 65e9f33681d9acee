"""Is all that matters as it was when a run was cut short? What was asked, who asks, and who is asked."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from benchgate import __version__
from benchgate.errors import UsageError
from benchgate.gate.guards.run import MAX_RESUMPTIONS, leaf_values
from benchgate.model.deployment import Arm, Deployment, flatten_json
from benchgate.model.run import LOAD_SALT, SERVER_PROCESSES, Run
from benchgate.model.telemetry import TelemetryWindow
from benchgate.pipeline.checkpoint import Done
from benchgate.pipeline.environment import environment_facts
from benchgate.pipeline.session import moved
from benchgate.plan.schedule import Plan
from benchgate.store.evidence import JournalEntry, JournalEvent
from benchgate.suite.schema import Suite
from benchgate.units import as_written, show_duration, show_percent, show_size

_CHANGES = frozenset({"load_average_1min", LOAD_SALT})
"""What is not the same from one moment to the next, or is the run's and not its machine's."""

_SHOWN = 60
_NAMED = 8  # differences; more are counted
_UNITS: Mapping[str, Callable[[float], str]] = {
    "_s": show_duration,
    "_ratio": show_percent,
    "_rps": lambda value: f"{value:g}/s",
    "_bytes": lambda value: show_size(int(value)),
}
"""How a number is shown whose name ends so: as it is written in a suite."""


def require_unchanged(
    run: Run, suite: Suite, plan: Plan, events: Sequence[tuple[str, Mapping[str, Any]]], now: Mapping[str, Any]
) -> None:
    """Raises UsageError with all that is not as it was when the run began.

    `events` are its journal, and `now` is what this sitting leaves there (`sitting_of`).
    """
    if run.calibrates or run.imported:
        what = "a calibration" if run.calibrates else "of evals that were made elsewhere"
        raise UsageError(f"run {run.id} is {what}, and only runs of `benchgate run` can go on")
    changed = list(_differences(run.suite, suite.to_stored(), "the suite's "))
    if not changed and plan.sha256 != run.plan_sha256:
        changed.append(
            f"the plan was {run.plan_sha256[:12]} and is {plan.sha256[:12]}: a file that the suite names (of tasks, "
            "prompts, texts or traces), or the tokenizer of a server, is not what it was"
        )
    if run.tool_version != __version__:
        changed.append(f"benchgate was {run.tool_version} and is {__version__}")
    changed += _differences(_lasting(run.environment), _lasting(environment_facts()), "this machine's ")
    changed += moved(events, now, suite)
    if changed:
        raise UsageError(_cannot(run, changed))


def require_same_facts(arm: Arm, before: Deployment, found: Deployment) -> None:
    """What a deployment no longer says is not known to have changed, as at the end of a run. Raises UsageError."""
    was, now = dict(flatten_json(before.facts)), dict(flatten_json(found.facts))
    changed = [f"{name} was {was[name]} and is {now[name]}" for name in was if now.get(name, was[name]) != was[name]]
    if changed:
        raise UsageError(
            f"the {arm} {before.name} is not what it was when the run was cut short: {'; '.join(changed)}; "
            "run the suite from its beginning, without --resume"
        )


def processes_before(journal: Sequence[JournalEntry]) -> dict[Arm, tuple[str, ...]]:
    """Which processes answered for each arm so far, each named once in a row; what was set aside tells too."""
    told: dict[Arm, list[str]] = {arm: [] for arm in Arm}
    for entry in journal:
        if isinstance(entry.what, TelemetryWindow):
            told[entry.what.arm] += entry.what.markers
        elif isinstance(entry.what, JournalEvent) and entry.what.kind == SERVER_PROCESSES:
            for arm, marker in entry.what.data.items():
                told[Arm(arm)] += [str(marker)] if marker is not None else []
    return {arm: tuple(marker for marker, _ in groupby(markers)) for arm, markers in told.items()}


def same_processes(run: Run, before: Mapping[Arm, Sequence[str]], now: Mapping[Arm, str | None]) -> tuple[Arm, ...]:
    """The arms that are served by the process they were served by. UsageError where one is served by another.

    A server that was restarted says the same of itself as one that was put in its place. Where several answer in turn,
    or none tells, it is not known.
    """
    same = []
    for arm, marker in now.items():
        told = before.get(arm, ())
        if marker is None or not told or len(told) > len(set(told)):
            continue
        if marker == told[-1]:
            same.append(arm)
        elif marker not in told:
            raise UsageError(
                f"run {run.id} cannot go on: the server of the {arm} {run.arms[arm].name} is not the process it was "
                "when the run was cut short: it was restarted, or another took its place, and nobody can tell which; "
                "run the suite from its beginning, without --resume"
            )
    return tuple(same)


def require_able(run: Run, done: Done, *, by_cluster: bool) -> None:
    """Raises UsageError for a run that had ended, went on too often, or whose load somebody else is to send now."""
    if done.down is not None:
        name = run.arms[done.down.arm].name
        why = f"the {done.down.arm} {name} was not there {done.down.when}, by which the run ended"
        raise UsageError(f"run {run.id} cannot go on: {why}; run the suite again")
    if done.resumptions >= MAX_RESUMPTIONS:
        why = "it went on once already, and of a run that does so again nothing is said (few-interruptions)"
        raise UsageError(f"run {run.id} cannot go on: {why}; run it from its beginning, without --resume")
    if done.load.workers and done.load.spread is not by_cluster:
        senders = ("this machine", "a cluster")
        was, now = senders[done.load.spread], senders[not done.load.spread]
        raise UsageError(_cannot(run, [f"its load was sent by {was} and would be by {now} (--cluster)"]))


def _lasting(facts: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in facts.items() if name not in _CHANGES}


def _cannot(run: Run, changed: Sequence[str]) -> str:
    """Every change on a line of its own."""
    more = [f"and {len(changed) - _NAMED} more"] if len(changed) > _NAMED else []
    lines = "".join(f"\n  {one}" for one in [*changed[:_NAMED], *more])
    why = "cannot go on, for it would no longer be one measurement"
    return f"run {run.id} {why}:{lines}\nrun it from its beginning, without --resume"


def _differences(before: Mapping[str, object], now: Mapping[str, object], whose: str) -> Iterator[str]:
    """Every single value that differs, by where it stands, with what it was and what it is."""
    was, is_now = dict(leaf_values(before)), dict(leaf_values(now))
    for place in dict.fromkeys([*was, *is_now]):
        one, other = was.get(place), is_now.get(place)
        if json.dumps(one, sort_keys=True) != json.dumps(other, sort_keys=True):
            unit = next((unit for unit in _UNITS if place.endswith(unit)), "")
            yield f"{whose}{place.removesuffix(unit)} was {_shown(one, unit)} and is {_shown(other, unit)}"


def _shown(value: object, unit: str) -> str:
    """A quantity as a suite spells it; the unit of a bare number is in its name."""
    if value is None:
        return "nothing"
    if unit and isinstance(value, int | float) and not isinstance(value, bool):
        return as_written(_UNITS[unit](value))
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
