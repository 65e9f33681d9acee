"""Python interface: `import benchgate` offers these functions, for notebooks and scripts.

They are the steps that the command line takes, with results as values. Errors are those of `benchgate.errors`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from benchgate.errors import UsageError
from benchgate.model.run import MetricRow, Run
from benchgate.model.verdict import CheckResult, Outcome
from benchgate.pipeline.judge import Decision, decide_stored, report_html, write_report
from benchgate.pipeline.progress import Progress
from benchgate.pipeline.run import RunOptions, run_suite
from benchgate.pipeline.suite_file import SuiteFile
from benchgate.pipeline.suite_file import load_suite as load_suite_file
from benchgate.store.repository import Store

_T = TypeVar("_T", covariant=True)

STORE = ".benchgate/benchgate.db"
WORK_DIR = Path(".benchgate/work")


class Table(Sequence[_T]):
    """A sequence of results that can become a data frame."""

    def __init__(self, items: Iterable[_T], columns: Sequence[str]) -> None:
        self._items = tuple(items)
        self._columns = tuple(columns)

    @overload
    def __getitem__(self, index: int) -> _T: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[_T]: ...

    def __getitem__(self, index: int | slice) -> _T | Sequence[_T]:
        return self._items[index]

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return f"Table({list(self._items)!r})"

    def to_frame(self) -> Any:
        """Return a data frame of pandas, or of polars without pandas. Raises UsageError if neither is installed."""
        columns = {name: [_plain(getattr(item, name)) for item in self._items] for name in self._columns}
        for library in ("pandas", "polars"):
            try:
                return importlib.import_module(library).DataFrame(columns)
            except ModuleNotFoundError:
                continue
        raise UsageError("to_frame() needs pandas or polars; install one of them")


_CHECK_COLUMNS = (
    "id", "required", "outcome", "metric", "statistic", "stage", "task", "unit", "scale", "baseline", "candidate",
    "harm", "lower", "upper", "margin", "p_value", "p_holm", "n", "n_unit", "reason",
)  # fmt: skip
_METRIC_COLUMNS = ("arm", "name", "statistic", "stage", "task", "value", "lower", "upper", "n")
_RUN_COLUMNS = ("id", "suite_name", "label", "status", "started_at", "finished_at", "tool_version")


@dataclass(frozen=True, slots=True)
class Result:
    """A verdict on a candidate, with its evidence."""

    decision: Decision

    @property
    def run(self) -> Run:
        """Return the judged run."""
        return self.decision.evidence.run

    @property
    def outcome(self) -> Outcome:
        """Return the outcome: PASS, WARN, BLOCK, INCONCLUSIVE or INVALID."""
        return self.decision.verdict.outcome

    @property
    def reason(self) -> str:
        """Return the reason of the outcome."""
        return self.decision.verdict.reason

    @property
    def promotes(self) -> bool:
        """Return True if the candidate may be promoted: the command line would exit with 0."""
        return self.decision.exit_code == 0 and self.decision.store_fault is None

    @property
    def checks(self) -> Table[CheckResult]:
        """Return the results of all checks."""
        return Table(self.decision.verdict.checks, _CHECK_COLUMNS)

    @property
    def document(self) -> dict[str, object]:
        """Return the verdict document, as `benchgate gate --format json` prints it."""
        return self.decision.json_document

    def to_frame(self) -> Any:
        """Return a data frame with one row per check."""
        return self.checks.to_frame()

    def html(self) -> str:
        """Return the HTML report."""
        return report_html(self.decision)

    def write_report(self, path: str | PathLike[str]) -> None:
        """Write the HTML report. Raises PublishError if that fails."""
        write_report(self.decision, Path(path))


class RunStore(AbstractContextManager["RunStore"]):
    """Stored runs. Close it, or use it in a `with` block."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def runs(self, suite: str | None = None, limit: int | None = None) -> Table[Run]:
        """Return the runs of a suite, or all, newest first."""
        return Table(self._store.runs(suite, limit), _RUN_COLUMNS)

    def metrics(self, run: str = "@latest") -> Table[MetricRow]:
        """Return the metrics of a run, with 95% intervals."""
        return Table(self._store.metrics(self._store.resolve(run)), _METRIC_COLUMNS)

    def judge(self, run: str = "@latest", *, policy: SuiteFile | None = None) -> Result:
        """Judge a stored run, by its own policy or by another suite's, and store the verdict."""
        suite = None if policy is None else policy.suite
        return Result(decide_stored(self._store, self._store.resolve(run), policy=suite))

    def compare(self, baseline: str, candidate: str) -> Result:
        """Judge the candidate of one stored run against that of another, and store the verdict."""
        judged = self._store.resolve(candidate)
        return Result(decide_stored(self._store, judged, self._store.resolve_beside(baseline, judged)))


def load_suite(path: str | PathLike[str], *, baseline: str | None = None, candidate: str | None = None) -> SuiteFile:
    """Read a suite for a run today, optionally with other arms. Raises SuiteError with every mistake in it."""
    return load_suite_file(Path(path), baseline, candidate)


def run(
    suite: SuiteFile | str | PathLike[str],
    *,
    store: str = STORE,
    work_dir: str | PathLike[str] = WORK_DIR,
    label: str | None = None,
    cluster: str | None = None,
    allow_actions: bool = False,
    allow_code: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Measure a suite's two deployments and judge the candidate. Raises UsageError for several candidates."""
    file = suite if isinstance(suite, SuiteFile) else load_suite(suite)
    if file.suite.candidates:
        names = ", ".join(file.suite.candidates)
        raise UsageError(f"{file.path} has several candidates; load it with one: load_suite(…, candidate=…) of {names}")
    options = RunOptions(store, Path(work_dir).resolve(), label, cluster, allow_actions, allow_code)
    with file.located_errors():
        return Result(run_suite(file.suite, file.folder, options, progress or Progress()))


def judge(run: str = "@latest", *, store: str = STORE, policy: SuiteFile | None = None) -> Result:
    """Judge a stored run, by its own policy or by another suite's, and store the verdict."""
    with open_store(store) as opened:
        return opened.judge(run, policy=policy)


def compare(baseline: str, candidate: str, *, store: str = STORE) -> Result:
    """Judge the candidate of one stored run against that of another, and store the verdict."""
    with open_store(store) as opened:
        return opened.compare(baseline, candidate)


def open_store(address: str = STORE) -> RunStore:
    """Open a store: an SQLite file or a PostgreSQL URL. Raises UsageError if there is none."""
    return RunStore(Store.open(address, create=False))


def _plain(value: object) -> object:
    """Return an enum's value, and anything else as it is."""
    return getattr(value, "value", value)
