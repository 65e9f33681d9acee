"""Parser of suites: returns a `Suite`, or reports every problem at once, with line and column. Opens no file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pydantic import ValidationError

from benchgate.errors import SuiteError
from benchgate.suite.default_checks import default_checks
from benchgate.suite.deployment import resolve_secret
from benchgate.suite.messages import faults_of
from benchgate.suite.rules.base import SECTIONS, valid_part, written_positions
from benchgate.suite.rules.suite import broken_references, broken_rules
from benchgate.suite.schema import Suite
from benchgate.suite.yaml import Fault, Path, Plain, read_text

__all__ = ["parse_suite", "resolve_secret"]

_NO_DEFAULTS = (
    "what this suite measures has no usual checks, because only its author can say what is enough; write `gate.checks`"
)
_HELPERS = ("shadow.judge", "shadow.similarity", "error_budget.spent.prometheus")
_REFERENCES = (
    *(f"deployments.*.{key}" for key in ("api_key", "proxy", "url", "metrics", "gpu", "headers.*", "ready.metrics.*")),
    *(f"{helper}.{key}" for helper in _HELPERS for key in ("api_key", "url", "headers.*")),
)
"""Keys whose references are resolved."""
_DEPLOYMENT_KEYS = "`api_key`, `url`, `proxy`, `metrics`, `gpu`, `ready.metrics` and the values of its `headers`"


def parse_suite(text: str, source: str) -> Suite:
    """Parse a suite. `source` is the name of the text in messages, usually a file.

    Raises SuiteError with all problems: those of YAML alone if it is unreadable, else those of every key and value, and
    those of every rule between sections whose parts are valid.
    """
    document = read_text(text, source)
    problems = document.problems + [document.problem(fault) for fault in _stray_references(document.data, ())]
    reported = {problem.path for problem in problems}
    suite, faults = _validate(document.data)
    problems += [problem for fault in faults if (problem := document.problem(fault)).path not in reported]
    if problems or suite is None:
        raise SuiteError(list(dict.fromkeys(problems)))  # a rule may repeat a finding of pydantic
    return suite


def _validate(data: dict[str, Plain]) -> tuple[Suite | None, list[Fault]]:
    """Return the suite, and every fault of its keys, values and rules."""
    faults: list[Fault] = []
    broken: frozenset[Path] = frozenset()
    try:
        suite: Suite | None = Suite.model_validate(data)
    except ValidationError as error:
        faults = faults_of(error)
        suite, broken = valid_part(data)
    if suite is None:
        return None, faults
    found = broken_references(suite, broken)
    if not faults and not found:
        if not suite.gate.checks:
            gate = suite.gate.model_copy(update={"checks": default_checks(suite)})
            suite = suite.model_copy(update={"gate": gate})
        if not suite.gate.checks and any(getattr(suite, section) is not None for section in SECTIONS):
            found.append(Fault(("gate",), _NO_DEFAULTS))
    unread = {("prices",)} if suite.prices is not None else set[Path]()  # the file may have what is missing here
    found += broken_rules(suite, broken | unread | {fault.path for fault in found})
    positions = written_positions(data, broken)

    def written(path: Path) -> Path:
        """Return a path as in the text, where a stage with `each` is one entry of the sweep."""
        in_sweep = path[:2] == ("load", "sweep") and len(path) > 2
        return (*path[:2], positions[int(path[2])], *path[3:]) if in_sweep else path

    for fault in found:
        other = None if fault.other is None else written(fault.other)
        faults.append(replace(fault, path=written(fault.path), other=other))
    return suite, faults


def _stray_references(value: Plain, path: Path) -> Iterator[Fault]:
    """Yield references where they are not resolved, but would be sent or stored as they are."""
    if isinstance(value, dict | list):
        for part, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _stray_references(inner, (*path, part))
    elif isinstance(value, str) and "${" in value and not _is_resolved(path):
        where = f"a deployment's {_DEPLOYMENT_KEYS}"
        if path[:1] == ("shadow",):
            where += ", and in `api_key`, `url` and `headers` of `judge` and `similarity`"
        if path[:1] == ("error_budget",):
            where += ", and in `api_key`, `url` and `headers` of `spent.prometheus`"
        yield Fault(path, f"a reference is resolved only in {where}; write the value itself")


def _is_resolved(path: Path) -> bool:
    patterns = (keys.split(".") for keys in _REFERENCES)
    return any(
        len(path) == len(keys) and all(key in ("*", part) for part, key in zip(path, keys, strict=True))
        for keys in patterns
    )
