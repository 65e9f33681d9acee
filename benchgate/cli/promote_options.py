"""The options of `benchgate promote`, in the order in which its help has them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchgate.cli.options import CareFormat

RunArgument = Annotated[
    str, typer.Argument(help="Stored run: its whole id or its label; with --withdraw also @promoted.")
]
ByOption = Annotated[str | None, typer.Option("--by", help="Who promotes; by the CI or this machine unless said.")]
RefOption = Annotated[str | None, typer.Option("--ref", help="Branch or tag it is promoted from; in CI the job's.")]
CommitOption = Annotated[str | None, typer.Option("--commit", help="Commit it is promoted at; in CI the job's.")]
ProtectedOption = Annotated[
    bool | None,
    typer.Option("--protected/--not-protected", help="Whether that ref is protected; in CI as its host says."),
]
ReportOption = Annotated[
    Path | None, typer.Option("--report", help="The HTML report that was read: it must be the store's own.")
]
OverrideOption = Annotated[
    str | None, typer.Option("--override", metavar="REASON", help="Promote against the verdict, for this reason.")
]
RequirePinnedOption = Annotated[
    bool, typer.Option("--require-pinned", help="Refuse a candidate of which nobody says at which revision it is.")
]
MaxAgeOption = Annotated[
    str | None, typer.Option("--max-age", help="How long ago at most the run may have ended; 30d unless said.")
]
RunHookOption = Annotated[
    str | None,
    typer.Option("--run-hook", metavar="CMD", help="Run this once it is recorded, without a shell; told of it."),
]
HookTimeoutOption = Annotated[str, typer.Option("--hook-timeout", help="How long --run-hook may take.")]
AgainOption = Annotated[
    bool, typer.Option("--again", help="Run the hook once more; promote once more what was withdrawn.")
]
WithdrawOption = Annotated[bool, typer.Option("--withdraw", help="Take the run's promotion back instead.")]
ReasonOption = Annotated[str | None, typer.Option("--reason", help="Why it is taken back, with --withdraw.")]
OutputOption = Annotated[CareFormat, typer.Option("--format", help="How to print what was recorded.")]
