"""How a server is reached, read from the texts of a command line: header lines, files of certificates, a proxy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchgate.errors import UsageError
from benchgate.suite.connection import check_proxy, read_header, reference_name, resolve_secret
from benchgate.targets.address import Route, ServerAddress, tls_context


def read_headers(lines: Sequence[str], environment: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Headers written `NAME:VALUE`: those that may be shown, and those whose value came from the environment.

    Raises UsageError, which repeats no value, for one that is none or may not be set.
    """
    shown: dict[str, str] = {}
    hidden: dict[str, str] = {}
    for line in lines:
        try:
            name, value = read_header(line)
        except ValueError as exc:
            raise UsageError(f"--header: {exc}") from None
        if name in shown or name in hidden:
            raise UsageError(f'--header: "{name}" is given twice; give it once')
        (shown if reference_name(value) is None else hidden)[name] = resolve_secret(value, environment, "--header")
    return shown, hidden


def read_route(server: ServerAddress, *, ca: str | None, cert: str | None, key: str | None, proxy: str | None) -> Route:
    """The way to a server, its files read. Raises UsageError for what does not fit together or cannot be used."""
    if key is not None and cert is None:
        raise UsageError("--key belongs to a --cert, which is missing")
    if (ca or cert) and server.scheme != "https":
        raise UsageError(f"--ca and --cert are for https, and the address is {server.shown}; correct one of them")
    if proxy is not None:
        try:
            proxy = check_proxy(proxy)
        except ValueError as exc:
            raise UsageError(f"--proxy: {exc}") from None
        if server.socket is not None:
            raise UsageError("--proxy means nothing for a socket of this machine; leave it out")
    route = Route(_whole(ca), _whole(cert), _whole(key), proxy)
    if server.scheme == "https":
        tls_context(route)
    return route


def _whole(path: str | None) -> str | None:
    return None if path is None else str(Path(path).absolute())
