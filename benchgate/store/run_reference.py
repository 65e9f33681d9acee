"""Names of a run for users: its id, a unique id prefix, its label, @latest, @previous or @promoted; rules for labels.

@latest and @previous are runs that judge a candidate, complete ones as long as there are any: calibrations, files of
other tools and runs dated in the future are found by id or label alone. @promoted is the newest run in a baseline
series whose promotion was not withdrawn. Only a whole id takes precedence: a label that is also another run's id prefix
is ambiguous, and so is refused, as is a label that merely looks like an id.
"""

from __future__ import annotations

from sqlalchemy import Connection, Select, and_, false, or_, select

from benchgate.errors import Command, Remedy, UsageError
from benchgate.model.run import RunStatus
from benchgate.store import clock
from benchgate.store.locks import LABELS, lock_name
from benchgate.store.missing import (
    PROMOTED,
    SHORTEST_PREFIX,
    join_ids,
    looks_like_id,
    require_spelling,
    taken_label,
    unknown_name,
    unknown_run,
)
from benchgate.store.results import promoted_run
from benchgate.store.tables import calibrates, measured_here, of_suite, run

_OFFSETS = {"@latest": 0, "@previous": 1}
_NEWEST = (run.c.started_at.desc(), run.c.id.desc())
_AFTER_ALL = "\U0010ffff"  # behind every character that an id can have


def resolve(
    connection: Connection, ref: str, *, suite: str | None = None, whole: bool = False, partial: bool = False
) -> str:
    """Return the id of the run that `ref` means, among the runs of `suite` when one is given.

    With `whole` id prefixes are refused: the next run could make one ambiguous. With `partial` @latest and @previous
    count runs that are not complete. Raises UsageError, with candidates or the nearest names, for no run or more than
    one.
    """
    if ref.startswith("@"):
        return _id_by_time(connection, ref, suite, partial=partial)
    found: list[str] = []
    if not any(char == "\0" or "\ud800" <= char <= "\udfff" for char in ref):  # no id or label has those
        query = of_suite(select(run.c.id).order_by(*_NEWEST), suite)
        begins = and_(run.c.id >= ref, run.c.id < ref + _AFTER_ALL) if len(ref) >= SHORTEST_PREFIX else false()
        found = list(connection.scalars(query.where(run.c.id == ref))) or list(
            connection.scalars(query.where(or_(run.c.label == ref, begins)))
        )
    if not found:
        known = connection.execute(of_suite(select(run.c.id, run.c.label).order_by(*_NEWEST), suite))
        raise unknown_run(ref, [(row.id, row.label) for row in known])
    if len(found) > 1:
        raise UsageError(f"{ref!r} means {len(found)} runs; give one of their ids: {join_ids(found)}")
    (run_id,) = found
    if not run_id.startswith(ref) and looks_like_id(ref):
        raise UsageError(f"no run has the id {ref!r}; it is the label of run {run_id}: name that one by its id")
    if run_id != ref and run_id.startswith(ref) and whole:
        raise UsageError(f"{ref!r} is no whole id; run {run_id} begins so: name it by its whole id, or by its label")
    return run_id


def resolve_beside(connection: Connection, ref: str, run_id: str, suite: str) -> str:
    """Return the id of the run to compare with, which is another run; `@promoted` is of its suite."""
    found = resolve(connection, ref, suite=suite if ref == PROMOTED else None)
    if found == run_id:
        raise UsageError(
            f"{ref} means run {run_id}, which is the one to be judged, and a run says nothing against itself",
            remedies=(Remedy("name another, or measure one", Command.RUN),),
        )
    return found


def require_label(connection: Connection, label: str | None) -> None:
    """Raise UsageError unless a new run can have this label: one line that is no other run's name.

    Called in the transaction that writes the run: of several processes with one label, one gets it.
    """
    if label is None:
        return
    require_spelling(label)
    lock_name(connection, label, space=LABELS)
    if (taken := connection.scalar(select(run.c.id).where(run.c.label == label).limit(1))) is not None:
        raise taken_label(label, taken)


def skipped_runs(connection: Connection, run_id: str) -> list[str]:
    """Return the ids of the newer runs that @latest skips because they are not complete, newest first."""
    began = select(run.c.started_at).where(run.c.id == run_id).scalar_subquery()
    newer = _judging(connection).where(run.c.status != RunStatus.COMPLETE.value, run.c.started_at > began)
    return list(connection.scalars(newer))


def _judging(connection: Connection) -> Select[str]:
    """Select the ids of runs that judge a candidate, newest first.

    A run dated in the future would stay the newest, before everything measured from now on.
    """
    begun = run.c.started_at <= clock.latest(connection)
    return select(run.c.id).where(~calibrates(), begun, measured_here()).order_by(*_NEWEST)


def _id_by_time(connection: Connection, ref: str, suite: str | None, *, partial: bool) -> str:
    if ref == PROMOTED:
        return promoted_run(connection, suite)
    if ref not in _OFFSETS:
        raise unknown_name(ref)
    judging = of_suite(_judging(connection), suite)
    complete = judging.where(run.c.status == RunStatus.COMPLETE.value)
    skips_others = not partial and connection.scalar(complete.limit(1)) is not None
    found = connection.scalar((complete if skips_others else judging).limit(1).offset(_OFFSETS[ref]))
    if found is not None:
        return str(found)
    its_suite = f" of suite {suite!r}" if suite is not None else ""
    fewer = "complete runs" if skips_others else "runs"
    which = "has no run" if ref == "@latest" else f"has fewer than two {fewer}"
    imported = of_suite(select(run.c.id).where(~measured_here()), suite).limit(1)
    hint = ""
    if ref == "@latest" and connection.scalar(imported) is not None:
        which = "has no run of its own"
        hint = ", only imports, by which nothing is judged or sized"
    message = f"{ref} means nothing here: the store {which}{its_suite} yet{hint}"
    raise UsageError(message, remedies=(Remedy("make one", Command.RUN),))
