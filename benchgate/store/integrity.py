"""Integrity rules of a store: one list (`RULES`) for `store check`, exports, imports and the removal of raw records.

A run that passes them can be judged, shown and hashed like a run that was measured here. The rules do not prove who
made it: with write access to a bundle, a run can be forged. Import bundles only from where you accept database writes.

`store check` adds what only a database can show: damaged pages, missing triggers, broken links and future dates. It
reads one state of the database and changes nothing.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import Connection, ForeignKeyConstraint, Table, Text, and_, func, select, text

from benchgate.errors import BenchgateError, EvidenceError, StoreError
from benchgate.model import codec
from benchgate.model.client import ClientProfile
from benchgate.model.deployment import sha256_of
from benchgate.model.metric import TREND_UNITS
from benchgate.model.noise import NoiseProfile
from benchgate.model.run import MetricRow, RunStatus
from benchgate.model.verdict import Unit
from benchgate.store import clock, raw_records, results, rows, tables
from benchgate.store.database import Database, fetch
from benchgate.store.evidence import read_context, read_evidence, rows_of
from benchgate.store.stored_run import (
    ORDERED_TABLES,
    PARTS,
    RAW,
    WholeRun,
    is_over,
    most_unpacked,
    read_whole,
    removal,
    unpacked,
)

Problems = Iterator[tuple[str, str | None]]  # places in a run, each with its problem, if any
RECOMPUTED = "metrics held against their records"

_GUARDED_TABLES = (
    tables.plan, tables.run, tables.arm, tables.observation, tables.telemetry, tables.event, tables.verdict,
    tables.check_result, tables.promotion, tables.imported, tables.tombstone, tables.client_profile,
    tables.noise_profile,
)  # fmt: skip
_COUNTED_TABLES = {
    "plans": tables.plan,
    "runs": tables.run,
    "observation rows": tables.observation,
    "telemetry rows": tables.telemetry,
    "tombstones": tables.tombstone,
    "verdicts": tables.verdict,
    "checks": tables.check_result,
    "metrics": tables.metric,
    "promotions": tables.promotion,
    "imports": tables.imported,
    "client profiles": tables.client_profile,
    "noise profiles": tables.noise_profile,
}
_SELECT_TRIGGERS = {
    "sqlite": "SELECT DISTINCT tbl_name FROM sqlite_master WHERE type = 'trigger'",
    "postgresql": (
        "SELECT DISTINCT c.relname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid "
        "JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = current_schema() AND NOT t.tgisinternal AND t.tgenabled <> 'D'"
    ),
}
_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z", re.ASCII)
_COLUMNS = tuple((table, column) for table in (tables.run, *PARTS) for column in table.columns)
_INSTANT_COLUMNS = tuple((table, column.name) for table, column in _COLUMNS if column.name.endswith("_at"))
_JSON = {"suite", "environment", "deployment", "meta", "document", "sealed", "data"}
_JSON_COLUMNS = tuple(
    (table, column.name) for table, column in _COLUMNS if column.name in _JSON and isinstance(column.type, Text)
)
_METRIC_NAME = re.compile(r"[a-z][a-z0-9_]*")
_MAY_BE_NEGATIVE = ("score", "recovery")
_MAY_BE_ABOVE_ONE = "recovery"
_MAX_LISTED = 20
_MAX_NAMED = 4
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError)


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem of a run (None: of the store itself), with its place there."""

    run_id: str | None
    place: str
    problem: str


@dataclass(frozen=True, slots=True)
class CheckReport:
    """Result of `store check`: the number of rows that were read, and every finding."""

    rows: Mapping[str, int]  # number that was read, by kind
    findings: tuple[Finding, ...]


