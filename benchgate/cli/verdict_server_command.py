"""`benchgate verdict-server`: what the store says of a run, for deployers that ask over HTTP."""

from __future__ import annotations

from typing import Annotated

import typer

from benchgate.cli import options
from benchgate.cli.saying import log
from benchgate.errors import UsageError


def verdict_server(
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; this machine alone unless said.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = 8787,
    max_age: Annotated[
        str, typer.Option("--max-age", help="How long ago at most a run may have ended that still counts.")
    ] = "7d",
    store: options.StoreOption = options.STORE,
    strict: options.StrictOption = False,
) -> None:
    """Answer Flagger and Argo Rollouts whether a run may be promoted, from the store, which is only read."""
    from benchgate.release.server import ServerSettings, VerdictServer, opened
    from benchgate.units import parse_duration_s

    try:
        max_age_s = parse_duration_s(max_age)
    except ValueError as error:
        raise UsageError(f"--max-age: {error}") from error
    with opened(store):
        pass  # a store that is not there is told now, and not to whoever asks first
    try:
        server = VerdictServer(host, port, ServerSettings(store, max_age_s, strict, _tell))
    except (OSError, OverflowError) as error:
        raise UsageError(f"--host {host} --port {port}: nothing can listen there: {error}") from error
    with server:
        _tell(f"benchgate: answering on {server.url}")
        server.serve_forever()


def _tell(line: str) -> None:
    log(line)
