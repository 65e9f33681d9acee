"""What a user may call a run: its id, a unique beginning of it, its label, @latest or @previous.

The last two are runs that judge a candidate: a calibration is found by its id or label alone.
"""

from __future__ import annotations

from difflib import get_close_matches

from sqlalchemy import Connection, select

from benchgate.errors import UsageError
from benchgate.store.tables import run

SHORTEST_PREFIX = 4
_BACK = {"@latest": 0, "@previous": 1}
_SHOWN = 5


def resolve(connection: Connection, ref: str, *, suite: str | None = None) -> str:
    """The id of the run that `ref` means, among the runs of `suite` when one is given.

    Raises UsageError, with the candidates or the nearest names, when it means none or more than one.
    """
    if ref.startswith("@"):
        return _by_time(connection, ref, suite)
    wanted = select(run.c.id, run.c.label).order_by(run.c.started_at.desc(), run.c.id.desc())
    known = connection.execute(wanted if suite is None else wanted.where(run.c.suite_name == suite)).all()
    ids = [row.id for row in known]
    if ref in ids:
        return ref
    labelled = [row.id for row in known if row.label == ref]
    found = labelled or [id_ for id_ in ids if len(ref) >= SHORTEST_PREFIX and id_.startswith(ref)]
    if len(found) == 1:
        return str(found[0])
    if found:
        raise UsageError(f"{ref!r} means {len(found)} runs; give one of their ids: {_listed(found)}")
    names = [*ids, *(row.label for row in known if row.label is not None), *_BACK]
    raise UsageError(_unknown(ref, names, ids))


def _by_time(connection: Connection, ref: str, suite: str | None) -> str:
    if ref not in _BACK:
        near = get_close_matches(ref, _BACK, n=1, cutoff=0)
        raise UsageError(f"{ref!r} names no run; did you mean {near[0]}? Known: {', '.join(_BACK)}")
    judged = ~run.c.suite.contains('"calibration":true', autoescape=True)  # the text is canonical JSON
    wanted = select(run.c.id).where(judged).order_by(run.c.started_at.desc(), run.c.id.desc())
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
