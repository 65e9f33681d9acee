"""Parser of suites: returns a `Suite`, or reports every problem at once, with line and column. Opens no file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pydantic import ValidationError

from benchgate.errors import SuiteError
from benchgate.suite.connection import resolve_secret
from benchgate.suite.default_checks import with_default_checks
from benchgate.suite.messages import faults_of
from benchgate.suite.rules.base import SECTIONS, sound_part, written_positions
from benchgate.suite.rules.suite import broken_references, broken_rules
from benchgate.suite.schema import Suite
from benchgate.suite.yaml import Fault, Path, Plain, read_text

__all__ = ["parse_suite", "resolve_secret"]

_HOMES = "`api_key`, `url`, `proxy`, `metrics`, `gpu`, `ready.metrics` and the values of its `headers`"
_WITH_REFERENCES = ("api_key", "proxy", "url", "metrics", "gpu")
_NOTHING_USUAL = (
    "what this suite measures has no usual checks, because only its author can say what is enough; write `gate.checks`"
)
_HELPERS = ("judge", "similarity")
_WITH_HELPER_REFERENCES = ("api_key", "url")
_PROMETHEUS = ("error_budget", "spent", "prometheus")


def parse_suite(text: str, source: str) -> Suite:
    """Parse a suite. `source` is the name of the text in messages, usually a file.

    Raises SuiteError with all problems: those of YAML alone if it cannot be read at all; else those of every key and
    value, and those of every rule between sections whose parts are sound.
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
        suite, broken = sound_part(data)
    if suite is None:
        return None, faults
    found = broken_references(suite, broken)
    if not faults and not found:
        suite = with_default_checks(suite)
        if not suite.gate.checks and any(getattr(suite, section) is not None for section in SECTIONS):
            found.append(Fault(("gate",), _NOTHING_USUAL))
    unread = {("prices",)} if suite.prices is not None else set[Path]()  # the file may have what is missing here
    found += broken_rules(suite, broken | unread | {fault.path for fault in found})
    positions = written_positions(data, broken)
    return suite, [*faults, *(_as_written(fault, positions) for fault in found)]


def _as_written(fault: Fault, positions: Sequence[int]) -> Fault:
    """Return the fault with paths as in the text, where a stage with `each` is one entry of the sweep."""

    def path(at: Path) -> Path:
        in_sweep = at[:2] == ("load", "sweep") and len(at) > 2
        return (*at[:2], positions[int(at[2])], *at[3:]) if in_sweep else at

    return replace(fault, path=path(fault.path), other=None if fault.other is None else path(fault.other))


def _stray_references(value: Plain, path: Path) -> Iterator[Fault]:
    """Yield references where they are not resolved, but would be sent or stored as they are."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _stray_references(inner, (*path, key))
    elif isinstance(value, list):
        for position, inner in enumerate(value):
            yield from _stray_references(inner, (*path, position))
    elif isinstance(value, str) and "${" in value and not _may_refer(path):
        where = f"a deployment's {_HOMES}"
        if path[:1] == ("shadow",):
            where += f", and in `api_key`, `url` and `headers` of `{'` and `'.join(_HELPERS)}`"
        if path[:1] == ("error_budget",):
            where += ", and in `api_key`, `url` and `headers` of `spent.prometheus`"
        yield Fault(path, f"a reference is resolved only in {where}; write the value itself")


def _may_refer(path: Path) -> bool:
    if path[:1] == ("shadow",) and len(path) > 2 and path[1] in _HELPERS:
        return (len(path) == 3 and path[2] in _WITH_HELPER_REFERENCES) or (len(path) == 4 and path[2] == "headers")
    if path[:3] == _PROMETHEUS:
        return path[3:] in (("api_key",), ("url",)) or (len(path) == 5 and path[3] == "headers")
    if len(path) == 5:
        return path[0] == "deployments" and path[2:4] == ("ready", "metrics")
    if len(path) == 4:
        return path[0] == "deployments" and path[2] == "headers"
    return len(path) == 3 and path[0] == "deployments" and path[2] in _WITH_REFERENCES
