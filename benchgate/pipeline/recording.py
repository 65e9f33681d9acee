"""A run in the store from its first row to its last: it ends whole, or says that it was cut short."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchgate.errors import NothingKept, StoreError
from benchgate.model.run import Run, RunStatus
from benchgate.pipeline.environment import utc_now
from benchgate.pipeline.judge import Kept
from benchgate.pipeline.measure import Work, measure
from benchgate.store.repository import RunWriter, Store


@contextmanager
def recorded(
    store: Store,
    run: Run,
    plan: bytes,
    *,
    may_go_on: bool = False,
    again: str = "benchgate run SUITE",
    spool: Path | None = None,
    note: Callable[[str], None] | None = None,
) -> Iterator[RunWriter]:
    """A run in the store that is never left looking complete, or still running, when it was cut short.

    `again` is the command that began it, which a note repeats where the run may go on.
    """
    writer = store.begin_run(run, plan, spool=spool, note=note)
    try:
        with cut_short(writer, may_go_on=may_go_on):
            yield writer
    except KeyboardInterrupt:
        if may_go_on and note is not None:
            note(f"run {run.id} was cut short; `{again} --resume --run {run.id}` goes on with it")
        raise


@contextmanager
def cut_short(writer: RunWriter, *, may_go_on: bool) -> Iterator[None]:
    """Mark a run as partial when something ends it from outside; it may then be resumed, or it is over.

    What ended it is raised, also where the store takes no mark any more or another process has the run.
    """
    try:
        yield
    except BaseException as cut:
        with suppress(StoreError):
            writer.event("cut_short", {"by": type(cut).__name__})
        with suppress(StoreError):
            _leave(writer, may_go_on=may_go_on)
        writer.close()
        raise


def _leave(writer: RunWriter, *, may_go_on: bool) -> None:
    """A run that was cut short: partial, and over unless it may go on."""
    if may_go_on:
        writer.suspend()
    else:
        writer.finish(RunStatus.PARTIAL, utc_now())


def measure_to_the_end(work: Work, *, may_go_on: bool, again: str = "benchgate run SUITE") -> None:
    """Measure what the plan holds, and end the run: whole, or partial where a deployment was not there.

    Where what is measured can be kept nowhere any more the run is cut short, and what was kept by then is judged.
    """
    try:
        whole = measure(work)
    except NothingKept as error:
        writer = work.sitting.writer
        then = f"; then `{again} --resume --run {writer.run_id}` goes on with it" if may_go_on else ""
        writer.record_loss(f"{error}{then}")
        _leave(writer, may_go_on=may_go_on)
    else:
        work.sitting.writer.finish(RunStatus.COMPLETE if whole else RunStatus.PARTIAL, utc_now())


def as_kept(writer: RunWriter) -> Kept:
    """What was kept of a run of which nothing more is measured."""
    try:
        evidence = writer.evidence()
        return Kept(evidence, writer.is_stored, writer.fault)
    finally:
        writer.close()
