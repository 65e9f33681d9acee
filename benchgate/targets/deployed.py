"""From what a suite says of a deployment to the target that is asked, its references resolved."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchgate.errors import UsageError
from benchgate.model.deployment import Arm
from benchgate.suite.deployment import DeploymentSpec, check_proxy, resolve_secret, written_out
from benchgate.targets.dialect import Target, dialect_of
from benchgate.targets.route import Route, tls_context


def target_of(arm: Arm, spec: DeploymentSpec, environment: Mapping[str, str], folder: Path) -> Target:
    """The target of a deployment with a `url`; certificates are relative to `folder`, that of the suite.

    Everything it needs is read here, before any request: raises UsageError for a variable that is not set, a file
    that cannot be used, and certificates for an address that is not https.
    """
    url = resolve_secret(spec.url or "", environment).rstrip("/")
    if spec.tls is not None and not url.startswith("https:"):
        raise UsageError("`tls` is for https, and the address that the suite refers to is none; correct one of them")
    shown = written_out(spec.headers)
    target = Target(
        arm,
        url,
        spec.model or "",
        dialect_of(spec),
        None if spec.api_key is None else resolve_secret(spec.api_key, environment),
        open_headers=shown,
        secret_headers={
            name: resolve_secret(value, environment) for name, value in spec.headers.items() if name not in shown
        },
        route=route_of(spec, _proxy(spec, environment), folder),
    )
    if url.startswith("https:"):
        tls_context(target.route)
    return target


def route_of(spec: DeploymentSpec, proxy: str | None, folder: Path) -> Route:
    """The way to a deployment through a proxy that is known; certificates are relative to `folder`."""

    def whole(path: str | None) -> str | None:
        return None if path is None else str((folder / path).absolute())  # another process may stand elsewhere

    if spec.tls is None:
        return Route(proxy=proxy)
    return Route(whole(spec.tls.ca), whole(spec.tls.cert), whole(spec.tls.key), proxy)


def _proxy(spec: DeploymentSpec, environment: Mapping[str, str]) -> str | None:
    if spec.proxy is None:
        return None
    try:
        return check_proxy(resolve_secret(spec.proxy, environment))
    except ValueError as exc:
        raise UsageError(f"`proxy` {exc}") from None
