"""The simulated server as a command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchgate.cli.saying import say
from benchgate.errors import UsageError


def sim(
    file: Annotated[
        Path | None, typer.Argument(help="Settings of the server, as a YAML file; all defaults without one.")
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, like itl=20ms; may be repeated."),
    ] = None,
    port: Annotated[int, typer.Option("--port", help="TCP port; 0 is any free one.")] = 0,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    uds: Annotated[str | None, typer.Option("--uds", help="Listen on this Unix socket instead.")] = None,
    cert: Annotated[str | None, typer.Option("--cert", help="Certificate file: speak TLS.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="Key file of the certificate.")] = None,
    client_ca: Annotated[str | None, typer.Option("--client-ca", help="Demand client certificates of this CA.")] = None,
    list_faults: Annotated[bool, typer.Option("--list-faults", help="Print every fault and exit.")] = False,
) -> None:
    """Run a simulated server: OpenAI's API with stated costs, limits and faults, and the ground truth of its load."""
    from benchgate.suite import simulator_faults

    if list_faults:
        say(simulator_faults.list_faults())
        return
    from benchgate.sim.server import run_sim
    from benchgate.sim.settings import ListenAddress, parse_settings
    from benchgate.system import read_text_file

    address = ListenAddress(host=host, port=port, uds=uds, cert=cert, key=key, client_ca=client_ca)
    try:
        text = None if file is None else read_text_file(file)
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise UsageError(f"{file} cannot be read: {reason}") from error
    run_sim(parse_settings(text, str(file), assignments or ()), address, lambda url: say(f"listening on {url}\n"))