def check_store(database: Database, *, figures: bool = False) -> CheckReport:
    """Check a whole store. `figures` also recomputes every metric from its records, which takes longer than the rest.

    A damaged file is the only finding, for its rows prove nothing. Raises StoreError where it cannot be read at all.
    """
    with database.reading() as connection:
        if damage := list(_file_findings(connection)):
            return CheckReport({}, tuple(damage))
        counted = {
            name: int(connection.scalar(select(func.count()).select_from(table)) or 0)
            for name, table in _COUNTED_TABLES.items()
        }
        guarded = set(connection.scalars(text(_SELECT_TRIGGERS[connection.dialect.name])))
        unguarded = "no trigger refuses changes of it: what it holds may be altered"
        findings = [
            Finding(None, f"table {table.name}", unguarded) for table in _GUARDED_TABLES if table.name not in guarded
        ]
        # Both databases refuse rows whose row in another table is missing, unless such checks are off.
        for table in tables.metadata.sorted_tables:
            for constraint in sorted(table.foreign_key_constraints, key=lambda one: sorted(one.column_keys)):
                findings += _orphans(connection, table, constraint)
        unlinked, recomputed, latest = {finding.run_id for finding in findings}, 0, clock.latest(connection)
        for run_id in connection.scalars(select(tables.run.c.id).order_by(tables.run.c.id)).all():
            try:
                whole = read_whole(connection, run_id)
            except EvidenceError:
                continue  # its plan is missing, which is among the broken links
            except StoreError as error:  # a lost file of raw records; the database raises other errors in here
                findings.append(Finding(run_id, "raw records", str(error)))
                continue
            found = list(check_run(whole))
            for place, instant in whole.instants():
                if instant is not None and instant > latest:
                    problem = f"it is of {instant}, which is still to come: until then it counts for nothing"
                    found.append(Finding(run_id, place, f"{problem}; the clock of the machine that wrote it was wrong"))
            found += _check_row_findings(connection, run_id)
            if figures and not found and run_id not in unlinked:
                n_metrics, found = _figure_findings(connection, whole)
                recomputed += n_metrics
            findings += found
        profile = tables.client_profile
        for row in fetch(connection, select(profile).order_by(*profile.primary_key.columns)):
            if (mismatch := _hash_problem(row) or _problem_of(_client_problem, row)) is not None:
                findings.append(Finding(None, _place(profile, row), mismatch))
    return CheckReport(counted | ({RECOMPUTED: recomputed} if figures else {}), tuple(findings))


def validate_run(whole: WholeRun, source: str) -> None:
    """Raise EvidenceError, which begins with `source`, for the first rule that a run violates."""
    for finding in check_run(whole):
        run = f"run {whole.id}" if is_uuid(whole.id) else "its run"
        place = "" if finding.place == "run" else f", {finding.place}"
        raise EvidenceError(f"{source}: {run}{place}: {finding.problem}")


def check_run(whole: WholeRun, *, evidence_only: bool = False) -> Iterator[Finding]:
    """Yield every violation of a rule. Asks no database."""
    for rule in _EVIDENCE_RULES if evidence_only else RULES:
        try:
            for place, problem in rule(whole):
                if problem is not None:
                    yield Finding(whole.id, place, problem)
        except (StoreError, *_UNREADABLE) as error:
            yield Finding(whole.id, "run", _describe(error))


def is_uuid(value: object) -> bool:
    """Return True for a UUID in small letters. Run ids become file names and text in reports."""
    try:
        return str(UUID(str(value))) == value
    except ValueError:
        return False


def unused_plans(connection: Connection) -> int:
    """Count the plans without a run, left over from runs that were deleted by hand. They do no harm."""
    used = select(1).where(tables.run.c.plan_sha256 == tables.plan.c.sha256).exists()
    return int(connection.scalar(select(func.count()).select_from(tables.plan).where(~used)) or 0)


# The rules


def _identity_problems(whole: WholeRun) -> Problems:
    """Report a malformed id, another plan, and duplicate keys, which a database refuses halfway through an import."""
    if not is_uuid(whole.id):
        yield "run", f"its id is {ascii(whole.id)[:60]}; expected a UUID in small letters"
    for name, found in whole.parts.items():
        key = [column.name for column in tables.metadata.tables[name].primary_key.columns]
        if len({tuple(row[part] for part in key) for row in found}) != len(found):
            yield f"table {name}", f"two rows of {name} have one key"
    plan_sha256 = codec.digest(unpacked(whole.plan, "its plan"))
    if plan_sha256 != whole.run["plan_sha256"]:
        yield "plan", f"it hashes to {plan_sha256}, not to {whole.run['plan_sha256']}"


def _text_problems(whole: WholeRun) -> Problems:
    """Texts that are compared as texts have one spelling each: instants, and JSON without duplicate keys.

    Names are shown on terminals and in CI logs, which a line break or an escape sequence would command.
    """
    for name in ("label", "suite_name"):
        if any(unicodedata.category(char) == "Cc" for char in whole.run[name] or ""):
            yield "run", f"its {name} is {ascii(whole.run[name])[:60]}; expected no control character"
    for table, name in _INSTANT_COLUMNS:
        for row in _rows(whole, table):
            if row[name] is not None and not _is_instant(row[name]):
                yield _place(table, row), f"{table.name}.{name} is {ascii(row[name])[:40]}; expected an instant in UTC"
    for table, name in _JSON_COLUMNS:
        for row in _rows(whole, table):
            if rows.to_json(json.loads(row[name]), f"{table.name}.{name}") != row[name]:
                yield _place(table, row), f"{table.name}.{name} is not spelled as benchgate does: it was changed"


