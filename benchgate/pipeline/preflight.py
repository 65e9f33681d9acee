"""Before a run: refuse what cannot succeed on this machine, with its variables and its allowances.

Slow imports happen only for suites that need them: a refusal should not have to wait for them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchgate.errors import EmbeddedError, Problem, SuiteError, TargetError, UsageError
from benchgate.model.deployment import Arm
from benchgate.model.request import EXACT_RECORDS
from benchgate.suite.address import reference_name, resolve_secret
from benchgate.suite.deployment import DeploymentSpec, resolve_page
from benchgate.suite.schema import Suite, is_sent_by_grpc
from benchgate.targets.address import ServerAddress, require_scheduler, tls_context
from benchgate.targets.dialect import route_of, target_of
from benchgate.targets.grpc_messages import require_grpc

_EMBEDDED_URL = "http://127.0.0.1"


def require_ready(
    suite: Suite,
    suite_dir: Path,
    *,
    cluster: str | None = None,
    allow_actions: bool = False,
    allow_code: bool = False,
) -> None:
    """Raise UsageError if this machine lacks something that the run needs, or the user has not allowed it."""
    if any(suite.deployments[name].embedded is not None for name in (suite.baseline, suite.candidate)):
        _require_embedded()  # before lm-eval, which comes with the same extra
    if suite.quality is not None:
        from benchgate.quality.runner import require_lm_eval

        require_lm_eval()
    if is_sent_by_grpc(suite):
        require_grpc()
    if cluster is not None:
        if suite.load is None:
            raise UsageError(f"--cluster sends the load of a suite, and {suite.suite} has none; leave it out")
        if suite.regions:
            raise UsageError(f"the load of {suite.suite} is sent by its own `regions`; leave --cluster out")
    for address in (*suite.regions.values(), *([] if cluster is None else [cluster])):
        require_scheduler(address)
    if not allow_actions:
        _refuse_commands(suite)
    if suite.quality is not None and suite.quality.allow_unsafe_code and not allow_code:
        # The suite's consent is not enough: whoever may change it could run anything on this machine.
        raise UsageError(
            f"the evals of {suite.suite} may run code on this machine (`quality.allow_unsafe_code: true`): "
            "functions of its task files, or what the models write; read it, and add --allow-code to let it"
        )
    if problems := run_problems(suite, suite_dir, os.environ):
        raise SuiteError(problems)
    if suite.shadow is not None:
        from benchgate.shadow.assessors import assessors_of

        assessors_of(suite.shadow, os.environ, suite_dir, None)
    if suite.error_budget is not None:
        from benchgate.pipeline.error_budget import require_askable

        require_askable(suite, suite_dir, os.environ)


def _require_embedded() -> None:
    from benchgate.embedded.weights import require_engine, require_gguf  # slow to import

    try:
        require_engine()
        require_gguf()
    except EmbeddedError as error:
        raise UsageError(str(error)) from error


def _refuse_commands(suite: Suite) -> None:
    """Raise UsageError for a suite that runs commands on this machine."""
    for name in dict.fromkeys((suite.baseline, suite.candidate)):
        ready, start = suite.deployments[name].ready, suite.deployments[name].start
        if start is not None:
            raise UsageError(
                f"{name} of {suite.suite} is started by the command {' '.join(start.run)!r} on this machine; read it, "
                "and add --allow-actions to let it"
            )
        if ready is not None and ready.command is not None:
            raise UsageError(
                f"the replicas of {name} of {suite.suite} are counted by the command {ready.command!r} on this "
                "machine; read it, and add --allow-actions to let it"
            )
    for stage in suite.load.sweep if suite.load else ():
        for action in stage.actions or ():
            if action.run is not None:
                raise UsageError(
                    f"stage {stage.name} of {suite.suite} runs the command {' '.join(action.run)!r} on this machine; "
                    "read it, and add --allow-actions to let it"
                )


def written_problems(suite: Suite, suite_dir: Path) -> list[Problem]:
    """Return problems of the suite and its files alone: certificates, and an audit that an address rules out.

    References to variables are not followed: the machine that checks a suite need not hold its secrets.
    """
    problems: list[Problem] = []
    for name, spec in _arms(suite):
        if spec.tls is not None:
            try:
                tls_context(route_of(spec, None, suite_dir))
            except UsageError as error:
                problems.append(_problem(f"deployments.{name}", str(error)))
        if _audits(suite) and (address := _address(spec.url, {})) is not None:
            from benchgate.load.client_delay import never_stamped

            problems += _unaudited(name, never_stamped(address))
    return problems


def run_problems(suite: Suite, suite_dir: Path, environment: Mapping[str, str]) -> list[Problem]:
    """Return what would keep this machine, with these variables, from running the suite now."""
    problems = list(_unjudgeable(suite))
    for name, spec in _arms(suite):
        problems += _target_problems(f"deployments.{name}", spec, suite_dir, environment)
        pages = [*spec.metrics.addresses.items(), ("gpu", spec.gpu)]
        pages += [("ready.metrics", text) for text in (spec.ready.metrics if spec.ready is not None else ())]
        for key, text in pages:
            try:
                if text is not None:
                    resolve_page(key, text, environment)
            except UsageError as error:
                problems.append(_problem(f"deployments.{name}.{key}", str(error)))
        if spec.metrics.api_key is not None:
            try:
                resolve_secret(spec.metrics.api_key, environment)
            except UsageError as error:
                problems.append(_problem(f"deployments.{name}.metrics.api_key", str(error)))
        if _audits(suite) and (address := _address(spec.url or _EMBEDDED_URL, environment)) is not None:
            from benchgate.load.client_delay import audit_refusal

            problems += _unaudited(name, audit_refusal(address))
    return problems


def _unjudgeable(suite: Suite) -> Iterator[Problem]:
    """Yield every class of traffic with more requests in a block than checks and guards can judge one by one."""
    for traffic in suite.load.classes() if suite.load is not None else ():
        if (traffic.requests or 0) > EXACT_RECORDS:
            yield _problem(
                "load.sweep",
                f"{traffic.name} sends {traffic.requests:,} requests to each arm in a block, and a run judges at most "
                f"{EXACT_RECORDS:,} one by one; write fewer `requests` and more `blocks`, or send them with "
                "`benchgate load`",
            )


def _arms(suite: Suite) -> list[tuple[str, DeploymentSpec]]:
    return [(name, suite.deployments[name]) for name in dict.fromkeys((suite.baseline, suite.candidate))]


def _problem(path: str, message: str) -> Problem:
    return Problem("", None, None, path, message)


def _target_problems(
    path: str, spec: DeploymentSpec, suite_dir: Path, environment: Mapping[str, str]
) -> Iterator[Problem]:
    """Yield every variable that is not set; if all are, the first reason why the target cannot be built."""
    if spec.url is None:
        return
    unset = False
    keys = {"url": spec.url, "api_key": spec.api_key, "proxy": spec.proxy}
    for key, text in (keys | {f"headers.{name}": text for name, text in spec.headers.items()}).items():
        try:
            resolve_secret(text or "", environment)
        except UsageError as error:
            unset = True
            yield _problem(f"{path}.{key}", str(error))
    if unset:
        return
    try:
        target_of(Arm.CANDIDATE, spec, environment, suite_dir)  # the arm does not matter
    except UsageError as error:
        yield _problem(path, str(error))


def _audits(suite: Suite) -> bool:
    return suite.load is not None and suite.load.audit


def _unaudited(name: str, refusal: str | None) -> list[Problem]:
    return [] if refusal is None else [_problem("load.audit", f"{name} cannot be audited: {refusal}")]


def _address(url: str | None, environment: Mapping[str, str]) -> ServerAddress | None:
    """Return the address; None if its variable is not set or it is invalid, which is reported elsewhere."""
    variable = reference_name(url or "")
    text = url if variable is None else environment.get(variable)
    try:
        return ServerAddress.of(text) if text else None
    except TargetError:
        return None
