"""Where what a run measures is kept: in its spool, then in the database. Either is enough to go on with.

A database that is gone, full or locked for too long is not asked again until the run ends; then it gets from the spool
what it lacks. A spool that cannot be written any more is given up. Where both are lost, nothing more can be measured.
A run that another process took over is not written any more.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, insert, select

from benchgate.errors import EvidenceError, NothingKept, StoreError, TakenOver
from benchgate.model.deployment import Arm, Deployment
from benchgate.model.run import ALL_STORED, Evidence, Run, RunStatus
from benchgate.store import recovering, rows, sealing, tables
from benchgate.store.engine import Address, Database, fetch
from benchgate.store.evidence import Known, known_beside, read_evidence, rows_of
from benchgate.store.owning import require_ours, taken_over
from benchgate.store.spool import Spool
from benchgate.store.spooled import Spooled, read_spool

Write = Callable[[Connection], object]
Note = Callable[[str], None]

_NEITHER = "neither the store nor the spool takes what is measured any more"
_CUT_SHORT = {"status": RunStatus.PARTIAL.value, "finished_at": None}


class Keeping:
    """The rows of one run on their way to the disk. Without a spool every StoreError is the caller's."""

    def __init__(
        self,
        database: Database,
        run: Run,
        spool: Spool | None = None,
        known: Known | None = None,
        note: Note | None = None,
        next_seq: int = 0,
    ) -> None:
        self._database = database
        self._run = run
        self._spool = spool
        self._known = known or Known()
        self._note = note
        self._file = _identity(database.address)
        self._spool_works = spool is not None
        self._away: str | None = None  # why the database lacks something of the run
        self._lost: str | None = None  # why something is kept nowhere
        self._end: Mapping[str, Any] | None = None
        self._settled = False
        self._next_seq = next_seq
        self._taken: str | None = None  # why the run is not ours any more
        self.still_held: Callable[[], bool] | None = None
        """Whether the lock of the run is still this process's; None where it holds none (any more)."""

    @property
    def fault(self) -> str | None:
        """What the store lacks of the run, and how it gets it; None where it has all that was measured."""
        if self._spool is None or self._away is None:
            return self._lost
        kept = f"what was measured is kept in {self._spool.path}: {self._remedy(self._spool)}"
        return f"{self._lost or self._away}; {kept}"

    @property
    def is_stored(self) -> bool:
        """Whether the database has all that was kept of the run."""
        return self._away is None

    def look_up(self) -> None:
        """What the store knows beside the run, once more: it is another thing where the run goes on today."""
        with self._database.reading() as connection:
            self._known = known_beside(connection, self._run)

    def require_stored(self) -> None:
        """Raises StoreError where the database lacks something of the run."""
        if self._away is not None:
            raise StoreError(f"{self._away}; nothing was measured: try again when the store is there")

    def give_up(self, why: str) -> None:
        """Something was kept nowhere, and the run ends by that."""
        self._lost = why

    def keep(self, table: str, row: rows.Row, write: Write) -> None:
        """A row of a table; `write` puts it into the database. Raises NothingKept when neither took it.

        TakenOver, here and in whatever else writes, when the run is another process's by now.
        """
        self._next_seq = row.get("seq", self._next_seq)
        try:
            spooled = self._to_spool(table, row)
            if not self._to_database(write) and not spooled:
                self.give_up(f"{_NEITHER}: {self._away}")
                raise NothingKept(self._lost)
        finally:
            if "seq" in row:
                self._next_seq = row["seq"] + 1

    def describe(self, arm: Arm, deployment: Deployment) -> None:
        """Replaces what the run knows of an arm, and looks up what the store knows of it."""
        self._run = replace(self._run, arms={**self._run.arms, arm: deployment})
        row = rows.arm_row(self._run.id, arm, deployment)

        def write(connection: Connection) -> None:
            recovering.replace_arm(connection, row)
            if self._spool is not None:
                self._known = known_beside(connection, self._run)

        self.keep("arm", row, write)

    def finish(self, end: Mapping[str, Any]) -> None:
        """Ends the run with this `status` and `finished_at`; a database that was away is tried once more.

        A run that lost something is partial, whatever the caller says.
        """
        whole = self._lost is None
        self._end = end if whole else {**end, "status": RunStatus.PARTIAL.value}
        spooled = self._to_spool("run", {"run_id": self._run.id, **self._end})
        self._catch_up()
        sealed = self._end
        self._settled = self._to_database(lambda connection: sealing.seal_run(connection, self._run.id, sealed))
        if whole and not spooled and not self._settled:
            self.give_up(f"{_NEITHER}: {self._away}")

    def leave_open(self) -> None:
        """Marks the run as cut short, so that it may go on; a database that was away is tried once more."""
        self._end = _CUT_SHORT
        self._catch_up()
        self._settled = self._to_database(self._leave)
        if self.fault is not None and self._lost is None:
            self._tell(self.fault)

    def evidence(self) -> Evidence:
        """All that was kept of the run by now: from the database, or from the spool where that is away."""
        if self._away is None:
            try:
                return self._stored()
            except EvidenceError:
                raise
            except StoreError as error:
                self._lose_database(error)
        # What stands behind the end of a spool that was given up is in the database alone.
        end = self._end if self._end is None or self._spool_works else _CUT_SHORT
        return read_evidence(self._spooled().run_rows(end), self._known)

    def close(self) -> None:
        """Lets go of the spool: it goes where the store has all of the run, else it stays."""
        if self._spool is None:
            return
        if self._settled and self.is_stored:
            self._spool.remove()
        else:
            self._spool.close()

    def discard(self) -> None:
        """Lets go of the spool and deletes it: of a run of which nothing was measured that the store does not have."""
        if self._spool is not None:
            self._spool.remove()

    def _leave(self, connection: Connection) -> None:
        """With a word that the spool has nothing more, by which whoever goes on knows that none is needed."""
        if self._spool is not None:
            said = {"run_id": self._run.id, "seq": self._next_seq, "kind": ALL_STORED, "data": "{}"}
            connection.execute(insert(tables.event), said)
        sealing.leave_open(connection, self._run.id)

    def _stored(self) -> Evidence:
        with self._database.reading() as connection:
            run = fetch(connection, select(tables.run).where(tables.run.c.id == self._run.id))
            if not run:
                raise StoreError(f"the store {self._database.address.shown} has run {self._run.id} no more")
            found = rows_of(connection, run[0])
            known = known_beside(connection, found.as_run())
        return read_evidence(found, known)

    def _to_spool(self, table: str, row: rows.Row) -> bool:
        if self._spool is None or not self._spool_works:
            return False
        try:
            self._spool.append(table, row)
        except StoreError as error:
            self._spool_works = False  # a later row must not stand behind one that is missing
            if self._away is None:
                self._tell(f"{error}; the run goes on with the store alone")
            return False
        return True

    def _to_database(self, write: Write) -> bool:
        if self._away is not None:
            return False
        try:
            self._require_file()
            with self._database.writing() as connection:
                self._require_ours(connection)
                write(connection)
        except EvidenceError:
            raise
        except StoreError as error:
            self._lose_database(error)
            return False
        return True

    def _require_ours(self, connection: Connection) -> None:
        run_id = self._run.id
        if self._settled and self._end != _CUT_SHORT:
            return  # it was ended here, and takes no more from anybody: that the database says itself
        try:
            if self._taken is not None:
                raise TakenOver(self._taken)
            if self.still_held is not None and not self.still_held():
                raise TakenOver(taken_over(run_id, "the file beside the store that says who measures it was removed"))
            require_ours(connection, run_id, self._next_seq)
        except TakenOver as error:
            self._taken = str(error)
            raise

    def _lose_database(self, error: StoreError) -> None:
        """From now on the spool is what the run is kept in. The error is the caller's where there is none."""
        if self._spool is None:
            raise error
        self._away = str(error)
        if self._spool_works:
            self._tell(f"{error}; the run goes on, and is kept in {self._spool.path}")

    def _catch_up(self) -> None:
        """Gives a database that was away what it lacks, where it is there again."""
        if self._away is None:
            return
        spooled = self._spooled()
        try:
            self._require_file()
            with self._database.writing() as connection:
                recovering.bring_in(connection, spooled)
                self._require_ours(connection)
        except TakenOver:
            raise
        except EvidenceError as error:
            self._taken = taken_over(self._run.id, str(error))
            raise TakenOver(self._taken) from error
        except StoreError as error:
            self._away = str(error)
        else:
            self._away = None

    def _spooled(self) -> Spooled:
        if self._spool is None:
            raise StoreError(f"run {self._run.id} is kept in the store alone")
        return read_spool(self._spool.path)

    def _require_file(self) -> None:
        """An SQLite file that was removed or replaced still takes rows, and nobody would ever find them."""
        if self._spool is not None and _identity(self._database.address) != self._file:
            raise StoreError(f"the store {self._database.address.shown}: its file was removed or replaced meanwhile")

    def _remedy(self, spool: Spool) -> str:
        address = self._database.address
        command = ["benchgate", "store", "recover", str(spool.path)]
        if address.shown_is_whole:
            return f"bring it into the store with `{shlex.join([*command, '--store', address.shown])}`"
        return f"bring it into the store with `{shlex.join(command)}` and the --store, or BENCHGATE_STORE, of this run"

    def _tell(self, line: str) -> None:
        if self._note is not None:
            self._note(line)


def _identity(address: Address) -> tuple[int, int] | None:
    """Which file an SQLite store is; None where it is none."""
    if address.path is None:
        return None
    try:
        found = address.path.stat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino)