def _state_problems(whole: WholeRun) -> Problems:
    run = whole.run
    status, sealed, finished_at = run["status"], run["evidence_sha256"] is not None, run["finished_at"]
    if status not in set(RunStatus):
        yield "run", f"its status is {ascii(status)[:60]}; expected one of {', '.join(RunStatus)}"
        return
    if status == RunStatus.RUNNING.value and sealed:
        yield "run", "it is running, and has the hash of a finished run"
    elif status == RunStatus.RUNNING.value and finished_at is not None:
        yield "run", f"it is running, and says that it ended at {finished_at}"
    elif status == RunStatus.COMPLETE.value and not sealed:
        yield "run", "it is complete, and no hash covers its evidence"
    elif is_over(run) and finished_at is None:
        yield "run", f"it is {status}, and does not say when it ended"
    elif datetime.fromisoformat(finished_at or run["started_at"]) < datetime.fromisoformat(run["started_at"]):
        yield "run", f"it says that it ended at {finished_at}, before it began at {run['started_at']}"
    if whole.of(tables.tombstone) and not is_over(run):
        yield "tombstones", "records of it were removed, and it may be resumed"


def _record_problems(whole: WholeRun) -> Problems:
    """Every record has a place of its own, which telemetry and events share, and can be read as it was written."""
    places = {(table.name, row["seq"]) for table in ORDERED_TABLES for row in whole.of(table)}
    places |= {(stone["of_table"], stone["seq"]) for stone in whole.of(tables.tombstone)}
    for seq, n_rows in sorted(Counter(seq for _, seq in places).items()):
        yield f"place {seq}", f"{n_rows} rows have it, so two processes wrote to this run" if n_rows > 1 else None
    rows.read_run(whole.run, whole.of(tables.arm))
    for table, _ in RAW:
        for row in whole.of(table):
            yield f"{table.name} {row['seq']}", _problem_of(_record_problem, table, row)


def _record_problem(table: Table, row: rows.Row) -> str | None:
    if row["codec"] == raw_records.PARQUET:
        raw_records.require_size(row["data"], most_unpacked(len(row["data"])))
    else:
        unpacked(row["data"], "its data")
    if table is tables.telemetry:
        rows.read_telemetry(row)
        return None
    rows.read_observation(row)
    return None


def _hash_problems(whole: WholeRun) -> Problems:
    """A finished run still has the evidence it ended with, by its raw rows and the tombstones of removed ones."""
    there = {(table.name, row["seq"]) for table, _ in RAW for row in whole.of(table)}
    both = there & {(stone["of_table"], stone["seq"]) for stone in whole.of(tables.tombstone)}
    for name, seq in sorted(both):
        yield f"{name} {seq}", "it is there, and so is a tombstone that says it was removed"
    if both or not is_over(whole.run):
        return
    found = whole.compute_sha256()
    if found != whole.run["evidence_sha256"]:
        yield "run", f"its evidence hashes to {found}, not to {whole.run['evidence_sha256']} as it ended"


def _verdict_problem(row: rows.Row) -> str | None:
    verdict = results.read_verdict(row)
    judged = verdict.document.get("run")
    if isinstance(judged, dict) and judged.get("id") != row["run_id"]:
        return f"it was reached on run {ascii(judged.get('id'))[:60]}"
    if row["compared_run_id"] is not None and not is_uuid(row["compared_run_id"]):
        return f"it compares with run {ascii(row['compared_run_id'])[:60]}; expected a UUID in small letters"
    if row["own"] != int(verdict.of_the_run_itself):
        verb = "judges" if verdict.of_the_run_itself else "does not judge"
        return f"it {verb} the run itself, and is listed as one that does otherwise"
    list(rows.check_rows(row["run_id"], row["seq"], verdict.document))
    return None


