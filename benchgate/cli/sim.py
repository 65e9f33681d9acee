"""`benchgate sim`: the simulated server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchgate.cli.saying import say
from benchgate.errors import UsageError


def sim(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="Settings, YAML [default: all defaults].")] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, like itl=20ms; may be repeated."),
    ] = None,
    port: Annotated[int, typer.Option(help="TCP port; 0 for any free one.")] = 0,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    uds: Annotated[str | None, typer.Option(help="Listen on this Unix socket instead.")] = None,
    cert: Annotated[str | None, typer.Option(help="Certificate file, for TLS.")] = None,
    key: Annotated[str | None, typer.Option(help="Key file of the certificate.")] = None,
    client_ca: Annotated[str | None, typer.Option(help="Require client certificates of this CA.")] = None,
    list_faults: Annotated[bool, typer.Option("--list-faults", help="Print every fault and exit.")] = False,
) -> None:
    """Run a simulated inference server

    It speaks OpenAI's API with stated costs, limits and faults, and reports the ground truth of its load.

    Example: benchgate sim sim.yaml --set decode=18ms --port 8112
    """
    from benchgate.suite import simulator

    if list_faults:
        say(simulator.list_faults())
        return
    from benchgate.sim.settings import ListenAddress, parse_settings
    from benchgate.system import read_text_file

    address = ListenAddress(host=host, port=port, uds=uds, cert=cert, key=key, client_ca=client_ca)
    try:
        text = None if file is None else read_text_file(file)
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise UsageError(f"{file} cannot be read: {reason}") from error
    settings = parse_settings(text, str(file), assignments or ())
    from benchgate.sim.server import run_sim  # slow to import, and not needed to refuse a setting

    run_sim(settings, address, lambda url: say(f"listening on {url}\n"))
