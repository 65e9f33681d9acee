"""Checks before a run: can the arms be reached as the suite describes, and does the longest request fit?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from benchgate.errors import Problem, SuiteError, TargetError, UsageError
from benchgate.load.client_delay import audit_refusal, never_stamped
from benchgate.model.deployment import Arm
from benchgate.plan.preview import longest_request
from benchgate.plan.schedule import Plan
from benchgate.suite.deployment import DeploymentSpec, reference_name, resolve_page, resolve_secret
from benchgate.suite.schema import Suite
from benchgate.targets.address import ServerAddress, tls_context
from benchgate.targets.dialect import route_of, target_of

_EMBEDDED_URL = "http://127.0.0.1"


def written_problems(suite: Suite, suite_dir: Path) -> list[str]:
    """Return problems of the suite and its files alone: certificates, and an audit that an address rules out.

    References to variables are not followed: the machine that checks a suite need not hold its secrets.
    """
    problems: list[str] = []
    for name, spec in _arms(suite):
        if spec.tls is not None:
            problems += _named(name, _tls_problems(spec, suite_dir))
        if _audits(suite) and (address := _address(spec.url, {})) is not None:
            problems += _unaudited(name, never_stamped(address))
    return problems


def run_problems(suite: Suite, suite_dir: Path, environment: Mapping[str, str]) -> list[str]:
    """Return what would keep this machine, with these variables, from running the suite now."""
    problems: list[str] = []
    for name, spec in _arms(suite):
        problems += _named(name, _target_problems(spec, suite_dir, environment))
        problems += _named(name, _page_problems(spec, environment))
        if _audits(suite) and (address := _address(spec.url or _EMBEDDED_URL, environment)) is not None:
            problems += _unaudited(name, audit_refusal(address))
    return problems


def _arms(suite: Suite) -> list[tuple[str, DeploymentSpec]]:
    return [(name, suite.deployments[name]) for name in dict.fromkeys((suite.baseline, suite.candidate))]


def _named(name: str, found: Iterator[str]) -> list[str]:
    return [f"deployments.{name}: {problem}" for problem in found]


def _tls_problems(spec: DeploymentSpec, suite_dir: Path) -> Iterator[str]:
    try:
        tls_context(route_of(spec, None, suite_dir))
    except UsageError as exc:
        yield str(exc)


def _target_problems(spec: DeploymentSpec, suite_dir: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """Every variable that is wanting; where none is, the first thing that makes no target of it."""
    if spec.url is None:
        return
    wanting = False
    for text in (spec.url, spec.api_key or "", spec.proxy or "", *spec.headers.values()):
        try:
            resolve_secret(text, environment)
        except UsageError as exc:
            wanting = True
            yield str(exc)
    if wanting:
        return
    try:
        target_of(Arm.CANDIDATE, spec, environment, suite_dir)  # of either arm alike
    except UsageError as exc:
        yield str(exc)


def _page_problems(spec: DeploymentSpec, environment: Mapping[str, str]) -> Iterator[str]:
    """Pages of metrics whose variable is wanting, or holds no address."""
    of_replicas = (("ready.metrics", text) for text in (spec.ready.metrics if spec.ready is not None else ()))
    for key, text in (("metrics", spec.metrics), ("gpu", spec.gpu), *of_replicas):
        try:
            if text is not None:
                resolve_page(key, text, environment)
        except UsageError as exc:
            yield str(exc)


def _audits(suite: Suite) -> bool:
    return suite.load is not None and suite.load.audit


def _unaudited(name: str, refusal: str | None) -> list[str]:
    return [] if refusal is None else [f"load.audit: {name} cannot be audited: {refusal}"]


def _address(url: str | None, environment: Mapping[str, str]) -> ServerAddress | None:
    """None where there is none to judge yet: a variable is wanting, or the address is none, which its arm will say."""
    variable = reference_name(url or "")
    text = url if variable is None else environment.get(variable)
    try:
        return ServerAddress.of(text) if text else None
    except TargetError:
        return None


def require_context_fits(suite: Suite, plan: Plan, arm: Arm, facts: Mapping[str, object]) -> None:
    """SuiteError when the longest request is longer than the context an arm says it has (`max_model_len`)."""
    room = facts.get("max_model_len")
    if suite.load is None or not isinstance(room, int):
        return
    longest = longest_request(suite.load, plan)
    if longest is None or longest.tokens <= room:
        return
    asked = f"at least {longest.input_tokens:,} tokens in and {longest.output_tokens:,} out"
    what = (
        f"request {longest.index} of {longest.level} asks for {asked}, and the context of the {arm} holds {room:,} "
        "(its max_model_len); shorten it, or take its row out of the file"
    )
    raise SuiteError([Problem(suite.suite, None, None, "load", what)])
