"""The options several commands share, spelled once."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from benchgate.cli.places import DEFAULT_STORE, DEFAULT_WORK_DIR


class Format(StrEnum):
    """How the result is printed on stdout."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"
    JUNIT = "junit"
    GITHUB = "github"  # the text, and annotations of GitHub Actions
    GITLAB = "gitlab"  # GitLab's metrics report


class CareFormat(StrEnum):
    """How what was found in a store is printed: for people, or for machines."""

    TEXT = "text"
    JSON = "json"


StoreOption = Annotated[
    str,
    typer.Option("--store", envvar="BENCHGATE_STORE", help="SQLite file or database URL."),
]
WorkDirOption = Annotated[
    Path, typer.Option("--work-dir", help="Folder for engine logs, harness logs and made weights.")
]
FormatOption = Annotated[Format, typer.Option("--format", help="How to print the result.")]
StrictOption = Annotated[bool, typer.Option("--strict", help="Treat WARN like BLOCK (exit 10).")]
ReportOption = Annotated[Path | None, typer.Option("--report", help="Write the HTML report to this file.")]
StatementOption = Annotated[
    Path | None,
    typer.Option("--statement", help="Write the in-toto statement of the verdict to this file (docs/verify.md)."),
]
WriteOption = Annotated[
    list[str] | None,
    typer.Option("--write", metavar="FORMAT=FILE", help="Write the verdict in this form too (docs/outputs.md)."),
]
ReportUrlOption = Annotated[
    str | None,
    typer.Option("--report-url", envvar="BENCHGATE_REPORT_URL", help="Where people will find the HTML report."),
]
LabelOption = Annotated[str | None, typer.Option("--label", help="A name to find this run by later.")]
BaselineOption = Annotated[str | None, typer.Option("--baseline", help="Deployment of the suite to use as baseline.")]
CandidateOption = Annotated[str | None, typer.Option("--candidate", help="Deployment of the suite to judge.")]
AllowActionsOption = Annotated[bool, typer.Option("--allow-actions", help="Run the commands that the suite names.")]
AllowCodeOption = Annotated[
    bool, typer.Option("--allow-code", help="Let evals run the code that the suite's `allow_unsafe_code` speaks of.")
]
ClusterOption = Annotated[
    str | None,
    typer.Option("--cluster", help="dask scheduler whose workers send the load, like tcp://scheduler:8786."),
]
WaiversOption = Annotated[Path | None, typer.Option("--waivers", help="File of reviewed waivers (docs/waivers.md).")]
AsOfOption = Annotated[
    str | None, typer.Option("--as-of", help="Day (UTC) on which waivers are looked at; today unless said.")
]

WORK_DIR = DEFAULT_WORK_DIR
STORE = DEFAULT_STORE
ExplainOption = Annotated[
    str | None,
    typer.Option("--explain", metavar="CHECK", help="Show how this check came to its outcome, step by step."),
]
