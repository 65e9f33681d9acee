"""Where people find the report of a run that a CI keeps: by what the caller says, by GitLab's artifacts, by the run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from benchgate.errors import UsageError
from benchgate.integrations.run_url import ADDRESS, run_url

_LONGEST = 2000


def report_link(environment: Mapping[str, str], asked: str | None, report: Path | None) -> str | None:
    """The address of the report, or of the CI's page where it lies; None where nobody says one.

    Raises UsageError for an address that is none, or that has a user or a password in it, which would be shown.
    """
    if asked is not None:
        if len(asked) > _LONGEST or not ADDRESS.fullmatch(asked):
            raise UsageError(
                "--report-url: expected an http or https address without user and password, with whatever is not "
                "ASCII percent-encoded, like https://ci.example.com/report.html"
            )
        return asked
    return _in_gitlab(environment, report) or run_url(environment)


def _in_gitlab(environment: Mapping[str, str], report: Path | None) -> str | None:
    """The report among the artifacts of the job, where it lies in the project's folder."""
    folder = environment.get("CI_PROJECT_DIR")
    if report is None or folder is None or environment.get("GITLAB_CI") != "true":
        return None
    job = run_url(environment)
    inside = os.path.relpath(report.absolute(), folder)
    if job is None or inside.startswith(".."):
        return None
    return f"{job}/artifacts/file/{quote(inside.replace(os.sep, '/'), errors='replace')}"
