"""Is what was concluded what it was? Verdicts and their rows, derived numbers, and everything kept as a document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from sqlalchemy import ColumnElement, Connection, and_, func, not_, or_, select

from benchgate.errors import EvidenceError
from benchgate.store import clock, results, rows, tables
from benchgate.store.check_rows import check_rows
from benchgate.store.finding import ByRun, Finding, stream
from benchgate.store.promotions import read_promotion

_DOCUMENTS = {
    "promotions": tables.promotion,
    "imports": tables.imported,
    "client profiles": tables.client_profile,
    "noise profiles": tables.noise_profile,
}
_INSTANTS = (
    (tables.run, "started_at", "run", "it began at"),
    (tables.run, "finished_at", "run", "it ended at"),
    (tables.verdict, "decided_at", "verdict", "it was reached at"),
    (tables.noise_profile, "measured_at", "noise profile of", "it was measured at"),
)
_UNTIL = "until then it stands for no newest one; the clock of the machine that wrote it was wrong"
_MOST = 1e308  # what is beyond it is infinite, or no number
_MAY_BE_NEGATIVE = ("score", "recovery_ratio")
_MAY_BE_ABOVE_ONE = "recovery_ratio"


def verdict_findings(connection: Connection, looked: Counter[str]) -> Iterator[Finding]:
    """Verdicts that do not hash, are listed as another than they say, or whose checks have other rows."""
    table, kept = tables.verdict, tables.check_result
    checks = ByRun(stream(connection, select(kept).order_by(*kept.primary_key.columns)))
    run_id, of_run = None, list[rows.Row]()
    for row in stream(connection, select(table).order_by(table.c.run_id, table.c.seq)):
        looked["verdicts"] += 1
        if row["run_id"] != run_id:
            run_id, of_run = row["run_id"], list(checks.of(row["run_id"]))
        own = [check for check in of_run if check["verdict_seq"] == row["seq"]]
        looked["checks"] += len(own)
        if (problem := _verdict_problem(row, own)) is not None:
            yield Finding(run_id, f"verdict {row['seq']}", problem)


def _verdict_problem(row: rows.Row, checks: list[rows.Row]) -> str | None:
    """A verdict of an earlier schema has no rows for its checks."""
    try:
        stored = results.read_verdict(row)
        expected = list(check_rows(row["run_id"], row["seq"], stored.document))
    except (EvidenceError, ValueError, KeyError, TypeError, AttributeError) as error:
        return str(error)
    if row["own"] != int(stored.of_the_run_itself):
        said = "judges the run itself" if stored.of_the_run_itself else "does not judge the run itself"
        return f"it {said}, and is listed as one that does otherwise"
    if checks and checks != expected:
        return "the rows of its checks are not those of its document"
    return None


def metric_findings(connection: Connection, looked: Counter[str]) -> Iterator[Finding]:
    """Derived numbers that cannot be: not finite, below or above what their kind can, limits the wrong way round."""
    metric = tables.metric
    looked["metrics"] += int(connection.scalar(select(func.count()).select_from(metric)) or 0)
    wrong = select(metric).where(_impossible()).order_by(metric.c.run_id, metric.c.seq)
    for row in stream(connection, wrong):
        key = (row[part] for part in ("arm", "name", "statistic", "stage", "task"))
        name = " ".join(str(part) for part in key if part is not None)
        numbers = f"{row['value']}, limits {row['lower']} and {row['upper']}, n {row['n']}"
        yield Finding(row["run_id"], f"metric {row['seq']}", f"{name} cannot be {numbers}")


def _impossible() -> ColumnElement[bool]:
    metric = tables.metric.c
    share = and_(metric.name.endswith("_ratio", autoescape=True), metric.name != _MAY_BE_ABOVE_ONE)
    finite = [not_(number.between(-_MOST, _MOST)) for number in (metric.value, metric.lower, metric.upper)]
    return or_(
        *finite,
        and_(metric.value < 0, metric.name.not_in(_MAY_BE_NEGATIVE)),
        and_(metric.value > 1, share),
        metric.lower > metric.upper,
        (metric.lower.is_(None)) != (metric.upper.is_(None)),
        metric.n < 0,
    )


def findings_to_come(connection: Connection) -> Iterator[Finding]:
    """Runs, verdicts and noise profiles that are of a time to come: until then they are nobody's newest."""
    now = clock.latest(connection)
    for table, name, place, problem in _INSTANTS:
        key, said = table.primary_key.columns, table.c[name]
        for row in stream(connection, select(*key, said).where(said > now).order_by(*key)):
            of_run = row["id"] if table is tables.run else row["run_id"]
            at = place if table is tables.run else f"{place} {row.get('seq', row[name])}"
            yield Finding(of_run, at, f"{problem} {row[name]}, which is still to come: {_UNTIL}")


def document_findings(connection: Connection, looked: Counter[str]) -> Iterator[Finding]:
    """Promotions, imports and profiles whose document does not hash to what was kept with it, or that cannot be yet."""
    now = clock.latest(connection)
    for name, table in _DOCUMENTS.items():
        for row in stream(connection, select(table).order_by(*table.primary_key.columns)):
            looked[name] += 1
            if (found := rows.text_sha256(row["document"])) != row["sha256"]:
                key = " ".join(str(row[column.name]) for column in table.primary_key.columns)
                problem = f"its document hashes to {found}, not to {row['sha256']} as written"
                yield Finding(row.get("run_id"), f"{table.name} {key}", problem)
            elif table is tables.promotion and (told := _promotion_problem(row, now)) is not None:
                yield Finding(row["run_id"], f"promotion {row['id']}", told)


def _promotion_problem(row: rows.Row, now: str) -> str | None:
    try:
        promoted_at = read_promotion(row).promoted_at
    except EvidenceError as error:
        return str(error)
    if promoted_at > now:
        return f"it is of {promoted_at}, which is still to come: until then it counts for nothing"
    return None
