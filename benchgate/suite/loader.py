"""Suite text → `Suite`, or every problem in it at once, each with its place. Gets text; opens no file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pydantic import ValidationError

from benchgate.errors import SuiteError
from benchgate.suite.connection import resolve_secret
from benchgate.suite.default_checks import with_usual_checks
from benchgate.suite.messages import faults_of
from benchgate.suite.rules.parts import MEASUREMENTS, sound_parts
from benchgate.suite.rules.suite import broken_rules
from benchgate.suite.schema import Suite
from benchgate.suite.yaml import Document, Fault, Path, Plain, read_text

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
    """The suite a text declares. `source` is what to call the text in messages, usually its file name.

    Raises SuiteError with all problems: those of YAML first and alone, when it cannot be read at all; else those of
    every key, every value and every rule between sections whose parts are sound.
    """
    document = read_text(text, source)
    problems = document.problems + [document.problem(fault) for fault in _stray_references(document.data, ())]
    told = {problem.path for problem in problems}  # what stands there is wrong anyhow; more words would not help
    suite, faults = _validate(document)
    problems += [problem for fault in faults if (problem := document.problem(fault)).path not in told]
    if problems or suite is None:
        raise SuiteError(list(dict.fromkeys(problems)))  # a rule may say what pydantic says too
    return suite


def _validate(document: Document) -> tuple[Suite | None, list[Fault]]:
    """The suite, unless a key or value is wrong, and every fault of keys, values and rules."""
    parts = sound_parts(document.data)
    try:
        suite = with_usual_checks(Suite.model_validate(document.data))
    except ValidationError as error:
        return None, [*faults_of(error), *broken_rules(parts)]
    broken = list(broken_rules(replace(parts, checks=suite.gate.checks)))
    if not suite.gate.checks and parts.declared & MEASUREMENTS:
        broken.append(Fault(("gate",), _NOTHING_USUAL))
    return suite, broken


def _stray_references(value: Plain, path: Path) -> Iterator[Fault]:
    """References anywhere but where they are resolved would be sent or stored as they stand."""
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
