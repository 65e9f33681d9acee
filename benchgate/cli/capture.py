"""`benchgate capture`: a transcript of a server, redacted, for a report of an engine that benchgate does not know."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchgate.cli.saying import say
from benchgate.errors import TargetError, UsageError
from benchgate.model.request import ENDPOINTS

if TYPE_CHECKING:
    from benchgate.doctor.transcript import Recorded


def capture(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="Address of an OpenAI-compatible server: host:8000 or https://host/v1.")
    ],
    model: Annotated[str | None, typer.Option(help="Model name.", show_default="the one that the server lists")] = None,
    output: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for the files, new or empty.")] = Path(
        "capture"
    ),
    api_key_env: Annotated[
        str | None,
        typer.Option(
            help="Environment variable with the API key.",
            show_default="OPENAI_API_KEY, over https and to private addresses",
        ),
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(help="NAME:VALUE for every request; a secret as ${env:VARIABLE}.")
    ] = None,
    ca: Annotated[str | None, typer.Option(help="CA certificates to trust instead of the system's.")] = None,
    cert: Annotated[str | None, typer.Option(help="Client certificate, PEM.")] = None,
    key: Annotated[str | None, typer.Option(help="Key of the client certificate, PEM.")] = None,
) -> None:
    """Record a server's answers to send in

    Sends about a dozen short requests of its own and writes the answers as they came, with the time of every read.
    Credentials, host names, addresses and folders are redacted; read the files before you send them.

    Example: benchgate capture gpu:8000 --model chat --output capture
    """
    from benchgate.doctor.transcript import NO_PAGE, record
    from benchgate.load.standalone.options import LoadOptions
    from benchgate.load.standalone.run import target_of, with_model

    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UsageError(f"--output: {output} is there already and not an empty folder; name another")
    options = LoadOptions.parse(
        url=url,
        model=model,
        concurrency=1,
        requests=1,
        workers="1",
        api_key_env=api_key_env,
        headers=header or (),
        ca=ca,
        cert=cert,
        key=key,
    )
    target, engine = target_of(with_model(options))
    written: list[Recorded] = []
    left_out: list[Recorded] = []
    missing: list[str] = []
    for recorded in record(target, output):
        status = "-" if recorded.status is None else str(recorded.status)
        if recorded.reason == NO_PAGE:
            missing.append(recorded.name)
        elif recorded.reason is None:
            written.append(recorded)
            reads = f", {recorded.reads} reads" if recorded.reads else ""
            line = f"{recorded.bytes} bytes{reads}; {recorded.note}".rstrip("; ")
            say(f"{recorded.name:<26}{status:<5}{line}\n")
        else:
            left_out.append(recorded)
            say(f"{recorded.name:<26}{status:<5}left out: {recorded.reason}\n")
    if not written:
        raise TargetError(f"nothing was recorded: {left_out[0].reason}")
    answered = sorted({one.name.partition("_")[0] for one in written if one.status == 200} & ENDPOINTS.keys())
    summary = (
        f"no such pages: {', '.join(missing)}",
        f"dialect: {engine}; endpoints: {', '.join(answered) or 'none answered'}",
        f"{len(written)} exchanges in {output}, {len(left_out)} left out; the model's name is kept as it is",
        f"read the files, then attach them to an issue: tar czf {output.name}.tgz {output}",
    )
    say("".join(f"{line}\n" for line in ("", *summary)))
