"""What a user may call a run: its id, a unique beginning of it, its label, @latest, @previous or @promoted.

@latest and @previous are runs that judge a candidate: a calibration, or a file of another tool, is found by its id or
label alone. @promoted is the newest run in a baseline series whose promotion was not withdrawn.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from sqlalchemy import Connection, Select, and_, false, select

from benchgate.errors import UsageError
from benchgate.store.promotions import promoted_run
from benchgate.store.tables import measured_here, run

SHORTEST_PREFIX = 4
_BACK = {"@latest": 0, "@previous": 1}
PROMOTED = "@promoted"
_KNOWN = (*_BACK, PROMOTED)
_SHOWN = 5
_NEWEST = (run.c.started_at.desc(), run.c.id.desc())
_LAST = "\U0010ffff"  # behind every character that an id can have


def resolve(connection: Connection, ref: str, *, suite: str | None = None) -> str:
    """The id of the run that `ref` means, among the runs of `suite` when one is given.

    Raises UsageError, with the candidates or the nearest names, when it means none or more than one.
    """
    if ref.startswith("@"):
        return _by_time(connection, ref, suite)
    found = _called(connection, ref, suite)
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{ref!r} means {len(found)} runs; give one of their ids: {_listed(found)}")
    known = connection.execute(_of_suite(select(run.c.id, run.c.label).order_by(*_NEWEST), suite)).all()
    ids = [row.id for row in known]
    names = [*ids, *(row.label for row in known if row.label is not None), *_KNOWN]
    raise UsageError(_unknown(ref, names, ids))


def _called(connection: Connection, ref: str, suite: str | None) -> list[str]:
    """The ids of the runs with this id, else with this label, else with an id that begins so; newest first."""
    if any(char == "\0" or "\ud800" <= char <= "\udfff" for char in ref):
        return []  # no id or label has such a character, and not every database can be asked for one
    wanted = _of_suite(select(run.c.id).order_by(*_NEWEST), suite)
    begins = and_(run.c.id >= ref, run.c.id < ref + _LAST) if len(ref) >= SHORTEST_PREFIX else false()
    for called in (run.c.id == ref, run.c.label == ref, begins):
        if found := list(connection.scalars(wanted.where(called))):
            return found
    return []


def _of_suite(wanted: Select[Any], suite: str | None) -> Select[Any]:
    return wanted if suite is None else wanted.where(run.c.suite_name == suite)


def _by_time(connection: Connection, ref: str, suite: str | None) -> str:
    if ref == PROMOTED:
        return promoted_run(connection, suite)
    if ref not in _BACK:
        near = get_close_matches(ref, _KNOWN, n=1, cutoff=0)
        raise UsageError(f"{ref!r} names no run; did you mean {near[0]}? Known: {', '.join(_KNOWN)}")
    judged = ~run.c.suite.contains('"calibration":true', autoescape=True)  # the text is canonical JSON
    wanted = select(run.c.id).where(judged, measured_here()).order_by(run.c.started_at.desc(), run.c.id.desc())
    wanted = wanted.limit(1).offset(_BACK[ref])
    found = connection.scalar(wanted if suite is None else wanted.where(run.c.suite_name == suite))
    if found is None:
        which = "has no run" if ref == "@latest" else "has fewer than two runs"
        of_suite = f" of suite {suite!r}" if suite is not None else ""
        raise UsageError(f"{ref} means nothing here: the store {which}{of_suite} yet; make one with `benchgate run`")
    return str(found)


def _unknown(ref: str, names: list[str], ids: list[str]) -> str:
    if not ids:
        return f"no run is called {ref!r}: the store has none yet; make one with `benchgate run`"
    if len(ref) < SHORTEST_PREFIX and any(id_.startswith(ref) for id_ in ids):
        return f"{ref!r} is too short for a run id; give at least {SHORTEST_PREFIX} characters of it"
    near = get_close_matches(ref, names, n=1)
    hint = f"did you mean {near[0]}?" if near else f"the newest runs are {_listed(ids)}"
    return f"no run is called {ref!r}; {hint}"


def _listed(ids: list[str]) -> str:
    more = f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else ""
    return ", ".join(ids[:_SHOWN]) + more
