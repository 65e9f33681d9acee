"""The options of `benchgate publish` that no other command has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RunOption = Annotated[
    str | None,
    typer.Argument(help="Stored run by its whole id or label, or a bundle (….json) that `store export` wrote."),
]
CommentOption = Annotated[bool, typer.Option("--comment", help="Keep one comment on the pull request up to date.")]
CheckRunOption = Annotated[bool, typer.Option("--check-run", help="Conclude a check run of the commit.")]
CommitStatusOption = Annotated[bool, typer.Option("--commit-status", help="Add a status to the commit.")]
DeploymentOption = Annotated[
    int | None, typer.Option("--deployment", metavar="ID", min=1, help="Add a status to this deployment of GitHub's.")
]
SummaryOption = Annotated[bool, typer.Option("--summary", help="Write the job summary of this step.")]
WebhookOption = Annotated[
    str | None,
    typer.Option("--webhook", metavar="URL", help="Send it signed by BENCHGATE_WEBHOOK_SECRET (docs/outputs.md)."),
]
SlackOption = Annotated[bool, typer.Option("--slack", help="Post it to the address in BENCHGATE_SLACK_URL.")]
PushMetricsOption = Annotated[
    str | None, typer.Option("--push-metrics", metavar="URL", help="Put the run's numbers to this Pushgateway.")
]
PullOption = Annotated[int | None, typer.Option("--pr", min=1, help="The pull request; by the event unless said.")]
ShaOption = Annotated[str | None, typer.Option("--sha", help="The commit; by the event unless said.")]
DetailsOption = Annotated[
    str | None, typer.Option("--details-url", help="What is linked to; the page of the CI's run unless said.")
]
SuiteOption = Annotated[
    Path | None,
    typer.Option("--suite", help="The suite's file: what the run must have been measured by; its lines are annotated."),
]
KeyOption = Annotated[
    str | None, typer.Option("--key", help="Tells runs of one suite and candidate on one commit apart.")
]
BeginOption = Annotated[
    str | None, typer.Option("--begin", metavar="SUITE", help="Instead of a run: this suite is being measured now.")
]
NoVerdictOption = Annotated[
    str | None, typer.Option("--no-verdict", metavar="SUITE", help="Instead of a run: this suite came to no verdict.")
]
CandidateOption = Annotated[
    str | None, typer.Option("--candidate", help="Of several, the one that --begin or --no-verdict is of.")
]
RequiredOption = Annotated[
    bool, typer.Option("--required/--optional", help="Whether what could not be published is code 13.")
]
ExitVerdictOption = Annotated[
    bool, typer.Option("--exit-verdict", help="End with the verdict's own code, not with 0, where all was published.")
]
