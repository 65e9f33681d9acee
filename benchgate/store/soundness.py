"""Whether the rows of a run hold together: every hash, every id, every text that is read later. Asks no database.

What passes here can be judged, shown and hashed like a run that was measured here. It says nothing of who made it: who
may write a bundle may write a run, so take bundles from where you would let somebody write to the store.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from uuid import UUID

import numpy as np
from sqlalchemy import Table

from benchgate.errors import EvidenceError, StoreError
from benchgate.model.deployment import Arm, sha256_of
from benchgate.model.noise import NoiseProfile
from benchgate.model.records import RequestColumns
from benchgate.model.run import LoadObservation, RunStatus
from benchgate.store import codec, rows, tables
from benchgate.store.check_rows import check_rows
from benchgate.store.promotions import read_promotion, require_grounds
from benchgate.store.results import read_verdict
from benchgate.store.sealing import is_over
from benchgate.store.telemetry_rows import read_telemetry
from benchgate.store.tombstones import evidence_sha256
from benchgate.store.whole_run import WholeRun, unpacked

_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z", re.ASCII)
_METRIC = re.compile(r"[a-z][a-z0-9_]*")
_INSTANTS = (
    (tables.run, "started_at"),
    (tables.run, "finished_at"),
    (tables.verdict, "decided_at"),
    (tables.noise_profile, "measured_at"),
    (tables.promotion, "promoted_at"),
    (tables.imported, "imported_at"),
    (tables.tombstone, "removed_at"),
)
_JSON = (
    (tables.run, "suite"),
    (tables.run, "environment"),
    (tables.arm, "deployment"),
    (tables.observation, "meta"),
    (tables.telemetry, "meta"),
    (tables.event, "data"),
    (tables.verdict, "document"),
    (tables.noise_profile, "document"),
    (tables.promotion, "document"),
    (tables.imported, "document"),
    (tables.tombstone, "sealed"),
)
_DOCUMENTS = (tables.noise_profile, tables.promotion, tables.imported)
_OF_OTHER_SHAPE = (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError)


def require_sound(whole: WholeRun, source: str) -> None:
    """Raise EvidenceError, which begins with `source`, unless everything of the run holds together."""
    require_id(whole.id, f"{source}: the run's id")
    with _problems(f"{source}: run {whole.id}"):
        _require_plan(whole)
        _require_keys(whole)
        _require_texts(whole)
        _require_state(whole)
        _require_evidence(whole)
        for verdict in whole.of(tables.verdict):
            _require_verdict(verdict)
        for table in _DOCUMENTS:
            _require_documents(whole.of(table), table)
        _require_others(whole)


@contextmanager
def _problems(place: str) -> Iterator[None]:
    """Says where; what a later reader would stumble over in strange rows is an error of theirs, not a defect here."""
    try:
        yield
    except StoreError as exc:
        raise EvidenceError(f"{place}: {exc}") from exc
    except _OF_OTHER_SHAPE as exc:
        raise EvidenceError(f"{place}: it cannot be read ({type(exc).__name__}: {str(exc)[:200]})") from exc


def require_id(said: object, what: str) -> None:
    """Ids become names of files, and texts in reports."""
    try:
        known = str(UUID(str(said))) == said
    except ValueError:
        known = False
    if not known:
        raise EvidenceError(f"{what} is {ascii(said)[:60]}; expected a UUID in small letters")


def _require_plan(whole: WholeRun) -> None:
    found = codec.digest(unpacked(whole.plan, "its plan"))
    if found != whole.run["plan_sha256"]:
        raise EvidenceError(f"its plan hashes to {found}, not to {whole.run['plan_sha256']}")


def _require_keys(whole: WholeRun) -> None:
    """What a database would refuse half-way."""
    for name, found in whole.parts.items():
        key = [column.name for column in tables.metadata.tables[name].primary_key.columns]
        if len({tuple(row[part] for part in key) for row in found}) != len(found):
            raise EvidenceError(f"two rows of {name} have one key")


def _require_texts(whole: WholeRun) -> None:
    """Texts that are compared as texts have one spelling each: instants, and JSON of which no reader sees a half.

    Names are shown on terminals and in the logs of CI systems, which a line break or an escape would command.
    """
    for name in ("label", "suite_name"):
        if any(unicodedata.category(char) == "Cc" for char in whole.run[name] or ""):
            raise EvidenceError(f"its {name} is {ascii(whole.run[name])[:60]}; expected no control character")
    for table, name in _INSTANTS:
        for row in _of(whole, table):
            if row[name] is not None and not _is_instant(row[name]):
                raise EvidenceError(f"{table.name}.{name} is {ascii(row[name])[:40]}; expected an instant in UTC")
    for table, name in _JSON:
        for row in _of(whole, table):
            if rows.to_json(json.loads(row[name]), f"{table.name}.{name}") != row[name]:
                raise EvidenceError(f"{table.name}.{name} is not spelled as benchgate does: it was changed")


def _is_instant(said: str) -> bool:
    """Spelled as one, so that texts can be compared in its place, and a day and a time that there is."""
    if not _INSTANT.fullmatch(said):
        return False
    try:
        datetime.fromisoformat(said)
    except ValueError:
        return False
    return True


def _of(whole: WholeRun, table: Table) -> Sequence[rows.Row]:
    return [whole.run] if table is tables.run else whole.of(table)


def _require_state(whole: WholeRun) -> None:
    run = whole.run
    status = RunStatus(run["status"])
    if status is RunStatus.COMPLETE and run["evidence_sha256"] is None:
        raise EvidenceError("it is complete and has no hash of its evidence")
    if status is RunStatus.RUNNING and (run["evidence_sha256"], run["finished_at"]) != (None, None):
        raise EvidenceError("it is running and says when it finished")
    if is_over(run) and run["finished_at"] is None:
        raise EvidenceError("it is finished and does not say when")
    began, ended = (datetime.fromisoformat(run[name] or run["started_at"]) for name in ("started_at", "finished_at"))
    if ended < began:
        raise EvidenceError(f"it says that it ended at {run['finished_at']}, before it began at {run['started_at']}")
    raw = (whole.of(table) for table in (tables.observation, tables.telemetry, tables.event, tables.tombstone))
    if len(whole.story) != sum(map(len, raw)):
        raise EvidenceError("two rows of it have one place in the order of the run")
    if whole.of(tables.tombstone) and not is_over(run):
        raise EvidenceError("records were removed of a run that may go on")


def _require_evidence(whole: WholeRun) -> None:
    """The hash of each observation, that it can be read, and the hash over all of them, removed ones too."""
    rows.read_run(whole.run, whole.of(tables.arm))
    left: list[tuple[str, rows.Row]] = []
    for table, read in ((tables.observation, rows.read_observation), (tables.telemetry, read_telemetry)):
        for row in whole.of(table):
            with _problems(f"{table.name} {row['seq']}"):
                unpacked(row["data"], "its data")
                seen = read(row)
                for requests in seen.parts if isinstance(seen, LoadObservation) else ():
                    _require_lengths(requests)
            left.append((table.name, row))
    stones = whole.of(tables.tombstone)
    if is_over(whole.run):
        found = evidence_sha256(whole.run, whole.of(tables.arm), left, stones, whole.of(tables.event))
        if found != whole.run["evidence_sha256"]:
            raise EvidenceError("it is not what it was when it finished")


def _require_lengths(requests: RequestColumns) -> None:
    n, starts = len(requests), requests.chunk_start
    columns = requests.to_columns()
    whole = {name for name, column in columns.items() if name not in ("chunk_start", "chunk_ns") and len(column) != n}
    if whole or len(starts) != n + 1 or starts[0] != 0 or starts[-1] != len(requests.chunk_ns):
        raise EvidenceError("the columns of its requests have different lengths")
    if (np.diff(starts) < 0).any():
        raise EvidenceError("the chunks of its requests overlap")


def _require_verdict(row: rows.Row) -> None:
    document = read_verdict(row).document
    judged = document.get("run")
    if isinstance(judged, dict) and judged.get("id") != row["run_id"]:
        raise EvidenceError(f"verdict {row['seq']} was reached on run {ascii(judged.get('id'))[:60]}")
    if row["compared_run_id"] is not None:
        require_id(row["compared_run_id"], f"verdict {row['seq']}: the run that it compares with")
    list(check_rows(row["run_id"], row["seq"], document))


def _require_documents(found: Sequence[rows.Row], table: Table) -> None:
    for row in found:
        if rows.text_sha256(row["document"]) != row["sha256"]:
            raise EvidenceError(f"its {table.name} does not hash to {row['sha256'][:70]!r}")


def _require_others(whole: WholeRun) -> None:
    for row in whole.of(tables.metric):
        if row["arm"] not in set(Arm) or not _METRIC.fullmatch(row["name"]):
            raise EvidenceError(f"it has a metric {ascii(row['name'])[:60]} of the arm {ascii(row['arm'])[:60]}")
        if not all(math.isfinite(row[name]) for name in ("value", "lower", "upper") if row[name] is not None):
            raise EvidenceError(f"its metric {row['name']} is not finite")
    for row in whole.of(tables.promotion):
        if row["suite_name"] != whole.run["suite_name"]:
            raise EvidenceError(f"it was promoted for suite {row['suite_name'][:60]!r}, and is of another")
        promotion = read_promotion(row)
        require_grounds(promotion, whole.run, tuple(read_verdict(verdict) for verdict in whole.of(tables.verdict)))
    for row in whole.of(tables.noise_profile):
        profile = NoiseProfile.from_json(json.loads(row["document"]))
        said = (profile.run_id, profile.measured_at, sha256_of(asdict(profile.key)))
        if said != (whole.id, row["measured_at"], row["key_sha256"]):
            raise EvidenceError("its noise profile is of another run, or listed as another")