def _document_problems(whole: WholeRun) -> Problems:
    for row in whole.of(tables.verdict):
        yield f"verdict {row['seq']}", _problem_of(_verdict_problem, row)
    for row in whole.of(tables.imported):
        yield _place(tables.imported, row), _hash_problem(row) or _problem_of(_imported_problem, row)
    for row in whole.of(tables.noise_profile):
        yield _place(tables.noise_profile, row), _hash_problem(row) or _problem_of(_noise_problem, row)
    for row in whole.of(tables.promotion):
        yield _place(tables.promotion, row), _hash_problem(row) or _problem_of(_promotion_problem, whole, row)


def _hash_problem(row: rows.Row) -> str | None:
    found = rows.text_sha256(row["document"])
    return None if found == row["sha256"] else f"its document hashes to {found}, not to {ascii(row['sha256'])[:70]}"


def _client_problem(row: rows.Row) -> str | None:
    profile = ClientProfile.from_json(json.loads(row["document"]))
    key = (profile.fingerprint, profile.measured_at)
    return None if key == (row["fingerprint"], row["measured_at"]) else "it is listed as another"


def _imported_problem(row: rows.Row) -> str | None:
    same = json.loads(row["document"])["sha256"] == row["source_sha256"]
    return None if same else "it is listed as made of another file"


def _noise_problem(row: rows.Row) -> str | None:
    profile = NoiseProfile.from_json(json.loads(row["document"]))
    key = (profile.run_id, profile.measured_at, sha256_of(asdict(profile.key)))
    return None if key == (row["run_id"], row["measured_at"], row["key_sha256"]) else "it is listed as another"


def _promotion_problem(whole: WholeRun, row: rows.Row) -> str | None:
    if row["suite_name"] != whole.run["suite_name"]:
        return f"it is of suite {ascii(row['suite_name'])[:60]}, and its run is of another"
    verdicts = tuple(results.read_verdict(verdict) for verdict in whole.of(tables.verdict))
    results.require_grounds(results.read_promotion(row), whole.run, verdicts)
    return None


def _metric_problems(whole: WholeRun) -> Problems:
    roles = {arm["role"] for arm in whole.of(tables.arm)}
    for row in whole.of(tables.metric):
        place = f"metric {row['seq']}"
        if not _METRIC_NAME.fullmatch(row["name"]):
            yield place, f"its name is {ascii(row['name'])[:60]}; expected small letters, digits and _"
        elif row["arm"] not in roles:
            yield place, f"it is of the arm {ascii(row['arm'])[:60]}, which the run does not have"
        elif _is_impossible(row):
            key = (row[part] for part in ("arm", "name", "statistic", "stage", "task"))
            name = " ".join(ascii(part)[1:-1] for part in key if part is not None)
            numbers = f"{row['value']}, limits {row['lower']} and {row['upper']}, n {row['n']}"
            yield place, f"{name[:150]} cannot be {numbers}"


def _is_impossible(row: rows.Row) -> bool:
    name, value, lower, upper = row["name"], row["value"], row["lower"], row["upper"]
    if not all(math.isfinite(number) for number in (value, lower, upper) if number is not None):
        return True
    return bool(
        (value < 0 and name not in _MAY_BE_NEGATIVE)
        or (value > 1 and TREND_UNITS.get(name) is Unit.RATIO and name != _MAY_BE_ABOVE_ONE)
        or (lower is None) != (upper is None)
        or (lower is not None and lower > upper)
        or row["n"] < 0
    )


_EVIDENCE_RULES = (_state_problems, _record_problems, _hash_problems)
RULES: tuple[Callable[[WholeRun], Problems], ...] = (
    _identity_problems,
    _text_problems,
    *_EVIDENCE_RULES,
    _document_problems,
    _metric_problems,
)
"""Integrity rules of every run."""


def _problem_of(check: Callable[..., str | None], *arguments: object) -> str | None:
    try:
        return check(*arguments)
    except (StoreError, *_UNREADABLE) as error:
        return _describe(error)


def _describe(error: Exception) -> str:
    """Later readers would fail on rows of a strange shape too: that is an error of the rows, not a defect here."""
    if isinstance(error, StoreError):
        return str(error)
    return f"it cannot be read ({type(error).__name__}: {str(error)[:200]})"


def _rows(whole: WholeRun, table: Table) -> Sequence[rows.Row]:
    return [whole.run] if table is tables.run else whole.of(table)


def _place(table: Table, row: rows.Row) -> str:
    if table is tables.run:
        return "run"
    key = " ".join(str(row[column.name]) for column in table.primary_key.columns if column.name != "run_id")
    return f"{table.name} {ascii(key)[1:-1][:100]}".rstrip()


