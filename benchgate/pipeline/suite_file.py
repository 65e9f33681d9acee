"""Suite files: read once, with the arms and prices of a run, and the places of errors in them.

A suite is priced by the day on which a run begins, and the run keeps it so: a cost never changes with the price file.
Comparing a stored run with its suite takes the prices of that run's day.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from benchgate.errors import BenchgateError, Problem, SuiteError, UsageError
from benchgate.suite.address import UnsetVariable
from benchgate.suite.deployment import DeploymentSpec
from benchgate.suite.loader import parse_suite
from benchgate.suite.price_file import Prices, parse_prices
from benchgate.suite.rules.suite import of_candidate, price_faults, with_arms
from benchgate.suite.schema import Suite
from benchgate.suite.workload import is_file_source
from benchgate.suite.yaml import Document, Fault, Plain, read_text, show_path
from benchgate.system import read_text_file

_FILE_KEYS = frozenset({"prompts", "prompt", "texts", "trace", "file"})
_TASK_SUFFIXES = (".yaml", ".yml")
_PRICE_KEYS = frozenset({"price", "price_terms", "token_prices"})


@dataclass(frozen=True)
class SuiteFile:
    """A suite file that was read and parsed once. `suite` has the prices of `day`; None: those of no price file."""

    path: Path
    text: str
    suite: Suite
    unpriced: Suite
    day: date | None = None

    @property
    def folder(self) -> Path:
        """Return the folder that paths in the suite are relative to."""
        return self.path.parent

    @cached_property
    def document(self) -> Document:
        """Return the keys and values of the text with their places."""
        return read_text(self.text, str(self.path))

    def changed(self, change: Callable[[Suite], Suite]) -> SuiteFile:
        """Return the file with another suite, made of this one and priced like it."""
        return replace(self, suite=change(self.suite), unpriced=change(self.unpriced))

    def with_arms(self, baseline: str | None, candidate: str | None) -> SuiteFile:
        """Return the whole suite, not priced yet, with other deployments as arms; None keeps its own.

        Raises UsageError for unknown ones, and for arms with which the suite breaks a rule.
        """
        suite = with_arms(self.unpriced, baseline, candidate)
        return replace(self, suite=suite, unpriced=suite, day=None)

    def of_candidate(self, name: str) -> SuiteFile:
        """Return the file with one of its several candidates alone, priced like it."""
        return self.changed(lambda suite: of_candidate(suite, name))

    def priced_today(self) -> SuiteFile:
        """Return the file with the prices of today (UTC). Raises SuiteError, with places, if an arm has none."""
        day = datetime.now(UTC).date()
        if day == self.day:
            return self
        with self.located_errors():
            return replace(self, suite=with_prices(self.unpriced, self.folder, day), day=day)

    @contextmanager
    def located_errors(self) -> Iterator[None]:
        """Add the place in the suite to errors that carry a path, and to problems without a line."""
        try:
            yield
        except SuiteError as error:
            problems = [self._located(problem) for problem in error.problems]
            raise SuiteError(problems) from error
        except BenchgateError as error:
            path = error.path
            if isinstance(error, UnsetVariable) and not path:
                reference = f"${{env:{error.variable}}}"
                path = next((at for at, text in _texts(self.document.data, ()) if reference in text), ())
            if path:
                place = self.document.problem(Fault(path, ""))
                error.message = str(replace(place, path="", message=error.message))
            raise

    def _located(self, problem: Problem) -> Problem:
        if problem.line is not None:
            return problem
        if not problem.source:
            paths = {show_path(path): path for path in self.document.values}
            path = paths.get(problem.path) or paths.get(problem.path.split(".")[0])
            if path is None:
                return replace(problem, source=str(self.path))
            return replace(self.document.problem(Fault(path, problem.message)), path=problem.path)
        return _located_in(problem, self.document, self.path)


def read_suite(path: Path) -> SuiteFile:
    """Read and parse a suite file, without its prices. Raises UsageError if it cannot be read, else SuiteError."""
    try:
        text = read_text_file(path)
    except OSError as error:
        raise UsageError(f"the suite {path} cannot be read: {error.strerror or error}; name a YAML file") from error
    except UnicodeDecodeError as error:
        place = f"byte {error.object[error.start]:#04x} at position {error.start}"
        raise UsageError(f"the suite {path} is not text ({place}); name a YAML file, saved as UTF-8") from error
    suite = parse_suite(text, str(path))
    return SuiteFile(path, text, suite, suite)


def load_suite(path: Path, baseline: str | None = None, candidate: str | None = None) -> SuiteFile:
    """Read a suite file for a run that begins today. Other arms than its own replace those that need a price."""
    return read_suite(path).with_arms(baseline, candidate).priced_today()


def missing_files(path: Path) -> list[Problem]:
    """Return a problem for every missing file that a suite names, even if it is no valid suite."""
    try:
        document = read_text(read_text_file(path), str(path))
    except (OSError, UnicodeDecodeError, SuiteError):
        return []
    problems = []
    for at, name in _texts(document.data, ()):
        if at[:2] == ("quality", "tasks"):
            is_file = name.endswith(_TASK_SUFFIXES)
        else:
            named = at[-1] in _FILE_KEYS and not {"columns", "where"} & set(at)
            named = named or at[-2:] == ("prompts", "source")
            is_file = named and at[0] in ("load", "shadow", "divergence") and is_file_source(name)
        if is_file and not (path.parent / name).exists():  # a data set may be a folder
            missing = Problem(str(path.parent / name), None, None, "", "there is no such file")
            problems.append(_located_in(missing, document, path))
    return problems


def _located_in(problem: Problem, document: Document, suite: Path) -> Problem:
    """Return a problem of a file with the place where the suite names that file."""
    for path, name in _texts(document.data, ()):
        if problem.source in (str(suite.parent / name), name):
            inside = f"{problem.path}: " if problem.path else ""
            return document.problem(Fault(path, f"{problem.source}: {inside}{problem.message}"))
    return problem


def _texts(value: Plain, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield every text of a suite with its path."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _texts(inner, (*path, key))
    elif isinstance(value, list):
        for position, inner in enumerate(value):
            yield from _texts(inner, (*path, position))
    elif isinstance(value, str):
        yield path, value


def with_prices(suite: Suite, folder: Path, day: date | None) -> Suite:
    """Return the suite with the price file's prices of a day (UTC) for deployments without their own.

    `folder` is the suite's. Raises SuiteError for an unreadable file, an unknown day, an arm without a price on that
    day, and prices that the suite's rules do not allow. Deployments that are no arm need none.
    """
    if suite.prices is None:
        return suite
    if day is None:
        raise SuiteError([Problem("", None, None, "prices", "the day that they are needed for is not known")])
    prices, problems, deployments = read_prices(folder / suite.prices), list[Problem](), dict[str, DeploymentSpec]()
    for name, spec in suite.deployments.items():
        listed = None if spec.is_priced else prices.on(day, name, spec.accelerator)
        if listed is not None:
            spec = spec.priced(listed.as_keys, {"file": suite.prices, **prices.entry_of(listed)})
        deployments[name] = spec
        if not spec.is_priced and name in _arms(suite):
            problems.append(prices.lacking(day, name, spec.accelerator))
    if problems:
        raise SuiteError(problems)
    filled = suite.model_copy(update={"deployments": deployments})
    broken = [Problem("", None, None, show_path(fault.path), fault.text) for fault in price_faults(filled)]
    if broken:
        raise SuiteError(broken)
    return filled


def require_priced(suite: Suite, day: date | None = None) -> None:
    """Raise UsageError if the price file was not read, or its prices ended before `day`, when the run begins."""
    arms = {name: suite.deployments[name] for name in _arms(suite)}
    unpriced = [name for name, spec in arms.items() if not spec.is_priced]
    if suite.prices is not None and unpriced:
        raise UsageError(f"the prices of {', '.join(unpriced)} stand in {suite.prices}, which was not read")
    ended = [name for name, spec in arms.items() if day and str(spec.price_entry.get("until", day)) < str(day)]
    if ended:
        names = ", ".join(ended)
        reason = f"the price of {names} in {suite.prices} ended at midnight (UTC), before the run began"
        raise UsageError(f"{reason}; begin it again, and it takes that of {day}")


def other_prices(kept: Mapping[str, Any], suite: Suite) -> str | None:
    """Return a message if a stored suite differs from this one in the price file's prices alone; else None."""
    now = suite.to_stored()
    if suite.prices is None or _without_prices(kept) != _without_prices(now):
        return None
    then = kept["deployments"]
    moved = [name for name, spec in now["deployments"].items() if spec != then[name]]
    return f"{suite.prices} has another price of {', '.join(moved)} for its day than the run kept" if moved else None


def read_prices(file: Path) -> Prices:
    """Read a price file. Raises SuiteError for every mistake in it, and for a file that is too large."""
    try:
        text = read_text_file(file)
    except (OSError, UnicodeDecodeError) as exc:
        reason = f"the file of prices cannot be read ({exc}); `prices` names one beside the suite"
        raise SuiteError([Problem(str(file), None, None, "", reason)]) from exc
    return parse_prices(text, str(file))


def _arms(suite: Suite) -> tuple[str, ...]:
    return tuple(dict.fromkeys((suite.baseline, *(suite.candidates or (suite.candidate,)))))


def _without_prices(stored: Mapping[str, Any]) -> dict[str, Any]:
    deployments = {
        name: {key: value for key, value in spec.items() if key not in _PRICE_KEYS}
        for name, spec in stored["deployments"].items()
    }
    return {**stored, "deployments": deployments}