def _is_instant(value: str) -> bool:
    if not _INSTANT.fullmatch(value):
        return False
    try:
        datetime.fromisoformat(value)
    except ValueError:
        return False
    return True


# What only a database can show


def _file_findings(connection: Connection) -> Iterator[Finding]:
    """SQLite's own check of its file: pages, indexes, and values of another type than their column's."""
    if connection.dialect.name == "sqlite":
        for (problem,) in connection.execute(text(f"PRAGMA integrity_check({_MAX_LISTED})")):
            if problem != "ok":
                yield Finding(None, "the file", f"{problem}: it is damaged; go back to a copy of it")


def _orphans(connection: Connection, table: Table, constraint: ForeignKeyConstraint) -> Iterator[Finding]:
    parent = constraint.referred_table.alias("parent")
    pairs = [(key.parent, parent.c[key.column.name]) for key in constraint.elements]
    there = select(1).where(*(theirs == ours for ours, theirs in pairs)).exists()
    named = and_(*(ours.is_not(None) for ours, _ in pairs))
    owner = table.c.id if table is tables.run else table.c.run_id
    missing = select(owner, *(ours for ours, _ in pairs)).where(named, ~there).distinct()
    for run_id, *key in connection.execute(missing.order_by(owner).limit(_MAX_LISTED)):
        parent_key = " ".join(str(part) for part in key)
        problem = f"it has rows of {constraint.referred_table.name} {parent_key}, which is not there"
        yield Finding(run_id, f"table {table.name}", problem)


def _check_row_findings(connection: Connection, run_id: str) -> Iterator[Finding]:
    """Rows of checks that differ from their verdict's document. Verdicts of earlier schemas have no such rows."""
    check, verdict = tables.check_result, tables.verdict.c
    stored: dict[int, list[rows.Row]] = {}
    for row in fetch(
        connection, select(check).where(check.c.run_id == run_id).order_by(check.c.verdict_seq, check.c.seq)
    ):
        stored.setdefault(row["verdict_seq"], []).append(row)
    for seq, found in stored.items():
        document = connection.scalar(select(verdict.document).where(verdict.run_id == run_id, verdict.seq == seq))
        try:
            expected = list(rows.check_rows(run_id, seq, json.loads(document or "")))
        except (StoreError, *_UNREADABLE):
            continue  # reported as a problem of the verdict, or as a broken link
        if found != expected:
            yield Finding(run_id, f"verdict {seq}", "the rows of its checks are not those of its document")


def _figure_findings(connection: Connection, whole: WholeRun) -> tuple[int, list[Finding]]:
    """Recompute the metrics of a run with metrics or a verdict. Returns how many, and those that differ."""
    from benchgate.gate.summary.metric_rows import metric_rows, mismatches, missing_rows  # slow to import

    has_results = whole.of(tables.metric) or whole.of(tables.verdict)
    if not has_results or removal(connection, whole.id) is not None:
        return 0, []
    found = rows_of(connection, whole.run)
    run = found.as_run()
    if run.measured_by is not None:
        return 0, []
    kept = results.metrics(connection, run.id)
    try:
        made = metric_rows(read_evidence(found, read_context(connection, run)))
    except (BenchgateError, ValueError) as error:
        return len(kept), [Finding(run.id, "its numbers", f"they cannot be made again: {error}")]
    findings = []
    for one in mismatches(kept, made):
        computed = "nothing" if one.computed is None else _format_metric(one.computed)
        problem = (
            f"it is kept as {_format_metric(one.stored)}, and its records make {computed}: it was altered, or another "
            "benchgate made it; judging the run again keeps it anew"
        )
        findings.append(Finding(run.id, f"metric {_metric_label(one.stored)}", problem))
    if missing := missing_rows(kept, made):
        more = f" and {len(missing) - _MAX_NAMED} more" if len(missing) > _MAX_NAMED else ""
        problem = (
            f"it lacks {', '.join(map(_metric_label, missing[:_MAX_NAMED]))}{more}, which its records make: removed, "
            "or another benchgate made none; judging the run again keeps them anew"
        )
        findings.append(Finding(run.id, "its numbers", problem))
    return len(kept), findings


def _metric_label(row: MetricRow) -> str:
    return " ".join(part for part in (row.arm.value, row.name, row.statistic, row.stage, row.task) if part is not None)


def _format_metric(row: MetricRow) -> str:
    bounds = "" if row.lower is None else f" ({row.lower!r} to {row.upper!r})"
    return f"{row.value!r}{bounds}, n {row.n}"
